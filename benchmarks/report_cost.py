"""What `report.html` and its samples cost a run, as shares of its steps, and how large the files get.

    python benchmarks/report_cost.py
    python benchmarks/report_cost.py --recipe quickstart --steps 12 --json report_cost.json

A short run of a recipe with the local trainer. In every step displacement is measured twice on the same rollouts, with
and without the rollouts that are written token by token, the order changing from step to step; the samples are
written, and then the report. Shown are medians with a 95 % interval from order statistics, and the same as a share of
the step's seconds. The report of a run is written so rarely that it takes a hundredth of the run's time at most; "every
n steps" says how often that is.

Then reports of made-up logs: one run of 10,000 steps, and twenty of them. How long a browser takes to open those is
measured by report_page.py.

With one thread (OMP_NUM_THREADS=1), seconds are the process's CPU seconds, which other jobs on the machine hardly
disturb; else they are wall-clock seconds. Needs no network; the first time it makes the recipe's warm start.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from holdfast.base import run_folder
from holdfast.base.run_folder import DISPLACEMENT, METRICS, REPORT, TRAJECTORIES
from holdfast.diagnose.report import write_report
from holdfast.recipe import BUNDLED, dump, load
from holdfast.train import trainer as trainer_module
from holdfast.train.live_report import SHARE, LiveReport
from holdfast.train.loading import load_questions, load_retrievers
from holdfast.train.start import starting_policy
from holdfast.train.tracking import MetricsFile
from holdfast.train.trajectory_files import TrajectoryFiles
from measuring import median_interval, seconds_now, table, write_json
from report_page import long_run


def timed(work: Callable[..., Any], *args: Any, **more: Any) -> tuple[float, Any]:
    started = seconds_now()
    result = work(*args, **more)
    return seconds_now() - started, result


class TwoMeasures:
    """Stands in for the trainer's `measure_displacement`: runs it with and without the shown rollouts."""

    def __init__(self) -> None:
        self.real = trainer_module.measure_displacement
        self.plain: list[float] = []
        self.shown: list[float] = []

    def __call__(self, *args: Any, generator: torch.Generator, logged_questions: int, **more: Any) -> Any:
        state = generator.get_state()
        result = None
        for count in (0, logged_questions) if len(self.plain) % 2 else (logged_questions, 0):
            generator.set_state(state)
            seconds, measured = timed(self.real, *args, generator=generator, logged_questions=count, **more)
            (self.shown if count else self.plain).append(seconds)
            result = measured if count else result
        return result


def run(recipe: Path, steps: int, folder: Path) -> dict[str, list[float]]:
    """Seconds of every step, of the token-level part of its displacement, of its samples' files and of a report."""
    config = load(recipe, ["--run.threads", str(torch.get_num_threads()), "--run.dir", str(folder)])
    run_dir = folder / "run"
    run_folder.begin(run_dir, dump(config))
    torch.manual_seed(config.run.seed)
    questions, retriever = load_questions(config), load_retrievers(config).train
    policy = starting_policy(config, questions, retriever)
    trainer = trainer_module.make_trainer(config, policy, questions.train, retriever)
    both = TwoMeasures()
    trainer_module.measure_displacement = both  # type: ignore[assignment]
    metrics_file = MetricsFile(run_dir / METRICS)
    report = LiveReport(run_dir, print)
    files = TrajectoryFiles(run_dir, config.track.trajectories)
    seconds: dict[str, list[float]] = {"step": [], "samples": [], "report": []}
    for _ in range(steps):
        whole, result = timed(trainer.step)
        metrics_file.step(result)
        written, _ = timed(files.step, result)
        seconds["step"].append(whole - both.plain[-1])  # displacement was measured once too often
        seconds["samples"].append(written)
        seconds["report"].append(timed(report.write, live=True)[0])
    trainer_module.measure_displacement = both.real
    seconds["tokens"] = [a - b for a, b in zip(both.shown, both.plain, strict=True)]
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="collapse")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    recipe = BUNDLED / f"{options.recipe}.toml"
    raw: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        seconds = run(recipe, options.steps, folder)
        size = {path.name: path.stat().st_size for path in sorted((folder / "run").glob("*.*"))}
        step = median_interval(seconds["step"])[0]
        labels = {"tokens": "log-probs of the shown tokens", "samples": "writing the samples", "report": "a report"}
        rows = []
        for name, label in labels.items():
            middle, low, high = median_interval(seconds[name][1:])  # the first report loads the rules
            rows.append(
                (label, f"{1000 * middle:.1f}", f"{1000 * low:.1f} to {1000 * high:.1f}", f"{middle / step:.2%}")
            )
        print(table(["what", "ms", "95 %", "of a step"], rows))
        every = math.ceil(median_interval(seconds["report"][1:])[0] / SHARE / step)
        print(f"\na step takes {step:.2f} s; the first report {seconds['report'][0]:.2f} s; one every {every} steps")
        sizes = [(name, f"{size[name] / 1000:.0f}") for name in size if name in (REPORT, DISPLACEMENT, TRAJECTORIES)]
        print("\n" + table([f"after {options.steps} steps", "kB"], sizes))
        raw |= {"seconds": seconds, "bytes": size}
        long = long_run(10_000)
        rows = []
        for label, runs in (("one run of 10,000 steps", [long]), ("twenty of them", [long] * 20)):
            took, path = timed(write_report, folder / "long.html", runs)
            rows.append((label, f"{took:.2f}", f"{path.stat().st_size / 1e6:.1f}"))
            raw[label] = {"seconds": took, "bytes": path.stat().st_size}
        print("\n" + table(["report", "s", "MB"], rows))
    write_json(options.json, raw)


if __name__ == "__main__":
    main()
