"""A renderer for verifiers' training client: prompts, calls and results in the ids that holdfast itself trains on.

    renderer = { name = "custom", import_path = "holdfast.adapters.verifiers.renderer.ToolRenderer" }

It works for every chat template that `protocol.preset = "tools"` reads. A turn is never encoded again: a result is
appended to the sampled ids. What a result spells is plain text, and a call that cannot be read gets a note.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from renderers import DefaultRendererConfig, ParsedResponse, ParsedToolCall, RenderedTokens
from renderers.base import ToolCallParseStatus
from renderers.default import DefaultRenderer

from holdfast.agent.call_syntax import Found
from holdfast.agent.calling import Tool
from holdfast.agent.template_format import read_format
from holdfast.agent.tools import read_turn, result_ids, turn_ends
from holdfast.agent.trajectory import Answer, Invalid
from holdfast.model.text.chat_template import ChatTemplate
from holdfast.model.text.tokens import decode, encode

UNREADABLE = "unreadable"
"""The name of a call that cannot be read. There is no such tool, so the harness replies with the protocol's note."""


class ToolRendererConfig(DefaultRendererConfig):
    """Fields beside `import_path`; any other is a variable of the chat template, such as `enable_thinking`."""

    chat_template: str = "auto"
    """As `model.chat_template` of the recipe."""

    _internal_fields: ClassVar[frozenset[str]] = frozenset({"tool_parser", "reasoning_parser", "chat_template"})


class ToolRenderer(DefaultRenderer):
    """A chat template with tools, read by holdfast. Raises `ConfigError` for one that it cannot read."""

    config_class = ToolRendererConfig
    supports_tools = True

    def __init__(self, tokenizer: Any, config: ToolRendererConfig | None = None) -> None:
        config = config or ToolRendererConfig()
        super().__init__(tokenizer, config)
        self._template = ChatTemplate(config.chat_template, config.model_extra or {})
        self._form = read_format(tokenizer, self._template)

    def _apply(self, messages: Any, *, tools: Any = None, add_generation_prompt: bool = False) -> list[int]:
        """The ids of whole messages."""
        text = self._template.render(self._tokenizer, messages, tools, answering=add_generation_prompt)
        return encode(self._tokenizer, text)

    def get_stop_token_ids(self) -> list[int]:
        """Ids that end a message."""
        return sorted({*turn_ends(self._form, self._tokenizer), self._tokenizer.eos_token_id} - {None})

    def parse_response(
        self, token_ids: list[int], *, tools: Any = None, prompt_ids: list[int] | None = None
    ) -> ParsedResponse:
        """The message that was sampled."""
        finished = bool(token_ids) and token_ids[-1] in self.get_stop_token_ids()
        text = decode(self._tokenizer, token_ids[:-1] if finished else token_ids)
        read, span = read_turn(text, self._form, _by_name(tools), finished=finished)
        before = text[: span[0]].strip() if span else ""
        if isinstance(read, Answer):
            return ParsedResponse(read.text, before or None)
        if isinstance(read, Found) and isinstance(read.name, str) and read.name:
            assert span is not None, "what was found is somewhere"
            return ParsedResponse("", before or None, [ParsedToolCall(text[slice(*span)], read.name, read.arguments)])
        status = ToolCallParseStatus.INVALID_JSON
        unreadable = [ParsedToolCall(text, UNREADABLE, {}, status=status)] if finished else []
        return ParsedResponse(text, None, unreadable)

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: list[Any],
        *,
        tools: Any = None,
    ) -> RenderedTokens | None:
        """The ids so far, and those of one result up to where the model goes on; None for anything else."""
        if [message["role"] for message in new_messages] != ["tool"] or not tools:
            return None
        content = str(new_messages[0].get("content") or "")
        before = [*previous_prompt_ids, *previous_completion_ids]
        result = result_ids(content, self._form, _by_name(tools), self._tokenizer, previous_completion_ids)
        return RenderedTokens(
            token_ids=[*before, *result],
            message_indices=[-1] * len(before) + [0] * len(result),
            message_roles=["tool"],
            message_tool_names=[None],
        )


def _by_name(tools: Any) -> Mapping[str, Tool]:
    """Tools of a request, which are described and not called here."""
    return {
        tool["function"]["name"]: Tool(tool["function"]["name"], tool, lambda _: Invalid("")) for tool in tools or ()
    }
