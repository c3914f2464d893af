"""Recipes: settings by section, their limits, errors between sections, and the bundled TOML files.

Read first: `sections.py`, then `load` in `loading.py`.
"""

from holdfast.base.section import setting_values
from holdfast.model.settings import Model, Sampling
from holdfast.recipe.config import Config, setting_names
from holdfast.recipe.loading import BUNDLED, dump, load, load_run, validate
from holdfast.recipe.paths import absolute, require
from holdfast.recipe.sections import (
    Checkpoint,
    Guard,
    Loss,
    Track,
    Train,
)

__all__ = [
    "BUNDLED",
    "Checkpoint",
    "Config",
    "Guard",
    "Loss",
    "Model",
    "Sampling",
    "Track",
    "Train",
    "absolute",
    "dump",
    "load",
    "load_run",
    "require",
    "setting_names",
    "setting_values",
    "validate",
]
