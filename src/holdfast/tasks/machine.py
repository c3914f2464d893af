"""PyTorch as a recipe wants it on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from holdfast.model.language_model import LanguageModel
    from holdfast.recipe import Config


def set_up_torch(config: Config) -> torch.device:
    """Set the number of threads, and the seed of PyTorch's own generator, which draws fresh LoRA weights. Returns the
    device of the recipe; raises `ConfigError` where it is absent."""
    import torch

    from holdfast.model.language_model import pick_device

    device = pick_device(config.run.device)
    if threads := config.run.threads or int(config.model.is_tiny):
        torch.set_num_threads(threads)
    torch.manual_seed(config.run.seed)
    return device


def choose_threads(language_model: LanguageModel, config: Config) -> str | None:
    """Let PyTorch use the number that is fastest, if the recipe leaves it open. Returns what was measured, as one line.

    Tiny models need one, and on a GPU the number hardly matters; None for both.
    """
    import torch

    from holdfast.model.threads import fastest_threads

    if config.run.threads or config.model.is_tiny or language_model.device.type != "cpu":
        return None
    tried = ", ".join(f"{threads}: {took:.2g} s" for threads, took in fastest_threads(language_model).items())
    return (
        f"CPU threads: {torch.get_num_threads()}, the fastest in a short trial ({tried}). To set another number: "
        "run.threads"
    )
