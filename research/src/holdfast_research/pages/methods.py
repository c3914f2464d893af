"""One table: which method prevents the fall, and at what price.

    python -m holdfast_research.pages.methods     # research/docs/methods.md, from the runs in research/data/laboratory

A method is a set of settings. One that several experiments trained has one row, with the seeds of all of them.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from holdfast.base.files import write_whole
from holdfast.methods.penalties import LLDS, SAPO
from holdfast.recipe import load
from holdfast_research.experiments import EXPERIMENTS
from holdfast_research.experiments import arms as a
from holdfast_research.jobs import TrainingJob
from holdfast_research.judge import MIN_SEEDS
from holdfast_research.pages.kept_runs import KEPT, restore
from holdfast_research.paths import DOCS
from holdfast_research.plan import PLAN_FILE, Plan, finished, load_plan
from holdfast_research.results import config_hash, mean_and_range
from holdfast_research.series import RunSeries, RunSummary, summarise, surge_step

RECIPE = "flaky"
SURGE = 0.3
"""Nats above the lowest entropy so far, as in the claims."""
CONTROLS = {arm.name for arm in (a.RELIABLE, a.PLAIN_SAMPLER, a.SAMPLING_MASK, a.SMALLER)}
BELONGS_TO = {"coefficient": "LLDS", "preserving": "LLDS", "sapo": "SAPO"}
"""Experiment -> the method that its arms are variants of, whose names do not say so."""
COLUMNS = (
    *("method", "seeds", "fell", "entropy surged", "reward, last", "minus that of GRPO", "test EM"),
    *("entropy, last", "invalid turns, last", "clipped tokens, last"),
)

INTRODUCTION = """\
# Which method prevents the fall, and at what price

Every method with runs in the repository, on one [testbed](testbed.md): the same world, the same questions, the same
starting policy. Each links to the page of its experiment, which has its curves and verdicts. [Findings](findings.md)
says what the table means.

**How to read it.** Rows are sorted by the share of seeds that fell, then by the share on which entropy surged, then by
test EM. So the first rows prevent the fall at the lowest price. Plain GRPO is above them, for comparison. It falls and
then comes back, so its last reward is not its lowest.

* *Fell*: in means of five steps the reward lost 40 % of its peak, or a third in means of ten, whatever came after.
* *Entropy surged*: it rose 0.3 nats above its lowest. Where it did, the policy spreads over what the sampler never
  draws, and the reward under that sampler does not show it.
* *Last*: the mean of the last five steps. The reward is under the run's own sampler, and its difference to GRPO is
  taken seed by seed.
* *Test EM*: at the end, sampled at temperature 1 without truncation. It sees what a truncated sampler hides.
* *Invalid turns*: the share of turns that are neither a search nor an answer.
* *Clipped tokens*: the share of tokens whose gradient the method's own clip stops. GSPO's own clip is hundreds of times
  narrower than GRPO's, so it stops many. CISPO and DPPO have no such clip.

A cell has the mean over seeds, then the lowest and the highest. λ = 1 and γ = 1 come from a [sweep of this
recipe](README.md#the-sweep). Most other methods have the constants of their sources, made for
other models. The cause of this fall is a truncated sampler. What prevents it need not prevent others.
"""


@dataclass(frozen=True, slots=True)
class Method:
    """A set of settings, with its runs on one start."""

    name: str
    experiment: str
    """The first that trained it; its page has the curves."""
    control: bool
    runs: Mapping[int, RunSeries]
    """By seed."""

    @property
    def summaries(self) -> dict[int, RunSummary]:
        """By seed."""
        return {seed: summarise(run) for seed, run in sorted(self.runs.items())}

    @property
    def fell(self) -> int:
        """The number of seeds that fell."""
        return sum(run.fell for run in self.runs.values())

    @property
    def surged(self) -> int:
        """The number of seeds on which entropy surged."""
        return sum(surge_step(run, "entropy/mean", SURGE) is not None for run in self.runs.values())

    def mean_of(self, number: Callable[[RunSummary], float]) -> float:
        """Over seeds."""
        return mean(map(number, self.summaries.values()))


def methods(kept: Path = KEPT) -> dict[str, list[Method]]:
    """Methods by what their experiments set for all arms, as JSON: `{}` for those that train the recipe as it is.

    Left out are testbeds drawn with the seed, and runs that start from another policy than the recipe's.
    """
    groups: dict[str, dict[str, Method]] = {}
    for experiment in EXPERIMENTS.values():
        if experiment.recipe != RECIPE or experiment.drawn or not (kept / experiment.name / PLAN_FILE).exists():
            continue
        with tempfile.TemporaryDirectory() as folder:
            restore(experiment.name, Path(folder), kept)
            plan = load_plan(Path(folder))
            group = groups.setdefault(json.dumps(plan.shared, sort_keys=True), {})
            for key, method in _methods_of(plan, Path(folder)):
                same = group.get(key, method)
                group[key] = Method(same.name, same.experiment, same.control, {**method.runs, **same.runs})
    return {shared: list(group.values()) for shared, group in groups.items()}


def page(kept: Path = KEPT) -> str:
    """The text of methods.md."""
    groups = methods(kept)
    lines = [INTRODUCTION, *section(groups.pop("{}", []))]
    for shared, group in groups.items():
        experiment = EXPERIMENTS[group[0].experiment]
        settings = ", ".join(f"`{name} = {json.dumps(value)}`" for name, value in json.loads(shared).items())
        lines += ["", f"## {experiment.title}", "", f"All of these have {settings}.", "", *section(group)]
    return "\n".join(lines) + "\n"


def section(group: Sequence[Method]) -> Iterator[str]:
    """The tables of methods that one GRPO is the measure of: methods, controls, and what has too few seeds."""
    grpo = next((method for method in group if method.name == a.GRPO.name), None)
    others = [method for method in group if method is not grpo]
    enough = [method for method in others if len(method.runs) >= MIN_SEEDS]
    treated = [method for method in enough if not method.control]
    holding = [method for method in treated if not method.fell]
    steady = sum(not method.surged for method in holding)
    yield f"Of {len(treated)} methods {len(holding)} fell on no seed; of those {steady} had no surge of entropy either."
    yield from ("", *_table([*([grpo] if grpo else []), *sorted(treated, key=_order)], grpo))
    controls = sorted((method for method in enough if method.control), key=_order)
    yield from ("", "Controls:", "", *_table(controls, grpo)) if controls else ()
    few = sorted((method for method in others if len(method.runs) < MIN_SEEDS), key=_order)
    yield from ("", f"Fewer than {MIN_SEEDS} seeds, which tell little:", "", *_table(few, grpo)) if few else ()


def row(method: Method, grpo: Method | None) -> tuple[str, ...]:
    """The cells of `COLUMNS`."""
    summaries, count = method.summaries, len(method.runs)
    theirs = grpo.summaries if grpo and grpo is not method else {}
    gains = [ours.last - theirs[seed].last for seed, ours in summaries.items() if seed in theirs]

    def cell(number: Callable[[RunSummary], float], form: str) -> str:
        return mean_and_range(map(number, summaries.values()), form)

    return (
        f"[{method.name}]({method.experiment}.md)",
        str(count),
        f"{method.fell} of {count}",
        f"{method.surged} of {count}",
        cell(lambda run: run.last, ".2f"),
        mean_and_range(gains, "+z.2f"),
        cell(lambda run: run.em_after, ".3f"),
        cell(lambda run: run.entropy_last, ".2f"),
        cell(lambda run: run.invalid_last, ".2f"),
        cell(lambda run: run.clipped_last, ".3f"),
    )


def _table(rows: Iterable[Method], grpo: Method | None) -> Iterator[str]:
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|---" * len(COLUMNS) + "|"
    for method in rows:
        yield f"| {' | '.join(row(method, grpo))} |"


def _order(method: Method) -> tuple[float, float, float]:
    """Falls first, then surges, then test EM, highest first."""
    score = method.mean_of(lambda run: run.em_after)
    return method.fell / len(method.runs), method.surged / len(method.runs), math.inf if math.isnan(score) else -score


def _methods_of(plan: Plan, out: Path) -> Iterator[tuple[str, Method]]:
    """(hash of the settings, method) for each arm with finished runs that start from the recipe's own policy."""
    jobs = {job.arm: job for job in reversed(plan.jobs(out))}
    runs, start = finished(plan.jobs(out)), load(plan.recipe).start_parts()
    for arm, seeds in runs.items():
        job = jobs[arm]
        if job.config.start_parts() == start:
            name, control = _name(plan.experiment.name, job), arm in CONTROLS
            yield config_hash(job), Method(name, plan.experiment.name, control, {run.seed: run for run in seeds})


def _name(experiment: str, job: TrainingJob) -> str:
    """The arm's name, with the method that it belongs to and the strength of its penalty where it says neither."""
    penalty = job.config.loss.penalty
    if not isinstance(penalty, LLDS | SAPO):
        return f"{job.arm}, {job.label}" if job.label else job.arm
    name = f"{BELONGS_TO[experiment]}, {job.arm}" if experiment in BELONGS_TO else job.arm
    sign = "λ" if isinstance(penalty, LLDS) else "γ"
    return name if sign in name else f"{name}, {sign} = {penalty.coef}"


if __name__ == "__main__":
    write_whole(DOCS / "methods.md", page())
    print(DOCS / "methods.md")
