"""The prompts of the prompting methods. The texts are ours; each docstring names its published method."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.retrieval.types import Hit
from holdfast.search.protocol import bare_question, passage_lines

ANSWER_OPEN, ANSWER_CLOSE = "<answer>", "</answer>"
QUERY_OPEN, QUERY_CLOSE = "<|begin_search_query|>", "<|end_search_query|>"
RESULT_OPEN, RESULT_CLOSE = "<|begin_search_result|>", "<|end_search_result|>"
FINDINGS = "**Final Information**"
"""Search-o1's marker. After it comes what the second call took from the documents."""
NO_FINDINGS = "No helpful information found."
LIMIT_NOTICE = "The search limit is reached. No more searches are possible; answer with what you know."
REPEAT_NOTICE = "This query was searched before. Look at its results above."

_DIRECT = (
    "Answer the question from your own knowledge. Write the answer and nothing else: a name, a date or a few words."
)
_COT = (
    "Answer the question. Reason step by step first, then write the final answer, as short as possible, between "
    f"{ANSWER_OPEN} and {ANSWER_CLOSE}."
)
_RAG = (
    "Answer the question with the help of the documents. Write the answer and nothing else: a name, a date or a few "
    "words."
)
_IRCOT = (
    "Answer the question by thinking step by step, one short sentence a step, each a fact from the documents. End with "
    'a sentence of the form "So the answer is: …".\n\n'
    "Here is an example.\n"
    "Doc 1(Title: Harbour Lights) Harbour Lights is a novel by Anna Reyes.\n"
    "Doc 2(Title: Anna Reyes) Anna Reyes was a writer born in Porto.\n"
    "Question: Where was the author of Harbour Lights born?\n"
    "Answer: Harbour Lights was written by Anna Reyes. Anna Reyes was born in Porto. So the answer is: Porto."
)
_SEARCH_O1 = (
    "You are a reasoning assistant who can search. To search, write "
    f"{QUERY_OPEN} your query {QUERY_CLOSE}; the system then reads the documents it finds and writes what is useful "
    f"between {RESULT_OPEN} and {RESULT_CLOSE}. You may search again, at most {{searches}} times. When you know "
    "enough, go on reasoning without a search. Think step by step. Give the final answer as \\boxed{answer}."
)
_REASON_IN_DOCUMENTS = (
    "Read the documents below for the sake of a line of reasoning, and take from them what helps to go on with it. If "
    f"they help, write {FINDINGS} and behind it what they say that is relevant. If not, write {FINDINGS} and behind it "
    f"{NO_FINDINGS}"
)


def direct(question: str) -> str:
    """Answer from memory, nothing but the answer (FlashRAG's zero-shot)."""
    return f"{_DIRECT}\n\n{bare_question(question)}"


def chain_of_thought(question: str) -> str:
    """Reason first; the answer is in tags, which separate it from the reasoning."""
    return f"{_COT}\n\n{bare_question(question)}"


def with_documents(question: str, hits: Sequence[Hit]) -> str:
    """Answer from passages, nothing but the answer (FlashRAG's naive RAG)."""
    return f"{_RAG}\n\n{passage_lines(hits)}\n\n{bare_question(question)}"


def interleaved(question: str, hits: Sequence[Hit]) -> str:
    """IRCoT's reasoning prompt, with one invented example instead of twenty of the data set."""
    return f"{_IRCOT}\n\nNow answer this.\n{passage_lines(hits)}\n{bare_question(question)}"


def search_o1(question: str, searches: int) -> str:
    """Search-o1's main prompt: search tokens, a limit, a boxed answer."""
    return f"{_SEARCH_O1.replace('{searches}', str(searches))}\n\n{bare_question(question)}"


def reason_in_documents(reasoning: str, query: str, hits: Sequence[Hit]) -> str:
    """Search-o1's second call, which reads the documents for the line of reasoning."""
    return (
        f"{_REASON_IN_DOCUMENTS}\n\nThe reasoning so far:\n{reasoning}\n\nThe query: {query}\n\n"
        f"The documents:\n{passage_lines(hits)}"
    )
