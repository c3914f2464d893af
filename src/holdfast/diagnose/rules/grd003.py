"""GRD003: the gradient is 0, though rewards differ.

Meaning: The gradient norm is exactly 0 although rewards within groups differ, or a filter removes every sampled token
from the loss.

Impact: The advantages are not 0, but the weights do not change. No gradient flows from the loss to the weights, or the
loss mask is empty.

Limitations: Some trainers log a norm of 0 because they do not measure it. If the KL grows, the rule assumes that and
reports nothing. A row may average the rewards of several steps but hold only the last step's gradient. So one row is
enough only if it has many groups, and the KL is exactly 0 or `logging_steps` is 1. Otherwise the rule waits for more
rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from holdfast.diagnose.log.trailing import Truths, Values, held, rows_since
from holdfast.diagnose.rules._parts import KL, MIXED, NORM, RATE, REWARD
from holdfast.diagnose.rules._parts.contrast import CONTRAST, contrast_of
from holdfast.diagnose.rules._parts.moves import kl_grows
from holdfast.diagnose.rules.remedies import Remedy, advise
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal

LOWEST = "sampler/weight_p05"
HIGHEST = "sampler/weight_p95"
BOUNDS = "loss.methods.sampler_weights"
VOID = "loss.methods.drop_void"
EXCLUDED = "loss/excluded_fraction"
WEIGHT = "loss/mean_weight"


def nothing_is_left(rows: Rows, share: Values, *, when: float) -> Signal:
    """A remedy leaves out every sampled token of the batch, or gives each a weight of 0: the series is `when`."""
    low, high = rows.latest(LOWEST), rows.latest(HIGHEST)
    return Signal(
        share == when,
        lambda: {rows.names[0]: share, LOWEST: low, HIGHEST: high},
        lambda: {"why": np.array([_why_left_out(rows.log.settings, *pair) for pair in zip(low, high, strict=True)])},
        normal=share != when,
    )


def _why_left_out(settings: Mapping[str, object], low: float, high: float) -> str:
    """The setting that leaves out all tokens, with the weights that it meets."""
    if not np.isnan(low):
        least, most = (settings.get(f"{BOUNDS}.{end}") for end in ("low", "high"))
        bounds = "" if least is None else f", {least} to {most}"
        return (
            f": 90 % of the importance weights are between {low:.3g} and {high:.3g}, outside the bounds of "
            f"{BOUNDS}{bounds}"
        )
    return f": every rollout has an invalid turn, and {VOID} drops it" if settings.get(f"{VOID}.on") else ""


def is_cut(rows: Rows, norm: Values) -> Signal | None:
    """The gradient is exactly 0 in batches whose groups differ."""
    zero = rows.is_zero(NORM)
    if not zero.any():
        return None
    share = differing(rows)
    groups = fewest_groups(share)
    evidence = np.where(zero, -np.log1p(-share) * groups_per_step(rows, groups), 0.0)
    since = np.arange(len(norm)) - rows_since(~zero)
    total = np.cumsum(evidence)
    total -= np.where(since >= 0, total[since], 0.0)
    enough = (total >= np.log((np.arange(len(norm)) + 1) / CHANCE)) & held(zero, 2)
    moves = kl_grows(rows, since)
    where = zero & (share > 0) & (enough | one_row_is_enough(rows, share, groups)) & ~moves
    return Signal(
        where, lambda: {NORM: norm, MIXED: share}, normal=~zero | moves, began=lambda row: int(since[row]) + 1
    )


CHANCE = 1e-3
"""Probability of a gradient of 0 by chance. In a log of TRL a row may average several steps, but its gradient is that
of the last."""


def differing(rows: Rows) -> Values:
    """[N]: the share of groups with different rewards. As far as the log shows, it is the chance that a group of the
    step that the gradient belongs to had contrast."""
    mixed, contrast = rows.latest(MIXED), contrast_of(rows)
    share = np.where(np.isnan(mixed), UNKNOWN_SHARE * (contrast > 0), mixed)
    return np.clip(share, 0.0, MAX_SHARE)


UNKNOWN_SHARE = 0.2
"""Share of the groups that counts as mixed where the log only says that some are."""
MAX_SHARE = 0.99


def fewest_groups(share: Values) -> Values:
    """[N]: the smallest number of groups that can give this share; `MANY_GROUPS` for that many or more."""
    result = np.full(len(share), float(MANY_GROUPS))
    for groups in range(MANY_GROUPS - 1, 0, -1):
        result[np.abs(groups * share - np.round(groups * share)) < ROUNDING] = groups
    return result


MANY_GROUPS = 64
ROUNDING = 1e-3
"""Tolerance of a printed share times a number of groups."""


def groups_per_step(rows: Rows, groups: Values) -> Values:
    """[N]: the least number of groups in an optimizer step. It is 1 where steps are only row numbers, and in the first
    batch, whose number of steps is not known yet."""
    rewards = rows.log.series.get(REWARD)
    later = np.searchsorted(() if rewards is None else rewards.steps, rows.steps, side="right") > 1
    known = later & (rows.log.format not in ("console", "table"))
    return np.where(known, np.maximum(np.floor(groups / np.maximum(np.diff(rows.steps, prepend=0), 1)), 1.0), 1.0)


def one_row_is_enough(rows: Rows, share: Values, groups: Values) -> Truths:
    """[N]: where a row with many groups is a single optimizer step, or the KL shows that the policy never moved."""
    single = rows.log.settings.get("logging_steps") == 1
    still = rows.is_zero(KL) & ~rows.is_zero(RATE)
    return np.asarray((still | single) & (groups >= ENOUGH_GROUPS) & (share >= MIXED_ENOUGH))


ENOUGH_GROUPS = 16
"""One row is enough if it has this many groups and contrast is common among them."""
MIXED_ENOUGH = 0.4
"""Share of mixed groups from which contrast counts as common."""
STD = ("reward/std",)
"""Standard deviation over the whole rollout batch. Above 0, it does not show that any group differs."""

LEAVE_LESS_OUT: Remedy = advise(
    "Widen the [bounds on the importance weights] of the sampler until they contain the weights. Or sample [without "
    "top-p and top-k].",
    also={
        "holdfast": "If `loss.methods.drop_void.on` removes the tokens, turn it off, or start from a [better policy] "
        "with valid turns."
    },
)


RULE = Rule(
    title="gradient is zero",
    needs=tuple((NORM, *names) for names in CONTRAST if names != STD),
    equal_needs=True,
    checks=(
        *(
            Check(
                series=(name,),
                signal=partial(nothing_is_left, when=when),
                message="No sampled token is left in the policy loss{why}. The policy learns nothing from its rewards.",
                remedy=LEAVE_LESS_OUT,
            )
            for name, when in ((EXCLUDED, 1.0), (WEIGHT, 0.0))
        ),
        Check(
            series=(NORM,),
            signal=is_cut,
            message="The gradient is exactly 0, although rewards differ in {rollout/mixed_group_fraction:.0%} of the "
            "groups, so the policy does not learn.",
        ),
    ),
    # Without a reward there is nothing to learn from.
    suppressed_by=("GRD002",),
    remedy=advise(
        "Check that some parameters are trainable, and that the loss mask is not empty.",
        also={
            "holdfast": "Try [full precision].",
            "trl": "With LoRA and `gradient_checkpointing=True`, call `model.enable_input_require_grads()`. "
            "`mask_truncated_completions=True` empties the mask if all completions are truncated. If this happens "
            "only on several nodes, try a single process.",
            "verl": "The `response_mask` of your agent loop must be 1 on sampled tokens.",
        },
    ),
    leaves=lambda hit: "nothing",
)
