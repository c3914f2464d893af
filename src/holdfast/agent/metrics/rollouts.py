"""The metrics that follow from trajectories and old log-probs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.agent.batch import TokenBatch
from holdfast.agent.searching import RolloutStats
from holdfast.agent.trajectory import Call, Group, Invalid, Search, Status, Trajectory, with_tokens

REPEATED_TOKENS = 12
"""Tokens of an n-gram that counts as repeated. Shorter ones occur again in sound text: `</think>`, a line break and
`<search>` are 8 tokens of SmolLM2, and a model that restates the question repeats a quarter of its 4-grams, 9 % of its
8-grams and 2 % of its 12-grams (Search-R1 3B instruct, 125 rollouts on Bamboogle, by that tokenizer). Longer ones miss
a search of a few words that is repeated word for word, tags included."""


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """The metrics of trajectories alone. Failed rollouts count in `rollout/failed_fraction` only.

    A mean over nothing is absent, not 0. A step without a single successful rollout has no reward.
    """
    attempts = [t for group in groups for t in group.trajectories]
    rows = [t for t in attempts if not t.status.is_failure]
    turns = [turn for t in rows for turn in t.turns]
    queries = [turn.action.query for turn in turns if isinstance(turn.action, Search)]
    series: dict[str, Sequence[float]] = {
        "reward/mean": [t.reward or 0.0 for t in rows],
        "reward/em": [t.reward_parts["em"] for t in rows],
        "reward/f1": [t.reward_parts["f1"] for t in rows],
        "rollout/length": [
            sum(len(turn.tokens or ()) for turn in t.turns)
            for t in rows
            if all(turn.tokens is not None for turn in t.turns)
        ],
        "rollout/searches": [t.searches for t in rows],
        "rollout/invalid_fraction": [isinstance(turn.action, Invalid) for turn in turns],
        "rollout/repetition": [
            share for t in rows if (share := repetition([turn.tokens or () for turn in t.turns])) is not None
        ],
        "rollout/truncated_fraction": [t.status is Status.TRUNCATED for t in rows],
        "rollout/answered_fraction": [t.answer is not None for t in rows],
        "rollout/failed_fraction": [t.status.is_failure for t in attempts],
        "rollout/truncated_observation_fraction": [turn.observation_truncated for turn in turns if turn.observation],
        "rollout/first_action_match_fraction": [
            s for group in groups for s in first_action_matches(group) if s is not None
        ],
        "rollout/mixed_group_fraction": [
            group.mixed for group in groups if not all(t.status.is_failure for t in group.trajectories)
        ],
        "retrieval/empty_fraction": [not t.hits for t in turns if isinstance(t.action, Search) and t.observation],
        "sampler/mask_mass": [mass for turn in turns for mass in turn.mask_mass or ()] or [1.0],
    }
    for tool in {turn.action.tool for turn in turns if isinstance(turn.action, Call)}:
        series |= tool_series(tool, rows)
    result = {name: sum(values) / len(values) for name, values in series.items() if values}
    if queries:
        result["retrieval/duplicate_fraction"] = 1 - len(set(queries)) / len(queries)
    return result


def tool_series(tool: str, rows: Sequence[Trajectory]) -> dict[str, Sequence[float]]:
    """Calls of a tool of the user's own per rollout; of those that returned, which failed, and how long they took."""
    calls = [[turn for turn in t.turns if isinstance(turn.action, Call) and turn.action.tool == tool] for t in rows]
    results = [turn.result for turns in calls for turn in turns if turn.result is not None]
    return {
        f"tools/{tool}/calls": list(map(len, calls)),
        f"tools/{tool}/errors": [result.failed for result in results],
        f"tools/{tool}/seconds": [result.seconds for result in results],
    }


def repetition(actions: Sequence[tuple[int, ...]], length: int = REPEATED_TOKENS) -> float | None:
    """The share of a rollout's n-grams of sampled tokens that occurred before in the rollout; None if it has none.

    An n-gram lies within one action, so it never spans an observation. It is compared with those of all actions so far,
    because a search that is repeated word for word is a loop as much as a sentence is. A name that a query and the
    answer share is shorter than an n-gram.

    Args:
        actions: the sampled token ids of each action.
        length: tokens of an n-gram.

    >>> repetition([(1, 2, 3, 4), (1, 2, 3)], length=3), repetition([(7,) * 10], length=3), repetition([(1, 2)])
    (0.3333333333333333, 0.875, None)
    """
    grams = [ids[i : i + length] for ids in actions for i in range(len(ids) - length + 1)]
    return (len(grams) - len(set(grams))) / len(grams) if grams else None


def retrieval_metrics(stats: RolloutStats) -> dict[str, float]:
    """Time and failures of the searches of a step; empty without searches."""
    if not stats.searches:
        return {}
    return {
        "retrieval/latency_ms": 1000 * stats.retrieval_seconds / max(stats.calls, 1),
        "retrieval/error_fraction": stats.failed_searches / stats.searches,
    }


def first_action_matches(group: Group) -> list[bool | None]:
    """For every rollout of a group: whether its first search returned the same passages as that of a correct one.

    None where this does not apply: the rollout is correct or failed, or no correct rollout began with a search.
    """
    correct = {hits for t in group.trajectories if t.correct and (hits := _first_hits(t))}
    return [
        None if not correct or t.correct or t.status.is_failure else _first_hits(t) in correct
        for t in group.trajectories
    ]


def _first_hits(trajectory: Trajectory) -> tuple[str, ...]:
    """Passages of the first turn, if it is a search."""
    first = trajectory.turns[0] if trajectory.turns else None
    return first.hits if first is not None and isinstance(first.action, Search) else ()


def likelihood_rows(old_logprobs: Tensor, loss_mask: Tensor, action_ids: Tensor) -> Tensor:
    """Mean old log-prob per sampled token of each rollout: of the whole rollout and of each action.

    Args:
        old_logprobs, loss_mask, action_ids: [B, T].

    Returns:
        [B, 1 + A] for at most A actions; NaN if a rollout has no such tokens.
    """
    columns = [per_token_mean(old_logprobs, loss_mask)]
    present = [loss_mask.any(-1)]
    for k in range(1, int(action_ids.max()) + 1):
        action = loss_mask & (action_ids == k)
        columns.append(per_token_mean(old_logprobs, action))
        present.append(action.any(-1))
    return torch.where(torch.stack(present, -1), torch.stack(columns, -1), torch.nan)


def likelihood_metrics(rows: Tensor, correct: Tensor) -> dict[str, float]:
    """Means of `likelihood_rows` over the correct and over the incorrect rollouts; `correct` is bool [B].

    A failed rollout has an empty loss mask, so it does not count.
    """
    result: dict[str, float] = {}
    for name, kind in (("correct", correct), ("incorrect", ~correct)):
        whole, *actions = rows[kind].nanmean(0).tolist()
        result[f"likelihood/{name}"] = whole
        for k, mean in enumerate(actions, start=1):
            result[f"likelihood/{name}/action_{k}"] = mean
    return {name: mean for name, mean in result.items() if not math.isnan(mean)}


def advantage_metrics(advantages: Tensor, loss_mask: Tensor) -> dict[str, float]:
    """The mean advantage over sampled tokens; `advantages` [B, 1] or [B, T]."""
    spread = torch.where(loss_mask, advantages.expand_as(loss_mask), 0.0)
    return {"advantage/token_mean": float(spread.sum() / loss_mask.sum().clamp(min=1))}


def value_metrics(values: Tensor, returns: Tensor, loss_mask: Tensor) -> dict[str, float]:
    """How well a critic's values, `[B, T]`, predict the returns of GAE."""
    value, target = values[loss_mask].double(), returns[loss_mask].double()
    if not len(value):
        return {}
    metrics = {"critic/value_mean": float(value.mean()), "critic/return_mean": float(target.mean())}
    spread = float(target.var(correction=0))
    if spread > 0:
        metrics["critic/explained_variance"] = 1 - float((target - value).var(correction=0)) / spread
    return metrics


def tail_advantage(advantages: Sequence[float], trajectories: Sequence[Trajectory]) -> float | None:
    """Mean advantage of sampled tokens, weighted by the mass in the sampler's tail; None if the sampler has no tail.

    The tail is the tokens outside top-p/top-k. With log-probs over the whole vocabulary, the sign says whether the loss
    moves probability into the tail (below 0) or out of it. `advantages` has one value per trajectory.
    """
    weighted, tail = tail_sums(advantages, trajectories)
    return weighted / tail if tail > 0 else None


def tail_sums(advantages: Sequence[float], trajectories: Sequence[Trajectory]) -> tuple[float, float]:
    """Sums over sampled tokens, to add up over processes: advantage × mass in the tail, and mass in the tail."""
    pairs = [
        (advantage, 1.0 - mass)
        for advantage, trajectory in zip(advantages, trajectories, strict=True)
        for turn in trajectory.turns
        for mass in turn.mask_mass or ()
    ]
    return sum(advantage * weight for advantage, weight in pairs), sum(weight for _, weight in pairs)


def tail_metrics(advantages: Tensor, groups: Sequence[Group]) -> dict[str, float]:
    """`advantage/tail_mean`, if there is a tail. `advantages` [B, 1] are those of the trajectories with a loss mask.
    Advantages of tokens have none."""
    if advantages.shape[1] != 1:
        return {}
    mean = tail_advantage(advantages[:, 0].tolist(), with_tokens(groups))
    return {} if mean is None else {"advantage/tail_mean": mean}


def sampler_metrics(batches: Sequence[TokenBatch], groups: Sequence[Group]) -> dict[str, float]:
    """`sampler/logprob_gap`: log q − log π_old, where q is the truncated distribution if the sampler truncates.

    `batches` hold the old log-probs of the loss. If those are over the sampling mask too, only another model, another
    mask or rounding can make a gap.
    """
    sampled = [t for group in groups for t in group.trajectories if not t.status.is_failure]
    # q = p / mass on what the sampler can draw, and rollout_logprobs are log p: log q = log p - log mass.
    gap = -sum(math.log(max(mass, 1e-30)) for t in sampled for turn in t.turns for mass in turn.mask_mass or ())
    tokens = 0
    for batch in batches:
        assert batch.old_logprobs is not None
        gap += float(torch.where(batch.loss_mask, batch.rollout_logprobs - batch.old_logprobs, 0.0).sum())
        tokens += int(batch.loss_mask.sum())
    masked = any(batch.sampling_mask is not None and batch.old_log_mass is None for batch in batches)
    return {"sampler/logprob_gap": gap / max(tokens, 1)} | ({"sampler/mask_in_loss": 1.0} if masked else {})


def rows_to_probe(correct: Tensor, limit: int, generator: torch.Generator) -> list[int]:
    """At most `limit` random rows to measure displacement on; half of them correct, if there are enough.

    >>> rows_to_probe(torch.tensor([True, False, False, False]), 3, torch.Generator().manual_seed(0))[0]
    0
    """
    flags = correct.tolist()
    correct_rows, incorrect_rows = (
        [row for row in torch.randperm(len(flags), generator=generator).tolist() if flags[row] is kind]
        for kind in (True, False)
    )
    chosen = correct_rows[: max(limit // 2, limit - len(incorrect_rows))]
    return chosen + incorrect_rows[: limit - len(chosen)]


def displacement_metrics(rows: Tensor, correct: Tensor) -> dict[str, float]:
    """`rows` [R, 1 + A]: change of the mean log-prob per token of R rollouts, and of each action, as `likelihood_rows`
    has them; `correct` [R]: which rollouts are correct."""
    result = {"displacement/rollouts": float(len(rows))}
    for name, kind in (("correct", correct), ("incorrect", ~correct)):
        if not bool(kind.any()):
            continue
        result[f"displacement/{name}"] = float(rows[:, 0][kind].mean())
        actions = rows[kind][:, 1:].nanmean(0).tolist()
        result |= {f"displacement/{name}/action_{k}": x for k, x in enumerate(actions, 1) if not math.isnan(x)}
    if bool(correct.any()):
        actions_changed = rows[correct][:, 1:]
        result["displacement/fraction"] = float((rows[correct][:, 0] < 0).float().mean())
        result["displacement/action_fraction"] = float((actions_changed < 0).sum() / (~actions_changed.isnan()).sum())
    return result


def per_token_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of each row over its mask: [B, T], [B, T] -> [B]."""
    return torch.where(mask, values, 0.0).sum(-1) / mask.sum(-1).clamp(min=1)
