"""A penalty and a reward part of the user's own, in the local trainer: named by import path, and nothing else."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.base.errors import ConfigError, Terminated
from holdfast.recipe import Config
from holdfast.train.run import resume, train

from .one_update import a_batch, run
from .whole_runs import a_start, comparable

Recipe = Callable[..., Config]

REWARDS = """
import os, signal, sys, time

def brevity(trajectory, golden_answers):
    return 1.0 / (1 + len(trajectory.turns))

def broken(trajectory, golden_answers):
    return 1.0 if trajectory.example_id == "an example" else None

def leaves(trajectory, golden_answers):
    return 1.0 if trajectory.example_id == "an example" else sys.exit("no key for the judge")

def raises(trajectory, golden_answers):
    return 1.0 if trajectory.example_id == "an example" else {}["judge"]

def killed(trajectory, golden_answers):
    if trajectory.example_id != "an example":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    return 1.0
"""


@pytest.fixture(scope="module", autouse=True)
def code_of_ones_own(tmp_path_factory: pytest.TempPathFactory, lld_class: str) -> object:
    folder = tmp_path_factory.mktemp("code_of_ones_own")
    (folder / "user_code_for_train.py").write_text(lld_class + REWARDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


OWN = {"loss.penalty.name": "custom", "loss.penalty.path": "user_code_for_train:Lld"}


def test_it_is_what_the_same_formula_of_the_package_is(make_model: Callable[..., object], recipe: Recipe) -> None:
    """LLD, written again: every metric of an update and every weight is equal."""
    mine = recipe({**OWN, "loss.penalty.coef": 0.7, "loss.penalty.settings": {"least": 0.001}}).loss
    ours = recipe({"loss.penalty.gate": "token", "loss.penalty.coef": 0.7, "loss.penalty.threshold": 0.001}).loss
    plan = [[[0, 3, 2], [1]], [[4, 6], [5]]]
    results = [run(make_model(), a_batch(), plan, loss, lr=0.02) for loss in (mine, ours)]
    assert results[0][0] == results[1][0] and results[0][0]["penalty/active_fraction"] > 0
    assert all(torch.equal(results[0][1][name], results[1][1][name]) for name in results[1][1])


def test_a_run_with_both_resumes_and_is_the_same(recipe: Recipe, tmp_path: Path) -> None:
    config = recipe({**OWN, "reward.custom": {"user_code_for_train:brevity": 0.5}, "checkpoint.every": 1})
    train(config, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    (tmp_path / "again" / "results.json").unlink()
    shutil.rmtree(tmp_path / "again" / "checkpoints" / "step-000002")
    resume(tmp_path / "again")
    assert comparable(tmp_path / "whole") == comparable(tmp_path / "again")
    row = json.loads((tmp_path / "whole" / "trajectories.jsonl").read_text().splitlines()[0])
    parts = row["reward_parts"]
    assert parts["user_code_for_train:brevity"] == pytest.approx(1 / (1 + len(row["turns"])))
    rest = parts["em"] + parts["f1"] + 0.5 * parts["format"]
    assert row["reward"] == pytest.approx(rest + 0.5 * parts["user_code_for_train:brevity"])
    rows = comparable(tmp_path / "whole")
    assert all("loss/penalty" in row for row in rows if row["step"]) and "penalty/answer_weight" not in rows[-1]


def test_a_part_that_stops_returning_numbers_is_named(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="reward part 'user_code_for_train:broken' must return a finite number"):
        train(recipe({"reward.custom": {"user_code_for_train:broken": 1.0}}), tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("leaves", r"SystemExit: no key for the judge\), in .*user_code_for_train\.py, line \d+"),
        ("raises", "KeyError: "),
    ],
)
def test_a_part_that_raises_is_named(recipe: Recipe, tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"reward part 'user_code_for_train:{name}' fails on a rollout .*{says}"):
        train(recipe({"reward.custom": {f"user_code_for_train:{name}": 1.0}}), tmp_path / "run")


def test_a_kill_while_a_part_computes_stays_a_kill(recipe: Recipe, tmp_path: Path) -> None:
    def terminate(*_: object) -> None:
        raise Terminated(143)

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        with pytest.raises(Terminated):
            train(recipe({"reward.custom": {"user_code_for_train:killed": 1.0}}), tmp_path / "run")
    finally:
        signal.signal(signal.SIGTERM, before)


# ---- python files that a model brings are not run


EVIL = """
from pathlib import Path
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, Qwen2Model
Path({marker!r}).touch()
class EvilConfig(Qwen2Config):
    model_type = "evil"
class EvilForCausalLM(Qwen2ForCausalLM):
    config_class = EvilConfig
class EvilModel(Qwen2Model):
    config_class = EvilConfig
class EvilTokenizer(PreTrainedTokenizerFast):
    pass
"""
CODE = {
    "AutoConfig": "evil.EvilConfig",
    "AutoModel": "evil.EvilModel",
    "AutoModelForCausalLM": "evil.EvilForCausalLM",
}
LOAD = """
import sys, torch
from pathlib import Path
from holdfast.recipe import Config, Model
from holdfast.base.errors import HoldfastError
from holdfast.evaluate.model import _tokenizer_for
from holdfast.retrieval.encoder import Encoder, spec_of
from holdfast.model.language_model import load_model, load_skeleton
from holdfast.evaluate.servers import Server

marker, model, tokenizer = sys.argv[1:]
attempts = {
    "weights": lambda: load_model(Model(path=model), model, torch.device("cpu")),
    "dry run": lambda: load_skeleton(Model(path=model)),
    "tokenizer": lambda: load_model(Model(path=tokenizer), tokenizer, torch.device("cpu")),
    "prompts": lambda: _tokenizer_for(Server(url="http://a/v1/completions", model="a"), tokenizer, str, Config()),
    "encoder": lambda: Encoder(spec_of(model), "cpu"),
    "trusted": lambda: load_model(Model(path=model, trust_remote_code=True), model, torch.device("cpu")),
}
for name, attempt in attempts.items():
    try:
        attempt()
        said = "loaded"
    except HoldfastError as error:
        said = str(error).splitlines()[0]
    print(f"{name}: ran={Path(marker).exists()} {said}")
"""


def with_code(home: Path, folder: Path, marker: Path, file: str, changes: dict[str, Any]) -> Path:
    shutil.copytree(home / "raw", folder)
    (folder / "evil.py").write_text(EVIL.format(marker=str(marker)))
    values = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(values | changes))
    return folder


def test_code_of_a_model_is_not_run_whatever_is_typed(home: Path, tmp_path: Path) -> None:
    marker = tmp_path / "it ran"
    model = with_code(home, tmp_path / "model", marker, "config.json", {"model_type": "evil", "auto_map": CODE})
    tokenizer_code = {"tokenizer_class": "EvilTokenizer", "auto_map": {"AutoTokenizer": [None, "evil.EvilTokenizer"]}}
    tokenizer = with_code(home, tmp_path / "tokenizer", marker, "tokenizer_config.json", tokenizer_code)
    shutil.copy(model / "config.json", tokenizer)  # of a model that transformers knows it would load its own tokenizer
    keyboard, terminal = pty.openpty()
    os.write(keyboard, b"y\n" * 20)
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(marker), str(model), str(tokenizer)],
        stdin=terminal,
        capture_output=True,
        text=True,
        env=os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules")},
        timeout=600,
    )
    os.close(terminal)
    os.close(keyboard)
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": ran=" in line)
    assert list(said) == ["weights", "dry run", "tokenizer", "prompts", "encoder", "trusted"], done.stdout + done.stderr
    assert said.pop("trusted") == "ran=True loaded", "the code must be able to run"
    assert all(text.startswith("ran=False") for text in said.values()), said
    assert said["weights"].endswith("If you trust it, set model.trust_remote_code = true")
    assert "[y/N]" not in done.stdout + done.stderr


def test_code_of_a_model_that_transformers_knows_is_left_alone_and_told_of(
    own: Callable[..., Config], home: Path, tmp_path: Path, told: Any
) -> None:
    marker = tmp_path / "it ran"
    folder = with_code(home, tmp_path / "model", marker, "config.json", {"auto_map": CODE})
    a_start(own(folder), told)
    assert any("has its own Python code, which was not run" in note for note in told.notes)
    assert not marker.exists()
    told.notes.clear()
    a_start(own("raw"), told)
    assert not any("Python code" in note for note in told.notes)
