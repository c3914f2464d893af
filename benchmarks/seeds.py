"""Run a recipe's arms over several seeds and print what docs/results.md shows: every claim beside its control.

    python benchmarks/seeds.py quickstart
    python benchmarks/seeds.py collapse --seeds 11 12 13

A finished run is read, not repeated, so a stopped experiment continues where it was. Runs go one per process, `--jobs`
at a time with `--threads` each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean

# One strength for all penalties, over the tokens they protect: at the published ones, made for thousands of tokens a
# rollout and steps a thousand times smaller, they do less (the last two arms).
STRENGTH = ["--loss.penalty.coef", "0.5", "--loss.penalty.normalizer", "paper"]
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
        "LLDS action gate, published 0.2": ["--loss.penalty.name", "llds"],
        "SAPO, published 0.1": ["--loss.penalty.name", "sapo"],
    },
}
WINDOW = 5


def run_one(recipe: str, arm: str, overrides: list[str], seed: int, out: Path, threads: int) -> Path:
    """Train one arm with one seed in a process of its own; the run folder."""
    slug = "".join(c if c.isalnum() else "-" for c in arm.lower()).strip("-")
    folder = out / f"{recipe}-{slug}-s{seed}"
    if not (folder / "results.json").is_file():
        command = [sys.executable, "-m", "holdfast", "train", f"recipes/{recipe}.toml", *overrides]
        command += ["--run.dir", str(out), "--run.name", folder.name, "--run.seed", str(seed), "--overwrite"]
        command += ["--run.threads", str(threads)]
        with (out / f"{folder.name}.log").open("w") as log:
            done = subprocess.run(
                command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": str(threads)}
            )
        print(f"{arm}, seed {seed}: {'done' if done.returncode == 0 else f'FAILED, see {log.name}'}", flush=True)
    return folder


def summarise(folder: Path) -> dict[str, float]:
    """The numbers of one run: reward over 5-step means, and the final evaluation."""
    series = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in series if "reward/mean" in row]
    rewards = [row["reward/mean"] for row in rows]
    means = [mean(rewards[i : i + WINDOW]) for i in range(len(rewards) - WINDOW + 1)]
    peak = max(means)
    at = means.index(peak)
    moved = [row["displacement/correct"] for row in rows if "displacement/correct" in row]
    results = json.loads((folder / "results.json").read_text())
    return {
        "first": means[0],
        "peak": peak,
        "peak at": at + WINDOW,
        "held": sum(m >= peak - 0.1 for m in means),
        "lowest after": min(means[at:]),
        "last": means[-1],
        "entropy first": rows[0]["entropy/mean"],
        "entropy last": mean(row["entropy/mean"] for row in rows[-WINDOW:]),
        "displacement": mean(moved) if moved else float("nan"),
        "em before": results["before"]["em"],
        "em after": results["after"]["em"],
        "greedy before": results["before"]["em_greedy"],
        "greedy after": results["after"]["em_greedy"],
        "seconds": results["seconds"],
    }


def table(recipe: str, runs: dict[str, dict[int, dict[str, float]]]) -> str:
    """Markdown: one row an arm and seed."""
    lines = [
        "| arm | seed | reward first → peak (step) → last (lowest after peak) | steps within .1 of peak | entropy | "
        "displacement | test EM sampled | test EM greedy |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for arm, seeds in runs.items():
        for seed, r in seeds.items():
            lines.append(
                f"| {arm} | {seed} | {r['first']:.2f} → {r['peak']:.2f} ({r['peak at']:.0f}) → {r['last']:.2f} "
                f"({r['lowest after']:.2f}) | {r['held']:.0f} | {r['entropy first']:.2f} → {r['entropy last']:.2f} | "
                f"{r['displacement']:+.4f} | {r['em before']:.3f} → {r['em after']:.3f} | "
                f"{r['greedy before']:.3f} → {r['greedy after']:.3f} |"
            )
    lines.append("")
    for arm, seeds in runs.items():
        gains = [r["em after"] - r["em before"] for r in seeds.values()]
        greedy = [r["greedy after"] - r["greedy before"] for r in seeds.values()]
        collapsed = sum(is_collapse(r) for r in seeds.values())
        lines.append(
            f"* {arm}: sampled EM {mean(gains):+.3f} (seeds {min(gains):+.3f} to {max(gains):+.3f}), greedy "
            f"{mean(greedy):+.3f} ({min(greedy):+.3f} to {max(greedy):+.3f}); collapsed on {collapsed} of "
            f"{len(seeds)} seeds"
        )
    return "\n".join(lines)


def is_collapse(r: dict[str, float]) -> bool:
    """Rose by .12, stayed 20 steps within .1 of the peak, then lost 40 % of it. Whether it came back, `last` tells."""
    return r["peak"] - r["first"] >= 0.12 and r["held"] >= 20 and r["lowest after"] <= 0.6 * r["peak"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", choices=ARMS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--arms", nargs="+", help="only the arms whose name contains one of these texts")
    parser.add_argument("--out", type=Path, default=Path("runs/seeds"), help="folder of the run folders")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of each run")
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
            runs[arm][seed] = summarise(future.result())
    text = table(own.recipe, {arm: seeds for arm, seeds in runs.items() if seeds})
    (own.out / f"{own.recipe}.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
