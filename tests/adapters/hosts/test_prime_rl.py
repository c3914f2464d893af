"""prime-rl's loss plus a penalty, by prime-rl's own entry.

prime-rl is not on PyPI. HOLDFAST_PRIME_RL names a checkout of it, whose loss and configurations are then imported as
they are. Everywhere, stand-ins have its two interfaces: losses that are functions, and losses that are objects.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.adapters import prime_rl as adapter
from holdfast.base.errors import ConfigError
from holdfast.cli import doctor

from . import stand_ins
from .conftest import SECTIONS, Rollout

PATH = "holdfast.adapters.prime_rl.loss"


@pytest.fixture(params=[*stand_ins.PRIME_RL, "prime-rl"])
def host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module `prime_rl.trainer.rl.loss`."""
    if request.param in stand_ins.PRIME_RL:
        for name, module in stand_ins.prime_rl(request.param).items():
            monkeypatch.setitem(sys.modules, name, module)
    elif checkout := os.environ.get("HOLDFAST_PRIME_RL"):
        source = Path(checkout).resolve() / "src"
        monkeypatch.syspath_prepend(source.parent / "packages" / "prime-rl-configs" / "src")
        monkeypatch.syspath_prepend(source)
        models = ModuleType("prime_rl.trainer.models")  # its own imports every model, and their kernels
        models.__path__ = [str(source / "prime_rl" / "trainer" / "models")]
        monkeypatch.setitem(sys.modules, models.__name__, models)
        importlib.import_module("prime_rl.trainer.rl.loss")
    else:
        pytest.importorskip("prime_rl.trainer.rl.loss", reason="HOLDFAST_PRIME_RL names no checkout of prime-rl")
    adapter._plan.cache_clear()
    return sys.modules["prime_rl.trainer.rl.loss"]


def call(host: Any, rollout: Rollout, config: Any, weights: Tensor | None = None) -> tuple[Tensor, Tensor, Any]:
    """(loss, its gradient by the log-probs, metrics) of one rollout."""
    new = torch.tensor(rollout.new, dtype=torch.float64, requires_grad=True)
    inputs = host.LossInputs(
        trainer_logprobs=new,
        inference_logprobs=torch.tensor(rollout.old, dtype=torch.float64),
        ref_logprobs=None,
        advantages=torch.full((len(rollout.new),), rollout.advantage, dtype=torch.float64),
        loss_mask=torch.tensor(rollout.mask),
        loss_weights=weights,
    )
    loss = host.setup_rl_loss_fn(config)
    outputs = getattr(loss, "loss", loss)(inputs)
    (gradient,) = torch.autograd.grad(outputs.loss, new)
    return outputs.loss.detach(), gradient, outputs.metrics


def configs(**kwargs: Any) -> tuple[Any, Any]:
    """prime-rl's own loss, and ours on top of it."""
    module = sys.modules["prime_rl.configs.trainer"]
    default = getattr(module, "DefaultLossConfig", module.IPOLossConfig)
    return default(), module.CustomLossConfig(import_path=PATH, kwargs=kwargs)


@pytest.mark.parametrize(("normalizer", "weighted"), [("policy", False), ("policy", True), ("preserved", False)])
@pytest.mark.parametrize("name", SECTIONS)
def test_value_and_gradient_are_the_base_plus_the_penalty(
    host: Any,
    rollouts: list[Rollout],
    written_out: Any,
    preserved_share: Any,
    name: str,
    normalizer: str,
    weighted: bool,
) -> None:
    """As a mean over preserved tokens, each rollout's sum is divided by their share up to it; nothing so far counts as
    1."""
    section = SECTIONS[name] | {"normalizer": normalizer}
    plain, ours = configs(penalty=section)
    some = 0
    for i, rollout in enumerate(rollouts):
        weights = torch.linspace(0.5, 2.0, len(rollout.new), dtype=torch.float64) if weighted else None
        share = preserved_share(section, rollouts[: i + 1]) if normalizer == "preserved" else 1.0
        coef = section["coef"] / (share or 1.0)
        base, base_gradient, _ = call(host, rollout, plain, weights)
        loss, gradient, _ = call(host, rollout, ours, weights)
        value, slope = (torch.tensor(x, dtype=torch.float64) for x in zip(*written_out(section, rollout), strict=True))
        some += int((value > 0).sum())
        w = torch.ones_like(value) if weights is None else weights
        torch.testing.assert_close(loss, base + coef * (w * value).sum(), rtol=0, atol=1e-6)
        torch.testing.assert_close(gradient, base_gradient + coef * w * slope, rtol=0, atol=1e-6)
    assert some > 3


@pytest.mark.parametrize("kwargs", [{}, {"penalty": {"name": "none"}}, {"penalty": {"coef": 0}}])
def test_observing_and_a_weight_of_zero_change_not_one_bit(
    host: Any, rollouts: list[Rollout], kwargs: dict[str, Any]
) -> None:
    plain, ours = configs(**kwargs)
    for rollout in rollouts:
        base, base_gradient, base_metrics = call(host, rollout, plain)
        loss, gradient, metrics = call(host, rollout, ours)
        assert torch.equal(loss, base) and torch.equal(gradient, base_gradient)
        assert all(torch.equal(metrics[key], value) for key, value in base_metrics.items())


def test_the_whole_step_is_divided_by_the_tokens_of_the_step(
    host: Any, rollouts: list[Rollout], written_out: Any
) -> None:
    """prime-rl's `compute_loss` sums rollouts and divides by the tokens of all ranks and micro-batches."""
    section = SECTIONS["llds"]
    rows = {
        "trainer_logprobs": [torch.tensor(r.new, requires_grad=True) for r in rollouts],
        "inference_logprobs": [torch.tensor(r.old) for r in rollouts],
        "advantages": [torch.full((len(r.new),), r.advantage) for r in rollouts],
        "loss_mask": [torch.tensor(r.mask) for r in rollouts],
    }
    rest = dict.fromkeys(("ref_logprobs", "rl_weights", "ce_weights", "ref_kl_weights"))
    scales = {"rl_scale": 61, "ce_scale": 1, "ref_kl_scale": 1}
    base, added = (
        host.compute_loss(**rows, **rest, **scales, rl_loss_fn=host.setup_rl_loss_fn(config))
        for config in configs(penalty=section)
    )
    total = sum(value for rollout in rollouts for value, _ in written_out(section, rollout))
    assert added[0].item() - base[0].item() == pytest.approx(section["coef"] * total / 61, abs=1e-6)
    joined = added[1]["holdfast/penalty/active_fraction"]
    assert joined.shape == (3,)  # the rollout with A < 0 has no preserved token
    assert added[1]["holdfast/drift/negative"].shape == (1,)


def test_what_the_log_shows(host: Any, rollouts: list[Rollout], written_out: Any) -> None:
    section = SECTIONS["llds"]
    rollout = rollouts[0]
    metrics = call(host, rollout, configs(penalty=section)[1])[2]
    each, count = written_out(section, rollout), sum(rollout.mask)
    shown = {key.removeprefix("holdfast/"): value for key, value in metrics.items() if key.startswith("holdfast/")}
    assert all(value.dim() == 1 and value.isfinite().all() for value in shown.values())
    assert shown["penalty/active_fraction"].item() == pytest.approx(sum(v > 0 for v, _ in each) / count)
    assert shown["loss/penalty"].item() == pytest.approx(section["coef"] * sum(v for v, _ in each) / count)
    drift = sum(n - o for n, o, m in zip(rollout.new, rollout.old, rollout.mask, strict=True) if m) / count
    assert shown["drift/positive"].item() == pytest.approx(drift)
    assert shown["drift/negative"].numel() == 0


def test_what_is_outside_the_mask_is_not_read(host: Any, rollouts: list[Rollout]) -> None:
    rollout = rollouts[0]
    ours = configs(penalty=SECTIONS["llds"])[1]
    poisoned = [old if inside else -math.inf for old, inside in zip(rollout.old, rollout.mask, strict=True)]
    clean, dirty = (
        call(host, Rollout(rollout.mask, rollout.advantage, rollout.new, old), ours)[2]
        for old in (rollout.old, poisoned)
    )
    assert rollout.old != poisoned
    ours_alone = [key for key in clean if key.startswith("holdfast/")]
    assert ours_alone and all(torch.equal(clean[key], dirty[key]) for key in ours_alone)


@pytest.mark.parametrize("kind", ["default", "ipo"])
def test_another_base_is_kept(host: Any, rollouts: list[Rollout], kind: str) -> None:
    default, ours = configs(base={"adv_tau": 0.5} | ({"type": "ipo"} if kind == "ipo" else {}))
    make = type(default) if kind == "default" else sys.modules["prime_rl.configs.trainer"].IPOLossConfig
    for rollout in rollouts:
        loss = call(host, rollout, ours)[0]
        assert torch.equal(loss, call(host, rollout, make(adv_tau=0.5))[0])
        if kind == "default":
            assert torch.equal(loss, call(host, rollout, default)[0]) == (rollout.advantage == 0)


@pytest.mark.parametrize(("kwargs", "sentence"), [
    ({"penalty": {"name": "lds"}}, "penalty.name = 'lds' is not a penalty; use 'llds'"),
    ({"penalty": {"preserve": "correct"}}, "prime-rl does not tell a loss which rollouts are correct"),
    ({"penalty": {"answer_weight": 0.5}}, "the mask of the answer"),
    ({"penalty": {"coef": -1}}, "coef"),
    ({"penalty": "llds"}, "is not a table"),
    ({"base": {"kl_tauu": 1}}, r"trainer\.loss\.kwargs\.base\.kl_tauu: "),
    ({"base": {"type": "dppo"}}, "'dppo' found using 'type'.*; write base as prime-rl's"),
    ({"base": {"type": "custom", "import_path": PATH}}, "adds this loss to itself"),
])  # fmt: skip
def test_what_cannot_work_is_refused(host: Any, rollouts: list[Rollout], kwargs: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        call(host, rollouts[0], configs(**kwargs)[1])


def test_a_base_for_which_prime_rl_passes_nothing_is_refused(host: Any) -> None:
    if "score_centering" not in sys.modules["prime_rl.configs.trainer"].IPOLossConfig.model_fields:
        pytest.skip("this prime-rl has no score centering")
    assert adapter.base_config({"type": "ipo", "score_centering": False}).score_centering is False
    with pytest.raises(ConfigError, match=r"base\.score_centering = true: .*; leave it out"):
        adapter.base_config({"type": "ipo", "score_centering": True})


OURS = f'[trainer.loss]\ntype = "custom"\nimport_path = "{PATH}"\n'


NEVER = "\n[orchestrator]\nmax_off_policy_steps = 0"


@pytest.mark.parametrize(("config", "fine", "sentences"), [
    (OURS + "kwargs.penalty.coef = 0.1", True,
     ["the loss is valid: LLDS(coef=0.1, ", "filter_zero_advantages = false", "penalty.threshold = 0"]),
    (OURS + "kwargs.base.adv_tau = 0.5", True, ["the loss is valid: no penalty, observing"]),
    (OURS + "kwargs.penalty.preserve = 'correct'", False, ["trainer.loss.kwargs: penalty.preserve"]),
    (OURS + "kwargs.coef = 0.1", False, ["trainer.loss.kwargs.coef: holdfast reads only penalty and base"]),
    (OURS + "kwargs.penalty.coef = 0.1" + NEVER, False, ["orchestrator.max_off_policy_steps = 0"]),
    (OURS + "kwargs.penalty.name = 'nll'" + NEVER, True, ["the loss is valid: NLL(coef=0.1, "]),
    ("[trainer.loss]\ntype = 'ipo'", False, ["[trainer.loss] in", "is not holdfast's. Set type"]),
    ("[trainer.loss", False, ["is not valid TOML"]),
])  # fmt: skip
def test_the_doctor_reads_a_configuration(
    host: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, config: str, fine: bool, sentences: list[str]
) -> None:
    monkeypatch.setattr(doctor, "installed_version", {"prime-rl": "0.9.0"}.get)
    (tmp_path / "rl.toml").write_text(config)
    lines = list(doctor.checked(doctor.prime_rl(tmp_path / "rl.toml")))
    assert all(passed for passed, _ in lines) is fine
    text = "\n".join(text for _, text in lines)
    assert [sentence for sentence in sentences if sentence not in text] == []
