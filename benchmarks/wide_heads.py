"""A tiny Qwen2 with the same function and heads twice as wide, for engines that have no narrow ones.

    python benchmarks/wide_heads.py START OUT

vLLM's attention on a CPU takes heads of 32 dimensions and more; the recipes' models have 16. Every pair of dimensions
that a rotary embedding turns together goes to where the wide head has its frequency, and the others are zero. Queries
grow by √2, because scores are divided by the root of the width. The zeros have no gradient, so that they stay zero in
training. What differs is the relative size of Adam's steps on query weights, by 1/√2. The class is SeedOss, which is
Qwen2 with a free choice of the head's width, in transformers and in vLLM.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def widened(weight: Tensor, heads: int, *, dim: int = 0) -> Tensor:
    """The weight with every head's dimensions spread over twice as many, along `dim`."""
    weight = weight.movedim(dim, 0)
    narrow = weight.shape[0] // heads
    half = torch.arange(narrow // 2)
    places = torch.cat([2 * half, 2 * half + narrow])  # i and i + narrow/2 turn together; so do these two
    wide = weight.new_zeros(heads, 2 * narrow, *weight.shape[1:])
    wide[:, places] = weight.view(heads, narrow, *weight.shape[1:])
    return wide.flatten(0, 1).movedim(0, dim).contiguous()


def widen(model: Any) -> Any:
    """A SeedOss with the function of a Qwen2 whose key heads are as many as its query heads."""
    from transformers import SeedOssConfig, SeedOssForCausalLM

    old = model.config
    heads = old.num_attention_heads
    assert old.num_key_value_heads == heads
    same = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    same += ("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_parameters")
    same += ("tie_word_embeddings", "pad_token_id", "eos_token_id", "bos_token_id", "initializer_range")
    config = SeedOssConfig(
        **{name: getattr(old, name) for name in same},
        head_dim=2 * old.hidden_size // heads,
        attention_bias=True,
        attention_out_bias=False,
        attention_dropout=0.0,
        residual_dropout=0.0,
    )
    state = dict(model.state_dict())
    for name, value in state.items():
        if any(f".{part}_proj." in name for part in "qkv"):
            state[name] = widened(value, heads) * (2**0.5 if ".q_proj." in name else 1)
        elif ".o_proj." in name:
            state[name] = widened(value, heads, dim=1)
    wide = SeedOssForCausalLM(config)
    wide.load_state_dict(state)
    wide.tie_weights()
    return wide.eval()


def main(start: Path, out: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(start).eval()
    wide = widen(model)
    tokens = torch.randint(2, model.config.vocab_size, (4, 300), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        gap = float((model(tokens).logits - wide(tokens).logits).abs().max())
    wide.save_pretrained(out)
    AutoTokenizer.from_pretrained(start).save_pretrained(out)
    print(f"{out}: heads of {wide.config.head_dim} dimensions; largest difference of logits {gap:.1e}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
