"""GWHES over collapses: predicted and measured change of correct rollouts at each checkpoint of runs that fell.

    python -m holdfast_research.pages.influence RUN...    # probes, keeps the numbers, writes research/docs/influence.md
    python -m holdfast_research.pages.influence           # the page again, from the kept numbers

A run needs checkpoints before, at and after its fall. Each is asked the same questions by `holdfast
study-probe`, about 20 seconds on a free core; one that has been probed so is not probed again.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from holdfast.base.errors import DataError, RolloutError
from holdfast.base.files import write_whole
from holdfast.base.run_folder import METRICS, list_checkpoints, step_of
from holdfast.diagnose.log.collapse import Fall, curve_of, fell
from holdfast.tasks.opening import load_recipe
from holdfast.train.listener import Listener
from holdfast.train.tracking import MetricsFile
from holdfast_research import readings
from holdfast_research.pages.filling import filled
from holdfast_research.paths import DOCS
from holdfast_research.probes import document, open_run, roll_out_questions
from holdfast_research.probes.influence import Influence, Influenced, Measure, Similarity, influence
from holdfast_research.ranks import lowest_overlap, rank_correlation

NAME = "influence"
COMMAND = "python -m holdfast_research.pages.influence RUN..."
QUESTIONS, SEED = 40, 101
KEPT_ACTIONS = (0, 1)
"""Whole rollouts and first actions."""
MIN_COUNT = 5
"""Questions of a checkpoint below which nothing is ranked."""
_DRAWS = 400

Phase = Literal["before", "at", "after"]
PHASES: tuple[Phase, ...] = ("before", "at", "after")
Values = NDArray[np.float64]
Pairs = Mapping[str, Values]
"""Question -> `[n, 2]`, prediction and measured change of its units."""
Statistic = Callable[[Values, Values], float | None]
"""Of all predictions and measured changes at a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """A checkpoint, probed."""

    step: int
    influence: Influence


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedRun:
    """A run with its probed checkpoints."""

    seed: int
    rewards: Mapping[int, float]
    """By step."""
    displaced: Mapping[int, float]
    """By step: the share of correct rollouts that the step, on all of its questions, made less likely."""
    checkpoints: tuple[Probed, ...]

    @property
    def fall(self) -> Fall:
        """Its first fall. Raises `DataError` for a run that did not fall."""
        fall = fell(curve_of(list(self.rewards.values()), list(self.rewards)))
        if fall is None:
            raise DataError(f"the run of seed {self.seed} did not fall, so nothing is before or after; give others")
        return fall

    def during(self, phase: Phase) -> list[Probed]:
        """The checkpoints of a phase."""
        return [c for c in self.checkpoints if phase_of(c.step, self.fall) == phase]


def phase_of(step: int, fall: Fall) -> Phase:
    """Before: up to the peak. At: from there to the step that shows the fall."""
    if step <= fall.peak_step:
        return "before"
    return "at" if step <= fall.step else "after"


# ---- pooling


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A statistic over checkpoints with its 95 % interval."""

    value: float
    low: float
    high: float


def estimate(runs: Sequence[Sequence[Pairs]], statistic: Statistic, *, draws: int = _DRAWS) -> Estimate | None:
    """The mean over runs of the mean over their checkpoints; None without any value.

    Units are compared within a checkpoint only. The interval is a percentile bootstrap that draws runs, and questions.
    Questions are the same at all checkpoints, so a drawn question is drawn for all.
    """
    runs = [checkpoints for checkpoints in runs if checkpoints]
    questions = sorted({question for checkpoints in runs for pairs in checkpoints for question in pairs})
    whole = _pool(runs, questions, statistic)
    if not (values := [value for value in whole if value is not None]):
        return None
    rng = np.random.default_rng(0)
    means = []
    for _ in range(draws):
        drawn = [questions[k] for k in rng.integers(len(questions), size=len(questions))]
        by_run = _pool(runs, drawn, statistic)
        some = [by_run[k] for k in rng.integers(len(runs), size=len(runs))]
        if valid := [value for value in some if value is not None]:
            means.append(mean(valid))
    low, high = np.quantile(means, [0.025, 0.975])
    return Estimate(value=mean(values), low=float(low), high=float(high))


def _pool(runs: Sequence[Sequence[Pairs]], questions: Sequence[str], statistic: Statistic) -> list[float | None]:
    """Of each run, the mean over its checkpoints."""
    pooled: list[float | None] = []
    for checkpoints in runs:
        values = []
        for pairs in checkpoints:
            units = [pairs[question] for question in questions if question in pairs]
            if units and (value := statistic(*np.concatenate(units).T)) is not None:
                values.append(value)
        pooled.append(mean(values) if values else None)
    return pooled


def pairs_of(probed: Influence, unit: str, measure: Measure) -> dict[str, Values]:
    """What GWHES predicts beside what was measured."""
    by_question: dict[str, list[tuple[float, float]]] = {}
    for question, predicted, measured in probed.pairs(unit, measure):
        by_question.setdefault(question, []).append((predicted, measured))
    return {question: np.asarray(pairs) for question, pairs in by_question.items()}


def by_number_correct(probed: Influence, unit: str, measure: Measure) -> dict[str, Values]:
    """The same with another prediction: the fewer rollouts of the question are correct, the more each one rises.

    It knows the advantages and no hidden state: what GWHES has to beat.
    """
    counts: dict[str, int] = {}
    for rollout in probed.rollouts:
        counts[rollout.question] = counts.get(rollout.question, 0) + 1
    pairs = pairs_of(probed, unit, measure)
    return {q: np.column_stack([np.full(len(p), -float(counts[q])), p[:, 1]]) for q, p in pairs.items()}


def ranks(predicted: Values, measured: Values) -> float | None:
    """Spearman's correlation."""
    return rank_correlation(predicted, measured)


def overlap(predicted: Values, measured: Values) -> float | None:
    """Of the fifth that is predicted lowest, the share that is lowest."""
    return lowest_overlap(predicted.tolist(), measured.tolist())


# ---- measuring


def probe_run(folder: Path, only: Sequence[int] = ()) -> ProbedRun:
    """A run with its checkpoints, or those of some steps, probed."""
    rows = [row for row in MetricsFile(folder / METRICS).read() if "reward/mean" in row]
    kept = sorted(step_of(checkpoint) for checkpoint in list_checkpoints(folder))
    steps = [step for step in kept if step in only or not only]
    return ProbedRun(
        seed=load_recipe(folder).run.seed,
        rewards=_series(rows, "reward/mean"),
        displaced=_series(rows, "displacement/fraction"),
        checkpoints=tuple(Probed(step=step, influence=_probe(folder, step)) for step in steps),
    )


def _series(rows: Iterable[Mapping[str, float]], metric: str) -> dict[int, float]:
    return {int(row["step"]): row[metric] for row in rows if metric in row}


def _probe(folder: Path, step: int) -> Influence:
    """What `holdfast study-probe --what influence` writes, made if it is not there."""
    written = folder / "probes" / f"{NAME}-step-{step:06d}-seed-{SEED}.json"
    if not written.is_file():
        subject = open_run(folder, str(step), [], Listener(), with_reference=False)
        rollouts = roll_out_questions(subject, QUESTIONS, SEED, Listener())
        try:
            result = influence(subject, rollouts, listener=Listener())
        except RolloutError:  # at the bottom of a fall no rollout may be correct
            result = Influence(asked=QUESTIONS, used=0, units=(), similarity=())
        whole = document(result, subject, what=NAME, questions=QUESTIONS, seed=SEED, command=COMMAND)
        written.parent.mkdir(exist_ok=True)
        write_whole(written, json.dumps(whole))
    kept = json.loads(written.read_text(encoding="utf-8"))["result"]
    return influence_of(kept, [Influenced(**unit) for unit in kept["units"]])


def influence_of(result: Mapping[str, Any], units: Iterable[Influenced]) -> Influence:
    """What is kept of a probe: whole rollouts and first actions."""
    return Influence(
        asked=result["asked"],
        used=result["used"],
        units=tuple(unit for unit in units if unit.action in KEPT_ACTIONS),
        similarity=tuple(Similarity(**pair) for pair in result["similarity"] if pair["action"] in KEPT_ACTIONS),
    )


# ---- what is kept


_COLUMNS = ("question", "rollout", "action", "tokens", "predicted", "gradient", "optimizer")
"""Of a line of a kept checkpoint: a unit, its numbers to four digits."""


def to_kept(run: ProbedRun) -> dict[str, Any]:
    """A run as values that `json.dumps` takes."""
    checkpoints = [
        {
            "step": c.step,
            "asked": c.influence.asked,
            "used": c.influence.used,
            "similarity": [asdict(pair) for pair in c.influence.similarity],
            "units": [" ".join(_text(getattr(unit, name)) for name in _COLUMNS) for unit in c.influence.units],
        }
        for c in run.checkpoints
    ]
    return {
        "seed": run.seed,
        "rewards": dict(run.rewards),
        "displaced": dict(run.displaced),
        "columns": " ".join(_COLUMNS),
        "checkpoints": checkpoints,
    }


def from_kept(kept: Mapping[str, Any]) -> ProbedRun:
    """The run that `to_kept` was given, to four digits."""
    return ProbedRun(
        seed=kept["seed"],
        rewards={int(step): value for step, value in kept["rewards"].items()},
        displaced={int(step): value for step, value in kept["displaced"].items()},
        checkpoints=tuple(
            Probed(step=c["step"], influence=influence_of(c, map(_unit, c["units"]))) for c in kept["checkpoints"]
        ),
    )


def _text(value: float | int | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _unit(line: str) -> Influenced:
    question, rollout, action, tokens, *changes = line.split()
    predicted, gradient, optimizer = map(float, changes)
    return Influenced(
        question=question,
        rollout=int(rollout),
        action=int(action),
        tokens=int(tokens),
        predicted=predicted,
        gradient=gradient,
        optimizer=optimizer,
    )


# ---- the page

_UNITS = {"rollout": "correct rollouts", "first action": "their first actions", "question": "questions, by means"}
_MEASURES: dict[Measure, str] = {"gradient": "derivative", "optimizer": "AdamW step"}
PairsOf = Callable[[Influence], Pairs]


def table(runs: Sequence[ProbedRun], *, draws: int = _DRAWS) -> list[list[str]]:
    """Rank correlations by phase, then over all checkpoints the overlap, and the correlation of another prediction."""
    counts = {phase: sum(len(comparable(run.during(phase))) for run in runs) for phase in PHASES}
    heads = [f"{phase}: {count} checkpoint{'s' * (count != 1)}" for phase, count in counts.items()]
    rows = [
        ["ranked", "by change in", *heads, "overlap of the lowest fifth", "correlation of the number correct alone"]
    ]
    for unit, measure in itertools.product(_UNITS, _MEASURES):
        gwhes, number = (partial(of, unit=unit, measure=measure) for of in (pairs_of, by_number_correct))
        by_phase = [show(over(runs, gwhes, ranks, phase, draws=draws)) for phase in PHASES]
        overlaps = show(over(runs, gwhes, overlap, draws=draws), ".0%")
        rows.append(
            [_UNITS[unit], _MEASURES[measure], *by_phase, overlaps, show(over(runs, number, ranks, draws=draws))]
        )
    return rows


def over(
    runs: Sequence[ProbedRun],
    pairs: PairsOf,
    statistic: Statistic,
    phase: Phase | None = None,
    *,
    draws: int = _DRAWS,
) -> Estimate | None:
    """A statistic over the checkpoints of a phase, or over all."""
    chosen = [comparable(run.checkpoints if phase is None else run.during(phase)) for run in runs]
    return estimate([[pairs(c.influence) for c in checkpoints] for checkpoints in chosen], statistic, draws=draws)


def comparable(checkpoints: Iterable[Probed]) -> list[Probed]:
    """Those with enough questions on which some rollouts are correct and some are not."""
    return [c for c in checkpoints if c.influence.used >= MIN_COUNT]


def series(runs: Sequence[ProbedRun]) -> list[list[str]]:
    """By step: displaced questions of all runs, and the correct rollouts that the next update of the runs displaced."""
    steps = sorted({c.step for run in runs for c in run.checkpoints})
    return [
        ["after step", *map(str, steps)],
        ["reward", *(_mean([run.rewards[step] for run in runs if step in run.rewards], ".2f") for step in steps)],
        ["questions displaced by their own update", *(fallen(_at(runs, step), "question") for step in steps)],
        [
            "correct rollouts displaced by the run's next update",
            *(_mean([run.displaced[step + 1] for run in runs if step + 1 in run.displaced], ".0%") for step in steps),
        ],
    ]


def fallen(checkpoints: Iterable[Probed], unit: str, measure: Measure = "optimizer") -> str:
    """How many units a step on their own question made less likely, of how many."""
    changes = [change for c in checkpoints for _, _, change in c.influence.pairs(unit, measure)]
    return f"{sum(change < 0 for change in changes)} of {len(changes)}"


def predicted_fallen(checkpoints: Iterable[Probed], unit: str) -> str:
    """How many units GWHES says to become less likely, of how many."""
    changes = [change for c in checkpoints for _, change, _ in c.influence.pairs(unit, "gradient")]
    return f"{sum(change < 0 for change in changes)} of {len(changes)}"


def _at(runs: Sequence[ProbedRun], step: int) -> list[Probed]:
    return [c for run in runs for c in run.checkpoints if c.step == step]


def _mean(values: Sequence[float], form: str) -> str:
    return format(mean(values), form).replace("%", " %") if values else "–"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table, its first row the head."""
    head, *rest = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([head, "|" + "---|" * len(rows[0]), *rest])


def show(pooled: Estimate | None, form: str = ".2f") -> str:
    """An estimate with its interval.

    >>> show(Estimate(value=0.5, low=0.25, high=0.75)), show(Estimate(value=0.5, low=0.25, high=0.75), ".0%")
    ('0.50 (0.25 to 0.75)', '50 % (25 to 75)')
    """
    if pooled is None:
        return "–"
    value, low, high = (format(x, form) for x in (pooled.value, pooled.low, pooled.high))
    return f"{value.replace('%', ' %')} ({low.strip('%')} to {high.strip('%')})"


def page(text: str, reading: Mapping[str, Any]) -> str:
    """The page with its tables and sentences of numbers, from what is kept."""
    runs = [from_kept(run) for run in reading["runs"]]
    tables = {
        "ranks": markdown(table(runs)),
        "signs": f"{signs(runs)}\n\n{markdown(series(runs))}",
        "likeness": likeness(runs),
        "how": how(runs, reading),
    }
    return filled(text, tables)


def signs(runs: Sequence[ProbedRun]) -> str:
    """How many become less likely: as predicted, and as measured."""
    every = [c for run in runs for c in run.checkpoints]
    counts = {
        name: (predicted_fallen(every, unit), fallen(every, unit, "gradient"), fallen(every, unit))
        for name, unit in (("correct rollouts", "rollout"), ("first actions", "first action"))
    }
    return " ".join(
        f"Over all checkpoints GWHES predicts that {predicted} {name} become less likely. By the derivative "
        f"{derivative} do, by the AdamW step {step}."
        for name, (predicted, derivative, step) in counts.items()
    )


def likeness(runs: Sequence[ProbedRun]) -> str:
    """The range over checkpoints of the similarity of hidden states, of first actions."""
    firsts = [pair for run in runs for c in run.checkpoints for pair in c.influence.similarity if pair.action == 1]
    same, other = (
        [value for pair in firsts if (value := getattr(pair, name)) is not None]
        for name in ("incorrect_correct", "other_questions")
    )
    return (
        "Hidden states stay similar, as LLDS's Definition A.3 (2) asks. At all checkpoints the mean cosine of the "
        f"first actions of an incorrect and a correct rollout is {min(same):.2f} to {max(same):.2f} for one question. "
        f"Between questions it is {min(other):.2f} to {max(other):.2f}. The same holds long before the fall."
    )


def how(runs: Sequence[ProbedRun], reading: Mapping[str, Any]) -> str:
    """Of which runs, and how it was made."""
    falls = "; ".join(f"seed {run.seed}, peak {run.fall.peak_step}, fall {run.fall.step}" for run in runs)
    return (
        f"Runs, with the steps of the reward's peak and of its fall: {falls}. {reading['questions']} questions, probe "
        f"seed {reading['probe_seed']}. Made by `{reading['command']}` on {reading['date'][:10]}; the numbers are kept "
        f"in `research/data/readings/{NAME}.json`, and without runs the command makes this page from them."
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="folders of runs that fell")
    parser.add_argument("--steps", nargs="*", type=int, default=[], metavar="STEP", help="checkpoints; default: all")
    options = parser.parse_args()
    if options.runs:
        runs = [to_kept(probe_run(folder, options.steps)) for folder in options.runs]
        print(readings.keep(NAME, COMMAND, {"questions": QUESTIONS, "probe_seed": SEED, "runs": runs}))
    if (reading := readings.kept(NAME)) is None:
        parser.error("no numbers are kept yet; name the folders of runs that fell")
    path = DOCS / f"{NAME}.md"
    write_whole(path, page(path.read_text(encoding="utf-8"), reading))
    print(path)


if __name__ == "__main__":
    main()
