"""How often the rules find something in healthy runs of any length and noise: a null model of what trainers log.

    python -m holdfast_research.null_model                        # all cells; some minutes
    python -m holdfast_research.null_model --rows 20 100 --runs 50 --jobs 2
    python -m holdfast_research.null_model --json build/null_model.json

A healthy run is drawn, not trained. Its rewards are correct or not, for questions of unequal difficulty. Its level
stays, rises, or rises to a plateau. Noise has a memory, and some runs see easy and hard questions by turns. Other
cells have rewards that are nearly always 0, that have heavy tails, or that are negative. The other
series are those of a stock GRPOTrainer, or of one with our observer. With them go calls of a tool, a staleness that is
constant, and one of several schedules. No threshold of a rule was chosen from them.

A cell is a number of rows, a number of completions a row, and a kind of reward. Each run draws all else. The rules are
those of `holdfast diagnose`, all together, and the count is of findings, not of notes.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.log import Log, Series
from holdfast.diagnose.log.trailing import Values

Shape = Literal["stationary", "plateau", "rising", "steps"]
Reward = Literal["correct", "sparse", "heavy-tailed", "negative"]

ROWS = (8, 20, 100, 300, 1000, 3000, 10000)
COMPLETIONS = (2, 4, 8, 16, 64, 512)
COMPLETIONS_OF_OTHERS = 8
"""Completions a row, where rewards are not just correct or incorrect."""
RARE = 0.03
"""The share of the chance to be correct that is left where rewards are sparse."""
TAIL = 0.5
"""The scale of noise with two degrees of freedom, for one completion."""
RUNS, MAX_ROWS = 200, 200_000
"""Runs in a cell, and rows in all of them: cells of long runs have fewer."""
MIN_RUNS = 60
MEMORIES = (0.0, 0.5, 0.9)
"""Correlations of the noise of neighbouring rows."""
LEVEL_NOISE = 0.2
"""Standard deviation of the accuracy around its course, in logits: 5 points at an accuracy of one half."""
DIFFICULTY = 1.5
"""Standard deviation of questions, in logits."""
SERIES_NOISE = 0.06
"""The same of entropy and lengths, as a share of them."""
CELL_AT_MOST = 0.02
"""Findings a run that a cell may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a healthy run is like."""

    rows: int
    completions: int
    """Rewards that a row is the mean of."""
    group: int
    """Completions of a question."""
    mean: float
    """The accuracy that the run reaches, for a question of average difficulty."""
    shape: Shape
    memory: float
    season: float
    """Amplitude of easy and hard questions by turns, in logits; 0 for questions in a random order."""
    truncated: float
    """Share of truncated completions. Half of them, from first to last, would be a fault."""
    functions: int
    """Reward functions: 1 for answers that are correct, 2 with one that learns a form."""
    observed: bool
    """Whether our observer logs too."""
    seed: int
    reward: Reward = "correct"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the rules say about one run."""

    run: Run
    codes: tuple[str, ...]
    """Alarms. What a flat verdict names as its reason is in `reasons`: a run without a trend is flat."""
    steps: tuple[int, ...]
    reasons: tuple[str, ...] = ()


def drawn(rows: int, completions: int, seed: int, reward: Reward = "correct") -> Run:
    """A healthy run of a cell. The same seed draws the same run."""
    draw = np.random.default_rng((rows, completions, seed))
    groups = [size for size in (2, 4, 8, 16) if size <= completions and not (completions == 512 and size < 8)]
    return Run(
        rows=rows,
        completions=completions,
        group=int(draw.choice(groups)),
        mean=float(draw.uniform(0.05, 0.95)),
        shape=str(draw.choice(get_args(Shape))),  # type: ignore[arg-type]
        memory=float(draw.choice(MEMORIES)),
        season=float(draw.choice([0.0, 0.0, draw.uniform(0.1, 0.25)])),
        truncated=float(draw.choice([0.0, 0.02, 0.1, 0.3])),
        functions=int(draw.choice([1, 1, 2])),
        observed=bool(draw.random() < 0.5),
        seed=seed,
        reward=reward,
    )


class _Twin:
    """Draws single numbers, which are what a run is like, from one generator, and arrays, which are noise, from
    another."""

    def __init__(self, run: np.random.Generator, noise: np.random.Generator) -> None:
        self._run, self._noise = run, noise

    def __getattr__(self, name: str) -> Any:
        def drawn(*args: Any, **named: Any) -> Any:
            is_one = named.get("size") is None and all(np.ndim(value) == 0 for value in args)
            is_one = is_one and not (name == "random" and args)
            return getattr(self._run if is_one else self._noise, name)(*args, **named)

        return drawn


def log_of(run: Run, copy: int | None = None) -> Log:
    """The log of a healthy run, with one row a rollout batch. Copies of a run differ in their noise alone."""
    draw, draw_beside = (_generator(run, part, copy) for part in (1, 3))
    rewards = rewards_of(draw, run)
    series = stock(draw, run, rewards)
    series |= beside(draw_beside, run)
    if run.reward != "correct":  # a script's log: the reward alone, which no share of groups explains
        series = {name: values for name, values in series.items() if name == "reward/mean" or name not in rewards}
    if run.observed:
        series |= observed(draw, run, rewards["reward/mean"], series)
    steps = np.arange(1, run.rows + 1)
    return Log(
        format="trl",
        host="trl",
        name=f"null-{run.rows}-{run.completions}-{run.seed}",
        series={name: Series(steps, values) for name, values in series.items()},
        steps=steps,
    )


def _generator(run: Run, part: int, copy: int | None) -> np.random.Generator:
    """What draws a part of a run, or of a copy of it."""
    draw = np.random.default_rng((run.rows, run.completions, run.seed, part))
    if copy is None:
        return draw
    return _Twin(draw, np.random.default_rng((run.rows, run.completions, run.seed, part + 1, copy)))  # type: ignore[return-value]


def _one_of(draw: np.random.Generator, *options: float) -> float:
    """One of some numbers."""
    return options[int(draw.integers(len(options)))]


def rewards_of(draw: np.random.Generator, run: Run) -> dict[str, Values]:
    """Binary rewards of groups, with what TRL logs of them."""
    level = _logit(run.mean) + course(run) + LEVEL_NOISE * autocorrelated(draw, run.rows, run.memory)
    level = level + run.season * np.sin(2 * np.pi * np.arange(run.rows) / draw.uniform(10, max(run.rows / 3, 11)))
    questions = max(run.completions // run.group, 1)
    chance = _share(level[:, None] + DIFFICULTY * draw.normal(size=(run.rows, questions)))
    chance = RARE * chance if run.reward == "sparse" else chance
    correct = draw.binomial(run.group, chance) / run.group
    deviation = np.sqrt(correct * (1 - correct) * run.group / (run.group - 1))
    mixed = (deviation > 0).mean(axis=1)
    parts = {"rewards/correct/mean": correct.mean(axis=1)}
    if run.functions > 1:
        form = _share(np.linspace(0, 3, run.rows) + LEVEL_NOISE * autocorrelated(draw, run.rows, run.memory))
        parts["rewards/polite/mean"] = draw.binomial(run.completions, form) / run.completions
    total = np.asarray(np.sum(list(parts.values()), axis=0))
    if run.reward == "heavy-tailed":
        total = total + TAIL / np.sqrt(run.completions) * draw.standard_t(2, size=run.rows)
    if run.reward == "negative":
        total = 2 * (total - run.functions) - 0.2
    return parts | {
        "reward/mean": total,
        "reward/group_std": deviation.mean(axis=1),
        "rollout/mixed_group_fraction": mixed,
        "frac_reward_zero_std": 1 - mixed,
    }


def course(run: Run) -> Values:
    """[rows]: the accuracy without noise, in logits below its end."""
    done = np.linspace(0, 1, run.rows)
    if run.shape == "plateau":
        return np.asarray(-2.0 * np.exp(-done / 0.15))
    if run.shape == "rising":
        return 1.5 * (done - 1)
    if run.shape == "steps":
        return np.asarray(np.select([done < 0.25, done < 0.5, done < 0.75], [-1.2, -0.6, -0.2], 0.0))
    return np.zeros(run.rows)


def stock(draw: np.random.Generator, run: Run, rewards: dict[str, Values]) -> dict[str, Values]:
    """What a stock GRPOTrainer with vLLM logs besides: every series a product of a course and of noise."""
    done = np.linspace(0, 1, run.rows)

    def noise(size: float) -> Values:
        return np.exp(size * autocorrelated(draw, run.rows, run.memory))

    entropy = draw.uniform(0.1, 1.2) * (0.4 + 0.6 * np.exp(-3 * done)) * noise(SERIES_NOISE)
    length = draw.uniform(20, 500) * (1 + draw.uniform(-0.3, 0.3) * done) * noise(SERIES_NOISE)
    length = length * (1 + 0.3 * draw.normal(size=run.rows) / np.sqrt(run.completions))
    spread = 1.5 * np.sqrt(np.log(run.completions))
    cut = np.zeros(run.rows)
    if run.truncated:
        level = _logit(run.truncated) + LEVEL_NOISE * autocorrelated(draw, run.rows, run.memory)
        cut = draw.binomial(run.completions, _share(level)) / run.completions
    norm = draw.uniform(0.1, 5.0) * (0.5 + 0.5 * np.exp(-3 * done)) * noise(0.4)
    norm = norm * np.where(draw.random(run.rows) < 0.005, 1 + 3 * draw.pareto(1.5, run.rows), 1.0)
    norm = np.where(rewards["rollout/mixed_group_fraction"] > 0, norm, 0.0)
    kl = 10 ** draw.uniform(-3, -1) * (1 - np.exp(-4 * done)) * noise(0.3)
    kl = kl * np.where(draw.random(run.rows) < 0.002, 5.0, 1.0)
    clip = (draw.random() < 0.5) * 10 ** draw.uniform(-4, -2) * noise(0.5)
    gap = 10 ** draw.uniform(-2.7, -1.7) * noise(0.1)
    return rewards | {
        "entropy/mean": entropy,
        "rollout/length": length,
        "rollout/min_length": length / (1 + 0.3 * spread),
        "rollout/max_length": length * (1 + 0.3 * spread),
        "rollout/truncated_fraction": cut,
        "grad/norm": norm,
        "kl/reference": kl,
        "loss": 0.04 * kl + 0.01 * draw.normal(size=run.rows),
        "clip/fraction": clip,
        "sampler/logprob_abs_gap": gap,
        "sampler/importance_ratio": truncated_ratio(gap * np.sqrt(length)) + gap * draw.normal(size=run.rows),
    }


def truncated_ratio(spread: Values) -> Values:
    """The mean ratio of whole rollouts, whose logarithm has this spread, if ratios above 3 count as 0 (TRL's
    default)."""
    return np.asarray(
        0.5 + 0.5 * np.vectorize(math.erf)((np.log(3) / np.maximum(spread, 1e-9) - spread / 2) / math.sqrt(2))
    )


def beside(draw: np.random.Generator, run: Run) -> dict[str, Values]:
    """A tool that is called, sometimes in vain; turns that are sometimes invalid; rollouts that are some updates
    old."""
    done = np.linspace(0, 1, run.rows)

    def noise(size: float) -> Values:
        return np.exp(size * autocorrelated(draw, run.rows, run.memory))

    # An agent that learns may need half or twice as many calls.
    calls = draw.uniform(0.05, 3.0) * draw.uniform(0.5, 2.0) ** done * noise(0.1)
    called = draw.poisson(calls * run.completions)
    # Malformed calls become rarer as the policy learns to write them.
    failing, wrong = (
        (share > 0)
        * _share(
            _logit(share or 0.5) - draw.uniform(0, 3) * done + LEVEL_NOISE * autocorrelated(draw, run.rows, run.memory)
        )
        for share in (_one_of(draw, 0.0, 0.02, 0.2, 0.6), _one_of(draw, 0.0, 0.005, 0.05, 0.2))
    )
    failed = draw.binomial(called, failing) / np.maximum(called, 1)
    turns = np.maximum(run.completions + called, 1)
    age = _one_of(draw, 0.0, 1.0, 3.0, 6.0)
    stale = age * np.minimum(1, np.arange(run.rows) / max(age, 1.0)) * noise(0.1)
    return {
        "rollout/searches": called / run.completions,
        "rollout/turns": turns / run.completions,
        "rollout/failed_call_fraction": failed,
        "rollout/invalid_fraction": draw.binomial(turns, wrong) / turns,
        "rollout/staleness": stale,
        "lr": 1e-6 * schedule(draw, run.rows),
    }


def schedule(draw: np.random.Generator, rows: int) -> Values:
    """[rows]: the learning rate as a share of the highest: constant, or down to 0 at the end, after a warm-up or
    none."""
    done = np.arange(rows) / max(rows - 1, 1)
    shapes = (np.ones(rows), 1 - done, (1 + np.cos(np.pi * done)) / 2, np.minimum(1, 5 * (1 - done)))
    rate = shapes[int(draw.integers(len(shapes)))]
    warm_up = _one_of(draw, 0.0, 0.05, 0.2)
    return np.asarray(rate * np.minimum(1, done / warm_up) if warm_up else rate)


def observed(draw: np.random.Generator, run: Run, reward: Values, series: dict[str, Values]) -> dict[str, Values]:
    """What our observer logs in a run whose updates raise the likelihood of most correct rollouts."""
    done = np.linspace(0, 1, run.rows)
    # Samples surprise a policy by its entropy on average: correct ones by less, incorrect ones by more.
    surprise = series["entropy/mean"] + 0.2 * draw.normal(size=run.rows) / np.sqrt(run.completions)
    apart = 0.2 * series["entropy/mean"]
    correct, incorrect = -surprise + (1 - reward) * apart, -surprise - reward * apart
    rollouts = np.maximum(reward * run.completions, 1).round()
    gain = 0.003 * np.exp(-3 * done) + 0.0002
    scatter = 0.004
    step = gain + scatter * draw.normal(size=run.rows) / np.sqrt(rollouts)
    losing = draw.binomial(rollouts.astype(int), 0.45 - 0.2 * np.exp(-3 * done)) / rollouts
    return {
        "displacement/correct": step,
        "displacement/fraction": losing,
        "likelihood/correct": np.minimum(correct, -1e-4),
        "likelihood/incorrect": np.minimum(incorrect, -2e-4),
        "ratio/log_product": -0.01 + 0.3 * draw.normal(size=run.rows) / np.sqrt(run.completions),
        "ratio/max": 1 + 0.3 * np.exp(0.3 * draw.normal(size=run.rows)),
        "advantage/token_mean": 0.1 * draw.normal(size=run.rows) / np.sqrt(run.completions),
        "sampler/logprob_gap": 1e-8 * draw.normal(size=run.rows),
        "optimizer_steps_per_rollout": np.full(run.rows, 4.0),
    }


def autocorrelated(draw: np.random.Generator, rows: int, memory: float) -> Values:
    """[rows]: standard normal noise whose neighbours are correlated by `memory`."""
    kernel = memory ** np.arange(200 if memory else 1)
    return np.asarray(np.convolve(draw.normal(size=rows + len(kernel) - 1), kernel, "valid") * np.sqrt(1 - memory**2))


def _share(logits: Values) -> NDArray[np.float64]:
    return np.asarray(1 / (1 + np.exp(-logits)))


def _logit(share: float) -> float:
    return float(np.log(share / (1 - share)))


# ---- judging


def judge(cell: tuple[int, int, int, Reward]) -> Verdict:
    """(rows, completions, seed, reward) -> what the rules find in that run."""
    run = drawn(*cell)
    findings = diagnose(log_of(run)).findings
    alarms = [finding for finding in findings if not finding.by_verdict]
    return Verdict(
        run=run,
        codes=tuple(f.code for f in alarms),
        steps=tuple(f.certain for f in alarms),
        reasons=tuple(f.code for f in findings if f.by_verdict),
    )


def verdicts(rows: Sequence[int], completions: Sequence[int], runs: int, jobs: int = 1) -> Iterator[Verdict]:
    """The verdicts of all cells, in order."""
    kinds: list[tuple[int, Reward]] = [(size, "correct") for size in completions]
    kinds += [(COMPLETIONS_OF_OTHERS, reward) for reward in get_args(Reward)[1:]]
    cells = [
        (length, size, seed, reward)
        for length, (size, reward) in product(rows, kinds)
        for seed in range(runs_of(length, runs))
    ]
    if jobs == 1:
        yield from map(judge, cells)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(judge, cells, chunksize=20)


def runs_of(rows: int, runs: int) -> int:
    """Runs in a cell of runs that long."""
    return min(runs, max(MIN_RUNS, MAX_ROWS // rows))


def rate(some: Iterable[Verdict]) -> float:
    """Findings per run; NaN without runs."""
    counts = [len(verdict.codes) for verdict in some]
    return sum(counts) / len(counts) if counts else float("nan")


def table(all_of_them: Sequence[Verdict]) -> str:
    """Findings per run: by cell, by code, and by what else a run is like."""
    rows = sorted({v.run.rows for v in all_of_them})
    head = "| findings per run | " + " | ".join(f"{length} rows" for length in rows) + " |"
    lines = [head, "|---" * (len(rows) + 1) + "|"]

    def line(name: str, some: list[Verdict]) -> str:
        return f"| {name} | " + " | ".join(f"{rate(v for v in some if v.run.rows == n):.3f}" for n in rows) + " |"

    for kind in sorted({cell_of(v.run)[1:] for v in all_of_them}):
        lines.append(line(name_of(*kind), [v for v in all_of_them if cell_of(v.run)[1:] == kind]))
    for shape in get_args(Shape):
        lines.append(line(shape, [v for v in all_of_them if v.run.shape == shape]))
    for memory in MEMORIES:
        lines.append(line(f"memory {memory}", [v for v in all_of_them if v.run.memory == memory]))
    for low, high in ((0.05, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 0.95)):
        lines.append(line(f"mean {low} to {high}", [v for v in all_of_them if low <= v.run.mean < high]))
    for name, seasonal in (("random order", False), ("easy and hard by turns", True)):
        lines.append(line(name, [v for v in all_of_them if (v.run.season > 0) is seasonal]))
    for name, is_observed in (("stock", False), ("observed", True)):
        lines.append(line(name, [v for v in all_of_them if v.run.observed is is_observed]))
    counts = {n: Counter(code for v in all_of_them if v.run.rows == n for code in v.codes) for n in rows}
    number = {n: sum(v.run.rows == n for v in all_of_them) for n in rows}
    for code in sorted({code for count in counts.values() for code in count}):
        lines.append(f"| {code} | " + " | ".join(f"{counts[n][code] / number[n]:.3f}" for n in rows) + " |")
    lines.append(line("**all**", list(all_of_them)))
    return "\n".join(lines)


def too_many(all_of_them: Sequence[Verdict]) -> list[str]:
    """The cells with more than `CELL_AT_MOST` findings per run."""
    cells: dict[tuple[int, int, Reward], list[Verdict]] = {}
    for verdict in all_of_them:
        cells.setdefault(cell_of(verdict.run), []).append(verdict)
    return [
        f"{rows} rows, {name_of(completions, reward)}: {rate(some):.3f}"
        for (rows, completions, reward), some in cells.items()
        if rate(some) > CELL_AT_MOST
    ]


def cell_of(run: Run) -> tuple[int, int, Reward]:
    """(rows, completions, reward): the cell of a run."""
    return run.rows, run.completions, run.reward


def name_of(completions: int, reward: Reward) -> str:
    """A kind of cell in words."""
    return f"{completions} completions" + ("" if reward == "correct" else f", {reward} rewards")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--completions", type=int, nargs="+", default=COMPLETIONS)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write every verdict here")
    args = parser.parse_args()
    total = sum(runs_of(n, args.runs) for n in args.rows) * (len(args.completions) + len(get_args(Reward)) - 1)
    results: list[Verdict] = []
    for verdict in verdicts(args.rows, args.completions, args.runs, args.jobs):
        results.append(verdict)
        if len(results) % 50 == 0 or len(results) == total:
            print(f"\r{len(results)} of {total} runs", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(table(results))
    over = too_many(results)
    print(f"\nCells above {CELL_AT_MOST}: {'; '.join(over) if over else 'none'}.")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps([asdict(verdict) for verdict in results]) + "\n")


if __name__ == "__main__":
    main()
