"""Rows in the schemas that others publish, written by hand; and a folder laid out as the FlashRAG collection."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from holdfast.tasks import catalogue
from holdfast.tasks.catalogue import SETS, QASet

Row = dict[str, Any]


def flashrag_row(i: int, name: str = "nq") -> Row:
    metadata = {"type": "bridge", "context": {"title": ["A", "B"], "sentences": [["x."], ["y."]]}}
    return {"id": f"test_{i}", "question": f"{name} {i}", "golden_answers": [f"G {i}", "h"], "metadata": metadata}


def searchr1_row(i: int, name: str = "nq", split: str = "test") -> Row:
    prompt = [{"role": "user", "content": f"Answer. <answer> Beijing </answer>. Question: {name} {i}?\n"}]
    return {
        "id": f"test_{i}",
        "question": f"{name} {i}?",
        "golden_answers": [f"G {i}", "h"],
        "metadata": {"type": "bridge", "level": None},
        "data_source": name,
        "prompt": prompt,
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": [f"G {i}", "h"]}},
        "extra_info": {"split": split, "index": i},
    }


def _tools(i: int, name: str, split: str) -> Row:
    arguments = {
        "data_source": f"searchR1_{name}",
        "ground_truth": {"target": [f"G {i}", "h"]},
        "question": f"{name} {i}?",
    }
    return {
        "index": i,
        "need_tools_kwargs": True,
        "question": f"{name} {i}?",
        "split": split,
        "tools_kwargs": {"search": {"create_kwargs": arguments}},
    }


def verl_row(i: int, name: str = "nq", split: str = "test") -> Row:
    return {
        "data_source": f"searchR1_{name}",
        "prompt": [{"role": "system", "content": "Help."}, {"role": "user", "content": f"Call a tool. {name} {i}?"}],
        "ability": "fact-reasoning",
        "reward_model": {"ground_truth": {"target": [f"G {i}", "h"]}, "style": "rule"},
        "extra_info": _tools(i, name, split),
        "metadata": None,
    }


def skyrl_row(i: int, name: str = "nq", split: str = "test") -> Row:
    row = verl_row(i, name, split)
    reward = row.pop("reward_model")
    return row | {"env_class": "search", "reward_spec": reward}


def put_jsonl(path: Path, rows: Iterable[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def put_parquet(path: Path, rows: Iterable[Row]) -> Path:
    """As the makers of such files do: the schema is what pyarrow infers."""
    import pyarrow
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return path


@pytest.fixture
def small_sets(monkeypatch: pytest.MonkeyPatch) -> dict[str, QASet]:
    """The seven with sizes of a few questions: what is checked is that sizes are compared, not 200 MB of files."""
    from dataclasses import replace

    for place, (name, qa) in enumerate(list(SETS.items())):
        sizes = dict.fromkeys(qa.sizes, 2 + place)
        monkeypatch.setitem(catalogue.SETS, name, replace(qa, sizes=sizes))
    return catalogue.SETS


@pytest.fixture
def collection(tmp_path: Path, small_sets: dict[str, QASet]) -> Path:
    """Every split of every set, as `SET/SPLIT.jsonl`."""
    folder = tmp_path / "collection"
    for name, qa in small_sets.items():
        for split, size in qa.sizes.items():
            put_jsonl(folder / name / f"{split}.jsonl", (flashrag_row(i, f"{name} {split}") for i in range(size)))
    return folder


Published = Callable[..., Row]


@pytest.fixture
def published() -> Published:
    """`published(form, i, name, split)`: a row as the makers of a form write it; `flashrag` rows know no split."""

    def row(form: str, i: int, name: str = "nq", split: str = "test") -> Row:
        if form == "flashrag":
            return flashrag_row(i, name)
        return {"searchr1": searchr1_row, "verl": verl_row, "skyrl": skyrl_row}[form](i, name, split)

    return row


@pytest.fixture
def put() -> Callable[[Path, Iterable[Row]], Path]:
    """`put(path, rows)`: a .jsonl or .parquet file."""
    return lambda path, rows: (put_parquet if path.suffix == ".parquet" else put_jsonl)(path, rows)
