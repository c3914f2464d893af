"""Code that a file names runs after a line that says so; that of a run folder only with --trust-code."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from holdfast.agent.calling import tools_named
from holdfast.agent.rewards import _imported
from holdfast.cli.main import app
from holdfast.recipe import dump, load

from .conftest import FakeTrainer, then_raise

Run = Callable[..., Any]
RAN = "its code ran"
MODULE = f"""
import sys
from pathlib import Path
Path({RAN!r}).touch()
print({RAN!r}, file=sys.stderr)

def brevity(trajectory, golden_answers):
    return 1.0

def double(number: float) -> float:
    '''Double a number.

    Args:
        number: Any number.
    '''
    return 2 * number
"""
SETTINGS = {
    "reward.custom": ('--reward.custom="code_of_a_file:brevity" = 0.2',),
    "protocol.tools": ("--protocol.preset=tools", '--protocol.tools=["search", "code_of_a_file:double"]'),
    "loss.penalty.path": ("--loss.penalty.name=custom", "--loss.penalty.path=code_of_a_file:Hinge"),
    "model.trust_remote_code": ("--model.trust_remote_code=true",),
}
OTHER = ("--data.train=q.jsonl", "--retrieval.corpus=c.jsonl", "--model.path=own/model", "--warm_start.steps=0")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lld_class: str) -> Iterator[None]:
    """The current folder has the code beside questions and passages; nothing of it was imported before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    Path("code_of_a_file.py").write_text(MODULE + lld_class.replace("class Lld", "class Hinge"))
    Path("q.jsonl").write_text("".join(json.dumps({"question": f"Who is {i}?", "answer": str(i)}) + "\n" for i in "ab"))
    Path("c.jsonl").write_text('{"id": "1", "contents": "A\\nA town."}\n')
    yield
    sys.modules.pop("code_of_a_file", None)
    tools_named.cache_clear()
    _imported.cache_clear()


def a_file(setting: str, path: str) -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(dump(load(None, [*OTHER, *SETTINGS[setting]])))
    return path


# ---- a recipe that the user named

BY_RECIPE: dict[str, tuple[str, ...]] = {
    "train": ("train", "my.toml"),
    "dry run": ("train", "my.toml", "--dry-run"),
    "warm-start": ("warm-start", "my.toml"),
    "launch trl": ("launch", "trl", "my.toml", "--print"),
    "launch verl": ("launch", "verl", "my.toml", "--print"),
    "demonstrate": ("data", "demonstrate", "my.toml", "--out", "d.jsonl"),
    "ask": ("ask", "own/model", "Who?", "--recipe", "my.toml"),
    "eval run": ("eval", "run", "own/model", "--recipe", "my.toml"),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("command", BY_RECIPE)
def test_a_recipe_says_which_code_it_runs_before_it_does(command: str, setting: str) -> None:
    a_file(setting, "my.toml")
    done = CliRunner().invoke(app, list(BY_RECIPE[command]))  # most end with an error: there is no such model
    where = f"{Path('code_of_a_file.py').absolute()} ({setting})"
    if setting == "model.trust_remote_code":
        where = f"Python files of the model own/model, if it has any ({setting})"
    said, _, rest = done.stderr.partition(f"this recipe runs code: {where}\n")
    assert rest or done.stderr.endswith(f"{where}\n")
    assert RAN not in said
    assert Path(RAN).exists() == (RAN in rest)


@pytest.mark.parametrize("setting", [setting for setting in SETTINGS if setting != "model.trust_remote_code"])
def test_a_dry_run_does_run_it(setting: str) -> None:
    done = CliRunner().invoke(app, ["train", a_file(setting, "my.toml"), "--dry-run"])
    assert done.stderr.index("this recipe runs code") < done.stderr.index(RAN)


@pytest.mark.parametrize("setting", [None, "holdfast's own"])
def test_a_recipe_without_code_of_others_says_nothing(setting: str | None, holdfast: Run) -> None:
    own = [] if setting is None else ['--reward.custom="holdfast.agent.rewards:unicode_em" = 1.0']
    assert holdfast("train", "--dry-run", *own).stderr == ""


# ---- a run folder, which may be somebody else's

REFUSED: dict[str, tuple[str, ...]] = {
    "resume": ("resume", "runs/theirs"),
    "ask": ("ask", "runs/theirs", "Who?"),
    "eval run": ("eval", "run", "runs/theirs"),
    "a checkpoint": ("eval", "run", "runs/theirs/checkpoints/step-000002/model"),
}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, trainer: FakeTrainer) -> list[str]:
    """What a command came to that runs code of the recipe; it ends there."""
    reached: list[str] = []

    def end(*_: Any, **__: Any) -> Any:
        reached.append("it")
        raise typer.Exit

    for place in ("evaluate.model.open_agent", "evaluate.model.open_model"):
        monkeypatch.setattr(f"holdfast.{place}", end)
    monkeypatch.setattr("holdfast.cli.evaluate.load_questions", end)
    trainer.script = end
    return reached


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("command", REFUSED)
def test_a_run_folder_runs_code_only_if_allowed(
    command: str, setting: str, holdfast: Run, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a_file(setting, "runs/theirs/config.toml")
    Path("runs/theirs/checkpoints/step-000002/model").mkdir(parents=True)
    words = REFUSED[command]
    monkeypatch.setattr(sys, "argv", ["holdfast", *words])
    said = holdfast(*words, code=2).stderr
    assert said.startswith("error: ") and "runs/theirs/config.toml names code: " in said
    runs = "Python files of the model" if setting == "model.trust_remote_code" else "code_of_a_file:"
    assert f"{setting} runs {runs}" in said
    assert said.endswith(f"hint: {shlex.join(['holdfast', *words, '--trust-code'])}\n")
    assert opened == [] and not Path(RAN).exists()
    allowed = holdfast(*words, "--trust-code").stderr
    assert f"({setting})\n" in allowed and opened == ["it"]


def test_what_the_user_names_needs_no_permission(holdfast: Run, opened: list[str]) -> None:
    Path("runs/mine").mkdir(parents=True)
    Path("runs/mine/config.toml").write_text("[train]\nsteps = 3\n")
    said = holdfast("ask", "runs/mine", "Who?", "--model.trust_remote_code=true").stderr
    assert "(model.trust_remote_code)" in said and opened == ["it"]


@pytest.mark.parametrize("server", ["mcp:touch 'its code ran'", "mcp:http://127.0.0.1:9/mcp?key=$HOME"])
def test_a_server_of_tools_that_a_run_folder_names_is_code_too(server: str, holdfast: Run, opened: list[str]) -> None:
    Path("runs/theirs").mkdir(parents=True)
    own = ("--protocol.preset=tools", f'--protocol.tools=["search", "{server}"]')
    Path("runs/theirs/config.toml").write_text(dump(load(None, [*OTHER, *own])))
    said = holdfast("ask", "runs/theirs", "Who?", code=2).stderr
    assert f"protocol.tools runs {server}" in said and opened == [] and not Path(RAN).exists()
    allowed = holdfast("ask", "runs/theirs", "Who?", "--trust-code").stderr
    assert f"this recipe runs code: {server} (protocol.tools)" in allowed and opened == ["it"]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("command", ["diagnose", "report", "runs", "recipe show"])
def test_to_read_a_run_folder_runs_no_code(command: str, setting: str, holdfast: Run) -> None:
    a_file(setting, "runs/theirs/config.toml")
    rows = [{"step": step, "reward/mean": 0.5} for step in range(1, 4)]
    Path("runs/theirs/metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "runs code" not in holdfast(*command.split(), "runs/theirs").stderr
    assert not Path(RAN).exists() and "code_of_a_file" not in sys.modules


def test_commands_to_copy_carry_the_permission(holdfast: Run, trainer: FakeTrainer) -> None:
    own = ('--reward.custom="code_of_a_file:brevity" = 0.2', "--run.name=mine")
    done = holdfast("train", *own)
    assert done.stdout.endswith("ask runs/mine 'Who is the mentor of Mira Tolvan?' --trust-code\n")

    trainer.script = then_raise(KeyboardInterrupt(), lambda run_dir, _: (run_dir / "metrics.jsonl").touch())
    assert "\n  holdfast resume runs/mine --trust-code\n" in holdfast("train", *own, "--overwrite", code=130).stderr
