"""Recipes: settings by section, their limits, errors between sections, and the bundled TOML files.

Read first: `sections.py`, then `load` in `loading.py`.
"""

from holdfast.base.section import setting_values
from holdfast.data.world.settings import World
from holdfast.model.settings import Model, Sampling
from holdfast.recipe.config import Config, setting_names
from holdfast.recipe.critic import Critic
from holdfast.recipe.loading import BUNDLED, dump, load, load_run, validate
from holdfast.recipe.paths import absolute, require
from holdfast.recipe.sections import (
    Checkpoint,
    Data,
    Eval,
    Faults,
    Guard,
    Loss,
    Protocol,
    Retrieval,
    Reward,
    Run,
    Track,
    Train,
    WarmStart,
)

__all__ = [
    "BUNDLED",
    "Checkpoint",
    "Config",
    "Critic",
    "Data",
    "Eval",
    "Faults",
    "Guard",
    "Loss",
    "Model",
    "Protocol",
    "Retrieval",
    "Reward",
    "Run",
    "Sampling",
    "Track",
    "Train",
    "WarmStart",
    "World",
    "absolute",
    "dump",
    "load",
    "load_run",
    "require",
    "setting_names",
    "setting_values",
    "validate",
]
