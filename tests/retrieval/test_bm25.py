"""BM25 against the formula, its ties, its silence, and its files."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import pytest
from numpy.typing import NDArray

from holdfast.base.errors import DataError
from holdfast.retrieval import bm25_building, storage
from holdfast.retrieval.bm25 import BM25Retriever, Postings
from holdfast.retrieval.bm25_building import Vocabulary, build_bm25
from holdfast.retrieval.corpus import corpus_hash, files_seen, passages
from holdfast.retrieval.types import Document, Hit

TOWNS = (
    Document("orsa", '"Orsa"\nOrsa is a town by the northern lake.'),
    Document("mora", '"Mora"\nMora lies in the valley; skiers race there.'),
    Document("it", '"It"\nIt is a film about a clown.'),
    Document("rome", '"Rome"\nRome is a city. Running water is old in Rome.'),
)


def ids(hits: list[Hit]) -> list[str]:
    return [hit.document.id for hit in hits]


@pytest.fixture(scope="module")
def towns() -> BM25Retriever:
    return BM25Retriever.build(TOWNS)


def naive(documents: list[str], query: str, k: int, k1: float, b: float) -> list[tuple[int, float]]:
    """Lucene's BM25 from the formula: Σ ln(1 + (N − n + .5)/(n + .5)) · tf / (tf + k1 (1 − b + b·len/mean len))."""
    words = [re.findall(r"\w+", text.lower()) for text in documents]
    mean = sum(map(len, words)) / len(words)
    scored = []
    for i, text in enumerate(words):
        score = 0.0
        for word in re.findall(r"\w+", query.lower()):
            n, tf = sum(word in other for other in words), text.count(word)
            if tf:
                idf = math.log(1 + (len(words) - n + 0.5) / (n + 0.5))
                score += idf * tf / (tf + k1 * (1 - b + b * len(text) / mean))
        if score > 0:
            scored.append((i, score))
    return sorted(scored, key=lambda pair: (-pair[1], pair[0]))[:k]


@pytest.mark.parametrize("settings", [{"k1": 0.9, "b": 0.4}, {"k1": 1.5, "b": 0.75}])
def test_against_the_formula(settings):
    rng = random.Random(0)
    vocabulary = [f"w{i}" for i in range(30)]
    texts = [" ".join(rng.choices(vocabulary, k=rng.randint(1, 12))) for _ in range(60)]
    retriever = BM25Retriever.build([Document(str(i), t) for i, t in enumerate(texts)], stem=False, **settings)
    for _ in range(50):
        query = " ".join(rng.choices([*vocabulary, "unknown"], k=rng.randint(1, 4)))
        expected = naive(texts, query, 5, **settings)
        (hits,) = retriever.search([query], 5)
        assert [hit.score for hit in hits] == pytest.approx([score for _, score in expected], rel=1e-5)
        # Where scores differ by more than rounding, the documents are the same ones too.
        clear = len({round(score, 4) for _, score in expected}) == len(expected)
        assert not clear or ids(hits)[:4] == [str(i) for i, _ in expected][:4]


def test_nothing_to_find_finds_nothing(towns):
    assert towns.search(["", "   ", "?!", "zzz", "the zzz", "漢字"], 3) == [[]] * 6 and towns.search([], 3) == []
    assert sorted(ids(towns.search(["town clown"], 4)[0])) == ["it", "orsa"], "not those without a word of it"


def test_stop_words_count_only_when_the_query_is_nothing_else(towns):
    assert ids(towns.search(["it"], 1)[0]) == ["it"]
    assert ids(towns.search(["it and the lake"], 4)[0]) == ["orsa"]


def test_stemming_folds_inflections_on_both_sides(towns):
    assert ids(towns.search(["who runs?"], 3)[0]) == ["rome"]
    assert ids(towns.search(["skier racing"], 3)[0]) == ["mora"]
    assert BM25Retriever.build(TOWNS, stem=False).search(["who runs?"], 3) == [[]]


def test_equal_scores_come_in_corpus_order_for_every_k():
    # Three texts by turns, a hundred times each: a partition, or an unstable sort, returns equals in any order.
    texts = ["same word", "same same word", "same other longer text"]
    retriever = BM25Retriever.build([Document(f"{i % 3}-{i}", texts[i % 3]) for i in range(300)])
    full = ids(retriever.search(["same"], 300)[0])
    assert full == [f"{kind}-{i}" for kind in (1, 0, 2) for i in range(kind, 300, 3)]
    for k in (1, 2, 50, 99, 100, 101, 150, 299):
        assert ids(retriever.search(["same"], k)[0]) == full[:k]


def test_corpora_that_cannot_be_indexed():
    with pytest.raises(DataError, match="none of the 1 documents contains a word"):
        BM25Retriever.build([Document("a", "?!")])
    with pytest.raises(DataError, match="two documents have the id 'a'"):
        BM25Retriever.build([Document("a", "x"), Document("a", "y")])


@pytest.mark.parametrize("stem", [True, False])
def test_save_and_load_give_the_same_hits(tmp_path, stem):
    built = BM25Retriever.build([*TOWNS, Document("é", "Ünïcode 漢字\nline\u2028separator")], stem=stem)
    built.save(tmp_path / "deep" / "index")
    loaded = BM25Retriever.load(tmp_path / "deep" / "index", expected_hash=built.corpus_hash)
    queries = ["northern towns", "running rome", "clowns", "漢字", "ünïcode"]
    assert loaded.search(queries, 3) == built.search(queries, 3)
    assert tuple(loaded.documents) == built.documents
    assert loaded.corpus_hash == corpus_hash(built.documents)
    with pytest.raises(DataError, match="exists already; name a new folder"):
        built.save(tmp_path / "deep")
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["index"]


@pytest.mark.parametrize("name", ["manifest.json", "documents.jsonl", "scores.f4"])
def test_an_index_that_was_not_copied_whole_is_refused(tmp_path, towns, name):
    towns.save(tmp_path / "index")
    file = tmp_path / "index" / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(DataError, match=r"is damaged|not valid JSON.*build the index again"):
        BM25Retriever.load(tmp_path / "index")
    file.unlink()
    with pytest.raises(DataError, match=r"is missing|is not an index"):
        BM25Retriever.load(tmp_path / "index")


@pytest.mark.parametrize("always", [2**30, 0])
def test_damage_of_equal_size_is_found_in_every_file(tmp_path, towns, monkeypatch, always):
    """Those of a large index are compared once, and again when a file has changed."""
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(storage, "_ALWAYS", always)
    towns.save(tmp_path / "index")
    for file in sorted((tmp_path / "index").iterdir()):
        os.utime(file, ns=(0, 0))  # a clock may tick too seldom for a test
        BM25Retriever.load(tmp_path / "index")
        whole, middle = file.read_bytes(), file.stat().st_size // 2
        file.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
        with pytest.raises(DataError, match=rf"{file.name} .*build the index again"):
            BM25Retriever.load(tmp_path / "index")
        file.write_bytes(whole)
    reads, checksum = [], storage._checksum
    monkeypatch.setattr(storage, "_checksum", lambda path: reads.append(path) or checksum(path))
    for _ in range(2):
        BM25Retriever.load(tmp_path / "index")
    assert len(reads) == (14 if always else 7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"files": None}, "'files' is missing"),
        ({"checksums": None}, "'checksums' is missing"),
        ({"checksum": None}, "manifest.json does not match its checksum"),
        ({"format": 99}, "another version of holdfast"),
    ],
)
def test_a_manifest_that_is_not_whole_is_refused(tmp_path, towns, change, message):
    towns.save(tmp_path / "index")
    path = tmp_path / "index" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=message):
        BM25Retriever.load(tmp_path / "index")


@pytest.mark.parametrize("name", ["scores.f4", "rows.i4", "starts.i8", "largest.f4", "offsets.i8"])
@pytest.mark.parametrize("content", [b"", b"123", bytes(64)], ids=["empty", "half a number", "zeros"])
def test_a_damaged_index_whose_checksums_fit_is_refused(tmp_path, towns, name, content):
    towns.save(tmp_path / "index")
    (tmp_path / "index" / name).write_bytes(content)
    signed = json.loads((tmp_path / "index" / "manifest.json").read_text())
    (tmp_path / "index" / "manifest.json").unlink()
    settings = {k: v for k, v in signed.items() if k not in ("format", "files", "checksums", "checksum")}
    storage.write_manifest(tmp_path / "index", settings)
    with pytest.raises(DataError, match=r"is damaged.*build the index again"):
        BM25Retriever.load(tmp_path / "index")


@pytest.mark.parametrize("change", [{"checksums": None}, {"checksums": {"nowhere": 1}}, {"files": {}}, {"k1": 1.2}])
def test_a_manifest_whose_checksum_fits_and_whose_settings_do_not_is_refused(tmp_path, towns, change):
    towns.save(tmp_path / "index")
    path = tmp_path / "index" / "manifest.json"
    manifest = {k: v for k, v in json.loads(path.read_text()).items() if k not in ("checksum", "stem")} | change
    path.write_text(json.dumps(manifest | {"checksum": storage._own_checksum(manifest)}))
    with pytest.raises(DataError, match=r"is damaged.*build the index again"):
        BM25Retriever.load(tmp_path / "index")


def test_a_stored_passage_that_is_none_is_damage(tmp_path, towns):
    towns.save(tmp_path / "index")
    documents = tmp_path / "index" / "documents.jsonl"
    documents.write_bytes(documents.read_bytes().replace(b"{", b"["))
    with pytest.raises(DataError, match=r"is damaged.*build the index again"):
        storage.StoredDocuments(tmp_path / "index")[0]


# ---- the best passages of a query against adding up everything


def make(rng: random.Random, words: int, count: int, values: Sequence[float] | None = None) -> tuple[Postings, list]:
    """Random columns, the frequent words first; and the columns themselves."""
    columns = []
    for word in range(words):
        share = 0.9 / (1 + word)
        rows = np.array(sorted(rng.sample(range(count), max(int(count * share), 1))), np.int32)
        scores = rng.choices(values, k=len(rows)) if values else [rng.uniform(0.1, 2) * (1 + word / 3) for _ in rows]
        columns.append((rows, np.array(scores, np.float32)))
    starts = np.concatenate([[0], np.cumsum([len(rows) for rows, _ in columns])])
    largest = np.array([scores.max() for _, scores in columns])
    data, rows = (np.concatenate([column[i] for column in columns]) for i in (1, 0))
    return Postings(data, rows, starts, largest, count), columns


def exhaustive(columns: list, words: Sequence[int], k: int, count: int) -> tuple[list[int], NDArray[np.float32]]:
    sums = np.zeros(count, np.float32)
    for word in words:
        rows, scores = columns[word]
        sums[rows] += scores
    found = np.flatnonzero(sums > 0)
    best = found[np.argsort(-sums[found], kind="stable")][:k]
    return best.tolist(), sums[best]


@pytest.mark.parametrize("k", [1, 3, 20, 1000])
@pytest.mark.parametrize("values", [None, [0.5, 1.0]], ids=["any scores", "many ties"])
def test_the_best_are_those_of_all(k: int, values: list[float] | None) -> None:
    rng = random.Random(k)
    count = 500
    postings, columns = make(rng, 25, count, values)
    for _ in range(200):
        words = [rng.randrange(25) for _ in range(rng.randint(1, 8))]  # words repeat
        expected, scores = exhaustive(columns, words, k, count)
        found = postings.best(words, k)
        assert found.rows.tolist() == expected
        assert found.scores.tobytes() == scores.tobytes()


# ---- an index built on disk


Write = Callable[..., Path]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("chunk", "pairs", "stem"), [(1000, 1 << 20, True), (100, 50, True), (333, 10_000, False)])
def test_on_disk_as_in_memory(write_corpus: Write, tmp_path: Path, chunk: int, pairs: int, stem: bool) -> None:
    corpus = write_corpus(1000)
    build_bm25(corpus, tmp_path / "disk", chunk=chunk, pairs_at_once=pairs, stem=stem)
    BM25Retriever.build(tuple(passages(corpus, on_skip=pytest.fail)), stem=stem).save(
        tmp_path / "memory", {"corpus_files": files_seen(corpus)}
    )
    assert contents(tmp_path / "disk") == contents(tmp_path / "memory")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "disk", "memory"]


def test_the_scores_are_those_of_bm25s(write_corpus: Write, tmp_path: Path) -> None:
    corpus = write_corpus(300)
    build_bm25(corpus, tmp_path / "index")
    vocabulary = Vocabulary(stem=True)
    words = [vocabulary.learn(document.contents) for document in passages(corpus, on_skip=pytest.fail)]
    theirs = bm25s.BM25(k1=0.9, b=0.4, method="lucene", backend="numpy", csc_backend="numpy")
    theirs.index((words, vocabulary.numbers), create_empty_token=False, show_progress=False)
    for name, key in (("scores.f4", "data"), ("rows.i4", "indices"), ("starts.i8", "indptr")):
        assert (tmp_path / "index" / name).read_bytes() == theirs.scores[key].tobytes()


def test_a_stopped_build_leaves_nothing(
    write_corpus: Write, tmp_path: Path, killing: Any, interrupted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write_corpus(2500)
    for at in (1, 3, 5):
        with pytest.raises(interrupted):
            build_bm25(corpus, tmp_path / "index", progress=killing(at))
    with pytest.raises(DataError, match="none of 1 rows can be used as a passage"):
        build_bm25(write_corpus([{"x": 1}], "bad.jsonl"), tmp_path / "index")
    with pytest.raises(DataError, match="none of the 1 passages contains a word"):
        build_bm25(write_corpus([{"id": "a", "contents": "?!"}], "bad.jsonl"), tmp_path / "index")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(bm25_building, "write_words", full)
    with pytest.raises(DataError, match="index cannot be written: the disk is full"):
        build_bm25(corpus, tmp_path / "index")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.jsonl", "corpus.jsonl"]


@pytest.mark.parametrize(("size", "chunk"), [(1000, 1000), (60_000, 100), (200_000, 2500)])
def test_a_full_disk_is_given_as_the_reason(
    write_corpus: Write, tmp_path: Path, small_disk: Any, size: int, chunk: int
) -> None:
    """Whichever file it meets."""
    corpus = write_corpus(2500)
    with small_disk(size), pytest.raises(DataError, match="index cannot be written: the file size limit is reached"):
        build_bm25(corpus, tmp_path / "index", chunk=chunk)
    with small_disk(100), pytest.raises(DataError, match="copy cannot be written: the file size limit is reached"):
        BM25Retriever.build([Document(str(i), f"w{i}") for i in range(100)]).save(tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


# ---- text without blanks between words. Passages and questions were written for this test; the n-th passage answers
# the n-th question.

UNSPACED = {
    "chinese": (
        "镜湖位于山谷北端，湖水冬天结冰。 红桥建于一九二零年，连接两岸的市场。 老图书馆收藏了三千卷手抄本。 "
        "灯塔由渔民轮流看守，夜里照亮港口。 茶园每年四月采摘第一批新茶。 钟楼的钟每小时敲响一次。",
        "哪个湖冬天结冰？ 红桥是哪一年建的？ 图书馆有多少手抄本？ 谁看守灯塔？ 新茶什么时候采摘？",
    ),
    "thai": (
        "ทะเลสาบกระจกอยู่ทางเหนือของหุบเขา สะพานแดงสร้างขึ้นเพื่อเชื่อมตลาดสองฝั่ง ห้องสมุดเก่าเก็บหนังสือเขียนมือ "
        "ประภาคารดูแลโดยชาวประมง ไร่ชาเก็บใบชาครั้งแรกในเดือนเมษายน หอนาฬิกาตีระฆังทุกชั่วโมง",
        "ทะเลสาบอยู่ที่ไหน สะพานแดงเชื่อมอะไร หนังสือเขียนมืออยู่ที่ไหน ใครดูแลประภาคาร เก็บใบชาเมื่อไร",
    ),
}


KOREAN = (
    "거울호는 골짜기 북쪽 끝에 있다. 호수는 겨울마다 언다.| 붉은다리는 1920년에 세워졌다. 다리가 두 시장을 잇는다.| "
    "옛 도서관에는 필사본 삼천 권이 있다.| 등대는 어부들이 번갈아 지킨다. 밤에는 항구를 비춘다.| "
    "차밭에서는 해마다 사월에 첫 잎을 딴다.| 시계탑의 종은 한 시간마다 울린다.| 강은 산에서 시작하여 바다로 흐른다.| "
    "미라는 티본을 세운 사람이다. 그녀는 의사였다.| 박물관은 월요일에 문을 닫는다. 입장료는 무료이다.| "
    "성은 언덕 위에 있으며 벽의 높이는 십 미터이다.| 배는 하루에 세 번 섬으로 떠난다.| "
    "학교에는 학생이 이백 명 있고 교사가 열두 명이다.| 소금은 남쪽 바닷가의 염전에서 만든다.| "
    "축제는 가을에 열리고 사람들이 춤을 춘다.| 왕은 열두 살에 왕위에 올랐다.| "
    "빵집의 주인은 오를란이다. 그는 빵을 굽는다.",
    "거울호가 어느 계절에 어는가?| 붉은다리를 언제 세웠는가?| 도서관의 필사본은 몇 권인가?| 누가 등대를 지키는가?| "
    "차밭의 첫 잎은 언제 따는가?| 시계탑이 얼마나 자주 종을 울리는가?| 강이 어디로 흐르는가?| 티본은 누가 세웠는가?| "
    "박물관에 들어가는 입장료가 얼마인가?| 성이 어디에 있는가?| 섬까지 배가 몇 번 가는가?| 학교의 학생은 몇 명인가?| "
    "소금을 어디에서 만드는가?| 축제를 언제 여는가?| 왕이 몇 살에 왕위를 이었는가?| 빵을 굽는 주인이 누구인가?",
)
"""As above. Most words have another particle in the passage, and some nouns have one syllable."""


def test_questions_find_korean_words_with_other_particles() -> None:
    texts, questions = (column.split("| ") for column in KOREAN)
    index = BM25Retriever.build([Document(str(i), f"\n{text}") for i, text in enumerate(texts)])
    assert [hits[0].document.id for hits in index.search(questions, 1)] == [str(i) for i in range(16)]


@pytest.mark.parametrize("language", UNSPACED)
def test_questions_find_passages_without_blanks(language: str) -> None:
    texts, questions = (column.split() for column in UNSPACED[language])
    index = BM25Retriever.build([Document(str(i), f"\n{text}") for i, text in enumerate(texts)])
    assert [hits[0].document.id for hits in index.search(questions, 1)] == ["0", "1", "2", "3", "4"]
