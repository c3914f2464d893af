"""Supervised start: what is learned from, in which disguise, and that nothing else is."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from holdfast.agent.protocol import CLEAN
from holdfast.base.errors import ModelError
from holdfast.base.jsonl import Skipped
from holdfast.model.language_model import LanguageModel
from holdfast.model.passes.logprobs import token_logprobs
from holdfast.model.text.tokens import encode
from holdfast.recipe.sections import WarmStart
from holdfast.retrieval.types import Document, Hit
from holdfast.tasks.demonstrations import read_demonstrations
from holdfast.train.warm_start import (
    Demonstration,
    augment_by_renaming,
    batches,
    encode_demonstration,
    learning_rate,
    pad,
    warm_start,
)

TURNS = [("<search> lake </search>", "\n\n<information>Mora\n</information>\n\n"), ("<answer> Mora </answer>", "")]


def episodes(count: int = 12, seed: int = 0) -> list[Demonstration]:
    """Random ids in the shape of two turns around an observation, of different lengths."""
    rng = np.random.default_rng(seed)
    made = []
    for k in range(count):
        said, heard = 2 + k % 3, 1 + k % 4
        mask = (False,) * 3 + (True,) * said + (False,) * heard + (True,) * 2
        made.append(Demonstration(tuple(rng.integers(2, 280, len(mask)).tolist()), mask))
    return made


def settings(**changes: Any) -> WarmStart:
    return WarmStart(**({"steps": 4, "batch_size": 6, "lr": 1e-2} | changes))


def train(
    model: Any, rows: list[Demonstration], micro_batch_tokens: int = 4096, **changes: Any
) -> list[dict[str, float]]:
    policy = LanguageModel(model=model, tokenizer=SimpleNamespace(pad_token_id=0, eos_token_id=0))
    return list(warm_start(policy, rows, settings(**changes), micro_batch_tokens=micro_batch_tokens))


def weights(model: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


# ---- encoding


def test_what_the_agent_says_is_learned_and_nothing_else(tokenizer: PreTrainedTokenizerFast) -> None:
    prompt = [5, 6, 7]
    episode = encode_demonstration(prompt, TURNS, CLEAN, tokenizer)
    learned = [i for i, said in zip(episode.token_ids, episode.loss_mask, strict=True) if said]
    assert learned == [*encode(tokenizer, TURNS[0][0]), *encode(tokenizer, TURNS[1][0])]
    assert list(episode.token_ids[:3]) == prompt and not any(episode.loss_mask[:3])


# ---- disguises


def test_a_disguise_renames_and_keeps_the_story() -> None:
    episode = Demonstration((1, 10, 11, 12, 10, 2), (False, True, True, False, True, True))
    pools = [(10, 11, 12, 13), (20, 21)]
    made = augment_by_renaming([episode], pools, 50, seed=4)
    assert len(made) == 50
    for one in made:
        ids = list(one.token_ids)
        assert one.loss_mask == episode.loss_mask
        assert ids[0] == 1 and ids[5] == 2  # of no pool
        assert ids[1] == ids[4] and len({ids[1], ids[2], ids[3]}) == 3  # who was one stays one, who was two stays two
        assert set(ids[1:5]) <= set(pools[0])
    assert len({tuple(one.token_ids) for one in made}) > 10
    again = augment_by_renaming([episode], pools, 50, seed=4)
    assert [list(m.token_ids) for m in made] == [list(m.token_ids) for m in again]


# ---- learning


def test_it_learns_from_the_mean_over_what_is_said(make_model: Callable[..., Any]) -> None:
    model, rows = make_model(), episodes(5)
    with torch.no_grad():
        one_by_one = [token_logprobs(model, *pad([row], 0, torch.device("cpu")))[0].sum() for row in rows]
    expected = -float(sum(one_by_one)) / sum(sum(row.loss_mask) for row in rows)
    told = train(model, rows, steps=30, batch_size=5)
    assert told[0]["loss"] == pytest.approx(expected, rel=1e-5) and told[-1]["loss"] < 0.3 * told[0]["loss"]
    assert [row["step"] for row in told] == [*range(1, 31)]


def test_micro_batches_do_not_matter(make_model: Callable[..., Any]) -> None:
    """In float64: Adam makes whole steps of float32 gradients that are 0 but for rounding."""
    ends = []
    for budget in (4096, 24, 1):
        model = make_model().double()
        losses = [row["loss"] for row in train(model, episodes(), micro_batch_tokens=budget)]
        ends.append((losses, torch.cat([w.flatten() for w in weights(model)])))
    for losses, end in ends[1:]:
        assert losses == pytest.approx(ends[0][0], rel=1e-6)  # logged in float32
        torch.testing.assert_close(end, ends[0][1], atol=1e-9, rtol=0)


def test_one_that_is_stopped_leaves_the_model_in_eval_mode(make_model: Callable[..., Any]) -> None:
    model = make_model()
    tokenizer = SimpleNamespace(pad_token_id=0, eos_token_id=0)
    policy = LanguageModel(model=model, tokenizer=tokenizer, gradient_checkpointing=True)
    rows = warm_start(policy, episodes(), settings(), micro_batch_tokens=4096)
    next(rows)
    assert model.training
    rows.close()  # type: ignore[attr-defined]
    assert not model.training


@pytest.mark.parametrize("order", ["mixed", "by-length"])
def test_batches_mix_rollouts_of_different_length_unless_they_are_to_be_alike(order: str) -> None:
    """Half of the demonstrations search once, half twice: a batch of one kind pushes the policy to that habit."""
    rows = [Demonstration(range(length), (True,) * length) for length in [10] * 64 + [20] * 64]
    drawn = list(itertools.islice(batches(rows, settings(batch_size=8, batches=order)), 16))
    assert sorted(len(row.token_ids) for batch in drawn for row in batch) == [10] * 64 + [20] * 64
    pure = sum(len({len(row.token_ids) for row in batch}) == 1 for batch in drawn)
    assert pure == (16 if order == "by-length" else 0)


def test_gradients_that_are_never_finite_are_an_error_and_touch_nothing(make_model: Callable[..., Any]) -> None:
    model = make_model()
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    before = copy.deepcopy(weights(model))
    with pytest.raises(ModelError, match=r"step 10: ten gradients in a row are not finite.*warm_start\.lr"):
        train(model, episodes(), steps=20)
    after = weights(model)
    assert all(torch.equal(a, b) or bool(a.isnan().all()) for a, b in zip(before, after, strict=True))


def test_the_learning_rate_rises_then_falls_to_a_tenth() -> None:
    rates = [learning_rate(step, 100, 2.0) for step in range(100)]
    assert rates[:5] == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0])  # a twentieth of the steps
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[-1] == pytest.approx(0.2, abs=0.01)
    assert learning_rate(0, 1, 3.0) == 3.0


# ---- files


FOUND = "\n\n<information>Doc 1(Title: Mora) A town.</information>\n\n"
NOTE = f"\n\n{CLEAN.invalid_note}\n\n"


@pytest.mark.parametrize(
    "passages", [["Mora\nA town."], [{"id": "7", "contents": "Mora\nA town."}], FOUND.strip(), FOUND]
)
def test_passages_are_written_as_a_rollout_hears_them(
    tmp_path: Path, write_rows: Callable[..., str], tokenizer: PreTrainedTokenizerFast, passages: Any
) -> None:
    turns = [{"text": "<search> lake </search>", "observation": passages}, {"text": "<answer> Mora </answer>"}]
    ((_, read),) = read_demonstrations(
        Path(write_rows(tmp_path / "e.jsonl", [{"question": "?", "turns": turns}])), CLEAN
    )
    heard = CLEAN.observe([Hit(Document("7", "Mora\nA town."), 1.0)], tokenizer)
    asked, answered = encode(tokenizer, turns[0]["text"]), encode(tokenizer, turns[1]["text"])
    episode = encode_demonstration([5], read, CLEAN, tokenizer)
    assert list(episode.token_ids) == [5, *asked, *heard.token_ids, *answered]


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"turns": [{"text": "a"}]}, "question"),
        ({"question": "?"}, "turns"),
        ({"question": "?", "turns": ["hello"]}, "turns[0]"),
        ({"question": "?", "turns": [{"text": ""}]}, "turns[0].text"),
        ({"question": "?", "turns": [{"text": "a", "observation": 3}]}, "turns[0].observation"),
        ({"question": "?", "turns": [{"text": "a"}]}, "turns"),
        ({"question": "?", "turns": [{"text": "<query> a </query>", "observation": FOUND}]}, "turns[0].text"),
        ({"question": "?", "turns": [{"text": TURNS[0][0], "observation": "A town."}]}, "turns[0].observation"),
        ({"question": "?", "turns": [{"text": TURNS[0][0]}, {"text": TURNS[1][0]}]}, "turns[0].observation"),
        ({"question": "?", "turns": [{"text": TURNS[0][0], "observation": [{}]}]}, "turns[0].observation[0]"),
    ],
)
def test_a_bad_episode_is_skipped_and_said(
    tmp_path: Path, write_rows: Callable[..., str], row: Any, field: str
) -> None:
    good = {"question": "?", "turns": [{"text": "hm", "observation": NOTE}, {"text": TURNS[0][0]}]}
    path = write_rows(tmp_path / "e.jsonl", [good, row])
    skipped: list[Skipped] = []
    read = read_demonstrations(Path(path), CLEAN, on_skip=skipped.append)
    assert read == [("?", [("hm", NOTE), (TURNS[0][0], "")])]
    assert f"e.jsonl:2: {field}: " in str(skipped[0])
