"""From an experiment and a few choices to jobs: seeds, the sweep of strengths before them, and what was chosen."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from holdfast.config import Config, load
from holdfast.errors import ConfigError
from holdfast.penalties import PENALTIES
from holdfast.section import either
from holdfast.settings import parse_overrides, split_overrides
from holdfast_research.runner import Job
from holdfast_research.series import read_run
from holdfast_research.values import Arm, Experiment, Runs

FIRST_SEED = 11
"""Of the reported seeds. 1 to 3 stand in docs/results.md, and the arms were settled with those in view."""
TUNING_SEEDS = (101, 102)
"""Of the sweep; never reported."""
RULE = "the strength with the highest mean reward over the second half of the steps, over the tuning seeds"
PLAN_FILE = "plan.json"

# Everything in seconds: a world, a model and a schedule that teach nothing. Whoever wants to see whether the machinery
# works wants this.
SHORT = (
    *("--world.people", "60", "--world.train_questions", "40", "--world.dev_questions", "6"),
    *(
        "--world.test_questions",
        "5",
        "--world.model.hidden",
        "32",
        "--world.model.layers",
        "2",
        "--world.model.heads",
        "2",
    ),
    *("--protocol.max_turns", "3", "--protocol.max_turn_tokens", "24", "--protocol.max_observation_tokens", "60"),
    *("--protocol.max_total_tokens", "220", "--world.scripts.plain_steps", "0", "--warm_start.steps", "40"),
    *("--warm_start.batch_size", "16", "--world.scripts.count", "100", "--world.filler_words", "20"),
    *(
        "--world.filler_length",
        "[1, 2]",
        "--world.ramble_length",
        "[3, 5]",
        "--reward.f1",
        "1",
        "--reward.format",
        "0.5",
    ),
    *("--train.steps", "3", "--train.warmup", "1", "--train.questions", "5", "--train.group_size", "4"),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """One execution of an experiment; kept in its folder, so that the page can be made again."""

    experiment: str
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    settings: tuple[str, ...]
    """Overrides for every arm; an arm's own come after, and win."""
    sweep: bool
    short: bool
    command: str
    drawn: tuple[str, ...] = ()
    """Settings that take the seed of each run."""

    def save(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        (out / PLAN_FILE).write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def load_plan(out: Path) -> Plan:
    """Raises `ConfigError`."""
    path = out / PLAN_FILE
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        return Plan(**values)
    except OSError:
        raise ConfigError(f"{out} holds no experiment (no {PLAN_FILE}); give the --out of one that was run") from None
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; run the experiment again to renew it") from None


@dataclass(frozen=True, slots=True)
class Choice:
    """The strength an arm is reported with."""

    settings: tuple[str, ...]
    values: tuple[str, ...]
    """Every strength the sweep has, as text."""
    chosen: int
    scores: tuple[float | None, ...] | None
    """Of every strength; None of one that has not been tried on every seed. None: no sweep was made."""

    @property
    def value(self) -> str:
        return self.values[self.chosen]


def arms_of(experiment: Experiment, texts: Sequence[str]) -> tuple[Arm, ...]:
    """The arms that the texts name, and the controls; all without texts. Raises `ConfigError`.

    A text that is the whole name of an arm names that one; any other, every arm with that in its name.
    """
    names = [arm.name for arm in experiment.arms]
    named: set[str] = set()
    for wanted in texts:
        text = wanted.lower()
        found = {name for name in names if name.lower() == text} or {name for name in names if text in name.lower()}
        if not found:
            raise ConfigError(
                f"--arms {wanted}: no arm of {experiment.name} has that in its name; there are {', '.join(names)}"
            )
        named |= found
    return tuple(arm for arm in experiment.arms if not texts or arm.control or arm.name in named)


def planned_arms(plan: Plan, experiment: Experiment) -> tuple[Arm, ...]:
    """The arms of a plan, as the experiment has them now. Raises `ConfigError` for one that is gone."""
    known = {arm.name: arm for arm in experiment.arms}
    if gone := [name for name in plan.arms if name not in known]:
        raise ConfigError(f"{experiment.name} has no arm {gone[0]!r} any more; run the experiment again in a new --out")
    return tuple(known[name] for name in plan.arms)


def planned_sweep(plan: Plan, experiment: Experiment, recipe: Path, out: Path) -> list[Job]:
    """Every run of the sweep; none without one."""
    jobs = sweep_jobs(plan, planned_arms(plan, experiment), recipe, out)
    return [job for found in jobs.values() for job in found]


def planned_choices(plan: Plan, experiment: Experiment, recipe: Path, out: Path) -> dict[str, Choice]:
    """What was chosen for each arm, from the sweep's runs as they are."""
    arms = planned_arms(plan, experiment)
    return choose(plan, arms, sweep_jobs(plan, arms, recipe, out))


def planned_runs(plan: Plan, experiment: Experiment, recipe: Path, out: Path) -> list[Job]:
    """Every run to report, with what the sweep, as it is, has chosen."""
    choices = planned_choices(plan, experiment, recipe, out)
    return report_jobs(plan, planned_arms(plan, experiment), choices, recipe, out)


def sweep_jobs(plan: Plan, arms: Sequence[Arm], recipe: Path, out: Path) -> dict[tuple[str, int], list[Job]]:
    """(arm, index of its strength) -> its jobs on the tuning seeds."""
    if not plan.sweep:
        return {}
    return {
        (arm.name, i): [_job(plan, arm, i, seed, recipe, out / "sweep") for seed in TUNING_SEEDS]
        for arm in arms
        if arm.sweep is not None
        for i in range(len(arm.sweep.values))
    }


def choose(plan: Plan, arms: Sequence[Arm], sweep: Mapping[tuple[str, int], Sequence[Job]]) -> dict[str, Choice]:
    """The strength of every arm that has one: by `RULE` from the runs that are finished, or the usual one."""
    choices = {}
    for arm in arms:
        if arm.sweep is None:
            continue
        count, chosen = range(len(arm.sweep.values)), arm.sweep.usual
        scores = None
        if plan.sweep:
            scores = tuple(_score(sweep.get((arm.name, i), ())) for i in count)
            chosen = _best(scores, chosen)
        labels = tuple(arm.sweep.label(i) for i in count)
        choices[arm.name] = Choice(arm.sweep.settings, labels, chosen, scores)
    return choices


def report_jobs(plan: Plan, arms: Sequence[Arm], choices: Mapping[str, Choice], recipe: Path, out: Path) -> list[Job]:
    """Every arm on every reported seed, seed by seed, so that an early stop leaves whole ones."""
    return [
        _job(plan, arm, choices[arm.name].chosen if arm.name in choices else None, seed, recipe, out / "runs")
        for seed in plan.seeds
        for arm in arms
    ]


def finished(jobs: Sequence[Job]) -> Runs:
    """What the finished ones among some jobs measured, by arm."""
    runs: dict[str, tuple] = {}
    for job in jobs:
        if job.done:
            runs[job.arm] = (*runs.get(job.arm, ()), read_run(job.folder, job.arm, job.seed))
    return runs


def _job(plan: Plan, arm: Arm, index: int | None, seed: int, recipe: Path, folder: Path) -> Job:
    strength = () if arm.sweep is None or index is None else arm.sweep.overrides(index)
    label = "" if arm.sweep is None or index is None else arm.sweep.label(index)
    drawn = (word for setting in plan.drawn for word in (f"--{setting}", str(seed)))
    own = _but_short(arm.overrides) if plan.short else arm.overrides
    overrides = ("--run.threads", "1", *for_method(plan.settings, own, recipe), *drawn, *own, *strength)
    return Job(arm.name, seed, recipe, overrides, folder / f"{slug(f'{arm.name} {label}')}-s{seed}", label)


def _but_short(overrides: Sequence[str]) -> tuple[str, ...]:
    """Without what `SHORT` sets: twice as long is not short.

    >>> _but_short(("--train.steps", "160", "--loss.ratio", "sequence"))
    ('--loss.ratio', 'sequence')
    """
    pairs = zip(overrides[::2], overrides[1::2], strict=True)
    return tuple(word for name, value in pairs if name not in SHORT for word in (name, value))


def for_method(settings: Sequence[str], overrides: Sequence[str], recipe: Path) -> tuple[str, ...]:
    """Of settings for all runs, those that one run has a use for: a setting of a penalty, if its own penalty has it.

    The penalty is what the run's `overrides` choose, else the settings, else the recipe.
    """
    given = parse_overrides([*settings, *overrides], Config)
    penalty = PENALTIES.get(given.get("loss.penalty.name") or load(recipe).loss.penalty.name)
    return tuple(
        word
        for name, _, words in split_overrides(settings, Config)
        if penalty is None or not name.startswith("loss.penalty.") or name.rpartition(".")[2] in penalty.model_fields
        for word in words
    )


def refuse_settings_of_none(settings: Sequence[str], runs: Iterable[Sequence[str]], recipe: Path) -> None:
    """Raise `ConfigError` for a setting for all runs that not one of them has a use for; `runs` are their overrides."""
    used = {word for overrides in runs for word in for_method(settings, overrides, recipe)}
    for name, text, words in split_overrides(settings, Config):
        if not used.issuperset(words):
            readers = [method for method, kind in PENALTIES.items() if name.rpartition(".")[2] in kind.model_fields]
            raise ConfigError(f"--{name} {text}: no run has a penalty with this setting, which is of {either(readers)}")


def slug(name: str) -> str:
    """A name as a folder's, in ASCII.

    >>> slug("A ≥ 0, λ 0.5"), slug("A > 0, λ 0.5")
    ('a-ge-0-lambda-0.5', 'a-gt-0-lambda-0.5')
    """
    words = name.lower()
    for sign, word in (("≥", " ge "), (">", " gt "), ("λ", "lambda"), ("τ", "tau")):
        words = words.replace(sign, word)
    return "-".join("".join(c if c.isascii() and (c.isalnum() or c in ".-") else " " for c in words).split())


def _best(scores: Sequence[float | None], usual: int) -> int:
    """Of equals the usual one; the usual one too when there is no score.

    >>> _best((0.1, None, 0.3), 1), _best((0.2, 0.2, 0.1), 1), _best((None, None), 1)
    (2, 1, 1)
    """
    known = {i: score for i, score in enumerate(scores) if score is not None}
    return max(known, key=lambda i: (known[i], i == usual), default=usual)


def _score(jobs: Sequence[Job]) -> float | None:
    """None until every seed has been tried: one seed's luck is not held against two."""
    if not jobs or not all(job.done for job in jobs):
        return None
    rewards = [read_run(job.folder, job.arm, job.seed).series("reward/mean")[1] for job in jobs]
    return mean(mean(values[len(values) // 2 :]) for values in rewards)
