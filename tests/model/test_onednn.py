"""Linear layers by oneDNN: what `Linear` gives, and its gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from holdfast.methods.nthr import output_layer
from holdfast.model import onednn
from holdfast.model.language_model import LanguageModel, prepare
from holdfast.model.onednn import OneDNNLinear
from holdfast.recipe import Model

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
@pytest.mark.parametrize("shape", [(7,), (2, 5), (1, 1), (0,), (2, 0)])
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


def test_a_second_derivative_is_refused() -> None:
    _, layer = twins(bias=False)
    rows = torch.randn(3, 33, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(rows).square().sum(), rows, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_under_autocast_it_is_linear() -> None:
    plain, other = twins(bias=True)
    rows = torch.randn(3, 33)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(plain(rows), other(rows))
        assert other(rows).dtype == torch.bfloat16


def prepared(hidden: int, autocast: str = "none") -> LanguageModel:
    config = LlamaConfig(
        vocab_size=40, hidden_size=hidden, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4
    )
    tokenizer: Any = None
    return prepare(LlamaForCausalLM(config), tokenizer, Model(autocast=autocast), torch.device("cpu"))


@pytest.mark.parametrize(
    ("slow", "hidden", "autocast", "used"),
    [(True, 256, "none", True), (False, 256, "none", False), (True, 64, "none", False), (True, 256, "bf16", False)],
)
def test_where_it_is_used(monkeypatch: pytest.MonkeyPatch, slow: bool, hidden: int, autocast: str, used: bool) -> None:
    """Not in a tiny model, whose recorded runs could not be replayed."""
    monkeypatch.setattr(onednn, "mkl_is_slow", lambda: slow)
    model = prepared(hidden, autocast).model
    linear = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    assert linear and {type(module) is OneDNNLinear for module in linear} == {used}


def test_nthr_can_score_its_output_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "mkl_is_slow", lambda: True)
    assert output_layer(prepared(256)).shape == (40, 256)


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
