"""The experiments, one file each, in the order `holdfast reproduce` lists them."""

from __future__ import annotations

import difflib
from importlib import import_module

from holdfast.base.errors import ConfigError
from holdfast_research.values import Experiment

_IN_ORDER = (
    *("factbook", "real_long", "real_old", "real_age", "old_policy", "death_spiral", "testbeds"),
    *("steps_per_rollout", "anchor", "preserving", "coefficient", "per_sample", "first_action", "masking"),
    *("second_search", "sapo", "remedies", "mismatch"),
)
_ALL: list[Experiment] = [import_module(f"{__name__}.{module}").EXPERIMENT for module in _IN_ORDER]
EXPERIMENTS = {experiment.name: experiment for experiment in _ALL}


def find(name: str) -> Experiment:
    """The experiment of this name. Raises `ConfigError` that names the nearest."""
    if name in EXPERIMENTS:
        return EXPERIMENTS[name]
    near = difflib.get_close_matches(name, EXPERIMENTS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(EXPERIMENTS)}"
    raise ConfigError(f"{name!r} is not an experiment; {hint}")
