"""A custom penalty's settings in a host."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.adapters.launch import plan
from holdfast.recipe import Config

CUSTOM = ("--loss.penalty.name=custom", "--loss.penalty.path=holdfast.methods.penalties:LLDS")


def test_a_weight_of_the_answer_names_its_span_in_verl(recipe: Callable[..., Config]) -> None:
    made = plan("verl", recipe(*CUSTOM, "--loss.penalty.settings=answer_weight = 0.5"))
    loss = "+actor_rollout_ref.actor.policy_loss"
    assert made.values[f"{loss}.penalty_settings"] == {"answer_weight": 0.5}
    assert made.values[f"{loss}.penalty_answer"] == "answer-span"
