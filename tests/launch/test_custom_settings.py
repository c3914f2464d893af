"""A custom penalty's settings that a host would ignore are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.config import Config
from holdfast.errors import ConfigError
from holdfast.launch import plan

CUSTOM = ("--loss.penalty.name=custom", "--loss.penalty.path=holdfast.penalties:LLDS")


@pytest.mark.parametrize(
    ("host", "setting"),
    [("trl", "normalizer = 'preserved'"), ("verl", "normalizer = 'preserved'"), ("verl", "answer_weight = 0.5")],
)
def test_a_setting_that_the_host_ignores_is_refused(host: str, setting: str, recipe: Callable[..., Config]) -> None:
    with pytest.raises(ConfigError, match=f"loss.penalty.settings: {setting.split(' ')[0]} = "):
        plan(host, recipe(*CUSTOM, f"--loss.penalty.settings={setting}"))
