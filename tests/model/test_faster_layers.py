"""Faster layers give the same numbers: weights cast once, oneDNN, and a last layer where it is read."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
import transformers
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from holdfast.model.language_model import LanguageModel, ready
from holdfast.model.passes import last_layer, logprobs, onednn
from holdfast.model.passes.logprobs import token_logprobs
from holdfast.model.passes.onednn import OneDNNLinear
from holdfast.model.sampler.hf import HFPolicy
from holdfast.model.sampler.sampling import _ranked_by_key
from holdfast.model.text.tokens import common_prefix
from holdfast.recipe import Model

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


def run_rollouts(policy: HFPolicy, rows: int = 5, new: int = 12) -> dict[str, Any]:
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
    [("Qwen2", {"tie_word_embeddings": True}, False), ("Llama", {}, True)],
)
def test_the_same_bits_as_autocast(make_model, tokenizer, monkeypatch, family, settings, adapters) -> None:
    model = make_model(family, initializer_range=0.1, **settings)
    model = with_adapters(model) if adapters else model
    cast = run_rollouts(HFPolicy(model, tokenizer, autocast_dtype=torch.bfloat16))
    monkeypatch.setattr("holdfast.model.sampler.hf.CastWeights", lambda *_: None)
    assert cast == run_rollouts(HFPolicy(model, tokenizer, autocast_dtype=torch.bfloat16))
    exact = run_rollouts(HFPolicy(model, tokenizer))
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
    monkeypatch.setattr("holdfast.model.sampler.hf.CastWeights", lambda *_: None)
    linear = sum(type(module) is torch.nn.Linear for module in model.modules())
    assert step_counts(model, tokenizer, autocast_dtype=torch.bfloat16).weight_casts == 4 * linear


@pytest.mark.parametrize("sampling", [{}, {"top_p": 0.9, "top_k": 8}, {"greedy": True}])
def test_a_step_waits_for_the_device_once(make_model, tokenizer, monkeypatch, sampling) -> None:
    """Once: for the sampled tokens, as a list. With the ranking of a GPU, for on a CPU nothing waits."""
    monkeypatch.setattr("holdfast.model.sampler.sampling._ranked_by_branch", _ranked_by_key)
    lists = Counter()
    to_list = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: lists.update(["tolist"]) or to_list(self))
    policy_steps = step_counts(make_model(), tokenizer, autocast_dtype=torch.bfloat16, **sampling)
    assert policy_steps.waits == 0
    assert lists["tolist"] == 1 + 4 + 1  # the prefill, four steps counted, and one before


# ---- linear layers by oneDNN


pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch without oneDNN")


def twins(bias: bool) -> tuple[torch.nn.Linear, torch.nn.Linear]:
    torch.manual_seed(0)
    plain = torch.nn.Linear(33, 17, bias=bias)
    other = copy.deepcopy(plain)
    other.__class__ = OneDNNLinear
    return plain, other


def passed(layer: torch.nn.Linear, shape: tuple[int, ...]) -> list[torch.Tensor | None]:
    rows = torch.randn(*shape, 33, generator=torch.Generator().manual_seed(1)).requires_grad_()
    result = layer(rows)
    result.square().sum().backward()
    return [result.detach(), rows.grad, *(p.grad for p in layer.parameters())]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7,), (2, 5), (2, 0)])
def test_results_and_gradients_are_those_of_linear(shape: tuple[int, ...], bias: bool) -> None:
    plain, other = twins(bias)
    for one, two in zip(passed(plain, shape), passed(other, shape), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


def test_a_frozen_layer_passes_gradients_on_and_gets_none() -> None:
    _, layer = twins(bias=True)
    layer.requires_grad_(False)
    _, gradient, *own = passed(layer, (4,))
    assert gradient is not None and gradient.abs().sum() > 0
    assert own == [None, None]


def prepared(hidden: int, autocast: str = "none") -> LanguageModel:
    config = LlamaConfig(
        vocab_size=40, hidden_size=hidden, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4
    )
    tokenizer: Any = None
    return ready(LlamaForCausalLM(config), tokenizer, Model(autocast=autocast), torch.device("cpu"))


@pytest.mark.parametrize(
    ("faster", "hidden", "autocast", "used"),
    [
        ("mkl_is_slow", 256, "none", True),
        ("multiplies_bf16", 256, "none", False),
        ("mkl_is_slow", 64, "none", False),
        ("mkl_is_slow", 256, "bf16", False),
        ("multiplies_bf16", 256, "bf16", True),
    ],
)
def test_where_it_is_used(monkeypatch: pytest.MonkeyPatch, faster: str, hidden: int, autocast: str, used: bool) -> None:
    """Not in a tiny model, whose recorded runs could not be replayed."""
    for name in ("mkl_is_slow", "multiplies_bf16"):
        monkeypatch.setattr(onednn, name, lambda name=name: name == faster)
    model = prepared(hidden, autocast).model
    linear = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    assert linear and {type(module) is OneDNNLinear for module in linear} == {used}


@pytest.mark.parametrize(
    ("cpu", "slow"),
    [
        ("vendor_id : AuthenticAMD\nflags : avx2 avx512f", True),
        ("vendor_id : AuthenticAMD\nflags : avx2", False),
        ("vendor_id : GenuineIntel\nflags : avx2 avx512f", False),
    ],
)
def test_on_which_cpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Any, cpu: str, slow: bool) -> None:
    (tmp_path / "cpuinfo").write_text(cpu)
    monkeypatch.setattr(onednn, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(onednn.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert onednn.mkl_is_slow.__wrapped__() is slow


@pytest.mark.parametrize(
    "autocast",
    [None, pytest.param(torch.bfloat16, marks=pytest.mark.skipif(not onednn.multiplies_bf16(), reason="no bf16"))],
)
def test_rollouts_multiply_by_prepared_weights(
    make_model: Any, tokenizer: Any, monkeypatch: Any, autocast: Any
) -> None:
    """The same up to rounding as passes without; from new weights after an update; none left when rollouts end."""
    for name in ("mkl_is_slow", "multiplies_bf16"):
        monkeypatch.setattr(onednn, name, lambda: True)
    model = make_model("Qwen2", initializer_range=0.1)
    onednn.use_onednn(model, bf16=autocast is not None)
    policy = HFPolicy(model, tokenizer, autocast_dtype=autocast)
    before = [id(p) for p in model.parameters()]
    for scale in (1.0, 1.5):
        with torch.no_grad():
            model.model.layers[0].mlp.up_proj.weight.mul_(scale)
        with mock.patch.object(onednn, "_product", wraps=onednn._product) as product:
            ready = run_rollouts(policy)
        assert {call.args[0].dtype for call in product.call_args_list} == {autocast or torch.float32}
        assert policy._cast is None and [id(p) for p in model.parameters()] == before
        with monkeypatch.context() as patched:
            patched.setattr("holdfast.model.sampler.hf.CastWeights", lambda *_: None)
            plain = run_rollouts(policy)
        compared = 0
        for id_, (tokens, sampled) in plain.items():
            same = common_prefix(ready[id_][0], tokens)
            assert same == len(tokens) or autocast, "only in bf16 may a near tie go the other way"
            assert ready[id_][1][:same] == pytest.approx(sampled[:same], abs=0.02)
            compared += same
        assert compared > 2 * len(plain)


# ---- the last layer where it is read


ROWS, WIDTH = 4, 48


def a_model(family: str = "Qwen2", **settings: Any) -> Any:
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    heads = 2 if family == "Llama" else 4
    config = getattr(transformers, f"{family}Config")(vocab_size=60, num_key_value_heads=heads, **size, **settings)
    return transformers.AutoModelForCausalLM.from_config(config).double()


def a_batch(per_row: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Token ids and a loss mask with so many sampled tokens in each row."""
    generator = torch.Generator().manual_seed(1)
    mask = torch.zeros(ROWS, WIDTH, dtype=torch.bool)
    for row, count in enumerate(per_row):
        mask[row, 1 + torch.randperm(WIDTH - 1, generator=generator)[:count]] = True
    return torch.randint(0, 60, (ROWS, WIDTH), generator=generator), mask


def results(model: Any, per_row: tuple[int, ...]) -> list[Tensor]:
    """Log-probs, then the gradient of each weight."""
    model.zero_grad()
    found, entropy, _ = token_logprobs(model, *a_batch(per_row), entropy=True)
    assert entropy is not None
    (found.sum() + entropy.sum()).backward()
    return [found.detach(), *(p.grad.clone() for p in model.parameters())]


@pytest.mark.parametrize("kind", ["Qwen2", "Llama"])
@pytest.mark.parametrize("per_row", [(3, 12, 0, 7), (40, 2, 1, 0)])
def test_what_is_read_and_its_gradient_are_those_of_the_whole_layer(
    kind: str, per_row: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = a_model(kind)
    picked = results(model, per_row)
    monkeypatch.setattr(logprobs, "last_layer_where", lambda *_: nullcontext())
    for ours, whole in zip(picked, results(model, per_row), strict=True):
        torch.testing.assert_close(ours, whole, atol=1e-5, rtol=1e-6)  # the model rounds norms to float32
    assert picked[0].abs().sum() > 1


def test_only_what_is_read_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (ids, mask) = a_model(), a_batch((3, 12, 0, 7))
    queries, tokens = [], []
    attention = last_layer.sdpa_attention_forward
    monkeypatch.setattr(
        last_layer,
        "sdpa_attention_forward",
        lambda module, query, *args, **kwargs: (
            queries.append(query.shape[2]) or attention(module, query, *args, **kwargs)
        ),
    )
    layers = model.model.layers
    for layer in layers:
        layer.mlp.down_proj.register_forward_hook(lambda _, args, __: tokens.append(args[0][..., 0].numel()))
    token_logprobs(model, ids, mask)
    assert queries == [12] and tokens == [ROWS * WIDTH, 3 + 12 + 7]

    queries.clear()
    token_logprobs(model, *a_batch((40, 2, 1, 0)))  # most of a row is read: causal attention over all is cheaper
    assert queries == [] and tokens[2:] == [ROWS * WIDTH, 43]


def test_a_mixture_of_experts_is_computed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    experts = {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "num_experts": 4}
    model = a_model("Qwen2Moe", **experts).float()
    picked = token_logprobs(model, *a_batch((3, 12, 0, 7))).logprobs
    monkeypatch.setattr(logprobs, "last_layer_where", lambda *_: nullcontext())
    torch.testing.assert_close(picked, token_logprobs(model, *a_batch((3, 12, 0, 7)))[0], atol=0, rtol=0)


def test_the_model_is_as_before_also_after_an_error() -> None:
    model = a_model()
    layer = model.model.layers[-1]
    config = layer.self_attn.config
    with pytest.raises(RuntimeError, match="in between"), last_layer.last_layer_where(model, a_batch((1, 1, 1, 1))[1]):
        assert layer.self_attn.config is not config and layer.mlp._forward_hooks
        raise RuntimeError("in between")
    assert layer.self_attn.config is config and not layer.mlp._forward_hooks and not layer.mlp._forward_pre_hooks


def test_layers_that_are_computed_again_in_the_backward_pass_are_computed_whole() -> None:
    model = a_model()
    expected = results(model, (3, 12, 0, 7))
    model.enable_input_require_grads()
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    for ours, whole in zip(results(model.train(), (3, 12, 0, 7)), expected, strict=True):
        torch.testing.assert_close(ours, whole, atol=1e-5, rtol=1e-6)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems measure memory in other ways")
def test_products_of_ever_new_lengths_keep_little_memory() -> None:
    """PyTorch and oneDNN keep code for each: 280 MB for these, unless they are told to keep less."""
    code = """
import torch
from holdfast.model.passes import onednn
from holdfast.model.support import give_back_memory

def pages():
    give_back_memory()
    return int(open("/proc/self/statm").read().split()[1])

torch.set_num_threads(1)
onednn.mkl_is_slow = lambda: True
layer = torch.nn.Linear(64, 64)
onednn.use_onednn(layer)
layer(torch.zeros(1, 64))
before = pages()
for length in range(100, 600):
    layer(torch.zeros(length, 64))
print((pages() - before) * 4096 // 2**20)
"""
    grown = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert int(grown) < 150
