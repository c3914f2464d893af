"""What would make `with_penalties` do nothing is told: a loss that is replaced, a threshold that parts nothing."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor

trl = pytest.importorskip("trl")

from holdfast.adapters import trl_watch  # noqa: E402
from holdfast.adapters.trl import LLDS, with_penalties  # noqa: E402
from holdfast.adapters.trl_watch import RewardWatch  # noqa: E402
from holdfast.base.errors import ConfigError  # noqa: E402


def fused_loss(trainer: Any, model: Any, inputs: dict[str, Any]) -> Tensor:
    """A GRPO loss of its own, as Unsloth's `compute_loss` has: TRL's `_compute_loss` is never called."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    logits = model(input_ids=ids).logits[:, -inputs["completion_ids"].size(1) - 1 : -1]
    logprobs = logits.log_softmax(-1).gather(-1, inputs["completion_ids"][..., None])[..., 0]
    return -(logprobs * inputs["advantages"][:, None] * inputs["completion_mask"]).mean()


class Replacing(trl.GRPOTrainer):
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        return fused_loss(self, model, inputs)


@pytest.mark.parametrize(("penalty", "lost"), [(LLDS(), "LLDS(.*) is not added to the loss"), (None, "nothing is obs")])
def test_a_trainer_that_replaces_the_loss_is_stopped(make_trainer: Any, penalty: Any, lost: str) -> None:
    trainer = make_trainer(with_penalties(Replacing, penalty))
    with pytest.raises(ConfigError, match=rf"with_penalties: {lost}.*compute_loss` is now `.*Replacing") as caught:
        trainer.train()
    assert f"of the class {Replacing.__module__}.Replacing" in str(caught.value)
    assert trainer.state.global_step == 0, "before the first optimizer step"


@pytest.mark.parametrize(("batches", "beginning"), [
    ([[-1.0, -0.5, 0.0, -0.2]] * 12,
     "none of the first 20 rollouts (rewards from -1 to 0) counts as correct: correct is"),
    ([[4.0, 10.0, 7.0, 3.0]] * 12,
     "100% of the first 20 rollouts (rewards from 3 to 10) count as correct: correct is"),
    ([[0.0, 0.1, float("nan"), 0.3]] * 12,
     "none of the first 20 rollouts (rewards from 0 to 0.3) counts as correct"),
    ([[0.0, 1.0, 0.0, 0.0]] * 9, None),
    ([[1.0, 1.0, 1.0, 1.0]] * 4 + [[1.0, 1.0, 1.0, 0.0]] * 5, None),  # a policy that is nearly always right
    ([[0.0] * 4] * 9, None),  # nothing is right, and nothing else happens: GRP001's business
    ([[0.0, 10.0, 0.0, 0.0]] * 9, None),  # ten times larger, and still told apart
    ([[-1.0, -0.5, 0.0, -0.2]] * 4 + [[0.0, 1.0, 0.0, 0.0]], None),
])  # fmt: skip
def test_a_threshold_that_tells_nothing_apart_is_said_once(batches: list[list[float]], beginning: str | None) -> None:
    watch = RewardWatch(0.5)
    found = [watch.warning(torch.tensor(batch), torch.tensor(batch) > 0.5, by_em=False) for batch in batches]
    doubts = [doubt for doubt in found if doubt is not None]
    assert len(doubts) == (beginning is not None)
    for doubt in doubts:
        assert doubt.startswith(str(beginning)) and "pass with_penalties(..., correct_above=X)" in doubt


def test_a_real_run_with_negative_rewards_is_told(
    make_trainer: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trl_watch, "_BATCHES", 2)

    def distance(number: list[int], **_: Any) -> list[float]:
        return [-1.0 + 0.1 * n for n in number]

    with caplog.at_level(logging.WARNING, logger="holdfast"):
        make_trainer(with_penalties(trl.GRPOTrainer), reward_funcs=distance, max_steps=6).train()
    (record,) = [r for r in caplog.records if "correct_above" in r.getMessage()]
    assert record.getMessage().startswith("holdfast: none of the first 16 rollouts (rewards from -1 to -0.3) counts")


def test_a_loss_that_shows_no_log_probs_is_refused(make_trainer: Any) -> None:
    """As of a kernel that goes from the hidden states to the loss."""

    class Kernel(trl.GRPOTrainer):
        def _compute_loss(self, model: Any, inputs: Any) -> torch.Tensor:
            loss: torch.Tensor = next(model.parameters()).sum()
            return loss

    with pytest.raises(ConfigError, match="without passing on the log-probs"):
        make_trainer(with_penalties(Kernel, LLDS())).train()
