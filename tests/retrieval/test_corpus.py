from __future__ import annotations

import gzip
import json
import sys
import time
from pathlib import Path

import pytest

from holdfast.base.errors import ConfigError, DataError
from holdfast.base.rows import count_rows
from holdfast.retrieval.corpus import corpus_hash, fields_of, passages
from holdfast.retrieval.storage import StoredDocuments, write_documents
from holdfast.retrieval.survey import Survey
from holdfast.retrieval.types import Document

from .pdfs import pdf


def put(tmp_path, *rows):
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def kept(path):
    """Its passages; none may be skipped."""
    return tuple(passages(path, on_skip=pytest.fail))


GOOD = {"id": "a", "contents": '"Orsa"\nA town.', "extra": 1}


def test_rows_become_documents_and_numbers_are_ids(tmp_path):
    documents = kept(put(tmp_path, GOOD, {"id": None, "_id": 7, "contents": "x"}))
    assert documents == (Document("a", '"Orsa"\nA town.'), Document("7", "x"))


@pytest.mark.parametrize(
    ("row", "field", "reason"),
    [
        ({"id": "a", "contents": "again"}, "id", "'a' occurred on an earlier line"),
        ({"contents": "x"}, "id", "missing"),
        ({"id": True, "contents": "x"}, "id", "is true or false"),
        ({"id": "b", "contents": ["x"]}, "contents", "is a list"),
        ({"id": "b", "title": "T"}, "contents", "missing"),
        ({"id": "b", "title": 3, "text": "x"}, "title", "must be a string, is a number"),
        ({"id": "b", "title": "T", "text": ""}, "text", "is empty"),
        ({"id": "b", "contents": "x" * 1_000_001}, "contents", "holds 1,000,001 characters; a passage may have"),
    ],
)
def test_rows_that_cannot_be_used(tmp_path, row, field, reason):
    heard = []
    documents = tuple(passages(put(tmp_path, GOOD, row), on_skip=heard.append))
    assert [d.id for d in documents] == ["a"]
    (skipped,) = heard
    assert (skipped.line, skipped.field) == (2, field)
    assert reason in skipped.reason


def test_the_hash_tells_documents_and_their_order():
    a, b = Document("a", "bc"), Document("d", "e")
    assert corpus_hash([a, b]) == corpus_hash([Document("a", "bc"), Document("d", "e")])
    others = [[b, a], [a], [Document("ab", "c"), b], [a, Document("d", "f")], [Document("a", "bcd"), Document("", "e")]]
    assert corpus_hash([a, b]) not in [corpus_hash(other) for other in others]


def all_of(path, **settings):
    heard = []
    return list(passages(path, on_skip=heard.append, **settings)), [str(skip) for skip in heard]


@pytest.mark.parametrize("packed", [False, True])
def test_a_table_of_dpr(tmp_path, packed):
    table = 'id\ttext\ttitle\r\n1\t"A ""town"" by a lake."\tOrsa\r\n2\tplain\t\r\n1\tagain\tOrsa\n3\tx\n'
    path = tmp_path / ("psgs.tsv.gz" if packed else "psgs.tsv")
    path.write_bytes(gzip.compress(table.encode()) if packed else table.encode())
    documents, skipped = all_of(path)
    # As wiki-18 has the same passages.
    assert documents == [Document("1", '"Orsa"\nA "town" by a lake.'), Document("2", "\nplain")]
    assert skipped == [
        f"{path}:4: id: '1' occurred on an earlier line",
        f"{path}:5: row: has 2 cells, but the header has 3",
    ]


def test_a_table_without_the_columns(tmp_path):
    path = tmp_path / "t.tsv"
    path.write_text("name\tbody\n1\tx\n")
    with pytest.raises(DataError, match=r"t\.tsv:2: id: missing; the row has 'name', 'body'; .*--field id="):
        all_of(path)
    assert all_of(path, fields=fields_of(["id=name", "text=body"]))[0] == [Document("1", "\nx")]
    with pytest.raises(ConfigError, match="'body=text' names no field of a passage"):
        fields_of(["body=text"])
    path.write_text("id\ttext\n")
    with pytest.raises(DataError, match="needs a header line and one passage a line"):
        all_of(path)


@pytest.mark.parametrize(("name", "is_rows"), [("c.md", False), ("c.txt", False), ("lines.txt", True)])
def test_one_document_is_no_file_of_passages(tmp_path, name, is_rows):
    path = tmp_path / name
    path.write_text(json.dumps({"id": "1", "contents": "x"}) if is_rows else "# Orsa\n\nA town.\n")
    if is_rows:
        assert all_of(path)[0] == [Document("1", "x")]
    else:
        with pytest.raises(DataError, match="name the folder"):
            all_of(path)


@pytest.mark.parametrize("name", ["c.jsonl", "c.tsv"])
def test_what_is_not_utf8_is_skipped_or_replaced(tmp_path, name):
    rows = {
        "c.jsonl": [b'{"id": "1", "contents": "x"}', b'{"id": "2", "contents": "caf\xe9"}'],
        "c.tsv": [b"id\ttext", b"1\tx", b"2\tcaf\xe9"],
    }[name]
    path = tmp_path / name
    path.write_bytes(b"\n".join(rows) + b"\n")
    documents, skipped = all_of(path)
    assert [d.id for d in documents] == ["1"]
    assert skipped[0].startswith(f"{path}:{len(rows)}: row: is not UTF-8 at byte")
    documents, skipped = all_of(path, replace=True)
    assert documents[1].contents.endswith("caf\ufffd")
    assert skipped == []


def test_a_folder_of_texts(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.md").write_text("hidden")
    (tmp_path / "deep" / "lakes.md").write_text("# Lakes #\n\nWet.\n\n## Orsa lake\nCold.\n\n" + "long " * 250)
    (tmp_path / "notes.txt").write_bytes(b"A caf\xe9 by the lake.")
    (tmp_path / "towns.txt").write_text("One.\n\nTwo.")
    (tmp_path / "picture.png").write_bytes(b"x")
    (tmp_path / "title.md").write_text("# Title\n")
    documents, skipped = all_of(tmp_path)
    assert [(d.id, d.title, len(d.text.split())) for d in documents] == [
        ("deep/lakes.md#1", "Lakes", 1),
        ("deep/lakes.md#2", "Lakes > Orsa lake", 100),
        ("deep/lakes.md#3", "Lakes > Orsa lake", 100),
        ("deep/lakes.md#4", "Lakes > Orsa lake", 51),
        ("towns.txt#1", "towns", 2),
    ]
    assert skipped == [
        f"{tmp_path}/notes.txt: is not UTF-8 at byte 6; convert it, for example with `iconv -f CP1252 -t UTF-8`, or "
        "build the index with --replace-invalid",
        f"{tmp_path}/picture.png: .png is not read",
        f"{tmp_path}/title.md: has no paragraph",
    ]
    assert [d.id for d in all_of(tmp_path, replace=True)[0]][4] == "notes.txt#1"


def test_paragraphs_of_a_hundred_words_are_one_passage(tmp_path):
    (tmp_path / "a.txt").write_text("long " * 60 + "\n\n" + "word " * 40 + "\n\n" + "x " * 60 + "\n\n" + "y " * 41)
    assert [len(document.text.split()) for document in all_of(tmp_path)[0]] == [100, 60, 41]


def test_a_long_paragraph_is_cut_between_sentences(tmp_path):
    """A sentence that two passages share is found by neither, and its end alone says nothing."""
    first, second, third = "a " * 60 + "ends.", "b " * 30 + 'ends."', "c " * 50 + "ends."
    (tmp_path / "a.txt").write_text(f"Short.\n\n{first} {second} {third}\n\nLast.")
    texts = [document.text for document in all_of(tmp_path)[0]]
    assert texts == [f"Short. {first} {second}", f"{third} Last."]


def test_a_comment_in_a_block_of_code_is_no_heading(tmp_path):
    (tmp_path / "a.md").write_text("# Install\n\n```bash\n# clone it\nmake\n```\nPort 8000.\n\n# Run\nNow.")
    assert all_of(tmp_path)[0] == [
        Document("a.md#1", "Install\n```bash # clone it make ``` Port 8000."),
        Document("a.md#2", "Run\nNow."),
    ]


USUAL = {
    "c.json": json.dumps([{"docid": "1", "text": "x", "title": "T"}, {"docid": 2, "text": "y"}], indent=2),
    "c.jsonl": '{"_id": "1", "title": "T", "text": "x"}\n{"_id": "2", "text": "y"}',
    "c.csv": "\ufeffID;Title;Text\r\n1;T;x\r\n2;;y\r\n;;\r\n",
}


@pytest.mark.parametrize("name", [*USUAL, "c.parquet"])
def test_the_usual_names_and_files(tmp_path, name):
    path = tmp_path / name
    if name == "c.parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        columns = {"_id": ["1", "2"], "title": ["T", None], "text": ["x", "y"]}
        parquet.write_table(pytest.importorskip("pyarrow").table(columns), path)
    else:
        path.write_text(USUAL[name], encoding="utf-8")
    assert all_of(path) == ([Document("1", "T\nx"), Document("2", "\ny")], [])
    assert count_rows(path) >= 2


MARKDOWN = """---
title: 'The lakes'
x: y
---
Intro.

Orsa
----
Cold.

### Depth
Ten.

## Mora
Warm.

# Rivers
Long.
"""
RST = """=====
Guide
=====

Read.

Set up
------
One
line.

Next
~~~~
Two.

Last
----
End.

----

Bye."""
HTML = """<!doctype html><head><title>Site</title><style>p {x}</style></head><nav>menu</nav><h1>Lakes &amp; ponds</h1>
<p>Wet <b>and</b>
 cold.<h2>Orsa</h2><ul><li>A<li>B</ul><script>var x</script>"""
PARTS = ["The lakes: Intro.", "The lakes > Orsa: Cold.", "The lakes > Orsa > Depth: Ten.", "The lakes > Mora: Warm."]
STEPS = ["Guide: Read.", "Guide > Set up: One line.", "Guide > Set up > Next: Two.", "Guide > Last: End. Bye."]
DOCUMENTS = {
    "a.md": (MARKDOWN, [*PARTS, "Rivers: Long."]),
    "b.rst": (RST, STEPS),
    "c.html": (HTML, ["Lakes & ponds: Wet and cold.", "Lakes & ponds > Orsa: A B"]),
    "d.txt": ("```\n# no heading\n", ["d: ``` # no heading"]),
    "e.htm": ("<h1>Empty</h1>", []),
    "f.html": ('<meta charset="x-none">café', []),
}


def test_the_title_of_a_section_is_its_path_of_headings(tmp_path):
    for name, (text, _) in DOCUMENTS.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    documents, skipped = all_of(tmp_path)
    expected = [f"{name}#{n} {part}" for name, (_, parts) in DOCUMENTS.items() for n, part in enumerate(parts, 1)]
    assert [f"{d.id} {d.title}: {d.text}" for d in documents] == expected
    assert [skip.rpartition("/")[2] for skip in skipped] == [
        "e.htm: has no paragraph",
        "f.html: names the encoding x-none, which does not exist",
    ]


def test_pages_of_a_pdf(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pypdfium2", None)
    (tmp_path / "a.md").write_text("Text.")
    (tmp_path / "torn.pdf").write_bytes(b"%PDF-1.4 nothing")
    documents, (skipped,) = all_of(tmp_path)
    assert [d.id for d in documents] == ["a.md#1"] and "holdfast-rl[documents]" in skipped
    monkeypatch.undo()
    pytest.importorskip("pypdfium2")
    (tmp_path / "lakes.pdf").write_bytes(pdf([[(100, 700, 24, "The lake of Orsa is cold.")]]))
    documents, (skipped,) = all_of(tmp_path)
    assert documents[1] == Document("lakes.pdf#1", "lakes > page 1\nThe lake of Orsa is cold.")
    assert "torn.pdf: is damaged, or not a PDF" in skipped


def test_long_paragraphs_are_cut_in_linear_time_also_without_blanks(tmp_path):
    (tmp_path / "a.md").write_text("# Lang\n" + "word " * 200_000)
    (tmp_path / "b.md").write_text("# 湖\n" + "湖水很冷。" * 100_000 + " ab 1")
    began = time.process_time()
    documents, _ = all_of(tmp_path)
    assert time.process_time() - began < 10  # a copy of the rest for each passage took minutes
    sizes = [len(d.text) for d in documents if d.id.startswith("b")]
    assert len(documents) == 2000 + 3031 and sizes[0] == 165  # 33 sentences, and not two characters of the next
    assert "".join(d.text for d in documents[2000:]).replace(" ", "") == "湖水很冷。" * 100_000 + "ab1"


def test_a_paragraph_that_is_the_title_is_no_passage(tmp_path):
    (tmp_path / "orsa-lake.txt").write_text("Orsa Lake\n\n" + "long " * 100)
    (tmp_path / "b.md").write_text("# Mora\n\nMORA\n\nMora is a village.\n\nMora\n")
    (tmp_path / "only.txt").write_text("Only")
    documents, _ = all_of(tmp_path)
    assert [(d.title, d.text.strip()) for d in documents] == [
        ("MORA", "Mora is a village. Mora"),
        ("Orsa Lake", ("long " * 100).strip()),
    ]


@pytest.mark.parametrize(
    ("contents", "title", "text"),
    [
        ('"Orsa"\nA town.\nOld.', "Orsa", "A town.\nOld."),
        ('"Weird Al" Yankovic\nA singer.', '"Weird Al" Yankovic', "A singer."),  # inner quotes are part of the title
        ('""Heroes""\nAn album.', '"Heroes"', "An album."),  # one pair goes, as the corpus put it there
        ("one line", "one line", ""),
    ],
)
def test_title_and_text(contents, title, text):
    document = Document("1", contents)
    assert (document.title, document.text) == (title, text)


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


# ---- what an agent could not read


def surveyed(*texts: str, room: int = 100) -> Survey:
    survey = Survey(room)
    given = [Document(f"a.md#{n}", f"Orsa\n{text}") for n, text in enumerate(texts, 1)]
    assert list(survey.watched(given)) == given
    return survey


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("The lake of Orsa is cold and deep.", None),
        ("A 0.938 12 3.9 I 4 x 71", None),  # of a table
        ("湖水很冷，山很高。", None),
        ("오르사 호수는 매우 차갑고 깊다.", None),
        ("T h e l a k e o f O r s a", "garbled"),
        ('! " # $ % & lake of Orsa', "garbled"),
        ("Th\ufffd l\ufffdke of Ors\ufffd is cold", "garbled"),
        ("\ue001\ue002 \ue003 of Orsa is cold", "garbled"),
        ("Cold.", "empty"),
        ("湖水很冷。", "empty"),
        ("word " * 100, "too long"),
    ],
)
def test_a_flaw_is_named(text: str, kind: str | None) -> None:
    assert list(surveyed(text).flawed) == ([] if kind is None else [kind])


def test_a_passage_that_occurred_before_is_repeated() -> None:
    text = "The lake of Orsa is cold and deep."
    assert surveyed(text, text, text).flawed == {"repeated": 2}


def test_ten_are_shown_and_the_worst_come_first() -> None:
    survey = surveyed(*(f"{n} " + "word " * 5 * n for n in range(20, 70)), "Cold.")
    flaws = survey.flaws()
    assert len(flaws) == 10 and flaws[0].why == "empty: 1 word"
    assert [flaw.document.id for flaw in flaws[1:3]] == ["a.md#50", "a.md#49"]
    assert survey.flawed.total() == sum(tokens > 100 for tokens in survey.tokens) + 1


def test_what_most_passages_fit_into() -> None:
    survey = surveyed(*["word " * 40] * 19, "word " * 4000)
    assert survey.fits() == survey.fits(0.5) < 100 < survey.fits(1)
    assert Survey(10).fits() == 0
