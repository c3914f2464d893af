"""Run by test_verl_training.py in a process of its own: verl's training worker (FSDP2) takes two passes of two
optimizer steps, two micro-batches each, on a CPU. Prints a line of JSON per loss: metrics and a digest of the weights.

verl knows no CPU, so it is given one: a platform as its plugins may register. That must happen before the rest of verl
is imported.
"""

# ruff: noqa: E402

from __future__ import annotations

import hashlib
import json
import os
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "VERL_PLATFORM": "nvidia"}

from verl.plugin.platform.platform_cuda import PlatformCUDA
from verl.plugin.platform.platform_manager import set_platform


def nothing(*_: Any) -> int:
    return 0


class Cpu(PlatformCUDA):
    device_name = "cpu"
    vendor_name = "cpu"
    device_module = SimpleNamespace(
        current_device=lambda: "cpu",
        mem_get_info=lambda *_: (1, 1),
        get_device_name=lambda *_: "cpu",
        **dict.fromkeys(
            ("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved"), nothing
        ),
    )

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return "cpu"

    def communication_backend_name(self) -> str:
        return "gloo"

    def device_count(self) -> int:
        return 1

    set_device = synchronize = manual_seed = manual_seed_all = empty_cache = nothing


set_platform(Cpu())

from tensordict import TensorDict
from verl.trainer.ppo import core_algos
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config.engine import TrainingWorkerConfig
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import no_padding_2_padding

from holdfast.adapters.verl import LOSSES, _Loss
from holdfast.adapters.verl_check import EXAMPLE, compose

EngineRegistry.register(model_type="language_model", backend=["fsdp2"], device=["cpu"])(FSDPEngineWithLMHead)

LENGTHS = [9, 12, 7, 10, 12, 8, 11, 9]
ADVANTAGES = [1.0, -1.0, 1.0, -1.0, 0.5, -0.5, 1.0, -1.0]


SPANS = {"all": [[0, n] for n in LENGTHS], "none": [None for _ in LENGTHS], "": [None for _ in LENGTHS]}
"""What the agent loop says of the answer. `LOSS:all` and `LOSS:none` give its tokens the weight 0."""


def make_worker(folder: str, loss: str, answer: str) -> TrainingWorker:
    actor_of, model_of = "actor_rollout_ref.actor", "actor_rollout_ref.model"
    weighted = [f"+{actor_of}.policy_loss.penalty_{key}" for key in ("answer=answer-span", "answer_weight=0.0")]
    config = compose(
        [
            *EXAMPLE,
            *(weighted if answer else []),
            f"{actor_of}.policy_loss.loss_mode={loss}",
            f"{actor_of}.strategy=fsdp2",
            f"{actor_of}.optim.lr=1e-3",
            f"{actor_of}.use_torch_compile=False",
            f"{actor_of}.fsdp_config.use_torch_compile=False",
            f"{actor_of}.fsdp_config.dtype=float32",
            f"{model_of}.path={folder}",
            f"{model_of}.use_remove_padding=False",
            f"{model_of}.enable_gradient_checkpointing=False",
            f"+{model_of}.override_config.attn_implementation=sdpa",
        ]
    )
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=omega_conf_to_dataclass(config.actor_rollout_ref.model),
            engine_config=actor.engine,
            optimizer_config=actor.optim,
            checkpoint_config=actor.checkpoint,
        )
    )
    worker.reset()
    worker.set_loss_fn(partial(ppo_loss, config=actor))
    return worker


def rollouts(**settings: Any) -> TensorDict:
    """Eight rollouts with two actions each."""

    def nested(rows: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(2, 200, (4,), generator=generator) for _ in LENGTHS]
    responses = [torch.randint(2, 200, (n,), generator=generator) for n in LENGTHS]
    masks = [torch.tensor([1, 1, 1, 0, 0] + [1] * (n - 5)) for n in LENGTHS]
    batch = TensorDict(
        {
            "prompts": nested(prompts),
            "responses": nested(responses),
            "input_ids": nested([torch.cat(both) for both in zip(prompts, responses, strict=True)]),
            "position_ids": nested([torch.arange(4 + n) for n in LENGTHS]),
            "response_mask": nested(masks),
            "loss_mask": nested(masks),
            "advantages": nested([a * m for a, m in zip(ADVANTAGES, masks, strict=True)]),
        },
        batch_size=[len(LENGTHS)],
    )
    sizes = {"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 2, "global_batch_size": 4}
    tu.assign_non_tensor(batch, temperature=1.0, **sizes, **settings)
    return batch


def train(folder: str, spec: str) -> dict[str, Any]:
    loss, _, answer = spec.partition(":")
    if loss in LOSSES:
        core_algos.POLICY_LOSS_REGISTRY[loss] = _Loss(loss)  # it has seen no rollouts, as in a process of its own
    worker = make_worker(folder, loss, answer)
    before = worker.infer_batch(rollouts(compute_loss=False, calculate_entropy=False))
    old = no_padding_2_padding(before["log_probs"], rollouts())
    batch = rollouts(mini_batch_size=4, epochs=2, seed=0, dataloader_kwargs={"shuffle": False})
    rows = [old[i, :n] for i, n in enumerate(LENGTHS)]
    tu.assign_non_tensor_stack(batch, "extra_fields", [{"answer_span": s, "searches": 1} for s in SPANS[answer]])
    batch["old_log_probs"] = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    metrics = tu.get(worker.train_mini_batch(batch), "metrics")
    weights = torch.cat([p.detach().full_tensor().flatten() for p in worker.engine.module.parameters()])
    series = {k: [float(x) for x in v] for k, v in metrics.items() if k.startswith(("holdfast/", "actor/"))}
    return {"loss": spec, "weights": hashlib.sha256(weights.numpy().tobytes()).hexdigest(), **series}


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/rendezvous", rank=0, world_size=1)
    for name in sys.argv[3:]:
        print("RESULT " + json.dumps(train(sys.argv[2], name)), flush=True)
