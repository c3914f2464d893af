"""Turns through TRL's vLLM helper, against a stand-in for it: one process, and two with a server.

The real one answers in `tests/engines/vllm`, which plain CI does not run.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from holdfast.adapters.trl.search import check_sharding
from holdfast.adapters.trl.vllm import VLLMPolicy
from holdfast.base.errors import ConfigError
from holdfast.model.sampler.policy import Request


class Letters:
    """Ids are characters."""

    eos_token_id = 0

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(map(chr, ids))


class Generation:
    """TRL's `VLLMGeneration` as far as it is used: answers with the prompt's last character, three times, and '.'."""

    def __init__(self, mode: str = "colocate", parallel: int = 1, sleeps: bool = False) -> None:
        self.mode, self.tensor_parallel_size, self.enable_sleep_mode = mode, parallel, sleeps
        self.max_completion_length, self.generation_kwargs = 999, {"seed": 3}
        self.calls: list[tuple[int, int, dict[str, Any]]] = []

    def generate(self, prompts: list[list[int]], images: None, num_generations: int) -> tuple[Any, ...]:
        assert num_generations == 1
        self.calls.append((len(prompts), self.max_completion_length, dict(self.generation_kwargs)))
        ids = [[p[-1]] * 3 + [ord(".")] for p in prompts]
        ids = [row[: self.max_completion_length] for row in ids]
        return prompts, ids, [[[-0.5]] * (len(row) - 1) + [[None]] for row in ids], None


def test_the_stand_in_is_like_the_real_one() -> None:
    """Same arguments of `generate`, same attributes."""
    real = pytest.importorskip("trl.generation.vllm_generation").VLLMGeneration
    assert {"prompts", "images", "num_generations"} <= set(inspect.signature(real.generate).parameters)
    made = set(inspect.signature(real.__init__).parameters)
    assert {"mode", "tensor_parallel_size", "enable_sleep_mode", "max_completion_length", "generation_kwargs"} <= made
    source = inspect.getsource(real.generate)
    assert "max_completion_length = self.max_completion_length" in source  # read at each call
    assert "self.generation_kwargs" in source


ALONE: Any = SimpleNamespace(num_processes=1, device="cpu")


def ask(name: str, text: str, tokens: int = 10) -> Request:
    return Request(id=name, token_ids=tuple(map(ord, text)), max_new_tokens=tokens, stop=("a.", "b."), seed=1)


def test_a_turn() -> None:
    generation = Generation()
    policy = VLLMPolicy(generation, ALONE, Letters(), [0])
    policy.submit([ask("1", "xa"), ask("2", "xyc", 2), ask("3", "\0", 3)])
    first, second, third = policy.poll()
    assert (first.id, first.text, first.stop_reason) == ("1", "aaa.", "stop")
    assert (second.id, second.text, second.stop_reason) == ("2", "cc", "length")  # cut to what it asked for
    assert (third.text, third.stop_reason) == ("\0\0", "eos")
    assert first.logprobs is not None and first.logprobs[:3] == (-0.5,) * 3 and first.logprobs[3] != first.logprobs[3]
    assert second.token_ids == (ord("c"),) * 2 and second.logprobs == (-0.5, -0.5)
    kwargs = {"seed": 3, "stop": ["a.", "b."], "include_stop_str_in_output": True}
    assert generation.calls == [(3, 10, kwargs)]
    assert (generation.max_completion_length, generation.generation_kwargs) == (999, {"seed": 3})  # as they were
    assert policy.poll() == []


def test_settings_are_put_back_after_a_failure() -> None:
    generation = Generation()
    generation.generate = lambda **_: 1 / 0  # type: ignore[method-assign]
    policy = VLLMPolicy(generation, ALONE, Letters(), [0])
    policy.submit([ask("1", "xa")])
    with pytest.raises(ZeroDivisionError):
        policy.poll()
    assert (generation.max_completion_length, generation.generation_kwargs) == (999, {"seed": 3})


def test_colocated_over_several_gpus_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"vllm_tensor_parallel_size=2 .* use vllm_mode='server'"):
        VLLMPolicy(Generation(parallel=2), ALONE, Letters(), [0])


class Ranks:
    """`accelerator.gather` for two processes that are threads."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2, timeout=120)
        self.values: list[Any] = [None, None]

    def of(self, rank: int) -> Any:
        def gather(value: torch.Tensor) -> torch.Tensor:
            self.values[rank] = value
            self.barrier.wait()
            both = torch.cat(self.values)
            self.barrier.wait()
            return both

        return SimpleNamespace(num_processes=2, device="cpu", gather=gather)


def play_in_two_processes(make: Callable[[], Generation]) -> list[list[int]]:
    """One has three turns to play, the other one of two requests. The sizes of the calls of each."""
    ranks, generations, results = Ranks(), [make(), make()], [[], []]
    plans = [[[ask("1", "xa")], [ask("1", "xb")], [ask("1", "xc")]], [[ask("2", "xa"), ask("3", "xb")]]]

    def play(rank: int) -> None:
        policy = VLLMPolicy(generations[rank], ranks.of(rank), Letters(), [0])
        for requests in plans[rank]:
            policy.submit(requests)
            results[rank] += [c.text for c in policy.poll()]
        policy.join()

    threads = [threading.Thread(target=play, args=(rank,), daemon=True) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
        assert not thread.is_alive()
    assert results == [["aaa.", "bbb.", "ccc."], ["aaa.", "bbb."]]
    return [[rows for rows, *_ in generation.calls] for generation in generations]


def test_two_processes_and_a_server_make_equal_calls() -> None:
    """Equal in number and size."""
    assert play_in_two_processes(lambda: Generation("server")) == [[2, 1, 1], [2, 1, 1]]


def test_two_processes_whose_vllm_sleeps_make_as_many_calls() -> None:
    """TRL gathers the weights when it wakes; what each process asks for is its own."""
    assert play_in_two_processes(lambda: Generation(sleeps=True)) == [[1, 1, 1], [2, 1, 1]]
    assert play_in_two_processes(Generation) == [[1, 1, 1], [2]]


@pytest.mark.parametrize(
    ("kind", "gathers", "processes", "says"),
    [
        ("fsdp", True, 2, "^FSDP without use_vllm: .* Set use_vllm=True, or use ZeRO-3, ZeRO-2 or DDP$"),
        ("zero3", False, 2, "ds3_gather_for_generation=False without .*, or use ds3_gather_for_generation=True$"),
        ("zero3", True, 2, None),
        ("ddp", False, 2, None),
        ("fsdp", True, 1, None),
    ],
)
def test_weights_that_stay_in_shards_are_refused(kind: str, gathers: bool, processes: int, says: str | None) -> None:
    """The forward passes of different processes would differ in number, and each needs all processes."""
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(num_processes=processes),
        args=SimpleNamespace(ds3_gather_for_generation=gathers),
        _dist=SimpleNamespace(is_fsdp=kind == "fsdp", is_zero3=kind == "zero3"),
    )
    with pytest.raises(ConfigError, match=says) if says else nullcontext():
        check_sharding(trainer)
