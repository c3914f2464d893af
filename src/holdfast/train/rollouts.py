"""Rollouts of an agent: grouped by question, scored, and as a batch to learn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from holdfast.agent.agent import SearchAgent, Task
from holdfast.agent.batch import TokenBatch, sampling_log_mass
from holdfast.agent.rewards import EM, score_trajectory
from holdfast.agent.searching import RolloutStats
from holdfast.agent.trajectory import Group, Trajectory
from holdfast.base.errors import RolloutError
from holdfast.losses import group_advantages, reinforce_advantages
from holdfast.model.sampler.policy import rollout_seed
from holdfast.tasks.questions import Example
from holdfast.train.objective import Objective


def roll_out(
    agent: SearchAgent,
    examples: Sequence[Example],
    *,
    size: int,
    seed: tuple[object, ...],
    max_failed: float,
) -> tuple[list[Group], RolloutStats]:
    """A group of `size` unscored rollouts for every question, in the order of the questions; and their statistics.

    The k-th rollout of a question depends only on the weights, the prompt and (`seed`, question, k). Raises
    `RolloutError` when more than a fraction of `max_failed` fails: the others then say more about the outage than about
    the policy.
    """
    tasks = [
        Task(id=f"{example.id}#{k}", example_id=example.id, prompt=prompt, seed=rollout_seed(*seed, example.id, k))
        for example in examples
        for prompt in [agent.prompt(example.question)]
        for k in range(size)
    ]
    stats = RolloutStats()
    trajectories = agent.run(tasks, stats=stats)
    refuse_failures(trajectories, max_failed)
    groups = [Group(example.id, tuple(trajectories[i * size : (i + 1) * size])) for i, example in enumerate(examples)]
    return groups, stats


def refuse_failures(trajectories: Sequence[Trajectory], max_failed: float) -> None:
    """Raise `RolloutError` if more than a fraction of `max_failed` has failed."""
    failed = [t for t in trajectories if t.status.is_failure]
    if len(failed) > max_failed * len(trajectories):
        raise RolloutError(
            f"{len(failed)} of {len(trajectories)} rollouts failed, more than run.max_failed_fraction = {max_failed} "
            f"allows. The first error: {failed[0].error}",
        )


def score(groups: Sequence[Group], examples: Sequence[Example], weights: Mapping[str, float] = EM) -> list[Group]:
    """The groups with rewards, from the golden answers of their questions and the weights of the parts of a reward."""
    return [
        Group(group.id, tuple(score_trajectory(t, example.golden_answers, weights) for t in group.trajectories))
        for group, example in zip(groups, examples, strict=True)
    ]


def training_batch(
    groups: Sequence[Group],
    objective: Objective,
    *,
    pad_token_id: int,
    device: torch.device,
) -> TokenBatch:
    """The batch to learn from, with advantages, and without what methods leave out. Rollouts without sampled tokens,
    such as failed ones, are left out too."""
    loss = objective.loss
    batch = TokenBatch.from_trajectories(groups, pad_token_id=pad_token_id)
    kind = loss.advantage
    if kind == "gae":
        advantages = batch.advantages  # zeros, until the critic has seen the batch
    elif kind == "reinforce":
        advantages = reinforce_advantages(batch.rewards, valid=batch.valid)
    else:
        advantages = group_advantages(
            batch.rewards,
            batch.group_ids,
            scale=kind == "grpo",
            lengths=batch.loss_mask.sum(-1) if loss.baseline == "length" else None,
            valid=batch.valid,
        )
    batch = replace(batch, advantages=advantages)
    if any("sampler" in method.needs for method in loss.methods.used):
        # A truncated sampler draws with the vocabulary's probability over the mass that it keeps.
        log_mass = sampling_log_mass(batch, [t for group in groups for t in group.trajectories])
        batch = replace(batch, sampler_logprobs=batch.rollout_logprobs - log_mass)
    for operation in objective.operations:
        batch = operation.on_rollouts(batch, groups)
    return batch.select(batch.loss_mask.any(-1)).to(device)
