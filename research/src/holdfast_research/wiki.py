"""The folder and the recipe of the study on Wikipedia: questions of seven sets, and passages that a small index holds.

    python -m holdfast_research.wiki FOLDER --out data/wiki
    holdfast data demonstrate data/wiki/wiki.toml --out data/wiki/demonstrations.jsonl
    holdfast train data/wiki/wiki.toml
    holdfast table make data/wiki/wiki.toml

`FOLDER` has `corpus.jsonl.gz` and a file `SET.SPLIT.jsonl` for each set and split. Training and dev questions are those
of NQ and HotpotQA, test questions are of all sets, as in the papers. The data are others' and stay out of this
repository.
"""

from __future__ import annotations

import gzip
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.base.errors import DataError
from holdfast.base.jsonl import write_jsonl

TRAINED_ON = ("nq", "hotpotqa")

RECIPE = """\
# A pretrained model of 135 million parameters learns to search Wikipedia, on one CPU core.

[run]
name = "wiki"

[data]
train = "train.jsonl"
dev = "dev.jsonl"
test = "test.jsonl"

[retrieval]
corpus = "corpus.jsonl"
index = "index"

[model]
path = "HuggingFaceTB/SmolLM2-135M-Instruct"
chat_template = "none"       # the prompt has the model's own, without its system message

[protocol]
prompt = "<|im_start|>user\\n{question}<|im_end|>\\n<|im_start|>assistant\\n"
max_turns = 3                # two searches and the answer
max_turn_tokens = 48
max_observation_tokens = 260
max_total_tokens = 700
topk = 2

[warm_start]
data = "demonstrations.jsonl"
steps = 60
batch_size = 8
lr = 3e-4

[reward]
em = 0.0
f1 = 1.0                     # as in the paper of SAPO: partly right answers give contrast too

[train]
steps = 20
questions = 8
group_size = 6
optimizer_steps_per_rollout = 4
minibatches = "in-order"
lr = 2e-5
micro_batch_tokens = 1600
displacement_every = 5
displacement_rows = 12

[eval]
every = 0
start = true

[checkpoint]
every = 10
keep = 1

[loss]
advantage = "dr_grpo"
kl_coef = 0.0

[loss.penalty]
name = "none"
"""


def prepare(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Passages and questions.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Output folder.")],
    test: Annotated[int, typer.Option("--test", min=1, metavar="N", help="Test questions of each set, drawn.")] = 60,
) -> None:
    """Write passages, questions and the recipe of the study on Wikipedia."""
    corpus = folder / "corpus.jsonl.gz"
    if not corpus.is_file():
        raise DataError(f"{folder} has no corpus.jsonl.gz; give the folder with the passages and the questions")
    out.mkdir(parents=True, exist_ok=True)
    with gzip.open(corpus) as packed, (out / "corpus.jsonl").open("wb") as plain:
        shutil.copyfileobj(packed, plain)
    for split in ("train", "dev", "test"):
        names = [path.name.removesuffix(f".{split}.jsonl") for path in sorted(folder.glob(f"*.{split}.jsonl"))]
        names = names if split == "test" else [name for name in names if name in TRAINED_ON]
        rows = [row for name in names for row in _drawn(_rows(folder, name, split), test if split == "test" else None)]
        count = write_jsonl(out / f"{split}.jsonl", rows)
        typer.echo(f"{out / split}.jsonl: {count:,} questions of {', '.join(names)}")
    (out / "wiki.toml").write_text(RECIPE, encoding="utf-8")
    typer.echo(f"{out / 'wiki.toml'}")


def _drawn(rows: Iterator[dict[str, Any]], most: int | None) -> list[dict[str, Any]]:
    """At most so many rows, in their order. The draw is the same every time."""
    kept = list(rows)
    if most is None or len(kept) <= most:
        return kept
    return [kept[i] for i in sorted(random.Random("wiki").sample(range(len(kept)), most))]


def _rows(folder: Path, name: str, split: str) -> Iterator[dict[str, Any]]:
    """The questions of a set, each with its name."""
    for line in (folder / f"{name}.{split}.jsonl").read_text(encoding="utf-8").splitlines():
        yield {**json.loads(line), "data_source": name}


if __name__ == "__main__":
    typer.run(prepare)
