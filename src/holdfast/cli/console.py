"""The console of a run: a table redrawn in place on a terminal, one plain line per step anywhere else."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from holdfast.cli.columns import COLUMNS, GAP, STEP_WIDTH, Column, columns_for, legend
from holdfast.cli.terminal import duration, is_live, spark
from holdfast.diagnostics.finding import Finding
from holdfast.listener import Listener, StepResult

_ROWS = 12
_RECENT = 10
"""Steps whose mean time predicts the time left."""
_DOWN = "red"
_UP = "green"
_FINDING = "bold red"


@contextmanager
def open_console(console: Console, run_dir: Path) -> Iterator[Listener]:
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
        yield

    def stage(self, name: str, total: int | None = None) -> None:
        self.finish()
        self._stage, self._quarter = _Stage(name, total, self._clock), 0
        self._print(name + (f" 0/{total}" if total else ""))

    def advance(self, done: int, detail: Mapping[str, float] | None = None) -> None:
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
        number = str(result.step)
        if self._stage is not None:
            self._stage.advance(result.step)
            number += f"/{self._stage.total}" if self._stage.total else ""
        shown = [f"{c.title} {c.text(result.metrics)}" for c in COLUMNS if c.metric in result.metrics]
        self._print("  ".join([f"step {number}", *shown]) + (_left(self._stage) if self._stage else ""))

    def note(self, message: str) -> None:
        self._print(f"note: {message}")

    def finding(self, finding: Finding) -> None:
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
        with self._live:
            try:
                yield
            finally:
                # The last steps of a stopped run stay on the screen too.
                self._stage = None
                self._keep_table()

    def stage(self, name: str, total: int | None = None) -> None:
        self.finish()
        self._stage = _Stage(name, total, self._clock)
        self._draw(now=True)

    def advance(self, done: int, detail: Mapping[str, float] | None = None) -> None:
        if self._stage is not None:
            self._stage.advance(done)
            self._stage.detail = dict(detail or {})
            self._draw()

    def step(self, result: StepResult) -> None:
        if self._stage is not None:
            self._stage.advance(result.step)
        self._steps.append((result.step, dict(result.metrics)))
        self._draw(now=True)

    def note(self, message: str) -> None:
        self._console.print(Text.assemble(("note ", "yellow"), message))

    def finding(self, finding: Finding) -> None:
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
            # 11 lines for title, header, rule, trend, legend and progress.
            parts.append(self._table(max(min(_ROWS, self._console.height - 11), 1)))
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
        table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold", caption=legend(columns))
        table.caption_style, table.caption_justify, table.show_footer = "dim", "left", len(self._steps) >= 3
        table.add_column("step", justify="right", width=STEP_WIDTH, footer=Text("trend", style="dim"))
        for column in columns:
            trend = Text(self._trend(column), style="cyan")
            table.add_column(column.title, justify="right", min_width=column.width, no_wrap=True, footer=trend)
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
