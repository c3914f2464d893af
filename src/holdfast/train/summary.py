"""How a run ended, and results.json: written last, it says that the run is finished and its test questions are read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from holdfast.data import Example
from holdfast.environment import versions
from holdfast.files import write_whole
from holdfast.run_folder import RESULTS
from holdfast.trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A rollout for a person to read."""

    question: str
    golden_answers: tuple[str, ...]
    turns: tuple[tuple[str, str], ...]
    """(what the model said, what came back) pairs."""
    answer: str | None
    reward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """How a run ended."""

    run_dir: Path
    seconds: float
    steps: int
    verdict: str
    """One paragraph: what rose, what fell, whether correct rollouts were displaced."""
    before: Mapping[str, float]
    """`em`, `em_greedy`, … of the policy the run started from, on the final evaluation's questions."""
    after: Mapping[str, float]
    """The same after training."""
    split: str
    """The questions of `before` and `after`: `test`, or `dev` when there is no test."""
    samples: tuple[Sample, ...]


def write_summary(summary: Summary, questions: int) -> None:
    """Write results.json; `questions` is the number of those it is about."""
    results: dict[str, Any] = {"made_by": versions(), "split": summary.split, "questions": questions}
    results |= asdict(summary)
    del results["run_dir"]
    write_whole(summary.run_dir / RESULTS, json.dumps(results, indent=1, ensure_ascii=False))


def read_summary(run_dir: Path) -> Summary | None:
    """How the run ended; None when it has not."""
    try:
        results = json.loads((run_dir / RESULTS).read_text(encoding="utf-8"))
        samples = tuple(
            Sample(**sample | {"turns": tuple(map(tuple, sample["turns"]))}) for sample in results.pop("samples")
        )
        for more in ("questions", "made_by"):
            del results[more]
        return Summary(run_dir=run_dir, samples=samples, **results)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def samples_of(trajectories: Sequence[Trajectory], questions: Sequence[Example]) -> tuple[Sample, ...]:
    """Three rollouts to read: the longest correct one, a middling one, and an incorrect one, as far as there are."""
    by_id = {example.id: example for example in questions}
    spoken = [t for t in trajectories if t.turns]
    correct = sorted((t for t in spoken if t.correct), key=lambda t: -len(t.turns))
    incorrect = [t for t in spoken if not t.correct]
    ranked = [*correct[:1], *correct[1:][len(correct) // 2 - 1 :][:1], *incorrect[:1]]
    chosen = ranked + [t for t in (*correct, *incorrect) if t not in ranked]
    return tuple(
        Sample(
            question=by_id[t.example_id].question,
            golden_answers=by_id[t.example_id].golden_answers,
            turns=tuple((turn.text, turn.observation_text) for turn in t.turns),
            answer=t.answer,
            reward=t.reward or 0.0,
        )
        for t in chosen[:3]
    )
