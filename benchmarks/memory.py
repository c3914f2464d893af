"""The memory that `holdfast train --dry-run` announces, beside the peak of the run.

    python benchmarks/memory.py FOLDER    # FOLDER: what `holdfast model get smollm2` prints

Four steps of the warm start of the recipe `factbook`, whose passes are those of training, for the model of FOLDER and
for two others with random weights and its tokenizer. The peak is that of the process's resident memory. It takes some
five minutes on one core, and 6 GiB.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from measuring import table

SHAPES = {
    "4 layers of 256": {
        "num_hidden_layers": 4,
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_attention_heads": 4,
    },
    "6 layers of 1,024": {
        "num_hidden_layers": 6,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_attention_heads": 16,
    },
}
HOLDFAST = (sys.executable, "-m", "holdfast")
SETTINGS = ("--warm_start.steps=4", "--run.device=cpu", "--run.threads=1")


def main(folder: str) -> None:
    """Print a row for each model."""
    with tempfile.TemporaryDirectory() as place:
        models = {"SmolLM2-135M": Path(folder)} | {name: make(folder, Path(place) / name) for name in SHAPES}
        measured = []
        for name, model in models.items():
            recipe = ("factbook", f"--model.path={model}", *SETTINGS)
            announced, peak = announce(recipe), peak_of(recipe, place)
            measured.append((name, f"{announced:.1f} GiB", f"{peak:.1f} GiB", f"{announced / peak - 1:+.0%}"))
    print(table(("model", "announced", "peak", "off by"), measured))


def make(folder: str, out: Path) -> Path:
    """A folder with a model of that shape and random weights, and the tokenizer of `folder`."""
    shape = SHAPES[out.name]
    config = AutoConfig.from_pretrained(folder, **shape, num_key_value_heads=shape["num_attention_heads"], head_dim=64)
    AutoModelForCausalLM.from_config(config).save_pretrained(out)
    AutoTokenizer.from_pretrained(folder).save_pretrained(out)
    return out


def announce(recipe: tuple[str, ...]) -> float:
    """GiB of the dry run."""
    said = subprocess.check_output([*HOLDFAST, "train", *recipe, "--dry-run", "--overwrite"], text=True)
    found = re.search(r"about ([\d.]+) (GiB|MiB) of memory", said)
    assert found, said
    return float(found[1]) / (1 if found[2] == "GiB" else 1024)


def peak_of(recipe: tuple[str, ...], place: str) -> float:
    """GiB of resident memory that the run had at most."""
    process = subprocess.Popen([*HOLDFAST, "warm-start", *recipe], cwd=place, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert not status, "the run has failed; its error is above"
    return usage.ru_maxrss / 2**20


if __name__ == "__main__":
    main(sys.argv[1])
