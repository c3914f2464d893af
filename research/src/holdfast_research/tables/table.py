"""Your rows with published ones: general, multi-hop and overall averages, and gains over the row that is named.

A row says how it was decoded, how many searches it had and which rule scored it. Rows of one name are seeds of one
method, and are averaged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from holdfast.base.errors import DataError
from holdfast_research.tables.published import BLOCKS, DISPUTED, Published
from holdfast_research.tables.rows import ROWS

TITLES = {
    "nq": "NQ",
    "triviaqa": "TriviaQA",
    "popqa": "PopQA",
    "hotpotqa": "HotpotQA",
    "2wikimultihopqa": "2Wiki",
    "musique": "MuSiQue",
    "bamboogle": "Bamboogle",
    "world-1hop": "one hop",
    "world-2hop": "two hops",
}


OWN = "own"
NOT_COMPARABLE = "Rows with another decoding, number of searches or scorer cannot be compared as they stand"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A row, yours or published; scores are fractions."""

    name: str
    source: str
    """`own`, or what is cited."""
    values: Mapping[str, float]
    average: float | None
    """Over all sets of the table; None when some are missing."""
    interval: tuple[float, float] | None = None
    """95 % interval of the average, over questions; of one seed."""
    seeds: int = 1
    f1: Mapping[str, float] = field(default_factory=dict)
    """Token F1 by set; empty where a paper has none."""
    f1_average: float | None = None
    against: str | None = None
    printed_gain: float | None = None
    """In percent, of a published row, as its paper has it."""
    decoding: str
    searches: str
    scorer: str
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """By how much a row's average exceeds that of the row it names."""

    points: float
    percent: float | None
    """None when that row's average is 0."""
    over: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A table: rows over the same sets."""

    title: str
    sets: tuple[str, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...] = field(default=())

    def mean_over(self, row: TableRow, kinds: Sequence[str]) -> float | None:
        """The mean of a row over the table's sets of a kind; None when it lacks one, or the table has none."""
        names = [name for name in self.sets if name in kinds]
        values = [row.values[name] for name in names if name in row.values]
        return mean(values) if names and len(values) == len(names) else None

    def gain(self, row: TableRow) -> Gain | None:
        """None when the row names no other, or an average is missing. Your rows are compared with your rows only."""
        others = [r for r in self.rows if (r.source == OWN) == (row.source == OWN) and r is not row]
        base = next((r for r in others if r.name == row.against), None)
        if base is None or base.average is None or row.average is None:
            return None
        points = row.average - base.average
        return Gain(points=points, percent=points / base.average if base.average else None, over=base.name)


def block_of(results: Sequence[Mapping[str, Any]], *, against: str | None = None) -> Block:
    """Results of `holdfast eval` as a table, in the papers' order, then in the order given.

    `against` names the row of every gain; without it a training row is compared with the one it builds on.

    Raises:
        DataError: Without results, for rows of different sets or questions, or when no row is called `against`.
    """
    if not results:
        raise DataError("a table needs results; give folders of holdfast eval")
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        by_name.setdefault(result["row"], []).append(result)
    _refuse_unequal(results)
    for several in by_name.values():
        _refuse_other_rows(several)
    if against is not None and against not in by_name:
        raise DataError(f"--against {against}: no row has that name; there are {', '.join(by_name)}")
    order = {row.name: i for i, row in enumerate(ROWS)}
    names = sorted(by_name, key=lambda name: order.get(name, -1))
    usual = {row.name: row.against for row in ROWS}
    present = set(results[0]["sets"])
    sets = tuple(name for name in TITLES if name in present) + tuple(sorted(present - set(TITLES)))
    rows = tuple(
        _row_of(name, by_name[name], None if name == against else against or usual.get(name)) for name in names
    )
    return Block(title="Own runs", sets=sets, rows=rows, notes=_notes_of(results))


def published_block(model: str) -> Block:
    """The published rows of a model. Raises `DataError` for one that has none."""
    if model not in BLOCKS:
        raise DataError(f"--published {model}: no rows are known for it; there are {', '.join(BLOCKS)}")
    rows = tuple(_published_row(row) for row in BLOCKS[model])
    cells: dict[tuple[str, str], list[str]] = {}
    for (block, name, cell), why in DISPUTED.items():
        if block == model:
            cells.setdefault((name, why), []).append(TITLES.get(cell, cell))
    notes = [f"{name}, {' and '.join(disputed)}: {why}" for (name, why), disputed in cells.items()]
    return Block(title=f"Published, {model}", sets=tuple(TITLES)[:7], rows=rows, notes=tuple(notes))


def joined(block: Block, published: Block) -> Block:
    """Published rows, then yours, as one table. Raises `DataError` when their sets differ."""
    if set(block.sets) != set(published.sets):
        raise DataError(
            f"the own rows have the sets {', '.join(block.sets)}, the published ones "
            f"{', '.join(published.sets)}, so they cannot be compared. Evaluate on --data "
            "seven, or leave --published out"
        )
    return Block(
        title=f"{published.title}, and own runs",
        sets=published.sets,
        rows=(*published.rows, *block.rows),
        notes=(*published.notes, *block.notes, NOT_COMPARABLE),
    )


def _row_of(name: str, results: Sequence[Mapping[str, Any]], against: str | None) -> TableRow:
    first = results[0]
    values = {name: mean(r["sets"][name]["em"] for r in results) for name in first["sets"]}
    f1 = {name: mean(r["sets"][name]["f1"] for r in results) for name in first["sets"]}
    failed = sum(r["micro"]["failed"] for r in results)
    remarks = [f"{first['method']}, {first['prompt']} prompt"]
    if first["samples"] > 1:
        remarks.append(f"{first['samples']} samples a question")
    if len(results) > 1:
        averages = [r["macro"]["em"] for r in results]
        remarks.append(f"mean of {len(results)} seeds, {min(averages):.3f} to {max(averages):.3f}")
    if failed:
        remarks.append(f"{failed} answers failed and are left out")
    interval = first["macro"].get("em_interval") if len(results) == 1 else None
    return TableRow(
        name=name,
        source=OWN,
        values=values,
        average=mean(values.values()),
        f1=f1,
        f1_average=mean(f1.values()),
        interval=tuple(interval) if interval else None,
        seeds=len(results),
        against=against,
        decoding=first["decoding"],
        searches=first["searches"],
        scorer="EM of what was generated" + ("" if first["scorer"] == "table" else ", official rules"),
        remarks=tuple(remarks),
    )


def _published_row(row: Published) -> TableRow:
    source = row.source
    return TableRow(
        name=row.name,
        source=source.cites,
        values=row.values,
        average=row.average,
        f1=row.f1,
        f1_average=row.f1_average,
        against=row.against,
        printed_gain=row.printed_gain,
        decoding=source.decoding,
        searches=source.searches,
        scorer=source.scorer,
        remarks=(source.remark,) if source.remark else (),
    )


def _refuse_unequal(results: Sequence[Mapping[str, Any]]) -> None:
    first = results[0]
    for result in results[1:]:
        if result["questions_digest"] != first["questions_digest"] or set(result["sets"]) != set(first["sets"]):
            raise DataError(
                f"{result['row']} was evaluated on other questions than {first['row']}; every row of a table needs "
                "the same. Evaluate it again with the same --data and --limit"
            )
        if result["scorer"] != first["scorer"]:
            raise DataError(
                f"{result['row']} was scored by the rule {result['scorer']!r}, {first['row']} by {first['scorer']!r}; "
                "evaluate one of them again with the other's --scorer"
            )


def _refuse_other_rows(several: Sequence[Mapping[str, Any]]) -> None:
    first = several[0]
    for key in ("method", "prompt", "decoding", "samples", "searches", "topk"):
        for result in several[1:]:
            if result[key] != first[key]:
                raise DataError(
                    f"two results are called {first['row']!r}, with {key} = {first[key]} and {result[key]}; these "
                    "are not seeds of one row. Evaluate one of them again with another --name, or leave it out"
                )
    known = [str((r["model"], r["weights"], r["seed"])) for r in several if r.get("weights")]
    if len(set(known)) < len(known):
        raise DataError(f"{first['row']!r} has the same model twice, which are not seeds. Leave one of the results out")


def _notes_of(results: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    first = results[0]
    asked = ", ".join(f"{TITLES.get(name, name)} {scores['questions']}" for name, scores in first["sets"].items())
    notes = [f"Questions: {asked}"]
    for key, what in (("decoding", "decoded"), ("searches", "allowed searches"), ("topk", "passages a search")):
        if len({str(result[key]) for result in results}) > 1:
            notes.append(f"Not all own rows have the same {what}: see each row")
    return tuple(notes)
