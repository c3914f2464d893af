"""Rollouts of an agent: grouped by question, scored, and as a batch to learn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from holdfast.agent.agent import SearchAgent, Task
from holdfast.agent.batch import TokenBatch, sampling_log_mass
from holdfast.agent.judge import CORRECT, Asked, JudgeClient, Judgement
from holdfast.agent.rewards import EM, JUDGE, score_trajectory
from holdfast.agent.searching import RolloutStats
from holdfast.agent.trajectory import Group, Status, Trajectory
from holdfast.base.errors import ConfigError, RolloutError
from holdfast.base.scoring import exact_match
from holdfast.losses import group_advantages, reinforce_advantages
from holdfast.model.sampler.policy import rollout_seed
from holdfast.recipe import Config
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


# ---- with a judge: its answers, its failures, and where it parts from exact match


class Judging:
    """Scores rollouts with a judge, and counts for the metrics of a step."""

    def __init__(self, client: JudgeClient) -> None:
        self._client = client
        self._seen = (client.calls, client.tokens)
        self._asked = self._unsure = 0
        self._decided: list[tuple[bool, bool]] = []
        """Of each answer with a grade: whether the judge accepts it, and whether exact match does."""

    def score(self, groups: Sequence[Group], examples: Sequence[Example], config: Config) -> list[Group]:
        """The groups with rewards. A rollout without an answer has the grade 0, one that failed has none.

        A rollout that the judge cannot grade fails. Raises `RolloutError` where too many have failed, and when the run
        has used up its calls or tokens.
        """
        by_id = {example.id: example for example in examples}
        rollouts = [t for group in groups for t in group.trajectories]
        answered = [t for t in rollouts if t.answer is not None and not t.status.is_failure]
        judgements = self._client.grade([_asked(t, by_id[t.example_id]) for t in answered])
        judgement_of = {id(t): judgement for t, judgement in zip(answered, judgements, strict=True)}
        self._asked += len(answered)
        self._unsure += sum(one.grade is None and one.error is None for one in judgement_of.values())

        def scored(t: Trajectory, example: Example) -> Trajectory:
            judgement = judgement_of.get(id(t), Judgement(0.0))
            if judgement.error is not None:
                t = replace(t, status=Status.ERROR, error=judgement.error)
            return score_trajectory(t, example.golden_answers, config.reward.weights(), judged=judgement.grade)

        groups = [
            Group(group.id, tuple(scored(t, example) for t in group.trajectories))
            for group, example in zip(groups, examples, strict=True)
        ]
        refuse_failures([t for group in groups for t in group.trajectories], config.run.max_failed_fraction)
        self._decided += [
            (judgement.grade >= CORRECT, exact_match(t.answer, by_id[t.example_id].golden_answers) == 1.0)
            for t, judgement in zip(answered, judgements, strict=True)
            if judgement.grade is not None
        ]
        return groups

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """The metrics of a step, whose counts begin again."""
        calls, tokens = self._client.calls - self._seen[0], self._client.tokens - self._seen[1]
        metrics = {"judge/calls": float(calls), "judge/tokens": float(tokens)}
        if self._asked:
            metrics["judge/kept_fraction"] = 1 - min(calls / self._asked, 1.0)
            metrics["judge/unsure_fraction"] = self._unsure / self._asked
        grades = [t.reward_parts[JUDGE] for group in groups for t in group.trajectories if JUDGE in t.reward_parts]
        if grades:
            metrics["reward/judge"] = sum(grades) / len(grades)
        if decided := self._decided:
            metrics["judge/agreement"] = sum(judge == em for judge, em in decided) / len(decided)
            metrics["judge/accepts_more_fraction"] = sum(judge and not em for judge, em in decided) / len(decided)
            metrics["judge/accepts_less_fraction"] = sum(em and not judge for judge, em in decided) / len(decided)
        self._seen, self._asked, self._unsure = (self._client.calls, self._client.tokens), 0, 0
        self._decided = []
        return metrics


def _asked(t: Trajectory, example: Example) -> Asked:
    assert t.answer is not None
    return Asked(example.question, tuple(example.golden_answers), t.answer)


def open_judge(config: Config, run_dir: Path | None) -> Judging | None:
    """The judge of a recipe; None if it has none. Raises as `JudgeClient` does."""
    if not config.reward.judge.weight:
        return None
    if run_dir is None:
        raise ConfigError("reward.judge needs a run folder for its grades; train with `holdfast train`")
    return Judging(JudgeClient(config.reward.judge, run_dir))
