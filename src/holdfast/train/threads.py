"""How PyTorch is set up for a run: its CPU threads, and its generator."""

from __future__ import annotations

from pathlib import Path

import torch

from holdfast.model.language_model import pick_device
from holdfast.recipe import Config

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def set_up_torch(config: Config) -> None:
    """Threads of a run, and the seed of PyTorch's own generator, which draws fresh LoRA weights.

    Raises `ConfigError` for a device that is absent, before anything takes long.
    """
    pick_device(config.run.device)
    default = 1 if config.model.path == "tiny" else min(torch.get_num_threads(), _container_cores())
    torch.set_num_threads(config.run.threads or default)
    torch.manual_seed(config.run.seed)


def _container_cores() -> int:
    """The cores that the container of this process may use, of which PyTorch knows nothing."""
    try:
        quota, period = map(int, _QUOTA.read_text().split())
    except (OSError, ValueError):  # no container, or one that may use "max"
        return torch.get_num_threads()
    return max(quota // period, 1)
