"""Early warnings: what turns before the reward drops, how long before, and how often it turns for nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from holdfast_research.judge import MIN_STEPS
from holdfast_research.series import HALF, RunSeries, below_step, drop_step, fall_step, rise_step, surge_step
from holdfast_research.values import Runs


@dataclass(frozen=True, slots=True)
class Signal:
    """Something a monitor could watch; every value is a mean of five steps."""

    says: str
    turns: Callable[[RunSeries], int | None]
    """The step at which it turns; None when it never does."""


SIGNALS = (
    Signal("displacement of correct rollouts below 0", lambda run: below_step(run, "displacement/correct", 0.0)),
    Signal("displacement below -0.002 nats", lambda run: below_step(run, "displacement/correct", -0.002)),
    Signal("displacement below -0.01 nats", lambda run: below_step(run, "displacement/correct", -0.01)),
    Signal("over half of the correct rollouts displaced", lambda run: rise_step(run, "displacement/fraction", 0.5)),
    Signal("ratios of a rollout multiply to below one half", lambda run: below_step(run, "ratio/log_product", HALF)),
    Signal("entropy 0.1 nats above its lowest", lambda run: surge_step(run, "entropy/mean", 0.1)),
    Signal("entropy 0.3 nats above its lowest", lambda run: surge_step(run, "entropy/mean", 0.3)),
    Signal("rollouts 10 tokens longer than at their shortest", lambda run: surge_step(run, "rollout/length", 10.0)),
    Signal("mean advantage per token below -0.05", lambda run: below_step(run, "advantage/token_mean", -0.05)),
    Signal("advantage where the sampler cuts below -0.05", lambda run: below_step(run, "advantage/tail_mean", -0.05)),
    Signal("the sampler keeps 0.02 less than at its most", lambda run: fall_step(run, "sampler/mask_mass", 0.02)),
    Signal("gradient norm 1 above its lowest", lambda run: surge_step(run, "grad/norm", 1.0)),
)


def warnings_of(runs: Runs) -> list[dict[str, Any]]:
    """For each signal: in how many runs whose reward dropped it turned before, its leads in steps, and in how many runs
    whose reward never dropped it turned too, by the median step of the drops: both kinds are watched for equally long.
    All arms together; runs shorter than `MIN_STEPS` count in neither."""
    long = [run for seeds in runs.values() for run in seeds if len(run.rows) >= MIN_STEPS]
    drops = {id(run): drop_step(run) for run in long}
    fell = [drop for drop in drops.values() if drop is not None]
    watched = median(fell) if fell else float("inf")
    rows = []
    for signal in SIGNALS:
        turned = [(drops[id(run)], signal.turns(run)) for run in long]
        leads = sorted(drop - turn for drop, turn in turned if drop is not None and turn is not None and turn < drop)
        rows.append(
            {
                "signal": signal.says,
                "before": len(leads),
                "dropped": len(fell),
                "leads": leads,
                "median": median(leads) if leads else None,
                "false": sum(drop is None and turn is not None and turn <= watched for drop, turn in turned),
                "held": sum(drop is None for drop, _ in turned),
            }
        )
    return rows
