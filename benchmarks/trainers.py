"""The same recipe on the local trainer and in TRL, with and without a cure: the curves, over several seeds.

    pip install -c constraints.txt -e '.[train,trl]'
    python benchmarks/trainers.py
    python benchmarks/trainers.py --recipe quickstart --steps 20 --seeds 1
    python benchmarks/trainers.py --recipe flaky --trainers local trl-vllm --coef 2 --seeds 1 -- --world.model.heads 2

Every run starts from the same warm-started model. The local arms are `holdfast train`; TRL's are the script that
`holdfast launch trl` writes from the same recipe. `trl-vllm` is that script with `use_vllm=True`, on a CPU. It
needs the environment of `make contracts-vllm`, and heads of 32 dimensions. `mask` is plain GRPO with log-probs over the
tokens that the sampler could draw. A finished run is read, not repeated, so a stopped experiment continues
where it was. A run that takes longer than `--minutes` is stopped and read up to there. With `--evaluate` the start and
the model of each run answer the dev questions, sampled. Settings after `--` go to every run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

TRAINERS = ("local", "trl", "trl-vllm")
ARMS = {
    "GRPO": ["--loss.penalty.name", "none"],
    "LLDS": ["--loss.penalty.name", "llds"],
    "mask": ["--loss.penalty.name", "none", "--sampling.mask_logprobs", "true"],
}
ON_CPU = Path(__file__).parents[1] / "tests" / "engines" / "vllm" / "on_cpu.py"


@dataclass(frozen=True, slots=True)
class Run:
    """One trainer, one arm, one seed."""

    trainer: str
    arm: str
    seed: int
    folder: Path

    @property
    def done(self) -> bool:
        return (self.folder / "done").is_file()


def holdfast(*arguments: str, log: Path, seconds: float | None = None) -> None:
    """A command of holdfast in a process of its own, output to `log`."""
    run([sys.executable, "-m", "holdfast", *arguments], log, seconds=seconds)


def run(command: list[str], log: Path, where: Path | None = None, seconds: float | None = None) -> None:
    """Run it on one thread and without network; end it after `seconds`. Stop with its log's name when it fails."""
    offline = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRL_EXPERIMENTAL_SILENCE"), "1")
    environment = os.environ | offline | {"OMP_NUM_THREADS": "1"}
    with log.open("a") as out:
        try:
            done = subprocess.run(
                command, stdout=out, stderr=subprocess.STDOUT, env=environment, cwd=where, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            return
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:4])} … failed, see {log}")


def warm_start(options: argparse.Namespace, out: Path) -> Path:
    """The folder of the model that all runs start from."""
    folder = out / "start"
    if not (folder / "done").is_file():
        where = ["--run.dir", str(out), "--run.name", "start", "--overwrite", "--run.threads", "1"]
        holdfast("warm-start", options.recipe, *options.settings, *where, log=out / "start.log")
        (folder / "done").touch()
    return next(path.parent for path in sorted(folder.rglob("config.json")))


def train(planned: Run, options: argparse.Namespace, model: Path) -> None:
    """One run; nothing when it is there already."""
    if planned.done:
        return
    seconds = options.minutes and 60 * options.minutes
    settings = [*options.settings, *ARMS[planned.arm], "--model.path", str(model.resolve())]
    settings += ["--loss.penalty.coef", str(options.coef)] if planned.arm == "LLDS" else []
    settings += ["--warm_start.steps", "0", "--world.scripts.plain_steps", "0", "--run.device", "cpu"]
    settings += ["--run.seed", str(planned.seed), "--train.steps", str(options.steps), "--run.threads", "1"]
    settings += ["--checkpoint.every", str(min(options.steps, 2) if seconds else options.steps)]
    log = planned.folder.with_suffix(".log")
    if planned.trainer == "local":
        where = ["--run.dir", str(planned.folder.parent), "--run.name", planned.folder.name, "--overwrite"]
        holdfast("train", options.recipe, *settings, *where, log=log, seconds=seconds)
    else:
        where = ["--run.dir", ".", "--run.name", "run", "--out", str(planned.folder), "--overwrite"]
        holdfast("launch", "trl", options.recipe, *settings, *where, log=log)
        script = planned.folder / "train.py"
        if planned.trainer == "trl-vllm":
            script.write_text(script.read_text().replace("use_vllm=False,", "use_vllm=True,"))
        first = [str(ON_CPU)] if planned.trainer == "trl-vllm" else []
        run([sys.executable, *first, "train.py"], log, planned.folder, seconds)
    (planned.folder / "done").touch()


def evaluate(model: Path, recipe: Path | str, where: Path, settings: list[str], out: Path) -> dict[str, float]:
    """Exact match, F1 and searches of a model on the dev questions, sampled. What was asked before is read."""
    words = ["--recipe", str(recipe), "--data", "dev", "--samples", "1", "--out", str(out), *settings]
    run([sys.executable, "-m", "holdfast", "eval", "run", str(model), *words], out.with_suffix(".log"), where)
    (scores,) = json.loads((out / "results.json").read_text())["sets"].values()
    return {name: scores[name] for name in ("questions", "em", "f1", "searches")}


def trained(planned: Run) -> tuple[Path, Path, Path]:
    """The model of a finished run, the recipe that it was trained with, and the folder that its paths begin in."""
    if planned.trainer == "local":
        return planned.folder, planned.folder / "config.toml", Path.cwd()
    saved = planned.folder / "run"
    checkpoints = sorted(saved.glob("checkpoint-*"), key=lambda folder: int(folder.name.rpartition("-")[2]))
    model = saved if (saved / "config.json").is_file() else checkpoints[-1]
    return model, planned.folder / "recipe.toml", planned.folder


def series(planned: Run) -> list[dict[str, float]]:
    """Reward and entropy of each rollout batch."""
    if planned.trainer == "local":
        lines = [json.loads(line) for line in (planned.folder / "metrics.jsonl").read_text().splitlines()]
        names = {"reward": "reward/mean", "entropy": "entropy/mean"}
    else:
        states = (planned.folder / "run").glob("checkpoint-*/trainer_state.json")
        newest = max(states, key=lambda p: int(p.parent.name.rpartition("-")[2]))
        lines = json.loads(newest.read_text())["log_history"]
        names = {"reward": "reward", "entropy": "entropy"}
    rows = [line for line in lines if names["reward"] in line]
    return [{key: row[name] for key, name in names.items() if name in row} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="collapse", help="a shipped recipe, or a file")
    parser.add_argument("--steps", type=int, default=60, help="rollout batches")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["GRPO", "LLDS"])
    parser.add_argument("--trainers", nargs="+", choices=TRAINERS, default=["local", "trl"])
    parser.add_argument("--model", type=Path, help="a warm-started model; else one is made")
    parser.add_argument("--coef", type=float, default=0.5, help="of LLDS")
    parser.add_argument("--minutes", type=float, help="end a run after this long")
    parser.add_argument("--out", type=Path, default=Path("runs/trainers"), help="folder of the run folders")
    parser.add_argument("--evaluate", action="store_true", help="exact match on the dev questions, before and after")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("settings", nargs="*", help="settings of every run, after --")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    runs = [
        Run(trainer, arm, seed, out / f"{trainer}-{arm.lower()}-s{seed}")
        for seed in options.seeds
        for arm in options.arms
        for trainer in options.trainers
    ]
    model = options.model or warm_start(options, out)
    with ThreadPoolExecutor(options.jobs) as pool:
        for finished, _ in zip(runs, pool.map(lambda r: train(r, options, model), runs), strict=True):
            print(f"{finished.trainer}, {finished.arm}, seed {finished.seed}: done", flush=True)
    curves = {r.folder.name: series(r) for r in runs}
    (out / "trainers.json").write_text(json.dumps(curves, indent=1) + "\n")
    print(f"The curves: holdfast report {' '.join(str(r.folder) for r in runs)}")
    if options.evaluate:
        scores = {"start": evaluate(model, options.recipe, Path.cwd(), options.settings, out / "eval-start")}
        for r in runs:
            scores[r.folder.name] = evaluate(*trained(r), [], out / f"eval-{r.folder.name}")
        (out / "scores.json").write_text(json.dumps(scores, indent=1) + "\n")
        print("\n".join(f"{name}: EM {row['em']:.3f}, {row['searches']:.2f} searches" for name, row in scores.items()))


if __name__ == "__main__":
    main()
