from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from holdfast.retrieval import storage as module
from holdfast.retrieval.storage import DocumentWriter, NpyWriter, StoredDocuments, mapped, write_offsets
from holdfast.retrieval.types import Document

PASSAGES = [
    Document("1", '"Ö"\nline\u2028separator'),
    Document("é", ""),
    Document("3", "漢字 " * 40),
    Document("4", "x"),
]


def store(folder: Path) -> StoredDocuments:
    writer = DocumentWriter(folder)
    for document in PASSAGES:
        writer.add(document)
    writer.close()
    write_offsets(folder, len(PASSAGES))
    return StoredDocuments(folder)


def test_passages_come_back(tmp_path: Path) -> None:
    stored = store(tmp_path)
    assert list(stored) == PASSAGES
    assert (stored[-1], stored[1:3]) == (PASSAGES[3], tuple(PASSAGES[1:3]))
    for row in (4, -5):
        with pytest.raises(IndexError, match="the index has 4"):
            stored[row]


def test_offsets_do_not_depend_on_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(tmp_path)
    whole = mapped(tmp_path / module.OFFSETS).tolist()
    monkeypatch.setattr(module, "_BLOCK", 7)
    write_offsets(tmp_path, len(PASSAGES))
    assert mapped(tmp_path / module.OFFSETS).tolist() == whole


def test_an_array_is_written_in_parts_and_continued(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.float16).reshape(8, 3)
    path = tmp_path / "x.npy"
    with NpyWriter(path, np.float16, (8, 3)) as out:
        out.write(values[:2])
        out.write(values[2:5])
    with NpyWriter(path, np.float16, (8, 3), rows=4) as out:  # the fifth row is not trusted
        out.write(values[4:])
    assert (mapped(path) == values).all()
    assert mapped(path).dtype == np.float16
