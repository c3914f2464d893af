"""Run a recipe's arms over several seeds and print what docs/results.md shows: every claim beside its control.

    python -m holdfast_research.pages.seeds quickstart
    python -m holdfast_research.pages.seeds collapse --seeds 11 12 13

A finished run is read, not repeated, so a stopped experiment continues where it was. Runs go one per process, `--jobs`
at a time with `--threads` each.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from holdfast_research.series import read_run, summarise, table

# One strength for all penalties, over the tokens they protect: at the published ones, made for thousands of tokens a
# rollout and steps a thousand times smaller, they do less (the last two arms).
STRENGTH = ["--loss.penalty.coef", "0.5", "--loss.penalty.normalizer", "preserved"]
LLDS = ["--loss.penalty.name", "llds", *STRENGTH]
ARMS: dict[str, dict[str, list[str]]] = {
    "quickstart": {
        "LLDS action gate": [],
        "GRPO (control)": ["--loss.penalty.name", "none"],
    },
    "collapse": {
        "GRPO, truncated sampler": [],
        "GRPO, untruncated sampler": ["--sampling.top_p", "1", "--sampling.top_k", "0"],
        "GRPO, sane step (lr / 5)": ["--train.lr", "1.2e-4"],
        "LLDS action gate, A >= 0": [*LLDS, "--loss.penalty.gate", "action"],
        "LLDS action gate, correct": [*LLDS, "--loss.penalty.gate", "action", "--loss.penalty.preserve", "correct"],
        "LLDS response gate, A >= 0": [*LLDS, "--loss.penalty.gate", "response"],
        "LLDS response gate, correct": [*LLDS, "--loss.penalty.gate", "response", "--loss.penalty.preserve", "correct"],
        "SAPO, 0.5": ["--loss.penalty.name", "sapo", *STRENGTH],
        "GSPO (clip 3e-4, 4e-4)": [
            *("--loss.ratio", "sequence", "--loss.clip_low", "3e-4", "--loss.clip_high", "4e-4"),
            *("--loss.reduction", "seq-mean-token-mean"),
        ],
        "LLDS action gate, 0.5 over all tokens": ["--loss.penalty.name", "llds", "--loss.penalty.coef", "0.5"],
        "LLDS action gate, published 0.2": ["--loss.penalty.name", "llds"],
        "SAPO, published 0.1": ["--loss.penalty.name", "sapo"],
    },
}


def run_one(recipe: str, arm: str, overrides: list[str], seed: int, out: Path, threads: int) -> Path:
    """Train one arm with one seed in a process of its own; the run folder."""
    slug = "".join(c if c.isalnum() else "-" for c in arm.lower()).strip("-")
    folder = out / f"{recipe}-{slug}-s{seed}"
    if not (folder / "results.json").is_file():
        command = [sys.executable, "-m", "holdfast", "train", recipe, *overrides]
        command += ["--run.dir", str(out), "--run.name", folder.name, "--run.seed", str(seed), "--overwrite"]
        command += ["--run.threads", str(threads)]
        with (out / f"{folder.name}.log").open("w") as log:
            done = subprocess.run(
                command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": str(threads)}
            )
        print(f"{arm}, seed {seed}: {'done' if done.returncode == 0 else f'FAILED, see {log.name}'}", flush=True)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", choices=ARMS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--arms", nargs="+", help="only the arms whose name contains one of these texts")
    parser.add_argument("--out", type=Path, default=Path("runs/seeds"), help="folder of the run folders")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of each run")
    parser.add_argument("--extra", nargs="*", default=[], help="overrides for every arm, such as train.steps=20")
    own = parser.parse_args()
    own.out.mkdir(parents=True, exist_ok=True)
    arms = {
        name: [*overrides, *(f"--{setting}" for setting in own.extra)]
        for name, overrides in ARMS[own.recipe].items()
        if not own.arms or any(text.lower() in name.lower() for text in own.arms)
    }
    with ThreadPoolExecutor(own.jobs) as pool:
        folders = {
            (arm, seed): pool.submit(run_one, own.recipe, arm, overrides, seed, own.out, own.threads)
            for seed in own.seeds
            for arm, overrides in arms.items()
        }
    runs: dict[str, dict[int, dict[str, float]]] = {arm: {} for arm in arms}
    for (arm, seed), future in folders.items():
        if (future.result() / "results.json").is_file():
            runs[arm][seed] = summarise(read_run(future.result(), arm, seed))
    text = table({arm: seeds for arm, seeds in runs.items() if seeds})
    (own.out / f"{own.recipe}.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
