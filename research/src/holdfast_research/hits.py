"""How often search indexes find an answer, and how long a query takes.

    python -m holdfast_research.hits data/wiki/test.jsonl data/wiki/index data/wiki/minilm

The query is the question as it is. It is a hit where one of the first passages has a golden answer, as the score `hit`
of `holdfast eval run` counts it. Prints a table with a line for each index and set of questions.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Annotated

import typer

from holdfast.base.scoring import in_passages
from holdfast.retrieval import open_index
from holdfast.retrieval.types import Hit, Retriever
from holdfast.tasks.files import iter_examples
from holdfast.tasks.questions import Example

DEPTHS = (1, 2, 3, 10)
"""Passages that are looked at."""


def first_hit(example: Example, hits: Sequence[Hit]) -> float:
    """The rank, from 1, of the first passage with a golden answer; infinite where none has one.

    >>> from holdfast.retrieval.types import Document
    >>> hits = [Hit(Document("1", "Oslo grew."), 2.0), Hit(Document("2", "The Alps."), 1.0)]
    >>> asked = Example(source="nq", split="test", index=0, question="Where?", golden_answers=("alps",))
    >>> first_hit(asked, hits), first_hit(asked, hits[:1])
    (2, inf)
    """
    texts = (hit.document.contents for hit in hits)
    found = (rank for rank, text in enumerate(texts, start=1) if in_passages([text], example.golden_answers))
    return next(found, math.inf)


def rows(name: str, retriever: Retriever, examples: Sequence[Example]) -> Iterator[str]:
    """Lines of the table: for each set, the share of questions with a hit at each depth; for all, also milliseconds."""
    ranks: dict[str, list[float]] = defaultdict(list)
    retriever.search([examples[0].question], DEPTHS[-1])  # the first search also loads
    started = time.perf_counter()
    found = retriever.search([example.question for example in examples], DEPTHS[-1])
    milliseconds = 1000 * (time.perf_counter() - started) / len(examples)
    for example, hits in zip(examples, found, strict=True):
        for group in (example.source, "all"):
            ranks[group].append(first_hit(example, hits))
    for group in (*sorted(set(ranks) - {"all"}), "all"):
        values = ranks[group]
        shares = " | ".join(f"{mean(rank <= depth for rank in values):.2f}" for depth in DEPTHS)
        took = f"{milliseconds:.1f}" if group == "all" else ""
        yield f"| {name} | {group} | {len(values)} | {shares} | {took} |"


def main(
    questions: Annotated[Path, typer.Argument(metavar="QUESTIONS", help="JSONL file of questions.")],
    indexes: Annotated[list[Path], typer.Argument(metavar="INDEX...", help="Folders of search indexes.")],
) -> None:
    """Print how often each index finds an answer among its first passages."""
    examples = list(iter_examples(questions))
    typer.echo(f"| index | questions of | questions | {' | '.join(f'hit@{k}' for k in DEPTHS)} | ms a query |")
    typer.echo("|---" * (len(DEPTHS) + 4) + "|")
    for folder in indexes:
        for row in rows(folder.name, open_index(folder), examples):
            typer.echo(row)


if __name__ == "__main__":
    typer.run(main)
