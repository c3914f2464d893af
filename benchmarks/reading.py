"""How fast a log is read, beside `json.loads` of the same lines.

    OMP_NUM_THREADS=1 python benchmarks/reading.py
    OMP_NUM_THREADS=1 python benchmarks/reading.py --lines 20000 --rounds 1 --json reading.json

Logs of 40 metrics a step are written in the formats that come a line a step: ours, verl's file and console log, TRL's
console, W&B's CSV; and in the trackers' own formats: W&B's file, TensorBoard's events, the databases of trackio and
MLflow. Every way of reading runs in a process of its own, the order reversed from round to round; the import is not
counted. Seconds are CPU seconds of that process with OMP_NUM_THREADS=1, else wall-clock seconds. "ratio" is the median
over rounds of the seconds over those of `json.loads` on verl's file in the same round. "peak" is the most resident
memory of the process, less what it had before it read.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from measuring import memory_mb, peak_memory_mb, seconds_now, table, write_json
from store_writers import write_events, write_mlflow, write_trackio, write_wandb

NAMES = (
    *("critic/score/mean", "actor/entropy", "actor/grad_norm", "actor/lr", "actor/pg_clipfrac", "response_length/mean"),
    *(f"timing_s/part_{i}" for i in range(34)),
)
STORES = {
    "run-a.wandb": write_wandb,
    "events.out.tfevents.1.host": write_events,
    "trackio.db": write_trackio,
    "mlflow.db": write_mlflow,
}
PRINTED = ("loss", "grad_norm", "learning_rate", "reward", "kl", "epoch", *(f"part_{i}" for i in range(34)))
OURS = tuple(f"rollout/part_{i}" for i in range(len(NAMES)))


def rows(count: int) -> Iterator[dict[str, float]]:
    rng = random.Random(0)
    for _ in range(count):
        yield {name: rng.random() for name in NAMES}


def write_logs(folder: Path, lines: int) -> None:
    """The same numbers in every format."""
    names = list(NAMES)
    with (
        (folder / "metrics.jsonl").open("w") as ours,
        (folder / "verl.jsonl").open("w") as file,
        (folder / "verl.log").open("w") as console,
        (folder / "trl.log").open("w") as printed,
        (folder / "wandb.csv").open("w", newline="") as history,
    ):
        table_of = csv.writer(history)
        table_of.writerow(["_step", *names])
        for step, row in enumerate(rows(lines), start=1):
            renamed = dict(zip(OURS, row.values(), strict=True))
            ours.write(json.dumps({"step": step, "time": 1.7e9 + step, **renamed}) + "\n")
            file.write(json.dumps({"step": step, "data": row}, separators=(",", ":")) + "\n")
            console.write(f"step:{step} - " + " - ".join(f"{name}:{value!r}" for name, value in row.items()) + "\n")
            printed.write(f"{dict(zip(PRINTED, row.values(), strict=True)) | {'epoch': step / 1e6}}\n")
            table_of.writerow([step, *row.values()])
    for name, write in STORES.items():
        write(folder / name, enumerate(rows(lines), start=1))


def read_log(path: str) -> None:
    from holdfast.diagnose.readers import read_log

    log = read_log(path)
    assert len(log.series) == len(NAMES)


def json_loads(path: str) -> None:
    with open(path, encoding="utf-8") as file:
        for line in file:
            json.loads(line)


BASE = "json.loads, verl.jsonl"
ARMS: dict[str, tuple[Callable[[str], None], str]] = {
    BASE: (json_loads, "verl.jsonl"),
    **{
        f"read_log, {name}": (read_log, name)
        for name in ("metrics.jsonl", "verl.jsonl", "verl.log", "trl.log", "wandb.csv", *STORES)
    },
}


def measure_arm(arm: str, folder: str) -> dict[str, float]:
    """Seconds and MB of one reading, in this process."""
    read, name = ARMS[arm]
    small = Path(folder) / "small" / name
    read(str(small))
    memory, started = memory_mb(), seconds_now()
    read(str(Path(folder) / name))
    return {"seconds": seconds_now() - started, "peak_mb": max(peak_memory_mb() - memory, 0.0)}


def measure(lines: int, rounds: int) -> dict[str, Any]:
    results: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "small").mkdir()
        write_logs(Path(folder) / "small", 10)
        write_logs(Path(folder), lines)
        for number in range(rounds):
            for arm in ARMS if number % 2 == 0 else reversed(ARMS):
                command = [sys.executable, __file__, "--one", arm, folder]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                results[arm].append(json.loads(done.stdout))
        sizes = {name: (Path(folder) / name).stat().st_size / 1e6 for name in ("metrics.jsonl", "verl.jsonl")}
    return {"lines": lines, "megabytes": sizes, "runs": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", metavar="PATH")
    parser.add_argument("--one", nargs=2, metavar=("ARM", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure_arm(*options.one)))
        return
    result = measure(options.lines, options.rounds)
    print(
        f"{options.lines:,} lines of {len(NAMES)} metrics ({result['megabytes']['verl.jsonl']:,.0f} MB as verl's file)"
    )
    base = [run["seconds"] for run in result["runs"][BASE]]
    shown = []
    for arm, runs in result["runs"].items():
        ratio = statistics.median(run["seconds"] / of for run, of in zip(runs, base, strict=True))
        seconds = statistics.median(run["seconds"] for run in runs)
        shown.append([arm, f"{seconds:.2f}", f"{ratio:.2f}", f"{max(run['peak_mb'] for run in runs):,.0f}"])
    print(table(["what", "s", "ratio", "peak MB"], shown))
    write_json(options.json, result)


if __name__ == "__main__":
    main()
