"""Tokens in the loss that the trained policy did not sample (MSK001: a mask leak), or that another policy sampled
(SMP001; a tail leak is probability lost to what a truncated sampler cannot draw)."""

from __future__ import annotations

import numpy as np

from holdfast.diagnostics.rules.rule import Check, Rows, Rule, Signal
from holdfast.trailing import Truths, highest, lowest, noise, trailing_mean

TRAINED, SAMPLED = "loss/tokens", "rollout/length"
CORRECT, INCORRECT, ENTROPY = "likelihood/correct", "likelihood/incorrect", "entropy/mean"
SURPRISE = (CORRECT, INCORRECT, ENTROPY)
GAP, MASS, MASKED = "sampler/logprob_gap", "sampler/mask_mass", "sampler/mask_in_loss"
CUT, REWARD = "advantage/tail_mean", "reward/mean"

NOISE_ROWS = 3
MORE_TOKENS = 1.2
"""Times the sampled tokens. One observation doubles a rollout; a dropped empty row or a rounding is 1 %."""
MORE_TOKENS_SPREADS = 4.0
"""Standard deviations of the difference, where the two are not of the same rollouts."""
FOREIGN_NATS = 1.0
"""Nats per token by which the tokens in the loss surprise the policy beyond its entropy. Passages of a foreign text do
so by 1.5 and more; a sampler at another temperature or with old weights stays below, or its gap shows it."""
EXPLAINED_BY_GAP = 0.8
"""Share of that surprise: where the sampler's log-probs differ by less, they are at least of the same tokens."""

GAP_NATS = 0.05
"""Nats per token, beyond what truncation explains. Rounding between two engines makes 0.001 to 0.01."""
TRUNCATION_FACTOR = 1.6
"""The mean of -log mass over tokens is up to this much more than -log of the mean mass."""
LEAST_MASS = 0.75
"""Share of the probability mass that a truncated sampler keeps."""
MASS_ROWS = 3

LEAK_ROWS = 5
LEAK_ADVANTAGE = -0.1
"""Mean advantage where the sampler truncates, in standard deviations of the rewards. On the laboratory's second
testbed, where this was chosen, runs with reliable searches stay within 0.02 once they have learned to search."""
LEAK_MASS = 0.01
"""Share of the mass lost since the sampler kept most. A policy that sharpens keeps more and more of it."""

UNLIKELY_NATS = 0.4
"""Nats per token. Over runs whose sampler is the policy the mean of three rows stays below 0.2, in batches of eight
rollouts; at temperature 1.6 it is 1 and more."""
UNLIKELY_ROWS = 3


# ---- a mask leak


def trains_more_tokens(rows: Rows) -> Signal:
    trained, sampled = rows.columns
    more = trained - sampled
    where = (trained > MORE_TOKENS * sampled) & (more > MORE_TOKENS_SPREADS * noise(more, NOISE_ROWS))
    return Signal(where, lambda: {TRAINED: trained, SAMPLED: sampled})


def trains_foreign_tokens(rows: Rows) -> Signal:
    """Tokens that a policy sampled surprise it by its entropy on average; tokens it was given surprise it by more.

    Another sampler does that too, but then the sampler's own log-probs show it: of given tokens it has none, so the gap
    is as large as the surprise itself.
    """
    correct, incorrect, entropy = rows.columns
    excess = -np.maximum(correct, incorrect) - entropy
    where = (excess > FOREIGN_NATS) & ~(rows.latest(GAP) < EXPLAINED_BY_GAP * excess)
    return Signal(where, lambda: {CORRECT: correct, ENTROPY: entropy})


# ---- another sampler


def differs(rows: Rows) -> Signal:
    (gap,) = rows.columns
    mass = np.nan_to_num(rows.latest(MASS), nan=1.0)
    explained = TRUNCATION_FACTOR * -np.log(np.clip(mass, 1e-6, 1.0))
    beyond = np.where(gap > 0, np.maximum(gap - explained, 0.0), -gap)
    # Where the loss has more tokens than were sampled, the sampler has no log-probs of the others.
    of_sampled = ~(rows.latest(TRAINED) > MORE_TOKENS * rows.latest(SAMPLED))
    return Signal((beyond > GAP_NATS) & of_sampled, lambda: {GAP: gap})


def unmasked(rows: Rows) -> Truths:
    """[N]: where log-probs are over the whole vocabulary: over the sampling mask, nothing is missing from them."""
    return np.isnan(rows.latest(MASKED))


def leaks_into_tail(rows: Rows) -> Signal:
    """Both the drive and its effect: a negative advantage where the sampler truncates, and a shrinking mass.

    Advantages that are not divided by their deviation are smaller, and are found later or not.
    """
    advantage, mass = (trailing_mean(column, LEAK_ROWS) for column in rows.columns)
    where = (advantage < LEAK_ADVANTAGE) & (highest(mass) - mass > LEAK_MASS) & unmasked(rows)
    return Signal(where, lambda: {CUT: advantage, MASS: mass}, lambda: {"most": highest(mass)})


def truncates_much(rows: Rows) -> Signal:
    (mass,) = rows.columns
    smooth = trailing_mean(mass, MASS_ROWS)
    return Signal((smooth < LEAST_MASS) & unmasked(rows), lambda: {MASS: smooth})


def samples_unlikely_tokens(rows: Rows) -> Signal:
    """Without the sampler's log-probs: what a policy samples surprises it by its entropy on average, not by more.

    The mean over all rollouts is put together from correct and incorrect ones, so the reward has to be a share.
    """
    correct, incorrect, entropy, reward = rows.columns
    is_share = (lowest(reward) >= 0) & (highest(reward) <= 1)
    excess = trailing_mean(-(reward * correct + (1 - reward) * incorrect) - entropy, UNLIKELY_ROWS)
    evidence = {"surprise beyond entropy": excess, ENTROPY: entropy}
    return Signal((excess > UNLIKELY_NATS) & is_share, lambda: evidence)


MSK001 = Rule(
    code="MSK001",
    title="observation tokens trained on",
    needs=((TRAINED, SAMPLED), SURPRISE),
    checks=(
        Check(
            series=(TRAINED, SAMPLED),
            signal=trains_more_tokens,
            message="The loss is taken over {loss/tokens:.3g} tokens a rollout, of which the model sampled "
            "{rollout/length:.3g}: what came back from the search is trained on.",
            rows_running=2,
        ),
        Check(
            series=SURPRISE,
            signal=trains_foreign_tokens,
            message="The tokens in the loss are less likely than tokens sampled from this policy can be: probably text "
            "it was given is trained on.",
            rows_running=2,
            better=((TRAINED, SAMPLED),),
        ),
    ),
    meaning="Tokens that the model did not sample, such as retrieved passages, are in the loss.",
    impact="The policy is rewarded for the search engine's words. It learns to write passages itself, its ratios and "
    "its entropy are those of foreign text, and training breaks early.",
    remedy={
        "holdfast": "Nothing in a recipe can cause this: report it, with the code that makes your `TokenBatch`.",
        "trl": "Return `env_mask` from your `rollout_func` with 0 on everything the model did not sample, as "
        "`SearchRollouts` does, and make sure the trainer applies it (`tool_mask`).",
        "verl": "Set `response_mask` to 0 on observations in your agent loop, as "
        "`actor_rollout_ref.rollout.agent.default_agent_loop=holdfast_search` does.",
        "unknown": "Mask everything the model did not sample out of the loss.",
    },
    limitations="Certain where tokens in the loss and sampled tokens are both counted (`loss/tokens`, "
    "`rollout/length`). Otherwise it is inferred: sampled tokens surprise a policy by its entropy on average, and "
    "text it was given surprises it by more. A stale sampler looks the same; a model that knows the passages by heart "
    "hides it. The logs of verl and of stock TRL cannot show it.",
)

SMP001 = Rule(
    code="SMP001",
    title="sampler and trainer disagree",
    needs=((GAP,), (MASS,), (*SURPRISE, REWARD)),
    checks=(
        Check(
            series=(GAP,),
            signal=differs,
            message="The sampler is not the policy that is trained: sampled tokens differ by "
            "{sampler/logprob_gap:.2g} nats between the two.",
            rows_running=2,
        ),
        Check(
            series=(CUT, MASS),
            signal=leaks_into_tail,
            message="Probability leaks out of what the sampler can draw: the mean advantage is "
            "{advantage/tail_mean:.2g} where it truncates, and it keeps {sampler/mask_mass:.1%} of the mass, "
            "{most:.1%} at its most.",
            min_rows=LEAK_ROWS,
            rows_running=2,
        ),
        Check(
            series=(MASS,),
            signal=truncates_much,
            message="The sampler is truncated to {sampler/mask_mass:.0%} of the probability mass, while log-probs are "
            "over all of it.",
            min_rows=MASS_ROWS,
        ),
        Check(
            series=(*SURPRISE, REWARD),
            signal=samples_unlikely_tokens,
            message="Sampled tokens are less likely than this policy's own would be, by "
            "{surprise beyond entropy:.2g} nats: probably they were drawn at another temperature or from other "
            "weights.",
            rows_running=2,
            better=((GAP,),),
            look_at=SURPRISE,
        ),
    ),
    suppressed_by=("MSK001",),  # the sampler has no log-probs of what it did not sample
    meaning="Rollouts are not drawn from the policy that is trained: the sampler has other weights, another "
    "temperature, or a truncated distribution.",
    impact="Every ratio is wrong by the difference. With a sampler truncated by top-p or top-k and log-probs over the "
    "whole vocabulary, probability flows into tokens that are never sampled (a tail leak).",
    remedy={
        "holdfast": "Sample untruncated: `sampling.top_p = 1.0` and `sampling.top_k = 0`; or turn "
        "on `sampling.mask_logprobs`, for log-probs over what the sampler can draw.",
        "trl": "Set `top_p=1.0`, `top_k=0` and `min_p=None`; with `use_vllm=True` keep "
        "`vllm_importance_sampling_correction=True`.",
        "verl": "Set `actor_rollout_ref.rollout.top_p=1` and `actor_rollout_ref.rollout.top_k=-1`, keep "
        "`actor_rollout_ref.rollout.calculate_log_probs=True`, and use `algorithm.rollout_correction`.",
        "unknown": "Sample at the training temperature without top-p and top-k, and check that the sampler gets "
        "the new weights after every update.",
    },
    limitations="Mild truncation (0.95, or 0.9) is not a finding by itself: most such runs hold for long. It becomes "
    "a finding when a quarter of the mass is lost, or when advantages are negative where the sampler truncates and the "
    "mass it keeps shrinks; the latter needs `advantage/tail_mean`. A difference that is only numerical, 0.01 nats or "
    "less, is ignored.",
)
