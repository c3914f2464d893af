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
    crosses: Callable[[RunSeries, str, float], int | None]
    metric: str
    by: float

    def turns(self, run: RunSeries) -> int | None:
        """The step at which it turns; None when it never does."""
        return self.crosses(run, self.metric, self.by)

    def logged(self, run: RunSeries) -> bool:
        """Whether the run has the series."""
        return bool(run.means(self.metric)[1])


SIGNALS = (
    Signal("displacement of correct rollouts below 0", below_step, "displacement/correct", 0.0),
    Signal("displacement below -0.002 nats", below_step, "displacement/correct", -0.002),
    Signal("displacement below -0.01 nats", below_step, "displacement/correct", -0.01),
    Signal("over half of the correct rollouts displaced", rise_step, "displacement/fraction", 0.5),
    Signal("ratios of a rollout multiply to below one half", below_step, "ratio/log_product", HALF),
    Signal("entropy 0.1 nats above its lowest", surge_step, "entropy/mean", 0.1),
    Signal("entropy 0.3 nats above its lowest", surge_step, "entropy/mean", 0.3),
    Signal("rollouts 10 tokens longer than at their shortest", surge_step, "rollout/length", 10.0),
    Signal("mean advantage per token below -0.05", below_step, "advantage/token_mean", -0.05),
    Signal("advantage where the sampler cuts below -0.05", below_step, "advantage/tail_mean", -0.05),
    Signal("the sampler keeps 0.02 less than at its most", fall_step, "sampler/mask_mass", 0.02),
    Signal("control tokens out of place, 99th percentile above 0.1", rise_step, "control/misplaced_p99", 0.1),
    Signal("gradient norm 1 above its lowest", surge_step, "grad/norm", 1.0),
)


def warnings_of(runs: Runs) -> list[dict[str, Any]]:
    """For each signal: in how many runs whose reward dropped it turned before, its leads in steps, and in how many runs
    whose reward never dropped it turned too, by the median step of the drops: both kinds are watched for equally long.
    All arms together; runs shorter than `MIN_STEPS` count in neither, nor do those without the series."""
    long = [run for seeds in runs.values() for run in seeds if len(run.rows) >= MIN_STEPS]
    drops = {id(run): drop_step(run) for run in long}
    fell = [drop for drop in drops.values() if drop is not None]
    watched = median(fell) if fell else float("inf")
    rows = []
    for signal in SIGNALS:
        turned = [(drops[id(run)], signal.turns(run)) for run in long if signal.logged(run)]
        leads = sorted(drop - turn for drop, turn in turned if drop is not None and turn is not None and turn < drop)
        rows.append(
            {
                "signal": signal.says,
                "before": len(leads),
                "dropped": sum(drop is not None for drop, _ in turned),
                "leads": leads,
                "median": median(leads) if leads else None,
                "false": sum(drop is None and turn is not None and turn <= watched for drop, turn in turned),
                "held": sum(drop is None for drop, _ in turned),
            }
        )
    return rows
