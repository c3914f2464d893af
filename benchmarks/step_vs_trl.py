"""One whole RL step, rollout and update, against TRL's GRPOTrainer on the same task.

    pip install -c constraints.txt -e '.[train,trl]'
    python benchmarks/step_vs_trl.py
    python benchmarks/step_vs_trl.py --spread 0                    # all rollouts equally long
    python benchmarks/step_vs_trl.py --hidden 320 --layers 6 --words 6000 --questions 4 --json step.json
    python benchmarks/step_vs_trl.py --pretrained FOLDER --questions 4 --group 4 --turns 2 --turn-tokens 64 \
        --spread 0.2 --observation-tokens 60 --rounds 1    # FOLDER: what `holdfast model get smollm2` prints
    ... --autocast bf16 --trl-autocast bf16    # passes in bf16, where the CPU has it, of one arm or of both

Both arms start from the same weights and get the same questions. A script fixes how many tokens each turn has, what is
searched for and which answer is right (step_task.py), so both sample, read and train on exactly the same number of
tokens, in as many optimizer steps with as many rollouts each; the parent checks that. Whatever is sampled, the text
never ends by itself. Both search the same index and cut observations with the same function.

    holdfast  `Trainer.step` with LLDS and its statistics; no displacement pass
    trl       GRPOTrainer with a `rollout_func` that calls `model.generate` turn by turn, `env_mask` on what the model
              did not say, old log-probs from a pass of its own (as ours), no KL, no gradient checkpointing; no penalty

Each arm is a process of its own that waits while the other works; a round is a step of each. The first step of each is
thrown away. With one thread (OMP_NUM_THREADS=1), seconds are the process's CPU seconds, which other jobs on the machine
hardly disturb; else they are wall-clock seconds. Memory is the process's peak of resident memory; beside it what it
held before its first step (imports, model, index). Needs no network. One free core needs about four minutes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

from measuring import median_interval, memory_mb, peak_memory_mb, table, write_json
from step_task import Task

INSTALL = (
    "TRL is not installed in this environment. Install it beside holdfast:\n"
    "    python -m pip install -c constraints.txt -e '.[train,trl]'\n"
    "or measure our step alone with --arms holdfast"
)
ARMS = ("holdfast", "trl")
PARTS = ("step", "rollout", "old log-probs", "optimizer steps")


class Worker:
    """An arm in its own process. It builds everything, then runs a step whenever it is told to."""

    def __init__(self, arm: str, task: Task) -> None:
        offline = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRL_EXPERIMENTAL_SILENCE"), "1")
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", arm, *task.as_options()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | offline,
        )
        self.memory_before = self._read()["memory_mb"]

    def step(self) -> dict[str, Any]:
        self._write("step")
        return self._read()

    def close(self) -> None:
        self._write("stop")
        self.process.wait()

    def _write(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("@"):  # whatever else the libraries print is not for us
                return json.loads(line[1:])
        raise SystemExit(f"the process of an arm ended with code {self.process.wait()}; its error stands above")


def work(arm: str, task: Task) -> None:
    """The worker's side."""

    def answer(report: dict[str, Any] | None) -> bool:
        """Report on the last step; whether there is another."""
        memory = {"memory_mb": memory_mb(), "peak_mb": peak_memory_mb(), "gpu_peak_gb": gpu_peak_gb()}
        print("@" + json.dumps((report or {}) | memory), flush=True)
        return sys.stdin.readline().strip() == "step"

    if arm == "trl":
        import step_trl_arm

        step_trl_arm.serve(task, answer)
    else:
        import step_own_arm

        step = step_own_arm.start(task)
        report = None
        while answer(report):
            report = step()


def gpu_peak_gb() -> float:
    """The most memory of a GPU that this process ever held in tensors."""
    import torch

    return torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_initialized() else 0.0


def measure(task: Task, arms: list[str], rounds: int) -> dict[str, Any]:
    """Reports of all steps after the first."""
    workers = {arm: Worker(arm, task) for arm in arms}
    reports: dict[str, list[dict[str, Any]]] = {arm: [] for arm in arms}
    for n in range(rounds + 1):
        for arm in arms if n % 2 else reversed(arms):
            reports[arm].append(workers[arm].step())
        counts = [reports[arm][-1]["counts"] for arm in arms]
        assert all(c == counts[0] for c in counts), f"the arms {arms} did not do the same work: {counts}"
    for worker in workers.values():
        worker.close()
    return {
        arm: {
            "memory_before_mb": workers[arm].memory_before,
            "peak_mb": reports[arm][-1]["peak_mb"],
            "gpu_peak_gb": reports[arm][-1]["gpu_peak_gb"],
            "steps": steps_of_arm[1:],
        }
        for arm, steps_of_arm in reports.items()
    }


def summary(results: dict[str, Any], arms: list[str]) -> str:
    """One line an arm, then TRL's seconds over ours, part by part."""
    ours, other = ([s["seconds"] for s in results[arm]["steps"]] if arm in arms else [] for arm in ARMS)
    medians = {
        arm: {part: median_interval([s[part] for s in steps])[0] for part in PARTS}
        for arm, steps in zip(ARMS, (ours, other), strict=True)
        if steps
    }
    text = table(
        ["arm", *(f"{part}, s" for part in PARTS), "MB before", "MB peak"],
        [
            [arm, *(f"{medians[arm][part]:.2f}" for part in PARTS)]
            + [f"{results[arm][key]:,.0f}" for key in ("memory_before_mb", "peak_mb")]
            for arm in arms
        ],
    )
    if ours and other:
        ratio, low, high = median_interval([b["step"] / a["step"] for a, b in zip(ours, other, strict=True)])
        parts = ", ".join(f"{part} {medians['trl'][part] / medians['holdfast'][part]:.2f}" for part in PARTS[1:])
        text += f"\n\ntrl / holdfast: {ratio:.2f} ({low:.2f} to {high:.2f}); {parts}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    Task().add_options(parser)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--json", metavar="PATH")
    parser.add_argument("--worker", choices=ARMS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    task = Task.from_options(options)
    if options.worker:
        return work(options.worker, task)
    if "trl" in options.arms and importlib.util.find_spec("trl") is None:
        raise SystemExit(INSTALL)
    arms = [arm for arm in ARMS if arm in options.arms]
    results = measure(task, arms, options.rounds)
    counts = results[arms[0]]["steps"][0]["counts"]
    print(", ".join(f"{name} {value:,}" for name, value in counts.items()) + " per step\n")
    print(summary(results, arms))
    write_json(options.json, {"task": task.as_options(), **results})
    return None


if __name__ == "__main__":
    main()
