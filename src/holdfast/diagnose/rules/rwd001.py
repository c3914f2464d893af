"""RWD001: the reward has collapsed.

Meaning: The reward has lost 40 % of its peak, or a third of it in a mean of ten rows or more.

Impact: This is the collapse itself, not its cause. Earlier findings show the cause.

Limitations: If questions become harder at some step, the reward of a healthy run falls too. If it falls suddenly and
the rollouts keep their entropy and length, the finding says so. The finding becomes a note once the reward is within 20
% of its peak again. With negative rewards, the shares refer to the range of the reward so far, including 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from holdfast.diagnose.finding import Finding
from holdfast.diagnose.log import REWARDS, Log, reward_curve
from holdfast.diagnose.log.collapse import BREAK_ROWS, Curve
from holdfast.diagnose.log.smoothed import Smoothed, reward_range
from holdfast.diagnose.log.trailing import Truths, Values, highest, last_where, lowest
from holdfast.diagnose.rules._parts.contrast import break_of, is_unlikely, same_text
from holdfast.diagnose.rules.remedies import NOTHING, Remedy, advise
from holdfast.diagnose.rules.rule import Check, Ending, Hit, Rows, Rule, Signal


def may_be_broken(rows: Rows) -> Truths:
    """[N]: where GRP001 reports a broken reward function, or may still do so. RWD001 is silent there."""
    seen = break_of(rows)
    return seen.suspected & (is_unlikely(seen.stretch) | (seen.stretch.running <= ROWS_TO_DECIDE))


ROWS_TO_DECIDE = 8
"""Rows without contrast after which a break is either found or ruled out."""


def falls(rows: Rows, _: Values, *, at_once: bool) -> Signal:
    """The reward is down (`diagnose.log.collapse`). With `at_once`, only where it broke while the rollouts stayed as
    they were; without it, only elsewhere.
    """
    curve = reward_curve(rows.log, rows.names[0])
    assert curve is not None
    shown = [where for _, where in curve.falls]

    def by(of: Callable[[Smoothed], Values]) -> Values:
        return np.select(shown, [of(mean) for mean, _ in curve.falls], of(curve.long))

    broke, row = curve.broke
    row = np.minimum(row, np.arange(len(row)))
    since = {AT_ONCE: rows.steps[row].astype(float)} if at_once else {}
    same = broke & same_text(rows, row, np.maximum(row - BREAK_ROWS, 0))
    return Signal(
        curve.down & ~may_be_broken(rows) & (same == at_once),
        lambda: {
            rows.names[0]: by(lambda mean: mean.means),
            PEAK: by(lambda mean: highest(mean.means)),
            FIRST_GOOD: first_good(curve),
            LAST_GOOD: curve.steps[last_where(curve.short.lost < LAST_GOOD_SHARE)].astype(float),
            **since,
        },
        lambda: {
            "lost": by(lambda mean: mean.lost),
            "measure": np.where(lowest(curve.rewards) < 0, "range", "peak"),
            "rows": by(lambda mean: np.full(len(mean.means), mean.window)),
        },
        normal=curve.back,
        began=lambda at: int(np.searchsorted(curve.steps, curve.fall_at(at).began)),
    )


PEAK, FIRST_GOOD, LAST_GOOD = "peak", "first good step", "last good step"
"""The first and the last step at which the reward was near its peak."""
AT_ONCE = "lost at once by step"
FIRST_GOOD_SHARE, LAST_GOOD_SHARE = 0.2, 0.1
"""How near, as a share of its range. It is still to rise at the first, and must not have begun to fall at the last."""


def first_good(curve: Curve) -> Values:
    """[N]: the first step at which the reward was near what is its peak so far."""
    best = highest(curve.short.means)
    near = best - FIRST_GOOD_SHARE * reward_range(best, lowest(curve.rewards))
    return np.asarray(curve.steps[np.searchsorted(best, near)], float)


def good_step(evidence: Mapping[str, float], first_finding: int | None) -> float:
    """The step to go back to: that of the first finding, if the reward was good there, or else the last good one. Where
    a finding comes before any good reward, there is nothing before it to go back to.

    >>> [good_step({FIRST_GOOD: 20, LAST_GOOD: 50}, step) for step in (None, 5, 30, 60)]
    [50, 50, 30, 50]
    """
    last = evidence[LAST_GOOD]
    return last if first_finding is None or first_finding < evidence[FIRST_GOOD] else min(last, first_finding)


def go_back(log: Log, hit: Hit, before: Sequence[Finding]) -> Remedy:
    """Where to go back to, and what to change: what the first finding says, unless the run was resumed there."""
    if hit.remedy is NOTHING:
        return CAME_BACK
    if (resumed := resumed_at(log, hit.onset)) is not None:
        return {host: text.replace("{step}", f"{resumed}") for host, text in AFTER_A_RESUME.items()}
    step, code, remedy = good_step(hit.evidence, before[0].step if before else None), "", hit.remedy or GO_BACK
    if before:
        code, remedy = before[0].code, GO_BACK_AFTER
    return {host: text.replace("{step}", f"{step:.0f}").replace("{code}", code) for host, text in remedy.items()}


def is_outside(hit: Hit) -> bool:
    """Whether the questions, the reward function or a tool explain a fall better than the policy does."""
    return AT_ONCE in hit.evidence


def resumed_at(log: Log, began: int) -> int | None:
    """The step of a resume at which a fall began: at most five rows before it, or two after, as windows blur it."""
    near = [step for step in log.resumed if -2 <= np.diff(np.searchsorted(log.steps, [step, began]))[0] <= 5]
    return near[-1] if near else None


AFTER_A_RESUME = advise(
    "The run was resumed at step {step}, where the reward began to fall. Compare what was loaded with what was "
    "saved: weights, the optimizer's state, the [learning rate] and its schedule, the weights of the sampler, and "
    "the order of the questions. Resume from the checkpoint before it with all of them."
)

GO_BACK = advise("Go back to a checkpoint from step {step} or before, and lower the [learning rate].")
GO_BACK_AFTER = advise("Go back to a checkpoint from step {step} or before, and do what {code} advises.")

CAME_BACK = advise(
    "The reward recovered by itself. Lower the [learning rate] so that it does not fall again, and keep a checkpoint "
    "from before it fell."
)

COMPARE = advise(
    "Compare the questions, the reward function and the tools before and after this step: the policy itself rarely "
    "changes so suddenly. Read some [rollouts] from both sides. If none of them changed, go back to a checkpoint "
    "from step {step} or before, and lower the [learning rate]."
)


RULE = Rule(
    title="reward collapse",
    kind="symptom",
    equal_needs=True,
    # For each reward, the best first: a fall of the policy, and one that came at once while its rollouts stayed.
    checks=tuple(
        Check(
            series=(name,),
            signal=partial(falls, at_once=at_once),
            rows_normal=1,  # `Curve.back` looks at the rows before, and `course` reads it as it is
            message="The reward has lost {lost:.0%} of its {measure}: it is {" + name + ":.3g}, down from {peak:.3g} "
            "(means of {rows:.0f} rows)."
            + (
                f" Most of this happened suddenly, by step {{{AT_ONCE}:.0f}}, while the rollouts did not change."
                if at_once
                else ""
            ),
            better=tuple((better,) for better in REWARDS[:rank]),
            remedy=COMPARE if at_once else None,
            look_at=(name, "entropy/mean", "rollout/length") if at_once else (),
        )
        for rank, name in enumerate(REWARDS)
        for at_once in (False, True)
    ),
    phase="collapse",
    remedy=advise(
        "Go back to a checkpoint from before the reward fell. If another finding comes first, follow its advice; "
        "otherwise lower the [learning rate]."
    ),
    remedy_in=go_back,
    rollouts="incorrect",
    states="fell",
    ending=Ending(fact="fell for good", words="the reward collapsed"),
)
