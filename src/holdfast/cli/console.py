"""The console of a run: a table redrawn in place on a terminal, one plain line per step anywhere else.

`COLUMNS` are the metrics that both show.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.table import Table
from rich.text import Text

from holdfast.cli.terminal import ABSENT, duration, is_live
from holdfast.diagnose.finding import Finding
from holdfast.train.listener import Listener, StepResult

_ROWS = 12
_RECENT = 3600.0
"""Seconds whose steps predict the time left."""
_DOWN = "red"
_UP = "green"
_FINDING = "bold red"


# ---- columns


@dataclass(frozen=True, slots=True)
class Column:
    """A metric as a column of the table, or as `title value` in a plain line."""

    title: str
    metric: str
    decimals: int
    kind: str = "f"
    """As in a format: `f`, or `%` for a share."""
    sign: str = ""
    """`+` also shows the sign of a value above 0."""
    width: int = 6
    """Characters of a value; a longer one is shown with fewer decimals."""
    meaning: str = ""
    """For the legend; empty where the title says it."""

    @property
    def header(self) -> str:
        """The title in the table: `lp(correct)` takes two lines."""
        return self.title.replace("(", "\n").removesuffix(")")

    @property
    def total_width(self) -> int:
        """Characters of the column in the table, with the gap before it."""
        return _GAP + max(self.width, *map(len, self.header.split("\n")))

    def text(self, metrics: Mapping[str, float]) -> str:
        """The formatted value; a dash when the step has none.

        >>> [Column("lp", "x", 3).text(m) for m in ({"x": -0.5}, {"x": -10.126}, {"x": -1e9}, {})]
        ['-0.500', '-10.13', '-1e+09', '–']
        """
        value = metrics.get(self.metric)
        if value is None:
            return ABSENT
        texts = [format(value, f"{self.sign}.{decimals}{self.kind}") for decimals in range(self.decimals, -1, -1)]
        return next((text for text in texts if len(text) <= self.width), format(value, ".0e"))


_STEP_WIDTH = 5
_GAP = 2

COLUMNS = (
    Column("reward", "reward/mean", 3),
    Column("EM", "reward/em", 3),
    Column("lp(correct)", "likelihood/correct", 3, meaning="log-prob per token of correct rollouts"),
    Column("lp(incorrect)", "likelihood/incorrect", 3, meaning="the same for incorrect rollouts"),
    Column("Δlp", "displacement/correct", 4, sign="+", width=7, meaning="change of lp(correct) during the update"),
    Column("entropy", "entropy/mean", 3, width=7),
    Column("search", "rollout/searches", 2, meaning="searches per rollout"),
    Column("penalty", "penalty/active_fraction", 1, "%", width=7, meaning="share of preserved tokens with a penalty"),
    Column("dev EM", "eval/em", 3),
)
_MORE = (
    Column("greedy", "eval/em_greedy", 3, meaning="dev EM, greedy"),
    Column("length", "rollout/length", 1, meaning="tokens per rollout"),
    Column("grad", "grad/norm", 2, meaning="gradient norm"),
    Column("clip", "clip/fraction", 1, "%", meaning="share of tokens clipped"),
    Column("seconds", "time/step_s", 1, width=7),
)
"""Columns of a wide table."""

_SPARED = ("EM", "search", "lp(incorrect)", "penalty", "entropy", "lp(correct)", "Δlp")
"""The columns that a narrow terminal leaves out, the least important first."""


def columns_for(width: int) -> tuple[Column, ...]:
    """The columns that fit into a table of `width` characters: at 80 all of `COLUMNS` but EM.

    >>> [column.title for column in columns_for(50)]
    ['reward', 'lp(correct)', 'Δlp', 'entropy', 'dev EM']
    """
    chosen: tuple[Column, ...] = COLUMNS
    for title in _SPARED:
        if _table_width(chosen) > width:
            chosen = tuple(column for column in chosen if column.title != title)
    for column in _MORE if chosen == COLUMNS else ():
        if _table_width((*chosen, column)) <= width:
            chosen = (*chosen, column)
    return chosen


def _table_width(columns: Sequence[Column]) -> int:
    return _STEP_WIDTH + sum(column.total_width for column in columns)


def legend(columns: Sequence[Column]) -> str:
    """The meanings of the columns, in one line."""
    return " · ".join(f"{column.title}: {column.meaning}" for column in columns if column.meaning)


# ---- listeners


@contextmanager
def open_console(console: Console, run_dir: Path | str) -> Iterator[Listener]:
    """A listener for the console while a run lasts: live on a terminal, plain lines elsewhere."""
    console.print(Text.assemble(("holdfast", "bold"), f" · {run_dir}"))
    listener: LiveTable | Lines = LiveTable(console) if is_live(console) else Lines(console)
    with listener.running():
        yield listener
        listener.finish()


class _Stages(Listener):
    """Keeps the stage of a run and how far it is."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn("dots", style="cyan"),
            TextColumn("{task.description}", markup=False),
            BarColumn(max(min(console.width - 64, 40), 8)),
            _Numbers(),
            console=console,
            get_time=clock,
            speed_estimate_period=_RECENT,
        )

    @property
    def _task(self) -> Task | None:
        return next(iter(self._progress.tasks), None)

    def stage(self, name: str, total: int | None = None) -> None:
        """End the current stage and begin the next."""
        self.finish()
        self._progress.add_task(name, total=total, details="")

    def advance(self, done: int, detail: Mapping[str, float] | None = None) -> None:
        """Note how far the stage is."""
        if self._task is not None:
            details = "".join(f"  {name} {value:.3f}" for name, value in (detail or {}).items())
            self._progress.update(self._task.id, completed=done, details=details)

    def finish(self) -> None:
        """End the current stage."""
        if (task := self._task) is not None:
            self._progress.remove_task(task.id)
            self._ended(task.description, f"{duration(task.elapsed or 0.0)}{task.fields['details']}")

    def _ended(self, name: str, took: str) -> None:
        """What a display does at the end of a stage."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Keep this open around the whole run."""
        yield


class _Numbers(ProgressColumn):
    """Steps done, the time left or the time taken, and details."""

    def render(self, task: Task) -> Text:
        count = "" if task.total is None else f"{task.completed:.0f}/{task.total:.0f} "
        time_text = _left(task).strip() or duration(task.elapsed or 0.0)
        return Text.assemble(count, (time_text, "bold"), (task.fields["details"], "dim"))


def _left(task: Task) -> str:
    return f"  {duration(task.time_remaining)} left" if task.time_remaining else ""


class Lines(_Stages):
    """Plain lines, no control codes: for pipes, logs and CI."""

    def stage(self, name: str, total: int | None = None) -> None:
        """End the current stage and print the name of the next."""
        super().stage(name, total)
        self._print(name + (f" 0/{total}" if total else ""))

    def advance(self, done: int, detail: Mapping[str, float] | None = None) -> None:
        """Print a line after each quarter of the stage."""
        before = self._quarters()
        super().advance(done, detail)
        if (task := self._task) is not None and before < self._quarters() < 4:
            self._print(f"{task.description} {done}/{task.total:.0f}{task.fields['details']}{_left(task)}")

    def step(self, result: StepResult) -> None:
        """Print the metrics of a step in one line."""
        super().advance(result.step)
        number, left = str(result.step), ""
        if (task := self._task) is not None:
            number, left = f"{number}/{task.total:.0f}" if task.total else number, _left(task)
        shown = [f"{c.title} {c.text(result.metrics)}" for c in COLUMNS if c.metric in result.metrics]
        self._print("  ".join([f"step {number}", *shown]) + left)

    def note(self, message: str) -> None:
        """Print the message."""
        self._print(f"note: {message}")

    def finding(self, finding: Finding) -> None:
        """Print the finding: code, step and summary."""
        self._print(f"{finding.code} step {finding.step}: {finding.summary}")

    def _ended(self, name: str, took: str) -> None:
        self._print(f"{name}: done in {took}")

    def _quarters(self) -> int:
        task = self._task
        return int(4 * task.completed // task.total) if task is not None and task.total else 0

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)
        self._console.file.flush()


class LiveTable(_Stages):
    """Plain lines for what is finished. Below them progress and the last steps as a table, redrawn in place."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(console, clock)
        self._steps: deque[tuple[int, Mapping[str, float]]] = deque(maxlen=_ROWS)
        self._marked: set[int] = set()
        # Once a second is enough for a clock, and leaves the cores to the training.
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=1, transient=True)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around the whole run: at the end the last table stays on the screen."""
        with self._live:
            try:
                yield
            finally:
                for task in self._progress.tasks:
                    self._progress.remove_task(task.id)
                self._keep_table()

    def step(self, result: StepResult) -> None:
        """Add a row to the table."""
        self.advance(result.step)
        self._steps.append((result.step, dict(result.metrics)))
        self._live.refresh()

    def note(self, message: str) -> None:
        """Print the message above the table."""
        self._console.print(Text.assemble(("note ", "yellow"), message))

    def finding(self, finding: Finding) -> None:
        """Print the finding above the table, and mark the row of its step."""
        self._marked.add(finding.step)
        self._console.print(Text.assemble((f"{finding.code} ", _FINDING), f"step {finding.step}: {finding.summary}"))
        self._live.refresh()

    def _ended(self, name: str, took: str) -> None:
        self._keep_table()
        self._console.print(Text.assemble(("✓ ", _UP), name, (f"  {took}", "dim")))

    def _keep_table(self) -> None:
        table = self._table(_ROWS) if self._steps else None
        self._steps.clear()
        self._live.refresh()  # clears the live table first, or both would show for a moment
        if table is not None:
            self._console.print(table)

    def _render(self) -> RenderableType:
        if not self._steps:
            return self._progress
        # 12 lines for title, header, legend and progress.
        return Group(self._table(max(min(_ROWS, self._console.height - 12), 1)), self._progress)

    def _table(self, rows: int) -> Table:
        columns = columns_for(self._console.width)
        table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold", caption=legend(columns))
        table.caption_style, table.caption_justify = "dim", "left"
        table.add_column("step", justify="right", width=_STEP_WIDTH, vertical="bottom")
        for column in columns:
            width = column.total_width - _GAP
            table.add_column(column.header, justify="right", min_width=width, vertical="bottom")
        for step, metrics in list(self._steps)[-rows:]:
            number = Text(str(step), style=_FINDING if step in self._marked else "")
            table.add_row(number, *[Text(c.text(metrics), style=_style(c, metrics)) for c in columns])
        return table


def _style(column: Column, metrics: Mapping[str, float]) -> str:
    """Colour only where the sign has a meaning."""
    value = metrics.get(column.metric)
    if value is None:
        return "dim"
    if column.metric == "displacement/correct":
        return _DOWN if value < 0 else _UP
    return "bold" if column.metric == "eval/em" else ""
