"""Facts, passages and questions: closed splits, distinct questions, answers that score, any size."""

from __future__ import annotations

import hashlib
import random
import re
import unicodedata
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from holdfast.agent.protocol import CLEAN
from holdfast.base.scoring import exact_match
from holdfast.model.text.tokens import decode, encode
from holdfast.recipe.world import World as Settings
from holdfast.tasks.world.facts import (
    ATTRIBUTES,
    INTERCHANGEABLE,
    RELATIONS,
    SPLITS,
    World,
    build_world,
    golden_answers,
)
from holdfast.tasks.world.model import build_model, interchangeable_tokens
from holdfast.train.warm_start import encode_demonstration


def digest(world: World) -> str:
    return hashlib.sha256(repr(world).encode()).hexdigest()[:16]


def test_the_default_world_is_what_it_was() -> None:
    """docs/ has numbers measured on it, and a cached warm start is found by settings, which do not know its text."""
    assert digest(build_world()) == "b7c25c4fd5b876c7"


@pytest.mark.parametrize("people", [41, 2304])
def test_any_size(people: int) -> None:
    world = build_world(Settings(people=people, train_questions=50, dev_questions=10, test_questions=20))
    for split, share in zip(SPLITS, (0.6, 0.15, 0.25), strict=True):
        persons = {fact.subject for fact in world.facts[split]}
        assert abs(len(persons) - share * people) <= 1
        assert len(world.facts[split]) == 6 * len(persons)
        assert Counter(len(q.hops) for q in world.questions[split]) == {
            1: len(world.questions[split]) / 2,
            2: len(world.questions[split]) / 2,
        }
    assert len({fact.subject for facts in world.facts.values() for fact in facts}) == people
    assert len({d.id for d in world.documents()}) == 6 * people


def test_regions_are_closed(world: World) -> None:
    """Who is in one split is named in no passage of another, so an index without the split knows nothing of it."""
    persons = {split: {fact.subject for fact in world.facts[split]} for split in SPLITS}
    for split in SPLITS:
        strangers = set().union(*(persons[other] for other in SPLITS if other != split))
        for document in world.documents(split):
            assert not any(stranger in document.contents for stranger in strangers)
        for question in world.questions[split]:
            assert {hop.fact.subject for hop in question.hops} <= persons[split]
            assert not any(stranger in question.example.question for stranger in strangers)


def test_questions_are_distinct_and_chained(world: World) -> None:
    for split in SPLITS:
        questions = world.questions[split]
        assert len({q.example.question for q in questions}) == len(questions)
        assert [q.example.index for q in questions] == list(range(len(questions)))
        for q in questions:
            facts = [hop.fact for hop in q.hops]
            assert all(hop.asked in (RELATIONS + ATTRIBUTES)[hop.fact.relation] for hop in q.hops)
            assert all(fact.written in (RELATIONS + ATTRIBUTES)[fact.relation] for fact in facts)
            assert facts[0].value == facts[-1].subject or len(facts) == 1
            assert q.example.golden_answers[0] == facts[-1].value != facts[0].subject
            assert q.example.metadata == {"hops": len(facts), "documents": [fact.doc_id for fact in facts]}


@pytest.mark.parametrize(
    ("relation", "value", "right", "wrong"),
    [
        (1, "Kelan Orso", ["Kelan Orso", "Orso, Kelan", "orso kelan"], ["Kelan", "Orso", "Kelan Mira"]),
        (4, "Velm Bay", ["Velm Bay", "the Velm"], ["Bay", "Velm Hill"]),
        (5, "amber fox", ["amber fox", "a fox in amber"], ["fox", "amber", "fox in black"]),
    ],
)
def test_aliases_score(relation: int, value: str, right: list[str], wrong: list[str]) -> None:
    golds = golden_answers(relation, value)
    assert [exact_match(answer, golds) for answer in right] == [1.0] * len(right)
    assert [exact_match(answer, golds) for answer in wrong] == [0.0] * len(wrong)


# ---- the tokenizer and the model made on the spot


RANGES = ((0x20, 0x7F), (0xA0, 0x24F), (0x370, 0x5FF), (0x3040, 0x30FF), (0x4E00, 0x4FFF), (0x1F300, 0x1F64F))


def test_any_text_survives(kit: SimpleNamespace) -> None:
    """Up to the composed form (NFC), which Qwen2's tokenizers give too."""
    rng = random.Random(0)
    texts = ["", " ", "\n\n \t", "e\u0301 u\u0308", "<|pad|", "a" * 300, "</search></search>", "\u202eabc\u0000\r\n"]
    texts += ["".join(chr(rng.randrange(*rng.choice(RANGES))) for _ in range(rng.randint(1, 40))) for _ in range(300)]
    for text in texts:
        assert decode(kit.tokenizer, encode(kit.tokenizer, text)) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("closing", ["</think>\n", "</search>\n\n"])  # what scripts write
def test_a_closing_bracket_merges_with_the_newline(kit: SimpleNamespace, closing: str) -> None:
    """Real tokenizers do it, so masks and stops must cope with it here already."""
    assert re.fullmatch(r">\n+", decode(kit.tokenizer, encode(kit.tokenizer, f" x {closing}")[-1:]))


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


def test_a_disguise_renames_every_mention(kit: SimpleNamespace, world: World) -> None:
    """A name spelled by other tokens somewhere would keep the old fact in sight."""
    gone = {i for pool in interchangeable_tokens(world, kit.tokenizer) for i in pool}
    names = re.compile("|".join(rf"\b{word}\b" for word in world.names))
    for e in kit.episodes:
        question = encode(kit.tokenizer, f"Question: {e.question.example.question}\n")
        ids = encode_demonstration(question, e.turns, CLEAN, kit.tokenizer).token_ids
        assert names.search(decode(kit.tokenizer, ids))
        assert not names.search(decode(kit.tokenizer, [i for i in ids if i not in gone]))
