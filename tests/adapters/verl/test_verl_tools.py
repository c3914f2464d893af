"""Tool calls in verl's own agent loop: prompt, masks and spans token by token, and functions of one's own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("verl")
pytest.importorskip("fastapi", reason="verl's agent loops need cachetools, uvicorn and fastapi")

from holdfast.agent.protocol import render_prompt
from holdfast.agent.tools import NATIVE
from holdfast.model.text.tokens import encode

from .test_verl_agent import QUESTION, TokenServer, make_worker, one

__all__ = ["make_worker"]

ROOM = ("actor_rollout_ref.rollout.prompt_length=700", "actor_rollout_ref.rollout.response_length=600")
END = "<|im_end|>"


@pytest.fixture
def calling(make_worker: Callable[..., Any], speaker: Callable[[str], Any]) -> Callable[..., Any]:
    """calling(turns, **settings): a worker with a tokenizer whose template has tools, and its token server."""

    def make(turns: list[str], **settings: Any) -> tuple[Any, TokenServer]:
        worker, _, _ = make_worker({QUESTION: turns}, overrides=ROOM, preset="tools", **settings)
        worker.tokenizer = tokenizer = speaker("hermes")
        worker.llm_client = server = TokenServer(tokenizer, {QUESTION: turns})
        return worker, server

    return make


def call(name: str, argument: str) -> str:
    parameter = "query" if name == "search" else "id"
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"{parameter}": "{argument}"}}}}\n</tool_call>{END}'


@pytest.mark.parametrize("prompt", ["data", "protocol"])
def test_masks_token_by_token(prompt: str, calling: Callable[..., Any]) -> None:
    turns = [call("search", "Orsa lake"), call("read", "b"), "<tool_call>oh</tool_call>" + END, f"Mirn{END}"]
    names = ["search", "read"]
    worker, server = calling(list(turns), max_turns=4, tool_names=names, prompt=prompt)
    tokenizer = copy.copy(worker.tokenizer)
    output = one(worker)
    protocol = replace(NATIVE, tools=tuple(names), prompt="{question}" if prompt == "data" else NATIVE.prompt)
    assert output.prompt_ids == render_prompt(QUESTION, protocol, tokenizer)

    sampled = [encode(tokenizer, turn) for turn in turns]
    found = "Doc a(Title: Orsa) Orsa is a town by the lake Mirn.\nDoc b(Title: Mirn) The lake Mirn is deep."
    results = [found, "Doc b(Title: Mirn) The lake Mirn is deep.", NATIVE.invalid_note]
    frame = "\n<|im_start|>tool\n<tool_response>\n{}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    observed = [*(encode(tokenizer, frame.format(result)) for result in results), []]
    response, mask = [], []
    for said, seen in zip(sampled, observed, strict=True):
        response += [*said, *seen]
        mask += [1] * len(said) + [0] * len(seen)
    assert (output.response_ids, output.response_mask) == (response, mask)
    assert [ids for _, ids, _ in server.calls][1] == [*output.prompt_ids, *sampled[0], *observed[0]]
    assert all(params["stop"] == [] for _, _, params in server.calls)
    start, end = output.extra_fields["answer_span"]
    assert tokenizer.decode(response[start:end]) == "Mirn"
    assert (output.reward_score, output.extra_fields["searches"], output.extra_fields["status"]) == (1.0, 1, "ok")


def double(x: float) -> float:
    """Double a number.

    Args:
        x: The number.
    """
    return 2 * x if x > 0 else 1 / 0


def test_functions_without_a_retriever(calling: Callable[..., Any]) -> None:
    said = [f'<tool_call>\n{{"name": "double", "arguments": {{"x": {x}}}}}\n</tool_call>{END}' for x in (21, 0)]
    worker, _ = calling([*said, f"Mirn{END}"], max_turns=4, tool_names=[f"{__name__}:double"], retriever=None)
    output = one(worker)
    results = worker.tokenizer.decode(
        [i for i, own in zip(output.response_ids, output.response_mask, strict=True) if not own]
    )
    assert "\n42\n</tool_response>" in results and "Error: ZeroDivisionError: division by zero" in results
    used = output.extra_fields["reward_extra_info"]
    assert (used["tools/double/calls"], used["tools/double/errors"], output.reward_score) == (2.0, 1.0, 1.0)
