"""Random rollouts with tool calls, token by token what the chat template writes of their messages.

`HOLDFAST_TEMPLATES=FOLDER` runs the same with every `*.jinja` of a folder.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.call_syntax import QuotedCall
from holdfast.agent.protocol import render_prompt
from holdfast.agent.state import RolloutState
from holdfast.agent.tools import NATIVE
from holdfast.agent.trajectory import Answer, Call, Invalid, Read, Search, ToolResult
from holdfast.base.errors import ConfigError
from holdfast.model.sampler.policy import Completion
from holdfast.model.text.chat_template import ChatTemplate
from holdfast.model.text.tokens import decode, encode, foreign, without_marks
from holdfast.retrieval.types import Document, Hit

from ..tool_templates import OF_TRL, OURS, VARIABLES


def note(text: str, times: int, loud: bool, why: int | None, tags: list[Any]) -> str:
    """Write a note.

    Args:
        text: The note, "quoted".
        times: How often.
        loud: Whether in capitals.
        why: The number of its reason.
        tags: What it is about.
    """
    return text * times


PROTOCOL = replace(
    NATIVE,
    tools=("search", "read", f"{__name__}:note"),
    max_turns=9,
    max_observation_tokens=400,
    max_total_tokens=10**6,
)
WORDS = ["the", "lake", "Orsa", "café", "漢字", 'a "town"', "C:\\n", "a\nb", "{x}", "</tool>", "it's", "🙂", "1.5%"]
SPELLED = ["<|im_end|>", "<|user|>", "</s>", "]~b]", "<｜User｜>", "</parameter>", "</arg_value>"]
WORDS += ["12", "null"]
PLAIN = ["the", "lake", "of", "Orsa", "is", "old"]
EMPTY_THOUGHT = re.compile(r"(<think>\s*)?</think>\s*|<think>\s*\Z")
THOUGHT = re.compile(r"(<think>((?!<think>).)*?)?</think>\s*|<think>\s*\Z", re.DOTALL)
FORGETS = ("opened-thought",)
"""Templates that leave thoughts out of earlier messages."""


def some_words(rng: random.Random, pool: list[str] = WORDS) -> str:
    return " ".join(rng.choices(pool, k=rng.randint(1, 6)))


class History:
    """A rollout beside its messages, as the template takes them."""

    def __init__(self, tokenizer: Any, seed: int, variables: dict[str, Any], *, forgets: bool = False) -> None:
        self.template = ChatTemplate(variables=variables)
        self.protocol = protocol = replace(PROTOCOL, template=self.template)
        self.rng, self.tokenizer, self.form = random.Random(seed), tokenizer, protocol.format(tokenizer)
        question = some_words(self.rng, PLAIN)
        self.state = RolloutState(render_prompt(question, protocol, tokenizer), protocol, tokenizer)
        self.messages = [{"role": "user", "content": protocol.prompt.replace("{question}", question)}]
        self.thought = THOUGHT if forgets else EMPTY_THOUGHT
        self.found: list[str] = []
        self.words = WORDS if seed % 2 else WORDS + SPELLED
        self.over = False
        self.writes_notes = self.has_notes()

    def has_notes(self) -> bool:
        """Whether the template writes a result after a message without a call as it does after a call."""
        note = {"role": "tool", "tool_call_id": self.form.own_id, "content": "NOTE"}
        said = [{"role": "assistant", "content": "x"}, note]
        try:
            text = self.rendered(*said, *said)
        except ConfigError:
            return False
        return f"{self.form.before}NOTE" in text and text.endswith(f"NOTE{self.form.after}")

    def rendered(self, *more: dict[str, Any], answering: bool = True) -> str:
        """The template's own text; `foreign` marks what a tool returned."""
        messages = [*self.messages, *more]
        return self.template.render(self.tokenizer, messages, self.protocol.schemas, answering=answering)

    def control(self, ids: Sequence[int]) -> list[int]:
        """The special tokens among ids, but for those of thoughts."""
        special = {i: str(token) for i, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        return [i for i in ids if i in special and "think" not in special[i]]

    def compare(self) -> None:
        """The context with the template's own text, but for empty thoughts, which some templates leave out of earlier
        messages; and the ids of what the template has just written."""
        text = self.rendered()
        if self.state.context == encode(self.tokenizer, text):
            return
        context = decode(self.tokenizer, self.state.context)
        if self.words is WORDS:
            assert context != without_marks(text)
        else:  # a text that is encoded in pieces has other ids here and there, but no other control tokens
            assert self.control(self.state.context) == self.control(encode(self.tokenizer, text))
        assert self.thought.sub("", context) == self.thought.sub("", without_marks(text))
        for turn in self.state.turns[-1:]:
            before = self.form.before.partition("holdfast")[0].partition("functions.")[0]
            written = encode(self.tokenizer, text[text.rindex(before) :])
            assert turn.observation == tuple(written[len(written) - len(turn.observation) :])

    def said(self, thought: str, **message: Any) -> str:
        """What the model must sample for a message, as the template writes it."""
        begun, before, opens = self.rendered(), "", self.form.opens_thought
        if thought and "reasoning_content" in self.tokenizer.chat_template:
            message["reasoning_content"] = thought
        elif thought or opens:  # which the template would drop, or has in the content of a message
            before = "<think>\n" * (not opens) + f"{thought}\n</think>\n\n"
        message = {
            "role": "assistant",
            **message,
            "content": message["content"] if opens else before + message["content"],
        }
        text = self.rendered(message, answering=False)
        ends = [decode(self.tokenizer, [end]) for end in self.protocol.turn_ends(self.tokenizer)]
        text = next((text.rstrip().removesuffix(end) for end in ends if text.rstrip().endswith(end)), text)
        self.messages.append(message)
        text, begun = without_marks(text), without_marks(begun)
        if text.startswith(begun):
            return text[len(begun) :]
        begun = EMPTY_THOUGHT.sub("", begun[-40:])
        start = text.rindex(begun) + len(begun)
        return before * opens + EMPTY_THOUGHT.sub("", text[start:], count=1)

    def call(self, name: str, argument: str, thought: str, content: str) -> str:
        """A call as the template writes it."""
        parameter = {"search": "query", "read": "id", "note": "text"}[name]
        others = {
            "times": self.rng.randint(1, 3),
            "loud": self.rng.random() < 0.5,
            "why": None,
            "tags": ["a", {"b": 1}],
        }
        arguments = {parameter: foreign(argument), **(others if name == "note" else {})}
        self.id = f"functions.{name}:0" if ":" in self.form.own_id else "".join(self.rng.choices("abcXYZ019", k=9))
        calls = [{"type": "function", "id": self.id, "function": {"name": name, "arguments": arguments}}]
        self.arguments = {**arguments, parameter: argument}
        return self.said(thought, content=content, tool_calls=calls)

    def turn(self) -> tuple[str, bool, type]:
        """(text, whether it ends, what it is), its message appended."""
        rng, form, syntax = self.rng, self.form, self.form.syntax
        wrong = ["spaced", "not closed", "no tool", "two"] * (not form.header)  # no message of gpt-oss is plain text
        kind = rng.choice(["search", "search", "read", "note", *wrong, "cut"])
        plain = form.header or isinstance(syntax, QuotedCall)
        may_think = syntax.opening and not plain and "</think>" not in form.after
        thought = some_words(rng, PLAIN) if form.opens_thought or (may_think and rng.random() < 0.5) else ""
        if kind in ("search", "read", "note"):
            argument = rng.choice([*self.found, "x9"]) if kind == "read" else some_words(rng, self.words)
            before = syntax.opening and not isinstance(syntax, QuotedCall)  # Gemma 4 writes what is said behind results
            said = some_words(rng, PLAIN) if before and rng.random() < 0.5 else ""
            return self.call(kind, argument, thought, said), True, KINDS[kind]
        query = {"query": some_words(rng, PLAIN)}
        self.id = self.id.replace("search", "browse" if kind == "no tool" else "search")
        written = form.write("browse" if kind == "no tool" else "search", query).strip()
        text = {
            "spaced": re.sub(r"([{},])", r"\1 ", written) if "{" in written else written.replace("\n", " \n "),
            "not closed": written[: -len(syntax.closing or "}")],
            "two": f"{written}\n{written}",
            "cut": query["query"],
        }.get(kind, written)
        text = self.said(thought, content=text)
        return text, kind != "cut", Search if kind == "spaced" else Invalid

    def advance(self) -> None:
        self.id, self.arguments = self.form.own_id.replace("holdfasttool", "search"), {}  # of a message without a call
        text, ends, kind = self.turn()
        state, before, own = self.state, list(self.state.context), self.id
        end = self.protocol.turn_ends(self.tokenizer)[0]
        ids = (*self.protocol.said(text, self.tokenizer), *([end] if ends else []))
        completion = Completion(
            id="a",
            token_ids=ids,
            logprobs=(-0.5,) * len(ids),
            stop_reason="eos" if ends else "length",
            text=decode(self.tokenizer, ids[:-1] if ends else ids),
        )
        action = state.take_turn(completion)
        if isinstance(action, Call):
            assert json.loads(action.arguments) == self.arguments
            state.take_result(ToolResult(some_words(self.rng, self.words), failed=False, seconds=0.1))
        elif action is not None:
            hits = [
                Hit(Document(f"d{k}", f"{some_words(self.rng)}\n{some_words(self.rng, self.words)}"), 0.0)
                for k in self.rng.sample(range(9), 2)
            ]
            state.take_hits(hits if self.rng.random() < 0.8 else [])
            self.found += state.turns[-1].hits
        turn = state.turns[-1]
        assert type(turn.action) is kind, (text, turn.action)
        assert state.context == [*before, *ids, *turn.observation]
        content = foreign(turn.observation_text)
        named = {Call: "note", Read: "read"}.get(type(turn.action), "search")
        self.messages.append({"role": "tool", "name": named, "tool_call_id": own, "content": content})
        if "tool_calls" not in self.messages[-2] and not self.writes_notes:
            before, after = self.form.around(turn.text, self.protocol.by_name)
            assert decode(self.tokenizer, turn.observation) in before + turn.observation_text + after
            self.over = True  # there is nothing to compare with
        else:
            self.compare()


KINDS = {"search": Search, "read": Read, "note": Call}


def check(tokenizer: Any, seed: int, variables: dict[str, Any], **options: bool) -> None:
    history = History(tokenizer, seed, variables, **options)
    assert history.state.context == encode(tokenizer, history.rendered())
    for _ in range(history.rng.randint(1, 6)):
        if not history.over:
            history.advance()
    answer = some_words(history.rng, PLAIN + WORDS[3:6])
    thought = "hm\n</think>\n" if history.form.opens_thought else ""
    opening = history.form.answer_opening
    ids = (*encode(tokenizer, f"{opening}{thought}\n{answer} "), history.protocol.turn_ends(tokenizer)[1])
    text = decode(tokenizer, ids[:-1])
    done = Completion(id="a", token_ids=ids, logprobs=(0.0,) * len(ids), stop_reason="eos", text=text)
    assert history.state.take_turn(done) is None
    trajectory = history.state.trajectory("q")
    assert trajectory.answer == answer and trajectory.token_ids == tuple(history.state.context)
    position = len(trajectory.prompt)
    for turn in trajectory.turns:  # the mask is by position: on what was sampled, the end of the message included
        sampled = len(turn.tokens or ())
        assert all(trajectory.loss_mask[position : position + sampled])
        assert not any(trajectory.loss_mask[position + sampled : position + len(turn)])
        assert isinstance(turn.action, Invalid | Answer) == (turn.query_span is None)
        position += len(turn)
    inside = [i for i, x in zip(trajectory.token_ids, trajectory.answer_mask, strict=True) if x]
    assert answer in decode(tokenizer, inside) and decode(tokenizer, inside).strip() == answer


@pytest.mark.parametrize("name", [*OURS, *OF_TRL])
@pytest.mark.parametrize(
    "seeds", [range(15), pytest.param(range(15, 1000), marks=pytest.mark.long)], ids=["15", "1000"]
)
def test_ids_are_those_of_the_templates_own_text(name: str, seeds: range, speaker: Any) -> None:
    tokenizer = speaker(name)
    for seed in seeds:
        check(tokenizer, seed, VARIABLES.get(name, {}), forgets=name in FORGETS)


FOLDER = os.environ.get("HOLDFAST_TEMPLATES", "")
MODES = {"": {}, "enable_thinking": {"enable_thinking": False}, "thinking": {"thinking": True}}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("file", sorted(Path(FOLDER).glob("*.jinja")) if FOLDER else [], ids=lambda file: file.stem)
def test_ids_are_those_of_a_models_own_template(file: Path, mode: str, learn_tokenizer: Any) -> None:
    text = file.read_text(encoding="utf-8")
    if mode not in text:
        pytest.skip(f"the template has no {mode}")
    tokenizer = tokenizer_of(text, learn_tokenizer)
    for seed in range(int(os.environ.get("HOLDFAST_HISTORIES", "20"))):
        check(tokenizer, seed, MODES[mode])


def tokenizer_of(template: str, learn_tokenizer: Any) -> Any:
    """A tokenizer whose special tokens are what looks like one in the template."""
    special = set(
        re.findall(
            r"<[|｜][^<>\s'\"{}]*[|｜]>|<\|[a-z_]+>|<[a-z_]+\|>|<\|\"\|>|\[[A-Z_/]+\]|\]~[!b\]\[]*|\[e~\[", template
        )
    )
    special |= {"<s>", "</s>", "<pad>"}
    end = next((end for end in ("<|im_end|>", "<｜end▁of▁sentence｜>") if end in template), "</s>")
    tokenizer = learn_tokenizer(
        ["the lake of Orsa"] * 9, 280 + len(special), sorted(special), bos_token="<s>", eos_token=end, pad_token="<pad>"
    )
    tokenizer.chat_template = template
    return tokenizer
