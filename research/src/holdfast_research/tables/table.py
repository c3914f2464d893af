"""Own rows beside published ones: general, multi-hop and overall averages, gains over the row that is named.

Nothing is averaged away: a row says how it was decoded, how many searches it had and which rule scored it, and a gain
says over what. Rows of one name are seeds of one method and become their mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from holdfast.errors import DataError
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
    """A row, own or published; scores are fractions."""

    name: str
    source: str
    """`own`, or what is cited."""
    values: Mapping[str, float]
    average: float | None
    """Over all sets of the table; None when some are missing."""
    interval: tuple[float, float] | None = None
    """Of the average, 95 %: over questions, of one seed."""
    seeds: int = 1
    against: str | None = None
    printed_gain: float | None = None
    """In percent, of a published row, as its paper has it."""
    decoding: str
    searches: str
    scorer: str
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Of a row's average over the row it names."""

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
        wanted = [name for name in self.sets if name in kinds]
        values = [row.values[name] for name in wanted if name in row.values]
        return mean(values) if wanted and len(values) == len(wanted) else None

    def gain(self, row: TableRow) -> Gain | None:
        """None when the row names none, or an average is missing. Own rows are held against own rows only."""
        own = [one for one in self.rows if (one.source == OWN) == (row.source == OWN) and one is not row]
        base = next((one for one in own if one.name == row.against), None)
        if base is None or base.average is None or row.average is None:
            return None
        points = row.average - base.average
        return Gain(points=points, percent=points / base.average if base.average else None, over=base.name)


def own_block(results: Sequence[Mapping[str, Any]], *, against: str | None = None) -> Block:
    """Results of `holdfast eval` as a table, in the papers' order, then in the order given.

    `against` names the row of every gain; without it a training row is held against the one it builds on. Raises
    `DataError` when there is nothing, when two rows have other sets or questions, and when `against` is no row.
    """
    if not results:
        raise DataError("there are no results to make a table of; give folders of holdfast eval")
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for one in results:
        by_name.setdefault(one["row"], []).append(one)
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
        _own_row(name, by_name[name], None if name == against else against or usual.get(name)) for name in names
    )
    return Block(title="Own runs", sets=sets, rows=rows, notes=_own_notes(results))


def published_block(model: str) -> Block:
    """The published rows of a model. Raises `DataError` for one that has none."""
    if model not in BLOCKS:
        raise DataError(f"--published {model}: no rows are known for it; there are {', '.join(BLOCKS)}")
    rows = tuple(_published_row(row) for row in BLOCKS[model])
    notes = [f"{name}: {why}" for (block, name), why in DISPUTED.items() if block == model]
    return Block(title=f"Published, {model}", sets=tuple(TITLES)[:7], rows=rows, notes=tuple(notes))


def beside(own: Block, published: Block) -> Block:
    """Published rows, then own ones, as one table. Raises `DataError` when they are not about the same sets."""
    if set(own.sets) != set(published.sets):
        raise DataError(
            f"the own rows have the sets {', '.join(own.sets)}, the published ones {', '.join(published.sets)}: there "
            "is nothing to compare. Evaluate on --data seven, or leave --published out"
        )
    return Block(
        title=f"{published.title}, and own runs",
        sets=published.sets,
        rows=(*published.rows, *own.rows),
        notes=(*published.notes, *own.notes, NOT_COMPARABLE),
    )


def _own_row(name: str, results: Sequence[Mapping[str, Any]], against: str | None) -> TableRow:
    first = results[0]
    values = {one: mean(r["sets"][one]["em"] for r in results) for one in first["sets"]}
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
        interval=tuple(interval) if interval else None,
        seeds=len(results),
        against=against,
        decoding=first["decoding"],
        searches=first["searches"],
        scorer="EM of what was generated" + ("" if first["scorer"] == "table" else ", official rules"),
        remarks=tuple(remarks),
    )


def _published_row(row: Published) -> TableRow:
    own = row.source
    return TableRow(
        name=row.name,
        source=own.cites,
        values=row.values,
        average=row.average,
        against=row.against,
        printed_gain=row.printed_gain,
        decoding=own.decoding,
        searches=own.searches,
        scorer=own.scorer,
        remarks=(own.remark,) if own.remark else (),
    )


def _refuse_unequal(results: Sequence[Mapping[str, Any]]) -> None:
    first = results[0]
    for one in results[1:]:
        if one["questions_digest"] != first["questions_digest"] or set(one["sets"]) != set(first["sets"]):
            raise DataError(
                f"{one['row']} was evaluated on other questions than {first['row']}; a table needs the same for every "
                "row. Evaluate it again with the same --data and --limit"
            )
        if one["scorer"] != first["scorer"]:
            raise DataError(
                f"{one['row']} was scored by the rule {one['scorer']!r}, {first['row']} by {first['scorer']!r}; "
                "evaluate one of them again with the other's --scorer"
            )


def _refuse_other_rows(several: Sequence[Mapping[str, Any]]) -> None:
    first = several[0]
    for key in ("method", "prompt", "decoding", "samples", "searches", "topk"):
        for one in several[1:]:
            if one[key] != first[key]:
                raise DataError(
                    f"two results are called {first['row']!r}, one with {key} = {first[key]}, one with {one[key]}: no "
                    "seeds of one row. Evaluate one of them again with another --name, or leave it out"
                )
    known = [str((one["model"], one["weights"], one["seed"])) for one in several if one.get("weights")]
    if len(set(known)) < len(known):
        raise DataError(f"{first['row']!r} stands for the same model twice: no seeds. Leave one of the results out")


def _own_notes(results: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    first = results[0]
    asked = ", ".join(f"{TITLES.get(name, name)} {own['questions']}" for name, own in first["sets"].items())
    notes = [f"Questions: {asked}"]
    for key, what in (("decoding", "decoded"), ("searches", "allowed searches"), ("topk", "passages a search")):
        if len({str(one[key]) for one in results}) > 1:
            notes.append(f"Not all own rows have the same {what}: see each row")
    return tuple(notes)
