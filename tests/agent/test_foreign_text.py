"""Whatever a question, a passage, an answer or a host's server says: none of it becomes a control token."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tokenizers import AddedToken, normalizers

from holdfast.agent.protocol import CLEAN, SEARCH_R1, SearchProtocol, render_prompt
from holdfast.agent.tools import NATIVE, ToolProtocol
from holdfast.evaluate.agents import PromptEncoder, converse
from holdfast.evaluate.methods import LIMITS, METHODS, QUERY_CLOSE, QUERY_OPEN, Prompt
from holdfast.model.sampler.policy import Completion, Request
from holdfast.model.text.chat_template import ChatTemplate
from holdfast.model.text.tokens import decode, decode_for_server, encode, foreign, spelled_apart
from holdfast.retrieval.types import Document, Hit

TAGS = ["<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>", "[INST]"]
WORDS = ["the", "lake", "of", "Orsa", "漢字", "<b>", "<|", "|>", "<", '"a"']


@pytest.fixture(params=[8, pytest.param(300, marks=pytest.mark.long)])
def count(request: pytest.FixtureRequest) -> int:
    """How many random texts."""
    return int(request.param)


@pytest.fixture(params=["hermes", "llama", "qwen2_5", "qwen3_instruct_2507"])
def tokenizer(request: pytest.FixtureRequest, speaker: Callable[[str], Any]) -> Any:
    """As Qwen's, it has tags that it does not call special."""
    made = speaker(request.param)
    made.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    return made


def control(tokenizer: Any, ids: Sequence[int]) -> list[int]:
    """Every id that the tokenizer has added, in order. It has added nothing but control tokens."""
    return [i for i in ids if i in tokenizer.added_tokens_decoder]


def some_text(rng: random.Random, tokenizer: Any, tags: Sequence[str]) -> str:
    words = [*map(str, tokenizer.all_special_tokens), *tags, *WORDS]
    text = "".join(rng.choice(words) + rng.choice(["", " "]) for _ in range(rng.randint(1, 8)))
    return text.strip()


def hits(text: str) -> list[Hit]:
    return [Hit(Document("d", f"Orsa\n{text}"), 0.0)]


def written(protocol: SearchProtocol, tokenizer: Any, text: str) -> Iterator[list[int]]:
    """What a protocol writes of a question and a passage, in a rollout and in a demonstration."""
    yield render_prompt(text, protocol, tokenizer)
    yield list(protocol.observe(hits(text), tokenizer).token_ids)
    opened, closed = protocol.information_tags
    yield protocol.encode_observation(f"\n\n{opened}{text}{closed}\n\n", tokenizer)


def spoken(protocol: SearchProtocol, tokenizer: Any, text: str) -> Iterator[list[int]]:
    """What it writes of the model's words; the tags of the protocol are tokens there."""
    yield protocol.encode_turn(f"so <search> {text} </search>", tokenizer)
    yield protocol.encode_turn(f"so <answer> {text} </answer>", tokenizer)
    yield protocol.said(text, tokenizer)


@pytest.mark.parametrize("protocol", [CLEAN, SEARCH_R1, NATIVE], ids=lambda protocol: protocol.name)
def test_what_a_protocol_writes(protocol: SearchProtocol, tokenizer: Any, count: int) -> None:
    protocol = replace(protocol, max_observation_tokens=5000)
    quoted = isinstance(protocol, ToolProtocol) and protocol.format(tokenizer).quoted
    for write, tags in ((written, TAGS), (spoken, ["<tool_response>", "[INST]"])):
        usual = [control(tokenizer, ids) for ids in write(protocol, tokenizer, "the lake")]
        rng = random.Random(f"{protocol.name} {write.__name__}")
        for _ in range(count):
            text = some_text(rng, tokenizer, tags)
            ids = list(write(protocol, tokenizer, text))
            assert [control(tokenizer, row) for row in ids] == usual, text
            as_json = json.dumps(text, ensure_ascii=False)[1:-1]
            assert all(text in decode(tokenizer, row) or as_json in decode(tokenizer, row) for row in ids), text
            assert quoted or text in decode(tokenizer, ids[1])


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.conversation])
def test_what_a_method_asks(method: str, tokenizer: Any, count: int) -> None:
    """Also if the model repeats the text as its answer, or as its query."""
    encoder = PromptEncoder(tokenizer, ChatTemplate(), math.inf)
    usual = control(tokenizer, encoder(Prompt(user="Who?", max_tokens=1)))
    rng = random.Random(method)
    for _ in range(count):
        text, question = some_text(rng, tokenizer, TAGS[4:]), some_text(rng, tokenizer, TAGS)
        agent = converse(METHODS[method].conversation(question, replace(LIMITS, sentences=2, turns=2)), encoder, "a", 0)
        reply: Any = None
        contexts = []
        while True:
            try:
                request = agent.send(reply)
            except StopIteration:
                break
            reply = hits(question)
            if isinstance(request, Request):
                contexts.append(request.token_ids)
                said = f"{text}. {QUERY_OPEN}{text}{QUERY_CLOSE}"
                reply = Completion(id="", token_ids=None, logprobs=None, stop_reason="stop", text=said)
        assert all(control(tokenizer, ids) == usual for ids in contexts), (text, question)
        assert question in decode(tokenizer, contexts[0])
        for ids in contexts:  # a server encodes the text again
            sent = encode(tokenizer, decode_for_server(tokenizer, ids))
            assert control(tokenizer, sent) == usual


def test_ordinary_text_has_the_ids_of_the_whole(tokenizer: Any) -> None:
    for text in ("Where is Orsa?", "a < b > c [1] <b>|</b>", " the lake\n"):
        assert encode(tokenizer, f"<|im_start|>user\n: {foreign(text)}\n<think>") == encode(
            tokenizer, f"<|im_start|>user\n: {text}\n<think>"
        )
        assert decode_for_server(tokenizer, encode(tokenizer, f"<think>{text}")) == f"<think>{text}"
        assert spelled_apart(tokenizer, text) == text


def test_other_spellings_and_borders(speaker: Callable[[str], Any]) -> None:
    """Capitals that the tokenizer reads as small, a spelling of which a part is the template's, one in another, and
    the marks themselves."""
    tokenizer = speaker("hermes")
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.add_tokens([AddedToken("<obs>", normalized=True), AddedToken("<a<obs>>", normalized=True)])
    assert control(tokenizer, encode(tokenizer, "x <OBS>"))
    for text in (foreign("x <OBS>"), foreign("<a<obs>>"), foreign("x <ob") + "s>", foreign("<\ufdd0obs>")):
        ids = encode(tokenizer, text)
        assert not control(tokenizer, ids)
    assert control(tokenizer, encode(tokenizer, foreign("a <obs> <|im_end|>", ["<obs>"]))) == encode(tokenizer, "<obs>")
    assert foreign(" \n") == " \n"
