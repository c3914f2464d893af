"""PyTorch as a recipe wants it on this machine.

More threads than free cores cost a multiple: each pass waits for the thread that another program holds up. The number
of free cores is not known in advance, so it is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

from holdfast.model.language_model import LanguageModel, pick_device
from holdfast.recipe import Config

_GAIN = 1.15  # speed-up that twice the threads must give; less is not worth a core
_TOKENS = 64  # a model of 1B parameters reads them in about two seconds
_ENOUGH_S = 0.3


def set_up_torch(config: Config) -> torch.device:
    """Set the number of threads, and the seed of PyTorch's own generator, which draws fresh LoRA weights. Returns the
    device of the recipe; raises `ConfigError` where it is absent."""
    device = pick_device(config.run.device)
    if threads := config.run.threads or int(config.model.is_tiny):
        torch.set_num_threads(threads)
    torch.manual_seed(config.run.seed)
    return device


def choose_threads(language_model: LanguageModel, config: Config) -> str | None:
    """Let PyTorch use the number that is fastest, if the recipe leaves it open. Returns what was measured, as one line.

    Tiny models need one, and on a GPU the number hardly matters; None for both.
    """
    if config.run.threads or config.model.is_tiny or language_model.device.type != "cpu":
        return None
    tried = ", ".join(f"{threads}: {took:.2g} s" for threads, took in fastest_threads(language_model).items())
    return (
        f"CPU threads: {torch.get_num_threads()}, the fastest in a short trial ({tried}). To set another number: "
        "run.threads"
    )


def fastest_threads(language_model: LanguageModel) -> dict[int, float]:
    """Median seconds of a short pass with 1, 2, 4 … threads, up to the first number that helps little, or to PyTorch's
    choice. PyTorch is left with the best number."""
    available = torch.get_num_threads()
    ids = torch.arange(_TOKENS, device=language_model.device).unsqueeze(0) % len(language_model.tokenizer)

    @torch.inference_mode()
    def one_pass() -> None:
        language_model.model(input_ids=ids, use_cache=False)

    seconds: dict[int, float] = {}
    threads = best = 1
    while threads <= available:
        torch.set_num_threads(threads)
        seconds[threads] = _median_seconds(one_pass)
        if seconds[threads] * _GAIN > seconds[best] and threads > 1:
            break
        best = threads
        # PyTorch's choice may be no power of two.
        threads = available if threads < available < 2 * threads else 2 * threads
    torch.set_num_threads(best)
    return seconds


def _median_seconds(one_pass: Callable[[], None]) -> float:
    """Of passes that take 0.3 s together; one at least, after one that is thrown away."""
    one_pass()
    seconds: list[float] = []
    while sum(seconds) < _ENOUGH_S:
        started = time.perf_counter()
        one_pass()
        seconds.append(time.perf_counter() - started)
    return median(seconds)
