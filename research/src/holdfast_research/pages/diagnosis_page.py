"""docs/reference/diagnose-accuracy.md: how often `holdfast diagnose` is right, of readings alone.

    python -m holdfast_research.pages.diagnosis_page                                  # the page, of what is kept
    python -m holdfast_research.pages.diagnosis_page --take null_model build/null.json
    python -m holdfast_research.pages.diagnosis_page --take fourth build/fourth.json       # and --take real-model

`--take` first keeps what `holdfast_research.null_model --json` or `pages.single_turn SET --json` wrote. The prose is in
the page, by hand. This writes the tables between its marks; one whose reading is missing stays as it was.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from statistics import mean
from typing import Any

from holdfast_research import readings
from holdfast_research.pages import diagnosis, single_turn
from holdfast_research.pages.diagnosis import table
from holdfast_research.pages.filling import filled
from holdfast_research.paths import REPOSITORY
from holdfast_research.public_logs import EXIT, FALSE, FIRST, READ, STRANGERS
from holdfast_research.public_logs import FOUND as BAD_FOUND
from holdfast_research.recordings.library import REAL_MODEL

PAGE = REPOSITORY / "docs" / "reference" / "diagnose-accuracy.md"
Reading = Mapping[str, Any]


# ---- what other commands wrote


def null_reading(verdicts: Sequence[Reading]) -> dict[str, Any]:
    """Findings per drawn run, by rows and completions a row, and by code."""
    runs: dict[tuple[tuple[str, int], int], list[int]] = {}
    codes: dict[str, int] = {}
    for verdict in verdicts:
        run = verdict["run"]
        cell = ((run["reward"], run["completions"]), run["rows"])
        runs.setdefault(cell, []).append(len(verdict["codes"]))
        for code in verdict["codes"]:
            codes[code] = codes.get(code, 0) + 1
    rates = {cell: sum(counts) / len(counts) for cell, counts in sorted(runs.items())}
    lengths = sorted({rows for _, rows in rates})
    return {
        "runs": len(verdicts),
        "findings per run": {
            f"{size} completions a row" + ("" if reward == "correct" else f", {reward} rewards"): {
                f"{rows} rows": round(rates[(reward, size), rows], 3) for rows in lengths
            }
            for reward, size in sorted({kind for kind, _ in rates})
        },
        "worst": round(max(rates.values()), 3),
        "all": round(sum(codes.values()) / len(verdicts), 4),
        "findings by code": dict(sorted(codes.items())),
    }


def set_reading(written: Reading) -> dict[str, Any]:
    """View -> its numbers, and cause -> what was said of its runs in the stock and the observed view."""
    views = {
        name: {row: readings.share(share["hits"], share["of"]) for row, share in shares.items()}
        for name, shares in written["numbers"].items()
    }
    causes: dict[str, dict[str, str]] = {}
    for cause in sorted({view["cause"] for view in written["views"] if not view["healthy"]}):
        for name in ("stock", "observed"):
            some = [view for view in written["views"] if view["cause"] == cause and view["view"] == name]
            row = causes.setdefault(cause, {"runs": str(len(some))})
            row[f"found, {name}"] = str(sum(view["has_finding"] for view in some))
            row[f"cause first, {name}"] = str(sum(view["right"] for view in some))
    return {"numbers": views, "causes": causes}


def healthy_set_reading(written: Reading) -> dict[str, Any]:
    """View -> healthy runs with a finding and with a note; run -> what was said of it in every view."""
    counts: dict[str, dict[str, str]] = {"healthy with a finding": {}, "healthy with a note": {}}
    runs: dict[str, dict[str, str]] = {}
    for name in dict.fromkeys(view["view"] for view in written["views"]):
        some = [view for view in written["views"] if view["view"] == name]
        counts["healthy with a finding"][name] = readings.share(sum(view["has_finding"] for view in some), len(some))
        counts["healthy with a note"][name] = readings.share(sum(bool(view["notes"]) for view in some), len(some))
        for view in some:
            runs.setdefault(view["name"], {})[name] = single_turn.said(view["findings"], view["notes"])
    return {"numbers": counts, "runs": runs}


def take(name: str, path: Path) -> Path:
    """Keep the output of another command as the reading of this name."""
    written = json.loads(path.read_text(encoding="utf-8"))
    if name.startswith("null_model"):
        drawn = [verdict["run"] for verdict in written]
        rows, sizes = (" ".join(map(str, sorted({run[key] for run in drawn}))) for key in ("rows", "completions"))
        command = f"python -m holdfast_research.null_model --rows {rows} --completions {sizes} --json FILE"
        return readings.keep(name, command, null_reading(written))
    command = f"python -m holdfast_research.pages.single_turn {name} --json FILE"
    body = healthy_set_reading(written) if name == REAL_MODEL else set_reading(written)
    return readings.keep(name, command, body)


# ---- the page


def page(text: str, kept: Mapping[str, Reading]) -> str:
    """The page with its tables, from readings by name."""
    tables = {name: f"{make(kept[name])}\n\n{_how(kept[name])}" for name, make in _TABLES.items() if name in kept}
    whole = {"in_short": in_short(kept), "others": of_others(kept), **tables}
    return filled(text, {name: short(made) for name, made in whole.items()})


OTHERS = {"public_logs": "public logs", **{f"strangers_{runs}": f"{runs} {STRANGERS}" for runs in (19, 51, 38, 25, 37)}}
"""Readings of logs of others, and what the page calls them; `NAME_first` is the first reading of the same logs."""


def of_others(kept: Mapping[str, Reading]) -> str:
    """A row for each collection when it was first read, and one after readers and rules were mended."""
    rows: dict[str, Mapping[str, str]] = {}
    for name, title in OTHERS.items():
        for reading, when in ((f"{name}_first", "first read"), (name, "mended")):
            if reading in kept:
                made = {"read on": kept[reading]["date"][:10], "by the rules of": kept[reading]["rules"]}
                rows[f"{title}, {when}"] = kept[reading]["counts"] | made
    shown = (READ, BAD_FOUND, FIRST, FALSE, EXIT, "read on", "by the rules of")
    cells = {name: {column: numbers.get(column, "none") for column in shown} for name, numbers in rows.items()}
    return table(cells) if cells else ""


def short(text: str) -> str:
    """Shares as a table has room for them.

    >>> short("| 1 of 4, 0.25 (0.05 to 0.70) |")
    '| 1/4 (0.05–0.70) |'
    """
    return re.sub(r"(\d+) of (\d+), [\d.]+ \(([\d.]+) to ([\d.]+)\)", r"\1/\2 (\3–\4)", text)


def _how(reading: Reading) -> str:
    return f"Made by `{reading['command']}` on {reading['date'][:10]}, rules of commit {reading['rules']}."


def in_short(kept: Mapping[str, Reading]) -> str:
    """A row a set of runs: what was measured, in bold where it misses its goal."""
    rows: dict[str, dict[str, str]] = {}
    for name, reading, places in SUMMARY:
        if reading in kept:
            cells = rows.setdefault(name, dict.fromkeys((FOUND, CAUSE, HEALTHY), "–"))
            for (column, level), place in places.items():
                number = str(reduce(getitem, place, kept[reading]))  # type: ignore[arg-type]
                distance = _ratio(number) - level
                missed = distance > 0 if column == HEALTHY else distance < 0
                goal = f"{'at most' if column == HEALTHY else 'goal'} {level:g}"
                cells[column] = f"{'**' * missed}{number}{'**' * missed}; {goal}"
    return table(rows) if rows else ""


def _ratio(number: str) -> float:
    """The share in a text.

    >>> _ratio("1 of 4, 0.25 (0.05 to 0.70)"), _ratio("0.012")
    (0.25, 0.012)
    """
    counted = re.match(r"(\d+) of (\d+)", number)
    return int(counted[1]) / int(counted[2]) if counted else float(number)


def _set(reading: Reading) -> str:
    views = reading["numbers"]
    rows = next(iter(views.values()))
    return (
        table({row: {view: numbers[row] for view, numbers in views.items()} for row in rows})
        + "\n\n"
        + table(reading["causes"])
    )


def _healthy_set(reading: Reading) -> str:
    return table(reading["numbers"])


def _null(reading: Reading) -> str:
    """Findings per run at the lengths between, by kind; the file of the reading has every length and code."""
    rows = {}
    for kind, by_length in reading["findings per run"].items():
        worst = max(by_length, key=by_length.__getitem__)
        rows[kind] = {
            "mean over the lengths": f"{mean(by_length.values()):.3f}",
            "worst length": f"{by_length[worst]:g} ({worst})",
        }
    return f"{table(rows)}\n\nIn all {reading['runs']} runs {reading['all']:g} findings per run."


def _own(reading: Reading) -> str:
    pooled = {name: numbers for name, numbers in reading["pooled"].items() if name.endswith("left out")}
    rows = [name for name in next(iter(pooled.values())) if "of faulty runs with" not in name]
    return table({row: {name: numbers[row] for name, numbers in pooled.items()} for row in rows})


def _head_to_head(reading: Reading) -> str:
    rows: dict[str, dict[str, str]] = {}
    for name, tools in reading["sets"].items():
        for who, numbers in _brief(tools).items() if name in _SETS or name.endswith(STRANGERS) else ():
            rows.setdefault(who, {})[_SETS.get(name, name)] = numbers
    for tool in {who.partition(", ")[0] for who in rows}:
        ways = [who for who in rows if who.startswith(f"{tool}, ")]
        if len(ways) == 2 and rows[ways[0]] == rows[ways[1]]:
            rows = {f"{tool}, both ways" if who == ways[0] else who: rows[who] for who in rows if who != ways[1]}
    versions = "; ".join(f"{tool} {version}" for tool, version in reading["versions"].items())
    return f"{table(rows)}\n\nVersions: {versions}."


def _brief(tools: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Tool -> faulty and healthy runs with a serious alarm, and cause first; no intervals, for the table's width."""
    cells = {}
    for who, numbers in tools.items():
        found, healthy, first = (
            str(numbers[name]).split(",")[0].replace(" of ", "/")
            for name in ("found, serious", "healthy, serious", "cause first")
        )
        cells[who] = "; ".join(text for text in (found, healthy, first) if text != "none")
    return cells


def _history(reading: Reading) -> str:
    """How often each set was read, and what the first blind set said each time; the file has the earlier sets."""
    return "\n\n".join(table(reading[part]) for part in ("readings", "fourth"))


_SETS = {
    "own": "own recordings",
    "fourth": "held out",
    "public": "public logs",
    "real-model": "a real model, healthy",
    "null model": "simulated, healthy",
}


FOUND, CAUSE, HEALTHY = (
    "faulty runs with a finding",
    "right cause first, where the log can tell",
    "healthy runs with one",
)
Places = Mapping[tuple[str, float], tuple[str, ...]]
"""Column and goal -> the keys to the number in a reading."""


def _set_places(view: str) -> Places:
    return {
        (FOUND, 0.95): ("numbers", view, "found by the end"),
        (CAUSE, 0.8): ("numbers", view, "right cause first, where the log can tell"),
        (HEALTHY, 0.05): ("numbers", view, "healthy with a finding"),
    }


def _own_places(column: str) -> Places:
    found, cause, healthy = (("pooled", column, goal.name) for goal in diagnosis.GOALS)
    return {(FOUND, 0.95): found, (CAUSE, 0.9): cause, (HEALTHY, 0.05): healthy}


SUMMARY: Sequence[tuple[str, str, Places]] = (
    ("blind runs of TRL, read four times, stock log: most like yours, but tiny", "fourth", _set_places("stock")),
    ("the same, with what `with_penalties(GRPOTrainer)` logs", "fourth", _set_places("observed")),
    ("simulated healthy runs: findings per run in the worst cell", "null_model", {(HEALTHY, 0.02): ("worst",)}),
    ("our recordings, found before half of the peak was lost", "own_recordings", _own_places("each testbed left out")),
    (
        "the same, TRL's stock logs",
        "own_recordings",
        _own_places("TRL's stock logs, each testbed left out"),
    ),
)

_TABLES: Mapping[str, Callable[[Reading], str]] = {
    "fourth": _set,
    REAL_MODEL: _healthy_set,
    "null_model": _null,
    "own_recordings": _own,
    "head_to_head": _head_to_head,
    "head_to_head_strangers": _head_to_head,
    "history": _history,
}

READINGS = (*_TABLES, *(name + end for name in OTHERS for end in ("_first", "")))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--take", nargs=2, metavar=("NAME", "FILE"), help="first keep this reading")
    options = parser.parse_args()
    if options.take:
        print(take(options.take[0], Path(options.take[1])))
    kept = {name: reading for name in READINGS if (reading := readings.kept(name)) is not None}
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), kept), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
