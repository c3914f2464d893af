"""The experiments, one file each, in the order `holdfast reproduce` lists them."""

from __future__ import annotations

import difflib

from holdfast.errors import ConfigError
from holdfast_research.experiments import (
    death_spiral,
    factors,
    first_action,
    masking,
    organisms,
    per_sample,
    preserving,
    sapo,
    steps_per_rollout,
    strength,
)
from holdfast_research.values import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        death_spiral,
        organisms,
        steps_per_rollout,
        preserving,
        strength,
        per_sample,
        first_action,
        masking,
        sapo,
        factors,
    )
}


def find(name: str) -> Experiment:
    """Raises `ConfigError`, naming the nearest, for a name that is none."""
    if name in EXPERIMENTS:
        return EXPERIMENTS[name]
    near = difflib.get_close_matches(name, EXPERIMENTS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(EXPERIMENTS)}"
    raise ConfigError(f"there is no experiment {name!r}; {hint}")
