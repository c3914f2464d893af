"""Random rollouts with tool calls: their ids are those of the template's own text, and none is encoded twice."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from holdfast.agent.protocol import render_prompt
from holdfast.agent.state import RolloutState
from holdfast.agent.tools import NATIVE
from holdfast.agent.trajectory import Answer, Invalid, Read, Search
from holdfast.model.policy import Completion
from holdfast.model.tokens import decode, encode
from holdfast.retrieval.types import Document, Hit

from ...tool_templates import OF_TRL, OURS

PROTOCOL = replace(NATIVE, tools=("search", "read"), max_turns=9, max_observation_tokens=400, max_total_tokens=10**6)
WORDS = [
    "the",
    "lake",
    "Orsa",
    "café",
    "漢字",
    'a "town"',
    "C:\\n",
    "line\nbreak",
    "{x}",
    "</tool>",
    "it's",
    "🙂",
    "1.5%",
]
PLAIN = ["the", "lake", "of", "Orsa", "is", "old"]


def words(rng: random.Random, pool: list[str] = WORDS) -> str:
    return " ".join(rng.choices(pool, k=rng.randint(1, 6)))


class History:
    """A rollout beside its messages, as the template takes them."""

    def __init__(self, tokenizer: Any, seed: int) -> None:
        self.rng, self.tokenizer, self.form = random.Random(seed), tokenizer, PROTOCOL.format(tokenizer)
        question = words(self.rng, PLAIN)
        self.state = RolloutState(render_prompt(question, PROTOCOL, tokenizer), PROTOCOL, tokenizer)
        self.messages = [{"role": "user", "content": PROTOCOL.prompt.replace("{question}", question)}]
        self.passages: list[Hit] = []
        self.found: list[str] = []

    def rendered(self) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                self.messages,
                tools=PROTOCOL.schemas,
                add_generation_prompt=True,
                tokenize=False,
                date_string="26 Jul 2024",
            )
        )

    def call(self, name: str, argument: str, before: str) -> str:
        """A call as the template writes it."""
        function = {"name": name, "arguments": {"query" if name == "search" else "id": argument}}
        calls = [{"type": "function", "function": function}]
        start = len(self.rendered())
        self.messages += [
            {"role": "assistant", "content": before, "tool_calls": calls},
            {"role": "tool", "content": "-"},
        ]
        text = self.rendered()[start:]
        self.messages.pop()
        return text[: text.rindex(self.form.before)]

    def turn(self) -> tuple[str, bool, type]:
        """(text, whether it ends, what it is), its message appended."""
        rng, form = self.rng, self.form
        kind = rng.choice(["search", "search", "read", "spaced", "not json", "no tool", "two", "cut"])
        thought = rng.choice(["", f"<think>\n{words(rng, PLAIN)}\n</think>\n\n"]) if form.opening else ""
        if kind in ("search", "read"):
            argument = rng.choice([*self.found, "x9"]) if kind == "read" else words(rng)
            said = words(rng, PLAIN) if form.opening and rng.random() < 0.5 else ""
            return self.call(kind, argument, thought + said), True, Search if kind == "search" else Read
        inner = {
            "spaced": f'{{ "{form.arguments}":{{"query" : {json.dumps(words(rng))}}},  "name":"search"}}',
            "not json": f'{{"name": "search", "{form.arguments}": {{"query": {words(rng, PLAIN)}}}',
            "no tool": f'{{"name": "browse", "{form.arguments}": {{"query": "x"}}}}',
            "two": f'{{"name": "search", "{form.arguments}": {{"query": "x"}}}}',
            "cut": words(rng, PLAIN),
        }[kind]
        text = f"{form.opening}{inner}{form.closing}" if kind != "cut" else inner
        text = thought + text * (2 if kind == "two" else 1)
        self.messages.append({"role": "assistant", "content": text})
        return text, kind != "cut", Search if kind == "spaced" else Invalid

    def advance(self) -> None:
        text, ends, kind = self.turn()
        state, before = self.state, list(self.state.context)
        ids = (*encode(self.tokenizer, text), *([self.tokenizer.eos_token_id] if ends else []))
        completion = Completion(
            id="a",
            token_ids=ids,
            logprobs=(-0.5,) * len(ids),
            stop_reason="eos" if ends else "length",
            text=decode(self.tokenizer, ids[:-1] if ends else ids),
        )
        if state.take_turn(completion) is not None:
            hits = [
                Hit(Document(f"d{k}", f"{words(self.rng)}\n{words(self.rng)}"), 0.0)
                for k in self.rng.sample(range(9), 2)
            ]
            state.take_hits(hits if self.rng.random() < 0.8 else [])
            self.found += state.turns[-1].hits
        turn = state.turns[-1]
        assert type(turn.action) is kind, (text, turn.action)
        assert state.context == [*before, *ids, *turn.observation]
        self.messages.append({"role": "tool", "name": "search", "content": turn.observation_text})
        assert state.context == encode(self.tokenizer, self.rendered())


def check(tokenizer: Any, seed: int) -> None:
    history = History(tokenizer, seed)
    assert history.state.context == encode(tokenizer, history.rendered())
    for _ in range(history.rng.randint(1, 6)):
        history.advance()
    answer = words(history.rng, PLAIN + WORDS[3:6])
    ids = (*encode(tokenizer, f"\n{answer} "), tokenizer.eos_token_id)
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
    "seeds", [range(40), pytest.param(range(40, 1000), marks=pytest.mark.long)], ids=["40", "1000"]
)
def test_ids_are_those_of_the_templates_own_text(name: str, seeds: range, speaker: Any) -> None:
    tokenizer = speaker(name)
    for seed in seeds:
        check(tokenizer, seed)
