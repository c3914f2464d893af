"""What each patch of a model of transformers gains on this CPU (`holdfast.model.passes` lists them).

    python benchmarks/patches.py
    python benchmarks/patches.py --layers 6 --rounds 6

An update is the forward and backward pass of six rollouts of one question; a step decodes one token for 24 rollouts.
The model has the widths of SmolLM2-135M and fewer layers. `last layer` is of an update of the quickstart's model, since
larger ones share tokens instead. Each round runs both arms on one thread, in alternating order. Shown is the median
over rounds of the CPU seconds without the patch over those with it, and a 95 % interval from order statistics. A patch
that is not used on this CPU is left out. Needs no network. Takes a minute on a free core.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest import mock

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from holdfast.agent.batch import TokenBatch
from holdfast.model.passes import logprobs
from holdfast.model.passes.casting import CastWeights
from holdfast.model.passes.onednn import OneDNNLinear, mkl_is_slow, multiplies_bf16
from measuring import median_interval, table, write_json
from penalty_cost import SHAPES, model_of, rollouts

SHARED, OWN = 60, (90, 120, 150, 200, 140, 110)
"""Tokens of the prompt, and of what follows it in each rollout."""
DECODED = 24

Patch = Callable[[], AbstractContextManager[object]]


def smollm2(layers: int) -> Any:
    """A model of its widths with random weights."""
    torch.manual_seed(0)
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3}
    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=layers,
        tie_word_embeddings=True,
        **heads,
    )
    return LlamaForCausalLM(config).eval()


def group() -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [6, T] of rollouts that share their prompt, and the mask of what was sampled: half of the rest."""
    ids, mask = torch.randint(5, 8000, (len(OWN), SHARED + max(OWN))), torch.zeros(len(OWN), SHARED + max(OWN)).bool()
    ids[:, :SHARED] = ids[0, :SHARED]
    for row, own in enumerate(OWN):
        mask[row, SHARED : SHARED + own : 2] = True
    return ids, mask


def update(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> None:
    logprobs.token_logprobs(model, ids, mask).logprobs.sum().backward()
    model.zero_grad()


@torch.inference_mode()
def decode(model: Any, dtype: torch.dtype | None) -> None:
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        model(input_ids=torch.zeros(DECODED, 1, dtype=torch.long), use_cache=False)


def gains(work: Callable[[], None], without: Patch, patched: Patch, rounds: int) -> list[float]:
    """CPU seconds without the patch over those with it, of each round."""

    def seconds(arm: Patch) -> float:
        with arm():
            start = time.process_time()
            work()
            return time.process_time() - start

    seconds(without), seconds(patched)  # warms up
    ratios = []
    for n in range(rounds):
        taken = {arm: seconds(arm) for arm in ((without, patched), (patched, without))[n % 2]}
        ratios.append(taken[without] / taken[patched])
    return ratios


def by(kind: type[torch.nn.Linear], model: Any) -> AbstractContextManager[object]:
    """All linear layers are of this class from now on."""
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.__class__ = kind
    return nullcontext()


@contextmanager
def project_all(model: Any, positions: torch.Tensor) -> Iterator[None]:
    """In place of `project_only`: the output layer sees all tokens of a packed sequence."""
    hook = model.get_output_embeddings().register_forward_hook(lambda _, __, logits: logits[:, positions])
    try:
        yield
    finally:
        hook.remove()


def measured(layers: int, rounds: int) -> dict[str, list[float]]:
    """Patch -> its gain in each round."""
    model, ratios = smollm2(layers), {}
    work = partial(update, model, *group())
    if mkl_is_slow():
        by_mkl, by_onednn = partial(by, torch.nn.Linear, model), partial(by, OneDNNLinear, model)
        ratios["oneDNN, in an update"] = gains(work, by_mkl, by_onednn, rounds)
    padded = partial(mock.patch.object, logprobs, "pack_where_worth", return_value=None)
    ratios["shared tokens once, in an update"] = gains(work, padded, nullcontext, rounds)
    everywhere = partial(mock.patch.object, logprobs, "project_only", project_all)
    ratios["logits where they are read, in an update"] = gains(work, everywhere, nullcontext, rounds)
    by(OneDNNLinear, model)
    for name, dtype in (("float32", None), ("bf16", torch.bfloat16)):
        if multiplies_bf16() if dtype else mkl_is_slow():
            ready = CastWeights(model, dtype).in_place
            ratios[f"weights made ready, in a step in {name}"] = gains(
                partial(decode, model, dtype), nullcontext, ready, rounds
            )
    tiny = model_of(SHAPES["quickstart"], seed=0)
    whole = partial(mock.patch.object, logprobs, "last_layer_where", return_value=nullcontext())
    for observation in (66, 500):
        with mock.patch("penalty_cost.OBSERVATION", observation):
            groups = rollouts(SHAPES["quickstart"], random.Random(0))[:4]
        batch = TokenBatch.from_trajectories(groups, pad_token_id=0)
        work = partial(update, tiny, batch.token_ids, batch.loss_mask)
        name = f"last layer where it is read, observations of {observation} tokens"
        ratios[name] = gains(work, whole, nullcontext, rounds)
    return ratios


def rows_of(ratios: dict[str, list[float]]) -> Sequence[Sequence[str]]:
    shown = {name: median_interval(values) for name, values in ratios.items()}
    return [(name, f"{middle:.2f} ×", f"{low:.2f} to {high:.2f}") for name, (middle, low, high) in shown.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", metavar="PATH")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ratios = measured(options.layers, options.rounds)
    print(table(["patch", "gain", "95 % interval"], rows_of(ratios)))
    write_json(options.json, ratios)


if __name__ == "__main__":
    main()
