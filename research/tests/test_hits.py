"""How often an index finds an answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.types import Document
from holdfast_research.hits import main


def test_hits_of_each_set_and_of_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ("Oslo\nThe capital of Norway is Oslo.", "Alps\nThe Alps are high.", "Capital\nNorway has one capital.")
    index = BM25Retriever.build([Document(str(i), text) for i, text in enumerate(texts)])
    index.save(tmp_path / "index")
    asked = [("nq", "capital of Norway", "oslo"), ("popqa", "high mountains", "Andes"), ("popqa", "high", "alps")]
    questions = tmp_path / "test.jsonl"
    rows = [{"question": text, "golden_answers": [gold], "data_source": name} for name, text, gold in asked]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    main(questions, [tmp_path / "index"])
    _, _, nq, popqa, everything = capsys.readouterr().out.splitlines()
    assert nq == "| index | nq | 1 | 0.00 | 1.00 | 1.00 | 1.00 |  |"
    assert popqa == "| index | popqa | 2 | 0.50 | 0.50 | 0.50 | 0.50 |  |"
    assert everything.startswith("| index | all | 3 | 0.33 | 0.67 | 0.67 | 0.67 | ")
