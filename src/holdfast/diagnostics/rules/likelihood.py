"""Likelihood displacement (LLD001 to LLD004), drift of the importance ratio (ISD001), and the other disease, STP001.

What tells the two diseases apart is the size of one update. In the recorded displacement collapses an update takes
0.2 to 2 % off the log-likelihood of correct rollouts, dozens of times over. A step that is too large takes 15 % and
more at once, in a policy that was not decaying. So the codes exclude each other by which comes first: see
`holdfast.diagnostics.diagnose`.
"""

from __future__ import annotations

import numpy as np

from holdfast.diagnostics.causal import (
    Truths,
    Values,
    delayed,
    first,
    held,
    highest,
    noise,
    rows,
    rows_since,
    trailing_lowest,
    trailing_mean,
    until_begins,
)
from holdfast.diagnostics.log import Log
from holdfast.diagnostics.rules.fair import fair
from holdfast.diagnostics.rules.reward import falling
from holdfast.diagnostics.rules.rule import Hit, Rule, earliest

SLOW = 8
"""Rows a slow decay is judged over. Displacement is noisy: about half of the correct rollouts lose likelihood in any
update of a plateau, so that five rows in a row prove little."""
FAST = 5
PACE = 0.002
"""Share of the log-likelihood that an update takes off: 0.2 % an update is a fifth in a hundred. Controls at a sane
step stay below 0.05 %."""
LEAST = 0.0005
"""Nats per token: of a sharp policy, whose tokens are nearly certain, a share is next to nothing."""
MAJORITY = 0.58
"""Share of correct rollouts that lose likelihood. Plateaus of sane runs hover at 0.5 and reach 0.56 (means of 8)."""
DECAYED = 0.02
"""Share of its best log-likelihood that the correct set has lost: above the ripples that selection makes."""
DECAYED_NATS = 0.01
"""The same in nats per token: where right answers are nearly certain, a share is next to nothing."""
SURE = 2.0
"""Standard errors. Few, because displacement has to say the same."""
SURE_LOST = 2.5
"""The same for what is lost since the best mean so far: the best of many is an extreme."""
FAST_PACE = 0.01
FAST_LEAST = 0.0025
FAST_MOST = 0.5
"""Share of the rows that show it: one bad update is no spiral."""
FAST_MAJORITY = 0.65
FAST_DECAYED = 0.05
ACCELERATION = 2.0

DISPLACED = ("displacement/correct", "displacement/fraction", "likelihood/correct")
DRIFTING = ("drift/positive", "likelihood/positive")


def _lost(likelihood: Values) -> Values:
    """Share of its best five-row mean that a log-likelihood has lost; 0 while that is little or within the noise."""
    smooth = trailing_mean(likelihood, FAST)
    best = highest(smooth)
    drop = best - smooth
    clear = drop > np.maximum(DECAYED_NATS, SURE_LOST * noise(likelihood, FAST) / np.sqrt(FAST))
    return np.where(clear, drop / np.maximum(-best, 1e-6), 0.0)


def _pace(change: Values, likelihood: Values, window: int) -> Values:
    """Share of the log-likelihood that an update takes off, on average over `window` rows; below 0 where it adds."""
    return -trailing_mean(change, window) / np.maximum(-trailing_mean(likelihood, window), 1e-6)


def _steady(change: Values, window: int) -> Truths:
    """Where the mean of the last rows is below 0 by more than their own scatter explains: no single row makes it."""
    mean = trailing_mean(change, window)
    scatter = np.sqrt(np.maximum(trailing_mean(change**2, window) - mean**2, 0.0))
    return -mean > SURE * scatter / np.sqrt(window - 1)


def _displaces(change: Values, share: Values, likelihood: Values) -> Truths:
    """Where updates take likelihood from most correct rollouts, slowly but steadily."""
    paced = _steady(change, SLOW) & (_pace(change, likelihood, SLOW) > PACE) & (-trailing_mean(change, SLOW) > LEAST)
    return paced & (trailing_mean(share, SLOW) > MAJORITY)


def stagnation(log: Log) -> Hit | None:
    """LLD001: the updates take likelihood from correct rollouts, whose likelihood has stopped rising."""
    found = rows(log, *DISPLACED)
    change, share, likelihood = found.columns
    smooth = trailing_mean(likelihood, FAST)
    flat = rows_since(smooth > delayed(highest(smooth), 1)) >= FAST
    condition = _displaces(change, share, likelihood) & flat & fair(log, found.steps)
    at = first(held(condition, FAST))
    if at is None:
        return None
    numbers = {
        "displacement/correct": float(trailing_mean(change, SLOW)[at]),
        "displacement/fraction": float(trailing_mean(share, SLOW)[at]),
        "likelihood/correct": float(smooth[at]),
    }
    return Hit(
        int(found.steps[at]),
        f"The likelihood of correct rollouts has stopped rising, and {numbers['displacement/fraction']:.0%} of them "
        "lose likelihood in the run's own updates.",
        numbers,
        DISPLACED,
    )


def decay(log: Log) -> Hit | None:
    """LLD002: slow, steady decay."""
    return earliest(_decay_displaced(log), _decay_drifting(until_begins(log, *DISPLACED)))


def _decay_displaced(log: Log) -> Hit | None:
    found = rows(log, *DISPLACED)
    change, share, likelihood = found.columns
    lost = _lost(likelihood)
    condition = _displaces(change, share, likelihood) & (lost > DECAYED) & fair(log, found.steps)
    condition[: FAST - 1] = False
    at = first(condition)
    if at is None:
        return None
    numbers = {
        "displacement/correct": float(trailing_mean(change, SLOW)[at]),
        "displacement/fraction": float(trailing_mean(share, SLOW)[at]),
        "likelihood/correct": float(trailing_mean(likelihood, FAST)[at]),
        "share of log-likelihood lost": float(lost[at]),
    }
    return Hit(
        int(found.steps[at]),
        f"Correct rollouts are being made unlikely: {numbers['displacement/fraction']:.0%} of them lose likelihood in "
        f"an update, and the correct set is {lost[at]:.1%} below its best log-likelihood.",
        numbers,
        DISPLACED,
    )


def _decay_drifting(log: Log) -> Hit | None:
    """verl's loss sees no before and after: its drift is the mean over an update's optimizer steps, half of it."""
    found = rows(log, *DRIFTING)
    drift, likelihood = found.columns
    lost = _lost(likelihood)
    paced = (_pace(drift, likelihood, SLOW) > PACE / 2) & (-trailing_mean(drift, SLOW) > LEAST / 2)
    condition = paced & (lost > DECAYED)
    condition[: SLOW - 1] = False
    at = first(condition)
    if at is None:
        return None
    numbers = {
        "drift/positive": float(trailing_mean(drift, SLOW)[at]),
        "likelihood/positive": float(trailing_mean(likelihood, FAST)[at]),
        "share of log-likelihood lost": float(lost[at]),
    }
    return Hit(
        int(found.steps[at]),
        "Rollouts with positive advantage lose likelihood within the updates, and are "
        f"{lost[at]:.1%} below their best log-likelihood.",
        numbers,
        DRIFTING,
    )


def spiral(log: Log) -> Hit | None:
    """LLD003: the decay feeds itself."""
    return earliest(_spiral_displaced(log), _spiral_drifting(until_begins(log, *DISPLACED)))


def _accelerates(change: Values, likelihood: Values, scale: float) -> Truths:
    """Where the last updates take much more likelihood than those before; `scale` is what of an update is seen."""
    pace = _pace(change, likelihood, FAST)
    before = delayed(_pace(change, likelihood, SLOW), FAST)
    fast = (pace > scale * FAST_PACE) & (-trailing_mean(change, FAST) > scale * FAST_LEAST)
    most = trailing_mean((-change > scale * FAST_LEAST).astype(float), FAST) > FAST_MOST
    result = fast & most & _steady(change, FAST) & (pace > ACCELERATION * before) & (_lost(likelihood) > FAST_DECAYED)
    result[: FAST - 1] = False
    return result


def _spiral_displaced(log: Log) -> Hit | None:
    found = rows(log, *DISPLACED)
    change, share, likelihood = found.columns
    most = trailing_mean(share, FAST) > FAST_MAJORITY
    at = first(_accelerates(change, likelihood, 1.0) & most & fair(log, found.steps))
    if at is None:
        return None
    numbers = {
        "displacement/correct": float(trailing_mean(change, FAST)[at]),
        "displacement/fraction": float(trailing_mean(share, FAST)[at]),
        "likelihood/correct": float(trailing_mean(likelihood, FAST)[at]),
        "share of log-likelihood lost": float(_lost(likelihood)[at]),
    }
    return Hit(
        int(found.steps[at]),
        f"The decay of correct rollouts accelerates: an update now takes {_pace(change, likelihood, FAST)[at]:.1%} off "
        f"their log-likelihood, from {numbers['displacement/fraction']:.0%} of them.",
        numbers,
        DISPLACED,
    )


def _spiral_drifting(log: Log) -> Hit | None:
    found = rows(log, *DRIFTING)
    drift, likelihood = found.columns
    at = first(_accelerates(drift, likelihood, 0.5))
    if at is None:
        return None
    numbers = {
        "drift/positive": float(trailing_mean(drift, FAST)[at]),
        "likelihood/positive": float(trailing_mean(likelihood, FAST)[at]),
        "share of log-likelihood lost": float(_lost(likelihood)[at]),
    }
    return Hit(
        int(found.steps[at]),
        "The decay of rollouts with positive advantage accelerates: they are "
        f"{_lost(likelihood)[at]:.1%} below their best log-likelihood.",
        numbers,
        DRIFTING,
    )


ACTIONS = ("likelihood/correct/action_1", "likelihood/correct/action_2")
BEHIND = 0.1
"""Share of its best log-likelihood by which the first action has fallen behind the second. The mix of one-search and
two-search rollouts moves the difference too, so displacement has to be there as well."""


def first_action(log: Log) -> Hit | None:
    """LLD004: the first action of correct rollouts decays faster than the second."""
    found = rows(log, *DISPLACED, *ACTIONS)
    change, share, likelihood, one, two = found.columns
    ahead = trailing_mean(one - two, SLOW)
    behind = highest(ahead) - ahead
    unsure = 3 * noise(one - two, SLOW) / np.sqrt(SLOW)
    lost = _lost(one)
    condition = (behind > unsure) & (behind > BEHIND * -highest(trailing_mean(one, FAST)))
    condition &= (lost > FAST_DECAYED) & (lost > _lost(two))
    condition &= _displaces(change, share, likelihood) & (_lost(likelihood) > DECAYED) & fair(log, found.steps)
    condition[: SLOW - 1] = False
    at = first(condition)
    if at is None:
        return None
    numbers = {
        ACTIONS[0]: float(trailing_mean(one, FAST)[at]),
        ACTIONS[1]: float(trailing_mean(two, FAST)[at]),
        "share of log-likelihood lost by the first action": float(lost[at]),
    }
    return Hit(
        int(found.steps[at]),
        f"The first action of correct rollouts decays faster than the second: it has lost {lost[at]:.0%} of its best "
        "log-likelihood.",
        numbers,
        ACTIONS,
    )


RATIO = "ratio/log_product"
DRIFT = -1.0
"""Nats. The average rollout has become e times less likely before its batch is used up. Controls at a sane step stay
above -0.1, healthy plateaus above -0.75."""


DRIFT_FALLING = -0.5
"""The same while the reward falls: controls that fall by chance stay above."""
MEMORY = 2 * FAST


def ratio_drift(log: Log) -> Hit | None:
    """ISD001."""
    found = rows(log, RATIO)
    (product,) = found.columns
    smooth = trailing_mean(product, FAST)
    condition = (smooth < DRIFT) & held(product < DRIFT / 2, 3)  # not a single spike
    # A fall of the reward is noticed rows after what made it, when there may be nothing right left to update on.
    condition |= falling(log, found.steps) & (trailing_lowest(smooth, MEMORY) < DRIFT_FALLING)
    condition[: FAST - 1] = False
    at = first(condition)
    if at is None:
        return None
    worst = float(trailing_lowest(smooth, MEMORY)[at])
    return Hit(
        int(found.steps[at]),
        f"Importance ratios drift: the ratios of a rollout multiply to {np.exp(worst):.2g} on average before its "
        "batch is used up.",
        {RATIO: worst},
        (RATIO,),
    )


JUMP = 0.12
"""Nats per token that one update takes from the correct rollouts. Displacement collapses reach 0.16, when they have
long been told of."""
JUMP_SHARE = 0.15
RATIO_JUMP = -0.15
"""Nats per sampled token, by the product of ratios. Single updates of a displacement collapse reach -0.11."""
FIRST_JUMP = -0.06
"""The same in two rows running of the first five, where nothing has decayed yet: runs that learn begin above -0.002."""
UNUSUAL = 8.0
"""Times the usual size of an update, in the rows before."""
CLIPPED = 0.1
"""Share of the tokens that one update clips. Harder questions clip 3 %, healthy runs with small batches up to 12 %."""
FURTHER = 2.0
"""Times the largest share before."""
BEFORE = 3
"""Rows it takes to say what is usual."""


def _unusual(change: Values) -> Truths:
    """Rows whose absolute value is far beyond that of the rows before; never in the first ones, which have none."""
    size = np.abs(change)
    return (size > UNUSUAL * delayed(trailing_mean(size, SLOW), 1)) & (np.arange(len(size)) >= BEFORE)


def step_too_large(log: Log) -> Hit | None:
    """STP001."""
    return earliest(_jump_displaced(log), _jump_ratio(log), _jump_clipped(until_begins(log, RATIO)))


def _jump_displaced(log: Log) -> Hit | None:
    found = rows(log, "displacement/correct", "likelihood/correct")
    change, likelihood = found.columns
    unusual = _unusual(change) | (np.arange(len(change)) < BEFORE)
    at = first((-change > JUMP) & (-change > JUMP_SHARE * -likelihood) & unusual)
    if at is None:
        return None
    return Hit(
        int(found.steps[at]),
        f"One update took {-change[at]:.2g} nats per token from the correct rollouts it was made on, out of nowhere.",
        {"displacement/correct": float(change[at]), "likelihood/correct": float(likelihood[at])},
        ("displacement/correct", "reward/mean"),
    )


def _jump_ratio(log: Log) -> Hit | None:
    found = rows(log, RATIO, "rollout/length")
    product, length = found.columns
    per_token = product / np.maximum(length, 1.0)
    at_first = held(per_token < FIRST_JUMP, 2) & (np.arange(len(per_token)) < FAST)
    at = first(at_first | ((per_token < RATIO_JUMP) & _unusual(per_token)))
    if at is None:
        return None
    return Hit(
        int(found.steps[at]),
        f"Within one rollout batch the importance ratio fell to {np.exp(per_token[at]):.2f} per sampled token, out of "
        "nowhere.",
        {RATIO: float(product[at]), "log-ratio per token": float(per_token[at])},
        (RATIO, "reward/mean"),
    )


def _jump_clipped(log: Log) -> Hit | None:
    """From a stock log: an update that clips many tokens, all at once or while the reward falls."""
    found = rows(log, "clip/fraction", "reward/mean")
    clipped, reward = found.columns
    before = delayed(highest(clipped), 1)
    at = first((clipped > CLIPPED) & ((clipped > FURTHER * before) | falling(log, found.steps)))
    if at is None:
        return None
    return Hit(
        int(found.steps[at]),
        f"An update clipped {clipped[at]:.0%} of the tokens; none before had clipped more than {before[at]:.1%}.",
        {"clip/fraction": float(clipped[at]), "most before": float(before[at]), "reward/mean": float(reward[at])},
        ("clip/fraction", "reward/mean"),
    )


RULES = (
    Rule("LLD001", stagnation, (DISPLACED,)),
    Rule("LLD002", decay, (DISPLACED, DRIFTING)),
    Rule("LLD003", spiral, (DISPLACED, DRIFTING)),
    Rule("LLD004", first_action, ((*DISPLACED, *ACTIONS),)),
    Rule("ISD001", ratio_drift, ((RATIO,),)),
    Rule(
        "STP001",
        step_too_large,
        (("displacement/correct", "likelihood/correct"), (RATIO, "rollout/length"), ("clip/fraction", "reward/mean")),
    ),
)
