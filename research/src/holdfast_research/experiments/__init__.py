"""The experiments, one file each, in the order `holdfast reproduce` lists them."""

from __future__ import annotations

import difflib

from holdfast.base.errors import ConfigError
from holdfast_research.experiments import (
    anchor,
    coefficient,
    death_spiral,
    factbook,
    factors,
    first_action,
    long_runs,
    masking,
    mismatch,
    per_sample,
    preserving,
    real_fall,
    real_long,
    real_old,
    remedies,
    rivals,
    sapo,
    second_search,
    steps_per_rollout,
    testbeds,
)
from holdfast_research.values import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        factbook,
        real_fall,
        real_long,
        real_old,
        death_spiral,
        testbeds,
        steps_per_rollout,
        anchor,
        preserving,
        coefficient,
        per_sample,
        first_action,
        masking,
        second_search,
        sapo,
        remedies,
        rivals,
        mismatch,
        long_runs,
        factors,
    )
}


def find(name: str) -> Experiment:
    """The experiment of this name. Raises `ConfigError` that names the nearest."""
    if name in EXPERIMENTS:
        return EXPERIMENTS[name]
    near = difflib.get_close_matches(name, EXPERIMENTS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(EXPERIMENTS)}"
    raise ConfigError(f"{name!r} is not an experiment; {hint}")
