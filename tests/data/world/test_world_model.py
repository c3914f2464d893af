"""The tokenizer and the model made on the spot."""

from __future__ import annotations

import random
import re
import unicodedata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from holdfast.agent.protocol import CLEAN
from holdfast.data.world.facts import ATTRIBUTES, INTERCHANGEABLE, RELATIONS, World
from holdfast.data.world.model import build_model, build_tokenizer
from holdfast.model.tokens import decode, encode

RANGES = ((0x20, 0x7F), (0xA0, 0x24F), (0x370, 0x5FF), (0x3040, 0x30FF), (0x4E00, 0x4FFF), (0x1F300, 0x1F64F))


def test_any_text_survives(kit: SimpleNamespace) -> None:
    """Up to the composed form (NFC), which Qwen2's tokenizers give too."""
    rng = random.Random(0)
    texts = ["", " ", "\n\n \t", "e\u0301 u\u0308", "<|pad|", "a" * 300, "</search></search>", "\u202eabc\u0000\r\n"]
    texts += ["".join(chr(rng.randrange(*rng.choice(RANGES))) for _ in range(rng.randint(1, 40))) for _ in range(300)]
    for text in texts:
        assert decode(kit.tokenizer, encode(kit.tokenizer, text)) == unicodedata.normalize("NFC", text)


def test_tags_are_ordinary_text(kit: SimpleNamespace) -> None:
    tags = (*CLEAN.search_tags, *CLEAN.answer_tags, *CLEAN.information_tags, CLEAN.think_open, CLEAN.think_close)
    for tag in tags:
        ids = encode(kit.tokenizer, tag)
        assert len(ids) > 1
        assert not set(ids) & set(kit.tokenizer.all_special_ids)


@pytest.mark.parametrize("closing", ["</think>\n", "</search>\n\n", "</answer>\n", "</information>\n\n"])
def test_a_closing_bracket_merges_with_the_newline(kit: SimpleNamespace, closing: str) -> None:
    """Real tokenizers do it, so masks and stops must cope with it here already."""
    ids = encode(kit.tokenizer, f" x {closing}")
    spanning = [decode(kit.tokenizer, [i]) for i in ids]
    if closing in ("</think>\n", "</search>\n\n"):  # what scripts write
        assert re.fullmatch(r">\n+", spanning[-1])
    assert "".join(spanning) == f" x {closing}"


def test_a_name_is_one_token(kit: SimpleNamespace, world: World) -> None:
    words = [*world.names, *kit.filler.words, *(name for pair in RELATIONS + ATTRIBUTES for name in pair)]
    words += [word for pool in INTERCHANGEABLE for word in pool]
    several = [word for word in words if len(encode(kit.tokenizer, f" {word}")) != 1]
    assert several == []
    assert encode(kit.tokenizer, " Mira Zq") != encode(kit.tokenizer, " Zq Mira")


def test_what_is_saved_is_what_is_loaded(kit: SimpleNamespace, tmp_path: Path) -> None:
    """By the Auto classes, which take a Qwen2 model's tokenizer for Qwen2's own and once added a token to it."""
    model = build_model(kit.tokenizer, hidden=16, layers=2, heads=2)
    model.save_pretrained(tmp_path)
    kit.tokenizer.save_pretrained(tmp_path)
    loaded, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert type(loaded).__name__ == "Qwen2ForCausalLM" and loaded.config.model_type == "qwen2"
    assert tokenizer.get_vocab() == kit.tokenizer.get_vocab()
    assert len(tokenizer) == loaded.get_input_embeddings().num_embeddings
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (loaded.config.eos_token_id, loaded.config.pad_token_id)
    texts = [said + heard for episode in kit.episodes[:20] for said, heard in episode.turns]
    for text in [*texts, "e\u0301 <|endoftext|> <|im_end|> ſ\r\n"]:
        assert encode(tokenizer, text) == encode(kit.tokenizer, text)
    ids = torch.tensor([encode(kit.tokenizer, texts[0])])
    torch.testing.assert_close(loaded(ids).logits, model.eval()(ids).logits)


def test_weights_come_from_the_seed_alone(kit: SimpleNamespace) -> None:
    state = torch.get_rng_state()
    one, again, other = (build_model(kit.tokenizer, seed=s, hidden=16, layers=1, heads=2) for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), again.parameters(), strict=True))
    assert not torch.equal(one.get_input_embeddings().weight, other.get_input_embeddings().weight)
    assert one.get_input_embeddings().weight is one.get_output_embeddings().weight


def test_the_vocabulary_ends_with_the_words() -> None:
    tokenizer = build_tokenizer(["so it is so"] * 3, ("Kelan", "Orso"))
    assert [len(encode(tokenizer, word)) for word in (" Kelan", " Orso", " is")] == [1, 1, 1]
    assert len(encode(tokenizer, " Korso")) > 1
    assert len(tokenizer) < 300
