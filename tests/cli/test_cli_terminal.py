"""What others wrote is printed and never obeyed by a terminal, whichever command prints it. A closed output is no
traceback."""

from __future__ import annotations

import io
import json
import logging
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

from holdfast.base.errors import GuardStop, ModelError
from holdfast.base.run_folder import headed
from holdfast.cli.console import LiveTable
from holdfast.cli.main import app
from holdfast.cli.terminal import SafeConsole, survive_any_output, waiting
from holdfast.recipe import Config, dump, load, validate
from holdfast.train.listener import Listener

from .conftest import SAMPLES, FakeTrainer, then_raise
from .test_cli_ask import agent

Run = Callable[..., Any]
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202eevil\u2066"
"""The title of the window, an empty screen, a colour by a C1 character, and turned directions."""
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
LOG = Path(__file__).parents[2] / "tests/fixtures/logs/verl-console.log"


def jsonl(name: str, *rows: dict[str, Any]) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return name


def run_folder(config: Config, name: str = "runs/run") -> Path:
    Path(name).mkdir(parents=True)
    Path(name, "config.toml").write_text(headed(dump(config), "flaky"), encoding="utf-8")
    return Path(name)


@dataclass
class Attack:
    """Puts `HOSTILE` where it is not the user who writes, and gives the words of a command that prints it."""

    holdfast: Run
    trainer: FakeTrainer
    patch: pytest.MonkeyPatch

    def ask(self) -> list[str]:
        said = [f"<think> {HOSTILE} </think> <search> mentor of Mira </search>", f"<answer> {HOSTILE} </answer>"]
        answering = agent(*said)
        answering.retriever.contents["mentor of Mira"] = [f"{HOSTILE}\n{HOSTILE}"]  # type: ignore[attr-defined]
        self.patch.setattr("holdfast.evaluate.model.open_agent", lambda *_, **__: answering)
        run_folder(load())
        return ["ask", "runs/run", "Who?"]

    def train(self) -> list[str]:
        samples = tuple(replace(sample, question=HOSTILE, golden_answers=(HOSTILE,)) for sample in SAMPLES)
        self.patch.setitem(FakeTrainer._finish.__globals__, "SAMPLES", samples)
        return ["train"]

    def train_progress(self) -> list[str]:
        def say(_: Path, listener: Listener) -> None:
            listener.stage(f"evaluating {HOSTILE}", 2)
            listener.note(HOSTILE)

        self.trainer.script = say
        return ["train"]

    def train_error(self) -> list[str]:
        self.trainer.script = then_raise(ModelError(HOSTILE, hint=HOSTILE))
        return ["train"]

    def train_guard(self) -> list[str]:
        self.trainer.script = then_raise(GuardStop(HOSTILE))
        return ["train"]

    def train_recipe_error(self) -> list[str]:
        Path(f"{HOSTILE}.toml").write_text("[")
        return ["train", f"{HOSTILE}.toml"]

    def index_show(self) -> list[str]:
        jsonl("corpus.jsonl", {"id": HOSTILE, "contents": f"{HOSTILE}\nA town. {HOSTILE}"})
        self.holdfast("index", "build", "corpus.jsonl", "--out", "index")
        return ["index", "show", "index", "town"]

    def runs(self) -> list[str]:
        findings = [{"code": HOSTILE, "step": 3, "level": "finding"}]
        (run_folder(load(), f"runs/{HOSTILE}") / "findings.json").write_text(json.dumps({"findings": findings}))
        return ["runs"]

    def runs_json(self) -> list[str]:
        return [*self.runs(), "--json"]

    def recipe_show(self) -> list[str]:
        return ["recipe", "show", str(run_folder(load(None, [f"--protocol.prompt={HOSTILE} {{question}}"])))]

    def diagnose(self) -> list[str]:
        rows = [{"step": step, "reward": 0.5, "loss": 0.1, HOSTILE: 1.0} for step in range(1, 30)]
        return ["diagnose", jsonl(f"{HOSTILE}.jsonl", *rows)]

    def diagnose_verbose(self) -> list[str]:
        return [*self.diagnose(), "--verbose"]

    def diagnose_diff(self) -> list[str]:
        return [*self.diagnose(), jsonl("b.jsonl", {"step": 1, "reward": 0.1}), "--diff"]

    def diagnose_json(self) -> list[str]:
        return [*self.diagnose(), "--json"]

    def diagnose_markdown(self) -> list[str]:
        return [*self.diagnose(), "--format", "markdown"]

    def report(self) -> list[str]:
        return ["report", self.diagnose()[1], "--out", f"{HOSTILE}.html"]

    def data_validate(self) -> list[str]:
        return ["data", "validate", jsonl(f"{HOSTILE}.jsonl", {"question": "Who?", HOSTILE: 1})]

    def data_convert_error(self) -> list[str]:
        return ["data", "convert", jsonl("q.jsonl", {"question": "Who?", HOSTILE: 1}), "o.jsonl"]

    def eval_error(self) -> list[str]:
        return ["eval", "compare", HOSTILE, "b"]


ATTACKS = [name for name in vars(Attack) if not name.startswith("_")]


@pytest.mark.parametrize("name", ATTACKS)
def test_no_command_lets_others_write_to_the_terminal(
    name: str, trainer: FakeTrainer, holdfast: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = getattr(Attack(holdfast, trainer, monkeypatch), name)()
    done = CliRunner().invoke(app, words)
    assert done.exit_code in (0, 1, 2, 3), done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert OBEYED.search(done.stdout + done.stderr) is None
    assert "evil" in done.output, "the attack did not reach the terminal"
    if name.endswith("json"):
        json.loads(done.stdout)
    if name == "recipe_show":
        assert validate(tomllib.loads(done.stdout)).protocol.prompt == f"{HOSTILE} {{question}}"


def test_warnings_are_printed_like_everything_else(capsys: pytest.CaptureFixture[str]) -> None:
    survive_any_output()
    record = logging.LogRecord("holdfast", logging.WARNING, __file__, 1, "left out: %s", (HOSTILE,), None)
    assert logging.lastResort is not None
    logging.lastResort.handle(record)
    said = capsys.readouterr().err
    assert said.startswith("left out: ") and OBEYED.search(said) is None


def test_a_terminal_gets_its_own_colours_and_nobody_elses() -> None:
    file = io.StringIO()
    console = SafeConsole(
        file=file, force_terminal=True, width=200, highlight=False, markup=False, legacy_windows=False
    )
    table = Table()
    table.add_column(HOSTILE)
    table.add_row(Text(HOSTILE, style="red"))
    live = LiveTable(console)
    with live.running():
        live.stage(f"[red]{HOSTILE}", 3)
        live.note(HOSTILE)
        console.print(table)
        console.print(f"a\tb\n{HOSTILE}", style="bold")
    written = file.getvalue()
    ours = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written).replace("\r", "")
    assert "\x1b[31m" in written and "\x1b[1m" in written and "a       b\n" in ours
    assert "[red]" in ours
    assert OBEYED.search(ours) is None


def test_brackets_in_a_path_are_shown_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.terminal.is_live", lambda console: True)
    with waiting("Reading docs[a]/[/b]") as status:
        assert str(status.renderable.text) == "Reading docs[a]/[/b]"  # type: ignore[attr-defined]


# ---- outputs that are closed

DIAGNOSE, GONE = ["diagnose", str(LOG)], ["diagnose", "gone.log"]


@pytest.mark.parametrize(
    ("words", "closed", "code"),
    [
        (DIAGNOSE, ">&-", 1),
        ([*DIAGNOSE, "--json"], ">&-", 1),
        (["--help"], ">&-", 0),
        (GONE, "2>&-", 2),
        (GONE, "<&- >&- 2>&-", 2),
        ([*DIAGNOSE, "--verbose"], "| true", None),
        ([*DIAGNOSE, "--json"], "| true", None),
        (GONE, "2>&1 | true", None),
    ],
)
def test_a_closed_output_is_no_traceback(words: list[str], closed: str, code: int | None) -> None:
    command = shlex.join([sys.executable, "-m", "holdfast", *words])
    script = f"{command} {closed}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=300)
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    assert code is None or done.returncode == code  # in a pipe it depends on who is faster
