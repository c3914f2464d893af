"""Tables: averages and gains by arithmetic, published rows as they were printed, every form."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from holdfast.base.errors import ConfigError, DataError
from holdfast.evaluate.folder import RESULTS, SETTINGS
from holdfast.evaluate.results import GENERAL_SETS, MULTI_HOP_SETS, results_of
from holdfast.recipe import load
from holdfast.recipe.loading import find_recipe
from holdfast_research.jobs import TrainingJob
from holdfast_research.methods import words as setting_words
from holdfast_research.tables.make import Plan
from holdfast_research.tables.published import BLOCKS, DISPUTED, Published
from holdfast_research.tables.render import comma_separated, latex, markdown
from holdfast_research.tables.rows import GRPO, ROWS, rows_of
from holdfast_research.tables.table import block_of, joined, published_block

Command = Callable[..., str]


SEVEN = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")


def results(name: str, right: dict[str, str], **settings: Any) -> dict[str, Any]:
    """Of a row whose questions are right where a 1 stands."""
    rows = [
        {"id": f"{one}/test/{i}#0", "set": one, "em": float(mark), "f1": float(mark), "sub_em": float(mark)}
        | {"hit": None, "status": "ok", "prediction": "x", "searches": 1, "calls": 1}
        for one, marks in right.items()
        for i, mark in enumerate(marks)
    ]
    told = {"row": name, "method": "search-r1", "prompt": "clean", "decoding": "greedy", "samples": 1, "searches": "3"}
    told |= {"scorer": "table", "questions_digest": "d", "topk": 3}
    return results_of(rows, told | settings)


WORLD = {"world-1hop": "1110", "world-2hop": "1000"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["show", "gone"], "gone does not exist"),
        (["show", "."], "holds no finished results of holdfast eval"),
        (["show", "--published", "gpt"], "--published gpt: no rows are known for it"),
        (["make", "wrld"], "there is no recipe 'wrld'"),
        (["make", "world", "--run.seed", "3"], "--run.seed: this is set for each of the runs"),
        (["make", "qwen2.5-3b"], "does not set data.test, and a table is about test questions"),
    ],
)
def test_refusals(
    holdfast: Command, arguments: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert expected in holdfast("table", *arguments, code=2)
    assert not list(tmp_path.iterdir())


def test_finished_results_of_a_folder_are_shown(holdfast: Command, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / SETTINGS).write_text("{}")
    (tmp_path / "one" / RESULTS).write_text(json.dumps(results("one", WORLD)))
    text = holdfast("table", "show", str(tmp_path), "--out", str(tmp_path / "tables"))
    assert "two is not finished and left out" in text and "| one | 0.750 | 0.250 |" in text
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {"table.md", "table.csv", "table.tex"}
    assert "tabular" in holdfast("table", "show", str(tmp_path / "one"), "--format", "tex")


def test_averages_are_of_sets_and_gains_name_their_row() -> None:
    block = block_of(
        [
            results("+ LLDS-A", {"world-1hop": "1111", "world-2hop": "1100"}),
            results(GRPO, WORLD),
            results("SFT", {"world-1hop": "0000", "world-2hop": "0000"}, method="direct", searches="none"),
        ]
    )
    assert [row.name for row in block.rows] == ["SFT", GRPO, "+ LLDS-A"], "in the papers' order"
    sft, grpo, llds = block.rows
    assert (grpo.values, grpo.average) == ({"world-1hop": 0.75, "world-2hop": 0.25}, 0.5)
    assert block.mean_over(grpo, GENERAL_SETS) == 0.75 and block.mean_over(grpo, MULTI_HOP_SETS) == 0.25
    gain = block.gain(llds)
    assert gain is not None and (gain.points, gain.percent, gain.over) == (0.25, 0.5, GRPO)
    assert block.gain(grpo) is None and block.gain(sft) is None
    against = block_of([results("a", WORLD), results("b", WORLD)], against="a")
    assert [against.gain(row) and against.gain(row).over for row in against.rows] == [None, "a"]  # type: ignore[union-attr]
    zero = block_of([results("a", {"nq": "00"}), results("b", {"nq": "01"})], against="a")
    found = zero.gain(zero.rows[1])
    assert found is not None and found.percent is None and found.points == 0.5
    assert any("allowed searches" in note for note in block.notes)


def test_seeds_of_a_row_become_their_mean_and_others_are_refused() -> None:
    (row,) = block_of([results("a", {"nq": "1100"}), results("a", {"nq": "1000"})]).rows
    assert (row.average, row.seeds, row.interval) == (0.375, 2, None)
    assert "mean of 2 seeds, 0.250 to 0.500" in row.remarks
    for changes, said in (
        ({"decoding": "temperature 1"}, "decoding = greedy and temperature 1"),
        ({"samples": 5}, "samples"),
    ):
        with pytest.raises(DataError, match=f"two results are called 'a'.*{said}.*another --name"):
            block_of([results("a", {"nq": "11"}), results("a", {"nq": "10"}, **changes)])
    weights = {"model": "m", "weights": "w", "seed": 0}
    with pytest.raises(DataError, match="'a' has the same model twice"):
        block_of([results("a", {"nq": "11"}, **weights), results("a", {"nq": "10"}, **weights)])
    (row,) = block_of([results("a", {"nq": "11"}, **weights), results("a", {"nq": "10"}, **weights | {"seed": 1})]).rows
    assert row.seeds == 2


def test_what_cannot_stand_in_one_table() -> None:
    one = results("a", {"nq": "11"})
    for other, said in (
        (results("b", {"nq": "11"}, questions_digest="e"), "b was evaluated on other questions than a"),
        (results("b", {"nq": "11"}, scorer="official"), "b was scored by the rule 'official'"),
    ):
        with pytest.raises(DataError, match=said):
            block_of([one, other])
    with pytest.raises(DataError, match="--against c: no row has that name; there are a"):
        block_of([one], against="c")
    with pytest.raises(DataError, match=r"there are .*qwen2\.5-3b, "):
        published_block("qwen")
    with pytest.raises(DataError, match="Evaluate on --data seven"):
        joined(block_of([one]), published_block("qwen2.5-3b"))


ROUNDED = 1e-3 + 1e-9
"""By how much a printed average may differ from the mean of printed numbers: all are rounded to a thousandth."""


def disagreements(rows: Sequence[Published]) -> set[tuple[str, str]]:
    """(row, cell) of the averages and gains that the printed numbers do not give."""
    by_name = {row.name: row for row in rows}
    found = set()
    for row in rows:
        if len(row.values) == 7 and row.average is not None and abs(mean(row.values.values()) - row.average) > ROUNDED:
            found.add((row.name, "average"))
        multi_hop = [value for name, value in row.values.items() if name in MULTI_HOP_SETS]
        if row.multi_hop is not None and abs(mean(multi_hop) - row.multi_hop) > ROUNDED:
            found.add((row.name, "multi-hop"))
        if row.f1_average is not None and abs(mean(row.f1.values()) - row.f1_average) > ROUNDED:
            found.add((row.name, "f1"))
        if row.printed_gain is not None:
            percent = 100 * ((row.average or 0.0) / (by_name[row.against or ""].average or 0.0) - 1)
            if abs(percent - row.printed_gain) > 0.1:
                found.add((row.name, "gain"))
    return found


def quoted_otherwise(rows: Sequence[Published]) -> set[tuple[str, str]]:
    """(row, cell) of the numbers that another paper quotes differently."""
    by_name = {row.name: row for row in rows}
    found = set()
    for quote in rows:
        name, _, by_whom = quote.name.partition(" as ")
        if by_whom:
            original = by_name[name]
            found |= {(name, key) for key, value in quote.values.items() if value != original.values[key]}
            found |= {(name, "average")} if quote.average != original.average else set()
    return found


@pytest.mark.parametrize("model", BLOCKS)
def test_printed_numbers_agree_or_are_marked(model: str) -> None:
    rows = BLOCKS[model]
    assert len({row.name for row in rows}) == len(rows)
    assert all(row.against is None or row.against in {other.name for other in rows} for row in rows)
    marked = {(name, cell) for block, name, cell in DISPUTED if block == model}
    assert disagreements(rows) | quoted_otherwise(rows) == marked


def test_own_rows_stand_beside_published_ones_and_are_held_against_own() -> None:
    half = dict.fromkeys(SEVEN, "10")
    own = block_of([results(GRPO, half), results("+ LLDS-A", dict.fromkeys(SEVEN, "11"))])
    block = joined(own, published_block("qwen2.5-3b"))
    gain = block.gain(block.rows[-1])
    assert gain is not None and gain.points == 0.5, "the published row of that name is another's"
    text = markdown([block])
    assert "| + LLDS-A-MA | 0.483 |" in text and "+12.8 (+41.0 %, printed +45.2 %) over Search-R1 GRPO" in text
    assert "decoding: one sample at T 1, top-p .95; searches: 4" in text
    assert "own, one seed; decoding: greedy; searches: 3; scorer: EM of what was generated" in text
    assert "cannot be compared as they stand" in text and DISPUTED["qwen2.5-3b", "+ LLDS-A-MA", "gain"] in text


def test_markdown_is_a_table() -> None:
    text = markdown([block_of([results("a|b", WORLD)])])
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert lines[0] == "| EM | one hop | two hops | general | multi-hop | average | gain | measured |"
    assert len({line.count("|") for line in lines}) == 1, "a bar in a name is no column"
    assert lines[2].startswith("| a/b | 0.750 | 0.250 | 0.750 | 0.250 | 0.500 (")


def test_csv_has_every_number() -> None:
    own = block_of([results(GRPO, WORLD), results("+ LLD", {"world-1hop": "1111", "world-2hop": "1110"})])
    rows = list(csv.DictReader(io.StringIO(comma_separated([own, published_block("qwen2.5-3b")]))))
    assert len(rows) == 2 + len(BLOCKS["qwen2.5-3b"])
    lld = rows[1]
    assert (lld["row"], lld["world-2hop"], lld["average"], lld["gain_points"]) == ("+ LLD", "0.75", "0.875", "37.5")
    assert (lld["gain_percent"], lld["gain_over"], lld["nq"], lld["seeds"]) == ("75", GRPO, "", "1")
    assert next(row for row in rows if row["row"] == "+ LLDS-R-MA")["printed_gain_percent"] == "37.8"
    assert "f1_average" not in lld


def test_f1_has_a_column_where_it_is_printed() -> None:
    text = markdown([published_block("qwen2.5-3b-instruct")])
    (sapo,) = [line for line in text.splitlines() if line.startswith("| SAPO | ")]
    assert "| average | F1 | gain |" in text and "| 0.442 | 0.533 | +10.6 (+31.5 %) over Search-R1 GRPO |" in sapo
    own = block_of([results(GRPO, dict.fromkeys(SEVEN, "10"))])
    rows = csv.DictReader(io.StringIO(comma_separated([joined(own, published_block("qwen2.5-14b-instruct"))])))
    (row, mine) = (row for row in rows if row["row"] == "SAPO" or row["source"] == "own")
    assert (row["f1_nq"], row["f1_bamboogle"], row["f1_average"]) == ("0.602", "0.68", "0.586")
    assert mine["f1_average"] == mine["f1_musique"] == "0.5"
    assert "| F1 |" not in markdown([block_of([results(GRPO, WORLD)])]), "your own tables are of EM"


def test_latex_is_escaped_and_its_rows_are_whole() -> None:
    text = latex([block_of([results("50 % of a_b & {c}", WORLD)])])
    (row,) = [line for line in text.splitlines() if line.endswith(r"\\") and "a\\_b" in line]
    assert row.startswith(r"50 \% of a\_b \& \{c\}\textsuperscript{1} & 0.750 & 0.250 &")
    columns = text.partition(r"\begin{tabular}{")[2].partition("}")[0]
    assert row.replace(r"\&", "").count("&") == len(columns) - 1
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1


@pytest.mark.parametrize("recipe", ["quickstart", "qwen2.5-3b"])
def test_every_training_row_is_one_command_on_any_recipe(recipe: str) -> None:
    for row in ROWS:
        words = shlex.split(row.command(recipe))
        verb = ["baseline", row.baseline[0]] if row.baseline else ["warm-start" if row.warm_start else "train"]
        assert words[: len(verb) + 2] == ["holdfast", *verb, recipe]
        penalty = load(find_recipe(recipe), setting_words(row.settings_on(find_recipe(recipe)))).loss.penalty.name
        trained = not row.warm_start and not row.baseline
        assert not trained or (penalty == "none") == ("LLD" not in row.name and row.name != "SAPO"), row.name
        assert row.against is None or any(one.name == row.against for one in ROWS)


def test_rows_are_chosen_with_what_they_are_held_against() -> None:
    assert [row.name for row in rows_of(["gspo + "])] == ["GSPO", "GSPO + LLDS-A"]
    assert rows_of([]) == ROWS
    with pytest.raises(ConfigError, match="--rows ToRA: no row has that in its name; there are SFT"):
        rows_of(["ToRA"])


# ---- one command for all rows


def test_a_row_waits_for_the_row_it_starts_from(tmp_path: Path) -> None:
    plan = Plan(recipe=find_recipe("quickstart"), rows=rows_of(["RAG"]), seeds=(11, 12), settings={}, out=tmp_path)
    *trainings, first_evaluation, _, _, last_evaluation = plan.jobs()
    assert [job.name for job in trainings] == [
        f"{row}, seed {seed}" for seed in (11, 12) for row in ("SFT on search demonstrations", "RAG after SFT")
    ]
    start, rag = trainings[2:]
    assert isinstance(rag, TrainingJob) and rag.needs == (start,) and start.needs == ()
    assert rag.config.model.path == str(start.folder / "model")
    assert rag.command()[2:6] == ["holdfast_research", "baseline", "rag-sft", str(plan.recipe)]
    assert first_evaluation.needs == (trainings[0],) and "--bare" not in first_evaluation.command()
    assert last_evaluation.folder == tmp_path / "evals" / "rag-after-sft-s12" and "--bare" in last_evaluation.command()
