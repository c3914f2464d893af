"""What a penalty compares with in each of verl's trainers: verl's own functions make the old log-probs, its own
`ppo_loss` hands them on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

pytest.importorskip("verl")

from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo import rollout_corr_helper as helper
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers import engine_workers

from holdfast.adapters.verl.check import EXAMPLE, compose
from holdfast.hosts.verl import VERL
from holdfast.methods.penalties import Penalty
from holdfast.methods.penalty import Normalizer

from .conftest import Batch

LOSS = "actor_rollout_ref.actor.policy_loss"


class Kept(Penalty):
    """A penalty that keeps what it compares; a mean over all tokens, which depends on no earlier micro-batch."""

    coef: float = 0.1
    normalizer: Normalizer = "policy"
    seen: ClassVar[list[tuple[Tensor, Tensor]]] = []

    def per_token(self, logprobs: Tensor, old_logprobs: Tensor, _: Any, loss_mask: Tensor, **__: Any) -> Tensor:
        self.seen.append((old_logprobs.detach().clone(), loss_mask))
        return torch.where(loss_mask, old_logprobs.detach() - logprobs, 0.0)


def nested(rows: Tensor) -> Tensor:
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def actor(*overrides: str) -> Any:
    ours = (f"{LOSS}.loss_mode=holdfast_custom", f"+{LOSS}.penalty_path={__name__}:Kept")
    return omega_conf_to_dataclass(compose([*EXAMPLE, *ours, *overrides]).actor_rollout_ref.actor)


def through_ppo_loss(config: Any, new: Tensor, fields: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """The loss of verl's actor on a micro-batch; and the old log-probs and the mask that the penalty got."""
    return _loss_and_metrics(config, new, fields)[0], *Kept.seen[-1]


def _loss_and_metrics(config: Any, new: Tensor, fields: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Any]]:
    mask = fields["response_mask"]
    made = TensorDict({name: nested(rows) for name, rows in fields.items()}, batch_size=[len(mask)])
    made["prompts"] = nested(torch.ones(len(mask), 2, dtype=torch.long))
    made["responses"] = nested(torch.ones(mask.shape, dtype=torch.long))
    tu.assign_non_tensor(made, dp_size=1, batch_num_tokens=int(mask.sum()), global_batch_size=len(mask))
    padding = torch.zeros(len(mask), 1)
    output = {"log_probs": nested(torch.cat([padding, new, padding], dim=1))}
    Kept.seen.clear()
    return engine_workers.ppo_loss(config, output, made)  # type: ignore[no-any-return]


@pytest.fixture
def fields(batch: Batch) -> dict[str, Tensor]:
    mask = batch["response_mask"]
    sampler = torch.where(mask, batch["old_log_prob"] - 0.3 * (torch.arange(7) % 3), 0.0)
    return {
        "response_mask": mask.long(), "advantages": batch["advantages"],
        "old_log_probs": batch["old_log_prob"], "rollout_log_probs": sampler,
    }  # fmt: skip


def test_in_bypass_mode_it_is_the_sampler(batch: Batch, fields: dict[str, Tensor]) -> None:
    """As one-step-off and fully async do it. The trainer also names another loss there, which no worker reads."""
    config = compose([*EXAMPLE, "algorithm.rollout_correction.bypass_mode=true"], "fully_async_ppo_trainer")
    workers = actor()
    of_trainer = DataProto(TensorDict(dict(fields), batch_size=[5]))
    _, old, mask = through_ppo_loss(workers, batch["log_prob"], fields)
    assert torch.equal(old[mask], fields["old_log_probs"][mask])
    helper.apply_bypass_mode(
        of_trainer, config.algorithm.rollout_correction, config.actor_rollout_ref.actor.policy_loss
    )
    _, old, mask = through_ppo_loss(workers, batch["log_prob"], dict(of_trainer.batch))
    assert torch.equal(old[mask], fields["rollout_log_probs"][mask])
    assert workers.policy_loss.loss_mode == "holdfast_custom"


def test_a_correction_weights_verls_loss_alone_and_rejects_for_both(batch: Batch, fields: dict[str, Tensor]) -> None:
    """Decoupled: the old policy stays the recomputed one. What verl logs of it has the names that diagnose reads."""
    correction = {"rollout_is": "token", "rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.76_1.3"}
    of_trainer = DataProto(TensorDict(dict(fields), batch_size=[5]))
    corrected, logged = helper.compute_rollout_correction_and_add_to_batch(of_trainer, correction)
    inside = {name: rows for name, rows in corrected.batch.items() if name != "rollout_log_probs"}
    weights = inside["rollout_is_weights"]
    kept, plain = inside["response_mask"].bool(), fields["response_mask"].bool()
    assert 0 < kept.sum() < plain.sum() and (weights[kept] != 1).any()
    ours, without = actor(), actor(f"+{LOSS}.penalty_coef=0.0")
    terms = []
    for given in (inside, inside | {"rollout_is_weights": torch.ones_like(weights)}):
        loss, old, mask = through_ppo_loss(ours, batch["log_prob"], given)
        assert torch.equal(mask, kept) and torch.equal(old[mask], fields["old_log_probs"][mask])
        terms.append(loss - through_ppo_loss(without, batch["log_prob"], given)[0])
    torch.testing.assert_close(terms[0], terms[1], rtol=0, atol=1e-12)
    assert float(terms[0]) != 0
    read = {name.host for name in (*VERL.series, *VERL.more) if name.host.startswith("rollout_corr/")}
    assert read and read <= logged.keys()


def test_what_the_loss_for_bypass_mode_logs_is_read(batch: Batch, fields: dict[str, Tensor]) -> None:
    """verl writes `actor/` before the names."""
    correction = ("algorithm.rollout_correction.bypass_mode=true", "algorithm.rollout_correction.rollout_is=token")
    config = actor(f"+{LOSS}.base_loss_mode=bypass_mode", *correction)
    _, metrics = _loss_and_metrics(config, batch["log_prob"], fields)
    read = {name.host for name in VERL.more if name.host.startswith("actor/rollout_corr/")}
    assert read and read <= {f"actor/{name}" for name in metrics}


class Queue:
    """As much of verl's TransferQueue as holds one batch."""

    def __init__(self, **fields: Tensor) -> None:
        self.fields = fields

    def kv_batch_get(self, select_fields: list[str], **_: Any) -> TensorDict:
        return TensorDict({name: self.fields[name] for name in select_fields}, batch_size=[5])

    def kv_batch_put(self, fields: TensorDict, **_: Any) -> Any:
        self.fields |= dict(fields.items())


class Workers:
    """The actor's process group: weights are one number, the log-prob of every token."""

    def __init__(self, queue: Queue) -> None:
        self.queue, self.weights, self.saved = queue, 0.0, dict[int, float]()

    def save_model_to_cpu(self, n: int) -> None:
        self.saved[n] = self.weights

    def restore_model_from_cpu(self, n: int) -> None:
        self.weights = self.saved[n]

    def clear_cpu_model(self, n: int) -> None:
        del self.saved[n]

    def compute_log_prob(self, batch: Any) -> list[Any]:
        whole = torch.full((5, 9), self.weights)  # a prompt of two tokens, and the response
        self.queue.fields |= {"log_probs": nested(whole), "entropy": nested(whole)}
        return [None] * 5


@pytest.mark.parametrize(("mode", "bypass", "expected"), [
    ("sync", False, [-1.0, -2.0, -3.0]),
    ("colocate_async", False, [-1.0, -2.0, -3.0]),
    ("separate_async", False, [-1.0, -1.0, -1.0]),  # the weights of the last synchronisation
    ("separate_async", True, [-9.0, -9.0, -9.0]),
])  # fmt: skip
def test_the_trainers_of_v1(mode: str, bypass: bool, expected: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Three mini-batches after one synchronisation, with an update between each two. The sampler's log-probs are -9."""
    base = pytest.importorskip("verl.trainer.ppo.v1.trainer_base")
    from verl.trainer.ppo.v1 import trainer_colocate_async, trainer_separate_async, trainer_sync

    kinds = {
        "sync": trainer_sync.PPOTrainerSync,
        "colocate_async": trainer_colocate_async.PPOTrainerColocateAsync,
        "separate_async": trainer_separate_async.PPOTrainerSeparateAsync,
    }
    assert all(base.get_trainer_cls(name) is kind for name, kind in kinds.items())
    mask = nested(torch.ones(5, 7))
    queue = Queue(response_mask=mask, rollout_log_probs=nested(torch.full((5, 7), -9.0)))
    monkeypatch.setattr(base, "tq", queue)
    trainer, workers = object.__new__(kinds[mode]), Workers(queue)
    trainer.config = compose([
        *EXAMPLE, f"algorithm.rollout_correction.bypass_mode={bypass}", f"trainer.v1.trainer_mode={mode}",
        "actor_rollout_ref.rollout.calculate_log_probs=false",
    ])  # fmt: skip
    trainer.actor_rollout_wg = workers
    found = []
    for step in range(3):
        workers.weights, trainer.local_trigger_step = -1.0 - step, step
        trainer._compute_old_log_prob(_Keys(), {})
        found.append(float(queue.fields["old_log_probs"].values().unique()))
    assert found == expected


class _Keys:
    """verl's `KVBatchMeta`."""

    keys: ClassVar[list[str]] = []
    partition_id = "train"

    def __init__(self) -> None:
        self.extra_info: dict[str, Any] = {}

    def __len__(self) -> int:
        return 5
