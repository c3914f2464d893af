"""Control tokens out of place: states of a turn by hand, probabilities against sums over the vocabulary in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from holdfast.agent.control import ControlTokens, TurnState, control_metrics, turn_metrics, turn_state
from holdfast.agent.protocol import CLEAN, SAPO, parse_action
from holdfast.agent.trajectory import Group, Status, Trajectory, Turn
from holdfast.data.world.model import build_tokenizer
from holdfast.model.sampling import SamplingMask
from holdfast.model.tokens import decode, encode

TEXTS = ["<think> Who? </think>\n<search> lake </search>\n\n", "<answer> town </answer>\n", "<documents> lake"] * 20
TAGS = CLEAN.control_tags(None)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer(TEXTS)


def turn(text: str, tokenizer: Any = None) -> Turn:
    ids = None if tokenizer is None else tuple(encode(tokenizer, text))
    return Turn(tokens=ids, logprobs=ids and (-1.0,) * len(ids), action=parse_action(text, CLEAN), text=text)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("<think> who? </think> <search> Orsa </search>\n\n", "call"),
        ("It is <answer> Mira </answer>", "answer"),
        ("<answer> Mira </answer><search>", "answer"),  # the overhang of the last token
        ("<search> a <search> b </search>", "polluted"),
        ("</information> <search> b </search>", "polluted"),
        ("<answer> a <search> b </answer>", "polluted"),
        ("<search>  </search>", "polluted"),
        ("<search> a", "polluted"),
        ("a </answer>", "polluted"),
        ("<think> and </think> so", "collapsed"),
        ("", "collapsed"),
    ],
)
def test_states(text: str, state: str) -> None:
    assert turn_state(turn(text), TAGS) is TurnState(state)


def test_the_states_of_all_turns_sum_to_one() -> None:
    texts = ("<search> a </search>", "<search> a", "a", "<answer> a </answer>")
    good = Trajectory(example_id="q", prompt=(1,), turns=tuple(map(turn, texts)))
    failed = Trajectory(example_id="q", prompt=(1,), turns=(turn("a"),), status=Status.ERROR)
    assert turn_metrics([Group("q", (good, failed))], TAGS) == {
        f"turn/{state}_fraction": 0.25 for state in ("call", "answer", "polluted", "collapsed")
    }
    assert turn_metrics([Group("q", (failed,))], TAGS) == {}


@pytest.mark.parametrize("seed", range(5))
def test_probabilities_against_loops(tokenizer: Any, seed: int) -> None:
    end = tokenizer.eos_token_id
    texts = ("Who? <think> lake </think>\n<search> lake town </search>\n\n", "so <answer> town", "lake town")
    rollouts = [Trajectory(example_id="q", prompt=(1,), turns=(turn(text, tokenizer),)) for text in texts]
    mask = ControlTokens(TAGS, tokenizer, [end]).misplaced(rollouts)
    g = torch.Generator().manual_seed(seed)
    for text, rollout, row in zip(texts, rollouts, mask.rows, strict=True):
        tokens = rollout.turns[0].tokens or ()
        logits = torch.randn(len(tokens), len(tokenizer), generator=g, dtype=torch.float64)
        got = (SamplingMask((row,)).logsumexp(logits) - logits.logsumexp(-1)).exp()
        for place in range(len(tokens)):
            before = decode(tokenizer, tokens[:place])
            inside = any(before.count(f"<{tag}>") > before.count(f"</{tag}>") for tag in ("think", "search", "answer"))
            opening, closing = ("<search>", "<answer>", "<think>"), ("</search>", "</answer>", "</think>")
            wrong, right = (opening, closing) if inside else (closing, opening)
            wrong += ("<information>", "</information>")
            first = [{begin(tokenizer, x) for tag in tags for x in (tag, f" {tag}")} for tags in (wrong, right)]
            total = sum(math.exp(float(logits[place, v])) for v in range(len(tokenizer)))
            expected = sum(math.exp(float(logits[place, v])) for v in {*(first[0] - first[1]), end}) / total
            assert got[place].item() == pytest.approx(expected, abs=1e-6), (text, before)


def begin(tokenizer: Any, tag: str) -> int:
    """The first token that is not a space."""
    ids = encode(tokenizer, tag)
    return ids[1] if decode(tokenizer, ids[:1]) == " " else ids[0]


def test_tags_are_those_of_the_protocol(tokenizer: Any) -> None:
    first = encode(tokenizer, "<documents>")[0]
    assert first != encode(tokenizer, "<information>")[0]
    rollout = Trajectory(example_id="q", prompt=(1,), turns=(turn("lake", tokenizer),))
    with_documents, without = (
        first in ControlTokens(protocol.control_tags(tokenizer), tokenizer, [0]).misplaced([rollout]).rows[0]
        for protocol in (SAPO, CLEAN)
    )
    assert with_documents and not without


def test_mean_and_percentile() -> None:
    g = torch.Generator().manual_seed(0)
    values, mask = torch.rand(6, 50, generator=g, dtype=torch.float64), torch.rand(6, 50, generator=g) < 0.9
    kept = sorted(float(values[i, j]) for i in range(6) for j in range(50) if mask[i, j])
    found = control_metrics(values.log(), mask)
    assert found["control/misplaced_mean"] == pytest.approx(sum(kept) / len(kept), abs=1e-6)
    assert found["control/misplaced_p99"] == pytest.approx(kept[math.ceil(0.99 * len(kept)) - 1], abs=1e-6)
    assert control_metrics(values.log(), torch.zeros_like(mask)) == {}
