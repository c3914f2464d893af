"""Python files that a model brings are not run, not even where somebody at a terminal types `y`."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.model.language_model import load_model
from holdfast.recipe import Config, Model
from holdfast.train.start_cache import start_folder

from .whole_runs import a_start

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
        timeout=120,
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
    assert any("comes with its own Python code, which was not run" in note for note in told.notes)
    assert not marker.exists()
    told.notes.clear()
    a_start(own("raw"), told)
    assert not any("Python code" in note for note in told.notes)


def test_a_warm_start_of_trusted_code_is_another_one(own: Callable[..., Config]) -> None:
    assert start_folder(own("raw")) != start_folder(own("raw", {"model.trust_remote_code": True}))


@pytest.mark.parametrize("trusted", [False, True])
def test_the_setting_reaches_what_loads(home: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool) -> None:
    from transformers import AutoModelForCausalLM

    seen: list[Any] = []
    load = AutoModelForCausalLM.from_pretrained

    def remember(*arguments: Any, **options: Any) -> Any:
        seen.append(options["trust_remote_code"])
        return load(*arguments, **options)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", remember)
    load_model(Model(path="x", trust_remote_code=trusted), home / "raw", torch.device("cpu"))
    assert seen == [trusted]
