"""What every retriever takes and returns: queries in, ranked hits out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Document:
    """One passage. `contents` is the title on its first line (Wikipedia corpora quote it), then the text.

    >>> d = Document("7", '"Orsa"\\nOrsa is a town.\\nIt is old.')
    >>> d.title, d.text
    ('Orsa', 'Orsa is a town.\\nIt is old.')
    """

    id: str
    contents: str

    @property
    def title(self) -> str:
        """First line of `contents`, without surrounding blanks and without one pair of double quotes."""
        line = self.contents.partition("\n")[0].strip()
        return line[1:-1] if len(line) > 1 and line[0] == line[-1] == '"' else line

    @property
    def text(self) -> str:
        """Everything after the first line; empty for a document of one line."""
        return self.contents.partition("\n")[2]


@dataclass(frozen=True, slots=True)
class Hit:
    """A document a search returned, with the backend's score (BM25 or inner product: not comparable)."""

    document: Document
    score: float


@dataclass(frozen=True, slots=True)
class Ranked:
    """Rows of a corpus, best first, and their scores: both `[hits]`."""

    rows: NDArray[np.int64]
    scores: NDArray[np.float32]


class Retriever(Protocol):
    """Anything that can rank documents for queries."""

    @property
    def in_process(self) -> bool:
        """True when a search is plain computation in this process: it is then called synchronously, so that runs
        repeat exactly. False for anything that waits on a network."""
        ...

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits per query, best first, one list per query in the order asked; possibly empty.

        Raises `RetrievalError` when the backend fails. An empty list always means "nothing matches", never "it broke".
        """
        ...


class NoPassages:
    """The retriever of an agent that does not search."""

    in_process = True

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """No hits."""
        return [[] for _ in queries]


class IndexedRetriever(Retriever, Protocol):
    """A retriever that holds its passages."""

    documents: Sequence[Document]

    @property
    def corpus_hash(self) -> str:
        """Fingerprint of the passages and their order."""
        ...

    def rank(self, queries: Sequence[str], k: int) -> list[Ranked]:
        """The hits of `search`, as rows of `documents` and scores."""
        ...


def hits_of(ranked: Sequence[Ranked], documents: Sequence[Document]) -> list[list[Hit]]:
    """Rows and scores as hits, one list per query."""
    return [
        [Hit(documents[int(row)], float(score)) for row, score in zip(query.rows, query.scores, strict=True)]
        for query in ranked
    ]
