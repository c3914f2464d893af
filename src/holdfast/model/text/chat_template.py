"""The chat template of a model: which one, its variables, and the conversations that it writes.

Every rendering goes through `ChatTemplate.render`, so prompts, demonstrations and tool calls have the same variables.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.base.apart import TooCostly, apart
from holdfast.base.errors import ConfigError
from holdfast.model.text.tokens import encode, foreign_parts, without_marks

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

Message = Mapping[str, Any]

_DATE = datetime(2024, 7, 26)
"""What templates print as the current date: a run that is resumed another day must see the same prompts."""
_CLOCK = (
    "{%- macro strftime_now(format) -%}{{ format"
    + "".join(f" | replace('%{c}', '{_DATE.strftime(f'%{c}')}')" for c in "YymdbBaAjHIMSpf")
    + " }}{%- endmacro %}\n"
)
"""Before a template that asks for the date: transformers passes no function on. Its newline is in no text."""
_ONE_WORD = [{"role": "user", "content": "Hello"}]
_CPU_SECONDS, _MORE_BYTES = 2, 2**28
_GIVEN = {"messages", "tools", "add_generation_prompt"}
"""What a template reads and no recipe sets."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A chat template and its variables, as `[model]` of a recipe has them."""

    source: str | Path = "auto"
    """`auto`: the tokenizer's template, if it has one. `none`: plain text. Otherwise the path of a Jinja file."""
    variables: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What the template reads beside messages and tools, such as `enable_thinking`."""

    def __str__(self) -> str:
        return "the tokenizer's chat template" if self.source == "auto" else f"chat template {self.source}"

    def text(self, tokenizer: PreTrainedTokenizerBase, schemas: list[dict[str, Any]] | None = None) -> str | None:
        """The Jinja text; None for plain text. Some tokenizers have another one for tools. Raises `ConfigError`."""
        if self.source == "none":
            return None
        if self.source == "auto":
            return tokenizer.get_chat_template(tools=schemas) if tokenizer.chat_template else None  # type: ignore[arg-type]
        return read_template(self.source)

    def render(
        self,
        tokenizer: PreTrainedTokenizerBase,
        messages: Sequence[Message],
        schemas: list[dict[str, Any]] | None = None,
        *,
        answering: bool = True,
    ) -> str:
        """The text of a conversation; with `answering`, up to where the model's next message begins.

        `schemas` are the tools, as `Tool.schema`. Raises `ConfigError`. Warns once of a variable that the template does
        not read.
        """
        template = self.text(tokenizer, schemas)
        assert template is not None, "a model without a chat template has no conversations"
        try:
            text = tokenizer.apply_chat_template(
                list(messages),  # type: ignore[arg-type]  # whose hint knows texts alone
                tools=schemas,  # type: ignore[arg-type]
                chat_template=_CLOCK + template if "strftime_now" in template else template,
                add_generation_prompt=answering,
                tokenize=False,
                **{"date_string": f"{_DATE:%d %b %Y}", **self.variables},
            )
        except Exception as error:  # jinja raises many kinds; each means the template does not fit
            roles = " and ".join(dict.fromkeys(str(message["role"]) for message in messages))
            raise ConfigError(
                f"{self} cannot render messages of {roles}: {str(error).strip()[:300]}. Set the variable that it asks "
                "for in model.chat_template_kwargs, or model.chat_template to a Jinja file that renders them, or to "
                "'none' for plain text"
            ) from error
        if self.variables:
            _warn_of_unread(template, frozenset(self.variables), str(self))
        return str(text)

    def prompt(
        self, tokenizer: PreTrainedTokenizerBase, message: str, schemas: list[dict[str, Any]] | None = None
    ) -> list[int]:
        """Token ids of a user message up to where the answer begins; `foreign` has marked what is not ours.

        Without a template it is plain text, with a BOS if the tokenizer adds one. Raises `ConfigError` for a template
        that is missing, fails, or drops the message.
        """
        if self.text(tokenizer, schemas) is None:
            return plain_prompt(message, tokenizer)
        text = self.render(tokenizer, [{"role": "user", "content": message}], schemas)
        if any(part not in text for part in foreign_parts(message)):
            raise ConfigError(
                f"{self} drops the user's message; it must write the content of every message of `messages`"
            )
        return encode(tokenizer, text)  # the template writes its own BOS


def is_costly(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer's template needs too much time or memory for a conversation of one word.

    Jinja's sandbox bounds neither, so a copy of this process renders it first, whose limits are the system's. False
    where there is no such copy (Windows).
    """
    if not tokenizer.chat_template or not hasattr(os, "fork"):
        return False

    def render() -> bytes:
        tokenizer.apply_chat_template(_ONE_WORD, tokenize=False, add_generation_prompt=True)
        return b""

    try:
        apart(render, _CPU_SECONDS, _MORE_BYTES)
    except TooCostly:
        return True
    except RuntimeError:  # what fails is refused where it is needed
        pass
    return False


def plain_prompt(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids of a prompt for a model without a chat template, with a BOS if the tokenizer adds one."""
    bare = without_marks(text)
    ids = list(tokenizer(bare)["input_ids"])
    # Some tokenizers end every text with EOS, but the rollout has only begun.
    ids = ids[:-1] if ids and ids[-1] == tokenizer.eos_token_id else ids
    return [*ids[: len(ids) - len(encode(tokenizer, bare))], *encode(tokenizer, text)]


def read_template(path: str | Path) -> str:
    """The text of a Jinja file. Raises `ConfigError`."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"chat template {str(path)!r} cannot be read ({error}); give 'auto', 'none' or the path of a Jinja file"
        ) from error


@cache
def _warn_of_unread(template: str, names: frozenset[str], title: str) -> None:
    """The cache makes it one warning a process."""
    from jinja2 import meta, nodes
    from transformers.utils import chat_template_utils

    compile_template: Callable[[str], Any] = chat_template_utils._compile_jinja_template
    environment = compile_template(template).environment  # which knows the tags that transformers adds
    tree = environment.parse(template)
    tests = [test.node for test in tree.find_all(nodes.Test) if test.name in ("defined", "undefined")]
    optional = {node.name for node in tests if isinstance(node, nodes.Name)}
    set_here = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "store"} - optional
    found = meta.find_undeclared_variables(tree) - set(environment.globals) - _GIVEN - set_here
    read = {name for name in found if not name.endswith("_token")}
    if unread := sorted(names - read):
        known = f"it reads {', '.join(sorted(read))}" if read else "it reads none"
        logger.warning("model.chat_template_kwargs: %s never reads %s; %s", title, ", ".join(unread), known)
