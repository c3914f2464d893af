from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from holdfast.cli.console import Lines, LiveTable, columns_for, open_console
from holdfast.cli.terminal import is_live
from holdfast.diagnose.finding import Finding
from holdfast.train.listener import StepResult

STEP = {
    "reward/mean": 0.25,
    "reward/em": 0.2,
    "likelihood/correct": -0.91,
    "likelihood/incorrect": -10.126,
    "displacement/correct": -0.0123,
    "entropy/mean": 0.8,
    "rollout/searches": 1.6,
    "penalty/active_fraction": 0.123,
}


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Screen(Console):
    """A terminal in memory."""

    def __init__(self, width: int = 80, height: int = 40) -> None:
        self.written = io.StringIO()
        super().__init__(
            file=self.written, force_terminal=True, width=width, height=height, highlight=False, legacy_windows=False
        )

    @property
    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.written.getvalue())


def lines_console() -> tuple[Console, Lines, Clock]:
    clock = Clock()
    console = Console(file=io.StringIO(), width=80, highlight=False)
    return console, Lines(console, clock), clock


def drawn(table: LiveTable, screen: Screen) -> str:
    """What the live region shows now."""
    with screen.capture() as captured:
        screen.print(table._render())
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", captured.get())


# ---- plain lines


FINDING = Finding(
    code="LLD002",
    step=2,
    certain=2,
    summary="Correct rollouts are being made unlikely.",
    evidence={},
    series=(),
    remedy="Stop.",
)


def test_an_alarm_stands_above_the_table_and_marks_its_row() -> None:
    screen = Screen()
    table = LiveTable(screen, Clock())
    with table.running():
        table.stage("training", 60)
        for step in (1, 2):
            table.step(StepResult(step=step, metrics=STEP))
        table.finding(FINDING)
        with screen.capture() as captured:
            screen.print(table._render())
    assert "LLD002 step 2: Correct rollouts" in screen.text
    rows = [line for line in captured.get().splitlines() if "0.250" in line][-2:]
    assert ["\x1b[1;31m" in row.partition("0.250")[0] for row in rows] == [False, True]


def test_plain_lines_of_a_run() -> None:
    console, lines, clock = lines_console()
    lines.stage("warm start", 8)
    for done in range(1, 9):
        clock.now += 1
        lines.advance(done, {"loss": 1 / done})
    lines.stage("training", 4)
    lines.step(StepResult(step=0, metrics={"eval/em": 0.2}))
    clock.now += 10
    lines.step(StepResult(step=1, metrics=STEP))
    clock.now += 20
    lines.step(StepResult(step=2, metrics=STEP | {"eval/em": 0.3}))
    lines.note("a sentence")
    lines.finding(FINDING)
    lines.finish()
    step = (
        "reward 0.250  EM 0.200  lp(correct) -0.910  lp(incorrect) -10.13  Δlp -0.0123  entropy 0.800  search 1.60  "
        "penalty 12.3%"
    )
    assert console.file.getvalue() == (  # type: ignore[attr-defined]
        "warm start 0/8\n"
        "warm start 2/8  loss 0.500  6.0 s left\n"  # at every quarter
        "warm start 4/8  loss 0.250  4.0 s left\n"
        "warm start 6/8  loss 0.167  2.0 s left\n"
        "warm start: done in 8.0 s  loss 0.125\n"
        "training 0/4\n"
        "step 0/4  dev EM 0.200\n"
        f"step 1/4  {step}\n"  # of one step the time is not known
        f"step 2/4  {step}  dev EM 0.300  40 s left\n"
        "note: a sentence\n"
        "LLD002 step 2: Correct rollouts are being made unlikely.\n"
        "training: done in 30 s\n"
    )


def test_a_pipe_and_ci_get_plain_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich believe in a terminal
    console = Console()
    assert console.is_terminal and not is_live(console)
    with open_console(console, Path("runs/x")) as listener:
        assert isinstance(listener, Lines)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.delenv("CI", raising=False)
    assert is_live(Screen())
    monkeypatch.setenv("CI", "true")
    assert not is_live(Screen())


# ---- the table


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_table_fits_its_terminal(width: int) -> None:
    screen = Screen(width)
    table = LiveTable(screen, Clock())
    table.stage("training", 60)
    for step in range(1, 20):
        table.step(StepResult(step=step, metrics=STEP | {"eval/em": 0.3, "eval/em_greedy": 0.4, "grad/norm": 123.456}))
    rows = drawn(table, screen).splitlines()
    del rows[: any("(" in column.title for column in columns_for(width))]  # the first line of a header of two
    assert max(map(cell_len, (row.rstrip() for row in rows))) <= width
    assert "…" not in "".join(rows)  # nothing was cut
    assert "0.250" in rows[1]
    assert "0.300" in rows[1]
    assert "-0.0123" in rows[1]


def test_a_run_that_fails_leaves_its_table_and_the_cursor() -> None:
    screen = Screen()
    table = LiveTable(screen, Clock())
    with pytest.raises(KeyboardInterrupt), table.running():
        table.stage("training", 2)
        table.step(StepResult(step=1, metrics=STEP))
        raise KeyboardInterrupt
    assert "0.250" in screen.text.rpartition("step  reward")[2]
    assert screen.written.getvalue().count("\x1b[?25l") == screen.written.getvalue().count("\x1b[?25h")
    assert "✓ training" not in screen.text
