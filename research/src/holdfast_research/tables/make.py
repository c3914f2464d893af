"""The whole table as jobs: every row trained and evaluated."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.errors import ConfigError
from holdfast.evaluate.folder import write_json
from holdfast.recipe import load
from holdfast_research.jobs import EvaluationJob, Job, TrainingJob, slug
from holdfast_research.methods import Settings, for_method, words
from holdfast_research.tables.rows import TrainingRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A table to make, and its folder."""

    recipe: Path
    rows: tuple[TrainingRow, ...]
    seeds: tuple[int, ...]
    settings: Settings
    """For every row; a row's own win."""
    out: Path

    def jobs(self) -> list[Job]:
        """Trainings, seed by seed, then their evaluations on the recipe's test questions. Raises `ConfigError` when the
        recipe names none.
        """
        config = load(self.recipe, words(self.settings))
        in_world = config.data.train == "world"
        if not in_world and config.data.test is None:
            raise ConfigError(f"{self.recipe} does not set data.test, and a table is about test questions; set it")
        trainings: list[tuple[TrainingRow, TrainingJob]] = []
        for seed in self.seeds:
            of_row: dict[str, TrainingJob] = {}
            for row in self.rows:
                of_row[row.name] = self._training(row, seed, of_row.get(row.after or ""))
                trainings.append((row, of_row[row.name]))
        evaluations = [
            EvaluationJob(
                folder=self.out / "evals" / job.folder.name,
                needs=(job,),
                row=row.name,
                seed=job.seed,
                method=row.method,
                data="world" if in_world else "test",
                bare=row.bare,
            )
            for row, job in trainings
        ]
        return [*(job for _, job in trainings), *evaluations]

    def save(self) -> None:
        """What the table was made of."""
        values = {"recipe": self.recipe.stem, "rows": [row.name for row in self.rows], "seeds": self.seeds}
        write_json(self.out / "plan.json", json.loads(json.dumps(values | {"settings": self.settings})))

    def _training(self, row: TrainingRow, seed: int, start: TrainingJob | None) -> TrainingJob:
        settings = for_method(self.settings, row.settings_on(self.recipe), self.recipe)
        if start is not None:
            settings["model.path"] = str(start.folder / "model")
        return TrainingJob(
            folder=self.out / "runs" / f"{slug(row.name.replace('+', 'with'))}-s{seed}",
            needs=() if start is None else (start,),
            arm=row.name,
            seed=seed,
            recipe=self.recipe,
            settings=settings,
            warm_start=row.warm_start,
            baseline=row.baseline,
        )
