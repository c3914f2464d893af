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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast_research import readings
from holdfast_research.pages import diagnosis, single_turn
from holdfast_research.pages.diagnosis import table
from holdfast_research.pages.filling import filled
from holdfast_research.paths import REPOSITORY
from holdfast_research.recordings.library import REAL_MODEL

PAGE = REPOSITORY / "docs" / "reference" / "diagnose-accuracy.md"
Reading = Mapping[str, Any]


# ---- what other commands wrote


def null_reading(verdicts: Sequence[Reading]) -> dict[str, Any]:
    """Findings per drawn run, by rows and completions a row, and by code."""
    runs: dict[tuple[int, int], list[int]] = {}
    codes: dict[str, int] = {}
    for verdict in verdicts:
        cell = (verdict["run"]["completions"], verdict["run"]["rows"])
        runs.setdefault(cell, []).append(len(verdict["codes"]))
        for code in verdict["codes"]:
            codes[code] = codes.get(code, 0) + 1
    rates = {cell: sum(counts) / len(counts) for cell, counts in sorted(runs.items())}
    lengths = sorted({rows for _, rows in rates})
    return {
        "runs": len(verdicts),
        "findings per run": {
            f"{size} completions a row": {f"{rows} rows": round(rates[size, rows], 3) for rows in lengths}
            for size in sorted({size for size, _ in rates})
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
    if name == "null_model":
        return readings.keep(name, "python -m holdfast_research.null_model --json FILE", null_reading(written))
    command = f"python -m holdfast_research.pages.single_turn {name} --json FILE"
    body = healthy_set_reading(written) if name == REAL_MODEL else set_reading(written)
    return readings.keep(name, command, body)


# ---- the page


def page(text: str, kept: Mapping[str, Reading]) -> str:
    """The page with its tables, from readings by name."""
    tables = {name: f"{_TABLES[name](reading)}\n\n{_how(reading)}" for name, reading in kept.items()}
    return filled(text, {"in_short": in_short(kept), **tables})


def _how(reading: Reading) -> str:
    return f"Made by `{reading['command']}` on {reading['date'][:10]}, rules of commit {reading['rules']}."


def in_short(kept: Mapping[str, Reading]) -> str:
    """The table of goals, what was reached, and what each number means on a reader's runs."""
    rows: dict[str, dict[str, str]] = {}
    for goal in GOALS:
        if goal.reading in kept:
            number = str(_inside(kept[goal.reading], goal.place))
            distance = _ratio(number) - goal.level
            rows[goal.name] = {
                "measured": number,
                "goal": f"at most {goal.level:g}" if goal.at_most else f"{goal.level:g}",
                "reached": "yes" if (distance <= 0 if goal.at_most else distance >= 0) else "no",
                "on your runs": goal.worth,
            }
    return table(rows) if rows else ""


def _inside(reading: Reading, path: Iterable[str]) -> Any:
    value: Any = reading
    for key in path:
        value = value[key]
    return value


def _ratio(number: str) -> float:
    """The share in a text.

    >>> _ratio("1 of 4, 0.25 (0.05 to 0.70)"), _ratio("0.012")
    (0.25, 0.012)
    """
    counted = re.match(r"(\d+) of (\d+)", number)
    return int(counted[1]) / int(counted[2]) if counted else float(number)


def _public(reading: Reading) -> str:
    rows = {name: {"logs": value} for name, value in reading["counts"].items()}
    outcomes: dict[str, dict[str, str]] = {}
    for outcome in ("COLLAPSED", "DEGRADED", "UNSTABLE", "HEALTHY"):
        some = [log for log in reading["logs"] if log["outcome"] == outcome and not log["empty"]]
        if some:
            firsts = [log["findings"][0].split("@")[0] for log in some if log["findings"]]
            outcomes[outcome.lower()] = {
                "logs": str(len(some)),
                "with a finding": str(len(firsts)),
                "first codes": ", ".join(f"{code} {firsts.count(code)}" for code in sorted(set(firsts))) or "none",
            }
    return table(rows) + "\n\n" + table(outcomes)


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
    codes = ", ".join(f"`{code}` {count}" for code, count in reading["findings by code"].items()) or "none"
    counted = f"In all {reading['runs']} runs {reading['all']:g} findings per run; by code: {codes}."
    return f"{table(reading['findings per run'])}\n\n{counted}"


def _own(reading: Reading) -> str:
    pooled = {name: numbers for name, numbers in reading["pooled"].items() if name.endswith("left out")}
    rows = next(iter(pooled.values()))
    return table({row: {name: numbers[row] for name, numbers in pooled.items()} for row in rows})


def _head_to_head(reading: Reading) -> str:
    rows: dict[str, dict[str, str]] = {}
    for name, set_name in _SETS.items():
        for who, numbers in _brief(reading["sets"].get(name, {})).items():
            rows.setdefault(who, {})[set_name] = numbers
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
    return table(reading["sets"])


_SETS = {
    "own": "own recordings",
    "fourth": "held out",
    "public": "public logs",
    "real-model": "a real model, healthy",
    "null model": "simulated, healthy",
}


@dataclass(frozen=True, slots=True)
class Goal:
    """A line of the summary."""

    name: str
    reading: str
    place: tuple[str, ...]
    """The keys to its number in the reading."""
    level: float
    worth: str
    """What the number means on a reader's runs."""
    at_most: bool = False


def _goals_of_set(view: str, name: str, worth: str) -> tuple[Goal, ...]:
    in_view = ("numbers", view)
    first = (*in_view, "right cause first, where the log can tell")
    return (
        Goal(f"{name}: faulty runs with a finding", "fourth", (*in_view, "found by the end"), 0.95, worth),
        Goal(f"{name}: right cause first, where the log can tell", "fourth", first, 0.8, "yours may have two at once"),
        Goal(
            f"{name}: healthy runs with a finding",
            "fourth",
            (*in_view, "healthy with a finding"),
            0.05,
            "noise, plateaus, schedules and resumes were among them",
            at_most=True,
        ),
    )


def _goals_of_own(column: str, name: str, worth: str) -> tuple[Goal, ...]:
    return tuple(
        Goal(f"{name}: {goal.name}", "own_recordings", ("pooled", column, goal.name), goal.level, worth, goal.at_most)
        for goal in diagnosis.GOALS
    )


def _goals_of_public(reading: str, name: str) -> tuple[Goal, ...]:
    bad, healthy = "bad runs with a finding", "healthy runs with a finding"
    worth = "half have 8 rewards a row, the noisiest kind"
    return (
        Goal(f"{name}: {bad}", reading, ("counts", bad), 0.95, "a log like yours may not be among them"),
        Goal(f"{name}: {healthy}", reading, ("counts", healthy), 0.05, worth, at_most=True),
    )


GOALS = (
    *_goals_of_public("public_logs_kept", "public logs, never seen"),
    *_goals_of_public("public_logs", "public logs, seen"),
    *_goals_of_set("stock", "blind TRL runs, stock log", "most like yours, but tiny"),
    *_goals_of_set("observed", "the same runs, with the observer", "what `with_penalties(GRPOTrainer)` adds"),
    Goal(
        "simulated healthy runs: findings per run in the worst cell",
        "null_model",
        ("worst",),
        0.02,
        "if your noise is like theirs",
        at_most=True,
    ),
    *_goals_of_own("each testbed left out", "our recordings", "too good: the rules were made on most of these runs"),
    *_goals_of_own("TRL's stock logs, each testbed left out", "our recordings, TRL's stock logs", "too good as well"),
)

_TABLES: Mapping[str, Callable[[Reading], str]] = {
    "public_logs": _public,
    "public_logs_kept": lambda reading: f"Logs never seen:\n\n{_public(reading)}",
    "fourth": _set,
    REAL_MODEL: _healthy_set,
    "null_model": _null,
    "own_recordings": _own,
    "head_to_head": _head_to_head,
    "history": _history,
}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--take", nargs=2, metavar=("NAME", "FILE"), help="first keep this reading")
    options = parser.parse_args()
    if options.take:
        print(take(options.take[0], Path(options.take[1])))
    kept = {name: reading for name in _TABLES if (reading := readings.kept(name)) is not None}
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), kept), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
