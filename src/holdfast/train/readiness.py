"""What a dry run says of a plan as a whole: the prompt that the model reads, and what is too little to learn from."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.agent.calling import SEARCH
from holdfast.agent.protocol import CallTurn, SearchProtocol, render_prompt
from holdfast.base.errors import ConfigError
from holdfast.model.text.tokens import decode
from holdfast.tasks.task_set import Questions

if TYPE_CHECKING:
    from holdfast.tasks.demonstrations import Text

MIN_DEMONSTRATIONS, _MIN_SCORED = 200, 100


def exact_prompt(question: str, protocol: SearchProtocol, tokenizer: Any) -> str:
    """The text of the tokens that a rollout begins with.

    Raises `ConfigError` where the prompt of the recipe writes the marks of a chat template that is applied to it.
    """
    template = protocol.template
    if template.text(tokenizer, protocol.schemas) is not None:
        around = decode(tokenizer, template.prompt(tokenizer, "x", protocol.schemas))
        for mark in tokenizer.all_special_tokens:
            if mark in protocol.prompt and mark in around:
                raise ConfigError(
                    f"protocol.prompt writes {mark}, and so does {template}, which would wrap the prompt a second "
                    "time. Take the marks out of protocol.prompt, or set model.chat_template = 'none'"
                )
    return decode(tokenizer, render_prompt(question, protocol, tokenizer))


def what_is_too_little(
    demonstrations: Sequence[Text] | None, questions: Questions, tools: Collection[str] = ()
) -> Iterator[str]:
    """Sentences about what teaches or shows less than somebody may expect. Without demonstrations they are None.
    `tools` are the names of those that the model may call."""
    if demonstrations is not None:
        count, twice = len(demonstrations), sum(len(turns) > 2 for _, turns in demonstrations)
        if count < MIN_DEMONSTRATIONS:
            yield f"{count} demonstrations are few: a small model learns to search from a few hundred; add questions"
        if not twice:
            yield (
                "no demonstration has a second search, and training rarely discovers what a warm start never shows; "
                "if questions need two searches, write such demonstrations "
                "(docs/guide/quickstart.md#teach-it-to-search)"
            )
        called = {said.tool for _, turns in demonstrations for said, _ in turns if isinstance(said, CallTurn)}
        if unseen := [name for name in tools if name not in (SEARCH.name, *called)]:
            yield (
                f"no demonstration calls {' or '.join(unseen)}, and a small model rarely begins to by itself; write a "
                "script that does (docs/guide/own-tools.md#show-a-model-how)"
            )
    scored = "test" if questions.test else "dev"
    if 0 < (size := len(questions.splits[scored])) < _MIN_SCORED:
        yield (
            f"scores on {size} {scored} question{'s' * (size > 1)} are uncertain: a score of 0.5 has the 95 % interval "
            f"{_interval(size)}. With {_MIN_SCORED} questions, it would be {_interval(_MIN_SCORED)}"
        )


def _interval(size: int) -> str:
    """95 %, by Wilson's formula, which at 0.5 is symmetric."""
    half = 1.96 / (2 * (size + 1.96**2) ** 0.5)
    return f"{0.5 - half:.2f} to {0.5 + half:.2f}"
