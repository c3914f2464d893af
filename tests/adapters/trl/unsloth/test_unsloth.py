"""`with_penalties` on the real Unsloth, whose GRPOTrainer trains a tiny model on a CPU.

    UNSLOTH_ALLOW_CPU=1 TORCHDYNAMO_DISABLE=1 python -m pytest tests/adapters/trl/unsloth

in an environment with unsloth, and by itself: Unsloth changes TRL and transformers in the process that imports it. On a
CPU Unsloth leaves TRL's trainer as it is; the test calls the function that replaces it on a GPU.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

if os.environ.get("UNSLOTH_ALLOW_CPU") != "1":
    pytest.skip("needs UNSLOTH_ALLOW_CPU=1 and an environment with unsloth", allow_module_level=True)
os.environ.setdefault("UNSLOTH_COMPILE_LOCATION", tempfile.mkdtemp())
os.environ["ACCELERATE_MIXED_PRECISION"] = "no"

import trl

FROM_BEFORE = trl.GRPOTrainer
pytest.importorskip("unsloth")

from unsloth.models import rl  # noqa: E402

rl._patch_trl_rl_trainers_impl("grpo_trainer")

from holdfast.adapters.trl import LLDS, NLL, SAPO, with_penalties  # noqa: E402
from holdfast.base.errors import ConfigError  # noqa: E402

from ...by_hand import by_hand  # noqa: E402

LOSS_TYPES = ("grpo", "dapo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo")
PENALTIES = (
    LLDS(coef=0.3, gate="action"),
    LLDS(coef=0.3, gate="response", preserve="correct"),
    LLDS(coef=0.3, gate="token", threshold=0.05),
    SAPO(coef=0.4, tau=0.95),
    NLL(coef=0.5),
)
PADDING = (0, 2, 1, 3)  # before the prompt of each row
ACTIONS = ((1, 1, 0, 0, 2, 2, 2), (1, 1, 1, 2, 2), (1, 0, 2, 2, 0, 3), (1, 1, 1, 1, 1, 1, 1, 1))  # 0: observation
ADVANTAGES = (0.7, 0.0, -0.4, 1.1)
CORRECT = (True, True, False, False)
WINDOW, TOKENS = 2, 57


@pytest.fixture(autouse=True)
def fast_model(tiny_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two methods that Unsloth's FastLanguageModel, which needs a GPU, gives to a model."""
    monkeypatch.setattr(type(tiny_model), "for_training", lambda self, **_: self.train(), raising=False)
    monkeypatch.setattr(type(tiny_model), "for_inference", lambda self: self.eval(), raising=False)


class Recorded:
    """Unsloth's loss, which remembers the log-probs and the mask that it got."""

    def __init__(self, original: Any) -> None:
        self.original = original
        self.logprobs = self.mask = torch.empty(0)

    def apply(self, logprobs: Tensor, *arguments: Any) -> Any:
        if logprobs.requires_grad:
            logprobs.retain_grad()
        self.logprobs, self.mask = logprobs, arguments[5]
        return self.original.apply(logprobs, *arguments)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    namespace = trl.GRPOTrainer.compute_loss.__globals__
    result = Recorded(namespace["UnslothEfficientGRPO"])
    monkeypatch.setitem(namespace, "UnslothEfficientGRPO", result)
    yield result
    assert namespace["UnslothEfficientGRPO"] is result, "nothing stays replaced"


def micro_batch(pad: int, width: int | None = None) -> dict[str, Any]:
    """Four rows; old log-probs in Unsloth's layout once `width` is known."""
    g = torch.Generator().manual_seed(3)
    rows, longest = len(ACTIONS), max(map(len, ACTIONS))
    batch = {
        "prompt_ids": torch.randint(2, 250, (rows, 5), generator=g),
        "completion_ids": torch.randint(2, 250, (rows, longest), generator=g),
        "prompt_mask": torch.ones(rows, 5, dtype=torch.long),
        "completion_mask": torch.zeros(rows, longest, dtype=torch.long),
        "tool_mask": torch.ones(rows, longest, dtype=torch.long),
        "holdfast_action_ids": torch.zeros(rows, longest, dtype=torch.long),
        "holdfast_correct": torch.tensor(CORRECT),
        "holdfast_rewarded": torch.ones(len(CORRECT), dtype=torch.bool),
        "holdfast_equal": torch.zeros(len(CORRECT), dtype=torch.bool),
        "advantages": torch.tensor(ADVANTAGES),
        "num_items_in_batch": torch.tensor(float(TOKENS)),
    }
    for i, (padding, actions) in enumerate(zip(PADDING, ACTIONS, strict=True)):
        batch["prompt_ids"][i, :padding] = pad
        batch["prompt_mask"][i, :padding] = 0
        batch["completion_ids"][i, len(actions) :] = pad
        batch["completion_mask"][i, : len(actions)] = 1
        batch["tool_mask"][i, : len(actions)] = (torch.tensor(actions) > 0).long()
        batch["holdfast_action_ids"][i, : len(actions)] = torch.tensor(actions)
    if width is not None:
        batch["noise"] = 0.3 * torch.randn(rows, width, generator=g)
    return batch


def loss_and_gradient(trainer: Any, batch: dict[str, Any], recorded: Recorded) -> tuple[Tensor, Tensor]:
    """The loss, and its gradient by the log-probs [B, W] of Unsloth's own forward pass."""
    trainer.current_gradient_accumulation_steps = WINDOW
    trainer.model.train()
    loss = trainer.compute_loss(trainer.model, {k: v for k, v in batch.items() if k != "noise"})
    loss.backward()
    gradient = recorded.logprobs.grad
    assert gradient is not None
    return loss.detach(), gradient


def with_old(trainer: Any, recorded: Recorded) -> dict[str, Any]:
    pad = trainer.processing_class.pad_token_id
    loss_and_gradient(trainer, micro_batch(pad), recorded)
    batch = micro_batch(pad, recorded.logprobs.size(1))
    return batch | {"old_per_token_logps": recorded.logprobs.detach() + batch["noise"]}


def naive(penalty: Any, loss_type: str, batch: dict[str, Any], logprobs: Tensor) -> tuple[float, Tensor]:
    """(value, gradient [B, W]) of the penalty token by token, over what Unsloth divides its own tokens by."""
    shift = logprobs.size(1) - batch["completion_ids"].size(1)
    gradient = torch.zeros(logprobs.shape, dtype=torch.float64)
    total, tokens = 0.0, sum(a > 0 for actions in ACTIONS for a in actions)
    for i, actions in enumerate(ACTIONS):
        per = {
            "grpo": len(ACTIONS) * sum(a > 0 for a in actions) * WINDOW,
            "sapo": len(ACTIONS) * sum(a > 0 for a in actions) * WINDOW,
            "luspo": len(ACTIONS) * WINDOW,
            "dr_grpo": len(ACTIONS) * 16 * WINDOW,  # max_completion_length
            "bnpo": tokens * WINDOW,
        }.get(loss_type, TOKENS * WINDOW / 4)  # steps_per_generation
        columns = range(shift - PADDING[i], shift - PADDING[i] + len(actions))
        new, old = (x[i].tolist()[columns.start : columns.stop] for x in (logprobs, batch["old_per_token_logps"]))
        pairs = by_hand(penalty, new, old, actions, ADVANTAGES[i], correct=CORRECT[i])
        for column, (value, slope) in zip(columns, pairs, strict=True):
            total += penalty.coef * value / per
            gradient[i, column] += penalty.coef * slope / per
    return total, gradient


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_unsloths_loss_plus_penalty(make_trainer: Any, recorded: Recorded, loss_type: str) -> None:
    trainer = make_trainer(trl.GRPOTrainer, loss_type=loss_type, beta=0.0)
    batch = with_old(trainer, recorded)
    plain = loss_and_gradient(trainer, batch, recorded)
    assert recorded.mask.sum() == sum(a > 0 for actions in ACTIONS for a in actions)
    for penalty in PENALTIES:
        trainer = make_trainer(with_penalties(trl.GRPOTrainer, penalty), loss_type=loss_type, beta=0.0)
        ours = loss_and_gradient(trainer, batch, recorded)
        value, gradient = naive(penalty, loss_type, batch, recorded.logprobs.detach())
        assert abs(value) > 1e-4
        assert float(ours[0]) == pytest.approx(float(plain[0]) + value, abs=1e-6)
        torch.testing.assert_close(ours[1].double(), plain[1].double() + gradient, atol=1e-6, rtol=0)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_observing_and_coef_0_are_unsloth_bit_for_bit(make_trainer: Any, recorded: Recorded, loss_type: str) -> None:
    trainer = make_trainer(trl.GRPOTrainer, loss_type=loss_type, beta=0.0)
    batch = with_old(trainer, recorded)
    plain = loss_and_gradient(trainer, batch, recorded)
    for trainer_class in (with_penalties(trl.GRPOTrainer, LLDS(coef=0.0)), with_penalties(trl.GRPOTrainer)):
        ours = loss_and_gradient(make_trainer(trainer_class, loss_type=loss_type, beta=0.0), batch, recorded)
        assert torch.equal(ours[0], plain[0]) and torch.equal(ours[1], plain[1])


def weights(trainer: Any) -> Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def test_a_run_with_its_log(make_trainer: Any) -> None:
    def run(trainer_class: Any) -> Any:
        trainer = make_trainer(trainer_class, optim="adamw_torch", beta=0.0)
        trainer.train()
        assert trainer.state.global_step == 4
        return trainer

    plain = run(trl.GRPOTrainer)
    observed = run(with_penalties(trl.GRPOTrainer, displacement_every=1))
    penalised = run(with_penalties(trl.GRPOTrainer, LLDS(coef=5.0)))
    assert torch.equal(weights(plain), weights(observed))
    assert not torch.allclose(weights(plain), weights(penalised))
    last = penalised.state.log_history[3]
    assert last["holdfast/penalty/active_fraction"] > 0 and last["holdfast/loss/penalty"] > 0
    assert last["loss"] == pytest.approx(last["holdfast/loss/host"] + last["holdfast/loss/penalty"], abs=1e-3)
    logged = {name for row in observed.state.log_history for name in row}
    assert {"holdfast/displacement/correct", "holdfast/likelihood/correct", "holdfast/ratio/mean"} <= logged


def test_what_is_refused(make_trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="Write `import unsloth` before every import of trl"):
        with_penalties(FROM_BEFORE, LLDS())
    with pytest.raises(ConfigError, match="the penalty would always be zero"):
        make_trainer(with_penalties(trl.GRPOTrainer, LLDS()), steps_per_generation=2)
    trainer = make_trainer(with_penalties(trl.GRPOTrainer, LLDS()))
    trainer.model.train()
    batch = micro_batch(trainer.processing_class.pad_token_id) | {"unsloth_sample_weight": torch.ones(4)}
    with pytest.raises(ConfigError, match="UNSLOTH_GRPO_LOSS_AGGREGATION is set"):
        trainer.compute_loss(trainer.model, batch)
    monkeypatch.setattr("holdfast.adapters.trl.unsloth.version", lambda _: "2026.8.13")
    with pytest.raises(ConfigError, match=r"the loss of unsloth_zoo 2026\.8\.13 cannot be extended; 2026\.10 or newer"):
        with_penalties(trl.GRPOTrainer, LLDS())
