"""Training mixes and the test set of the papers, from small files laid out as the published ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from holdfast.base.errors import DataError
from holdfast.base.scoring import MODES, normalize_answer
from holdfast.tasks.catalogue import GENERAL, MULTI_HOP, SETS, TEST_SIZE
from holdfast.tasks.files import read_examples
from holdfast.tasks.prepare import Folder, Hub, open_questions, origin_of, plan, prepare, sample_file, sample_questions

from ..loopback import serving


def test_the_seven_and_their_published_sizes():
    assert [qa.test_size for qa in SETS.values()] == [3610, 11313, 14267, 7405, 12576, 2417, 125]
    assert TEST_SIZE == 51_713
    assert sum(part.size for part in plan("nq+hotpotqa")["train"]) == 169_615
    assert tuple(SETS) == (*GENERAL, *MULTI_HOP)
    assert len(GENERAL) == 3
    assert set(SETS) == set(MODES) - {"table", "unicode"}  # a set's name is its scoring mode


def test_a_set_has_its_training_and_its_test_questions(tmp_path, collection, small_sets):
    written = prepare("hotpotqa", tmp_path / "out", origin=str(collection))
    assert {path.name: count for path, count in written.items()} == {"train.jsonl": 5, "test.jsonl": 5}
    test = read_examples(tmp_path / "out" / "test.jsonl")
    assert [e.id for e in test] == [f"hotpotqa/test/{i}" for i in range(5)]
    assert test[0].question == "hotpotqa dev 0"  # the published dev set is what results are reported on
    assert test[0].metadata == {"metadata": {"type": "bridge"}}
    assert list(prepare("bamboogle", tmp_path / "b", origin=str(collection))) == [tmp_path / "b" / "test.jsonl"]


@pytest.mark.parametrize("form", ["jsonl", "verl"])
def test_the_test_set_is_whole_and_its_ids_are_unique(tmp_path, collection, small_sets, form):
    (path,) = prepare("seven", tmp_path / "out", origin=str(collection), form=form)
    examples = read_examples(path)
    assert Counter(e.source for e in examples) == {name: qa.test_size for name, qa in small_sets.items()}
    assert len({e.id for e in examples}) == len(examples) == sum(range(2, 9))
    (own,) = prepare("popqa", tmp_path / "own", origin=str(tmp_path / "out"))  # out of the file of all sets
    published = open_questions("popqa", origin=str(collection))
    assert [e.id for e in open_questions(str(own))] == [e.id for e in published] != []


def test_other_sizes_are_refused_and_nothing_is_written(tmp_path, collection):
    path = collection / "musique" / "dev.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(DataError, match=r"6 questions of musique, the published dev set has 7: another version"):
        prepare("seven", tmp_path / "out", origin=str(collection))
    assert list((tmp_path / "out").iterdir()) == []


def test_a_bad_row_a_missing_file_and_two_equal_ids_are_named(tmp_path, collection, published, put):
    put(collection / "popqa" / "test.jsonl", [{"question": "Who?", "golden_answers": []}])
    with pytest.raises(DataError, match=r"popqa/test\.jsonl:1: golden_answers: is an empty list"):
        prepare("popqa", tmp_path / "out", origin=str(collection))
    (collection / "bamboogle" / "test.jsonl").unlink()
    with pytest.raises(DataError, match=r"has none of bamboogle/test\.jsonl, .*test\.parquet"):
        prepare("bamboogle", tmp_path / "out", origin=str(collection))
    put(collection / "nq" / "test.jsonl", [published("searchr1", 0)] * 2)
    with pytest.raises(DataError, match="two questions have the id nq/test/0"):
        open_questions("nq", origin=str(collection))
    put(collection / "nq" / "test.jsonl", [published("searchr1", i, "triviaqa") for i in range(2)])
    with pytest.raises(DataError, match="should contain only questions of nq, but has one of 'triviaqa'"):
        open_questions("nq", origin=str(collection))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("hotpot", r"no question set 'hotpot'; did you mean 'hotpotqa'\?"),
        ("xyzzy", "there are nq, triviaqa, .*bamboogle, seven, sample"),
        ("nq+bamboogle", "bamboogle has no training questions"),
        ("nq+ nq", "names a set twice"),
        ("nq+", "no question set ''"),
    ],
)
def test_an_unknown_name(tmp_path, what, message):
    with pytest.raises(DataError, match=message):
        prepare(what, tmp_path)


def test_where_files_may_come_from(tmp_path):
    assert origin_of(None) == Hub("RUC-NLPIR/FlashRAG_datasets")
    assert origin_of(str(tmp_path)) == Folder(tmp_path)
    assert origin_of("PeterJinGo/nq_hotpotqa_train") == Hub("PeterJinGo/nq_hotpotqa_train")
    for text in ("nothing", "./gone/away", "/gone/away", "a/b/c"):
        with pytest.raises(DataError, match="neither a folder nor a data set on the hub"):
            origin_of(text)
    with pytest.raises(DataError, match="my data/question sets is neither a folder nor a data set on the hub"):
        origin_of("my data/question sets").get("nq/test.jsonl")
    (tmp_path / "x.jsonl").touch()
    with pytest.raises(DataError, match="is a file; name its folder"):
        origin_of(str(tmp_path / "x.jsonl"))


HUB_FILE = b"".join(
    json.dumps({"id": f"test_{i}", "question": f"q {i}", "golden_answers": [str(i)]}).encode() + b"\n"
    for i in range(125)
)


def as_the_hub(asked):
    """As much of the hub as its client needs: one data set that has one file."""
    commit = {"X-Repo-Commit": "0" * 40}
    if asked.path in ("/datasets/own/sets/resolve/main/bamboogle/test.jsonl", "/"):
        return 200, HUB_FILE, commit | {"ETag": '"5"'}
    return 404, b"", commit | {"X-Error-Code": "EntryNotFound" if "/own/sets/" in asked.path else "RepoNotFound"}


PREPARE = """
import sys, time
from typer.testing import CliRunner
from holdfast.cli.main import app
for line in sys.argv[1:]:
    began = time.monotonic()
    result = CliRunner().invoke(app, ["data", "prepare", *line.split()])
    print(result.exit_code, time.monotonic() - began < 20, " ".join(result.output.split()))
"""


def with_hub(tmp_path, endpoint, *commands):
    """(exit code, whether it was quick, output) of each, in a process whose hub client reads its settings anew."""
    env = os.environ | {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
    env.pop("HF_HUB_OFFLINE", None)
    command = [sys.executable, "-c", PREPARE, *commands]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=120, check=True)
    return [tuple(line.split(" ", 2)) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_from_a_hub_and_then_from_its_cache(tmp_path):
    names = ("bamboogle --from own/sets --out out", "popqa --from own/sets --out out", "popqa --from no/such --out out")
    with serving(as_the_hub) as endpoint:
        (code, *_), none, other = with_hub(tmp_path, endpoint, *names)
    assert code == "0"
    assert [e.id for e in read_examples(tmp_path / "out" / "test.jsonl")][-1] == "bamboogle/test/124"
    assert none[0] == "2" and "own/sets on the hub has none of popqa/test.jsonl" in none[2]
    assert other[0] == "2" and "the hub has no data set 'no/such'" in other[2]
    # The server is gone. The hub's client alone tries for longer than 20 seconds.
    (code, *_), (refused, quick, said) = with_hub(tmp_path, endpoint, names[0], "nq --out nq")
    assert (code, refused, quick) == ("0", "2", "True")
    assert f"{endpoint} cannot be reached" in said and "--from FOLDER" in said


def test_the_sample_is_sound(tmp_path):
    written = prepare("sample", tmp_path)
    assert {path.name for path in written} == {"questions.jsonl", "corpus.jsonl"}
    questions = read_examples(tmp_path / "questions.jsonl")
    assert questions == sample_questions()
    assert 20 <= len(questions) <= 40
    lines = (tmp_path / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    passages = {row["id"]: row["contents"] for row in map(json.loads, lines)}
    assert (tmp_path / "corpus.jsonl").read_bytes() == sample_file("corpus.jsonl").read_bytes()
    assert 60 <= len(passages) <= 100
    for question in questions:
        about = question.metadata["metadata"]["passages"]
        assert 1 <= len(about) <= 3
        assert set(about) <= set(passages)
        if question.golden_answers[0] not in ("yes", "no"):
            last = normalize_answer(passages[about[-1]])
            assert any(normalize_answer(gold) in last for gold in question.golden_answers), question
    assert len({tuple(q.metadata["metadata"]["passages"]) for q in questions}) > 30
    used = {passage for q in questions for passage in q.metadata["metadata"]["passages"]}
    assert len(passages) - len(used) > 30  # the rest is there to be mistaken for an answer
