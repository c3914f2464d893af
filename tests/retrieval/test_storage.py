from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.retrieval.corpus import corpus_hash
from holdfast.retrieval.storage import StoredDocuments, write_documents
from holdfast.retrieval.types import Document

PASSAGES = [
    Document("1", '"Ö"\nline\u2028separator'),
    Document("é", ""),
    Document("3", "漢字 " * 40),
    Document("4", "x"),
]


def test_passages_come_back(tmp_path: Path) -> None:
    assert write_documents(tmp_path, iter(PASSAGES)) == corpus_hash(PASSAGES)
    stored = StoredDocuments(tmp_path)
    assert list(stored) == PASSAGES
    assert (stored[-1], stored[1:3]) == (PASSAGES[3], tuple(PASSAGES[1:3]))
    for row in (4, -5):
        with pytest.raises(IndexError, match="the index has 4"):
            stored[row]
