"""The verdict on a run: one of five words, why, and the one thing to change first.

It is a pure function of the log and of what the rules found. The newest row decides, so a verdict may change as the run
continues, where findings keep their steps.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from holdfast.diagnose.finding import Finding, Reason, Verdict, Word, span_of
from holdfast.diagnose.log import METRICS, Log, has
from holdfast.diagnose.log.collapse import (
    MIN_FLAT_ROWS,
    TREND_ERRORS,
    VISIBLE_SHARE,
    Course,
    Curve,
    Fall,
    clear_rise,
    is_flat,
    is_remainder,
    may_be_flat,
)
from holdfast.diagnose.log.smoothed import WINDOW
from holdfast.diagnose.readers.names import CUMULATIVE
from holdfast.diagnose.readers.text import listed
from holdfast.diagnose.rules import RULES
from holdfast.diagnose.rules._parts import TRUNCATED
from holdfast.diagnose.rules._parts.contrast import CONTRAST
from holdfast.diagnose.rules._parts.reward import is_earned_by_form
from holdfast.diagnose.rules.grp001 import HARDER
from holdfast.diagnose.rules.rule import Hit
from holdfast.diagnose.rules.rwd001 import is_outside, resumed_at

NOT_LEARNING: tuple[Word, ...] = ("flat", "broken")
FELL, FLAT = (next(code for code, rule in RULES.items() if rule.states == word) for word in ("fell", "flat"))
"""The codes that say so."""


def word_of(batches: Log, curve: Curve | None, course: Course, hits: Mapping[str, Hit]) -> Word:
    """The verdict on a log. `hits` are those that no other suppresses."""
    if curve is None or len(curve.rewards) < WINDOW or is_remainder(curve):
        return "cannot tell"
    passed = course.word == "recovered" and FELL in hits and is_outside(hits[FELL])
    if (course.fall is not None and course.back_step is None) or curve.fallen[-1] or course.word == "declined":
        return "fell"
    rose = curve.rose[-1] and (course.word == "dropped" or passed or _is_best_since(curve, course))
    if course.word == "rose" or rose:
        return "flat" if is_earned_by_form(batches) else "learns"
    if any(RULES[code].leaves(hit) == "nothing" for code, hit in hits.items() if hit.level == "finding"):
        return "broken"
    if course.word == "recovered" and not passed and not leaving_little(hits):
        return "fell"
    explained = any(hit.level == "finding" for hit in hits.values()) or by_verdict(batches, hits, course, "flat")
    return "flat" if is_flat(curve, course) or (may_be_flat(curve, course) and explained) else "cannot tell"


def _is_best_since(curve: Curve, course: Course) -> bool:
    """Whether the reward was highest after it came back: a dip on the way up."""
    return course.back_step is not None and bool(curve.steps[curve.short.means.argmax()] >= course.back_step)


_NO_REWARD = re.compile(r"(?:loss|time|sec(?:ond)?s?|tokens?|flos|steps?)$")
"""Names of what no reward is: a loss, a time or a count."""
CLOSE_ROWS = 5
"""Rows at the start of a log in which what holds has held since it began."""


def by_verdict(batches: Log, hits: Mapping[str, Hit], course: Course, word: Word) -> tuple[str, ...]:
    """The codes that are findings because of the verdict, in their order.

    Of a reward that does not rise: the reasons, and `RWD004`, which says it. What began during the run may have caused
    it and comes first. What has held since the log began comes last, and only where the reward is certainly flat: many
    sound runs that are too short or noisy look like that. Batches that mostly earn nothing are certain by themselves.
    Of a reward that was down for long and came back: `RWD001`.
    """
    if word == "fell":
        return (FELL,) if _was_long(batches, course) and FELL in hits and hits[FELL].level == "note" else ()
    reasons = [code for code, hit in hits.items() if hit.level == "reason"] if word in NOT_LEARNING else []
    steps = batches.steps
    begun = int(steps[min(CLOSE_ROWS, len(steps)) - 1]) if len(steps) else 0
    sure = course.word not in ("unclear", "recovered")
    certain = leaving_little(hits)  # whatever the trend
    later = [code for code in reasons if hits[code].onset > begun and (sure or not RULES[code].looks_like_learning)]
    held = [code for code in reasons if hits[code].onset <= begun and (sure or code in certain)]
    return (*later, *(code for code in (FLAT,) if code in hits and (later or (held and sure))), *held)


def leaving_little(hits: Mapping[str, Hit]) -> tuple[str, ...]:
    """The codes of hits that leave little to learn from. A reward then falls and comes back by chance."""
    return tuple(code for code, hit in hits.items() if RULES[code].leaves(hit) == "little")


def _was_long(batches: Log, course: Course) -> bool:
    """Whether a reward that came back was down for longer than noise makes it, and for a tenth of the run."""
    if course.fall is None or course.back_step is None:
        return False
    fell, back = np.searchsorted(batches.steps, [course.fall.step, course.back_step])
    return bool(back - fell >= max(ROWS_DOWN, DOWN_SHARE * len(batches.steps)))


ROWS_DOWN, DOWN_SHARE = 40, 0.1
"""Rows, four times those of the longer mean, and share of the run."""


def verdict_of(
    batches: Log,
    curve: Curve | None,
    course: Course,
    reported: Sequence[Finding],
    facts: Mapping[str, float],
    hits: Mapping[str, Hit],
    word: Word,
) -> Verdict:
    """The verdict with its reasons. `reported` are the findings and notes of the hits, at the levels that `word` gives
    them."""
    findings = [finding for finding in reported if finding.level == "finding"]
    change = findings[0].remedy if findings else ""
    if curve is None or word == "cannot tell":
        text, log = _cannot_tell(batches, curve, course, facts), _rewards_to_log(batches, curve, course)
        return Verdict(word=word, text=text, change=change, log=log)
    text = _course(curve, course, word)
    if word not in NOT_LEARNING:
        if course.fall is not None and (resumed := resumed_at(batches, course.fall.began)) is not None:
            text += f" The run was resumed at step {resumed}."
            change = next((one.remedy for one in findings if one.code == FELL), change)
        return Verdict(word=word, text=text, change=change)
    less_sure = [note for note in reported if note.level == "note" and hits[note.code].level == "reason"]
    reasons = [
        *(_reason(finding) for finding in findings if finding.code != FLAT),
        *_little_left(batches, curve),
        *map(_reason, less_sure),
    ]
    reasons = reasons or [Reason(code=FLAT, summary=_ruled_out(batches), remedy=RULES[FLAT].remedy[batches.host])]
    log = _evidence_to_log(batches)
    return Verdict(word=word, text=text, reasons=tuple(reasons), change=reasons[0].remedy, log=log)


# ---- what the reward did


def _reason(finding: Finding) -> Reason:
    return Reason(code=finding.code, summary=finding.summary, remedy=finding.remedy)


def _course(curve: Curve, course: Course, word: Word) -> str:
    """What the reward did, in a sentence or two."""
    if course.fall is not None:
        rose = " has risen, but it" if word == "learns" else ""
        fell = f"The reward{rose} {_fall(course.fall, course.back_step)}"
        return fell if word in ("fell", "learns") else f"{fell} In all, {_change(course)}."
    if curve.fallen[-1]:
        return f"In the last rows, the reward lost {curve.short.lost[-1]:.0%} of its best value. It may still recover."
    if course.word == "dropped":
        return f"The reward rose, but at the end it is {curve.short.lost[-1]:.0%} below its best value."
    trend, visible = f"{abs(course.change):.2g} ± {course.error:.2g} over the run", TREND_ERRORS * course.error
    if course.word == "declined":
        return f"The reward declined by {trend}."
    if course.word == "rose":
        clear = abs(course.change) > TREND_ERRORS * course.error
        rose = f"The reward rose by {trend}." if clear else "The last ten rewards are above the first ten."
        return rose if word == "learns" else f"{rose} But only the reward functions for form have risen."
    if curve.rewards.min() == curve.rewards.max():
        return f"The reward is {curve.rewards[0]:.3g} in every row."
    return f"The reward has not risen: {_change(course)}. A change of {visible:.2g} or more would be visible."


def _fall(fall: Fall, back: int | None) -> str:
    fell = f"fell near step {fall.began}"
    fell += f": by step {fall.step} it had lost {fall.lost:.0%} of its {fall.measure} (step {fall.peak_step})."
    return fell if back is None else f"{fell} It had recovered by step {back}."


def _change(course: Course) -> str:
    return f"it changed by {course.change:+.2g} ± {course.error:.2g} over the run"


def _cannot_tell(batches: Log, curve: Curve | None, course: Course, facts: Mapping[str, float]) -> str:
    if not len(batches.steps):
        return f"No rollout batch is complete yet ({span_of(facts)})." if facts.get("rows") else "The log has no rows."
    if curve is None:
        return f"This log has no reward ({span_of(facts)})."
    if is_remainder(curve):
        return "Except for rounding, the reward is always 0, as after normalisation, so it shows nothing."
    if course.word == "dropped":
        return (
            f"At the end, the reward is {curve.short.lost[-1]:.0%} below its best value. More rows will show "
            "whether it falls."
        )
    rewards = len(curve.rewards)
    if rewards >= MIN_FLAT_ROWS:
        fell = "" if course.fall is None else f"The reward {_fall(course.fall, course.back_step)} "
        hidden = f" Even a rise of {clear_rise(curve):.2g}, a quarter of its range, would be lost in the noise."
        way = "rising" if course.change > 0 else "rising or falling"
        return f"{fell}The reward may be {way}: {_change(course)}." + ("" if _suggests_a_rise(course) else hidden)
    if rewards == 1:
        return f"The only reward is {curve.rewards[0]:.3g} ({span_of(facts)})."
    return f"{rewards} rewards are too few to tell whether it rises or falls."


def _rewards_to_log(batches: Log, curve: Curve | None, course: Course) -> str:
    """What the next log needs for a verdict."""
    if not len(batches.steps):
        return f"A fall is visible after 10 rollout batches. Whether the reward rises is visible after {MIN_FLAT_ROWS}."
    if curve is not None and not is_remainder(curve):
        if (rewards := len(curve.rewards)) < MIN_FLAT_ROWS:
            return f"A fall is visible after 10 rows. Whether the reward rises is visible after {MIN_FLAT_ROWS}."
        change = course.change if _suggests_a_rise(course) else clear_rise(curve)
        rows = math.ceil((TREND_ERRORS * course.error / change) ** 2 * rewards)
        return f"About {max(rows, rewards + WINDOW):,} such rows would be enough to tell, or larger batches."
    known = METRICS.keys() | set(CUMULATIVE)
    others = [name for name in batches.series if name not in known and not _NO_REWARD.search(name)]
    named = (
        f"If one of these metrics is the reward, name it with --name reward=METRIC: {listed(others)}." if others else ""
    )
    return named or "Log the mean reward of each batch of rollouts."


def _suggests_a_rise(course: Course) -> bool:
    """Whether the reward has risen by more than noise often makes, though by less than it does at most."""
    return course.change > TREND_ERRORS / 2 * course.error


# ---- why it is flat, by the curve alone


def _little_left(batches: Log, curve: Curve) -> list[Reason]:
    """That a rise by a quarter is not possible any more."""
    level, top = float(curve.short.means[-1]), 100.0 if 1 < curve.rewards.max() <= 100 else 1.0
    if curve.rewards.min() < 0 or curve.rewards.max() > top or top - level >= VISIBLE_SHARE * top:
        return []
    summary = f"There is little left to gain: the reward is {level:.3g}. If it is a share, it cannot exceed {top:g}."
    return [Reason(code=FLAT, summary=summary, remedy=HARDER[batches.host])]


# ---- what the log lacks

_EVIDENCE: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "the share of groups with equal rewards": tuple(CONTRAST),
    "the share of truncated rollouts": ((TRUNCATED,),),
    "the learning rate": (("lr",),),
    "the KL to the reference (or the share of clipped tokens)": (("kl/reference",), ("clip/fraction",)),
    "the gradient norm": (("grad/norm",),),
}
"""What may say why a reward is flat -> sets of series of which one is enough."""


_RULED_OUT = {
    "rewards differ within groups": tuple(name for names in CONTRAST for name in names),
    "few rollouts are truncated": (TRUNCATED,),
    "the policy moves": ("kl/reference",),
}
"""What is so where the log has one of the series, and no rule says otherwise."""


def _ruled_out(batches: Log) -> str:
    """What the log says of a reward that is flat for a reason that it does not show."""
    known = [what for what, names in _RULED_OUT.items() if any(has(batches, name) for name in names)]
    left = "The log does not show why."
    return f"{left} It does show that {listed(known)}." if known else left


def _evidence_to_log(batches: Log) -> str:
    """What to log so that the next log can say why; empty if this one has it all."""
    missing = [what for what, sets in _EVIDENCE.items() if not any(has(batches, *names) for names in sets)]
    return f"To see why, log {listed(missing)}." if missing else ""
