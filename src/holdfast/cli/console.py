"""The console of a run: a table redrawn in place on a terminal, one plain line per step anywhere else.

`COLUMNS` are the metrics that both show.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from holdfast.cli.terminal import ABSENT, duration, is_live, spark
from holdfast.diagnose.finding import Finding
from holdfast.train.listener import Listener, StepResult

_ROWS = 12
_RECENT = 10
"""Steps whose mean time predicts the time left."""
_DOWN = "red"
_UP = "green"
_FINDING = "bold red"


# ---- columns


@dataclass(frozen=True, slots=True)
class Column:
    """A metric as a column of the table, or as `title value` in a plain line."""

    title: str
    metric: str
    format: str
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

        >>> [Column("lp", "x", ".3f").text(m) for m in ({"x": -0.5}, {"x": -10.126}, {"x": -1e9}, {})]
        ['-0.500', '-10.13', '-1e+09', '–']
        """
        value = metrics.get(self.metric)
        if value is None:
            return ABSENT
        sign, _, rest = self.format.rpartition(".")
        texts = [format(value, f"{sign}.{decimals}{rest[1:]}") for decimals in range(int(rest[0]), -1, -1)]
        return next((text for text in texts if len(text) <= self.width), format(value, ".0e"))


_STEP_WIDTH = 5
_GAP = 2

COLUMNS = (
    Column("reward", "reward/mean", ".3f"),
    Column("EM", "reward/em", ".3f"),
    Column("lp(correct)", "likelihood/correct", ".3f", meaning="log-prob per token of correct rollouts"),
    Column("lp(incorrect)", "likelihood/incorrect", ".3f", meaning="the same for incorrect rollouts"),
    Column("Δlp", "displacement/correct", "+.4f", 7, "change of lp(correct) during the update"),
    Column("entropy", "entropy/mean", ".3f", 7),
    Column("search", "rollout/searches", ".2f", meaning="searches per rollout"),
    Column("penalty", "penalty/active_fraction", ".1%", 7, "share of preserved tokens with a penalty"),
    Column("dev EM", "eval/em", ".3f"),
)
_MORE = (
    Column("greedy", "eval/em_greedy", ".3f", meaning="dev EM, greedy"),
    Column("length", "rollout/length", ".1f", meaning="tokens per rollout"),
    Column("grad", "grad/norm", ".2f", meaning="gradient norm"),
    Column("clip", "clip/fraction", ".1%", meaning="share of tokens clipped"),
    Column("seconds", "time/step_s", ".1f", 7),
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


@dataclass(slots=True)
class _Stage:
    """A phase of the run and how long its steps take."""

    name: str
    total: int | None
    clock: Callable[[], float]
    began: float = 0.0
    done: int = 0
    detail: dict[str, float] = field(default_factory=dict)
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    last: float = 0.0
    from_zero: bool = False

    def __post_init__(self) -> None:
        self.began = self.last = self.clock()

    def advance(self, done: int) -> None:
        now = self.clock()
        if done > self.done:
            # A resumed run did not make `done` steps since it started; a run that started from 0 did.
            self.recent.append((now - self.last) / (done - self.done if self.recent or self.from_zero else 1))
        elif done == 0:
            self.from_zero = True
        self.done, self.last = done, now

    @property
    def elapsed(self) -> float:
        return self.clock() - self.began

    @property
    def left(self) -> float | None:
        """Seconds left, from the mean of recent steps; None while unknown."""
        if self.total is None or not self.recent:
            return None
        mean = sum(self.recent) / len(self.recent)
        return max(mean * (self.total - self.done) - (self.clock() - self.last), 0.0)

    def details(self) -> str:
        return "".join(f"  {name} {value:.3f}" for name, value in self.detail.items())


class Lines(Listener):
    """Plain lines, no control codes: for pipes, logs and CI."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._stage: _Stage | None = None
        self._quarter = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Keep this open around the whole run."""
        yield

    def stage(self, name: str, total: int | None = None) -> None:
        """End the current phase and print the name of the next."""
        self.finish()
        self._stage, self._quarter = _Stage(name, total, self._clock), 0
        self._print(name + (f" 0/{total}" if total else ""))

    def advance(self, done: int, detail: Mapping[str, float] | None = None) -> None:
        """Print a line after each quarter of the phase."""
        stage = self._stage
        if stage is None:
            return
        stage.advance(done)
        stage.detail = dict(detail or {})
        quarter = 4 * done // stage.total if stage.total else 0
        if quarter > self._quarter and done != stage.total:
            self._quarter = quarter
            self._print(f"{stage.name} {done}/{stage.total}{stage.details()}{_left(stage)}")

    def step(self, result: StepResult) -> None:
        """Print the metrics of a step in one line."""
        number = str(result.step)
        if self._stage is not None:
            self._stage.advance(result.step)
            number += f"/{self._stage.total}" if self._stage.total else ""
        shown = [f"{c.title} {c.text(result.metrics)}" for c in COLUMNS if c.metric in result.metrics]
        self._print("  ".join([f"step {number}", *shown]) + (_left(self._stage) if self._stage else ""))

    def note(self, message: str) -> None:
        """Print the message."""
        self._print(f"note: {message}")

    def finding(self, finding: Finding) -> None:
        """Print the finding: code, step and summary."""
        self._print(f"{finding.code} step {finding.step}: {finding.summary}")

    def finish(self) -> None:
        """End the current stage."""
        if self._stage is not None:
            self._print(f"{self._stage.name}: done in {duration(self._stage.elapsed)}{self._stage.details()}")
            self._stage = None

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)
        self._console.file.flush()


class LiveTable(Listener):
    """Plain lines for what is finished. Below them progress and the last steps as a table, redrawn in place."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._stage: _Stage | None = None
        self._steps: list[tuple[int, Mapping[str, float]]] = []
        self._marked: set[int] = set()
        self._drawn = 0.0
        # Once a second is enough for a clock, and leaves the cores to the training.
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=1, transient=True)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around the whole run: at the end the last table stays on the screen."""
        with self._live:
            try:
                yield
            finally:
                self._stage = None
                self._keep_table()

    def stage(self, name: str, total: int | None = None) -> None:
        """End the current phase and show the next."""
        self.finish()
        self._stage = _Stage(name, total, self._clock)
        self._draw(now=True)

    def advance(self, done: int, detail: Mapping[str, float] | None = None) -> None:
        """Move the progress bar."""
        if self._stage is not None:
            self._stage.advance(done)
            self._stage.detail = dict(detail or {})
            self._draw()

    def step(self, result: StepResult) -> None:
        """Add a row to the table."""
        if self._stage is not None:
            self._stage.advance(result.step)
        self._steps.append((result.step, dict(result.metrics)))
        self._draw(now=True)

    def note(self, message: str) -> None:
        """Print the message above the table."""
        self._console.print(Text.assemble(("note ", "yellow"), message))

    def finding(self, finding: Finding) -> None:
        """Print the finding above the table, and mark the row of its step."""
        self._marked.add(finding.step)
        self._console.print(Text.assemble((f"{finding.code} ", _FINDING), f"step {finding.step}: {finding.summary}"))
        self._draw(now=True)

    def finish(self) -> None:
        """End the current stage; what it showed last stays on the screen."""
        if self._stage is None:
            return
        stage, self._stage = self._stage, None
        self._keep_table()
        took = f"  {duration(stage.elapsed)}{stage.details()}"
        self._console.print(Text.assemble(("✓ ", _UP), stage.name, (took, "dim")))

    def _keep_table(self) -> None:
        table = self._table(_ROWS) if self._steps else None
        self._steps = []
        self._live.refresh()  # clears the live table first, or both would show for a moment
        if table is not None:
            self._console.print(table)

    def _draw(self, *, now: bool = False) -> None:
        """Redraw at most four times a second, unless `now`."""
        if now or self._clock() - self._drawn > 0.25:
            self._drawn = self._clock()
            self._live.refresh()

    def _render(self) -> RenderableType:
        if self._stage is None:
            return Text("")
        parts: list[RenderableType] = []
        if self._steps:
            # 12 lines for title, header, rule, trend, legend and progress.
            parts.append(self._table(max(min(_ROWS, self._console.height - 12), 1)))
        return Group(*parts, self._progress(self._stage))

    def _progress(self, stage: _Stage) -> RenderableType:
        grid = Table.grid(padding=(0, 1))
        if stage.total is None:
            grid.add_row(Spinner("dots", style="cyan"), Text(stage.name), Text(duration(stage.elapsed), style="dim"))
            return grid
        left = stage.left
        grid.add_row(
            Spinner("dots", style="cyan"),
            Text(stage.name),
            ProgressBar(total=stage.total, completed=stage.done, width=max(min(self._console.width - 64, 40), 8)),
            Text(f"{stage.done}/{stage.total}"),
            Text(f"{duration(left)} left" if left is not None else duration(stage.elapsed), style="bold"),
            Text(stage.details().strip(), style="dim"),
        )
        return grid

    def _table(self, rows: int) -> Table:
        columns = columns_for(self._console.width)
        table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold", caption=legend(columns))
        table.caption_style, table.caption_justify, table.show_footer = "dim", "left", len(self._steps) >= 3
        table.add_column(
            "step", justify="right", width=_STEP_WIDTH, vertical="bottom", footer=Text("trend", style="dim")
        )
        for column in columns:
            trend = Text(self._trend(column), style="cyan")
            width = column.total_width - _GAP
            table.add_column(column.header, justify="right", min_width=width, footer=trend, vertical="bottom")
        for step, metrics in self._steps[-rows:]:
            number = Text(str(step), style=_FINDING if step in self._marked else "")
            table.add_row(number, *[Text(c.text(metrics), style=_style(c, metrics)) for c in columns])
        return table

    def _trend(self, column: Column) -> str:
        values = [metrics[column.metric] for _, metrics in self._steps if column.metric in metrics]
        return spark(values, 6) if len(values) >= 3 else ""


def _left(stage: _Stage) -> str:
    left = stage.left
    return f"  {duration(left)} left" if left else ""


def _style(column: Column, metrics: Mapping[str, float]) -> str:
    """Colour only where the sign has a meaning."""
    value = metrics.get(column.metric)
    if value is None:
        return "dim"
    if column.metric == "displacement/correct":
        return _DOWN if value < 0 else _UP
    return "bold" if column.metric == "eval/em" else ""
