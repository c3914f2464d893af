"""What a GPU makes of holdfast: its tests, rollouts, updates, a whole step beside TRL's, and SmolLM2's training.

    make gpu                                       # at most 12 minutes on one card, without a network
    make gpu ARGS='--minutes 28'                   # every part, however slow the card
    python benchmarks/gpu.py --parts limits rollouts-smollm2 update-smollm2 factbook
    python benchmarks/gpu.py --toy                 # the same code on a CPU, at sizes that mean nothing

Each part is a process of its own with a limit of seconds. One that fails, runs out of memory or takes too long is
reported, keeps what it had measured, and the next part goes on. Only the part `factbook` needs a model, which
`holdfast model get smollm2` stores, or --model names; the other weights are random. Written into --folder, after every
part:

    results.json     all that was measured
    results.md       the same as tables
    log.txt          what was printed
    logs/PART.log    what the part printed

What the folder has of other parts, from the same day and machine, stays. With --docs PAGE the tables also replace what
stands between the markers of that page; not with --toy.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gpu_report

MINUTES = 12.0
"""A machine that is lent for a quarter of an hour needs two for its start and the transfers."""
GRACE = 15.0
"""Seconds that a part has to stop by itself after its limit."""


class Kit:
    """The parts that were asked for, one after another."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.folder = options, Path(options.folder).resolve()
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        self.started = time.monotonic()
        self.results: dict[str, Any] = {"machine": machine(options), "parts": {}}
        before = self.folder / "results.json"
        if before.is_file() and (kept := json.loads(before.read_text()))["machine"] == self.results["machine"]:
            self.results = kept

    def say(self, text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self.started), 60)
        line = f"{minutes:02d}:{seconds:02d}  {text}"
        print(line, flush=True)
        with (self.folder / "log.txt").open("a", encoding="utf-8") as log:
            log.write(line + "\n")

    def run(self, budgets: dict[str, float]) -> bool:
        """Whether every part ended well."""
        self.say(f"{self.results['machine']['device']}; parts: {' '.join(budgets)}")
        for name, budget in budgets.items():
            left = self.options.minutes * 60 - (time.monotonic() - self.started)
            if left < min(budget, 20):
                part: dict[str, Any] = {"status": "left out: no time was left", "seconds": 0.0, "rows": []}
            else:
                self.say(f"{name}: at most {min(budget, left):.0f} s")
                part = self._run_part(name, min(budget, left), min(budget + GRACE, left))
            self.say(f"{name}: {part['status']} after {part['seconds']:.0f} s, {len(part['rows'])} results")
            self.results["parts"][name] = part
            self._write()
        return all(part["status"] == "ok" for part in self.results["parts"].values())

    def _run_part(self, name: str, budget: float, limit: float) -> dict[str, Any]:
        """Run a part that should be done in `budget` seconds, and is killed after `limit`."""
        options = self.options
        command = [sys.executable, __file__, "--part", name, "--folder", str(self.folder), "--device", options.device]
        command += ["--seconds", str(budget), *["--toy"] * options.toy]
        command += ["--model", options.model] if options.model else []
        started = time.monotonic()
        with (self.folder / "logs" / f"{name}.log").open("w", encoding="utf-8") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                code: int | None = process.wait(timeout=limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with suppress(ProcessLookupError):  # with all that it has started
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        rows = read_rows(self.folder / f"{name}.jsonl")
        errors = [row["error"] for row in rows if "error" in row]
        status = "stopped at its limit" if code is None else f"ended with code {code}" if code else "ok"
        if status == "ok" and errors:
            status = f"{len(errors)} of {len(rows)} results are errors: {errors[0]}"
        return {"status": status, "seconds": time.monotonic() - started, "rows": rows}

    def _write(self) -> None:
        (self.folder / "results.json").write_text(json.dumps(self.results, indent=1) + "\n", encoding="utf-8")
        text = gpu_report.markdown(self.results)
        (self.folder / "results.md").write_text(text, encoding="utf-8")
        if self.options.docs and not self.options.toy:
            gpu_report.fill(Path(self.options.docs), text)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a part's results; the last may be cut."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        with suppress(ValueError):
            rows.append(json.loads(line))
    return rows


def machine(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    versions = {"python": platform.python_version()}
    for package in ("holdfast-rl", "torch", "transformers", "trl", "vllm"):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    device = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    date = datetime.now(UTC).date().isoformat()
    return {"device": device, "cuda": torch.version.cuda, "date": date, "toy": options.toy, "versions": versions}


def choose(names: list[str], budgets: dict[str, float]) -> dict[str, float]:
    """The budgets of the named parts, in the order in which they run; all without names."""
    if unknown := sorted(set(names) - set(budgets)):
        raise SystemExit(f"--parts {' '.join(unknown)}: not a part; the parts are {' '.join(budgets)}")
    return {name: seconds for name, seconds in budgets.items() if not names or name in names}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=[], metavar="PART", help="default: all")
    parser.add_argument("--folder", default="build/gpu")
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="of all parts together; those that are left then are left out"
    )
    parser.add_argument("--docs", metavar="PAGE", help="put the tables into this page too")
    parser.add_argument("--model", metavar="DIR", default="", help="SmolLM2, if it is not in holdfast's cache")
    parser.add_argument("--toy", action="store_true", help="on the CPU, at sizes that mean nothing")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=60.0, help=argparse.SUPPRESS)
    parser.add_argument("--device", choices=("cuda", "cpu"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    import torch

    import gpu_hardware
    import gpu_parts

    options.device = "cpu" if options.toy else options.device or "cuda"
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no GPU here. On a machine without one, --toy runs the same code on the CPU")
    if options.part:
        deadline = time.monotonic() + options.seconds
        where = Path(options.folder), torch.device(options.device)
        gpu_parts.run_part(gpu_hardware.Bench(options.part, *where, options.toy, deadline, options.model))
        return 0
    budgets = {name: seconds for name, (seconds, _) in gpu_parts.PARTS.items()}
    kit = Kit(options)
    return 0 if kit.run(choose(options.parts, budgets)) else 1


if __name__ == "__main__":
    sys.exit(main())
