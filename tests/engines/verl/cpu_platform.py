"""A CPU for verl 0.9 and vLLM's CPU build. verl imports this module in every process, when it is itself imported:

    VERL_USE_EXTERNAL_MODULES=cpu_platform VERL_PLATFORM=cpu PYTHONPATH=<this folder>

Documented hooks of verl: that variable, `PlatformRegistry`, `EngineRegistry`. Not documented: `one_backend` and
`loadable_weights`.

If `VERL_CPU_BATCHES` names a folder, every forward pass writes there which tokens it saw and which the loss counts.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


class _Device(ModuleType):
    """`torch.cpu`; functions of `torch.cuda` that it lacks answer 0."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(torch.cpu, name, lambda *_, **__: 0)


_DEVICE = _Device("torch.cpu for verl")
_DEVICE.is_available = lambda: True
_DEVICE.current_device = lambda: "cpu"
_DEVICE.set_device = lambda *_: None
_DEVICE.mem_get_info = lambda *_: (8 << 30, 16 << 30)
_DEVICE.get_device_name = lambda *_: "cpu"
_DEVICE.get_rng_state = lambda *_: torch.get_rng_state()
_DEVICE.set_rng_state = lambda state, *_: torch.set_rng_state(state)


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """The CPU as the one device of its machine. Ray counts it as a GPU: `ray_kwargs.ray_init.num_gpus` gives it one."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _DEVICE

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def _nothing(self, *_: Any, **__: Any) -> None:
        """What only a device of its own would need."""

    set_device = synchronize = empty_cache = set_allocator_settings = _nothing
    profiler_start = profiler_stop = cudart = _nothing

    def nvtx_range(self, msg: str) -> Any:
        return nullcontext()

    def communication_backend_name(self) -> str:
        return "gloo"

    def ray_resource_name(self) -> str:
        return "GPU"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        """Weights go to vLLM through shared memory."""
        return False


def register_engine() -> None:
    """FSDP of verl on a CPU, and a record of what the loss counts."""
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    @EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device=["cpu"])
    class Engine(FSDPEngineWithLMHead):
        def forward_step(self, micro_batch: Any, loss_function: Any, forward_only: bool) -> Any:
            if (folder := os.environ.get("VERL_CPU_BATCHES")) and not forward_only:
                _record(Path(folder), micro_batch)
            return super().forward_step(micro_batch, loss_function=loss_function, forward_only=forward_only)


def _record(folder: Path, micro_batch: Any) -> None:
    """A line of JSON per rollout: token ids of the prompt and of the response, the mask of the response, and what the
    agent loop says of the response."""
    fields = [micro_batch[name].unbind() for name in ("prompts", "responses", "response_mask", "advantages")]
    said = micro_batch.get("extra_fields").tolist()  # [] may make a list of it already
    with (folder / f"{os.getpid()}.jsonl").open("a") as file:
        for prompt, response, mask, advantages, extra in zip(*fields, said, strict=True):
            row = {"prompt": prompt.tolist(), "response": response.tolist(), "mask": mask.tolist()}
            row |= {"action_ids": extra["action_ids"], "answer_span": extra["answer_span"]}
            file.write(json.dumps({**row, "advantage": float(advantages.max())}) + "\n")


def one_backend() -> None:
    """verl asks for `cpu:gloo,DEVICE:BACKEND`, which torch refuses where DEVICE is cpu too."""
    from verl.utils import distributed

    distributed.initialize_global_process_group_ray.__defaults__ = (None, "cpu:gloo")


def loadable_weights() -> None:
    """In vLLM's worker, linear layers keep their weights. Packed for oneDNN there would be nothing to load into, and
    verl would wait for the worker for ever."""
    if "vllm" in sys.modules:
        import vllm._custom_ops

        vllm._custom_ops._supports_onednn = False


register_engine()
one_backend()
loadable_weights()
