"""The results of an experiment as one JSON object, and the rows and sentences that pages make of it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

from holdfast.base.environment import versions
from holdfast.recipe import dump
from holdfast_research.jobs import Failure, TrainingJob
from holdfast_research.judge import NOBODY
from holdfast_research.plan import RULE, TUNING_SEEDS, Choice, Plan
from holdfast_research.series import summarise
from holdfast_research.signs import warnings_of
from holdfast_research.values import CONTROL, Arm, Runs


def results_of(plan: Plan, runs: Runs, out: Path, failures: Sequence[Failure] = ()) -> dict[str, Any]:
    """What goes into results.json, from the finished runs of a plan in `out`. The pages show this and the curves."""
    experiment, choices, jobs = plan.experiment, plan.choices(out), plan.jobs(out)
    verdicts = [(claim, claim.test(runs)) for claim in experiment.claims]
    # Where arms were left out on purpose, claims about them are not asked on this page.
    whole = len(plan.arms) == len(experiment.arms)
    asked = [(claim, verdict) for claim, verdict in verdicts if whole or verdict.because != NOBODY]
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "shows": experiment.shows,
        "notes": list(experiment.notes),
        "not_run": list(experiment.not_run),
        "recipe": experiment.recipe,
        "command": plan.command,
        "settings": dict(plan.shared),
        "drawn": list(experiment.drawn),
        "short": plan.short,
        "seeds": list(plan.seeds),
        "runs_by": _makers(runs),
        "page_by": versions(),
        "sweep": {
            "made": plan.sweep,
            "tuning_seeds": list(TUNING_SEEDS) if plan.sweep else [],
            "rule": RULE,
            "arms": {name: _choice(choice) for name, choice in choices.items()},
        },
        "arms": [_arm(arm, choices.get(arm.name), jobs, runs) for arm in plan.arms],
        "left_out": [arm.name for arm in experiment.arms if arm not in plan.arms],
        "claims": [
            {
                "paper": claim.paper,
                "where": claim.where,
                "says": claim.says,
                "asks": claim.asks,
                "decoding": claim.decoding,
                "verdict": str(verdict.word),
                "yes": verdict.yes,
                "of": verdict.of,
                "because": verdict.because,
                "numbers": {seed: _plain(values) for seed, values in verdict.numbers.items()},
            }
            for claim, verdict in asked
        ],
        "claims_left_out": len(verdicts) - len(asked),
        "starts": _different_starts(jobs, runs),
        "warnings": warnings_of(runs),
        "unfinished": [job.name for job in jobs if not job.done],
        "failures": [{"run": f.job.name, "reason": f.reason, "log": f.log.name} for f in failures],
    }


def config_hash(job: TrainingJob) -> str:
    """A hash of everything a run depends on but its seed, its place and its threads; 12 hex digits."""
    config = job.config
    shared = config.model_copy(update={"run": type(config.run)()})
    return hashlib.sha256(dump(shared).encode()).hexdigest()[:12]


def claim_groups(results: Mapping[str, Any]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """(title, claims) of the papers', and of what is asked besides; a group without claims is left out."""
    ours = [claim for claim in results["claims"] if claim["paper"] == CONTROL]
    papers = [claim for claim in results["claims"] if claim["paper"] != CONTROL]
    groups = [("What the papers say", papers), ("Controls, and what no paper says", ours)]
    return [(title, claims) for title, claims in groups if claims]


def left_out_line(count: int) -> str:
    """The line about claims whose arms were left out."""
    return f"Claims about arms that were left out with `--arms`: {count}."


def source(claim: Mapping[str, Any]) -> str:
    """The paper and place of a claim, or what a control is a control of."""
    return claim["where"] if claim["paper"] == CONTROL else f"{claim['paper']}: {claim['where']}"


SHORT_NOTE = "A short run, to see that the machinery works: it trains a few steps and can show nothing."
VERDICTS = (
    "A test asks one question of every seed. Shown: yes on every seed. Partly: on at least half. Not shown: on fewer. "
    "Cannot tell: fewer than three seeds can answer. Brackets hold the 95 % Wilson interval of the share of seeds. All "
    "are about means of five steps. A run dropped when its reward had lost 20 % of its peak. It fell when it had lost "
    "40 %, or a third in means of ten steps, beyond its noise and whatever came after. It held when its reward rose by "
    "0.12, never fell, and ended at 85 % of its peak or above. That a run did not fall takes 40 steps."
)
ARM_COLUMNS = (
    *("arm", "seeds", "fell", "reward at its peak → last"),
    *("entropy, last", "invalid turns, last", "clipped tokens, last", "displacement", "test EM", "greedy"),
)
ARMS_NOTE = (
    "Means over seeds; in brackets the lowest and the highest. Reward is the mean of five steps under the run's own "
    "sampler. Test EM is measured once, at the end, sampled at temperature 1 without truncation. So it shows what a "
    "truncated sampler hides, and greedy decoding does not. Last: the mean of the last five steps. Invalid turns are "
    "the share of turns that are neither a search nor an answer. Clipped tokens are the share whose gradient the clip "
    "stops. A dash: not logged. “(control)” marks the controls. "
    "For runs that fell, the peak is the highest mean before the fall."
)
WARNING_COLUMNS = ("signal", "before the drop", "lead in steps", "in runs that never dropped")
WARNINGS_NOTE = (
    "All arms together, in five-step means. The first columns count runs whose reward dropped: in how many the signal "
    "turned before, and by how many steps (median, least to most). The last counts the others: in how many it turned "
    "too, up to the median step of the drops. A signal that turns everywhere warns of nothing. The thresholds were not "
    "tuned, except -0.002 nats, which was read off the pages of `death-spiral` and `testbeds`."
)
RUN_COLUMNS = ("arm", "seed", "first", "peak (step)", "lowest after", "last", "displacement", "test EM", "greedy")


def arm_row(arm: Mapping[str, Any]) -> tuple[str, ...]:
    """The cells of `ARM_COLUMNS`."""
    coefficient = f", {arm['coefficient']}" if arm["coefficient"] else ""
    name = arm["name"] + coefficient + (" (control)" if arm["control"] else "")
    runs = list(arm["runs"].values())
    if not runs:
        return (name, "0", *["–"] * (len(ARM_COLUMNS) - 2))
    fell = sum(run["fell"] for run in runs)
    return (
        name,
        str(len(runs)),
        f"{fell} of {len(runs)}",
        f"{_spread(runs, 'peak', '.2f')} → {_spread(runs, 'last', '.2f')}",
        _spread(runs, "entropy_last", ".2f"),
        _spread(runs, "invalid_last", ".2f"),
        _spread(runs, "clipped_last", ".3f"),
        _spread(runs, "displacement", "+.4f"),
        _spread(runs, "em_after", ".3f"),
        _spread(runs, "greedy_after", ".3f"),
    )


def run_rows(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The cells of `RUN_COLUMNS`, a row a run."""
    return [
        (
            arm["name"],
            seed,
            _number(r["first"], ".2f"),
            f"{_number(r['peak'], '.2f')} ({r['peak_step']})",
            _number(r["lowest_after"], ".2f"),
            _number(r["last"], ".2f"),
            _number(r["displacement"], "+.4f"),
            f"{_number(r['em_before'], '.3f')} → {_number(r['em_after'], '.3f')}",
            f"{_number(r['greedy_before'], '.3f')} → {_number(r['greedy_after'], '.3f')}",
        )
        for arm in results["arms"]
        for seed, r in arm["runs"].items()
    ]


def warning_rows(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The cells of `WARNING_COLUMNS`, a row a signal. None if no run was long enough to count."""
    return [
        (
            row["signal"],
            f"{row['before']} of {row['dropped']}",
            f"{row['median']:g} ({row['leads'][0]} to {row['leads'][-1]})" if row["leads"] else "–",
            f"{row['false']} of {row['held']}",
        )
        for row in results["warnings"]
        if row["dropped"] + row["held"]
    ]


def sweep_lines(results: Mapping[str, Any]) -> list[str]:
    """What was tried for each arm that has a coefficient, and what was taken."""
    sweep = results["sweep"]
    if not sweep["arms"]:
        return ["No arm has a coefficient to choose."]
    if not sweep["made"]:
        taken = [f"{name}: {', '.join(arm['settings'])} = {arm['chosen']}" for name, arm in sweep["arms"].items()]
        return ["No sweep was made; the coefficients are those of the experiment's file.", *taken]
    seeds = ", ".join(map(str, sweep["tuning_seeds"]))
    lines = [f"Chosen on seeds {seeds}, which are not reported: {sweep['rule']}."]
    for name, arm in sweep["arms"].items():
        tried = "; ".join(f"{t['value']}: {_number(t['score'], '.3f')}" for t in arm["tried"])
        lines.append(f"{name}: {', '.join(arm['settings'])} = {arm['chosen']} (tried {tried})")
    return lines


def missing_lines(results: Mapping[str, Any]) -> list[str]:
    """A line for each run that failed or is not finished."""
    failed = {f["run"]: f"{f['run']} failed: {f['reason']} (logs/{f['log']})" for f in results["failures"]}
    return [
        *failed.values(),
        *(f"{name} has not run to its end" for name in results["unfinished"] if name not in failed),
    ]


def start_lines(results: Mapping[str, Any]) -> list[str]:
    """A line when runs of one recipe start from different policies: they are not seeds of one testbed."""
    rows = results["starts"]
    if not rows:
        return []
    starts = (f"{row['greedy']['em_greedy']:.4f} ({len(row['runs'])} runs, {row['runs'][0]} the first)" for row in rows)
    return [
        "These runs do not all start from one policy: before training, greedy test EM is "
        f"{', '.join(starts)}. A warm start made on another machine is another policy. Delete the runs of one kind, or "
        "put the policy of the others into the cache."
    ]


def origin_lines(results: Mapping[str, Any]) -> list[str]:
    """What the page and its runs were made with."""
    hashes = "; ".join(f"{arm['name']} {arm['config_hash']}" for arm in results["arms"])
    return [
        f"Recipe {results['recipe']}, seeds {', '.join(map(str, results['seeds']))}.",
        *(
            [f"Each run has its seed as {' and '.join(drawn)} too; hashes are of the first."]
            if (drawn := results["drawn"])
            else []
        ),
        *(f"Runs by {_versions(made_by)}." for made_by in results["runs_by"]),
        f"This page by {_versions(results['page_by'])}.",
        f"Settings by SHA-256 (first 12 digits, without seed and place): {hashes}.",
    ]


def _makers(runs: Runs) -> list[dict[str, str]]:
    """What the runs were made with, each combination once."""
    unknown = {"holdfast": "unknown"}
    every = {tuple(run.results.get("made_by", unknown).items()) for arm in runs.values() for run in arm}
    return [dict(makers) for makers in sorted(every)]


def _versions(made_by: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in made_by.items())


def _different_starts(jobs: Sequence[TrainingJob], runs: Runs) -> list[dict[str, Any]]:
    """Runs that should start from one policy and do not: a row for each, none when all is well.

    A warm start made on another kind of processor is another policy. Its greedy scores, which no seed bears on, tell.
    """
    before = {(run.arm, run.seed): run.results["before"] for arm in runs.values() for run in arm}
    starts: dict[str, dict[str, list[str]]] = {}
    for job in jobs:
        if scores := before.get((job.arm, job.seed)):
            start = json.dumps(job.config.start_parts(), sort_keys=True)
            # Rounded: the order in which questions are added up moves the last bit.
            greedy = json.dumps({name: round(value, 9) for name, value in scores.items() if name.endswith("_greedy")})
            starts.setdefault(start, {}).setdefault(greedy, []).append(job.name)
    return [
        {"greedy": json.loads(greedy), "runs": names}
        for kinds in starts.values()
        if len(kinds) > 1
        for greedy, names in kinds.items()
    ]


def _arm(arm: Arm, choice: Choice | None, jobs: Sequence[TrainingJob], runs: Runs) -> dict[str, Any]:
    first = next(job for job in jobs if job.arm == arm.name)
    summaries = {run.seed: summarise(run) for run in runs.get(arm.name, ())}
    return {
        "name": arm.name,
        "control": arm.control,
        "coefficient": choice.label if choice else None,
        "settings": dict(first.settings),
        "config_hash": config_hash(first),
        "runs": {str(seed): _plain(asdict(summary)) for seed, summary in summaries.items()},
    }


def _choice(choice: Choice) -> dict[str, Any]:
    tried = zip(choice.labels, choice.scores, strict=True) if choice.scores is not None else ()
    return {
        "settings": list(choice.settings),
        "values": list(choice.labels),
        "chosen": choice.label,
        "tried": [{"value": label, "score": score} for label, score in tried],
    }


def _plain(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """JSON has no NaN."""
    return {k: v if v is None or math.isfinite(v) else None for k, v in values.items()}


def _spread(runs: Sequence[Mapping[str, float | None]], key: str, form: str) -> str:
    return mean_and_range((run[key] for run in runs), form)


def mean_and_range(values: Iterable[float | None], form: str) -> str:
    """The mean, the lowest and the highest of those that were measured; a dash when none was.

    >>> mean_and_range([0.25, None, 0.75], ".2f"), mean_and_range([0.5], ".2f"), mean_and_range([math.nan], ".2f")
    ('0.50 (0.25 to 0.75)', '0.50', '–')
    """
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return "–"
    text = format(mean(known), form)
    return text if len(known) == 1 else f"{text} ({format(min(known), form)} to {format(max(known), form)})"


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def sentence(text: str) -> str:
    """The text with a capital and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?")) else ".")
