"""How a run ended: its verdict, and results.json, which is written last. A run that has it is finished."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from holdfast.agent.protocol import SearchProtocol
from holdfast.agent.trajectory import Call, Trajectory
from holdfast.agent.turn_parts import parts_of_turn
from holdfast.base.environment import versions
from holdfast.base.errors import DataError
from holdfast.base.files import write_whole
from holdfast.base.run_folder import RESULTS
from holdfast.base.stored import read_object
from holdfast.diagnose.log.collapse import DROPPED_SHARE, Curve, collapsed, course_of, curve_of, fell
from holdfast.diagnose.log.smoothed import WINDOW
from holdfast.tasks.questions import Example


class SampleTurn(NamedTuple):
    """A turn, and what came back."""

    parts: Sequence[tuple[str, str]]
    """As `parts_of_turn` gives them."""
    observation: str
    is_result: bool
    """Whether a function or a server returned the observation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A rollout for people to read."""

    question: str
    golden_answers: tuple[str, ...]
    turns: tuple[SampleTurn, ...]
    answer: str | None
    reward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """How a run ended."""

    run_dir: Path
    seconds: float
    steps: int
    verdict: str
    """One paragraph; see `verdict_of`."""
    before: Mapping[str, float]
    """`em`, `em_greedy`, … of the policy the run started from, on the questions of the final evaluation; empty without
    `eval.start`."""
    after: Mapping[str, float]
    """The same after training."""
    split: str
    """The questions of `before` and `after`: `test`, or `dev` when there is no test."""
    samples: tuple[Sample, ...]
    questions: int = 0
    """How many `before` and `after` are means over."""
    intervals: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """95 % intervals over questions: of `em` and `em_greedy` after training, and of their changes, `em_change` and
    `em_greedy_change`, paired by question."""


def write_summary(summary: Summary) -> None:
    """Write results.json."""
    results: dict[str, Any] = {"made_by": versions(), "split": summary.split, "questions": summary.questions}
    results |= asdict(summary)
    del results["run_dir"]
    write_whole(summary.run_dir / RESULTS, json.dumps(results, indent=1, ensure_ascii=False))


def read_summary(run_dir: Path) -> Summary | None:
    """How the run ended, or None if it is not finished."""
    try:
        results = read_object(run_dir / RESULTS, DataError, "evaluate again", samples=list)
        samples = tuple(map(read_sample, results.pop("samples")))
        del results["made_by"]
        return Summary(run_dir=run_dir, samples=samples, **results)
    except (DataError, KeyError, TypeError):
        return None


def read_sample(values: Mapping[str, Any]) -> Sample:
    """A sample from its JSON."""
    turns = tuple(SampleTurn([(kind, text) for kind, text in parts], *rest) for parts, *rest in values["turns"])
    return Sample(**{**values, "turns": turns, "golden_answers": tuple(values["golden_answers"])})


def samples_of(
    trajectories: Sequence[Trajectory], questions: Sequence[Example], protocol: SearchProtocol
) -> tuple[Sample, ...]:
    """At most three rollouts to read: the longest correct one, one of middle length, and an incorrect one."""
    by_id = {example.id: example for example in questions}
    taken = [t for t in trajectories if t.turns]
    correct = sorted((t for t in taken if t.correct), key=lambda t: -len(t.turns))
    incorrect = [t for t in taken if not t.correct]
    ranked = [*correct[:1], *correct[max(len(correct) // 2, 1) :][:1], *incorrect[:1]]
    chosen = ranked + [t for t in (*correct, *incorrect) if t not in ranked]
    return tuple(
        Sample(
            question=by_id[t.example_id].question,
            golden_answers=by_id[t.example_id].golden_answers,
            turns=tuple(
                SampleTurn(parts_of_turn(turn, protocol), turn.observation_text, isinstance(turn.action, Call))
                for turn in t.turns
            ),
            answer=t.answer,
            reward=t.reward or 0.0,
        )
        for t in chosen[:3]
    )


# ---- the verdict


def verdict_of(
    series: Sequence[Mapping[str, float]],
    before: Mapping[str, float],
    after: Mapping[str, float],
    split: str,
    questions: int = 0,
    intervals: Mapping[str, Sequence[float]] | None = None,
) -> str:
    """A few sentences: what rose, what fell, and whether correct rollouts were displaced. `before` may be empty; the
    others are as in `Summary`.

    `holdfast.diagnose.log.collapse` defines dropped, fell and collapsed. A run that fell and came back says both.

    >>> rows = [{"reward/mean": r, "displacement/correct": 0.01} for r in (.2, .3, .4, .5, .6, .7)]
    >>> verdict_of(rows, {"em": 0.2, "em_greedy": 0.4}, {"em": 0.5, "em_greedy": 0.45}, "test")[:66]
    'Learned, and stayed stable. The reward changed from 0.40 to 0.50 ('
    """
    curve = curve_of([row["reward/mean"] for row in series if "reward/mean" in row])
    moved = [row["displacement/correct"] for row in series if "displacement/correct" in row]
    if not len(curve.steps):
        return "No training step was made."
    sampled, greedy = (
        (f"{before[name]:.3f} to " if before else "") + f"{after[name]:.3f}" + shown_interval(name, intervals or {})
        for name in ("em", "em_greedy")
    )
    sample = f" ({questions} questions, 95 % intervals)" if intervals else ""
    text = _reward(curve, after["em"] - before["em"] if before else None, (intervals or {}).get("em_change"))
    text += f" Exact match on {split}{sample}: sampled {sampled}, greedy {greedy}."
    if moved:
        below = sum(m < 0 for m in moved) / len(moved)
        text += (
            f" Correct rollouts became {'more' if mean(moved) > 0 else 'less'} likely under their own updates: "
            f"displacement {mean(moved):+.4f} nats per token on average, below 0 in {below:.0%} of the steps."
        )
    return text


def shown_interval(name: str, intervals: Mapping[str, Sequence[float]], form: str = ".3f") -> str:
    """The interval of a score behind it, in parentheses; empty if it is not known.

    >>> shown_interval("em", {"em": [0.25, 0.4]})
    ' (0.250 to 0.400)'
    """
    if name not in intervals:
        return ""
    low, high = intervals[name]
    return f" ({low:{form}} to {high:{form}})"


def _reward(curve: Curve, gain: float | None, change: Sequence[float] | None) -> str:
    """What the reward did. `gain` is how much exact match on unseen questions has risen, and `change` the interval of
    that; each is None if it is not known."""
    window = min(WINDOW, len(curve.steps))
    means = curve.short.means[window - 1 :]
    first, last, peak = means[0], means[-1], means.max()
    aside = f"{first:.2f} at first, means of {window} steps"
    fall, dropped = fell(curve), curve.dropped[-1]
    if fall is not None and curve.fallen[-1]:
        end = curve.fall_at(-1)
        word = "Fell" if collapsed(curve) is None else "Collapsed"
        return f"{word}. The reward fell from its peak of {end.peak:.2f} to {end.level:.2f} ({aside})."
    if fall is not None:
        low = curve.short.means[curve.steps >= fall.step].min()
        back = "partly recovered" if dropped else "recovered"
        return f"Fell and {back}. The reward fell from {fall.peak:.2f} to {low:.2f} and ended at {last:.2f} ({aside})."
    if dropped:
        return f"Declined. The reward declined from its peak of {peak:.2f} to {last:.2f} ({aside})."
    if not curve.rewards.any():
        return "Nothing was learned: the reward was 0 in every step."
    if len(means) == 1:
        return f"Too few steps to judge. The reward was {last:.2f} on average, in {window} step{'s' * (window > 1)}."
    moved = {"rose": "rose", "declined": "fell"}.get(course_of(curve).word, "changed")
    course = f"{moved} from {first:.2f} to {last:.2f}"
    if (last - first if gain is None else gain) > 0.02:
        ended = "Learned, and stayed stable."
    elif change is not None and change[1] < 0:  # rewards are of training questions
        ended = "Ended below its initial checkpoint on unseen questions."
    elif curve.short.lost[-1] >= DROPPED_SHARE:
        ended = "Ended with a lower reward, perhaps by chance."
    else:
        ended = "Stable, but learned little."
    return f"{ended} The reward {course} (peak {peak:.2f}, means of {window} steps)."
