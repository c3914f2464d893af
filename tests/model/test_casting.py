"""Decoding under autocast with weights that are cast once: the same bits, fewer casts, nothing left behind."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.model.casting import CastWeights
from holdfast.model.hf import HFPolicy
from holdfast.model.sampling import _ranked_by_key

from .conftest import request


class Operations(TorchDispatchMode):
    """Counts casts of weights, and what a GPU would have to be waited for."""

    # Under inference mode an operation is seen before it is taken apart into others, else after.
    WAITS = ("_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "equal")
    CASTS = ("_to_copy", "to")

    def __init__(self, weights: set[torch.Size]) -> None:
        super().__init__()
        self.weight_casts, self.waits, self._weights = 0, 0, weights

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if name in self.CASTS and args[0].shape in self._weights:
            self.weight_casts += result.dtype != args[0].dtype
        by_mask = name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        self.waits += name in self.WAITS or by_mask
        return result


@pytest.mark.parametrize("inference", [True, False])
def test_waits_are_counted(inference: bool) -> None:
    x = torch.tensor([1.0, 0.0])
    for read in (
        lambda: bool(x.any()),
        lambda: float(x[0]),
        lambda: x[0].item(),
        lambda: x.nonzero(),
        lambda: x[x > 0],
    ):
        with torch.inference_mode(inference), Operations(set()) as counter:
            read()
        assert counter.waits >= 1


def run(policy: HFPolicy, rows: int = 5, new: int = 12) -> dict[str, Any]:
    policy.submit([request(str(i), range(3 + i, 20), new, seed=i) for i in range(rows)])
    done = {}
    while completions := policy.poll():
        done |= {c.id: (c.token_ids, c.logprobs) for c in completions}
    policy.release(list(done))
    return done


def with_adapters(model: Any) -> Any:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)).eval()


@pytest.mark.parametrize(
    ("family", "settings", "adapters"),
    [("Qwen2", {}, False), ("Qwen2", {"tie_word_embeddings": True}, False), ("Llama", {}, True), ("Qwen3", {}, False)],
)
def test_the_same_bits_as_autocast(make_model, tokenizer, monkeypatch, family, settings, adapters) -> None:
    model = make_model(family, initializer_range=0.1, **settings)
    model = with_adapters(model) if adapters else model
    cast = run(HFPolicy(model, tokenizer, autocast_dtype=torch.bfloat16))
    monkeypatch.setattr("holdfast.model.hf.CastWeights", lambda *_: None)
    assert cast == run(HFPolicy(model, tokenizer, autocast_dtype=torch.bfloat16))
    exact = run(HFPolicy(model, tokenizer))
    assert cast != exact, "bfloat16 must be seen in the log-probs"


def test_the_model_is_as_it_was_between_polls_and_after(make_model, tokenizer) -> None:
    model = make_model()
    before = {name: (id(p), p.dtype) for name, p in model.named_parameters()}
    policy = HFPolicy(model, tokenizer, autocast_dtype=torch.bfloat16)
    policy.submit([request("a", range(3, 20), 4), request("b", range(3, 20), 9)])
    for _ in range(2):
        policy.poll()
        assert {name: (id(p), p.dtype) for name, p in model.named_parameters()} == before
    assert policy._cast is not None
    policy.release(["a", "b"])
    assert policy._cast is None, "the optimizer needs the memory"


def test_new_weights_are_seen_by_the_next_batch_of_rollouts(make_model, tokenizer) -> None:
    model = make_model(initializer_range=0.1)
    policy = HFPolicy(model, tokenizer, autocast_dtype=torch.bfloat16)
    first = run(policy)
    with torch.no_grad():
        model.lm_head.weight.mul_(1.5)
    second = run(policy)
    assert second != first
    assert second == run(HFPolicy(model, tokenizer, autocast_dtype=torch.bfloat16))


def test_an_exception_leaves_the_original_weights(make_model) -> None:
    model = make_model()
    weight = model.lm_head.weight
    with pytest.raises(KeyError), CastWeights(model, torch.bfloat16).in_place():
        assert model.lm_head.weight.dtype == torch.bfloat16
        raise KeyError
    assert model.lm_head.weight is weight


def step_counts(model: Any, tokenizer: Any, **settings: Any) -> Operations:
    """Operations of four decoding steps, in which no row enters or leaves."""
    policy = HFPolicy(model, tokenizer, **settings)
    policy.submit([request(str(i), range(3 + i, 20), 20, seed=i) for i in range(4)])
    finished: list[Any] = []
    with policy._ready_to_sample():
        policy._prefill(policy._choose_prefill(), finished)
        policy._step(finished)
        counter = Operations({p.shape for p in model.parameters() if p.dim() == 2})
        with counter:
            for _ in range(4):
                policy._step(finished)
    assert not finished
    return counter


def test_no_weight_is_cast_while_decoding(make_model, tokenizer, monkeypatch) -> None:
    model = make_model()
    assert step_counts(model, tokenizer, autocast_dtype=torch.bfloat16).weight_casts == 0
    monkeypatch.setattr("holdfast.model.hf.CastWeights", lambda *_: None)
    linear = sum(type(module) is torch.nn.Linear for module in model.modules())
    assert step_counts(model, tokenizer, autocast_dtype=torch.bfloat16).weight_casts == 4 * linear


@pytest.mark.parametrize("sampling", [{}, {"top_k": 8}, {"top_p": 0.8}, {"top_p": 0.9, "top_k": 8}, {"greedy": True}])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_step_waits_for_the_device_once(make_model, tokenizer, monkeypatch, sampling, dtype) -> None:
    """Once: for the sampled tokens, as a list. With the ranking of a GPU, for on a CPU nothing waits."""
    monkeypatch.setattr("holdfast.model.sampling._ranked_by_branch", _ranked_by_key)
    lists = Counter()
    to_list = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: lists.update(["tolist"]) or to_list(self))
    policy_steps = step_counts(make_model(), tokenizer, autocast_dtype=dtype, **sampling)
    assert policy_steps.waits == 0
    assert lists["tolist"] == 1 + 4 + 1  # the prefill, four steps counted, and one before
