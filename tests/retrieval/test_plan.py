"""Sizes against what indexes really take; times are only looked at for being there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import ConfigError
from holdfast.retrieval import plan
from holdfast.retrieval.bm25_building import build_bm25
from holdfast.retrieval.dense_building import build_dense
from holdfast.retrieval.encoder import spec_of

Write = Callable[..., Path]


def bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("sq8", [False, True])
def test_disk_is_what_an_index_takes(write_corpus: Write, encoder: Any, tmp_path: Path, sq8: bool) -> None:
    corpus = write_corpus(1500)
    sample, count = plan.sample_of(corpus, None)
    assert (len(sample), count) == (1500, 1500)
    size = plan.size_of(sample, count)
    build_bm25(corpus, tmp_path / "bm25")
    words = ("vocabulary.json", "largest.f4", "starts.i8")  # Heaps' law is for larger vocabularies
    without_words = bytes_of(tmp_path / "bm25") - sum((tmp_path / "bm25" / word).stat().st_size for word in words)
    needs = plan.bm25_needs(size, 1000)
    assert needs.disk - 12 * size.vocabulary == pytest.approx(without_words, rel=0.05)
    build_dense(corpus, tmp_path / "dense", spec_of(str(encoder())), sq8=sq8, device="cpu")
    needs = plan.dense_needs(size, 32, 10.0, 1e-6, sq8=sq8)
    assert needs.disk == pytest.approx(bytes_of(tmp_path / "dense"), rel=0.05)
    assert needs.build_seconds == 150


def test_wiki_18() -> None:
    size = plan.size_of(*plan.sample_of(None, None))
    assert 0.9 < size.text * size.passages / 14e9 < 1.1
    assert 0.85 < size.pairs / 57 < 1.15
    halves, bytes_ = (plan.dense_needs(size, 768, None, 1e-6, sq8=sq8) for sq8 in (False, True))
    documents = (size.text + 8) * size.passages
    assert halves.disk - documents == pytest.approx(2 * 768 * 21_015_324)  # 32.3 GB
    assert bytes_.disk - halves.disk == pytest.approx(768 * 21_015_324)  # 16.1 GB
    assert bytes_.memory - documents == pytest.approx(768 * 21_015_324)
    assert halves.building_memory < 3 * 2**30  # the vectors are never held, the codes are
    assert bytes_.building_memory == pytest.approx(768 * 21_015_324, rel=0.02)
    assert halves.build_seconds is None


def test_rates_are_measured(encoder: Any) -> None:
    sample, _ = plan.sample_of(None, 100)
    assert plan.bm25_rate(sample[:200]) > 0
    rate, dimensions = plan.encoding_rate(str(encoder()), sample[:50], "cpu")
    assert rate > 0 and dimensions == 32
    assert plan.row_seconds(8, "cpu") > 0


def test_nothing_to_plan_for() -> None:
    with pytest.raises(ConfigError, match="the corpus is empty"):
        plan.size_of([], 3)


def test_of_a_folder_passages_are_counted_and_not_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        text = "\n\n".join(f"# Part {i}\n\n" + f"word{i} " * 400 for i in range(3))
        (tmp_path / f"{name}.md").write_text(text)
    sample, count = plan.sample_of(tmp_path, None)
    assert count == len(sample) > 2
