"""What becomes of a model in a folder: weights in fp32 without dropout, its own tokenizer, a reference that stays."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from holdfast.model.language_model import load_model
from holdfast.recipe import Config, Model
from holdfast.train.learner import Reference

from .whole_runs import a_start

CPU = torch.device("cpu")

# ---- the weights


def test_a_weight_begins_where_torch_would_begin_it(home: Path, tmp_path: Path) -> None:
    """On a CPU the address decides how sums are rounded, and in a file it depends on the length of the header."""
    shutil.copytree(home / "raw", tmp_path / "raw")
    weights = load_file(tmp_path / "raw" / "model.safetensors")
    begins = []
    for longer in (0, 8, 24):
        metadata = {"format": "pt", "note": "x" * longer}
        save_file(weights, tmp_path / "raw" / "model.safetensors", metadata=metadata)
        mapped = AutoModelForCausalLM.from_pretrained(tmp_path / "raw")
        loaded = load_model(Model(path="x"), tmp_path / "raw", CPU).model
        begins += [weight.data_ptr() % 64 for weight in mapped.parameters()]
        assert not any(weight.data_ptr() % 64 for weight in loaded.parameters())
        assert all(torch.equal(a, b) for a, b in zip(mapped.parameters(), loaded.parameters(), strict=True))
    assert any(begins)


# ---- the reference


@pytest.mark.parametrize("rank", [0, 4])
def test_the_reference_stays_where_the_policy_started(home: Path, rank: int) -> None:
    made = load_model(Model(path="x", lora_rank=rank), home / "raw", CPU)
    ids = torch.arange(2, 14)[None]
    mask = torch.ones_like(ids, dtype=torch.bool)
    reference = Reference(made)

    def policy() -> torch.Tensor:
        return made.logprobs(ids, mask, temperature=0.7)[0]

    with torch.no_grad():
        start = policy()
        for p in made.model.parameters():
            if p.requires_grad:
                p.add_(0.05)
        moved = policy()
        kept = reference.logprobs(ids, mask, temperature=0.7)
        again = policy()
        if rank:
            with made.model.disable_adapter():
                off = policy()
            torch.testing.assert_close(kept, off, atol=1e-6, rtol=1e-6)
    assert torch.equal(kept, start) and not torch.allclose(moved, start, atol=1e-2)
    assert torch.equal(again, moved)  # and the policy is itself again afterwards


def test_the_reference_of_warm_started_adapters_is_the_warm_started_policy(
    own: Callable[..., Config], lesson: dict[str, Any]
) -> None:
    """Switching the adapters off would compare with a model that cannot even answer."""
    config = own("raw", lesson | {"model.lora_rank": 4})
    a_start(config)
    made = a_start(config)  # from the cache
    ids = torch.arange(2, 14)[None]
    mask = torch.ones_like(ids, dtype=torch.bool)
    with torch.no_grad():
        kept = Reference(made).logprobs(ids, mask)
        assert torch.equal(kept, made.logprobs(ids, mask)[0])
        with made.model.disable_adapter():
            assert not torch.allclose(made.logprobs(ids, mask)[0], kept, atol=1e-2)


def test_padding_is_an_id_that_the_model_embeds(home: Path) -> None:
    made = load_model(Model(path="x"), home / "raw", CPU)
    rows = made.model.get_input_embeddings().weight.shape[0]
    made.tokenizer.add_tokens([f"<more {i}>" for i in range(rows)])
    made.tokenizer.pad_token = f"<more {rows - 1}>"
    assert made.tokenizer.pad_token_id >= rows and made.pad_token_id == made.tokenizer.eos_token_id


# ---- precision and dropout


def test_weights_are_fp32_and_dropout_is_off(tmp_path: Path, make_model: Callable[..., Any], home: Path) -> None:
    shutil.copytree(home / "raw", tmp_path / "half")
    make_model(attention_dropout=0.5).to(torch.bfloat16).save_pretrained(tmp_path / "half")
    made = load_model(Model(path="x"), tmp_path / "half", CPU)
    assert {p.dtype for p in made.model.parameters()} == {torch.float32} and made.autocast_dtype is None
    ids = torch.arange(2, 14)[None]
    made.model.train()
    with torch.no_grad():
        assert torch.equal(made.model(ids).logits, made.model(ids).logits)
    assert load_model(Model(path="x", autocast="bf16"), tmp_path / "half", CPU).autocast_dtype is torch.bfloat16


def test_dropout_that_is_a_number_of_the_layer_is_off_too(
    tmp_path: Path, make_model: Callable[..., Any], tokenizer: PreTrainedTokenizerFast
) -> None:
    opt = make_model("OPT", word_embed_proj_dim=32, ffn_dim=48, dropout=0.5, init_std=0.2)
    opt.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    made = load_model(Model(path="x"), tmp_path, CPU)
    made.model.train()
    ids = torch.arange(2, 14)[None]
    with torch.no_grad():
        assert torch.equal(made.model(ids).logits, made.model(ids).logits)


def test_the_tokenizer_is_the_one_that_was_saved(home: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """`AutoTokenizer` reads a Qwen2 folder by Qwen2's own rules, whatever the folder says."""
    made = load_model(Model(path="x"), home / "raw", CPU)
    assert json.loads(made.tokenizer.backend_tokenizer.to_str()) == json.loads(tokenizer.backend_tokenizer.to_str())
