"""Exact match and F1 of an agent on a set of questions: sampled at the training temperature, and greedy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.agent.agent import SearchAgent
from holdfast.agent.trajectory import Trajectory
from holdfast.base.errors import CheckpointError
from holdfast.base.files import write_whole
from holdfast.base.intervals import interval, resampled_means, resampled_scores
from holdfast.base.stored import read_object
from holdfast.tasks.questions import Example
from holdfast.train.rollouts import roll_out, score
from holdfast.train.summary import Sample, read_sample, samples_of

CHUNK = 128
"""Questions that are rolled out together. An evaluation that is stopped repeats at most one chunk."""


@dataclass(frozen=True, slots=True)
class EvaluationSums:
    """What an evaluation has found so far, as sums over rollouts."""

    questions: int = 0
    """How many are finished."""
    sums: Mapping[str, float] = field(default_factory=dict)
    """`rollouts` and `failed`; `sampled` and `greedy`, those that count; and the sum over these of each score."""
    samples: tuple[Sample, ...] = ()
    """A few rollouts to read, of the first questions."""
    answers: tuple[Mapping[str, Any], ...] = ()
    """One for each finished question: the rows of answers.jsonl."""

    @property
    def scores(self) -> dict[str, float]:
        """Means over rollouts: `em` and `f1` sampled, `em_greedy` and `f1_greedy` with the most likely tokens.

        Failed rollouts count only in `failed_fraction`, which is present only if some failed.
        """
        total = self.sums
        counted = {
            "em": "sampled",
            "f1": "sampled",
            "em_greedy": "greedy",
            "f1_greedy": "greedy",
            "searches": "sampled",
        }
        scores = {name: total.get(name, 0.0) / max(total.get(of, 0), 1) for name, of in counted.items()}
        if failed := total.get("failed", 0):
            scores["failed_fraction"] = failed / total["rollouts"]
        return scores


class Evaluator:
    """Evaluates an agent with its present weights.

    Sampling is at the agent's temperature and never truncated, so that scores of two recipes can be compared. The
    randomness of a rollout depends only on `seed` and the question: between two evaluations with one seed, only the
    policy changes.
    """

    def __init__(self, agent: SearchAgent, samples: int, *, seed: int, max_failed: float) -> None:
        self._sampled, self._greedy = agent.evaluated(greedy=False), agent.evaluated(greedy=True)
        self._samples, self._seed, self._max_failed = samples, seed, max_failed

    def __call__(
        self,
        examples: Sequence[Example],
        partial: EvaluationSums | None = None,
        keep: Callable[[EvaluationSums], None] | None = None,
    ) -> EvaluationSums:
        """Roll out every question `samples` times and once greedily.

        Continues `partial`, an evaluation of the same questions that was stopped. `keep` is called after every chunk.
        """
        evaluation = partial or EvaluationSums()
        while evaluation.questions < len(examples):
            evaluation = self._evaluate_chunk(evaluation, examples[evaluation.questions :][:CHUNK])
            if keep is not None:
                keep(evaluation)
        return evaluation

    def _evaluate_chunk(self, before: EvaluationSums, examples: Sequence[Example]) -> EvaluationSums:
        sampled = self._rollouts(self._sampled, examples, self._samples)
        greedy = self._rollouts(self._greedy, examples, 1)
        new: dict[str, float] = {"rollouts": len(sampled) + len(greedy)}
        for suffix, count, rollouts in (("", "sampled", sampled), ("_greedy", "greedy", greedy)):
            scored = [t for t in rollouts if not t.status.is_failure]
            new[count] = len(scored)
            new["failed"] = new.get("failed", 0) + len(rollouts) - len(scored)
            for part in ("em", "f1"):
                new[part + suffix] = sum(t.reward_parts[part] for t in scored)
            if not suffix:
                new["searches"] = sum(t.searches for t in scored)
        return EvaluationSums(
            before.questions + len(examples),
            {name: before.sums.get(name, 0) + value for name, value in new.items()},
            before.samples or samples_of(sampled[:: self._samples], examples, self._sampled.protocol),
            (*before.answers, *answers_of(examples, sampled, greedy)),
        )

    def _rollouts(self, agent: SearchAgent, examples: Sequence[Example], size: int) -> list[Trajectory]:
        seed = ("eval", self._seed)
        groups, _ = roll_out(agent, examples, size=size, seed=seed, max_failed=self._max_failed)
        return [t for group in score(groups, examples) for t in group.trajectories]


def answers_of(
    examples: Sequence[Example], sampled: Sequence[Trajectory], greedy: Sequence[Trajectory]
) -> Iterator[dict[str, Any]]:
    """For each question its answers, `sampled` as often as was asked for and `greedy` once, and their exact match.

    The rollouts are in the order of the questions. The EM of a rollout that failed is null, so that the rows of two
    policies can be paired.
    """
    each = len(sampled) // len(examples)
    for i, example in enumerate(examples):
        row: dict[str, Any] = {
            "id": example.id,
            "question": example.question,
            "golden_answers": list(example.golden_answers),
        }
        for name, rollouts in (("sampled", sampled[i * each : (i + 1) * each]), ("greedy", greedy[i : i + 1])):
            row[name] = [t.answer for t in rollouts]
            row[f"em_{name}"] = [None if t.status.is_failure else t.reward_parts["em"] for t in rollouts]
        yield row


def intervals_of(before: EvaluationSums, after: EvaluationSums) -> dict[str, list[float]]:
    """`Summary.intervals`: bootstraps over questions. `before` may have none."""
    intervals = {}
    for name, key in (("em", "em_sampled"), ("em_greedy", "em_greedy")):
        was, now = _by_question(before, key), _by_question(after, key)
        for what, resampled, values in (
            (name, resampled_scores, [*now.values()]),
            (f"{name}_change", resampled_means, [now[id] - was[id] for id in now if id in was]),
        ):
            if values:
                intervals[what] = interval(resampled(values, np.random.default_rng(0)))
    return intervals


def _by_question(evaluation: EvaluationSums, key: str) -> dict[str, float]:
    """The mean of a score of each question, over its rollouts that did not fail."""
    scores = {row["id"]: [value for value in row[key] if value is not None] for row in evaluation.answers}
    return {id: sum(values) / len(values) for id, values in scores.items() if values}


class KeptEvaluations:
    """A file with the evaluations of a run's end, so that one that is stopped can continue."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """`settings`: what the evaluations depend on. A file with others is not read."""
        self._path, self._settings = path, dict(settings)
        remedy = "delete it, and the final evaluation begins again"
        kept = read_object(path, CheckpointError, remedy) if path.is_file() else {}
        same = kept.pop("settings", None) == self._settings
        self._kept = {name: _evaluation(values) for name, values in kept.items()} if same else {}

    def run(
        self, name: str, evaluator: Evaluator, questions: Sequence[Example], advance: Callable[[int], None]
    ) -> EvaluationSums:
        """The evaluation of this name, as far as it is missing. `advance` gets the number of finished questions."""

        def keep(evaluation: EvaluationSums) -> None:
            self._keep(name, evaluation)
            advance(evaluation.questions)

        done = evaluator(questions, self._kept.get(name), keep)
        advance(done.questions)
        return done

    def delete(self) -> None:
        """Delete the file, once the results are written."""
        self._path.unlink(missing_ok=True)

    def _keep(self, name: str, evaluation: EvaluationSums) -> None:
        self._kept[name] = evaluation
        values = {"settings": self._settings} | {name: asdict(kept) for name, kept in self._kept.items()}
        write_whole(self._path, json.dumps(values, ensure_ascii=False))


def _evaluation(values: Mapping[str, Any]) -> EvaluationSums:
    samples = tuple(map(read_sample, values["samples"]))
    return EvaluationSums(values["questions"], values["sums"], samples, tuple(values["answers"]))
