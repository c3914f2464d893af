"""Exact match and F1 of a policy on a set of questions: sampled at the training temperature, and greedy beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.data import Example
from holdfast.rollout.hf import HFPolicy
from holdfast.train.episodes import roll_out
from holdfast.train.model import LanguageModel
from holdfast.train.session import Workspace
from holdfast.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Means over all rollouts; `em` and `f1` sampled, `em_greedy` and `f1_greedy` with the most likely tokens."""

    scores: dict[str, float]
    sampled: tuple[Trajectory, ...]
    """The first sample of every question."""


def evaluate(
    language_model: LanguageModel, examples: Sequence[Example], workspace: Workspace, *, samples: int, seed: int
) -> Evaluation:
    """Roll out every question `samples` times and once greedily, over the whole corpus.

    Sampling is untruncated at the training temperature, also when training truncates: the scores of two recipes are of
    the same kind. An episode's randomness depends on `seed` and the question alone: what changes between two
    evaluations with one seed is the policy. Failed episodes count in `failed_fraction`, which is there only when some
    failed, and nowhere else.
    """
    sampled = _episodes(language_model, examples, workspace, samples, seed, greedy=False)
    greedy = _episodes(language_model, examples, workspace, 1, seed, greedy=True)
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


def _episodes(
    language_model: LanguageModel,
    examples: Sequence[Example],
    workspace: Workspace,
    samples: int,
    seed: int,
    *,
    greedy: bool,
) -> list[tuple[Trajectory, ...]]:
    policy = HFPolicy(
        language_model.model,
        language_model.tokenizer,
        temperature=workspace.config.sampling.temperature,
        autocast_dtype=language_model.autocast_dtype,
        greedy=greedy,
        max_tokens=workspace.protocol.max_total_tokens,
    )
    groups = roll_out(policy, examples, workspace, workspace.eval_retriever, size=samples, seed=("eval", seed))
    return [group.trajectories for group in groups]
