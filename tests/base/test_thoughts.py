"""What is thought: an exact cover of a text, whatever marks it has."""

from __future__ import annotations

import random
import re

from holdfast.agent.protocol import CLEAN, parse_action, parse_turn
from holdfast.agent.trajectory import Answer, Search
from holdfast.base.thoughts import after_thought, matches, opens_thought, said, thoughts_in, through_first

PIECES = ["<think>", "</think>", "[/THINK]", "<search>", "</search>", "<answer>", "</answer>", "a", " ", "\n"]


def test_an_action_counts_unless_its_thought_ends_after_it() -> None:
    for text, action in {
        "<think>maybe <answer>x</answer></think><answer>Mora</answer>": Answer("Mora"),
        "maybe <search>x</search></think><answer>Mora</answer>": Answer("Mora"),
        "<think>maybe <answer>x</answer>": Answer("x"),  # where sampling has stopped, as in Search-R1
        "<answer>Mora</answer><think>was it?</think>": Answer("Mora"),
        "<think>a</think><search>q</search><think>b</think><search>r</search>": Search("q"),
    }.items():
        assert parse_action(text, CLEAN) == action, text
    assert not isinstance(parse_action("<think><answer>x</answer></think>", CLEAN), Answer)
    assert not isinstance(parse_action("<think><answer>x</answer></think>y</answer>", CLEAN), Answer)


def test_a_turn_that_sampling_has_stopped_is_read_as_before_thoughts_were() -> None:
    """Training does not move: up to the first closing tag, whatever stands before it."""
    rng, closing = random.Random(0), re.compile("</search>|</answer>")
    read = 0
    for _ in range(3000):
        text = "".join(rng.choices(PIECES, k=rng.randint(1, 12)))
        stop = closing.search(text)
        if stop is None:
            continue
        text = text[: stop.end()]
        opening = stop.group().replace("/", "")
        start = text.rfind(opening, 0, stop.start())
        content = text[start + len(opening) : stop.start()].strip()
        span = (start, stop.end()) if start >= 0 and content else None
        assert parse_turn(text, CLEAN)[1] == span, text
        read += span is not None
    assert read > 100


def test_thoughts_and_matches_agree() -> None:
    rng, word = random.Random(1), re.compile("a")
    for _ in range(2000):
        text = "".join(rng.choices(PIECES, k=rng.randint(1, 12)))
        start = after_thought(text)
        inside = [match.start() for match, thought in matches(word, text) if thought]
        assert [match.start() for match in said(word, text)] == [
            match.start() for match in word.finditer(text) if match.start() not in inside
        ]
        if start is not None:
            assert not any(at >= start for at in inside), text
        if not thoughts_in(text):
            assert not inside and start == 0


def test_the_text_up_to_a_stop_text() -> None:
    text = "<think> </answer> </think> b </search> c"
    assert through_first(("</search>", "</answer>"), text) == "<think> </answer> </think> b </search>"
    assert through_first((), text) is through_first(("</x>",), text) is None


def test_a_prompt_that_opens_a_thought() -> None:
    assert opens_thought("assistant\n<think>\n") and opens_thought("[THINK]")
    assert not opens_thought("Think between <think> and </think>.\nassistant\n")
