"""slime's and miles' policy loss plus a penalty: by their interface, and by their own functions where installed."""

from __future__ import annotations

import importlib
import itertools
import math
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.adapters import slime as adapter
from holdfast.base.errors import ConfigError

from . import stand_ins
from .conftest import SECTIONS, Rollout

VOCABULARY, TEMPERATURE = 13, 0.8
ARGS: dict[str, Any] = {
    "advantage_estimator": "grpo",
    "allgather_cp": False,
    "calculate_per_token_loss": False,
    "context_parallel_size": 1,
    "custom_pg_loss_reducer_function_path": None,
    "entropy_coef": 0.01,
    "eps_clip": 0.2,
    "eps_clip_c": None,
    "eps_clip_high": 0.28,
    "get_mismatch_metrics": False,
    "global_batch_size": 4,
    "keep_old_actor": False,
    "log_probs_chunk_size": -1,
    "n_samples_per_prompt": 4,
    "num_steps_per_rollout": None,
    "observe_training_entropy": False,
    "qkv_format": "thd",
    "rollout_batch_size": 2,
    "rollout_temperature": TEMPERATURE,
    "rollout_top_p": 1.0,
    "skip_actor_forward_only": False,
    "true_on_policy_mode": False,
    "use_kl_loss": False,
    "use_opsm": False,
    "use_rollout_logprobs": False,
    "use_tis": False,
    "vocab_size": VOCABULARY,
}
EXACT = {"true_on_policy_mode": True}
"""An option of miles: without it Megatron's fused cross entropy rounds the logits' gradient to bfloat16."""
Batch = tuple[dict[str, Any], Tensor]


@pytest.fixture(scope="session")
def one_process() -> Iterator[None]:
    """Groups of one process, which slime and miles ask for."""
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def package(name: str) -> Any:
    """A module of the real host, on one process; skips where it is not installed."""
    module = pytest.importorskip(name)
    if name.startswith("slime"):
        mpu = importlib.import_module("megatron.core").mpu
        if not mpu.is_initialized():
            mpu.initialize_model_parallel()
        return module
    parallel = importlib.import_module("miles.backends.training_utils.parallel")
    group = importlib.import_module("miles.utils.ft_utils.process_group_utils").GroupInfo(
        0, 1, torch.distributed.group.WORLD
    )
    names = ("intra_dp", "intra_dp_cp", "cp", "tp", "pp", "ep", "etp", "indep_dp")
    parallel.set_parallel_state(parallel.ParallelState(**dict.fromkeys(names, group)))
    return module


@pytest.fixture(params=[(name, kind) for name in adapter.HOSTS for kind in ("interface", "package")], ids=str)
def host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of `policy_loss_function`, the only one of its kind in this process."""
    name, kind = request.param
    if kind == "package":
        request.getfixturevalue("one_process")
    module = stand_ins.slime_like(name) if kind == "interface" else package(name)
    for other in adapter.HOSTS:
        monkeypatch.delitem(sys.modules, other, raising=False)
    monkeypatch.setitem(sys.modules, name, module)
    return module


@pytest.fixture
def batch(rollouts: list[Rollout]) -> Batch:
    """A micro-batch as the hosts have it, whose logits [1, T, V] give the log-probs of `rollouts` up to rounding. The
    first token is the prompt; rollouts 0 and 1 are two samples of one rollout and share its denominator."""
    draw = torch.Generator().manual_seed(2)
    tokens, parts = [], []
    for rollout in rollouts:
        length = len(rollout.new)
        ids = torch.randint(VOCABULARY, (length + 1,), generator=draw)
        logits = torch.randn(length + 1, VOCABULARY, generator=draw, dtype=torch.float64)
        for t, logprob in enumerate(rollout.new):  # its logit such that softmax gives exp(logprob)
            others = logits[t].clone()
            others[ids[t + 1]] = -math.inf
            logits[t, ids[t + 1]] = others.logsumexp(0) + logprob - math.log1p(-math.exp(logprob))
        tokens.append(ids)
        parts.append(logits * TEMPERATURE)
    masks = [torch.tensor(r.mask).int() for r in rollouts]
    counts = [float(m.sum()) for m in masks]
    made = {
        "unconcat_tokens": tokens,
        "total_lengths": [len(ids) for ids in tokens],
        "response_lengths": [len(ids) - 1 for ids in tokens],
        "loss_masks": masks,
        "rollout_mask_sums": [torch.tensor(x) for x in (counts[0] + counts[1],) * 2 + tuple(counts[2:])],
        "advantages": [torch.full((len(r.new),), r.advantage) for r in rollouts],
        "log_probs": [torch.tensor(r.old) for r in rollouts],
        "rollout_log_probs": [torch.tensor(r.old) - 0.1 for r in rollouts],
    }
    return made, torch.cat(parts)[None].float()


def call(function: Any, batch: Batch, **changed: Any) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """(loss, gradient of the logits [T, V], metrics), as slime's and miles' `loss_function` call."""
    args = Namespace(**ARGS | changed)
    rows, logits = batch
    logits = logits.clone().requires_grad_()
    reduce = stand_ins.sum_of_sample_mean(rows, args.calculate_per_token_loss)
    loss, metrics = function(args, rows, logits * 1, reduce)
    (gradient,) = torch.autograd.grad(loss, logits)
    return loss.detach(), gradient[0], metrics


def expected(
    section: dict[str, Any], rollouts: list[Rollout], batch: Batch, written_out: Any, per_token: bool = False
) -> tuple[float, Tensor]:
    """What the penalty adds to the loss and to the gradient of the logits, in loops over float64 numbers."""
    rows, logits = batch
    value, gradient = 0.0, torch.zeros(logits.shape[1:], dtype=torch.float64)
    start = 0
    for row, rollout in enumerate(rollouts):
        share = section["coef"] / (1.0 if per_token else float(rows["rollout_mask_sums"][row]))
        for t, (each, slope) in enumerate(written_out(section, rollout)):
            value += share * each
            chances = (logits[0, start + t].double() / TEMPERATURE).exp().tolist()
            for v, chance in enumerate(chances):
                sampled = v == int(rows["unconcat_tokens"][row][t + 1])
                gradient[start + t, v] = share * slope * (sampled - chance / sum(chances)) / TEMPERATURE
        start += rows["total_lengths"][row]
    return value, gradient


@pytest.mark.parametrize(("normalizer", "per_token"), [("policy", False), ("policy", True), ("preserved", False)])
@pytest.mark.parametrize("name", SECTIONS)
def test_value_and_gradient_are_the_base_plus_the_penalty(
    host: Any,
    rollouts: list[Rollout],
    batch: Batch,
    written_out: Any,
    preserved_share: Any,
    name: str,
    normalizer: str,
    per_token: bool,
) -> None:
    """A mean over preserved tokens is the host's, divided by their share."""
    section = SECTIONS[name] | {"normalizer": normalizer}
    changed = EXACT | {"calculate_per_token_loss": per_token}
    base, base_gradient, _ = call(host.policy_loss_function, batch, **changed)
    loss, gradient, _ = call(adapter.loss, batch, **changed, holdfast_penalty=section)
    value, slope = expected(section, rollouts, batch, written_out, per_token)
    share = preserved_share(section, rollouts) if normalizer == "preserved" else 1.0
    assert value > 0.01
    assert loss.item() - base.item() == pytest.approx(value / share, abs=2e-6)
    torch.testing.assert_close((gradient - base_gradient).double(), slope / share, rtol=0, atol=2e-6)


@pytest.mark.parametrize("section", [None, {"name": "none"}, {"coef": 0}])
def test_observing_and_a_weight_of_zero_change_not_one_bit(host: Any, batch: Batch, section: Any) -> None:
    before = host.get_log_probs_and_entropy
    base, base_gradient, base_metrics = call(host.policy_loss_function, batch)
    loss, gradient, metrics = call(adapter.loss, batch, holdfast_penalty=section)
    assert torch.equal(loss, base) and torch.equal(gradient, base_gradient)
    assert all(torch.equal(metrics[key], value) for key, value in base_metrics.items())
    assert host.get_log_probs_and_entropy is before, "the function of the host is put back"


def test_the_old_policy_is_the_hosts(host: Any, rollouts: list[Rollout], batch: Batch, written_out: Any) -> None:
    sampled = [Rollout(r.mask, r.advantage, r.new, [x - 0.1 for x in r.old]) for r in rollouts]
    changed = {"use_rollout_logprobs": True}
    base = call(host.policy_loss_function, batch, **changed)[0]
    loss = call(adapter.loss, batch, **changed, holdfast_penalty=SECTIONS["llds"])[0]
    value, _ = expected(SECTIONS["llds"], sampled, batch, written_out)
    assert value != expected(SECTIONS["llds"], rollouts, batch, written_out)[0]
    assert loss.item() - base.item() == pytest.approx(value, abs=1e-6)


def constant(total_lengths: Any, response_lengths: list[int], loss_masks: list[Tensor], per_token: bool) -> Any:
    """A reduction of the policy loss as for Dr.GRPO: a sum over a constant."""
    return lambda x: (
        sum((row * mask).sum() for row, mask in zip(x.split(response_lengths), loss_masks, strict=True)) / 50
    )


def test_the_penalty_is_divided_as_the_policy_loss(
    host: Any, rollouts: list[Rollout], batch: Batch, written_out: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = type(sys)("reducers_for_slime")
    vars(module).update(constant=constant)
    monkeypatch.setitem(sys.modules, "reducers_for_slime", module)
    changed = EXACT | {"custom_pg_loss_reducer_function_path": "reducers_for_slime.constant"}
    base, base_gradient, _ = call(host.policy_loss_function, batch, **changed)
    loss, gradient, _ = call(adapter.loss, batch, **changed, holdfast_penalty=SECTIONS["llds"])
    value, slope = expected(SECTIONS["llds"], rollouts, batch, written_out, per_token=True)
    assert loss.item() - base.item() == pytest.approx(value / 50, abs=1e-6)
    torch.testing.assert_close((gradient - base_gradient).double(), slope / 50, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llds", "llds, response"])
def test_two_processes_that_share_each_rollout_add_up(
    rollouts: list[Rollout], batch: Batch, written_out: Any, tmp_path: Path, name: str
) -> None:
    """Context parallelism: an action is in pieces, and its gate is that of the whole."""
    pytest.importorskip("slime.backends.megatron_utils.loss")
    args = ARGS | {"context_parallel_size": 2, "holdfast_penalty": SECTIONS[name]}
    torch.save((*batch, args), tmp_path / "batch.pt")
    script = Path(__file__).with_name("slime_two_ranks.py")
    out = [tmp_path / f"{rank}.pt" for rank in range(2)]
    commands = [
        [sys.executable, str(script), str(rank), str(tmp_path / "store"), str(tmp_path / "batch.pt"), str(path)]
        for rank, path in enumerate(out)
    ]
    processes = [subprocess.Popen(command) for command in commands]
    assert [process.wait(timeout=400) for process in processes] == [0, 0]
    parts = [torch.load(path) for path in out]
    value, slope = expected(SECTIONS[name], rollouts, batch, written_out)
    assert sum(part["loss"].item() for part in parts) == pytest.approx(value, abs=1e-6)
    ends = list(itertools.accumulate(batch[0]["total_lengths"]))
    rebuilt = [torch.zeros(-(-n // 4) * 4, VOCABULARY) for n in batch[0]["total_lengths"]]
    for rank, part in enumerate(parts):
        start = 0
        for row in rebuilt:
            size = len(row) // 4
            for chunk in (rank, 3 - rank):
                row[chunk * size : (chunk + 1) * size] = part["gradient"][start : start + size]
                start += size
    for row, end, length in zip(rebuilt, ends, batch[0]["total_lengths"], strict=True):
        torch.testing.assert_close(row[:length].double(), slope[end - length : end], rtol=0, atol=1e-6)
    alone = sum(part["metrics"]["holdfast/loss/penalty"].item() for part in parts)
    assert alone == pytest.approx(value, abs=1e-6)


def test_what_the_log_shows(host: Any, rollouts: list[Rollout], batch: Batch, written_out: Any) -> None:
    """Sums over rollouts, which the hosts add up and divide by the rollouts of the step."""
    metrics = call(adapter.loss, batch, holdfast_penalty=SECTIONS["llds"])[2]
    assert all(value.dim() == 0 for value in metrics.values())
    shares = [
        int(m.sum()) / float(n) for m, n in zip(batch[0]["loss_masks"], batch[0]["rollout_mask_sums"], strict=True)
    ]
    preserved = sum(share for share, r in zip(shares, rollouts, strict=True) if r.advantage >= 0)
    assert metrics["holdfast/penalty/preserved_fraction"].item() == pytest.approx(preserved)
    value, _ = expected(SECTIONS["llds"], rollouts, batch, written_out)
    assert metrics["holdfast/loss/penalty"].item() == pytest.approx(value, abs=1e-6)
    assert metrics["holdfast/ratio/mean"] > 0
    observed = call(adapter.loss, batch)[2]
    assert {key for key in metrics if key not in observed} == {"holdfast/loss/penalty"}


@pytest.mark.parametrize(("changed", "sentence"), [
    ({"holdfast_penalty": {"preserve": "correct"}}, "does not tell a loss which rollouts are correct"),
    ({"holdfast_penalty": {"answer_weight": 0.5}}, "the mask of the answer"),
    ({"holdfast_penalty": {"gata": "token"}}, "gata"),
    ({"qkv_format": "bshd", "context_parallel_size": 2}, "qkv-format bshd with --context-parallel-size 2"),
    ({"holdfast_penalty": {"coef": 0.2}, "global_batch_size": 8}, "one optimizer step per rollout batch"),
    ({"holdfast_penalty": {"coef": 0.2}, "num_steps_per_rollout": 1}, "one optimizer step per rollout batch"),
])  # fmt: skip
def test_what_cannot_work_is_refused(host: Any, batch: Batch, changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        call(adapter.loss, batch, **changed)


def test_one_step_is_enough_for_what_acts_on_it(host: Any, batch: Batch) -> None:
    for changed in (
        {"holdfast_penalty": {"name": "nll"}},
        {"holdfast_penalty": {"name": "sapo", "tau": 1.1}},
        {"holdfast_penalty": {"coef": 0.2}, "use_rollout_logprobs": True},
        {"holdfast_penalty": {"coef": 0.2}, "keep_old_actor": True},
    ):
        assert call(adapter.loss, batch, global_batch_size=8, **changed)[2]["holdfast/loss/penalty"] > 0


def test_without_a_host(monkeypatch: pytest.MonkeyPatch, batch: Batch) -> None:
    for name in adapter.HOSTS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ConfigError, match="neither slime nor miles runs"):
        call(adapter.loss, batch)
