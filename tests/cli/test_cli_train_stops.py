"""`holdfast resume` and `warm-start`, and what an interrupt, a kill or an error prints and leaves."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import CheckpointError, ConfigError, GuardStop, HoldfastError, RolloutError
from holdfast.train.listener import Listener

from .conftest import then_raise

Run = Callable[..., Any]


# ---- resume and warm-start


def test_resume_takes_a_path_or_a_name(trainer: Any, holdfast: Run) -> None:
    holdfast("train", "--run.name=night")
    holdfast("resume", "runs/night")
    holdfast("resume", "night")
    assert trainer.calls[1:] == [("resume", Path("runs/night"))] * 2
    holdfast("resume", "night", "--run.code=docs")
    assert trainer.calls[-1] == ("resume", Path("runs/night"), "--run.code=docs")


def test_resume_of_what_is_no_run(trainer: Any, holdfast: Run) -> None:
    stderr = holdfast("resume", "gone", code=2).stderr
    assert stderr == "error: gone is not a run folder\nhint: train one with: holdfast train\n"
    holdfast("train", "--run.name=night")
    assert "hint: newest runs here: runs/night\n" in holdfast("resume", "gone", code=2).stderr
    Path("folder").mkdir()
    assert "folder has no config.toml" in holdfast("resume", "folder", code=2).stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--train.steps", "9"], "with its own recipe, but you also gave --train.steps 9"),
        (["--retrieval.corpus=docs", "--unset", "data.dev", "--run.seed=1"], "with its own recipe, but you also gave"),
        (["flaky"], "'flaky'"),
        (["--overwrite"], "--overwrite: there is no such setting"),
    ],
)
def test_resume_changes_nothing(trainer: Any, holdfast: Run, arguments: list[str], sentence: str) -> None:
    holdfast("train", "--run.name=night")
    assert sentence in holdfast("resume", "night", *arguments, code=2).stderr
    assert len(trainer.calls) == 1


def test_the_warm_start_alone(trainer: Any, holdfast: Run) -> None:
    result = holdfast("warm-start", "--run.name=start")
    assert trainer.calls[0][0] == "warm start"
    assert result.stdout.endswith("holdfast train --model.path runs/start/model --warm_start.steps 0\n")
    collapse = holdfast("warm-start", "collapse", "--run.name=plain").stdout
    assert collapse.endswith("/model --warm_start.steps 0 --world.scripts.plain_steps 0\n")


# ---- stops


def make_checkpoint(step: int) -> Callable[[Path, Listener], None]:
    def script(run_dir: Path, listener: Listener) -> None:
        folder = run_dir / "checkpoints" / f"step-{step:06d}"
        folder.mkdir(parents=True)
        (folder / "state.json").write_text("{}")
        (folder / "checksums.json").write_text('{"state.json": ""}')

    return script


def damaged_checkpoint(run_dir: Path, listener: Listener) -> None:
    make_checkpoint(20)(run_dir, listener)
    make_checkpoint(40)(run_dir, listener)
    (run_dir / "checkpoints" / "step-000040" / "state.json").unlink()
    (run_dir / "checkpoints" / "step-000060").mkdir()


@pytest.mark.parametrize(
    ("before", "said", "folder_stays"),
    [
        (make_checkpoint(40), "Stopped. Step 40 is saved. To continue from there:\n  {resume}\n", True),
        (damaged_checkpoint, "Stopped. Step 20 is saved. To continue from there:\n  {resume}\n", True),
        (
            lambda run_dir, listener: (run_dir / "metrics.jsonl").touch(),
            "Stopped before the first step was saved. To begin again at step 1:\n  {resume}\n",
            True,
        ),
        (None, "Stopped before the first step, so nothing was saved.\n", False),
    ],
    ids=["saved", "damaged", "begun", "not begun"],
)
def test_an_interrupt_says_how_to_go_on(
    trainer: Any, holdfast: Run, before: Any, said: str, folder_stays: bool
) -> None:
    trainer.script = then_raise(KeyboardInterrupt(), before)
    assert holdfast("train", code=130).stderr == said.format(resume="holdfast resume runs/quickstart")
    assert Path("runs/quickstart/config.toml").is_file() is folder_stays


@pytest.mark.parametrize("error", [CheckpointError("no checkpoint is whole"), ConfigError("x is not valid TOML")])
def test_what_stops_the_next_resume_too_is_not_followed_by_one(
    trainer: Any, holdfast: Run, error: HoldfastError
) -> None:
    holdfast("train", "--run.name=night")
    trainer.script = then_raise(error, make_checkpoint(40))
    assert holdfast("resume", "night", code=2).stderr == f"error: {error}\n"


def test_code_of_the_users_that_ends_the_process_is_an_error(trainer: Any, holdfast: Run) -> None:
    trainer.script = then_raise(SystemExit("no key"), make_checkpoint(40))
    stderr = holdfast("train", code=2).stderr
    assert stderr.startswith("error: code that this recipe names ended the run: sys.exit('no key'), in ")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stop_while_python_tidies_up_is_not_lost(
    trainer: Any, holdfast: Run, number: signal.Signals, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    class Tidied:
        def __del__(self) -> None:
            os.kill(os.getpid(), number)
            time.sleep(0.1)

    def script(run_dir: Path, listener: Listener) -> None:
        make_checkpoint(20)(run_dir, listener)
        Tidied()
        time.sleep(5)
        raise AssertionError("nobody heard the signal")

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores SIGINT
    trainer.script = script
    hook = sys.unraisablehook
    stderr = holdfast("train", code=code).stderr
    assert stderr.startswith("Stopped. Step 20 is saved.") and "holdfast resume runs/quickstart" in stderr
    assert "Traceback" not in capfd.readouterr().err
    assert sys.unraisablehook is hook


def test_an_error_after_a_checkpoint_says_how_to_go_on(trainer: Any, holdfast: Run) -> None:
    trainer.script = then_raise(RolloutError("the retriever is down"), make_checkpoint(20))
    stderr = holdfast("train", "--run.name=my run", code=2).stderr
    assert stderr.startswith("error: the retriever is down\n")
    assert stderr.endswith("To continue from there:\n  holdfast resume 'runs/my run'\n")


def test_a_guard_that_stops_a_run_has_an_exit_code_of_its_own(trainer: Any, holdfast: Run) -> None:
    trainer.script = then_raise(GuardStop("stopped by guard.codes after step 20: LLD003."), make_checkpoint(20))
    assert holdfast("train", code=3).stderr == "stopped by guard.codes after step 20: LLD003.\n"


def test_a_missing_package_is_said_with_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, holdfast: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "holdfast.train.run", raising=False)
    for module in ("transformers", "transformers.utils"):
        monkeypatch.setitem(sys.modules, module, None)  # an import of it fails
    assert holdfast("train", code=2).stderr == (
        "error: transformers is not installed. Run: pip install 'holdfast-rl[train]'\n"
    )
    assert not Path("runs").exists()
