"""docs/reference/diagnose-accuracy.md: how often `holdfast diagnose` is right, of readings alone.

    python -m holdfast_research.pages.diagnosis_page                                  # the page, of what is kept
    python -m holdfast_research.pages.diagnosis_page --take null_model build/null.json
    python -m holdfast_research.pages.diagnosis_page --take fourth build/fourth.json       # and --take real-model

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
from holdfast_research.pages import diagnosis, single_turn
from holdfast_research.pages.diagnosis import RIGHT, table
from holdfast_research.paths import REPOSITORY
from holdfast_research.recordings.library import REAL_MODEL
from holdfast_research.recordings.outcomes import CAUSES

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


def page(kept: Mapping[str, Reading]) -> str:
    """The text of the page, from readings by name."""
    parts = [_TITLE, in_short(kept)]
    for name, (title, body, text) in _SECTIONS.items():
        if name in kept:
            parts += [f"## {title}", text, body(kept[name]), _how(kept[name])]
    parts += [_UNKNOWN, _THRESHOLDS, _RIGHT, table(_right_codes())]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


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
    return table(reading["numbers"]) + "\n\n" + table(reading["runs"])


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
    versions = "Versions: " + "; ".join(f"{tool} {version}" for tool, version in reading["versions"].items()) + "."
    if printed := reading["printed rows that rldk reads"]:
        read = "; ".join(f"{_SETS.get(name, name)}: {count}" for name, count in printed.items())
        versions += f" Logs in which `rldk monitor --regex trl` reads a printed row: {read}."
    parts.append(versions)
    columns: dict[str, dict[str, str]] = {}
    for tool in reading["versions"]:
        for theirs, ours in NAMES[tool].items():
            columns.setdefault(f"`{ours}`", dict.fromkeys(reading["versions"], ""))[tool] += f"`{theirs}` "
    parts += ["Series of ours, and the names of the same in each tool:", table(columns)]
    kinds = {who: _often(alarms) for who, alarms in reading["kinds"].items() if not who.startswith(OURS)}
    parts += ["Alarms that the tools raise most often, and in how many healthy and faulty runs:", table(kinds)]
    parts += [f"To install {tool}: `{INSTALL[tool]}`" for tool in reading["versions"]]
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
    "real-model": "A real model, whole logs",
    "public": "Public logs",
    "null model": "Simulated healthy runs",
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

_TITLE = """\
# How often `diagnose` is right

How well rules fit the runs they were made on says little about yours. So the rules were measured on several kinds of
runs, from those most like yours to our own. Every number comes from a command below, with its date and the commit of
the rules. Shares have 95 % Wilson intervals. A finding is a problem; notes do not count.
"""
_PUBLIC = """\
Logs that others published, as their trainers wrote them. The outcome of each run is what its author measured, such as
the accuracy of the final checkpoint, or what a maintainer wrote. We looked at these logs while writing the rules: what
rows mean, which names they use, and where earlier rules raised false alarms. So they are a check, not a test. The test
is the other two thirds of the collection, which were kept from us and are read with the same command. The logs are
others' data, and are not in this repository.

Most logs are from two sweeps by one author, one of them with eight rewards a row. So they are far less independent than
the intervals assume. Pasted rows are from issue threads, one to eleven rows each. A log that cannot be read gets an
error that says why. W&B's sparklines, for example, contain no numbers.
"""
_FOURTH = """\
Runs of a stock `GRPOTrainer` on arithmetic, copying and sorting, made by someone who had not read the rules. The plan,
with the causes and the right codes, was written before any run was made. The rewards alone decided whether a fault took
effect. The rules were frozen, and then this set was read once. "stock" is the log that every user has; "every 4" and
"every 10" are the same logs with that `logging_steps`; "observed" also has the series of our observer.

Of the runs that we can make, these are the most like yours: another trainer, no search, single turns. But they are
tiny. A fault takes effect within a few updates, and the vocabulary has only dozens of symbols. A stock log cannot
show some faults at all, such as feedback in the loss or a sampler with another temperature. They count as not found.
"""
_REAL = """\
Runs of SmolLM2-135M on [the World Factbook](../../research/docs/factbook.md) and on
[Wikipedia](../../research/docs/wiki.md), of the local trainer, 20 or 24 steps of 48 rollouts. All are healthy: the
score on test questions rose. They were recorded after the rules, and no threshold was chosen on them. "every 10" has
one row in ten, so two rows a run: it can show a false alarm, and little else.

The number after @ is the step.
"""
_NULL = """\
Healthy runs that were simulated, not trained: a stationary or rising mean of binary rewards, with autocorrelated noise,
alternating easy and hard questions, and every series of a stock log. They show what no library of runs can: how the
rate of false findings depends on the length of the log and on the number of completions in a row.

The noise of these runs is an assumption. The rates do not cover what it leaves out: questions that change, a grader
that drifts, restarts. And a cell has few runs: at a true rate of 0.01, one cell of 200 runs in twenty is above 0.02.
"""
_OWN = """\
The library of recorded runs: search agents of the local trainer and of TRL, and single-turn tasks in TRL, healthy or
with a fault added from outside. A testbed is one recipe, world and model. The strictness of the rules is a factor on
every threshold in standard errors. For each testbed, it was chosen on all others and judged on the one left out.

Thresholds in other units, such as shares and nats, are the same in all columns. They were chosen on two thirds of these
runs, so these numbers are too good. The lead is a few rollout batches: a finding usually comes shortly before the
reward falls, and seldom before its peak.
"""
_HEAD = """\
Five other tools judge such logs. rldoctor, rlprobe and rlwatch were installed from PyPI; post-training-toolkit of
Microsoft and rldk from their repositories. Each was run with its defaults, in two ways. "As the trainer logs" is what
its documentation tells a user of TRL to do: `rl-doctor diagnose trainer_state.json`, and the callbacks of the others,
fed row after row. "Names mapped by hand" gives it every series that its rules need, under the name that they look for.
That is kinder than their documentation.

"Serious" is what a tool itself would stop a run for: high and critical alarms, stop actions of rldk's preset
`grpo_safe`, and our findings. "Any" adds lower alarms, warnings, what a tool only informs of, and our notes, even notes
that a zero is normal. An alarm anywhere in a faulty run counts as found. So a tool that always raises an alarm finds
everything: read the columns of faulty and healthy runs together.

An alarm names the causes listed for its kind in `head_to_head.SAYS`, read generously: an alarm about entropy that is
too low names lost exploration, one about clipping names large steps and a stale sampler. "Cause first": an alarm that
the tool shows or sends first names the cause. "Cause anywhere": any of its alarms does. Time is the processor time of
the median log, with writing and reading it, without starting Python.

Three things favour holdfast. Its rules were made on the own recordings and on the runs for practice, and were checked
on the simulated runs; only the held-out set had no part in any threshold. The runs are short: rlprobe says nothing of
fewer than 30 rows, and rlwatch waits for 20 to 70 before it says more than that the loss is NaN. And the runs of the
real model are logs of holdfast: the others got them by TRL's names, without what TRL does not log.

On healthy runs, most alarms of rldoctor and rlprobe are about groups without contrast, and rldoctor's also about a
plateau. Both are often true and harmless. Those of the others come from a floor on entropy, of 1 and of 1.8 nats, which
many policies are below from the first step, and rlwatch's also from a KL or a gradient norm 3 standard deviations above
its mean, which a long run nearly always passes once.
"""
_HISTORY = """\
Three sets of our own recordings were held out, one after the other. Each was read once by the rules of its day, and
then used to improve them. Now they are part of the library above. To repeat a reading, check out its commit.
"""
_UNKNOWN = """\
## What no log can tell

* Whether the reward is what you want. A reward function that rewards the wrong thing gives a healthy log, unless the
  mean of another function is logged too.
* Whether questions leaked, or whether a held-out score will follow the training reward.
* What happened between two rows. With `logging_steps=10` a run can break and end within one row.
* Which of two causes came first, if both begin to show in the same row.
* A fault from the first step on, if nothing changes afterwards: the log has nothing to compare with. Only absolute
  levels could show it, and those differ between models.
* What the log lacks. `holdfast diagnose` lists the codes that it could not check, and what logs their series.
"""
_THRESHOLDS = """\
## Where the thresholds come from

* In standard errors: from reasoning about noise, checked on the simulated runs, which no other number uses.
* In shares, nats and multiples: from the calibration and tuning splits of the recorded runs, and from practice runs of
  TRL.
* Absolute levels of KL, entropy and sampler gaps: from what trainers' documentation and published logs show as normal.
* The public logs that we had showed which rules raised false alarms. No threshold was fitted to them.
* The held-out runs had no part in any threshold.

In `src/holdfast/diagnose/rules`, each threshold is a constant with its reason.
"""
_RIGHT = """\
## Which codes count as right

For each fault that was added. Both columns were written before the runs of their held-out sets were made. A code that
came later was added where it reports the same fault, such as `SMP002` next to `SMP001`.
"""
_SECTIONS = {
    "public_logs": ("Logs of public runs", _public, _PUBLIC),
    "public_logs_kept": ("Logs of public runs, never seen", _public, ""),
    "fourth": ("Blind runs: made by someone who had not seen the rules", _set, _FOURTH),
    REAL_MODEL: ("Search agents that are a real model", _healthy_set, _REAL),
    "null_model": ("Simulated healthy runs", _null, _NULL),
    "own_recordings": ("Our recordings, each testbed left out once", _own, _OWN),
    "head_to_head": ("Compared with other tools", _head_to_head, _HEAD),
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
