"""docs/reference/factbook.md shows questions over the Factbook, as the package of its text makes them.

Run as a script (`make docs`) this writes the page, where the package is installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.agent.protocol import CLEAN
from holdfast.base.errors import MissingExtra
from holdfast.data import factbook
from holdfast.data.factbook.book import PACKAGE, VERSION
from holdfast.data.factbook.demonstrations import STOP_EARLY, WHOLE_QUESTION, demonstrations_of
from holdfast.data.questions import Example
from holdfast.retrieval.bm25 import BM25Retriever

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "factbook.md"
SHOWN = 20
HEAD = """\
# The Factbook

Questions over real prose, for a [real model on a CPU](../guide/real-model.md): the CIA World Factbook, whose
text is in the public domain and comes in a package of the extra `factbook`. A recipe names its parts, which are made in
memory in a few seconds:

```toml
[data]
train = "factbook:train"
dev = "factbook:dev"
test = "factbook:test"

[retrieval]
corpus = "factbook:corpus"

[warm_start]
data = "factbook:demonstrations"
```

`holdfast data prepare factbook --out data/factbook` writes the passages and the questions as files. They are made from
`{package}` {version}, the same on every machine.

* **Passages**: {passages:,}, of {words} words on average, by country and topic.
* **Questions**: {sizes}; {shares}.
* **Splits**: by country. Countries that a longest border links are in one split, so a chain stays in its split, and no
  passage that answers a test question has answered one of training.
* **Clear**: a description is used only where it fits one country and does not name it. No passage of an earlier hop has
  the answer. Other spellings and forms of an answer are golden answers too.

<!-- made from holdfast.data.factbook by `make docs`; edit the texts in tests/contracts/test_factbook_page.py -->
"""


def page() -> str:
    """The page. Raises `MissingExtra` without the package."""
    splits = {split: factbook.load_questions(f"factbook:{split}") for split in ("train", "dev", "test")}
    passages = factbook.load_passages("factbook:corpus")
    words = sum(len(p.contents.partition("\n")[2].split()) for p in passages) / len(passages)
    hops = [example.metadata["hops"] for example in splits["train"]]
    shares = [f"{hops.count(n) / len(hops):.0%} of {n} hop{'s' * (n > 1)}" for n in (1, 2, 3)]
    lines = HEAD.format(
        package=PACKAGE,
        version=VERSION,
        passages=len(passages),
        words=round(words),
        sizes=", ".join(f"{len(examples):,} {split}" for split, examples in splits.items()),
        shares=", ".join(shares),
    ).splitlines()
    lines += ["", f"## {SHOWN} passages", ""]
    for passage in passages[:: len(passages) // SHOWN][:SHOWN]:
        title, _, text = passage.contents.partition("\n")
        lines.append(f"* **{title}** {text}")
    for n in (1, 2, 3):
        chosen = [example for example in splits["train"] if example.metadata["hops"] == n]
        lines += ["", f"## {SHOWN} training questions of {n} hop{'s' * (n > 1)}", "", *table(chosen[:SHOWN])]
    lines += ["", "## Demonstrations", "", *demonstrations(splits["train"], BM25Retriever.build(passages, stem=True))]
    return "\n".join(lines) + "\n"


def table(examples: Sequence[Example]) -> Iterator[str]:
    yield from ("| question | golden answers | searches that find it |", "|---|---|---|")
    for example in examples:
        searches = " · ".join(step["query"] for step in example.metadata["steps"])
        yield f"| {example.question} | {' · '.join(example.golden_answers)} | {searches} |"


def demonstrations(examples: Sequence[Example], retriever: BM25Retriever) -> Iterator[str]:
    """A few, as text, and what makes them noisy."""
    yield from (
        "The warm start learns from scripts on the training questions, with what the recipe's retriever finds. Before",
        f"each search after the first, {STOP_EARLY:.0%} of them stop and answer with what they have found, so a policy",
        "that has learned from them searches well, but rarely often enough. The first query is the whole question in",
        f"{WHOLE_QUESTION:.0%}. Here with one passage a search:",
    )
    for question, turns in demonstrations_of(examples, retriever, replace(CLEAN, topk=1))[:6]:
        text = "".join(text + observation for text, observation in turns)
        yield from ("", "```text", question, *(line for line in text.splitlines() if line), "```")


def test_the_page_shows_the_questions() -> None:
    try:
        made = page()
    except MissingExtra as error:
        pytest.skip(str(error))
    assert PAGE.read_text(encoding="utf-8") == made, "docs/reference/factbook.md is behind the code: run `make docs`"


if __name__ == "__main__":
    try:
        PAGE.write_text(page(), encoding="utf-8")
    except MissingExtra as error:
        print(f"docs/reference/factbook.md stays as it is: {error}")
