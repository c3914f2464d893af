"""The glossary of all metrics, and the metrics that follow from trajectories and old log-probs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from holdfast.agent.batch import TokenBatch
from holdfast.agent.searching import RolloutStats
from holdfast.agent.trajectory import Group, Invalid, Search, Status, Trajectory

METRICS: dict[str, str] = {
    "reward/mean": "Mean reward of the rollout batch.",
    "reward/em": "Mean exact match (0 or 1).",
    "reward/f1": "Mean token F1.",
    "reward/min": "Smallest reward of the rollout batch, from verl.",
    "reward/max": "Largest reward of the rollout batch, from verl.",
    "reward/std": "Standard deviation of the rewards of the rollout batch, from TRL.",
    "reward/group_std": "Standard deviation of the rewards within a group, mean over groups, from TRL before 0.27.",
    "eval/em": "Exact match on dev, sampled at the training temperature without truncation.",
    "eval/em_greedy": "Exact match on dev, greedy.",
    "eval/f1": "Token F1 on dev, sampled.",
    "eval/f1_greedy": "Token F1 on dev, greedy.",
    "eval/searches": "Searches per question on dev, sampled.",
    "eval/failed_fraction": "Share of dev questions whose rollout failed. Scores leave them out. Absent if none "
    "failed.",
    "loss/host": "TRL's or verl's own loss, before the penalty.",
    "loss/tokens": "Tokens in the loss per rollout. If there are more than `rollout/length`, the loss includes "
    "observations.",
    "loss/policy": "Clipped policy loss. Like all losses here, a mean over the optimizer steps.",
    "loss/penalty": "Likelihood-preserving penalty, times its coefficient.",
    "loss/kl": "KL to the frozen reference, times its coefficient.",
    "loss/excluded_fraction": "Share of sampled tokens that methods leave out of the loss. Absent without such a "
    "method.",
    "loss/mean_weight": "Mean weight of a token in the policy loss. Absent without a method that weights tokens.",
    "loss/dropped_fraction": "Share of tokens whose policy gradient is 0 because of a mask that follows the policy, "
    "such as DPPO's or `off_policy_mask`. Absent without one.",
    "kl/reference": "KL to the frozen reference per token, in nats, without its coefficient. From TRL, verl and "
    "`reward.kl`.",
    "loss/entropy": "Entropy bonus: minus the entropy, times its coefficient.",
    "penalty/active_fraction": "Share of preserved tokens whose penalty is not 0. If it is always 0, the penalty has "
    "no effect.",
    "penalty/preserved_fraction": "Preserved tokens / tokens in the loss. Converts a coefficient from one "
    "`loss.penalty.normalizer` to the other.",
    "penalty/mean_decrease": "Mean over preserved tokens of max(0, old − new log-prob), in nats.",
    "penalty/noise_floor": "Largest |new − old| log-prob in the first optimizer step, where the policy has not "
    "changed yet. This is numerical noise.",
    "penalty/answer_weight": "Weight of answer tokens in the penalty.",
    "likelihood/correct": "Mean log-prob per sampled token, mean over correct rollouts. Under the old policy: the "
    "weights before this step's update, with log-probs recomputed by the trainer over the full "
    "vocabulary.",
    "likelihood/incorrect": "Mean log-prob per sampled token under the old policy, mean over incorrect rollouts.",
    "likelihood/correct/action_<k>": "Mean log-prob per token of the k-th action under the old policy, mean over "
    "correct rollouts.",
    "likelihood/incorrect/action_<k>": "Mean log-prob per token of the k-th action under the old policy, mean over "
    "incorrect rollouts.",
    "likelihood/positive": "In verl, whose loss does not know which rollouts are correct: mean log-prob per sampled "
    "token under the old policy, mean over rollouts with A > 0.",
    "likelihood/negative": "In verl: mean log-prob per sampled token under the old policy, mean over rollouts with A "
    "< 0.",
    "drift/positive": "New − old log-prob per sampled token, mean over rollouts with A > 0. Measured at the start of "
    "each optimizer step, on its rollouts. Below 0: positive rollouts become less likely.",
    "drift/negative": "New − old log-prob per sampled token, mean over rollouts with A < 0. Measured at the start of "
    "each optimizer step, on its rollouts.",
    **{
        f"drift/{sign}/{kind}": f"New − old log-prob, mean over tokens of {tokens}, in rollouts with A {op} 0. "
        "Measured at the start of each optimizer step, on its rollouts (arXiv 2603.10069, "
        "Proposition 1)."
        for sign, op in (("positive", ">"), ("negative", "<"))
        for kind, tokens in (
            ("thought", "thoughts (all but queries and answers)"),
            ("query", "queries (with their tags)"),
            ("answer", "answers (with their tags)"),
        )
    },
    "displacement/correct": "Displacement: log-prob after the whole update − before, on the same rollouts. Mean over "
    "this step's correct rollouts, in nats per sampled token. Below 0, this is lazy "
    "likelihood displacement (arXiv 2512.04220, Def. 4.1).",
    "displacement/incorrect": "The same for this step's incorrect rollouts.",
    "displacement/fraction": "Share of correct rollouts that the update made less likely.",
    "displacement/correct/action_<k>": "Displacement of the k-th action, in nats per token of that action, mean over "
    "correct rollouts (arXiv 2512.04220, Def. 4.1, divided by the action's "
    "tokens).",
    "displacement/incorrect/action_<k>": "Displacement of the k-th action, in nats per token of that action, mean "
    "over incorrect rollouts.",
    "displacement/action_fraction": "Share of the actions of correct rollouts that the update made less likely. This "
    "is lazy likelihood displacement by Def. 4.1 with ε = 0.",
    "displacement/rollouts": "Number of rollouts on which displacement was measured.",
    "entropy/mean": "Mean entropy per sampled token, in nats, of the policy without truncation.",
    "ratio/mean": "Mean importance ratio π / π_old, over the optimizer steps of the step.",
    "ratio/max": "Largest importance ratio.",
    "ratio/p01": "First percentile of the importance ratios of tokens.",
    "ratio/log_product": "Log of the product of a rollout's token ratios, mean over rollouts.",
    "ratio/log_product/positive": "The same, over rollouts with A > 0. Measured at the start of each optimizer step.",
    "ratio/log_product/negative": "The same, over rollouts with A < 0.",
    **{
        f"isdd/{sign}/below_{name}": f"Share of rollouts with A {op} 0 whose token ratios multiply to less than "
        f"{epsilon}, at the start of each optimizer step. This is P(∏ r < ε) of "
        "importance-sampling distribution drift (arXiv 2603.10069, Def. 1)."
        for sign, op in (("positive", ">"), ("negative", "<"))
        for name, epsilon in (("half", "1/2"), ("tenth", "1/10"), ("hundredth", "1/100"))
    },
    "critic/value_loss": "Loss of the critic: half the clipped squared error of its values, mean over the optimizer "
    'steps. All `critic/` metrics need `loss.advantage = "gae"`.',
    "critic/explained_variance": "1 − Var(return − value) / Var(return) over sampled tokens, before the update. 1: "
    "perfect values; 0 or below: no better than a constant. Absent if all returns are "
    "equal.",
    "critic/value_mean": "Mean value of sampled tokens, before the update.",
    "critic/return_mean": "Mean return of sampled tokens: advantage + value.",
    "critic/clip_fraction": "Share of tokens whose value has no gradient because it changed by more than "
    "`critic.clip`.",
    "critic/grad_norm": "Gradient norm of the critic before clipping, mean over optimizer steps with a finite norm.",
    "critic/skipped_steps": "Number of the critic's optimizer steps that were skipped because the gradient norm was "
    "not finite.",
    "critic/lr": "Learning rate of the critic.",
    "clip/fraction": "Share of tokens whose gradient is 0 because their ratio is clipped.",
    "grad/norm": "Gradient norm before clipping, mean over optimizer steps with a finite norm.",
    "grad/norm_max": "The largest gradient norm.",
    "grad/skipped_steps": "Optimizer steps skipped because the gradient norm was not finite.",
    "rollout/length": "Sampled tokens per rollout.",
    "rollout/min_length": "Tokens of the shortest rollout, from TRL and verl.",
    "rollout/max_length": "Tokens of the longest rollout, from TRL and verl.",
    "rollout/searches": "Searches per rollout.",
    "rollout/invalid_fraction": "Share of turns that were neither a search nor an answer.",
    "rollout/truncated_fraction": "Share of rollouts that ran out of turns or tokens.",
    "rollout/answered_fraction": "Share of rollouts that end with an answer.",
    "rollout/failed_fraction": "Share of rollouts that failed for reasons outside the policy.",
    "rollout/truncated_observation_fraction": "Share of observations cut to their token limit.",
    "rollout/first_action_match_fraction": "Share of incorrect rollouts whose first search returned the same "
    "passages as the first search of a correct rollout of the same question.",
    "rollout/mixed_group_fraction": "Share of groups in which rewards differ. In the others, all group-relative "
    "advantages are 0.",
    "sampler/logprob_gap": "Sampler's log-prob minus old log-prob, mean over sampled tokens. If it is not 0, the "
    "sampler is truncated, or is not the model that is trained.",
    "sampler/logprob_abs_gap": "|sampler's log-prob − trainer's log-prob| in nats, mean over tokens, from other "
    "trainers.",
    "sampler/prob_abs_gap": "|sampler's probability − trainer's probability|, mean over tokens, from verl.",
    "sampler/mismatch_kl": "KL between sampler and trainer per token, in nats, from prime-rl.",
    "sampler/importance_ratio": "Trainer's probability / sampler's probability, mean over tokens, from TRL.",
    "sampler/mask_mass": "Mean probability of the tokens inside top-p/top-k (1: no truncation).",
    "sampler/mask_in_loss": "1 if the log-probs in the loss are over the tokens inside top-p/top-k. Absent otherwise.",
    "advantage/token_mean": "Mean advantage over sampled tokens. Below 0: incorrect rollouts are longer.",
    "advantage/tail_mean": "Mean advantage over sampled tokens, weighted by the probability outside top-p/top-k. "
    "Below 0: the loss moves probability there. Absent if the sampler is not truncated.",
    "retrieval/latency_ms": "Milliseconds per call of the retriever.",
    "retrieval/error_fraction": "Share of searches that failed after all retries.",
    "retrieval/empty_fraction": "Share of searches that found nothing.",
    "retrieval/duplicate_fraction": "Share of searches that repeat a query of the same step.",
    "optimizer_steps_per_rollout": "Optimizer steps per rollout batch (K).",
    "lr": "Learning rate.",
    "time/rollout_s": "Seconds for rollouts.",
    "time/update_s": "Seconds for old log-probs and the update.",
    "time/displacement_s": "Seconds for measuring displacement.",
    "time/step_s": "Seconds for the whole step, without evaluation.",
    "tokens_per_s": "Tokens of the rollout batch per second of the step, including prompts and observations.",
}
"""Every metric that a run may log, with its meaning. docs/reference/metrics.md is made from this."""


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
        "rollout/length": [sum(len(turn.tokens or ()) for turn in t.turns) for t in rows],
        "rollout/searches": [t.searches for t in rows],
        "rollout/invalid_fraction": [isinstance(turn.action, Invalid) for turn in turns],
        "rollout/truncated_fraction": [t.status is Status.TRUNCATED for t in rows],
        "rollout/answered_fraction": [t.answer is not None for t in rows],
        "rollout/failed_fraction": [t.status.is_failure for t in attempts],
        "rollout/truncated_observation_fraction": [turn.observation_truncated for turn in turns if turn.observation],
        "rollout/first_action_match_fraction": [
            s for group in groups for s in first_action_matches(group) if s is not None
        ],
        "rollout/mixed_group_fraction": [group.mixed for group in groups],
        "retrieval/empty_fraction": [not t.hits for t in turns if isinstance(t.action, Search) and t.observation],
        "sampler/mask_mass": [mass for turn in turns for mass in turn.mask_mass or ()] or [1.0],
    }
    result = {name: sum(values) / len(values) for name, values in series.items() if values}
    if queries:
        result["retrieval/duplicate_fraction"] = 1 - len(set(queries)) / len(queries)
    return result


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
    learned = [t for group in groups for t in group.trajectories if any(t.loss_mask)]
    mean = tail_advantage(advantages[:, 0].tolist(), learned)
    return {} if mean is None else {"advantage/tail_mean": mean}


def sampler_metrics(batches: Sequence[TokenBatch], groups: Sequence[Group]) -> dict[str, float]:
    """`sampler/logprob_gap`: log q − log π_old, where q is the truncated distribution if the sampler truncates.

    `batches` hold the old log-probs of the loss. If those are over the sampling mask too, only another model, another
    mask or rounding can make a gap.
    """
    learned = [t for group in groups for t in group.trajectories if not t.status.is_failure]
    gap = -sum(math.log(max(mass, 1e-30)) for t in learned for turn in t.turns for mass in turn.mask_mass or ())
    tokens = 0
    for batch in batches:
        assert batch.old_logprobs is not None
        gap += float(torch.where(batch.loss_mask, batch.rollout_logprobs - batch.old_logprobs, 0.0).sum())
        tokens += int(batch.loss_mask.sum())
    masked = any(batch.sampling_mask is not None and batch.old_log_mass is None for batch in batches)
    return {"sampler/logprob_gap": gap / max(tokens, 1)} | ({"sampler/mask_in_loss": 1.0} if masked else {})


def rows_to_probe(correct: Tensor, most: int, generator: torch.Generator) -> list[int]:
    """At most `most` random rows to measure displacement on; half of them correct, if there are enough.

    >>> rows_to_probe(torch.tensor([True, False, False, False]), 3, torch.Generator().manual_seed(0))[0]
    0
    """
    flags = correct.tolist()
    correct_rows, incorrect_rows = (
        [row for row in torch.randperm(len(flags), generator=generator).tolist() if flags[row] is kind]
        for kind in (True, False)
    )
    chosen = correct_rows[: max(most // 2, most - len(incorrect_rows))]
    return chosen + incorrect_rows[: most - len(chosen)]


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


def glossary_entry(name: str, glossary: Mapping[str, str] = METRICS) -> str | None:
    """The text of the glossary for a metric, including numbered ones.

    >>> glossary_entry("likelihood/correct/action_2") == METRICS["likelihood/correct/action_<k>"]
    True
    """
    head, _, number = name.rpartition("action_")
    return glossary.get(f"{head}action_<k>" if head and number.isdigit() else name)
