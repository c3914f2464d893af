"""holdfast beside other tools that judge such logs, on the same logs, each with its own defaults.

    python -m holdfast_research.head_to_head --toolkit-python P --rldk-python P --public DIR --keep head_to_head
    python -m holdfast_research.head_to_head --rldoctor-python P --rlprobe-python P --rlwatch-python P \\
        --sets own fourth practice --null 40 --keep head_to_head_tools

Without the Python of a tool the command says how to install it. The logs are the stock logs of TRL in the library of
recordings and of other sets of recordings, a folder of public logs (`public_logs`), and healthy runs of the null model.

Each tool is fed twice. `logged`: rows by the trainer's names, as the tool takes them from TRL (its callback, or the
state that the trainer saves). `mapped`: every series that measures the same thing under the name that the tool's rules
look for (`NAMES`), which is more than its documentation asks of a user. An alarm anywhere in a faulty run counts as
found, whenever it comes. `SAYS` has the causes that each kind of alarm names, read generously.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base.errors import HoldfastError
from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.log import Log, Series
from holdfast.diagnose.readers import read_log
from holdfast.diagnose.readers.find import find_logs
from holdfast.diagnose.readers.names import TRL
from holdfast.diagnose.readers.text import Tally
from holdfast_research import null_model, other_tools, public_logs, readings
from holdfast_research.pages.diagnosis import RIGHT
from holdfast_research.recordings.library import FOLDER, SETS, folder_of, load, read_manifest, unpack
from holdfast_research.recordings.outcomes import CAUSES, UNPLANNED

Row = dict[str, float]

TOOLKIT, RLDK, OURS = "post-training-toolkit", "rldk", "holdfast"
RLDOCTOR, RLPROBE, RLWATCH = "rldoctor", "rlprobe", "rlwatch"
SHORT = {TOOLKIT: "toolkit", RLDK: "rldk", RLDOCTOR: "rldoctor", RLPROBE: "rlprobe", RLWATCH: "rlwatch"}
"""Tool -> its word in the options and in the names of the drivers."""
INSTALL = {
    TOOLKIT: "git clone https://github.com/microsoft/post-training-toolkit && cd post-training-toolkit && "
    "git checkout 7ab9855 && python -m venv v && v/bin/pip install . torch transformers trl",
    RLDK: "git clone https://github.com/adityachallapally/rldk && cd rldk && git checkout de64283 && "
    "python -m venv v && v/bin/pip install . torch transformers trl pandas scipy matplotlib",
    RLDOCTOR: "python -m venv v && v/bin/pip install rldoctor==0.2.0",
    RLPROBE: "python -m venv v && v/bin/pip install rlprobe==0.1.0",
    RLWATCH: "python -m venv v && v/bin/pip install rlwatch==0.5.1",
}
COMMITS = {TOOLKIT: "7ab9855 (2026-01-28)", RLDK: "de64283 (2025-10-08)"}
"""Of the tools that were installed from a repository: their versions do not say which code ran."""
DRIVERS = {tool: f"drive_{short}.py" for tool, short in SHORT.items()}
FEEDS = {"logged": "as the trainer logs", "mapped": "names mapped by hand"}

NAMES: Mapping[str, Mapping[str, str]] = {
    # the tool's name: ours
    TOOLKIT: {
        "reward_mean": "reward/mean",
        "group_reward_mean": "reward/mean",
        "reward_std": "reward/group_std",
        "group_reward_std": "reward/group_std",
        "kl": "kl/reference",
        "entropy": "entropy/mean",
        "completion_length": "rollout/length",
        "output_length_mean": "rollout/length",
        "clip_fraction": "clip/fraction",
        "grad_norm": "grad/norm",
        "grpo_loss": "loss",
        "truncation_rate": "rollout/truncated_fraction",
        "importance_sampling_ratio": "sampler/importance_ratio",
    },
    RLDK: {
        "reward_mean": "reward/mean",
        "reward_std": "reward/group_std",
        "kl": "kl/reference",
        "entropy": "entropy/mean",
        "grad_norm_policy": "grad/norm",
    },
    RLDOCTOR: {
        "reward_mean": "reward/mean",
        "eval_score": "eval/reward/mean",
        "frac_reward_zero_std": "frac_reward_zero_std",
        "entropy": "entropy/mean",
        "kl": "kl/reference",
        "clip_ratio/region_mean": "clip/fraction",
        "clip_ratio/low_mean": "clip_ratio/low_mean",
        "clip_ratio/high_mean": "clip_ratio/high_mean",
        "grad_norm": "grad/norm",
        "policy_loss": "loss",
        "completions/mean_length": "rollout/length",
        "completions/clipped_ratio": "rollout/truncated_fraction",
        "step_time": "time/step_s",
    },
    RLPROBE: {
        "reward_mean": "reward/mean",
        "reward_std": "reward/group_std",
        "kl_mean": "kl/reference",
        "entropy_mean": "entropy/mean",
        "clip_fraction": "clip/fraction",
        "zero_variance_group_frac": "frac_reward_zero_std",
        "grad_norm": "grad/norm",
        "completion_len_mean": "rollout/length",
        "truncation_rate": "rollout/truncated_fraction",
        "step_time_s": "time/step_s",
    },
    RLWATCH: {
        "reward_mean": "reward/mean",
        "reward_std": "reward/group_std",
        "kl_divergence": "kl/reference",
        "entropy": "entropy/mean",
        "loss": "loss",
        "grad_norm": "grad/norm",
    },
}
"""Columns that the rules of a tool read -> the series of ours that is the same. The tools' other columns (advantages,
values, diversity, refusals) no stock log has; the coefficient of KL is left out because it is always constant, and the
parts of a reward because a tool has no fixed names for them."""

NULL_CELLS = ((100, 8), (100, 64), (300, 8), (300, 64))
"""(rows, completions a row) of the null model's runs."""
IN_TRL = {name.host: name.ours for name in TRL if name.change == "x"} | {
    "reward_std": "reward/group_std",
    "frac_reward_zero_std": "frac_reward_zero_std",
}
"""TRL's name -> ours: a drawn log as TRL would write it."""

_STEPS = frozenset({"step-too-large", "displacement", "kl-exploded"})
_LOOSE = frozenset({"hacking", "answer-avoidance", "truncation"})
_ENTROPY = frozenset({"entropy-exhausted"})
_CONTRAST = frozenset({"no-contrast", "broken-reward", "entropy-exhausted"})
_NO_GRADIENT = _CONTRAST | {"cut-gradient", "inert-penalty"}
_STALE = _STEPS | {"sampler-mismatch"}
SAYS: Mapping[str, Mapping[str, frozenset[str]]] = {
    TOOLKIT: {
        "critical_failure": frozenset({"non-finite", "step-too-large"}),
        "kl_instability": _STEPS,
        "kl_above_target": _STEPS,
        "kl_volatility": _STEPS,
        "grpo_kl_divergence": _STEPS,
        "yaml_kl_divergence_high": _STEPS,
        "gradient_explosion": _STEPS,
        "gradient_instability": _STEPS,
        "gradient_vanishing": frozenset({"no-contrast", "cut-gradient", "inert-penalty", "entropy-exhausted"}),
        "grpo_clip_ratio_high": _STEPS,
        "yaml_clip_fraction_high": _STEPS,
        "grpo_loss_divergence": _STEPS,
        "grpo_importance_sampling_ratio_anomaly": frozenset({"sampler-mismatch"}) | _STEPS,
        "reward_hacking_suspected": _LOOSE,
        "reward_model_imbalance": _LOOSE,
        "grpo_reward_length_correlation": _LOOSE,
        "grpo_length_drift": _LOOSE,
        "length_collapse": _LOOSE,
        "response_truncation_rate_high": frozenset({"truncation"}),
        "mode_collapse_entropy": _ENTROPY,
        "mode_collapse_length_variance": _ENTROPY,
        "grpo_entropy_collapse": _ENTROPY,
        "grpo_entropy_drop": _ENTROPY,
        "yaml_entropy_collapse": _ENTROPY,
        "grpo_reward_collapse": _CONTRAST,
        "yaml_grpo_group_reward_collapse": _CONTRAST,
    },
    RLDK: {
        "grpo_safe_kl_spike": _STEPS,
        "grpo_safe_policy_grad_spike": _STEPS,
        "grpo_safe_entropy_floor": _ENTROPY,
        "grpo_safe_advantage_collapse": _CONTRAST,
        "grpo_safe_reward_saturation": _CONTRAST,
    },
    RLDOCTOR: {
        "advantage_collapse": _CONTRAST,
        "entropy_collapse": _ENTROPY,
        "reward_hacking": _LOOSE,
        "length_pathology: truncated": frozenset({"truncation"}),
        "length_pathology: grew": _LOOSE,
        "clip_saturation: clipped": _STALE,
        "clip_saturation: discarded": _STALE,
        "clip_saturation: high side": _STALE,
        "clip_saturation: Lower-bound": _ENTROPY,
        "kl_drift": _STEPS,
        "gradient_pathology: non-finite": frozenset({"non-finite"}),
        "gradient_pathology: exactly zero": _NO_GRADIENT,
        "gradient_pathology: has fallen": _NO_GRADIENT,
        "gradient_pathology: spike": _STEPS,
        "reward_composition: carries": _LOOSE,
        "reward_composition: constants": _CONTRAST,
    },
    RLPROBE: {
        "KL_BLOWUP": _STEPS,
        "ENTROPY_COLLAPSE": _ENTROPY,
        "REWARD_HACK_LENGTH": _LOOSE,
        "FORMAT_GAMING": _LOOSE,
        "CLIP_SATURATION": _STALE,
        "DEGENERATE_GROUPS": _CONTRAST,
        "GRAD_PATHOLOGY": _STEPS | {"non-finite"},
        "TRUNCATION_STARVE": frozenset({"truncation"}),
        "REWARD_STD_DEATH": _CONTRAST,
    },
    RLWATCH: {
        "entropy_collapse": _ENTROPY,
        "kl_explosion": _STEPS,
        "reward_hacking": _LOOSE,
        "loss_nan": frozenset({"non-finite"}),
        "gradient_norm_spike": _STEPS | {"non-finite"},
        "reward_mean_drift": _LOOSE,
    },
}
"""Kind of alarm -> the causes it names; other kinds (a spike of the reward's variance, instability) name none."""
SEVERE = {
    TOOLKIT: ("high", "critical"),
    RLDK: ("stop",),
    RLDOCTOR: ("CRITICAL",),
    RLPROBE: ("critical",),
    RLWATCH: ("critical",),
    OURS: ("finding",),
}
"""What each tool itself calls serious: it would stop the run."""

Alarm = tuple[str, str]
"""Its kind, its severity in the tool's words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A log, and what is true of it."""

    name: str
    of: str
    """The set it belongs to."""
    healthy: bool
    cause: str
    """Empty where it is not known."""
    right: frozenset[str]
    """Our codes that name the cause."""
    log: Log
    rows: tuple[Row, ...]
    """By the trainer's names, with `step`."""


# ---- cases


def recorded(folder: Path, of: str) -> list[Case]:
    """The stock logs of TRL in a library of recordings; a run that fell by itself is neither healthy nor faulty."""
    cases = []
    for recording in read_manifest(folder):
        if recording.host != "trl" or recording.cause == UNPLANNED:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            state = json.loads(unpack(recording, Path(temporary), folder, stock=True).read_text(encoding="utf-8"))
        cases.append(
            Case(
                name=f"{of}/{recording.name}",
                of=of,
                healthy=recording.healthy,
                cause="" if recording.healthy else recording.cause,
                right=right_codes(recording.cause),
                log=load(recording, folder, stock=True),
                rows=tuple(_numbers(row) for row in state["log_history"]),
            )
        )
    return cases


def right_codes(cause: str) -> frozenset[str]:
    """Our codes that name a cause; none for a healthy run."""
    return CAUSES[cause].right if cause in CAUSES else RIGHT.get(cause, frozenset())


def drawn(runs: int) -> list[Case]:
    """Healthy runs of the null model, so many of each of `NULL_CELLS`."""
    cases = []
    for rows, completions in NULL_CELLS:
        for seed in range(runs):
            log = null_model.log_of(null_model.drawn(rows, completions, seed))
            names = IN_TRL | {name: name for name in log.series if name.startswith("rewards/")}
            truth: dict[str, Any] = {"healthy": True, "cause": "", "right": frozenset()}
            cases.append(Case(name=log.name, of="null model", log=log, rows=mapped(log, names), **truth))
    return cases


def public(folder: Path) -> list[Case]:
    """The public logs whose outcome was measured, and that can be read."""
    cases = []
    for log in public_logs.logs_of(folder):
        if log.truth not in ("healthy", "bad"):
            continue
        try:
            read = read_log(log.path)
        except HoldfastError as problem:
            print(f"left out: {str(problem).split('. ')[0]}", file=sys.stderr)
            continue
        truth: dict[str, Any] = {"healthy": log.truth == "healthy", "cause": "", "right": frozenset()}
        cases.append(Case(name=f"public/{log.number}", of="public", log=read, rows=raw_rows(log.path), **truth))
    return cases


def raw_rows(path: Path) -> tuple[Row, ...]:
    """The rows of a log by the names of its trainer."""
    (file,) = find_logs(path)
    run = next(run for run in file.reader.read(file, Tally(path)) if run.columns)
    steps = run.columns.steps()
    rows: list[Row] = [{"step": int(step)} for step in steps]
    for name, (numbers, values) in run.columns.arrays().items():
        for number, value in zip(numbers, values, strict=True):
            rows[number][name] = float(value)
    return tuple(row for row in rows if len(row) > 1)


def _numbers(row: Mapping[str, Any]) -> Row:
    return {name: value for name, value in row.items() if isinstance(value, int | float)}


def mapped(log: Log, names: Mapping[str, str]) -> tuple[Row, ...]:
    """The rows of a log with our series under the names of a tool."""
    rows: dict[int, Row] = {int(step): {"step": int(step)} for step in log.steps}
    known = _by_any_name(log)
    for theirs, ours in names.items():
        series = known.get(ours)
        if series is not None:
            for step, value in zip(series.steps, series.values, strict=True):
                rows[int(step)][theirs] = float(value)
    return tuple(row for row in rows.values() if len(row) > 1)


def _by_any_name(log: Log) -> Mapping[str, Series]:
    """The series of a log, with those that it has under another name or as the complement."""
    known = dict(log.series)
    if "reward/std" in known:
        known.setdefault("reward/group_std", known["reward/std"])
    mixed = known.get("rollout/mixed_group_fraction")
    if mixed is not None:
        known.setdefault("frac_reward_zero_std", Series(mixed.steps, 1 - mixed.values))
    return known


# ---- alarms


def of_tool(tool: str, python: Path, cases: Sequence[Case]) -> dict[str, Any]:
    """What its driver answers. Raises `HoldfastError` if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        given, answer = Path(folder) / "cases.jsonl", Path(folder) / "alarms.json"
        lines = [{"name": c.name, "logged": c.rows, "mapped": mapped(c.log, NAMES[tool])} for c in cases]
        given.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        script = Path(other_tools.__file__).parent / DRIVERS[tool]
        alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run([python, script, given, answer], cwd=folder, env=alone, capture_output=True, text=True)
        if done.returncode:
            raise HoldfastError(f"{tool} failed under {python}: {done.stderr[-500:]}", hint=INSTALL[tool])
        return dict(json.loads(answer.read_text(encoding="utf-8")))


def of_ours(cases: Iterable[Case]) -> dict[str, list[Alarm]]:
    """Our findings and notes: (code, level)."""
    diagnoses = {case.name: diagnose(case.log) for case in cases}
    return {name: [(f.code, f.level) for f in (*d.findings, *d.notes)] for name, d in diagnoses.items()}


def counted(tool: str, cases: Sequence[Case], alarms: Mapping[str, Sequence[Sequence[str]]]) -> dict[str, str]:
    """The numbers of one tool on one set."""

    def names(case: Case, kind: str) -> bool:
        return kind in case.right if tool == OURS else case.cause in SAYS[tool].get(kind, frozenset())

    def having(some: Sequence[Case], kinds: Mapping[str, Sequence[str]]) -> str:
        return readings.share(sum(bool(kinds[case.name]) for case in some), len(some))

    healthy, faulty = [c for c in cases if c.healthy], [c for c in cases if not c.healthy]
    known = [c for c in faulty if c.cause]
    numbers = {}
    for label, severities in (("serious", SEVERE[tool]), ("any", None)):
        kinds = {
            name: [kind for kind, severity in raised if severities is None or severity in severities]
            for name, raised in alarms.items()
        }
        named = {case.name: [kind for kind in kinds[case.name] if names(case, kind)] for case in known}
        numbers[f"found, {label}"] = having(faulty, kinds)
        numbers[f"healthy, {label}"] = having(healthy, kinds)
        numbers[f"cause named, {label}"] = having(known, named)
    return numbers


def compared(cases: Sequence[Case], pythons: Mapping[str, Path]) -> dict[str, Any]:
    """Set -> tool -> numbers; the versions of the tools; and for each case its alarms."""
    with ThreadPoolExecutor() as pool:
        running = {tool: pool.submit(of_tool, tool, python, cases) for tool, python in pythons.items()}
        answers = {tool: future.result() for tool, future in running.items()}
    alarms = {OURS: of_ours(cases)}
    for tool, answer in answers.items():
        for feed, how in FEEDS.items():
            alarms[f"{tool}, {how}"] = {name: raised[feed] for name, raised in answer["alarms"].items()}
    sets = {of: [c for c in cases if c.of == of] for of in dict.fromkeys(c.of for c in cases)}
    return {
        "versions": {
            tool: f"{answer['version']}, commit {COMMITS[tool]}" if tool in COMMITS else answer["version"]
            for tool, answer in answers.items()
        },
        "printed rows that rldk reads": {
            of: f"{sum(answers[RLDK]['printed'][c.name] > 0 for c in some)} of {len(some)} logs"
            for of, some in sets.items()
            if RLDK in answers
        },
        "sets": {
            of: {who: counted(who.split(",")[0], some, raised) for who, raised in alarms.items()}
            for of, some in sets.items()
        },
        "kinds": {who: _kinds(cases, raised) for who, raised in alarms.items()},
    }


def _kinds(cases: Sequence[Case], alarms: Mapping[str, Sequence[Sequence[str]]]) -> dict[str, dict[str, int]]:
    """For each kind of alarm the healthy and the faulty runs that have it."""
    result: dict[str, dict[str, int]] = {}
    for case in cases:
        for kind in {kind for kind, _ in alarms[case.name]}:
            row = result.setdefault(kind, {"healthy": 0, "faulty": 0})
            row["healthy" if case.healthy else "faulty"] += 1
    return dict(sorted(result.items()))


def table(result: Mapping[str, Any]) -> str:
    """Markdown: for each set a row for each tool."""
    parts = []
    for of, tools in result["sets"].items():
        columns = list(next(iter(tools.values())))
        parts.append(f"**{of}**\n\n| | {' | '.join(columns)} |\n" + "|---" * (len(columns) + 1) + "|")
        parts[-1] += "".join(f"\n| {who} | {' | '.join(numbers.values())} |" for who, numbers in tools.items())
    return "\n\n".join(parts)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for tool, short in SHORT.items():
        parser.add_argument(f"--{short}-python", type=Path, help=f"with {tool} installed: {INSTALL[tool]}")
    parser.add_argument("--public", type=Path, help="a folder of public logs, as public_logs takes it")
    parser.add_argument("--sets", choices=("own", *SETS), nargs="*", default=["own"], help="recordings")
    parser.add_argument("--null", type=int, default=0, metavar="N", help="so many drawn healthy runs of each kind")
    parser.add_argument("--keep", metavar="NAME", help="write research/data/readings/NAME.json")
    options = parser.parse_args()
    given = {tool: python for tool, short in SHORT.items() if (python := vars(options)[f"{short}_python"]) is not None}
    for tool in sorted(SHORT.keys() - given):
        print(f"{tool} is left out. To have it: {INSTALL[tool]}", file=sys.stderr)
    cases = [case for name in options.sets for case in recorded(FOLDER if name == "own" else folder_of(name), name)]
    cases += drawn(options.null)
    if options.public:
        cases += public(options.public)
    result = compared(cases, {tool: python.absolute() for tool, python in given.items()})
    print(table(result))
    if options.keep:
        command = f"python -m holdfast_research.head_to_head {' '.join(f'--{SHORT[tool]}-python P' for tool in given)} "
        command += f"--sets {' '.join(options.sets)} --null {options.null}{' --public DIR' if options.public else ''}"
        print(readings.keep(options.keep, command, result))


if __name__ == "__main__":
    main()
