"""What the rules cost during a run: time of the rules over time of the steps, in one and the same run.

    HOLDFAST_CACHE=... OMP_NUM_THREADS=1 python benchmarks/monitor_cost.py --steps 20

Processor seconds of one thread. The second part feeds the run's own rows to the monitor again and again, until its log
is as long as asked for, and sets the mean of further steps beside the run's median step.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any

from holdfast.base.run_folder import METRICS
from holdfast.diagnose.monitor import Monitor
from holdfast.recipe import load
from holdfast.train.guard import Guard
from holdfast.train.run import train
from holdfast.train.tracking import MetricsFile
from holdfast.train.trainer import Trainer

ROWS = (100, 1_000, 10_000)
RECIPE = Path(__file__).parents[1] / "src/holdfast/recipe/bundled/quickstart.toml"


def timed(function: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    """The function, noting the processor seconds of every call."""

    def call(*arguments: Any, **named: Any) -> Any:
        started = time.process_time()
        try:
            return function(*arguments, **named)
        finally:
            seconds.append(time.process_time() - started)

    return call


def a_run(steps: int, folder: Path) -> tuple[list[float], list[float], list[dict[str, Any]]]:
    """Seconds of each step and of each look at it, and the rows that were logged."""
    step_seconds: list[float] = []
    alarm_seconds: list[float] = []
    step, guard = Trainer.step, Guard.step
    Trainer.step = timed(step, step_seconds)  # type: ignore[method-assign]
    Guard.step = timed(guard, alarm_seconds)  # type: ignore[method-assign]
    try:
        settings = ["--train.steps", str(steps), "--eval.every", "0", "--eval.questions", "1", "--run.threads", "1"]
        train(load(RECIPE, settings), folder)
    finally:
        Trainer.step, Guard.step = step, guard  # type: ignore[method-assign]
    return step_seconds, alarm_seconds, MetricsFile(folder / METRICS).read()


def at_length(rows: list[dict[str, Any]], length: int) -> float:
    """Mean seconds of one more step when the log has `length` rows. A long log is not judged at every step."""
    monitor = Monitor()
    numbers = [{k: v for k, v in row.items() if isinstance(v, float) and k != "time"} for row in rows]
    monitor.replay((step, numbers[step % len(numbers)]) for step in range(length))
    seconds: list[float] = []
    observe = timed(monitor.observe, seconds)
    for extra in range(50):
        observe(length + extra, numbers[extra % len(numbers)])
    return fmean(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        step_seconds, alarm_seconds, rows = a_run(steps, Path(folder) / "run")
    share = sum(alarm_seconds) / sum(step_seconds)
    typical = median(step_seconds)
    print(f"quickstart, {len(step_seconds)} steps: a step {typical:.2f} s, the rules {share:.2%} of all steps")
    for length in ROWS:
        seconds = at_length(rows, length)
        print(f"log of {length:,} rows: {1e3 * seconds:.1f} ms a step, {seconds / typical:.2%} of this run's step")


if __name__ == "__main__":
    main()
