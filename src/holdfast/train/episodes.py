"""Episodes of the current policy, scored and grouped by question: what training learns from and evaluation counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from holdfast.batch import TokenBatch
from holdfast.config import Loss
from holdfast.data import Example
from holdfast.errors import RolloutError
from holdfast.losses import group_advantages, reinforce_advantages
from holdfast.retrieval.types import Retriever
from holdfast.rewards import EM, score_trajectory
from holdfast.rollout.hf import HFPolicy
from holdfast.rollout.loop import Task, lose_searches, run_rollouts
from holdfast.rollout.policy import rollout_seed
from holdfast.rollout.scheduler import Agent
from holdfast.rollout.searching import PATIENCE, RolloutStats
from holdfast.train.model import LanguageModel
from holdfast.train.session import Workspace
from holdfast.trajectory import Group, Trajectory


def roll_out(
    policy: HFPolicy,
    examples: Sequence[Example],
    workspace: Workspace,
    retriever: Retriever,
    *,
    size: int,
    seed: tuple[object, ...],
    weights: Mapping[str, float] = EM,
    wrap: Callable[[Agent[Trajectory]], Agent[Trajectory]] | None = None,
    stats: RolloutStats | None = None,
) -> list[Group]:
    """A group of `size` scored episodes for every question, in their order.

    The k-th episode of a question is a function of the weights, the prompt and (`seed`, question, k), and of nothing
    else. Raises `RolloutError` when more than `retrieval.max_failed` of the episodes fail: what is left then says more
    about the outage than about the policy.
    """
    tasks = [
        Task(id=f"{example.id}#{k}", example_id=example.id, prompt=prompt, seed=rollout_seed(*seed, example.id, k))
        for example in examples
        for prompt in [workspace.prompt(example, policy.tokenizer)]
        for k in range(size)
    ]
    trajectories = run_rollouts(
        tasks,
        policy=policy,
        retriever=retriever,
        protocol=workspace.protocol,
        tokenizer=policy.tokenizer,
        patience=PATIENCE,
        wrap=wrap,
        stats=stats,
    )
    failed, most = [t for t in trajectories if t.status.is_failure], workspace.config.retrieval.max_failed
    if len(failed) > most * len(trajectories):
        raise RolloutError(
            f"{len(failed)} of {len(trajectories)} episodes failed, more than retrieval.max_failed = {most} allows; "
            f"the first because {failed[0].error}. Once that is put right, a training run goes on from its newest "
            "checkpoint with --resume"
        )
    return [
        Group(
            example.id,
            tuple(
                score_trajectory(trajectory, example.golden_answers, weights)
                for trajectory in trajectories[i * size : (i + 1) * size]
            ),
        )
        for i, example in enumerate(examples)
    ]


def training_rollouts(
    language_model: LanguageModel,
    examples: Sequence[Example],
    workspace: Workspace,
    *,
    seed: tuple[object, ...],
    stats: RolloutStats | None = None,
) -> list[Group]:
    """`roll_out` as the recipe trains: its sampler, group size, rewards and training passages."""
    config = workspace.config
    own = config.sampling
    policy = HFPolicy(
        language_model.model,
        language_model.tokenizer,
        temperature=own.temperature,
        top_p=own.top_p,
        top_k=own.top_k,
        autocast_dtype=language_model.autocast_dtype,
        max_tokens=workspace.protocol.max_total_tokens,
    )
    return roll_out(
        policy,
        examples,
        workspace,
        workspace.train_retriever,
        size=config.train.group_size,
        seed=seed,
        weights=config.reward.weights(),
        wrap=partial(lose_searches, probability=config.retrieval.drop) if config.retrieval.drop else None,
        stats=stats,
    )


def learnable(groups: Sequence[Group], loss: Loss, *, pad_token_id: int, device: torch.device) -> TokenBatch:
    """Tensors with advantages, of the rollouts that are learned from: a failed one has nothing in its loss mask."""
    batch = TokenBatch.from_trajectories(groups, pad_token_id=pad_token_id)
    kind = loss.advantage
    if kind == "reinforce":
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
    return batch.select(batch.loss_mask.any(-1)).to(device)
