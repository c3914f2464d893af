"""The folder of the study on Wikipedia: what is trained on, what is tested, and a recipe that loads."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from holdfast.base.errors import DataError
from holdfast.recipe import load
from holdfast_research.wiki import prepare


def test_the_recipe_trains_on_two_sets_and_tests_all(tmp_path: Path) -> None:
    folder, out = tmp_path / "given", tmp_path / "wiki"
    folder.mkdir()
    with gzip.open(folder / "corpus.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write('{"id": "1", "contents": "\\"Oslo\\"\\nThe capital of Norway."}\n')
    for name in ("nq.train", "hotpotqa.train", "nq.dev", "nq.test", "popqa.test"):
        row = {"id": name, "question": "what is the capital of norway", "golden_answers": ["Oslo"]}
        (folder / f"{name}.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    prepare(folder, out)
    sets = {
        split: {json.loads(line)["data_source"] for line in (out / f"{split}.jsonl").read_text().splitlines()}
        for split in ("train", "dev", "test")
    }
    assert sets == {"train": {"nq", "hotpotqa"}, "dev": {"nq"}, "test": {"nq", "popqa"}}
    config = load(out / "wiki.toml")
    assert config.protocol.prompt is not None and "{question}" in config.protocol.prompt
    assert Path(config.retrieval.corpus).read_text().startswith('{"id": "1"')


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no corpus\.jsonl\.gz"):
        prepare(tmp_path, tmp_path / "wiki")
