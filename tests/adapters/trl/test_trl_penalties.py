"""`with_penalties` on real TRL: the arithmetic of the loss under every loss type, and what it must not change."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("trl")

import trl

from holdfast.adapters.trl import LLDS, NLL, SAPO, with_penalties
from holdfast.methods.penalties import Penalty

from ..by_hand import by_hand, numbered


class Hinge(Penalty):
    """One of the user's own."""

    coef: float = 0.3
    margin: float = 0.02

    def per_token(self, logprobs: Tensor, old_logprobs: Tensor, *_: Any, preserved: Tensor, **__: Any) -> Tensor:
        return torch.where(preserved, (old_logprobs.detach() - logprobs - self.margin).clamp(min=0), 0.0)


LOSS_TYPES = ("grpo", "dapo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo")
PENALTIES = [
    LLDS(coef=0.3, gate="action"),
    LLDS(coef=0.3, gate="response", preserve="correct"),
    LLDS(coef=0.3, gate="token", threshold=0.05),
    SAPO(coef=0.4, tau=0.95),
    NLL(coef=0.5),
    Hinge(coef=0.6),
]


def micro_batch(*, rows: int = 4, width: int = 9, seed: int = 0, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    """What TRL hands to `_compute_loss`: ragged completions with a masked observation, drift, mixed advantages."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(4, width + 1, (rows,), generator=g)
    completion = (torch.arange(width) < lengths[:, None]).long()
    tool = torch.ones(rows, width, dtype=torch.long)
    tool[:, 2] = 0
    tool[0, 4:6] = 0
    logprobs = -torch.rand(rows, width, generator=g, dtype=torch.float64) - 0.1
    advantages = torch.randn(rows, generator=g, dtype=torch.float64)
    advantages[1] = 0.0
    ids = torch.randint(2, 250, (rows, width + 3), generator=g)
    batch = {
        "prompt_ids": ids[:, :3],
        "prompt_mask": torch.ones(rows, 3, dtype=torch.long),
        "completion_ids": ids[:, 3:],
        "completion_mask": completion,
        "tool_mask": tool,
        "advantages": advantages.to(dtype),
        "num_items_in_batch": torch.tensor(float(3 * (completion * tool).sum())),
        "old_per_token_logps": (logprobs + 0.3 * torch.randn(rows, width, generator=g, dtype=torch.float64)).to(dtype),
        "importance_sampling_ratio": torch.ones(rows, 1, dtype=dtype),
        "holdfast_correct": torch.arange(rows) % 2 == 1,
        "holdfast_rewarded": torch.ones(rows, dtype=torch.bool),
        "holdfast_equal": torch.zeros(rows, dtype=torch.bool),
        "holdfast_preserved_count": torch.tensor(40),
    }
    return batch | {"logprobs": logprobs.to(dtype)}


def names(value: Any) -> str:
    return f"{type(value).__name__}-{value.gate}" if isinstance(value, LLDS) else type(value).__name__


def host_loss(trainer: Any, batch: dict[str, Any], logprobs: Tensor, *, window: int = 2) -> Tensor:
    """`_compute_loss` with given log-probs in place of the model's, in an accumulation window of so many."""

    def given(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, None]:
        return logprobs, torch.ones_like(logprobs.detach()), None

    trainer.current_gradient_accumulation_steps = window
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trl.GRPOTrainer, "_get_per_token_logps_and_entropies", given)
        return trainer._compute_loss(trainer.model, {k: v for k, v in batch.items() if k != "logprobs"})


def loss_and_gradient(trainer: Any, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
    logprobs = batch["logprobs"].clone().requires_grad_()
    trainer.model.train()
    loss = host_loss(trainer, batch, logprobs)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    return loss.detach(), gradient


def naive_penalty(
    penalty: Any, batch: dict[str, Any], loss_type: str, *, window: int, per_step: float
) -> tuple[Tensor, Tensor]:
    """The formula token by token, over the preserved tokens of a step, or over what the host divides its own by."""
    mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
    total, gradient = 0.0, torch.zeros(mask.shape, dtype=torch.float64)
    for i, row in enumerate(mask.tolist()):
        per = {
            "grpo": len(mask) * max(sum(row), 1) * window,
            "sapo": len(mask) * max(sum(row), 1) * window,
            "bnpo": int(mask.sum()) * window,
            "dr_grpo": len(mask) * 16 * window,  # max_completion_length = 16
            "luspo": len(mask) * window,
        }.get(loss_type, per_step)  # the tokens of an accumulation window
        if penalty.normalizer == "preserved":
            per = 40 * window / 4  # of 40 in a generation of four micro-batches
        new, old = batch["logprobs"][i].tolist(), batch["old_per_token_logps"][i].tolist()
        a, correct = float(batch["advantages"][i]), bool(batch["holdfast_correct"][i])
        for t, (value, slope) in enumerate(by_hand(penalty, new, old, numbered(row), a, correct=correct)):
            total += penalty.coef * value / per
            gradient[i, t] = penalty.coef * slope / per
    return torch.tensor(total, dtype=torch.float64), gradient


@pytest.mark.parametrize("normalizer", ["preserved", "policy"])
@pytest.mark.parametrize(
    ("loss_type", "penalty"),
    [*((loss_type, PENALTIES[0]) for loss_type in LOSS_TYPES), *(("dapo", penalty) for penalty in PENALTIES[1:])],
    ids=lambda x: x if isinstance(x, str) else names(x),
)
def test_host_loss_plus_penalty(make_trainer: Any, loss_type: str, penalty: Any, normalizer: str) -> None:
    """Value and gradient, in float64, against TRL's own loss plus the formula written out."""
    penalty = penalty.model_copy(update={"normalizer": normalizer})
    batch = micro_batch()
    plain = loss_and_gradient(make_trainer(trl.GRPOTrainer, loss_type=loss_type), batch)
    ours = loss_and_gradient(make_trainer(with_penalties(trl.GRPOTrainer, penalty), loss_type=loss_type), batch)
    # 4 micro-batches a generation, 2 a window: half of the generation's tokens.
    per_step = float(batch["num_items_in_batch"]) * 2 / 4
    value, gradient = naive_penalty(penalty, batch, loss_type, window=2, per_step=per_step)
    assert float(value) != 0
    torch.testing.assert_close(ours[0], plain[0] + value, atol=1e-6, rtol=0)
    torch.testing.assert_close(ours[1], plain[1] + gradient, atol=1e-6, rtol=0)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_weight_0_is_the_host_bit_for_bit(make_trainer: Any, loss_type: str) -> None:
    batch = micro_batch(dtype=torch.float32)
    plain = loss_and_gradient(make_trainer(trl.GRPOTrainer, loss_type=loss_type), batch)
    for trainer_class in (with_penalties(trl.GRPOTrainer, LLDS(coef=0.0)), with_penalties(trl.GRPOTrainer)):
        ours = loss_and_gradient(make_trainer(trainer_class, loss_type=loss_type), batch)
        assert torch.equal(ours[0], plain[0]) and torch.equal(ours[1], plain[1])


@pytest.mark.parametrize(
    ("loss_type", "bad"), [*((loss_type, math.nan) for loss_type in LOSS_TYPES), ("dapo", math.inf), ("dapo", -100.0)]
)
def test_what_is_masked_cannot_reach_the_loss(make_trainer: Any, loss_type: str, bad: float) -> None:
    """TRL alone makes NaN of it, or of its gradient: 0 · inf."""
    clean, poisoned = micro_batch(), micro_batch()
    outside = ~(clean["completion_mask"] * clean["tool_mask"]).bool()
    poisoned["logprobs"] = torch.where(outside, -bad, poisoned["logprobs"])
    poisoned["old_per_token_logps"] = torch.where(outside, bad, poisoned["old_per_token_logps"])
    trainer_class = with_penalties(trl.GRPOTrainer, LLDS(coef=0.3))
    a = loss_and_gradient(make_trainer(trainer_class, loss_type=loss_type), clean)
    b = loss_and_gradient(make_trainer(trainer_class, loss_type=loss_type), poisoned)
    assert torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])


def known_in_part(number: list[int], **_: Any) -> list[float | None]:
    return [None if n % 4 == 1 else float(n % 4 == 0) for n in number]


@pytest.mark.parametrize("preserve", ["nonnegative", "correct", "all"])
def test_a_rollout_without_a_reward_is_not_preserved(make_trainer: Any, preserve: str) -> None:
    """TRL gives it the advantage 0, which a group of equal rewards has too. Of four rollouts one is correct, and one
    has no reward, as after a failed search."""
    seen: list[tuple[Tensor, Tensor]] = []

    class Watched(LLDS):
        def per_token(self, *tokens: Tensor, preserved: Tensor, **masks: Any) -> Tensor:
            seen.append((tokens[2][:, 0], preserved.any(-1)))
            return super().per_token(*tokens, preserved=preserved, **masks)

    trainer = make_trainer(with_penalties(trl.GRPOTrainer, Watched(preserve=preserve)), reward_funcs=known_in_part)
    seen.clear()  # of the trial
    trainer.train()
    advantages, preserved = (torch.cat(parts) for parts in zip(*seen, strict=True))
    assert {round(a, 2) for a in advantages.tolist()} == {-0.58, 0.0, 1.15}  # of the rewards 1, 0, 0
    assert not preserved[advantages == 0].any() and preserved[advantages > 0].all()
    assert preserved[advantages < 0].any() == (preserve == "all")


@pytest.mark.parametrize(("reward", "penalty", "acts"), [
    (0.1, LLDS(), True),
    (0.3, LLDS(preserve="positive"), False),
    (0.3, SAPO(), False),
    (0.3, LLDS(preserve="correct"), False),
    (0.3, NLL(), False),
])  # fmt: skip
def test_equal_rewards_are_an_advantage_of_0(make_trainer: Any, reward: float, penalty: Any, acts: bool) -> None:
    """By rounding, TRL's own are -7e-5 for eight rewards of 0.1, and 3e-4 for eight of 0.3."""

    def equal(completions: list[str], **_: Any) -> list[float]:
        return [reward] * len(completions)

    trainer = make_trainer(with_penalties(trl.GRPOTrainer, penalty), reward_funcs=equal, num_generations=8)
    trainer.train()
    rows = [row for row in trainer.state.log_history if "holdfast/loss/penalty" in row]
    assert {row["holdfast/penalty/preserved_fraction"] for row in rows} == {float(acts)}
    assert any(row["holdfast/loss/penalty"] for row in rows) <= acts


@pytest.mark.parametrize("aligned", [False, True])
def test_a_rollout_without_a_reward_is_neither_correct_nor_incorrect(make_trainer: Any, aligned: bool) -> None:
    """With one optimizer step per rollout batch TRL has no old log-probs, and the loss's are logged."""

    def unknown(number: list[int], **_: Any) -> list[float | None]:
        return [1.0 if n % 2 else None for n in number]

    schedule = {"gradient_accumulation_steps": 4} if aligned else {}
    trainer = make_trainer(with_penalties(trl.GRPOTrainer, displacement_every=1), reward_funcs=unknown, **schedule)
    trainer.train()
    names = {name for row in trainer.state.log_history for name in row}
    assert {"holdfast/likelihood/correct", "holdfast/displacement/correct"} <= names
    assert not {"holdfast/likelihood/incorrect", "holdfast/displacement/incorrect"} & names


def count_even(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [float(sum(i % 2 == 0 for i in ids) > len(ids) / 2) for ids in completion_ids]


@pytest.mark.parametrize("top_p", [1.0, 0.8])  # the second is measured with a forward pass of its own
def test_observing_changes_nothing_in_a_run(make_trainer: Any, top_p: float) -> None:
    """Same weights, bit for bit, after a run: no random number was drawn, no gradient touched."""
    settings = {"rollout_func": None, "reward_funcs": count_even, "max_completion_length": 6, "top_p": top_p}
    weights = []
    for trainer_class in (trl.GRPOTrainer, with_penalties(trl.GRPOTrainer, displacement_every=1)):
        trainer = make_trainer(trainer_class, **settings)
        trainer.train()
        weights.append([parameter.detach().clone() for parameter in trainer.model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_evaluation_is_the_hosts(make_trainer: Any) -> None:
    batch = micro_batch(dtype=torch.float32)
    losses = []
    for trainer_class in (trl.GRPOTrainer, with_penalties(trl.GRPOTrainer, NLL(coef=5.0))):
        trainer = make_trainer(trainer_class)
        trainer.model.eval()
        losses.append(host_loss(trainer, batch, batch["logprobs"]))
    assert torch.equal(*losses)
