"""The methods of evaluation, and one table of them.

A prompting method is a conversation, which is a generator. It yields a `Prompt` and is sent a `Reply`, yields a
`ToolCall` and is sent the tool's result, and returns an `Outcome`. It knows nothing of tokens, servers and batches;
`agents.py` makes it an agent of the scheduler. The search agent (`search-r1`, `r1`) exchanges tokens instead of texts;
it is the agent of `agent/agent.py`.

The methods follow their publications as far as these define them; docs/reference/evaluate.md lists the differences. The
module is light, because the command line checks names here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.agent.protocol import R1, SearchProtocol, bare_question, bare_question_with_passages, passage_lines
from holdfast.agent.scheduler import ToolCall
from holdfast.agent.searching import SEARCH
from holdfast.base.errors import ConfigError, nearest_name
from holdfast.base.thoughts import after_thought
from holdfast.model.sampler.policy import StopReason
from holdfast.retrieval.types import Hit

ANSWER_OPEN, ANSWER_CLOSE = "<answer>", "</answer>"
QUERY_OPEN, QUERY_CLOSE = "<|begin_search_query|>", "<|end_search_query|>"
RESULT_OPEN, RESULT_CLOSE = "<|begin_search_result|>", "<|end_search_result|>"
FINDINGS = "**Final Information**"
"""Search-o1's marker. After it comes what the second call took from the documents."""
NO_FINDINGS = "No helpful information found."
TAGS = (ANSWER_OPEN, ANSWER_CLOSE, QUERY_OPEN, QUERY_CLOSE, RESULT_OPEN, RESULT_CLOSE, "<think>", "</think>")
"""What may be a control token in an answer that the model continues."""
LIMIT_NOTICE = "The search limit is reached. No more searches are possible; answer with what you know."
REPEAT_NOTICE = "This query was searched before. Look at its results above."

# The prompts of the methods. The texts are ours; FlashRAG's zero-shot and naive RAG ask in the same way.
DIRECT_PROMPT = (
    "Answer the question from your own knowledge. Write the answer and nothing else: a name, a date or a few words."
)
COT_PROMPT = (
    "Answer the question. Reason step by step first, then write the final answer, as short as possible, between "
    f"{ANSWER_OPEN} and {ANSWER_CLOSE}."
)
RAG_PROMPT = (
    "Answer the question with the help of the documents. Write the answer and nothing else: a name, a date or a few "
    "words."
)
# One invented example, where IRCoT has twenty of the data set.
IRCOT_PROMPT = (
    "Answer the question by thinking step by step, one short sentence a step, each a fact from the documents. End with "
    'a sentence of the form "So the answer is: …".\n\n'
    "Here is an example.\n"
    "Doc 1(Title: Harbour Lights) Harbour Lights is a novel by Anna Reyes.\n"
    "Doc 2(Title: Anna Reyes) Anna Reyes was a writer born in Porto.\n"
    "Question: Where was the author of Harbour Lights born?\n"
    "Answer: Harbour Lights was written by Anna Reyes. Anna Reyes was born in Porto. So the answer is: Porto."
)
SEARCH_O1_PROMPT = (
    "You are a reasoning assistant who can search. To search, write "
    f"{QUERY_OPEN} your query {QUERY_CLOSE}; the system then reads the documents it finds and writes what is useful "
    f"between {RESULT_OPEN} and {RESULT_CLOSE}. You may search again, at most {{searches}} times. When you know "
    "enough, go on reasoning without a search. Think step by step. Give the final answer as \\boxed{answer}."
)
READING_PROMPT = (
    "Read the documents below to support the reasoning so far, and take from them what helps to go on with it. If "
    f"they help, write {FINDINGS} and behind it what they say that is relevant. If not, write {FINDINGS} and behind it "
    f"{NO_FINDINGS}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One model call: a user message, and the beginning of the answer, which the model continues."""

    instruction: str = ""
    """The first paragraph of the user message, which is the method's."""
    user: str
    """The rest: passages, the question, what the model said before. Nothing in it becomes a control token."""
    answer_start: str = ""
    max_tokens: int
    stop: tuple[str, ...] = ()
    stops_in_thought: bool = False
    """Whether a stop text counts inside a thought, as a search of Search-o1 does."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model wrote, up to and including the stop text."""

    text: str
    stop_reason: StopReason
    thinking: bool = False
    """Whether the text begins inside a thought, which the chat template opened."""

    @property
    def said(self) -> str:
        """What follows its thought; `""` when the thought has no end."""
        start = after_thought(self.text, thinking=self.thinking)
        return "" if start is None else self.text[start:]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a conversation."""

    prediction: str | None
    """The extracted answer; None if there is none."""
    raw: str
    """The full text that the answer was extracted from, without thoughts."""
    truncated: bool = False
    """Whether a budget ended it before an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Budgets of the prompting methods; the published ones unless stated otherwise."""

    answer_tokens: int = 32
    """For a short answer (FlashRAG)."""
    thought_tokens: int = 512
    """For a chain of thought."""
    sentence_tokens: int = 100
    """For one step of IRCoT, of which the first sentence is used."""
    reasoning_tokens: int = 8192
    """For each call of Search-o1."""
    sentences: int = 10
    """Steps of IRCoT."""
    paragraphs: int = 15
    """Passages that IRCoT collects."""
    searches: int = 10
    """Searches of Search-o1: 10 on multi-hop questions; `SINGLE_HOP_LIMITS` for others."""
    turns: int = 15
    """Reasoning calls of Search-o1."""


LIMITS = Limits()
SINGLE_HOP_LIMITS = replace(LIMITS, searches=5)

Conversation = Generator[Prompt | ToolCall, Any, Outcome]


def search(query: str) -> ToolCall:
    """One search; the reply is a list of hits."""
    return ToolCall(SEARCH, query)


def asked_with(question: str, hits: Sequence[Hit]) -> str:
    """Passages, then the question."""
    return f"{passage_lines(hits)}\n\n{bare_question(question)}"


def direct(question: str, limits: Limits) -> Conversation:
    """From memory: one call. The first line of the reply is the answer."""
    reply = yield Prompt(instruction=DIRECT_PROMPT, user=bare_question(question), max_tokens=limits.answer_tokens)
    return _first_line(reply)


def bare_direct(question: str, limits: Limits) -> Conversation:
    """`direct` as models are trained on it: the question alone."""
    reply = yield Prompt(user=bare_question(question), max_tokens=limits.answer_tokens)
    return _first_line(reply)


def chain_of_thought(question: str, limits: Limits) -> Conversation:
    """One call that reasons first and gives the answer in tags."""
    reply = yield Prompt(
        instruction=COT_PROMPT, user=bare_question(question), max_tokens=limits.thought_tokens, stop=(ANSWER_CLOSE,)
    )
    answer = tagged_answer(reply.said)
    return Outcome(answer, reply.said, answer is None and reply.stop_reason == "length")


def rag(question: str, limits: Limits) -> Conversation:
    """One search with the question, one call with its passages."""
    hits = yield search(question)
    reply = yield Prompt(instruction=RAG_PROMPT, user=asked_with(question, hits), max_tokens=limits.answer_tokens)
    return _first_line(reply)


def bare_rag(question: str, limits: Limits) -> Conversation:
    """`rag` as models are trained on it: passages and the question, without instructions."""
    hits = yield search(question)
    reply = yield Prompt(user=bare_question_with_passages(question, hits), max_tokens=limits.answer_tokens)
    return _first_line(reply)


def ircot(question: str, limits: Limits) -> Conversation:
    """IRCoT (arXiv 2212.10509): each sentence of a chain of thought is the next query; a reader answers at the end.

    A sentence that only concludes ("So …", arithmetic) is not a query. The chain ends with a sentence that gives the
    answer, after `limits.sentences`, or with an empty reply. Then one more call reads all collected passages.
    """
    query = " ".join(_QUESTION_WORDS.sub(" ", question).split()) or question
    collected = list((yield search(query))[: limits.paragraphs])
    sentences: list[str] = []
    while len(sentences) < limits.sentences:
        answer_start = "".join(f" {sentence}" for sentence in sentences)
        user = f"Now answer this.\n{bare_question_with_passages(question, collected)}"
        reply = yield Prompt(
            instruction=IRCOT_PROMPT, user=user, answer_start=answer_start, max_tokens=limits.sentence_tokens
        )
        sentence = first_sentence(reply.said)
        if not sentence:
            break
        sentences.append(sentence)
        if _ANSWERS.search(sentence):
            break
        if not (_CONCLUDES.match(sentence) or _ARITHMETIC.search(sentence)):
            known = {hit.document.id for hit in collected}
            new = [hit for hit in (yield search(sentence)) if hit.document.id not in known]
            collected += new[: limits.paragraphs - len(collected)]
    user = asked_with(question, collected)
    reply = yield Prompt(instruction=RAG_PROMPT, user=user, max_tokens=limits.answer_tokens)
    return _first_line(reply)


def search_o1(question: str, limits: Limits) -> Conversation:
    """Search-o1 (arXiv 2501.05366): searches inside one long reasoning, read by a second call before they enter it.

    A repeated query, and one beyond the limit, gets a notice instead of results. Without a boxed answer, the method
    falls back to `direct`.
    """
    first = Prompt(
        instruction=SEARCH_O1_PROMPT.replace("{searches}", str(limits.searches)),
        user=bare_question(question),
        max_tokens=limits.reasoning_tokens,
        stop=(QUERY_CLOSE,),
        stops_in_thought=True,
    )
    reasoning, queries = "", list[str]()
    for _ in range(limits.turns):
        reply = yield replace(first, answer_start=reasoning)
        reasoning += reply.text
        query = _query_in(reply.text)
        if query is None:
            break
        if query in queries:
            findings = REPEAT_NOTICE
        elif len(queries) >= limits.searches:
            findings = LIMIT_NOTICE
        else:
            queries.append(query)
            hits = yield search(query)
            user = (
                f"The reasoning so far:\n{shortened(reasoning)}\n\nThe query: {query}\n\n"
                f"The documents:\n{passage_lines(hits)}"
            )
            reader = Prompt(instruction=READING_PROMPT, user=user, max_tokens=limits.reasoning_tokens)
            reading = (yield reader).said
            findings = reading.rpartition(FINDINGS)[2].strip() if FINDINGS in reading else ""
            findings = findings or NO_FINDINGS
        reasoning += f"\n\n{RESULT_OPEN}{findings}{RESULT_CLOSE}\n\n"
    answer = boxed(reasoning)
    if answer is not None:
        return Outcome(answer, reasoning)
    return (yield from direct(question, limits))


def tagged_answer(text: str) -> str | None:
    """The last complete answer in tags. It begins at the last tag that opens: the thoughts before may name the tag.

    >>> tagged_answer("so <answer> Orsa </answer>, no: <answer>Mora</answer>")
    'Mora'
    """
    answers = re.findall(rf"{ANSWER_OPEN}(.*?){ANSWER_CLOSE}", text, re.S)
    return (answers[-1].rpartition(ANSWER_OPEN)[2].strip() or None) if answers else None


def boxed(text: str) -> str | None:
    r"""The content of the last complete \boxed{…}, braces inside it balanced, an inner \text{…} unwrapped.

    >>> boxed(r"thus \boxed{\text{Orsa}}.")
    'Orsa'
    """
    mark = r"\boxed{"
    start = text.rfind(mark)
    while start >= 0:
        depth = 1
        for i in range(start + len(mark), len(text)):
            depth += {"{": 1, "}": -1}.get(text[i], 0)
            if depth == 0:
                inner = text[start + len(mark) : i].strip()
                unwrapped = re.fullmatch(r"\\text\{(.*)\}", inner, re.S)
                return (unwrapped[1].strip() if unwrapped else inner) or None
        start = text.rfind(mark, 0, start)  # its brace was never closed
    return None


def first_sentence(text: str) -> str:
    """Up to the first full stop, question or exclamation mark that ends a word of more than a letter, or the line.

    >>> first_sentence("\\n J. R. Smith wrote it. He was old.")
    'J. R. Smith wrote it.'
    """
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    match = re.match(r".*?(?:\w{2,}|\d|[^\w\s])[.!?](?=\s|$)", line)
    return match[0] if match else line


def shortened(reasoning: str) -> str:
    """Search-o1's cut of a long reasoning: its first step, its last four, and the steps with a query or a result."""
    steps = [step for step in reasoning.split("\n\n") if step.strip()]
    marks = (QUERY_OPEN, RESULT_OPEN)
    shown = [i in (0, *range(len(steps) - 4, len(steps))) or any(m in s for m in marks) for i, s in enumerate(steps)]
    lines: list[str] = []
    for step, show in zip(steps, shown, strict=True):
        if show:
            lines.append(step)
        elif lines[-1] != "...":
            lines.append("...")
    return "\n\n".join(lines)


_ANSWERS = re.compile(r"\banswer is\b", re.I)
_QUESTION_WORDS = re.compile(r"\b(?:who|whom|whose|what|when|where|which|why|how)\b", re.I)
_CONCLUDES = re.compile(r"(?:thus|so|therefore|hence|accordingly|consequently)\b", re.I)
_ARITHMETIC = re.compile(r"\d\s*[-+*/=]\s*\d")


def _query_in(text: str) -> str | None:
    """The query at the end of a text; None when the text does not ask for a search."""
    before, closed, _ = text.partition(QUERY_CLOSE)
    _, opened, query = before.rpartition(QUERY_OPEN)
    return (query.strip() or None) if closed and opened else None


def _first_line(reply: Reply) -> Outcome:
    lines: Sequence[str] = [line.strip() for line in reply.said.splitlines() if line.strip()]
    cut = reply.stop_reason == "length" and len(lines) <= 1
    return Outcome(lines[0] if lines else None, reply.said, cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way to get answers from a model."""

    name: str
    conversation: Callable[[str, Limits], Conversation] | None = None
    """Makes the conversation about a question. None: rollouts of the search agent, under the recipe's protocol."""
    bare: Callable[[str, Limits], Conversation] | None = None
    """The conversation without instructions, for a model that was trained on the method."""
    preset: SearchProtocol | None = None
    """For the search agent: a protocol whose prompt and turns replace the recipe's."""
    searches: bool = False
    most_searches: str = ""
    """How many searches a question may have, as tables print it. Empty: one in every turn but the last."""
    single_call: bool = False
    """Whether the whole output is scored too, as some published rows seem to have been."""

    def continues(self, protocol: SearchProtocol) -> bool:
        """Whether the model continues an answer that it has begun: after a search, or by the next sentence."""
        return protocol.max_turns > 1 if self.conversation is None else not self.single_call

    def searches_allowed(self, protocol: SearchProtocol) -> str:
        """What tables print: `none`, or how many searches a question may have."""
        if not self.searches or (self.conversation is None and not protocol.searches):
            return "none"
        return self.most_searches or str(protocol.max_turns - 1)


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(name="direct", conversation=direct, bare=bare_direct, single_call=True),
        Method(name="cot", conversation=chain_of_thought, single_call=True),
        Method(name="rag", conversation=rag, bare=bare_rag, searches=True, most_searches="1", single_call=True),
        Method(name="ircot", conversation=ircot, searches=True, most_searches=str(LIMITS.sentences + 1)),
        Method(
            name="search-o1",
            conversation=search_o1,
            searches=True,
            most_searches=f"{SINGLE_HOP_LIMITS.searches} (multi-hop {LIMITS.searches})",
        ),
        Method(name="r1", preset=R1),
        Method(name="search-r1", searches=True),
    )
}


def method_named(name: str) -> Method:
    """Raises `ConfigError` for an unknown name."""
    if name not in METHODS:
        raise ConfigError(f"--method {name}: there is no such method; {nearest_name(name, METHODS)}")
    return METHODS[name]
