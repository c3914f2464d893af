"""AsyncGRPOTrainer: TRL's own packing and loss, with a penalty written out in loops over float64 numbers."""

from __future__ import annotations

import importlib
import itertools
import logging
import queue
import sys
import warnings
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("trl")


import trl
from datasets import Dataset

from holdfast.adapters.trl import LLDS, NLL, SAPO, asynchronous, with_penalties
from holdfast.base.errors import ConfigError
from holdfast.diagnose.readers import read_log
from holdfast.hosts.trl import ASYNC_LOGGED, TRL_ASYNC

from ..by_hand import by_hand
from .conftest import CHECKPOINTING

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # `trl.experimental` is experimental, we know
    # TRL has it itself since 1.18. Its module names the rest, wherever that is.
    home = trl if hasattr(trl, "AsyncGRPOTrainer") else importlib.import_module("trl.experimental.async_grpo")
AsyncGRPOConfig, AsyncGRPOTrainer = home.AsyncGRPOConfig, home.AsyncGRPOTrainer
async_grpo_trainer: Any = sys.modules[AsyncGRPOTrainer.__module__]
packing: Any = sys.modules[async_grpo_trainer.TreeRow.__module__]

PENALTIES = [
    *(LLDS(coef=0.7, gate=gate, threshold=0.05) for gate in ("action", "response", "token")),
    SAPO(coef=0.7, tau=0.9),
    NLL(coef=0.7),
    LLDS(coef=0.7, normalizer="policy", preserve="positive"),
]
SAMPLES = [  # prompt, then (sampled, ids) parts, and the advantage; the first three share a prompt, two of them more
    ([5, 6, 7], [(1, [8, 9, 10]), (0, [3, 3]), (1, [11, 12])], 1.0),
    ([5, 6, 7], [(1, [8, 9, 10]), (0, [3, 3]), (1, [11, 13, 14])], -0.5),
    ([5, 6, 7], [(1, [8, 9, 15, 16])], 0.0),
    ([4], [(1, [9]), (0, [3]), (1, [10, 11]), (0, [3, 3, 3]), (1, [12])], 0.8),
]


def sample(number: int) -> dict[str, Any]:
    prompt, parts, advantage = SAMPLES[number]
    ids = prompt + [i for _, part in parts for i in part]
    mask = [0] * len(prompt) + [sampled for sampled, part in parts for _ in part]
    draw = np.random.default_rng(number)
    old = np.where(mask, -draw.random(len(ids)) - 0.1, 0.0).astype(np.float32)
    return {
        "input_ids": np.array(ids), "completion_mask": np.array(mask), "old_log_probs": old,
        "advantage": advantage, "group_id": int(number < 3), "metrics": {},
    }  # fmt: skip


def bare(trainer_class: Any) -> Any:
    """As much of a trainer as its loss reads. The real one needs a server of vLLM and a kernel for a GPU."""
    trainer = object.__new__(trainer_class)
    one = SimpleNamespace(num_processes=1, reduce=lambda x, reduction: x, gather=lambda x: x.reshape(-1))
    trainer.accelerator = one
    trainer.model = SimpleNamespace(training=True)
    trainer.epsilon_low = trainer.epsilon_high = 0.2
    trainer.aux_loss_enabled, trainer.current_gradient_accumulation_steps = False, 2
    trainer._metrics = {"train": defaultdict(list)}
    trainer._step_forward_tokens = trainer._step_trained_tokens = trainer._step_seq_len_weighted = 0.0
    trainer._step_samples = trainer._step_forward_s = 0.0
    return trainer


WINDOW = 100
"""Tokens of an accumulation window."""


class OverTheWindow(AsyncGRPOTrainer):
    """Divides by the tokens of the accumulation window, as TRL will (its pull request #7249)."""

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        loss: torch.Tensor = super().compute_loss(model, inputs, *args, **kwargs)
        return loss * inputs["global_n_tokens"][0] * self.current_gradient_accumulation_steps / WINDOW


def loss_and_gradient(trainer: Any) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    row = packing.TreeRow()
    for number in range(len(SAMPLES)):
        row.add(sample(number))
    inputs = async_grpo_trainer.DataCollatorForRollout(pad_token_id=0)([[row]])
    count = inputs["input_ids"].numel()
    logprobs = (-torch.rand(1, count, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) - 0.1).detach()
    logprobs.requires_grad_()
    outputs = SimpleNamespace(log_probs=logprobs, entropy=torch.zeros_like(logprobs))
    loss = trainer.compute_loss(lambda **_: outputs, inputs)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    return loss.detach(), gradient, {"logprobs": logprobs.detach()[0], "row": row, "packed": row.pack()}


def by_loops(penalty: Any, facts: dict[str, Any]) -> tuple[float, torch.Tensor, int]:
    """coef × penalty over preserved or all tokens, its gradient by the packed log-probs, and the number of tokens."""
    new, at = facts["logprobs"].tolist(), iter(facts["packed"]["token_index"].tolist())
    total, preserved, tokens, slopes = 0.0, 0, 0, torch.zeros(len(new), dtype=torch.float64)
    for number, (_, parts, advantage) in enumerate(SAMPLES):
        facts_of = sample(number)
        old = [float(x) for x, m in zip(facts_of["old_log_probs"], facts_of["completion_mask"], strict=True) if m]
        places = list(itertools.islice(at, len(old)))
        actions = [k for k, (sampled, part) in enumerate(parts, 1) if sampled for _ in part]
        each = by_hand(penalty, [new[place] for place in places], old, actions, advantage)
        keep = advantage >= 0 if getattr(penalty, "preserve", "positive") == "nonnegative" else advantage > 0
        tokens, preserved = tokens + len(old), preserved + len(old) * keep
        for place, (value, slope) in zip(places, each, strict=True):
            total, slopes[place] = total + value, slopes[place] + slope
    scale = penalty.coef / (preserved if penalty.normalizer == "preserved" else tokens)
    return total * scale, slopes * scale, tokens


@pytest.mark.parametrize("host", [AsyncGRPOTrainer, OverTheWindow], ids=["micro-batch", "window"])
@pytest.mark.parametrize("penalty", PENALTIES, ids=repr)
def test_loss_and_gradient_are_trls_plus_the_penalty(penalty: Any, host: Any) -> None:
    """The micro-batch weighs in the penalty what it weighs in TRL's loss, whatever TRL divides by."""
    plain, plain_gradient, facts = loss_and_gradient(bare(host))
    trainer = bare(with_penalties(host, penalty))
    loss, gradient, _ = loss_and_gradient(trainer)
    value, slope, tokens = by_loops(penalty, facts)
    share = tokens / WINDOW if host is OverTheWindow else 1 / 2  # of the micro-batch in its step, which has two
    assert value != 0 and slope.count_nonzero() < len(slope)
    torch.testing.assert_close(loss, plain + share * value, rtol=0, atol=1e-6)
    torch.testing.assert_close(gradient, plain_gradient + share * slope, rtol=0, atol=1e-6)
    ((num, den),) = trainer._metrics["train"]["holdfast/loss/penalty"]
    assert num / den == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize(("penalty", "rounding"), [(LLDS(), -1.4e-6), (NLL(), 1.4e-6), (SAPO(), 1.4e-6)])
def test_the_rounding_of_equal_rewards_is_an_advantage_of_0(
    penalty: Any, rounding: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of equal rewards of 100 TRL's is that."""
    logged = []
    for advantage in (0.0, rounding, 1e-3):
        changed = [*SAMPLES[:2], (*SAMPLES[2][:2], advantage), *SAMPLES[3:]]
        with monkeypatch.context() as patch:
            patch.setattr(sys.modules[__name__], "SAMPLES", changed)
            trainer = bare(with_penalties(AsyncGRPOTrainer, penalty))
            loss_and_gradient(trainer)
        logged.append(trainer._metrics["train"]["holdfast/penalty/preserved_fraction"])
    assert logged[0] == logged[1]
    assert (logged[1] == logged[2]) == isinstance(penalty, LLDS)  # which preserves both


def test_dropout_is_told(caplog: pytest.LogCaptureFixture) -> None:
    class Made:
        def __init__(self) -> None:
            self.model, self.accelerator = torch.nn.Dropout(0.1), SimpleNamespace(is_main_process=True)

        def compute_loss(self, *_: Any) -> None: ...

    Made.__name__ = asynchronous.NAME
    with_penalties(Made, LLDS())()
    (told,) = [text for record in caplog.records if "dropout" in (text := record.getMessage())]
    assert "LLDS acts on that noise. Set disable_dropout=True" in told


def test_a_loss_without_log_probs_is_refused() -> None:
    class Kernel(AsyncGRPOTrainer):
        def compute_loss(self, model: Any, inputs: dict[str, Any], *_: Any, **__: Any) -> torch.Tensor:
            loss: torch.Tensor = model(input_ids=inputs["input_ids"]).loss
            return loss

    with pytest.raises(ConfigError, match="without passing on the log-probs"):
        bare(with_penalties(Kernel, LLDS())).compute_loss(
            lambda **_: SimpleNamespace(loss=torch.ones(())),
            dict.fromkeys((*asynchronous.BATCH, "input_ids"), torch.ones(1)),
        )


def test_observing_changes_nothing_and_adds_the_series() -> None:
    plain, plain_gradient, _ = loss_and_gradient(bare(AsyncGRPOTrainer))
    trainer = bare(with_penalties(AsyncGRPOTrainer))
    loss, gradient, facts = loss_and_gradient(trainer)
    assert torch.equal(loss, plain) and torch.equal(gradient, plain_gradient)
    log, packed = trainer._metrics["train"], facts["packed"]
    change = facts["logprobs"][packed["token_index"]] - packed["old_log_probs"]
    assert log["holdfast/ratio/max"] == [pytest.approx(float(change.exp().max()))]
    ((value, count),) = log["holdfast/ratio/mean"]
    assert (value / count, count) == (pytest.approx(float(change.exp().mean())), len(change))
    positive = [packed["old_log_probs"][packed["segment_id"] == i].mean() for i in (0, 3)]
    ((value, count),) = log["holdfast/likelihood/positive"]
    assert (value / count, count) == (pytest.approx(float(sum(positive) / 2)), 2)
    assert not any("penalty/active" in name or "loss/penalty" in name for name in log)


def test_in_evaluation_the_loss_is_trls() -> None:
    trainer = bare(with_penalties(AsyncGRPOTrainer, NLL()))
    trainer.model.training = False
    assert torch.equal(loss_and_gradient(trainer)[0], loss_and_gradient(bare(AsyncGRPOTrainer))[0])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"penalty": LLDS(preserve="correct")}, "does not tell a loss which rollouts are correct"),
        ({"penalty": LLDS(answer_weight=0.0)}, "needs the mask of the answer"),
        ({"mask_logprobs": True}, "mask_logprobs=True"),
        ({"nthr": True}, "NTHR compares whole ones"),
    ],
)
def test_what_it_cannot_honour_is_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        with_penalties(AsyncGRPOTrainer, **arguments)


@pytest.mark.parametrize("module", ["trl.experimental.async_grpo.async_grpo_trainer", "trl.trainer.async_grpo_trainer"])
def test_it_is_known_wherever_trl_has_it(module: str) -> None:
    """Up to 1.17, and since 1.18."""
    stand_in = type("AsyncGRPOTrainer", (), {"__module__": module, "compute_loss": lambda *_: None})
    for host in (stand_in, type("Mine", (stand_in,), {})):
        made = with_penalties(host, LLDS())
        assert issubclass(made, asynchronous.AsyncMixin) and made.__name__ == f"{host.__name__}WithLLDS"


@pytest.mark.parametrize("name", asynchronous.BATCH)
def test_a_batch_without_a_key_that_is_read_is_refused_by_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asynchronous, "version", lambda _: "1.18.2")
    inputs = dict.fromkeys({*asynchronous.BATCH, "input_ids"} - {name}, torch.ones(1, 1))
    says = rf"AsyncGRPOTrainer of trl 1\.18\.2 has no {name} in its batches or metrics.*pip install 'trl<1\.17'"
    with pytest.raises(ConfigError, match=says):
        bare(with_penalties(AsyncGRPOTrainer, LLDS())).compute_loss(None, inputs)


def test_metrics_that_are_kept_elsewhere_are_named_too() -> None:
    trainer = bare(with_penalties(AsyncGRPOTrainer, LLDS()))
    trainer._metrics = {"training": []}
    with pytest.raises(ConfigError, match=r"has no token_index, _metrics\['train'\] in its"):
        trainer.compute_loss(None, dict.fromkeys(set(asynchronous.BATCH) - {"token_index"}, torch.ones(1, 1)))


@pytest.mark.parametrize(("penalty", "threshold"), [(LLDS(), True), (LLDS(threshold=0.01), False), (NLL(), False)])
def test_a_penalty_is_told_that_its_old_policy_is_the_sampler(
    penalty: Any, threshold: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with_penalties(AsyncGRPOTrainer)
    assert not capsys.readouterr().err
    with_penalties(AsyncGRPOTrainer, penalty)
    said = capsys.readouterr().err
    assert "begin without a penalty" in said and ("set a threshold" in said) is threshold


def test_what_is_looked_for_in_the_log_is_what_diagnose_reads() -> None:
    assert set(ASYNC_LOGGED) <= {name.host for name in TRL_ASYNC.series}


# ---- a whole training, with stand-ins for vLLM and for the kernel of the GPU


class Sampler:
    """Fills the queue with what TRL's worker would: the model's own log-probs, if `SAMPLES` were its rollouts."""

    metrics = ("reward",)

    def __init__(self, model: Any) -> None:
        self.rollout_buffer: queue.Queue[Any] = queue.Queue()
        self.metrics_queue: queue.Queue[Any] = queue.Queue()
        for number in [*range(len(SAMPLES))] * 5:  # 3 steps, and what is fetched ahead
            made = sample(number)
            ids = torch.tensor(made["input_ids"])
            with torch.no_grad():
                every = model(input_ids=ids[None]).logits[0].log_softmax(-1)
            own = torch.cat([torch.zeros(1), every[:-1].gather(1, ids[1:, None])[:, 0]]) * torch.tensor(
                made["completion_mask"]
            )
            self.rollout_buffer.put(
                async_grpo_trainer.RolloutSample(
                    prompt=[],
                    completion=[],
                    **{k: made[k] for k in ("input_ids", "completion_mask", "advantage")},
                    old_log_probs=own.numpy(),
                    model_version=0,
                    group_id=made["group_id"],
                    metrics=dict.fromkeys(self.metrics, 0.5),
                )
            )

    def nothing(self, *_: Any, **__: Any) -> None:
        """No server, no weights to send."""

    def check_health(self, _: float) -> None:
        raise AssertionError("the trainer waits for rollouts that do not come")

    start = stop = update_model_version = nothing
    init_weight_transfer = pause = send_weights = resume = destroy = nothing


def varlen_attention(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *_: Any, softmax_scale: float, **__: Any) -> Any:
    """What the kernel computes: causal attention of each segment to its path, aligned at the end."""
    k, v = (x.repeat_interleave(q.size(1) // k.size(1), 1) for x in (k, v))
    out = []
    for (a, b), (c, d) in zip(itertools.pairwise(cu_q.tolist()), itertools.pairwise(cu_k.tolist()), strict=True):
        scores = torch.einsum("qhd,khd->hqk", q[a:b], k[c:d]) * softmax_scale
        seen = torch.ones(b - a, d - c).tril(d - c - (b - a)).bool()
        out.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v[c:d]))
    return torch.cat(out)


@pytest.mark.parametrize("logged", [("reward",), ("rewards/mean",)])
def test_a_training(
    tmp_path: Path,
    tiny_model: Any,
    tokenizer: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    logged: tuple[str, ...],
) -> None:
    """At the first step every ratio is 1: log-probs, unpacked, are those of the rollouts passed one by one. A name
    that diagnose reads and the log lacks is told, once."""
    monkeypatch.setattr(Sampler, "metrics", logged)
    monkeypatch.setattr(packing, "_flash_attn", lambda: SimpleNamespace(flash_attn_varlen_func=varlen_attention))
    monkeypatch.setattr(packing, "get_target_dtype", lambda query, module: None)
    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *_: None)
    tiny_model.save_pretrained(tmp_path / "model")
    sampler = Sampler(tiny_model)
    trainer = with_penalties(AsyncGRPOTrainer, LLDS(coef=1.0, threshold=1e-4))(
        model=str(tmp_path / "model"),
        reward_funcs=lambda completions, **_: [0.0 for _ in completions],
        args=AsyncGRPOConfig(
            output_dir=str(tmp_path / "run"), use_cpu=True, bf16=False, max_steps=3, **{CHECKPOINTING: False},
            per_device_train_batch_size=len(SAMPLES), gradient_accumulation_steps=1, token_budget=0, logging_steps=1,
            learning_rate=1e-2, lr_scheduler_type="constant", report_to=[], save_strategy="no", disable_tqdm=True,
            max_staleness=10, dtype="float32",
        ),
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "?"}]}] * 4),
        processing_class=tokenizer,
        rollout_worker=sampler,
        weight_transfer=sampler,
    )  # fmt: skip
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        trainer.train()
    trainer.save_state()
    log = read_log(tmp_path / "run" / "trainer_state.json")
    assert (log.host, log.old_policy) == ("trl-async", "sampler")
    assert {"drift/positive", "penalty/preserved_fraction"} <= log.series.keys()
    told = [record.getMessage() for record in caplog.records if "in its log" in record.getMessage()]
    assert len(told) == ("reward" not in logged) and all(" has no reward in its log" in text for text in told)
    first, second, third = [row for row in trainer.state.log_history if "holdfast/ratio/max" in row]
    assert first["holdfast/ratio/max"] == pytest.approx(1.0, abs=1e-4)
    assert first["holdfast/penalty/active_fraction"] == 0.0 == first["holdfast/loss/penalty"]
    assert (
        second["holdfast/ratio/max"] > 1.001
        and max(row["holdfast/penalty/active_fraction"] for row in (second, third)) > 0
    )
