"""Dense indexes: exact search, what is stored, what is refused, and what an interruption leaves."""

from __future__ import annotations

import copy
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from holdfast.base.errors import ConfigError, DataError
from holdfast.base.progress import Progress
from holdfast.retrieval import open_index, storage
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.bm25_building import build_bm25
from holdfast.retrieval.dense import DenseRetriever, ExactSearch, SQ8Search, rescore_exact
from holdfast.retrieval.dense_building import build_dense, open_vectors, write_sq8
from holdfast.retrieval.encoder import Encoder, EncoderSpec, pool, spec_of

Write = Callable[..., Path]
CPU = torch.device("cpu")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---- exact search


@pytest.mark.parametrize("chunk", [7, 1000])
@pytest.mark.parametrize("k", [1, 3, 500])
def test_exact_search_is_exact(chunk: int, k: int) -> None:
    rng = np.random.default_rng(k)
    vectors = rng.standard_normal((300, 16)).astype(np.float16)
    vectors[200] = vectors[3] = vectors[150]  # equal vectors tie, in corpus order
    queries = np.concatenate([rng.standard_normal((5, 16)), vectors[3:4]]).astype(np.float32)
    products = queries.astype(np.float64) @ vectors.astype(np.float64).T
    for query, found in enumerate(ExactSearch(vectors, CPU, chunk_rows=chunk).best(queries, k)):
        expected = np.argsort(-products[query], kind="stable")[:k]
        assert found.rows.tolist() == expected.tolist()
        assert found.scores == pytest.approx(products[query][expected], rel=1e-6)


def test_a_score_does_not_depend_on_the_batch() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((1000, 24)).astype(np.float16)
    queries = rng.standard_normal((33, 24)).astype(np.float32)
    search = ExactSearch(vectors, CPU, chunk_rows=100)
    for query, found in zip(queries, search.best(queries, 5), strict=True):
        (alone,) = search.best(query[None], 5)
        assert (alone.rows.tobytes(), alone.scores.tobytes()) == (found.rows.tobytes(), found.scores.tobytes())
    equal = rescore_exact(vectors[[5, 5, 5]], queries[0], np.array([2, 0, 1]), 2)
    assert equal.rows.tolist() == [0, 1], "in corpus order, in whatever order faiss names them"


# ---- an index


def build(corpus: Path, out: Path, model: Path, **settings: Any) -> None:
    build_dense(corpus, out, spec_of(str(model)), device="cpu", **settings)


def test_it_finds_what_a_direct_computation_finds(write_corpus: Write, encoder: Any, tmp_path: Path) -> None:
    corpus = write_corpus(300)
    build(corpus, tmp_path / "index", encoder(), block=50)
    retriever = open_index(tmp_path / "index", device="cpu")
    assert isinstance(retriever, DenseRetriever)
    direct = Encoder(spec_of(str(encoder())), "cpu")
    queries = ["w1 w2 w3", "w100", "Title 7"]
    products = direct.queries(queries) @ direct.passages([d.contents for d in retriever.documents]).T
    for row, hits in zip(products, retriever.search(queries, 5), strict=True):
        assert [int(hit.document.id) for hit in hits] == np.argsort(-row)[:5].tolist()
        assert [hit.score for hit in hits] == pytest.approx(np.sort(row)[::-1][:5], abs=1e-3)  # halves
    assert retriever.search(["", "w1", " \n"], 2)[0::2] == [[], []]
    build_bm25(corpus, tmp_path / "bm25")
    assert BM25Retriever.load(tmp_path / "bm25").corpus_hash == retriever.corpus_hash
    assert sorted(path.name for path in (tmp_path / "index").iterdir()) == [
        "documents.jsonl",
        "manifest.json",
        "offsets.i8",
        "vectors.f2",
    ]


def test_an_interrupted_build_goes_on_with_the_same_passages_and_encoder_only(
    write_corpus: Write, encoder: Any, tmp_path: Path, killing: Any, interrupted: Any
) -> None:
    corpus, out, model = write_corpus(120), tmp_path / "index", encoder()
    written = corpus.stat()
    build(corpus, tmp_path / "whole", model, block=25)
    with pytest.raises(interrupted):
        build(corpus, out, model, block=25, progress=killing(7))
    write_corpus(121)
    with pytest.raises(DataError, match=r"index\.building has vectors of another corpus or encoder"):
        build(corpus, out, model, block=25)
    write_corpus(120)
    os.utime(corpus, ns=(written.st_atime_ns, written.st_mtime_ns))  # the manifest has the time of the file
    build(corpus, out, model, block=25, progress=(listener := killing(-1)))
    assert listener.notes == ["continuing after 50 passages"]
    assert contents(out) == contents(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "encoder", "index", "whole"]


def test_two_at_once(write_corpus: Write, encoder: Any, tmp_path: Path) -> None:
    corpus, out, model = write_corpus(10), tmp_path / "index", encoder()

    class Second(Progress):
        def stage(self, name: str, total: int | None = None) -> None:
            with pytest.raises(DataError, match="another process is building"):
                build(corpus, out, model)

    build(corpus, out, model, progress=Second())


# ---- what is refused


@pytest.mark.parametrize("change", ["other weights", "other prefix", "other pooling", "other width"])
def test_an_index_of_another_model_is_refused(
    write_corpus: Write, encoder: Any, files: dict[str, Any], tmp_path: Path, change: str
) -> None:
    build(write_corpus(20), tmp_path / "index", encoder())
    (tmp_path / "encoder").rename(tmp_path / "moved")
    assert open_index(tmp_path / "index", model=str(tmp_path / "moved"), device="cpu").search(["w1"], 1)
    if change in ("other weights", "other width"):
        encoder("encoder", files, seed=1, width=32 if change == "other weights" else 16)
    else:
        # The index says how it was made, so a changed manifest stands for a changed model.
        (tmp_path / "moved").rename(tmp_path / "encoder")
        path = tmp_path / "index" / "manifest.json"
        manifest = json.loads(path.read_text())
        manifest["encoder"] |= {"query_prefix": "zebra "} if change == "other prefix" else {"pooling": "max"}
        path.write_text(json.dumps(manifest | {"checksum": storage._own_checksum(manifest)}))
    with pytest.raises(DataError, match=r"built with another model than .*encoder.*--model"):
        open_index(tmp_path / "index", device="cpu")


def test_another_corpus_and_damage_are_refused(write_corpus: Write, encoder: Any, tmp_path: Path) -> None:
    build(write_corpus(20), tmp_path / "index", encoder())
    with pytest.raises(DataError, match="built from another corpus"):
        open_index(tmp_path / "index", expected_hash="0" * 64)
    with pytest.raises(DataError, match="is a dense index"):
        BM25Retriever.load(tmp_path / "index")
    with open(tmp_path / "index" / "vectors.f2", "r+b") as file:
        file.truncate(100)
    with pytest.raises(DataError, match=r"is damaged: vectors\.f2 is missing or has another size"):
        open_index(tmp_path / "index")


def test_vectors_that_are_not_finite_are_refused(
    write_corpus: Write, encoder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passages = Encoder.passages

    def broken(self: Encoder, texts: Any) -> Any:
        made = passages(self, texts)
        made[["Title 13" in text for text in texts]] = np.nan
        return made

    monkeypatch.setattr(Encoder, "passages", broken)
    with pytest.raises(DataError, match=r"the vector of passage '13' \(row 13\) is not finite"):
        build(write_corpus(20), tmp_path / "index", encoder())
    assert not (tmp_path / "index").exists()


# ---- vectors from elsewhere


def own_vectors(corpus: Path, model: Path, kind: str, path: Path, *, prefix: str | None = None) -> Path:
    faiss = pytest.importorskip("faiss")
    direct = Encoder(spec_of(str(model), passage_prefix=prefix), "cpu")
    vectors = direct.passages([json.loads(line)["contents"] for line in corpus.read_text().splitlines()])
    if kind == "npy":
        np.save(path.with_suffix(".npy"), vectors)
        return path.with_suffix(".npy")
    if kind == "memmap":
        vectors.tofile(path)
    else:
        index = faiss.IndexFlatIP(vectors.shape[1]) if kind == "flat" else faiss.index_factory(32, "Flat")
        index.add(vectors)
        faiss.write_index(index, str(path))
    return path


@pytest.mark.parametrize("kind", ["npy", "memmap", "flat", "flat L2"])
def test_vectors_that_are_there_are_taken(write_corpus: Write, encoder: Any, tmp_path: Path, kind: str) -> None:
    corpus = write_corpus(60)
    given = own_vectors(corpus, encoder(), kind, tmp_path / "e5_Flat.index")
    build(corpus, tmp_path / "taken", encoder(), vectors=given)
    build(corpus, tmp_path / "encoded", encoder())
    taken, encoded = (open_index(tmp_path / name, device="cpu").rank(["w1 w9"], 5)[0] for name in ("taken", "encoded"))
    assert taken.rows.tolist() == encoded.rows.tolist()


def test_vectors_of_something_else_are_refused(write_corpus: Write, encoder: Any, tmp_path: Path) -> None:
    corpus = write_corpus(60)
    unprefixed = own_vectors(corpus, encoder(), "npy", tmp_path / "unprefixed", prefix="")
    with pytest.raises(DataError, match=r"differs from what .* gives for passage '0'.*without the prefix 'passage: '"):
        build(corpus, tmp_path / "index", encoder(), vectors=unprefixed)
    right = own_vectors(corpus, encoder(), "memmap", tmp_path / "right")
    build(corpus, tmp_path / "index", encoder(), vectors=right)  # and the right ones go on
    write_corpus(61)
    with pytest.raises(DataError, match=r"holds float32 of shape \[60, 32\]; needed are .* of \[61, 32\]"):
        build(corpus, tmp_path / "other", encoder(), vectors=right)
    np.save(tmp_path / "wide.npy", np.zeros((61, 64)))
    with pytest.raises(DataError, match=r"holds float64 of shape \[61, 64\]"):
        build(corpus, tmp_path / "other", encoder(), vectors=tmp_path / "wide.npy")
    with pytest.raises(DataError, match="cannot be read as vectors"):
        build(corpus, tmp_path / "other", encoder(), vectors=tmp_path / "absent.npy")


@pytest.mark.parametrize(
    ("factory", "kind"), [("HNSW8", "HNSW"), ("IVF4,Flat", "IVF"), ("SQ8", "IxSQ"), ("IDMap2,Flat", "IxM2")]
)
def test_an_index_that_is_not_flat_is_refused_by_its_kind(tmp_path: Path, factory: str, kind: str) -> None:
    faiss = pytest.importorskip("faiss")
    vectors = np.random.default_rng(0).standard_normal((200, 8)).astype(np.float32)
    index = faiss.index_factory(8, factory)
    index.train(vectors)
    if kind == "IxM2":
        index.add_with_ids(vectors, np.arange(200))
    else:
        index.add(vectors)
    faiss.write_index(index, str(tmp_path / "x.index"))
    with pytest.raises(DataError, match=rf"is a faiss index of kind {kind}\..* Give .* a flat faiss index"):
        open_vectors(tmp_path / "x.index", 200, 8)


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("a.npy", b"hello world\n", "it does not begin with numpy's header"),
        ("a.npy", b"", "it does not begin with numpy's header"),
        ("a.npy", b"\x93NUMPY\x01\x00", "EOF"),
        ("a.txt", b"hello world\n", "it has 12 bytes, and each vector of float32 takes 32"),
        ("a.txt", b"", "it has 0 bytes"),
        ("INFO.log", b"INFO " * 7, "it has 35 bytes"),
        ("none.npy", None, "No such file"),
    ],
)
def test_what_is_no_file_of_vectors_is_a_sentence(tmp_path: Path, name: str, data: bytes | None, why: str) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=rf"cannot be read as vectors of 8 numbers: .*{why}.*Give a \.npy file"):
        open_vectors(tmp_path / name, 10, 8)


# ---- one byte a dimension


def test_sq8_keeps_the_order_of_clustered_vectors_and_faiss_reads_it(tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((100, 64))
    vectors = centres[rng.integers(0, 100, 5000)] + 0.5 * rng.standard_normal((5000, 64))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)
    queries = vectors[:200].astype(np.float32) + 0.02 * rng.standard_normal((200, 64)).astype(np.float32)

    write_sq8(vectors, tmp_path / "sq8.faiss", Progress())
    exact = ExactSearch(vectors, CPU).best(queries, 3)
    found = SQ8Search(tmp_path / "sq8.faiss", vectors).best(queries, 3)
    codes = faiss.read_index(str(tmp_path / "sq8.faiss")).search(queries, 3)[1]
    by_codes = np.mean([len({*a.rows} & {*b}) / 3 for a, b in zip(exact, codes, strict=True)])
    for one, other in zip(exact, found, strict=True):  # what the codes chose holds the best, which are then compared
        assert (one.rows.tolist(), one.scores.tolist()) == (other.rows.tolist(), other.scores.tolist())
    assert 0.9 < by_codes < 1  # the codes alone would not do
    whole = faiss.IndexScalarQuantizer(64, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    whole.train(vectors.astype(np.float32))
    whole.add(vectors.astype(np.float32))
    plain = faiss.read_index(str(tmp_path / "sq8.faiss"))
    assert (plain.search(queries, 3)[1] == whole.search(queries, 3)[1]).all()


def test_a_full_disk_is_an_error_of_the_disk(tmp_path: Path, small_disk: Any) -> None:
    pytest.importorskip("faiss")
    with small_disk(1000), pytest.raises(OSError, match=rf"\[Errno {errno.EFBIG}\]"):
        write_sq8(np.ones((100, 32), np.float16), tmp_path / "sq8.faiss", Progress())


def test_an_sq8_index(write_corpus: Write, encoder: Any, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    corpus = write_corpus(200)
    build(corpus, tmp_path / "small", encoder(), sq8=True)
    build(corpus, tmp_path / "exact", encoder())
    small, exact = (open_index(tmp_path / name, device="cpu") for name in ("small", "exact"))
    queries = [f"w{i}" for i in range(30)]
    pairs = zip(small.rank(queries, 3), exact.rank(queries, 3), strict=True)
    assert np.mean([len({*a.rows} & {*b.rows}) / 3 for a, b in pairs]) > 0.95
    assert len(small.search(["w1"], 500)[0]) == 200


# ---- what a model's files and name say


TEXTS = ["w1 w2", "w3", "w4 w5 w6 w7 " * 20, "", "w1 w2"]


def changed(files: dict[str, Any], name: str, content: Any) -> dict[str, Any]:
    return {**copy.deepcopy(files), name: content}


def test_the_files_beside_a_model_beat_the_table(
    encoder: Any, files: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(str(encoder("a-bge-model", files)))
    assert (spec.query_prefix, spec.passage_prefix, spec.pooling, spec.normalise, spec.max_length) == (
        "query: ",
        "passage: ",
        "mean",
        True,
        24,
    )
    without = changed(files, "modules.json", files["modules.json"][:2])
    without["1_Pooling/config.json"] = {"pooling_mode": "lasttoken", "include_prompt": True}
    spec = spec_of(str(encoder("other", without)))
    assert (spec.pooling, spec.normalise) == ("last", False)
    assert spec_of(str(encoder("plain", {}))) == EncoderSpec(model=str(encoder("plain", {})))
    monkeypatch.setattr("holdfast.retrieval.encoder._read", lambda model, file: None)
    with pytest.raises(ConfigError, match=r"needs an instruction before each query.*--query-prefix"):
        spec_of("intfloat/e5-mistral-7b-instruct")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("modules.json", [{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}], "has the steps Dense"),
        ("1_Pooling/config.json", {"pooling_mode_weightedmean_tokens": True}, "pools in a way that holdfast does not"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, "pools in"),
    ],
)
def test_what_is_not_computed_is_refused(
    encoder: Any, files: dict[str, Any], name: str, content: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        spec_of(str(encoder("strange", changed(files, name, content))))


@pytest.mark.parametrize(
    ("pooling", "normalise"), [("mean", True), ("mean", False), ("cls", True), ("last", True), ("max", True)]
)
def test_vectors_are_those_of_a_plain_forward(encoder: Any, pooling: Any, normalise: bool) -> None:
    folder = encoder("plain", {})
    spec = EncoderSpec(model=str(folder), query_prefix="query: ", pooling=pooling, normalise=normalise, max_length=24)
    found = Encoder(spec, "cpu", batch=2).queries(TEXTS)
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    for text, vector in zip(TEXTS, found, strict=True):
        inputs = tokenizer("query: " + text, truncation=True, max_length=24, return_tensors="pt")
        with torch.no_grad():
            states = model(**inputs).last_hidden_state[0]
        expected = {"mean": states.mean(0), "cls": states[0], "last": states[-1], "max": states.amax(0)}[pooling]
        expected = torch.nn.functional.normalize(expected, dim=0) if normalise else expected
        assert vector == pytest.approx(expected.numpy(), abs=1e-5)
    # The prefix counts: passages of the same text have other vectors.
    assert np.abs(Encoder(spec, "cpu").passages(TEXTS) - found).max() > 1e-3


def test_padding_on_the_left_pools_the_same() -> None:
    states = torch.randn(2, 5, 3)
    right = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    shifted = torch.stack([states[0].roll(2, 0), states[1]])
    left = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    for pooling in ("mean", "cls", "last", "max"):
        assert torch.allclose(pool(states, right, pooling), pool(shifted, left, pooling))
