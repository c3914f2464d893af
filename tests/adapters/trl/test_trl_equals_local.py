"""TRL with our adapter and the local engine are the same method: same weights after the same steps."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("trl")

import trl

from holdfast.adapters.trl import with_penalties
from holdfast.agent.batch import TokenBatch
from holdfast.agent.trajectory import Group
from holdfast.model.language_model import LanguageModel
from holdfast.recipe import Loss, Sampling, Train
from holdfast.train.learner import Learner
from holdfast.train.objective import Objective

from .conftest import train_and_keep_batches

LR, STEPS = 1e-3, 3


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    ("loss_type", "reduction"),
    [("dapo", "token-mean"), ("grpo", "seq-mean-token-mean"), ("luspo", "seq-mean-token-sum")],
)
@pytest.mark.parametrize("penalty", ["none", "llds", "sapo", "nll"])
def test_equal_weights_after_equal_steps(
    searching: Any, tiny_model: Any, monkeypatch: pytest.MonkeyPatch, loss_type: str, reduction: str, penalty: str
) -> None:
    """Three optimizer steps over one rollout batch; from the second on the penalties are at work."""
    loss = loss_of(reduction, penalty)
    compare(searching, tiny_model, monkeypatch, loss, Sampling(), loss_type=loss_type)


@pytest.mark.parametrize("sampling", [{"top_p": 0.6, "top_k": 40}, {"temperature": 1.3, "top_k": 3}])
def test_equal_weights_over_the_sampling_mask(
    searching: Any, tiny_model: Any, monkeypatch: pytest.MonkeyPatch, sampling: dict[str, Any]
) -> None:
    """`mask_logprobs` is the same in both; without it in TRL, the weights would differ."""
    loss = loss_of("token-mean", "llds")
    masked = Sampling(**sampling, mask_logprobs=True)
    compare(searching, tiny_model, monkeypatch, loss, masked, loss_type="dapo", **sampling)
    with pytest.raises(AssertionError):
        unmasked = Sampling(**sampling)
        compare(searching, tiny_model, monkeypatch, loss, masked, in_trl=unmasked, loss_type="dapo", **sampling)


@pytest.mark.parametrize(("loss_type", "temperature"), [("dapo", 1.0), ("grpo", 1.4)])
def test_equal_weights_with_nthr(
    searching: Any, tiny_model: Any, monkeypatch: pytest.MonkeyPatch, loss_type: str, temperature: float
) -> None:
    """NTHR beside LLDS; without it in TRL, the weights would differ."""
    reduction = {"dapo": "token-mean", "grpo": "seq-mean-token-mean"}[loss_type]
    loss = loss_of(reduction, "llds", methods={"nthr": {}})
    more = {"loss_type": loss_type, "temperature": temperature}
    sampling = Sampling(temperature=temperature)
    compare(searching, tiny_model, monkeypatch, loss, sampling, **more)
    with pytest.raises(AssertionError):
        compare(searching, tiny_model, monkeypatch, loss, sampling, nthr=False, **more)


def loss_of(reduction: str, penalty: str, **others: Any) -> Loss:
    """A threshold, so that what rounding does to a log-prob opens no gate on the first step."""
    more = {"none": {}, "llds": {"coef": 0.5, "threshold": 1e-6}}
    settings = {"name": penalty, **more.get(penalty, {"coef": 0.5})}
    return Loss.model_validate({"kl_coef": 0.0, "reduction": reduction, "penalty": settings, **others})


def compare(
    searching: Any,
    tiny_model: Any,
    monkeypatch: pytest.MonkeyPatch,
    loss: Loss,
    sampling: Sampling,
    *,
    in_trl: Sampling | None = None,
    nthr: bool = True,
    **more: Any,
) -> None:
    """Train in both, and assert equal weights.

    Both get TRL's advantages, which divide by the standard deviation plus 1e-4 (ours plus 1e-6), and no weight decay,
    which TRL does not apply to norms. Both compute in float64 (the model's norms remain in float32). Weights are
    compared as one vector: Adam makes whole steps of the few gradients that are 0 but for rounding.
    """
    tiny_model = copy.deepcopy(tiny_model).double()
    trainer = searching(
        trainer_class=with_penalties(
            trl.GRPOTrainer,
            loss.penalty.term,
            displacement_every=0,
            mask_logprobs=(in_trl or sampling).mask_logprobs,
            nthr=nthr and loss.methods.nthr.on,
        ),
        parts={"em": 1.0, "f1": 0.5},
        model=tiny_model,
        max_completion_length=16,
        **more,
        per_device_train_batch_size=12,
        gradient_accumulation_steps=1,
        steps_per_generation=1,
        num_iterations=STEPS,
        max_steps=STEPS,
        learning_rate=LR,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
    )
    ((rows, trls),) = train_and_keep_batches(trainer, monkeypatch)
    rollouts = [replace(row["trajectory"], reward=0.0) for row in rows]
    groups = [Group(str(i), tuple(rollouts[i : i + 4])) for i in range(0, len(rollouts), 4)]
    batch = TokenBatch.from_trajectories(groups, pad_token_id=0)
    batch = replace(batch, advantages=trls["advantages"][:, None])
    assert float(batch.advantages.std()) > 0.1  # there is something to learn

    model = copy.deepcopy(tiny_model)
    train = Train(lr=LR, weight_decay=0.0, grad_clip=1.0)
    learner = Learner(LanguageModel(model=model, tokenizer=None), Objective(loss), train, sampling)
    minis, *_ = learner.old_pass(batch, [[list(range(len(batch)))]])
    parameters = learner.parameters
    learner.step(minis * STEPS, mean_searches=0.0)

    ours, start, theirs = (
        torch.cat([p.detach().flatten() for p in weights])
        for weights in (parameters, tiny_model.parameters(), trainer.model.parameters())
    )
    moved = (ours - start).norm()
    assert (ours - start).abs().max() > 1e-3 and (ours - theirs).norm() < 1e-4 * moved
