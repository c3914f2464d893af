"""A table as Markdown, CSV or LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from holdfast.evaluate.results import GENERAL_SETS, MULTI_HOP_SETS
from holdfast_research.tables.table import OWN, TITLES, Block, TableRow

ABSENT = "–"
_ROUNDING = 0.5  # percent: averages are printed with three digits
FORMATS = {"md": "Markdown", "csv": "CSV", "tex": "LaTeX"}


def render(blocks: Sequence[Block], form: str) -> str:
    """All tables, one after another."""
    return {"md": markdown, "csv": comma_separated, "tex": latex}[form](blocks)


def markdown(blocks: Sequence[Block]) -> str:
    """A table per block; numbered notes below say how rows were measured."""
    lines: list[str] = []
    for block in blocks:
        header = [*_header(block), "measured"]
        lines += [f"## {block.title}", "", f"| {' | '.join(header)} |", "|---|" + "---|" * (len(header) - 1)]
        numbers: dict[str, int] = {}
        for row in block.rows:
            number = numbers.setdefault(_protocol(row), len(numbers) + 1)
            cells = [row.name, *_cells(block, row), f"({number})"]
            lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
        lines += ["", "Measured:", "", *[f"{number}. {text}" for text, number in numbers.items()]]
        lines += ["", *[f"* {note}" for note in block.notes], ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def comma_separated(blocks: Sequence[Block]) -> str:
    """One row per row of every table, numbers in full."""
    sets = list(dict.fromkeys(name for block in blocks for name in block.sets))
    with_f1 = any(map(_has_f1, blocks))
    rows = [_record(block, row, sets, with_f1) for block in blocks for row in block.rows]
    file = io.StringIO()
    writer = csv.DictWriter(file, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _record(block: Block, row: TableRow, sets: Sequence[str], with_f1: bool) -> dict[str, object]:
    """The cells of a row by column, the same columns for every row."""
    gain = block.gain(row)
    low, high = row.interval or (None, None)
    f1 = {**{f"f1_{name}": _full(row.f1.get(name)) for name in sets}, "f1_average": _full(row.f1_average)}
    return {
        "table": block.title,
        "row": row.name,
        "source": row.source,
        **{name: _full(row.values.get(name)) for name in sets},
        "general": _full(block.mean_over(row, GENERAL_SETS)),
        "multi_hop": _full(block.mean_over(row, MULTI_HOP_SETS)),
        "average": _full(row.average),
        "low": _full(low),
        "high": _full(high),
        **(f1 if with_f1 else {}),
        "gain_points": _full(100 * gain.points if gain else None),
        "gain_percent": _full(100 * gain.percent if gain and gain.percent is not None else None),
        "gain_over": gain.over if gain else "",
        "printed_gain_percent": _full(row.printed_gain),
        "seeds": row.seeds,
        "decoding": row.decoding,
        "searches": row.searches,
        "scorer": row.scorer,
        "remarks": "; ".join(row.remarks),
    }


def latex(blocks: Sequence[Block]) -> str:
    """A `tabular` per block, with `booktabs`; numbered notes below say how rows were measured."""
    parts = ["% needs \\usepackage{booktabs}"]
    for block in blocks:
        header = _header(block)
        notes: dict[str, int] = {}
        body = []
        for row in block.rows:
            number = notes.setdefault(_protocol(row), len(notes) + 1)
            name = f"{_escaped(row.name)}\\textsuperscript{{{number}}}"
            body.append(" & ".join([name, *[_escaped(cell) for cell in _cells(block, row)]]) + r" \\")
        parts += [
            f"% {block.title}",
            r"\begin{tabular}{l" + "r" * (len(header) - 1) + "}",
            r"\toprule",
            " & ".join(_escaped(title) for title in header) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            "",
            *[f"\\textsuperscript{{{number}}} {_escaped(text)}.\\\\" for text, number in notes.items()],
            *[f"{_escaped(note)}.\\\\" for note in block.notes],
            "",
        ]
    return "\n".join(parts).rstrip("\n") + "\n"


def _header(block: Block) -> list[str]:
    """Columns: sets of one kind, their mean, those of the other, theirs, the rest, the average, the gain."""
    titles = [TITLES.get(name, name) for name in _ordered(block)]
    f1 = ["F1"] if _has_f1(block) else []
    return ["EM", *titles, "general", "multi-hop", "average", *f1, "gain"]


def _cells(block: Block, row: TableRow) -> list[str]:
    average = _number(row.average)
    if row.interval:
        average += f" ({row.interval[0]:.3f}–{row.interval[1]:.3f})"
    return [
        *[_number(row.values.get(name)) for name in _ordered(block)],
        _number(block.mean_over(row, GENERAL_SETS)),
        _number(block.mean_over(row, MULTI_HOP_SETS)),
        average,
        *([_number(row.f1_average)] if _has_f1(block) else []),
        _gain(block, row),
    ]


def _has_f1(block: Block) -> bool:
    """Whether the average F1 has a column: where a paper prints it."""
    return any(row.f1_average is not None and row.source != OWN for row in block.rows)


def _ordered(block: Block) -> list[str]:
    kinds = (*GENERAL_SETS, *MULTI_HOP_SETS)
    return sorted(block.sets, key=lambda name: kinds.index(name) if name in kinds else len(kinds))


def _gain(block: Block, row: TableRow) -> str:
    gain = block.gain(row)
    if gain is None:
        return ABSENT
    percent = "" if gain.percent is None else f"{100 * gain.percent:+.1f} %"
    if row.printed_gain is not None and gain.percent is not None:
        differs = abs(row.printed_gain - 100 * gain.percent) > _ROUNDING
        percent += f", printed {row.printed_gain:+.1f} %" if differs else ""
    return f"{100 * gain.points:+.1f}{f' ({percent})' if percent else ''} over {gain.over}"


def _protocol(row: TableRow) -> str:
    seeds = "" if row.source != OWN else ", one seed" if row.seeds == 1 else f", {row.seeds} seeds"
    parts = [row.source + seeds, f"decoding: {row.decoding}", f"searches: {row.searches}", f"scorer: {row.scorer}"]
    return "; ".join([*parts, *row.remarks])


def _number(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.3f}"


def _full(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _escaped(text: str) -> str:
    for character in ("\\", "&", "%", "$", "#", "_", "{", "}"):
        text = text.replace(character, "\\" + character if character != "\\" else r"\textbackslash ")
    return text.replace("–", "--").replace("→", r"$\to$")
