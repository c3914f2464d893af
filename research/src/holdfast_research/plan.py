"""From an experiment and a few choices to jobs: the sweep of coefficients on tuning seeds, then the reported runs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from holdfast.base.errors import ConfigError
from holdfast.recipe.loading import find_recipe
from holdfast_research.jobs import TrainingJob, slug
from holdfast_research.methods import Settings, for_method, refuse_unused, words
from holdfast_research.series import RunSeries, read_run
from holdfast_research.values import Arm, Experiment, Runs

TUNING_SEEDS = (101, 102)
"""Seeds of the sweep, never reported."""
RULE = "the coefficient with the highest mean reward over the second half of the steps, over the tuning seeds"
PLAN_FILE = "plan.json"


@dataclass(frozen=True, slots=True)
class Choice:
    """The coefficient an arm is reported with."""

    settings: tuple[str, ...]
    labels: tuple[str, ...]
    """Every coefficient of the sweep, as text."""
    chosen: int
    scores: tuple[float | None, ...] | None
    """One per coefficient, None until it has been tried on every tuning seed. None without a sweep."""

    @property
    def label(self) -> str:
        """The chosen coefficient as text."""
        return self.labels[self.chosen]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One execution of an experiment; saved in its folder, so that the page can be made again."""

    experiment: Experiment
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    settings: Settings
    """The user's, for every arm; those of an arm override them."""
    sweep: bool = False
    short: bool = False

    @property
    def recipe(self) -> Path:
        """The path of the experiment's recipe."""
        return find_recipe(self.experiment.recipe)

    @property
    def shared(self) -> Settings:
        """Settings of all arms: the experiment's, the smoke test's, the user's."""
        return {**self.experiment.settings, **(self.experiment.short if self.short else {}), **self.settings}

    @property
    def command(self) -> str:
        """The command line that executes it."""
        text = ["holdfast", "reproduce", "run", self.experiment.name, "--seeds", str(len(self.seeds))]
        if self.arms != self.experiment.arms:
            text += [word for arm in self.arms if not arm.control for word in ("--arms", arm.name)]
        if self.short:
            text.append("--short")
        elif not self.sweep and any(arm.sweep for arm in self.arms):
            text.append("--no-sweep")
        return shlex.join([*text, *words(self.settings)])

    def check(self) -> None:
        """Raise `ConfigError` for settings that an arm refuses, or that no arm uses."""
        refuse_unused(self.shared, [arm.settings for arm in self.arms], self.recipe)
        for arm in self.arms:
            for index in range(len(arm.sweep.values)) if arm.sweep else (None,):
                assert self._job(arm, index, self.seeds[0], Path("runs")).config

    def save(self, out: Path) -> None:
        """Write it into its folder."""
        names = {"experiment": self.experiment.name, "arms": [arm.name for arm in self.arms]}
        values = names | {"seeds": self.seeds, "settings": self.settings, "sweep": self.sweep, "short": self.short}
        out.mkdir(parents=True, exist_ok=True)
        (out / PLAN_FILE).write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def sweep_jobs(self, out: Path) -> dict[tuple[str, int], list[TrainingJob]]:
        """(arm, index of its coefficient) -> its jobs on the tuning seeds; empty without a sweep."""
        return {
            (arm.name, i): [self._job(arm, i, seed, out / "sweep") for seed in TUNING_SEEDS]
            for arm in self.arms
            if self.sweep and arm.sweep is not None
            for i in range(len(arm.sweep.values))
        }

    def choices(self, out: Path) -> dict[str, Choice]:
        """The coefficient of every arm that has one: by `RULE` from the finished sweep, or the usual one."""
        sweep = self.sweep_jobs(out)
        choices = {}
        for arm in self.arms:
            if arm.sweep is None:
                continue
            count, chosen, scores = range(len(arm.sweep.values)), arm.sweep.usual, None
            if self.sweep:
                scores = tuple(_score(sweep[arm.name, i]) for i in count)
                chosen = _best(scores, chosen)
            labels = tuple(arm.sweep.label(i) for i in count)
            choices[arm.name] = Choice(arm.sweep.settings, labels, chosen, scores)
        return choices

    def jobs(self, out: Path) -> list[TrainingJob]:
        """Every arm on every reported seed, seed by seed, so that an early stop leaves whole seeds."""
        choices = self.choices(out)
        return [
            self._job(arm, choices[arm.name].chosen if arm.sweep else None, seed, out / "runs")
            for seed in self.seeds
            for arm in self.arms
        ]

    def _job(self, arm: Arm, index: int | None, seed: int, folder: Path) -> TrainingJob:
        settings = {k: v for k, v in arm.settings.items() if not (self.short and k in self.experiment.short)}
        label = ""
        if arm.sweep is not None and index is not None:
            settings |= arm.sweep.at(index)
            label = arm.sweep.label(index)
        drawn = dict.fromkeys(self.experiment.drawn, seed)
        return TrainingJob(
            arm=arm.name,
            seed=seed,
            recipe=self.recipe,
            settings=for_method({**self.shared, **drawn}, settings, self.recipe),
            folder=folder / f"{slug(f'{arm.name} {label}')}-s{seed}",
            label=label,
        )


def load_plan(out: Path) -> Plan:
    """Raises `ConfigError`."""
    from holdfast_research.experiments import find

    path = out / PLAN_FILE
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        experiment = find(data.pop("experiment"))
        names, seeds = data.pop("arms"), tuple(data.pop("seeds"))
        arms = {arm.name: arm for arm in experiment.arms}
        if gone := [name for name in names if name not in arms]:
            raise ConfigError(f"{experiment.name} has no arm {gone[0]!r} any more; run it again with a new --out")
        return Plan(experiment=experiment, arms=tuple(arms[name] for name in names), seeds=seeds, **data)
    except OSError:
        raise ConfigError(f"{out} holds no experiment (no {PLAN_FILE}); give the --out of one that was run") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error!r}; run the experiment again to renew it") from None


def arms_of(experiment: Experiment, texts: Sequence[str]) -> tuple[Arm, ...]:
    """The arms that the texts name, and the controls; all without texts. Raises `ConfigError`.

    A text that is the whole name of an arm names that one; any other, every arm with that in its name.
    """
    names = [arm.name for arm in experiment.arms]
    named: set[str] = set()
    for given in texts:
        text = given.lower()
        matches = {name for name in names if name.lower() == text} or {name for name in names if text in name.lower()}
        if not matches:
            raise ConfigError(
                f"--arms {given}: no arm of {experiment.name} has that in its name; there are {', '.join(names)}"
            )
        named |= matches
    return tuple(arm for arm in experiment.arms if not texts or arm.control or arm.name in named)


def finished(jobs: Sequence[TrainingJob]) -> Runs:
    """What the finished jobs measured, by arm."""
    runs: dict[str, tuple[RunSeries, ...]] = {}
    for job in jobs:
        if job.done:
            runs[job.arm] = (*runs.get(job.arm, ()), read_run(job.folder, job.arm, job.seed))
    return runs


def _best(scores: Sequence[float | None], usual: int) -> int:
    """The index of the highest score; of equals, and without a score, the usual one.

    >>> _best((0.1, None, 0.3), 1), _best((0.2, 0.2, 0.1), 1), _best((None, None), 1)
    (2, 1, 1)
    """
    known = {i: score for i, score in enumerate(scores) if score is not None}
    return max(known, key=lambda i: (known[i], i == usual), default=usual)


def _score(jobs: Sequence[TrainingJob]) -> float | None:
    """None until every seed has been tried: one seed's luck is not compared with two."""
    if not jobs or not all(job.done for job in jobs):
        return None
    rewards = [read_run(job.folder, job.arm, job.seed).series("reward/mean")[1] for job in jobs]
    return mean(mean(values[len(values) // 2 :]) for values in rewards)
