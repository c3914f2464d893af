"""Demonstrations of how to search a user's own passages, for the warm start of a model that does not search by itself.

A script asks the question, or its content words. If a passage that comes back has a golden answer, it answers;
otherwise it searches once more, with the title of the first passage and the words that this passage lacks, and answers
if that helped. Queries vary on purpose: a policy that has learned from them has something to try.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.agent.observations import allot
from holdfast.agent.protocol import SearchProtocol
from holdfast.agent.searching import search_patiently
from holdfast.base.errors import DataError
from holdfast.base.scoring import HANGUL, UNSPACED, normalize_answer
from holdfast.retrieval.types import Retriever
from holdfast.tasks.demonstrations import Text, Turn, turn_text
from holdfast.tasks.questions import Example

WHOLE_QUESTION = 0.5
"""Probability that the first query is the question, and not its content words."""

YES_OR_NO = "is yes or no, which any passage may contain"
NOT_FOUND = "is in no passage that was found"
CUT_OFF = "is beyond the end of an observation (protocol.max_observation_tokens)"

_CHARACTERS = 3
"""Characters of an observation that are read, for each of its most tokens: the rest may be cut off for the model."""
_NAMED = 3
"""Questions that were left out, for a reason."""
_TITLE_WORDS = 12
"""A longer first line is the passage itself, of a corpus without titles."""

FIRST_THOUGHTS = ("I look it up.", "Let me search.", "I need a passage.")
_NEXT_THOUGHTS = ("That does not say it. I look up {}.", "Not there yet. {} may say it.", "I search on, for {}.")
LAST_THOUGHTS = ("The passage says it.", "I have read it.", "Found.")
_FUNCTION_WORD = re.compile(
    "a|an|and|are|at|be|been|being|by|can|could|did|do|does|during|for|from|had|has|have|he|her|his|how|in|is|it|its|of|"
    "on|or|she|so|than|that|the|their|them|these|they|this|those|to|was|were|what|when|where|which|while|who|whom|whose|"
    "why|will|with|would"
)


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """What was made of questions."""

    rows: Sequence[Text]
    """(question, turns), in random order."""
    left_out: Mapping[str, Sequence[str]]
    """What the answer is or does, such as `NOT_FOUND` -> the questions that were left out for it."""

    remedy: str = (
        "Check that the passages are about them, or raise protocol.topk or protocol.max_observation_tokens. A search "
        "and an answer need protocol.max_turns = 2"
    )
    """What to do if there are no rows."""

    @property
    def asked(self) -> int:
        """Questions that the script has asked."""
        return len(self.rows) + sum(map(len, self.left_out.values()))

    @property
    def gaps(self) -> list[str]:
        """For each reason, how many questions were left out for it, and which."""
        counts = {why: f"{len(asked):,} question{'s' * (len(asked) > 1)}" for why, asked in self.left_out.items()}
        return [
            f"left out: {counts[why]} whose answer {why}: {' · '.join(asked[:_NAMED])}"
            for why, asked in self.left_out.items()
        ]

    def some(self) -> Sequence[Text]:
        """The rows. Raises `DataError` if there are none."""
        if not self.rows:
            reasons = "; ".join(
                f"for {len(questions):,} questions the answer {why}" for why, questions in self.left_out.items()
            )
            raise DataError(
                f"none of these {self.asked:,} questions has a rollout that ends with its answer, so there is nothing "
                f"to demonstrate: {reasons}. {self.remedy}"
            )
        return self.rows


def demonstrate(
    examples: Sequence[Example],
    retriever: Retriever,
    protocol: SearchProtocol,
    *,
    seed: int = 0,
    most: int | None = None,
) -> Demonstrations:
    """Ask the questions in random order, until there are `most` demonstrations.

    Answers are golden answers as they are written. Yes and no are left out: any passage may have these words.
    """
    rng = random.Random(f"demonstrations-{seed}")
    return Demonstrations(*gathered(examples, lambda example: _turns(example, retriever, protocol, rng), rng, most))


def gathered(
    examples: Sequence[Example], rollout: Callable[[Example], list[Turn] | str], rng: random.Random, most: int | None
) -> tuple[list[Text], dict[str, list[str]]]:
    """Rows of the questions in random order, until there are `most`; and why the others have none, with the questions.

    `rollout` gives the turns of a question, or the reason.
    """
    rows: list[Text] = []
    left_out: defaultdict[str, list[str]] = defaultdict(list)
    for example in rng.sample(examples, len(examples)):
        turns = rollout(example)
        if isinstance(turns, str):
            left_out[turns].append(example.question)
        else:
            rows.append((example.question, turns))
        if len(rows) == most:
            break
    return rows, dict(left_out)


def _turns(example: Example, retriever: Retriever, protocol: SearchProtocol, rng: random.Random) -> list[Turn] | str:
    """A rollout that ends with an answer, or why there is none."""
    golds = [gold for gold in example.golden_answers if normalize_answer(gold) not in ("", "yes", "no")]
    if not golds:
        return YES_OR_NO
    reason = NOT_FOUND
    question = example.question.strip().rstrip("?").rstrip()
    words = content_words(question)
    query = question if rng.random() < WHOLE_QUESTION or not words else " ".join(words)
    thought, turns = rng.choice(FIRST_THOUGHTS), list[Turn]()
    for _ in range(min(2, protocol.max_turns - 1)):
        hits = search_patiently(retriever, query, protocol.topk)
        turns.append((turn_text(thought, query, protocol.search_tags, protocol), hits))
        passages = [hit.document.contents for hit in hits]
        answer = answer_in(_shown(passages, protocol), golds)
        if answer is not None:
            turns.append((turn_text(rng.choice(LAST_THOUGHTS), answer, protocol.answer_tags, protocol), ""))
            return turns
        if answer_in(passages, golds) is not None:
            reason = CUT_OFF
        if not hits or len(hits[0].document.title.split()) > _TITLE_WORDS:
            break
        title, passage = hits[0].document.title, hits[0].document.contents.lower()
        query = " ".join([title, *(word for word in words if word.lower() not in passage)])
        thought = rng.choice(_NEXT_THOUGHTS).format(title)
    return reason


def content_words(question: str) -> list[str]:
    """The words of a question but for those that any question may have.

    >>> content_words("What is the capital of Orsa's neighbour")
    ['capital', "Orsa's", 'neighbour']
    """
    return [word for word in re.findall(r"[\w'.-]+", question) if not _FUNCTION_WORD.fullmatch(word.lower())]


def _shown(passages: Sequence[str], protocol: SearchProtocol) -> list[str]:
    """The beginnings of passages that an observation surely shows."""
    room = _CHARACTERS * protocol.max_observation_tokens
    shares = allot([len(passage) for passage in passages], room)
    return [passage[:share] for passage, share in zip(passages, shares, strict=True)]


def answer_in(passages: Sequence[str], golds: Sequence[str]) -> str | None:
    """The first golden answer that is in the passages, as whole words. Where a script has no blanks between words, any
    place will do, and a Korean word may have particles behind it.

    >>> answer_in(["The lake of Moravia."], ["Mora"]), answer_in(["그것은 에스비의 다리이다."], ["에스비"])
    (None, '에스비')
    """
    text = normalize_answer(" ".join(passages))
    return next((gold for gold in golds if _has(text, normalize_answer(gold))), None)


_LETTER, _NO_LETTER = rf"[^\W{UNSPACED}]", rf"(?![^\W{UNSPACED}{HANGUL}])"
_PARTICLES = 4
"""Syllables, at most, such as 으로부터. One syllable without them is too short to tell from the beginning of a word."""


def _has(text: str, answer: str) -> bool:
    if answer not in text or not answer:
        return False
    begins = "" if re.match(f"[{UNSPACED}]", answer) else f"(?<!{_LETTER})"
    ends = _NO_LETTER
    if re.match(f"[{UNSPACED}]", answer[-1]):
        ends = ""
    elif re.match(f"[{HANGUL}]", answer[-1]):
        ends = rf"(?=[{HANGUL}]{{0,{_PARTICLES if len(answer) > 1 else 0}}}(?!{_LETTER}))"
    return re.search(begins + re.escape(answer) + ends, text) is not None
