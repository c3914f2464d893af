"""Run a recipe's arms over several seeds and print what docs/reference/results.md shows: every claim with its control.

    python -m holdfast_research.pages.seeds quickstart
    python -m holdfast_research.pages.seeds collapse --seeds 11 12 13

A finished run is read, not repeated, so a stopped experiment continues where it was.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from holdfast.recipe import Config
from holdfast.recipe.loading import find_recipe
from holdfast.recipe.overrides import parse_overrides
from holdfast_research.jobs import TrainingJob, run_jobs
from holdfast_research.methods import GSPO, NO_PENALTY, SAPO, UNTRUNCATED, Settings, llds
from holdfast_research.series import RunSummary, read_run, summarise, table

# One coefficient for all penalties, over the tokens they preserve: at the published ones, made for thousands of tokens
# per rollout and steps a thousand times smaller, they do less (the last two arms).
_HALF: Settings = {"loss.penalty.coef": 0.5, "loss.penalty.normalizer": "preserved"}
_CORRECT: Settings = {"loss.penalty.preserve": "correct"}
_PLAIN_LLDS: Settings = {"loss.penalty.name": "llds"}
ARMS: dict[str, dict[str, Settings]] = {
    "quickstart": {"LLDS action gate": {}, "GRPO (control)": NO_PENALTY},
    "collapse": {
        "GRPO, truncated sampler": {},
        "GRPO, untruncated sampler": UNTRUNCATED,
        "GRPO, sane step (lr / 5)": {"train.lr": 1.2e-4},
        "LLDS action gate, A >= 0": {**llds("action"), **_HALF},
        "LLDS action gate, correct": {**llds("action"), **_HALF, **_CORRECT},
        "LLDS response gate, A >= 0": {**llds("response"), **_HALF},
        "LLDS response gate, correct": {**llds("response"), **_HALF, **_CORRECT},
        "SAPO, 0.5": {**SAPO, **_HALF},
        "GSPO (clip 3e-4, 4e-4)": {**GSPO, "loss.clip_low": 3e-4, "loss.clip_high": 4e-4},
        "LLDS action gate, 0.5 over all tokens": {**_PLAIN_LLDS, "loss.penalty.coef": 0.5},
        "LLDS action gate, published 0.2": _PLAIN_LLDS,
        "SAPO, published 0.1": {**SAPO, "loss.penalty.normalizer": "policy"},
    },
}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", choices=ARMS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--arms", nargs="+", help="only the arms whose name contains one of these texts")
    parser.add_argument("--out", type=Path, default=Path("runs/seeds"), help="folder of the run folders")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one CPU thread each")
    parser.add_argument("--extra", nargs="*", default=[], help="settings for every arm, such as train.steps=20")
    options = parser.parse_args()
    shared = parse_overrides([f"--{setting}" for setting in options.extra], Config)
    jobs = [
        TrainingJob(
            folder=options.out / f"{options.recipe}-{_folder_name(arm)}-s{seed}",
            arm=arm,
            seed=seed,
            recipe=find_recipe(options.recipe),
            settings={**settings, **shared},
        )
        for seed in options.seeds
        for arm, settings in ARMS[options.recipe].items()
        if not options.arms or any(text.lower() in arm.lower() for text in options.arms)
    ]
    for failure in run_jobs(jobs, options.jobs, options.out / "logs", lambda progress: None):
        print(f"{failure.job.name}: FAILED: {failure.reason} (see {failure.log})", flush=True)
    runs: dict[str, dict[int, RunSummary]] = {}
    for job in jobs:
        if job.done:
            runs.setdefault(job.arm, {})[job.seed] = summarise(read_run(job.folder, job.arm, job.seed))
    text = table(runs)
    (options.out / f"{options.recipe}.md").write_text(text + "\n")
    print(text)


def _folder_name(arm: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in arm.lower()).strip("-")


if __name__ == "__main__":
    main()
