"""Losses and settings of them that cannot work are refused, when the config is made or at the first call."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("verl")

from holdfast.adapters.verl import HoldfastPolicyLossConfig
from holdfast.base.errors import ConfigError

from .conftest import Batch, call

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown base": ({"base_loss_mode": "vanila"}, "'vanila' is not a registered policy loss; did you mean 'vanilla'?"),
    "unknown base, near nothing": ({"base_loss_mode": "xyz"}, "registered are bypass_mode, cispo, "),
    "ours on ours": ({"base_loss_mode": "holdfast_lld"}, "is one of holdfast's losses, which cannot be stacked"),
    "negative": ({"penalty_coef": -0.1}, "LLDS(coef=-0.1) must be 0 or more"),
    "penalty beside verl's own": (
        {"loss_mode": "vanilla", "penalty_coef": 0.1},
        "set loss_mode to one of holdfast_observe",
    ),
    "tokens of a last action rejected": (
        {
            "loss_mode": "holdfast_lld",
            "penalty_answer": "last-action",
            "penalty_answer_weight": 0.0,
            "rollout_correction": {"rollout_rs": "token_k1"},
        },
        "a piece would count as the last action",
    ),
    "another holdfast": (
        {"holdfast_version": "0.0.1"},
        "install one version on every machine, or write the folder again",
    ),
    "tokens rejected": (
        {"rollout_correction": {"rollout_rs": "seq_sum_k1, token_k3"}},
        "rejecting tokens splits actions",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_when_the_config_is_made(case: str) -> None:
    fields, sentence = REFUSED[case]
    with pytest.raises(ConfigError) as caught:
        HoldfastPolicyLossConfig(**{"loss_mode": "holdfast_llds", **fields})
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"rollout_correction": {"rollout_rs": "seq_sum_k1"}},
        {"rollout_correction": {"rollout_rs": "token_k1", "bypass_mode": True}},  # rejected inside the base, after us
        {"rollout_correction": {"rollout_rs": "token_k1"}, "loss_mode": "holdfast_lld"},
        {"rollout_correction": {"rollout_rs": "token_k1"}, "loss_mode": "holdfast_llds_response"},
        {"rollout_correction": {"rollout_is": "token", "rollout_rs": None}},
        {"loss_mode": "vanilla"},
        {"loss_mode": "gspo", "base_loss_mode": "vanilla"},
    ],
)
def test_their_neighbours_are_fine(fields: dict[str, Any]) -> None:
    HoldfastPolicyLossConfig(**{"loss_mode": "holdfast_llds", **fields})


def test_a_plain_config_is_refused_at_the_first_call(batch: Batch) -> None:
    from verl.trainer.config import RolloutCorrectionConfig
    from verl.workers.config import ActorConfig, PolicyLossConfig

    own = PolicyLossConfig(loss_mode="holdfast_llds", rollout_correction=RolloutCorrectionConfig(rollout_rs="token_k1"))
    config = ActorConfig(
        strategy="fsdp", ppo_mini_batch_size=4, ppo_micro_batch_size_per_gpu=4, rollout_n=1, policy_loss=own
    )
    with pytest.raises(ConfigError, match="rejecting tokens splits actions"):
        call("holdfast_llds", config, batch)
