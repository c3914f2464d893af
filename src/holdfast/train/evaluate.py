"""Exact match and F1 of an agent on a set of questions: sampled at the training temperature, and greedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.data import Example
from holdfast.rollout.agent import SearchAgent
from holdfast.train.rollouts import roll_out, score
from holdfast.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Means over all rollouts; `em` and `f1` sampled, `em_greedy` and `f1_greedy` with the most likely tokens."""

    scores: dict[str, float]
    sampled: tuple[Trajectory, ...]
    """The first sample of every question."""


class Evaluator:
    """Evaluates an agent with its present weights.

    Sampling is at the agent's temperature and never truncated, so that scores of two recipes can be compared. The
    randomness of a rollout depends only on `seed` and the question: between two evaluations with one seed, only the
    policy changes.
    """

    def __init__(self, agent: SearchAgent, samples: int, *, seed: int, max_failed: float) -> None:
        self._sampled, self._greedy = agent.evaluated(greedy=False), agent.evaluated(greedy=True)
        self._samples, self._seed, self._max_failed = samples, seed, max_failed

    def __call__(self, examples: Sequence[Example]) -> Evaluation:
        """Roll out every question `samples` times and once greedily.

        Failed rollouts count only in `failed_fraction`, which is present only if some failed.
        """
        sampled = self._rollouts(self._sampled, examples, self._samples)
        greedy = self._rollouts(self._greedy, examples, 1)
        scores = {}
        for suffix, groups in (("", sampled), ("_greedy", greedy)):
            scored = [t for group in groups for t in group if not t.status.is_failure]
            for part in ("em", "f1"):
                scores[part + suffix] = sum(t.reward_parts[part] for t in scored) / max(len(scored), 1)
        valid = [t for group in sampled for t in group if not t.status.is_failure]
        scores["searches"] = sum(t.searches for t in valid) / max(len(valid), 1)
        everyone = [t for group in (*sampled, *greedy) for t in group]
        if failed := sum(t.status.is_failure for t in everyone):
            scores["failed_fraction"] = failed / len(everyone)
        return Evaluation(scores, tuple(group[0] for group in sampled))

    def _rollouts(self, agent: SearchAgent, examples: Sequence[Example], size: int) -> list[tuple[Trajectory, ...]]:
        seed = ("eval", self._seed)
        groups, _ = roll_out(agent, examples, size=size, seed=seed, max_failed=self._max_failed)
        return [group.trajectories for group in score(groups, examples)]
