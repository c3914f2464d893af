"""docs/diagnose_accuracy.md: how often `holdfast diagnose` is right, of readings alone.

    python -m holdfast_research.pages.diagnosis_page                                  # the page, of what is kept
    python -m holdfast_research.pages.diagnosis_page --take null_model build/null.json
    python -m holdfast_research.pages.diagnosis_page --take fourth build/fourth.json

`--take` first keeps what `holdfast_research.null_model --json` or `pages.single_turn SET --json` wrote. A part of the
page whose reading is missing is left out, so the page never has a number that no command gave.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast_research import readings
from holdfast_research.head_to_head import INSTALL, NAMES, OURS
from holdfast_research.pages import diagnosis
from holdfast_research.pages.diagnosis import RIGHT, table
from holdfast_research.paths import REPOSITORY
from holdfast_research.recordings.outcomes import CAUSES

PAGE = REPOSITORY / "docs" / "diagnose_accuracy.md"
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


def take(name: str, path: Path) -> Path:
    """Keep what another command wrote as the reading of this name."""
    written = json.loads(path.read_text(encoding="utf-8"))
    if name == "null_model":
        return readings.keep(name, "python -m holdfast_research.null_model --json FILE", null_reading(written))
    command = f"python -m holdfast_research.pages.single_turn {name} --json FILE"
    return readings.keep(name, command, set_reading(written))


# ---- the page


def page(kept: Mapping[str, Reading]) -> str:
    """The page, of the readings by name."""
    parts = [_TITLE, in_short(kept)]
    for name, (title, body, text) in _SECTIONS.items():
        if name in kept:
            parts += [f"## {title}", text, body(kept[name]), _how(kept[name])]
    parts += [_UNKNOWN, _THRESHOLDS, _RIGHT, table(_right_codes())]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _how(reading: Reading) -> str:
    return f"Made by `{reading['command']}` on {reading['date'][:10]}, rules of commit {reading['rules']}."


def in_short(kept: Mapping[str, Reading]) -> str:
    """The goals, what was reached, and what a number is worth to a reader."""
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


def _null(reading: Reading) -> str:
    codes = ", ".join(f"`{code}` {count}" for code, count in reading["findings by code"].items()) or "none"
    counted = f"In all {reading['runs']} runs {reading['all']:g} findings per run; by code: {codes}."
    return f"{table(reading['findings per run'])}\n\n{counted}"


def _own(reading: Reading) -> str:
    pooled = reading["pooled"]
    rows = next(iter(pooled.values()))
    return "\n\n".join(
        [
            table({row: {name: numbers[row] for name, numbers in pooled.items()} for row in rows}),
            "Each testbed, at the factor chosen on all others:",
            table({testbed: _brief(numbers) for testbed, numbers in reading["testbeds"].items()}),
            "All runs, with every threshold in standard errors times a factor:",
            table({f"× {factor}": numbers for factor, numbers in reading["factors"].items()}),
        ]
    )


def _head_to_head(reading: Reading) -> str:
    parts = []
    for name, tools in reading["sets"].items():
        parts += [f"**{_SETS.get(name, name)}**", table({who: _brief(numbers) for who, numbers in tools.items()})]
    printed = reading["printed rows that rldk reads"].items()
    read = "; ".join(f"{_SETS.get(name, name)}: {count}" for name, count in printed)
    versions = "; ".join(f"{tool} {version}" for tool, version in reading["versions"].items())
    parts.append(f"Versions: {versions}. Logs in which `rldk monitor --regex trl` reads a printed row: {read}.")
    columns: dict[str, dict[str, str]] = {}
    for tool, names in NAMES.items():
        for theirs, ours in names.items():
            columns.setdefault(f"`{ours}`", dict.fromkeys(NAMES, ""))[tool] += f"`{theirs}` "
    parts += ["Series of ours, and the names of the same in each tool:", table(columns)]
    kinds = {who: _often(alarms) for who, alarms in reading["kinds"].items() if not who.startswith(OURS)}
    parts += ["Alarms that the tools raise most often, and in how many healthy and faulty runs:", table(kinds)]
    parts += [f"To install {tool}: `{how}`" for tool, how in INSTALL.items()]
    return "\n\n".join(parts)


def _brief(numbers: Mapping[str, Any]) -> dict[str, str]:
    """The counts alone: intervals would make the table too wide."""
    return {name: str(value).split(",")[0] for name, value in numbers.items()}


def _often(alarms: Mapping[str, Mapping[str, int]]) -> dict[str, str]:
    often = sorted(alarms.items(), key=lambda item: -sum(item[1].values()))[:4]
    return {"alarms": "; ".join(f"`{kind}` {n['healthy']} and {n['faulty']}" for kind, n in often) or "none"}


def _history(reading: Reading) -> str:
    return table(reading["sets"])


def _right_codes() -> dict[str, dict[str, str]]:
    """Cause -> the codes that count as right, in both libraries."""
    causes = sorted({*RIGHT, *CAUSES})
    ours = {cause: RIGHT.get(cause, frozenset()) for cause in causes}
    single = {cause: CAUSES[cause].right if cause in CAUSES else frozenset() for cause in causes}
    return {
        cause: {"own recordings": ", ".join(sorted(ours[cause])), "single-turn runs": ", ".join(sorted(single[cause]))}
        for cause in causes
    }


_SETS = {
    "own": "Own recordings: stock logs of TRL",
    "practice": "Single-turn runs for practice: stock logs of TRL",
    "fourth": "Single-turn runs, held out: stock logs of TRL",
    "public": "Public logs",
    "null model": "Drawn healthy runs",
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
    """What the number is worth on a reader's runs."""
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
    worth = "half are means of 8 rewards a row, the noisiest kind"
    return (
        Goal(f"{name}: {bad}", reading, ("counts", bad), 0.95, "a log like yours may not be among them"),
        Goal(f"{name}: {healthy}", reading, ("counts", healthy), 0.05, worth, at_most=True),
    )


GOALS = (
    *_goals_of_public("public_logs_kept", "public logs, never seen"),
    *_goals_of_public("public_logs", "public logs, seen"),
    *_goals_of_set("stock", "TRL runs made apart, stock log", "the nearest to yours, but tiny"),
    *_goals_of_set("observed", "the same runs, with the observer", "what `with_penalties(GRPOTrainer)` adds"),
    Goal(
        "drawn healthy runs: findings per run in the worst cell",
        "null_model",
        ("worst",),
        0.02,
        "as far as your noise is like theirs",
        at_most=True,
    ),
    *_goals_of_own("each testbed left out", "own recordings", "too good: the rules were made on most of these runs"),
    *_goals_of_own("TRL's stock logs, each testbed left out", "own recordings, TRL's stock logs", "too good as well"),
)

_TITLE = """\
# How often `diagnose` is right

Rules that fit the runs they were made on say little about yours. So the rules were read on five kinds of runs, from
those nearest to yours to those nearest to us. Every number is of a command below, with its date and the commit of the
rules. Counts have their Wilson intervals at 95 %. A finding is a problem; notes do not count.
"""
_PUBLIC = """\
Logs that others published, as their trainers wrote them. What became of each run is what its author measured: the
accuracy of the final checkpoint, or the words of a maintainer. These logs were looked at while the rules were written:
what rows mean, which names they have, and where earlier rules spoke without cause. So they are a check, not a test. The
test are two thirds of the collection, which were kept away from us and are read with the same command. The logs are
others' data and not in this repository.

Most logs are of one author's two sweeps, one of them with eight rewards a row. So they are far less independent than
the intervals assume. Pasted rows are from issue threads, one to eleven rows each. A log that cannot be read gets a
sentence that says why: W&B's sparklines alone, for one, hold no numbers.
"""
_FOURTH = """\
Runs of a stock `GRPOTrainer` on arithmetic, copying and sorting. Their author had not read the rules, and saw nothing
of what they say. The plan, with the causes and the right codes, was written before any run was made. Whether a fault
acted was decided by the rewards alone. The rules were frozen, then this set was read, once. "stock" is what every user
has. "every 4" and "every 10" are the stock logs of runs that logged every step, with that `logging_steps`. "observed"
has what our observer adds.

These are the runs nearest to yours that we can make: another trainer, no search, single turns. They are also tiny: a
fault strikes within a few updates, and entropy is of a vocabulary of dozens of symbols. A stock log cannot show some
faults at all, such as feedback in the loss or a sampler with another temperature, and those count as not found.
"""
_NULL = """\
Healthy runs that were drawn, not trained: a stationary or rising reward of binary outcomes, with noise that remembers,
easy and hard questions by turns, and every series that a stock log has. They show what no library of runs can: the rate
of findings against the length of a log and the number of completions a row is a mean of.

The noise of these runs is an assumption. What it leaves out, no rate here covers: questions that change, a grader with
drift, restarts. And a cell has few runs: of 200 with a true rate of 0.01, one cell in twenty is above 0.02.
"""
_OWN = """\
The library of recorded runs: search agents of the local trainer and of TRL, and single-turn tasks in TRL, each with a
fault put in from outside. A testbed is one recipe, world and model. How strict the rules are, a factor on every
threshold in standard errors, was chosen on all other testbeds and judged on the one left out.

Thresholds in other units, shares and nats, are the same in all columns. They were chosen on two thirds of these runs,
so that these numbers are too good. A finding says that a fall is near, and seldom that a peak is: the lead is a few
rollout batches.
"""
_HEAD = """\
Two other tools judge such logs: post-training-toolkit of Microsoft, a callback for TRL, and rldk. Each was installed
from its repository, at the commit below, and ran with its own defaults, twice. "As the trainer logs" is the callback
that each ships, fed row after row. "Names mapped by hand" gives them every series that measures what their rules look
for, under the name they look for, which is kinder than their documentation.

"Serious" is what a tool itself would stop a run for: high and critical alarms of the toolkit, stop actions of rldk's
preset `grpo_safe`, and our findings. "Any" adds medium and low alarms, warnings, and our notes, those included that say
that a zero is normal. An alarm anywhere in a faulty run counts as found, so that a tool which always speaks finds
everything: read both columns together. A cause counts as named if any alarm of the run names it, in a generous reading.

Where either tool speaks about healthy runs, it is most often a floor on entropy, of 1 and of 1.8 nats. Many policies
are below them from the first step.
"""
_HISTORY = """\
Three sets of own recordings were held out, one after the other, each read once by the rules of its day, and used to
change them afterwards. They are part of the library above now. To repeat a reading, check out its commit.
"""
_UNKNOWN = """\
## What no log can tell

* Whether the reward is what you want. A reward function that pays for the wrong thing gives a healthy log, unless
  another function's mean is logged beside it.
* Whether questions leaked, or whether a held-out score will follow the training reward.
* What happened between two rows. With `logging_steps=10` a run can break and end within one row.
* Which of two causes came first, if both show in the same row.
* A fault from the first step on, if nothing changes afterwards: the log has nothing to compare with. Only absolute
  levels tell, and those differ between models.
* What the log lacks. `holdfast diagnose` lists the codes that it could not check, and what logs their series.
"""
_THRESHOLDS = """\
## Where the thresholds come from

* In standard errors: from reasoning about noise, checked with the drawn runs, which have no part in any other number.
* In shares, nats and times: from the calibration and tuning sides of the recorded runs, and from practice runs of TRL.
* Absolute levels of KL, entropy and sampler gaps: from what trainers' documentation and published logs show as normal.
* The public logs at hand showed which rules spoke without cause. No threshold was set to the value that suits them.
* The held-out runs had no part in any threshold.

`src/holdfast/diagnostics/rules` has each as a constant with its reason.
"""
_RIGHT = """\
## Which codes count as right

By what was done to a run. Both columns were written before the runs of their held-out sets were made. Codes that came
later were added where they say the same of the same fault: `SMP002` beside `SMP001`.
"""
_SECTIONS = {
    "public_logs": ("Logs of public runs", _public, _PUBLIC),
    "public_logs_kept": ("Logs of public runs: the two thirds kept away", _public, ""),
    "fourth": ("Runs made apart from the rules", _set, _FOURTH),
    "null_model": ("Healthy runs, drawn", _null, _NULL),
    "own_recordings": ("Own recordings, each testbed left out once", _own, _OWN),
    "head_to_head": ("Beside two other tools", _head_to_head, _HEAD),
    "history": ("Earlier held-out readings", _history, _HISTORY),
}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--take", nargs=2, metavar=("NAME", "FILE"), help="first keep this reading")
    options = parser.parse_args()
    if options.take:
        print(take(options.take[0], Path(options.take[1])))
    kept = {name: reading for name in _SECTIONS if (reading := readings.kept(name)) is not None}
    PAGE.write_text(page(kept), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
