"""A custom penalty's settings that a host would ignore are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.config import Config
from holdfast.errors import ConfigError
from holdfast.launch import plan

CUSTOM = ("--loss.penalty.name=custom", "--loss.penalty.path=holdfast.penalties:LLDS")


@pytest.mark.parametrize(
    ("host", "setting"), [("trl", "normalizer = 'preserved'"), ("verl", "normalizer = 'preserved'")]
)
def test_a_setting_that_the_host_ignores_is_refused(host: str, setting: str, recipe: Callable[..., Config]) -> None:
    with pytest.raises(ConfigError, match=f"loss.penalty.settings: {setting.split(' ')[0]} = "):
        plan(host, recipe(*CUSTOM, f"--loss.penalty.settings={setting}"))


def test_a_weight_of_the_answer_names_the_last_action_in_verl(recipe: Callable[..., Config]) -> None:
    made = plan("verl", recipe(*CUSTOM, "--loss.penalty.settings=answer_weight = 0.5"))
    loss = "+actor_rollout_ref.actor.policy_loss"
    assert made.values[f"{loss}.penalty_settings"] == {"answer_weight": 0.5}
    assert made.values[f"{loss}.penalty_answer"] == "last-action"
