"""Arguments that cannot work: what each function of `holdfast.losses` refuses, and what it names."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from holdfast.losses import (
    action_ids_from_mask,
    adaptive_answer_weight,
    cispo_loss,
    clipped_policy_loss,
    dppo_mask,
    gae_advantages,
    group_advantages,
    gwhes,
    kl_loss,
    llds_penalty,
    merge_stats,
    nll_loss,
    nthr_weights,
    off_policy_sequence_mask,
    penalty_stats,
    preserved_mask,
    ratio_stats,
    reduce_loss,
    reinforce_advantages,
    sampler_weights,
    sapo_penalty,
    token_rewards,
    value_loss,
    whiten,
)

LP, A, MASK = torch.full((1, 3), -0.5), torch.ones(1, 1), torch.ones(1, 3, dtype=torch.bool)
IDS, TWO = torch.zeros(2, dtype=torch.long), torch.tensor([1.0, 0.0])
TOKENS = {
    "hidden": torch.zeros(3, 4), "unembedding": torch.zeros(11, 4), "token_ids": torch.arange(3),
    "correct": torch.tensor([True, True, False]), "rollout_ids": torch.tensor([0, 0, 1]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: clipped_policy_loss(LP, LP, A, MASK, clip_low=-0.1), "clip_low=-0.1"),
        (lambda: clipped_policy_loss(LP, LP, A, MASK, clip_high=math.nan), "clip_high=nan"),
        (lambda: clipped_policy_loss(LP, LP, A, MASK, dual_clip=1.0), "dual_clip=1.0 must be above 1"),
        (lambda: clipped_policy_loss(LP, LP, A, MASK, ratio="gspo"), "choose one of 'token', 'action', 'sequence'"),
        (lambda: cispo_loss(LP, LP, A, MASK, clip_low=1.5), "clip_low=1.5"),
        (lambda: dppo_mask(LP, LP, A, MASK, low=1.0), "low=1.0"),
        (lambda: dppo_mask(LP, LP, A, MASK, high=-0.1), "high=-0.1"),
        (lambda: off_policy_sequence_mask(LP, LP, A, MASK, threshold=0.0), "threshold=0.0"),
        (lambda: off_policy_sequence_mask(LP[0], LP[0], A[0], MASK[0], threshold=1.0), "sums over each sequence"),
        (lambda: kl_loss(LP, LP, MASK, estimator="k1"), "zero expected gradient.*'k3' or 'k2'.*reward"),
        (lambda: kl_loss(LP, LP, MASK, estimator="k4"), "estimator='k4' does not exist"),
        (lambda: sampler_weights(LP, LP, MASK, low=2.0, high=2.0), "low < high"),
        (lambda: sampler_weights(LP, LP, MASK, low=-0.1), "low < high"),
        (lambda: sampler_weights(LP, LP, MASK, aggregate="mean"), "changes nothing"),
        (lambda: sampler_weights(LP, LP, MASK, level="turn"), "level='turn'"),
        (lambda: sampler_weights(LP, LP, MASK, keep="drop"), "keep='drop'"),
        (lambda: sampler_weights(LP[0], LP[0], MASK[0], level="sequence"), "sums over each sequence"),
        # a list, an array or nothing in place of a tensor
        (lambda: nll_loss([[0.1]], A, MASK), "^logprobs must be a tensor, not a list; torch.as_tensor makes"),
        (lambda: clipped_policy_loss(LP, None, A, MASK), "^old_logprobs must be a tensor, not None"),
        (lambda: llds_penalty(LP, LP, A, MASK.numpy()), "^loss_mask must be a tensor, not a ndarray"),
        (lambda: group_advantages(TWO, [0, 0]), "^group_ids must be a tensor, not a list"),
        # penalties and what they preserve
        (lambda: llds_penalty(LP, LP, A, MASK, gate="sentence"), "gate='sentence' does not exist"),
        (lambda: llds_penalty(LP, LP, A, MASK, threshold=-0.1), "threshold=-0.1 must not be negative"),
        (lambda: llds_penalty(LP, LP, A, MASK, threshold=math.nan), "threshold=nan"),
        (lambda: llds_penalty(LP, LP, A, MASK, answer_weight=0.5), "without answer_mask it would change nothing"),
        (lambda: llds_penalty(LP, LP, A, MASK, answer_mask=MASK, answer_weight=1.5), "between 0"),
        (lambda: llds_penalty(LP, LP, A, MASK, answer_mask=MASK, answer_weight=torch.ones(2)), "0-d tensor"),
        (lambda: llds_penalty(LP, LP, A, MASK, answer_mask=MASK[:, :1]), "answer_mask must be bool of shape"),
        (lambda: llds_penalty(LP, LP, A, MASK, action_ids=MASK.long()[:, :1]), "action_ids has shape"),
        (lambda: llds_penalty(LP, LP, A, MASK, action_ids=LP), "action_ids must be integers"),
        (lambda: llds_penalty(LP, LP, A, MASK, gate="token", preserved=LP), "preserved must be bool"),
        (lambda: llds_penalty(LP, LP, A, MASK, preserved=MASK[:, :2]), "preserved has shape"),
        (lambda: sapo_penalty(LP, LP, A, MASK, tau=0.0), "tau="),
        (lambda: sapo_penalty(LP, LP, A, MASK, tau=math.inf), "tau="),
        (lambda: adaptive_answer_weight(1.0, schedule="linear"), "schedule"),
        (lambda: adaptive_answer_weight(1.0, target=0.0), "target"),
        (lambda: adaptive_answer_weight(1.0, schedule="code", target=1.0), "target"),
        (lambda: adaptive_answer_weight(1.0, base=1.1), "base"),
        (lambda: preserved_mask(A, MASK, rule="correct"), "rule='correct' needs.*pass correct"),
        (lambda: preserved_mask(A, MASK, rule="correct", correct=MASK[:, 0]), r"correct\[:, None\]"),
        (lambda: preserved_mask(A, MASK, correct=A), "correct must be bool"),  # also where the rule does not look at it
        (lambda: preserved_mask(A, MASK, rule="A>0"), "rule='A>0' does not exist"),
        (lambda: action_ids_from_mask(torch.tensor(True)), "token dimension"),
        # reductions and statistics
        (lambda: reduce_loss(LP, MASK, mode="mean"), "choose one of 'token-mean'"),
        (lambda: reduce_loss(LP, MASK, mode="token-sum", denominator=3), "denominator would be ignored"),
        (lambda: reduce_loss(LP, MASK, denominator=-1), "denominator=-1"),
        (lambda: reduce_loss(LP, MASK, denominator=math.nan), "denominator=nan"),
        (lambda: reduce_loss(LP, MASK, denominator=torch.ones(3)), "denominator must be one number"),
        (lambda: reduce_loss(LP, MASK, max_tokens=10), "max_tokens=10 would be ignored"),
        (lambda: reduce_loss(LP, MASK, mode="seq-mean-token-sum-norm"), "pass max_tokens"),
        (lambda: reduce_loss(LP, MASK, mode="seq-mean-token-sum-norm", max_tokens=0), "max_tokens=0 must be above 0"),
        (lambda: reduce_loss(LP[0], MASK[0], mode="seq-mean-token-mean"), "sums over each sequence"),
        (lambda: reduce_loss(LP.long(), MASK), "per_token must be floating point"),
        (lambda: ratio_stats(LP[0], LP[0], A[0], MASK[0]), "ratio_stats sums over each sequence"),
        (lambda: penalty_stats(LP, LP, LP, MASK, preserved=A), "preserved must be bool"),
        (lambda: penalty_stats(LP[:, :2], LP, LP, MASK, preserved=MASK), "penalty has shape"),
        (lambda: merge_stats([]), "at least one dict"),
        (lambda: merge_stats([{"count/tokens": A}, {}]), "same keys"),
        (lambda: merge_stats([{"reward/mean": A}]), "'reward/mean'"),
        # advantages and values
        (lambda: group_advantages(torch.ones(2, 1), IDS), r"rewards must be floating point of shape \[B\]"),
        (lambda: group_advantages(IDS, IDS), "rewards must be floating point"),
        (lambda: group_advantages(TWO, IDS[:1]), "group_ids must be integers of shape"),
        (lambda: group_advantages(TWO, TWO), "group_ids must be integers"),
        (lambda: group_advantages(TWO, IDS, valid=TWO), "valid must be bool"),
        (lambda: group_advantages(TWO, IDS, eps=math.inf), "eps"),
        (lambda: group_advantages(TWO, IDS, lengths=IDS[:1]), "one number of tokens per rollout"),
        (lambda: reinforce_advantages(TWO.half() * math.inf), r"rewards\[0\] = "),
        (lambda: token_rewards(A, LP, MASK, kl_coef=0.1), "needs ref_logprobs"),
        (lambda: token_rewards(A, LP, MASK, ref_logprobs=LP, kl_coef=math.nan), "must be a number from 0 on"),
        (lambda: token_rewards(A[0], LP, MASK), "one value per row"),
        (lambda: whiten(LP, MASK, eps=0.0), "must be above 0"),
        (lambda: gae_advantages(LP, LP, MASK, gamma=1.1), "gamma=1.1"),
        (lambda: gae_advantages(LP, LP, MASK, lam=-0.1), "lam=-0.1"),
        (lambda: gae_advantages(LP[0], LP[0], MASK[0]), "sums over each sequence"),
        (lambda: gae_advantages(LP, LP.long(), MASK), "values must be floating point"),
        (lambda: value_loss(LP, LP, LP, MASK, clip=0.0), "clip=0.0"),
        (lambda: value_loss(LP, LP[:, :2], LP, MASK), "old_values has shape"),
        # influence
        (lambda: gwhes(**TOKENS | {"hidden": torch.zeros(3)}), "hidden must be floating point"),
        (lambda: gwhes(**TOKENS | {"unembedding": torch.zeros(11, 2)}), "sharded"),
        (lambda: gwhes(**TOKENS | {"token_ids": IDS}), "token_ids has shape"),
        (lambda: gwhes(**TOKENS | {"token_ids": torch.zeros(3)}), "token_ids must be integers"),
        (lambda: gwhes(**TOKENS | {"correct": torch.zeros(3)}), "correct must be bool"),
        (lambda: gwhes(**TOKENS | {"correct": torch.tensor([True, False, False])}), "differs within a rollout"),
        (lambda: gwhes(**TOKENS, logprobs=TWO), "logprobs has shape"),
        (lambda: gwhes(**TOKENS, chunk=0), "chunk=0"),
        (lambda: nthr_weights(torch.zeros(3), MASK[0], torch.arange(3), beta=math.nan), "beta"),
        (lambda: nthr_weights(torch.arange(3), MASK[0], torch.arange(3)), "influence"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        call()
