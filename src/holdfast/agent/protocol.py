"""The language between model and environment: prompt, tags, limits; parsing one turn; writing observations.

A protocol is what `agent/state.py` calls to read a turn and to write what comes back. `SearchProtocol` has tags in one
long message of the model; `ToolProtocol` of `agent/tools.py` has the tool calls of the model's own chat template.

Nothing here knows a model or a retriever. Only text that the model generated is parsed, one turn at a time, so neither
the prompt's example nor a passage can be mistaken for an action.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from holdfast.agent.observations import Observation, fit, format_hits
from holdfast.agent.trajectory import Action, Answer, Invalid, Search
from holdfast.base.errors import ConfigError, DataError
from holdfast.base.thoughts import matches
from holdfast.model.text.chat_template import ChatTemplate
from holdfast.model.text.tokens import Tokenizer, cut_ids, decode, encode, foreign, without_marks
from holdfast.retrieval.types import Hit

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlTags:
    """The tags that the model writes, and those that it should not."""

    call: tuple[str, ...]
    """What opens and closes a call, as far as there are such tags."""
    answer: tuple[str, ...]
    """The same of an answer."""
    thought: tuple[str, str]
    foreign: tuple[str, ...]
    """What belongs nowhere: the environment writes it."""
    ends_outside: bool
    """Whether the end of the sequence may follow an action. If not, a closing tag ends a turn."""
    begins_thinking: bool = False
    """Whether a turn begins inside a thought, which the chat template opens."""

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Opening and closing tags."""
        return [(kind[0], kind[1]) for kind in (self.call, self.answer, self.thought) if len(kind) == 2]


@dataclass(frozen=True, slots=True)
class CallTurn:
    """A turn of a demonstration that calls a tool, for a template to write."""

    thought: str
    """May be empty."""
    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchProtocol:
    """Tags, prompt and limits of a rollout. Change one with `dataclasses.replace(CLEAN, topk=5)`."""

    name: str
    prompt: str
    """User message; `{question}` marks where the question goes. Other braces are plain text."""
    search_tags: tuple[str, str] = ("<search>", "</search>")
    """Opening and closing tag of a query."""
    answer_tags: tuple[str, str] = ("<answer>", "</answer>")
    information_tags: tuple[str, str] = ("<information>", "</information>")
    """Around passages."""
    thought_tags: tuple[str, str] = ("<think>", "</think>")
    invalid_note: str
    """Feedback after a turn that holds neither a search nor an answer."""
    nothing_found: str = "Nothing was found."
    """Content of the information block when a search has no hits."""
    separator: str = "\n\n"
    """Written before and after every observation."""
    title_quotes: bool = False
    """Keep the quotes around a title, as the corpus has them."""
    question_mark: bool = False
    """End a question with `?` when it does not."""
    max_turns: int = 4
    """Model turns in a rollout, the answer included: at most `max_turns - 1` searches are useful."""
    max_turn_tokens: int = 500
    max_observation_tokens: int = 500
    """Tokens of one observation, tags and separators included."""
    max_total_tokens: int = 4096
    """Tokens of a rollout, the prompt included."""
    topk: int = 3
    """Passages per search."""
    template: ChatTemplate = field(default_factory=ChatTemplate)
    """The chat template of the model, which writes the prompt."""

    def __post_init__(self) -> None:
        if "{question}" not in self.prompt:
            raise ConfigError(f"protocol {self.name!r}: prompt must contain {{question}}, which the question replaces")
        tags = self.tags[:6]
        if not all(tags) or len(set(tags)) < len(tags):
            raise ConfigError(
                f"protocol {self.name!r}: search, answer and information tags must be six different texts; they are "
                + ", ".join(map(repr, tags))
            )
        for name in ("max_turns", "max_turn_tokens", "max_observation_tokens", "max_total_tokens", "topk"):
            if getattr(self, name) < 1:
                raise ConfigError(f"protocol {self.name!r}: {name} = {getattr(self, name)}; a rollout needs 1 or more")

    @property
    def stop(self) -> tuple[str, ...]:
        """Texts that end a turn."""
        return (self.search_tags[1], self.answer_tags[1])

    @property
    def tags(self) -> tuple[str, ...]:
        """All of them, the thought's at the end."""
        return (*self.search_tags, *self.answer_tags, *self.information_tags, *self.thought_tags)

    # What `agent/state.py`, a warm start and the trainer call. `ToolProtocol` has its own.

    def control_tags(self, tokenizer: Tokenizer | None) -> ControlTags:
        """The tags of this protocol."""
        return ControlTags(
            call=self.search_tags,
            answer=self.answer_tags,
            thought=self.thought_tags,
            foreign=self.information_tags,
            ends_outside=False,
        )

    @property
    def searches(self) -> bool:
        """Whether the model can search."""
        return True

    @property
    def schemas(self) -> list[dict[str, Any]] | None:
        """JSON schemas of tools for the chat template; None for a protocol of tags."""
        return None

    def parse(self, text: str, tokenizer: Tokenizer, *, finished: bool) -> ParsedTurn:
        """What a turn does. `finished`: the model ended the turn itself, or a stop text did."""
        return parse_turn(text, self)

    def observe(self, hits: Sequence[Hit] | None, tokenizer: Tokenizer, *, turn: Sequence[int] = ()) -> Observation:
        """The observation of a search (`hits`, possibly none) or, for `hits=None`, the note that the turn was invalid.

        At most `max_observation_tokens` ids. A longer one is truncated in token space, the longest passage first, so
        that no passage pays for another's length and the closing tag always stays. Raises `ConfigError` when not even
        the tags fit.

        Args:
            turn: the ids of the turn that it follows.
        """
        limit = self.max_observation_tokens
        ids = self.encode_observation(self.observation_text(hits), tokenizer)
        if truncated := len(ids) > limit:
            ids = cut_ids(tokenizer, ids, limit) if hits is None else self._fitted(hits, tokenizer)
        return Observation(tuple(ids), decode(tokenizer, ids), truncated)

    def _fitted(self, hits: Sequence[Hit], tokenizer: Tokenizer) -> list[int]:
        head, tail = (encode(tokenizer, text) for text in self._around_passages)
        room = self.max_observation_tokens - len(head) - len(tail)
        if room < 1:
            raise ConfigError(
                f"protocol {self.name!r}: max_observation_tokens = {self.max_observation_tokens}, but with this "
                f"tokenizer the information tags alone take {len(head) + len(tail)} tokens; raise it (three passages "
                "of 100 words need about 500)"
            )
        return [*head, *fit(self._passages(hits), room, tokenizer), *tail]

    def observation_text(self, hits: Sequence[Hit] | None) -> str:
        """The text of an observation that is not cut."""
        if hits is None:
            return f"{self.separator}{self.invalid_note}{self.separator}"
        head, tail = self._around_passages
        return f"{head}{''.join(self._passages(hits)).strip()}{tail}"

    def _passages(self, hits: Sequence[Hit]) -> list[str]:
        return format_hits(hits, title_quotes=self.title_quotes) or [self.nothing_found]

    @property
    def _around_passages(self) -> tuple[str, str]:
        opened, closed = self.information_tags
        return self.separator + opened, closed + self.separator

    def said(self, text: str, tokenizer: Tokenizer) -> list[int]:
        """Ids of a text of the model that came without ids: its control tags are tokens, all else is plain."""
        return encode(tokenizer, foreign(text, (*self.tags, *self.control_tags(tokenizer).call)))

    def encode_turn(self, turn: str | CallTurn, tokenizer: Tokenizer) -> list[int]:
        """Ids of a turn of a demonstration, which is written with tags, or is a call where the protocol has calls."""
        assert isinstance(turn, str)
        return self.said(turn, tokenizer)

    def encode_observation(self, text: str, tokenizer: Tokenizer, *, turn: Sequence[int] = ()) -> list[int]:
        """Ids of an observation's text, with tags, in the same pieces in a rollout and in a demonstration; `turn` as in
        `observe`. Otherwise a tokenizer may merge a tag with its neighbour into a token that a small model has never
        seen."""
        head, tail = self._around_passages
        if not (text.startswith(head) and text.endswith(tail)):
            return encode(tokenizer, text)
        body = text[len(head) : len(text) - len(tail)]
        return [*encode(tokenizer, head), *encode(tokenizer, foreign(body)), *encode(tokenizer, tail)]

    def check_template(self, tokenizer: Tokenizer, ends: Collection[int] | None = None) -> None:
        """Raise `ConfigError` for a chat template that lacks what the protocol needs.

        `ends`: the ids that end a text of the model, if known.
        """


ParsedTurn = tuple[Action, tuple[int, int] | None]
"""The action of a turn, and [start, end) of its query or answer in the turn's text, tags included; None when the turn
holds neither."""


CLEAN = SearchProtocol(
    name="clean",
    prompt=(
        "Find the answer to a question. Think between <think> and </think> whenever you learn something. If you lack a "
        "fact, write <search> what to look for </search>: a search engine replies between <information> and "
        "</information>. Search as often as you need. As soon as you know enough, write <answer> your answer </answer> "
        "with the answer alone, nothing explained.\nQuestion: {question}\n"
    ),
    invalid_note=(
        "That was neither a search nor an answer. Write <search> what to look for </search> to search, or "
        "<answer> your answer </answer> to answer."
    ),
)
"""The default: unambiguous limits, only generated text is parsed and scored."""

SEARCH_R1 = SearchProtocol(
    name="search-r1",
    prompt=(
        "Give the answer to the question that follows. Each time you receive new information, reason about it first, "
        "between <think> and </think>. Should your reasoning show that you lack knowledge, call a search engine with "
        "<search> query </search>; the best results come back between <information> and </information>. There is no "
        "limit on the number of searches. Once no further knowledge is needed, put the answer between <answer> and "
        "</answer>, with no detailed illustration, like this: <answer> Lisbon </answer>. Question: {question}\n"
    ),
    invalid_note=(
        "My last action was not valid. When I want to search, the query belongs between <search> and </search>. When I "
        "want to answer, the final answer belongs between <answer> and </answer>. Let me try once more."
    ),
    nothing_found="",
    title_quotes=True,
    question_mark=True,
    max_turns=5,
)
"""Search-R1's semantics (arXiv 2503.09516, at `max_turns=4`) for comparison: tags, limits, quoted titles,
a question mark appended, the invalid-action note unwrapped. The wording is ours, so published scores are not reproduced
token for token. Deviations on purpose: its four turns and one final generation are `max_turns=5` here; sampled ids are
kept instead of encoded again; a cut shortens the longest passage and keeps the closing tag; context is never cut from
the left; a search in the last turn ends the rollout as truncated; only generated text is scored, so a rollout without
an answer does not score as the prompt's example; of two opening tags before a closing one the nearer counts; empty
queries and answers are invalid."""

SAPO = replace(
    SEARCH_R1,
    name="sapo",
    prompt=(
        "You answer questions with the help of a search engine, over several turns. Reason first about what is known, "
        "between <think> and </think>. When knowledge is missing, send a request at any time as <search> query "
        "</search>; the most relevant documents come back between <documents> and </documents>. Several requests are "
        "allowed. Once you know enough, put a short final answer between <answer> and </answer>, like this: <answer> "
        "Lisbon </answer>. Question: {question}\n"
    ),
    information_tags=("<documents>", "</documents>"),
    max_turns=6,
)
"""The interaction of Search Agent Policy Optimization (arXiv 2603.10069): that of Search-R1 with `<documents>` for
`<information>`, a prompt of its own, and five searches. The wording is ours, and the deviations are those of
`SEARCH_R1`: its five turns and one final generation are `max_turns=6` here."""

R1 = SearchProtocol(
    name="r1",
    prompt=(
        "Answer the question that follows. Reason about it first, between <think> and </think>. Then put the answer "
        "between <answer> and </answer>, with the answer alone, like this: <answer> Lisbon </answer>. Question: "
        "{question}\n"
    ),
    invalid_note="",
    max_turns=1,
)
"""Reinforcement learning without search: the model reasons and answers in a single turn."""


def parse_action(text: str, protocol: SearchProtocol) -> Action:
    """What one turn does. `text` is what the model generated in that turn, and nothing else.

    The first closing tag ends the turn; what follows it (the overhang of the last token) is not read. An opening tag
    that is only mentioned earlier does no harm: the nearest one before the closing tag counts. What a thought holds is
    no action, once the thought has ended.

    >>> parse_action("<think> who? </think> <search> capital of Orsa </search>\\n\\n", CLEAN)
    Search(query='capital of Orsa')
    >>> parse_action("I know: <answer> Mira </answer>", CLEAN)
    Answer(text='Mira')
    >>> parse_action("<think> maybe <answer>x</answer> </think> <answer>Mora</answer>", CLEAN)
    Answer(text='Mora')
    >>> parse_action("<search>  </search>", CLEAN)
    Invalid(reason='empty query')
    """
    return parse_turn(text, protocol)[0]


def parse_turn(text: str, protocol: SearchProtocol) -> ParsedTurn:
    """`parse_action`, and the characters of the action."""
    ends = sorted((protocol.search_tags[1], protocol.answer_tags[1]), key=len, reverse=True)
    begin = 0
    for closing, in_thought in matches(re.compile("|".join(map(re.escape, ends))), text):
        if not in_thought:
            break
        begin = closing.end()
    else:
        opened = protocol.search_tags[0] in text[begin:] or protocol.answer_tags[0] in text[begin:]
        return Invalid("a tag is not closed" if opened else "neither a search nor an answer"), None
    is_search = closing.group() == protocol.search_tags[1]
    opening = (protocol.search_tags if is_search else protocol.answer_tags)[0]
    start = text.rfind(opening, begin, closing.start())
    if start < 0:
        return Invalid(f"{closing.group()} without {opening}"), None
    content = text[start + len(opening) : closing.start()].strip()
    if not content:
        return Invalid("empty query" if is_search else "empty answer"), None
    return Search(content) if is_search else Answer(content), (start, closing.end())


def prompt_text(question: str, protocol: SearchProtocol) -> str:
    """The user message that asks a question. Raises `DataError` for an empty one.

    >>> from dataclasses import replace
    >>> prompt_text(" Who? ", replace(CLEAN, prompt="Question: {question}"))
    'Question: Who?'
    """
    return without_marks(_prompt_text(question, protocol))


def _prompt_text(question: str, protocol: SearchProtocol) -> str:
    """`prompt_text` with the question marked as foreign."""
    question = question.strip()
    if not question:
        raise DataError("the question is empty")
    if protocol.question_mark and not question.endswith("?"):
        question += "?"
    return protocol.prompt.replace("{question}", foreign(question))


def render_prompt(question: str, protocol: SearchProtocol, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids of the prompt, up to where the model's one long message begins.

    Raises `DataError` for an empty question, `ConfigError` for a template that is missing, fails, drops the question,
    or lacks tools that the protocol needs.
    """
    prompt = _prompt_text(question, protocol)
    protocol.check_template(tokenizer)
    return protocol.template.prompt(tokenizer, prompt, protocol.schemas)


# ---- questions without instructions, for models trained on examples. Training and asking must use the same texts.

NO_PASSAGES = "Nothing was found."


def passage_lines(hits: Sequence[Hit]) -> str:
    """Passages, one per line, as every method shows them; a sentence when there are none."""
    return "".join(format_hits(hits)).strip() or NO_PASSAGES


def bare_question(question: str) -> str:
    """The question alone.

    >>> bare_question(" Who? ")
    'Question: Who?\\nAnswer:'
    """
    return f"Question: {question.strip()}\nAnswer:"


def bare_question_with_passages(question: str, hits: Sequence[Hit]) -> str:
    """Passages, then the question."""
    return f"{passage_lines(hits)}\n{bare_question(question)}"
