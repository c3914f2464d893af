"""What is wrong with a run's set-up, rather than with its policy: PEN001, MSK001, SMP001, GRP001."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnostics.causal import (
    Rows,
    Truths,
    as_of,
    finite,
    first,
    held,
    highest,
    lowest,
    noise,
    rows,
    trailing_mean,
    until_begins,
)
from holdfast.diagnostics.log import Log
from holdfast.diagnostics.rules.rule import Hit, Rule, earliest
from holdfast.diagnostics.texts import SHUT

WINDOW = 5
FEW = 3
"""Rows a set-up fault is watched for: it is there from the start, or it is not."""

ACTIVE, SHARE, TERM = "penalty/active_fraction", "penalty/preserved_share", "loss/penalty"
STEPS = "optimizer_steps_per_rollout"
RATIO, DROP, REWARD = "ratio/max", "penalty/drop", "reward/mean"
MANY = 10
"""Rollout batches for which a penalty that can act has to be 0: while all that it protects becomes likelier it is."""


def has_penalty(log: Log) -> bool:
    return ACTIVE in log.series or TERM in log.series


def inert(log: Log) -> Hit | None:
    """PEN001. Rows in which there was no rollout to protect, or nothing to learn, prove nothing."""
    return earliest(
        _always_zero(rows(log, ACTIVE, SHARE), ACTIVE, log),
        _always_zero(rows(until_begins(log, ACTIVE, SHARE), ACTIVE), ACTIVE, log),
        _always_zero(rows(until_begins(log, ACTIVE), TERM), TERM, log),
    )


def _always_zero(found: Rows, name: str, log: Log) -> Hit | None:
    """With one optimizer step per rollout batch a penalty is 0 for good, and a few batches show it. With several it is
    0 on the first of them, and wherever nothing that it protects has become less likely: then only rows count in which
    the policy had moved, where the log tells, and more batches of them."""
    value, *share = found.columns
    steps = as_of(log.series[STEPS], found.steps) if STEPS in log.series else np.full(len(value), np.nan)
    moved = _moved(log, found.steps)
    several = (steps > 1) & ~np.isnan(moved)
    asked = np.where(several, moved == 1, True)
    if share:
        asked &= share[0] > 0
    if MIXED in log.series:
        asked &= as_of(log.series[MIXED], found.steps) != 0
    batches = _batches(log, found.steps, asked)
    at = first((batches >= np.where(several, MANY, FEW)) & asked & (np.cumsum(value != 0) == 0))
    if at is None:
        return None
    evidence = {name: 0.0} | ({} if np.isnan(steps[at]) else {STEPS: float(steps[at])})
    if steps[at] > 1:
        how = f", in {batches[at]} rollout batches" + (" in which the policy moved" if several[at] else "")
    else:
        how = "" if np.isnan(steps[at]) else f": {ONE_STEP}"
    remedy = SHUT if steps[at] > 1 else None
    return Hit(
        int(found.steps[at]), f"The penalty has been exactly 0 since the start{how}.", evidence, (name,), remedy=remedy
    )


ONE_STEP = "with one optimizer step per rollout batch the policy always equals the old one"


def _moved(log: Log, steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """[len(steps)]: 1 where the policy differed from the one that made the rollouts, 0 where not, NaN where neither
    series is logged."""
    result = np.full(len(steps), np.nan)
    for name, still in ((RATIO, 1.0), (DROP, 0.0)):
        if name in log.series:
            logged = finite(log.series[name])
            at = np.isin(steps, logged.steps, assume_unique=True)
            here = logged.values[np.searchsorted(logged.steps, steps[at])] > still
            result[at] = np.fmax(result[at], here)
    return result


def _batches(log: Log, steps: NDArray[np.int64], asked: Truths) -> NDArray[np.int64]:
    """[len(steps)]: rollout batches so far that have a row among `asked`. A batch begins where a reward is logged: TRL
    logs every optimizer step, and the reward on those that begin with new rollouts. Without rewards every row is one.
    """
    logged = log.series[REWARD].steps if REWARD in log.series else np.empty(0, np.int64)
    rewards = np.searchsorted(logged, steps, side="right")
    batch = np.cumsum((rewards == 0) | (np.diff(rewards, prepend=0) > 0))
    counted = highest(np.where(asked, batch, 0))
    return np.cumsum(asked & (batch > np.append(0, counted)[:-1]))


TRAINED, LENGTH = "loss/tokens", "rollout/length"
SURPRISE = ("likelihood/correct", "likelihood/incorrect", "entropy/mean")
MORE = 1.2
"""Times the sampled tokens. One observation doubles a rollout; a dropped empty row or a rounding is 1 %."""
UNSURE = 4.0
"""Standard deviations of the difference, where the two are not of the same rollouts."""
EXCESS = 1.0
"""Nats per token by which the tokens in the loss surprise the policy beyond its entropy. Passages of a foreign text do
so by 1.5 and more; a sampler at another temperature or with old weights stays below, or its gap tells."""


def leak(log: Log) -> Hit | None:
    """MSK001."""
    return earliest(_more_tokens(log), _surprised(until_begins(log, TRAINED, LENGTH)))


def _more_tokens(log: Log) -> Hit | None:
    found = rows(log, TRAINED, LENGTH)
    trained, length = found.columns
    more = trained - length
    at = first(held((trained > MORE * length) & (more > UNSURE * noise(more, FEW)), 2))
    if at is None:
        return None
    return Hit(
        int(found.steps[at]),
        f"The loss is taken over {trained[at]:.3g} tokens a rollout, of which the model sampled {length[at]:.3g}: what "
        "came back from the search is trained on.",
        {TRAINED: float(trained[at]), LENGTH: float(length[at])},
        (TRAINED, LENGTH),
    )


def _surprised(log: Log) -> Hit | None:
    """Tokens that a policy sampled surprise it by its entropy on average; tokens it was given surprise it by more.

    Another sampler does that too, but then the sampler's own log-probs say so: of given tokens it has none, so the gap
    is as large as the surprise itself.
    """
    found = rows(log, *SURPRISE)
    right, wrong, entropy = found.columns
    excess = -np.maximum(right, wrong) - entropy
    gap = as_of(log.series[GAP], found.steps) if GAP in log.series else np.full(len(excess), np.nan)
    at = first(held((excess > EXCESS) & ~(gap < 0.8 * excess), 2))
    if at is None:
        return None
    return Hit(
        int(found.steps[at]),
        "The tokens in the loss are less likely than tokens sampled from this policy can be: probably text it was "
        "given is trained on.",
        {"likelihood/correct": float(right[at]), "entropy/mean": float(entropy[at])},
        SURPRISE,
    )


GAP, MASS, KEPT = "sampler/logprob_gap", "sampler/mass_kept", "sampler/keeps_mask"
APART = 0.05
"""Nats per token, beyond what truncation explains. Rounding between two engines makes 0.001 to 0.01."""
TRUNCATED = 1.6
"""The mean of -log mass over tokens is up to this much more than -log of the mean mass."""
LEAST_MASS = 0.75


def mismatch(log: Log) -> Hit | None:
    """SMP001."""
    return earliest(_gap(log), _leaks(log), _mass(log), _unlikely(until_begins(log, GAP)))


def _sampled(log: Log, steps: NDArray[np.int64]) -> Truths:
    """[len(steps)]: where the loss is of sampled tokens, as far as is logged: of others the sampler knows nothing."""
    if TRAINED not in log.series or LENGTH not in log.series:
        return np.ones(len(steps), bool)
    return ~(as_of(log.series[TRAINED], steps) > MORE * as_of(log.series[LENGTH], steps))


def _gap(log: Log) -> Hit | None:
    found = rows(log, GAP)
    (gap,) = found.columns
    mass = as_of(log.series[MASS], found.steps) if MASS in log.series else np.ones_like(gap)
    mass = np.where(np.isnan(mass), 1.0, mass)
    explained = TRUNCATED * -np.log(np.clip(mass, 1e-6, 1.0))
    beyond = np.where(gap > 0, np.maximum(gap - explained, 0.0), -gap)
    at = first(held((beyond > APART) & _sampled(log, found.steps), 2))
    if at is None:
        return None
    return Hit(
        int(found.steps[at]),
        f"The sampler is not the policy that is trained: sampled tokens differ by {gap[at]:.2g} nats between the two.",
        {GAP: float(gap[at])},
        (GAP,),
    )


def _mass(log: Log) -> Hit | None:
    if KEPT in log.series:  # the log-probs of the loss are over what is kept too, so nothing is missing from them
        return None
    found = rows(log, MASS)
    (mass,) = found.columns
    smooth = trailing_mean(mass, FEW)
    at = first((smooth < LEAST_MASS) & (np.arange(len(mass)) >= FEW - 1))
    if at is None:
        return None
    return Hit(
        int(found.steps[at]),
        f"The sampler is truncated to {smooth[at]:.0%} of the probability mass, while log-probs are over all of it.",
        {MASS: float(smooth[at])},
        (MASS,),
    )


CUT = "advantage/cut_mean"
DRIVEN = -0.1
"""Mean advantage where the sampler cuts, in standard deviations of the rewards. On the laboratory's second organism,
where this was chosen, runs with reliable searches stay within 0.02 once they have learned to search."""
SHRUNK = 0.01
"""Of the mass, since the sampler kept most. A policy that sharpens keeps more and more of it."""


def _leaks(log: Log) -> Hit | None:
    """Both the drive and its effect: a negative advantage where the sampler cuts, and less and less that is not cut.

    Advantages without the division by their deviation are smaller, and are found later or not.
    """
    if KEPT in log.series:
        return None
    found = rows(log, CUT, MASS)
    cut, mass = (trailing_mean(column, WINDOW) for column in found.columns)
    at = first(held((cut < DRIVEN) & (highest(mass) - mass > SHRUNK) & (np.arange(len(mass)) >= WINDOW - 1), 2))
    if at is None:
        return None
    return Hit(
        int(found.steps[at]),
        f"Probability leaks out of what the sampler can draw: the mean advantage is {cut[at]:.2g} where it cuts, and "
        f"it keeps {mass[at]:.1%} of the mass, {highest(mass)[at]:.1%} at its most.",
        {CUT: float(cut[at]), MASS: float(mass[at])},
        (CUT, MASS),
    )


UNLIKELY = 0.4
"""Nats per token. Over runs whose sampler is the policy the mean of three rows stays below 0.2, in batches of eight
rollouts; at temperature 1.6 it is 1 and more."""


def _unlikely(log: Log) -> Hit | None:
    """Without the sampler's log-probs: what a policy samples surprises it by its entropy on average, not by more.

    The mean over all rollouts is put together from the right and the wrong ones, so the reward has to be a share.
    """
    found = rows(log, *SURPRISE, "reward/mean")
    right, wrong, entropy, reward = found.columns
    is_share = (lowest(reward) >= 0) & (highest(reward) <= 1)
    excess = trailing_mean(-(reward * right + (1 - reward) * wrong) - entropy, FEW)
    at = first(held((excess > UNLIKELY) & is_share, 2))
    if at is None:
        return None
    return Hit(
        int(found.steps[at]),
        f"Sampled tokens are less likely than this policy's own would be, by {excess[at]:.2g} nats: probably they were "
        "drawn at another temperature or from other weights.",
        {"surprise beyond entropy": float(excess[at]), "entropy/mean": float(entropy[at])},
        SURPRISE,
    )


MIXED = "rollout/mixed_groups"
NONE, SOME = 0.05, 0.2


def compares(log: Log) -> bool:
    """Whether rollouts are compared within groups at all."""
    return log.settings.get("loss.advantage") != "reinforce"


def no_contrast(log: Log) -> Hit | None:
    """GRP001: from the start. Groups that have become all right at the end of learning are not it."""
    found = rows(log, MIXED)
    (mixed,) = found.columns
    smooth = trailing_mean(mixed, WINDOW)
    never = (smooth <= NONE) & (highest(smooth) <= SOME)
    never[: WINDOW - 1] = False
    at = first(never)
    if at is None:
        return None
    return Hit(
        int(found.steps[at]),
        f"Groups have no contrast: in {1 - smooth[at]:.0%} of them all rollouts got the same reward.",
        {MIXED: float(smooth[at])},
        (MIXED,),
    )


RULES = (
    Rule("PEN001", inert, ((ACTIVE,), (TERM,)), asked=has_penalty),
    Rule("MSK001", leak, ((TRAINED, LENGTH), SURPRISE)),
    Rule("SMP001", mismatch, ((GAP,), (MASS,), (*SURPRISE, "reward/mean"))),
    Rule("GRP001", no_contrast, ((MIXED,),), asked=compares),
)
