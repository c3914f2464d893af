"""Zeros: of the gradient, which are a fault (GRD003), and of loss, clipping and KL, which are not (ZER001)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnostics.rules.groups import CONTRAST, MIXED, contrast_of
from holdfast.diagnostics.rules.rule import Check, Rows, Rule, Signal
from holdfast.trailing import Truths, Values, held, rows_since

NORM, REWARD, LOSS, CLIPPED, KL, RATE = "grad/norm", "reward/mean", "loss", "clip/fraction", "kl/reference", "lr"

STD = ("reward/std",)
"""Over the rollout batch: above 0 it says nothing about groups."""
CHANCE = 1e-3
"""Of a gradient of 0 by chance: in a log of TRL a row may average over several steps, and its gradient is the last."""
MANY_GROUPS = 64
ENOUGH_GROUPS = 16
"""Groups in a row from which on one row is enough, if their contrast is not rare."""
MIXED_ENOUGH = 0.4
ROUNDING = 1e-3
"""Of a printed share, times a number of groups."""
UNKNOWN_SHARE = 0.2
"""Share of the groups that counts as mixed where the log only says that some are."""
LARGEST_SHARE = 0.99
KL_MOVES = 1e-4
"""Nats. A KL that grows by more, and to twice its value, shows that the policy moves: then the norm is not measured."""

NEAR_ZERO = 0.005
"""A loss that is printed as 0, or is the KL times its coefficient in the first steps."""
FIRST_ROWS = 5


def is_cut(rows: Rows) -> Signal | None:
    """The gradient is exactly 0 in batches whose groups differ."""
    (norm,) = rows.columns
    zero = norm == 0
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
    return Signal(where, lambda: {NORM: norm, MIXED: share}, normal=~zero | moves)


def differing(rows: Rows) -> Values:
    """[N]: the share of groups with different rewards: a chance, as far as the log shows, that the step of the gradient
    had one."""
    mixed, contrast = rows.latest(MIXED), contrast_of(rows)
    share = np.where(np.isnan(mixed), UNKNOWN_SHARE * (contrast > 0), mixed)
    return np.clip(share, 0.0, LARGEST_SHARE)


def fewest_groups(share: Values) -> Values:
    """[N]: the smallest number of groups of which a share can be; `MANY_GROUPS` for that many or more."""
    result = np.full(len(share), float(MANY_GROUPS))
    for groups in range(MANY_GROUPS - 1, 0, -1):
        result[np.abs(groups * share - np.round(groups * share)) < ROUNDING] = groups
    return result


def groups_per_step(rows: Rows, groups: Values) -> Values:
    """[N]: how many groups an optimizer step has at least. It is 1 where steps are only counted rows, and in the first
    batch, whose number of steps is not known yet."""
    rewards = rows.log.series.get(REWARD)
    later = np.searchsorted(() if rewards is None else rewards.steps, rows.steps, side="right") > 1
    known = later & (rows.log.format not in ("console", "table"))
    return np.where(known, np.maximum(np.floor(groups / np.maximum(np.diff(rows.steps, prepend=0), 1)), 1.0), 1.0)


def one_row_is_enough(rows: Rows, share: Values, groups: Values) -> Truths:
    """[N]: where a row is a single optimizer step with many groups: the log says so, or the policy never moved."""
    single = rows.log.settings.get("logging_steps") == 1
    still = (rows.latest(KL) == 0) & ~(rows.latest(RATE) == 0)
    result: Truths = (still | single) & (groups >= ENOUGH_GROUPS) & (share >= MIXED_ENOUGH)
    return result


def kl_grows(rows: Rows, since: NDArray[np.int64]) -> Truths:
    """[N]: where the KL to the reference has grown since the last row with a gradient."""
    kl = rows.latest(KL)
    result: Truths = kl > KL_MOVES + 2 * kl[np.minimum(since + 1, len(kl) - 1)]
    return result


GRD003 = Rule(
    code="GRD003",
    title="gradient cut off",
    needs=tuple((NORM, *names) for names in CONTRAST if names != STD),
    equal_needs=True,
    checks=(
        Check(
            series=(NORM,),
            signal=is_cut,
            message="The gradient is exactly 0, although rewards differ in {rollout/mixed_group_fraction:.0%} of the "
            "groups. The policy does not learn.",
        ),
    ),
    # Without a reward there is nothing to learn from.
    suppressed_by=("GRD002",),
    meaning="The gradient norm is exactly 0 in batches whose groups have different rewards.",
    impact="Advantages are there and do not reach the weights. The path from the loss to the weights is cut, or the "
    "mask of the loss is empty.",
    remedy={
        "holdfast": "Check that the model has weights that are trained, and that `model.autocast` keeps their "
        "gradient.",
        "trl": "Check that weights are trained: count `requires_grad`. With LoRA and `gradient_checkpointing=True` "
        "call `model.enable_input_require_grads()`. Check the loss mask: `mask_truncated_completions=True` empties it "
        "where all completions are cut off. If it happens on several nodes only, compare with one process.",
        "verl": "Check that weights are trained, with LoRA above all. Check that the `response_mask` of your agent "
        "loop marks sampled tokens.",
        "unknown": "Check that weights are trained, and that the mask of the loss is not empty.",
    },
    limitations="Some trainers log a norm of 0 where they do not measure it; a KL that grows shows that. A row may "
    "average over several steps while its gradient is that of the last. So one row is enough only if it has many "
    "groups and the KL is exactly 0 or `logging_steps` is known to be 1. Otherwise rows are needed until chance is "
    "ruled out.",
)


def are_normal(rows: Rows) -> Signal:
    """The log shows zeros that have a harmless reason. It is about the log as a whole, so the first row has it."""
    parts = {name: rows.latest(name) for name in (LOSS, CLIPPED, KL)}
    reasons = [text for name, text in ZEROS.items() if is_zero(name, parts[name])]
    where = np.arange(len(rows.steps)) == (0 if reasons and learns(rows) else -1)
    return Signal(where, lambda: parts, lambda: {"reasons": np.broadcast_to(" ".join(reasons), len(where))})


def is_zero(name: str, values: Values) -> bool:
    """Whether a series is 0 where a rollout batch begins: a loss nearly so in the first rows, a KL in all of a few."""
    if name == LOSS:
        return bool((np.abs(values[:FIRST_ROWS]) <= NEAR_ZERO).all())
    return bool((values == 0).all()) and (name == CLIPPED or len(values) < FIRST_ROWS)


def learns(rows: Rows) -> bool:
    """Whether something shows that the policy moves: a gradient, or a KL that grows."""
    kl = rows.latest(KL)
    moves = rows.latest(NORM) > 0
    return bool((moves & ~(contrast_of(rows) == 0)).any() or (len(kl) > 1 and kl[-1] > KL_MOVES + kl[0]))


ZEROS = {
    LOSS: "A loss near 0 is normal. Advantages of a group sum to 0, and with one optimizer step per rollout batch "
    "every ratio is 1. So the policy's part of the loss is near 0, but its gradient is not. A loss that grows is the "
    "KL times its coefficient.",
    CLIPPED: "A clip ratio of 0 is normal. On the first optimizer step of a rollout batch the policy equals the old "
    "policy, so no ratio leaves the clip range.",
    KL: "A KL of 0 is normal in the first steps, where the policy still equals the reference.",
}

ZER001 = Rule(
    code="ZER001",
    title="zeros that are normal",
    needs=((REWARD, LOSS), (REWARD, CLIPPED), (REWARD, KL)),
    equal_needs=True,
    every_row=True,
    checks=(Check(series=(REWARD,), signal=are_normal, message="{reasons}", level="note"),),
    suppressed_by=("GRD002", "GRD003", "GRP001"),
    meaning="The loss, the clip ratio or the KL is 0 for a harmless reason, and the policy learns all the same.",
    impact="A loss of GRPO says little. It is 0 in value and not in gradient as long as the policy equals the old "
    "policy. Watch the reward.",
    remedy=dict.fromkeys(("holdfast", "trl", "verl", "unknown"), "Change nothing: the reward says whether it learns."),
    limitations="This is a note, and no finding. It needs a gradient above 0 or a KL that grows.",
)
