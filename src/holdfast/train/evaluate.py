"""Exact match and F1 of a policy on a set of questions: sampled at the training temperature, and greedy beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.data import Example
from holdfast.rewards import score_trajectory
from holdfast.rollout.hf import HFPolicy
from holdfast.rollout.loop import Task, run_rollouts
from holdfast.rollout.searching import RolloutStats
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
    the same kind.
    """
    sampled = _rollouts(language_model, examples, workspace, samples, seed, greedy=False)
    greedy = _rollouts(language_model, examples, workspace, 1, seed, greedy=True)
    scores = {
        "em": _mean(sampled, "em"),
        "f1": _mean(sampled, "f1"),
        "em_greedy": _mean(greedy, "em"),
        "f1_greedy": _mean(greedy, "f1"),
        "searches": sum(t.searches for t in sampled) / max(len(sampled), 1),
    }
    return Evaluation(scores, tuple(sampled[::samples]))


def rollout_seed(*parts: object) -> int:
    """A 63-bit seed that depends on its parts alone, in every process and version of Python."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _rollouts(
    language_model: LanguageModel,
    examples: Sequence[Example],
    workspace: Workspace,
    samples: int,
    seed: int,
    *,
    greedy: bool,
) -> list[Trajectory]:
    config = workspace.config
    policy = HFPolicy(
        language_model.model,
        language_model.tokenizer,
        temperature=config.sampling.temperature,
        autocast_dtype=language_model.autocast_dtype,
        greedy=greedy,
    )
    tasks = [
        Task(
            id=f"{example.id}#{k}",
            example_id=example.id,
            prompt=workspace.prompt(example, language_model.tokenizer),
            seed=rollout_seed("eval", seed, example.id, k),
        )
        for example in examples
        for k in range(samples)
    ]
    trajectories = run_rollouts(
        tasks,
        policy=policy,
        retriever=workspace.eval_retriever,
        protocol=workspace.protocol,
        tokenizer=language_model.tokenizer,
        stats=RolloutStats(),
    )
    golds = {example.id: example.golden_answers for example in examples}
    return [score_trajectory(t, golds[t.example_id]) for t in trajectories]


def _mean(trajectories: Sequence[Trajectory], part: str) -> float:
    """Over all episodes that are the policy's own doing."""
    scored = [t.reward_parts[part] for t in trajectories if not t.status.is_failure]
    return sum(scored) / max(len(scored), 1)
