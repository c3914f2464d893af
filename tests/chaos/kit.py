"""What the attacks share: cases and what went wrong in them, commands in processes of their own, moments at which
one is stopped, and the comparison of two runs.

A command runs in a process that is forked from one with torch loaded: as `holdfast …` does, without the seconds of
imports. A moment is the n-th time that a run does something: writes a file of a checkpoint, decodes, takes an optimizer
step. So a seed names the same moments on any machine.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.train.whole_runs import assert_same_run

ROOT = Path(__file__).resolve().parents[2]

TRACEBACK = "Traceback (most recent call last)"
SHORTEST_LIMIT = 40.0
"""Seconds that a command always gets. One that takes longer than this and four whole runs hangs."""
LOADED = [
    *("holdfast.cli.main", "holdfast.cli.train", "holdfast.cli.closing", "holdfast.train.run"),
    *("torch._dynamo", "torch.distributed.tensor", "transformers.models.qwen2.modeling_qwen2"),
]
"""What the process has loaded from which those of commands are forked."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT

RECIPE: dict[str, object] = {
    "world.people": 60,
    "world.train_questions": 60,
    "world.dev_questions": 4,
    "world.test_questions": 4,
    "world.model.layers": 2,
    "world.scripts.count": 100,
    "protocol.max_turns": 2,
    "protocol.max_turn_tokens": 20,
    "protocol.max_observation_tokens": 40,
    "protocol.max_total_tokens": 160,
    "warm_start.steps": 60,
    "warm_start.batch_size": 16,
    "warm_start.lr": 0.01,
    "train.steps": 8,
    "train.questions": 3,
    "train.group_size": 4,
    "train.optimizer_steps_per_rollout": 3,
    "train.lr": 3e-3,
    "reward.format": 1.0,
    "eval.every": 4,
    "eval.questions": 3,
    "checkpoint.every": 2,
    "checkpoint.keep": 9,
    "track.trajectories": 12,
    "run.threads": 1,
}
"""The quickstart, cut until a run takes seconds. So little warm start leaves rewards of format that vary."""


Problems = list[str]
"""What went wrong, in sentences; empty when holdfast held."""
Case = tuple[str, Callable[[], Problems]]
"""Its name, and what does it."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The `count`-th time that a command is at `place`."""

    place: str
    count: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Signals for a command: the first `after` seconds after a moment, each of the others 0.05 seconds later."""

    moment: Moment
    signals: tuple[signal.Signals, ...] = (signal.SIGKILL,)
    after: float = 0.0
    """0 for SIGKILL is exact: the process does nothing more."""


@dataclass(slots=True)
class Ended:
    """A command that has ended."""

    code: int | None
    """None: it was ended for running too long."""
    output: str
    counts: Counter[str] = field(default_factory=Counter)
    """How often it was at each place; empty when it was killed."""

    def judged(self, *expected: int) -> Problems:
        """Tracebacks, and an exit code that is none of those expected."""
        problems = []
        if self.code not in expected:
            ends = "did not end" if self.code is None else f"exit code {self.code}"
            problems.append(f"{ends} instead of {' or '.join(map(str, expected))}: {self.output[-300:]!r}")
        if TRACEBACK in self.output:
            problems.append(f"a traceback: {self.output.rpartition(TRACEBACK)[2][:600]!r}")
        return problems


class Process:
    """A `holdfast` command that runs."""

    def __init__(
        self, bench: Bench, words: Sequence[object], stop: Stop | None, largest: int | None, cache: Path
    ) -> None:
        self._bench, self._stop = bench, stop
        number = next(bench.numbers)
        self.log, self._counts = bench.folder / f"log-{number}.txt", bench.folder / f"counts-{number}.json"
        moment = stop.moment if stop else None
        exact = stop is not None and stop.after == 0 and stop.signals == (signal.SIGKILL,)
        self._reached, told = bench.fork.Pipe(duplex=False)
        job = _Job([str(word) for word in words], self.log, self._counts, cache, moment, exact, largest)
        self.process = bench.fork.Process(target=run_command, args=(job, told), daemon=True)
        self.process.start()
        told.close()
        bench.running.append(self)

    def wait_for_moment(self) -> bool:
        """Whether the moment came before the end of the command."""
        try:
            return self._reached.poll(self._bench.limit()) and bool(self._reached.recv())
        except EOFError:
            return False

    def end(self) -> Ended:
        """Wait for the end, stopping the command at its moment."""
        if self._stop is not None and self.wait_for_moment():
            time.sleep(self._stop.after)
            for number in self._stop.signals:
                self.send(number)
                time.sleep(0.05 * (len(self._stop.signals) > 1))
        self.process.join(self._bench.limit())
        code = self.process.exitcode
        self.close()
        counts = json.loads(self._counts.read_text()) if self._counts.is_file() else {}
        return Ended(code, self.output(), Counter(counts))

    def send(self, number: int) -> None:
        """A signal, if the command still runs."""
        if self.process.is_alive():
            os.kill(self.process.pid, number)

    def output(self) -> str:
        """What it has printed so far."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.is_file() else ""

    def close(self) -> None:
        """End it."""
        self.send(signal.SIGKILL)
        self.process.join()
        self._reached.close()
        self._bench.running.remove(self)


@dataclass
class Bench:
    """A folder and a seed for all cases."""

    folder: Path
    seed: int
    small: bool
    """A few of each."""
    slowest: float = 0.0
    """Seconds of the longest uninterrupted run."""
    running: list[Process] = field(default_factory=list)
    """The commands that a case has started."""

    def __post_init__(self) -> None:
        self.numbers: Iterator[int] = iter(range(10**9))
        self.fork = multiprocessing.get_context("forkserver")
        # A killed process leaves a lock of a progress bar, which Python's tracker warns of.
        os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.fork.set_forkserver_preload(LOADED)

    def limit(self) -> float:
        """Seconds for one command."""
        return SHORTEST_LIMIT + 4 * self.slowest

    def rng(self, name: str) -> random.Random:
        """The random numbers of one case, whichever others are run."""
        return random.Random(f"{self.seed} {name}")

    def start(
        self, *words: object, stop: Stop | None = None, largest: int | None = None, cache: Path | None = None
    ) -> Process:
        """Start `holdfast WORDS`, which may write no file of more than `largest` bytes."""
        return Process(self, words, stop, largest, cache or self.folder / "cache")

    def run(self, *words: object, **settings: Any) -> Ended:
        """`start`, until it ends."""
        return self.start(*words, **settings).end()

    def fresh(self, name: str) -> Path:
        """An empty folder."""
        folder = self.folder / name.replace("/", "-").replace(" ", "-")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    @contextmanager
    def nothing_left_running(self) -> Iterator[None]:
        """What a case started ends with it."""
        try:
            yield
        finally:
            for process in list(self.running):
                process.close()


# ---- inside the process of a command


@dataclass(frozen=True, slots=True)
class _Job:
    words: list[str]
    log: Path
    counts: Path
    cache: Path
    moment: Moment | None
    exact: bool
    """SIGKILL at the moment itself; else the parent is told of it."""
    largest: int | None
    """Bytes of the longest file that it may write."""


def quiet_process(log: Path, cache: Path) -> None:
    """Output into a file, signals as in a shell, one thread, nothing from the network."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
    os.dup2(file, 1)
    os.dup2(file, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["HOLDFAST_CACHE"] = str(cache)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run_command(job: _Job, told: Connection) -> None:
    """One `holdfast` command. Leaves with its exit code."""
    quiet_process(job.log, job.cache)
    from holdfast.cli.main import app

    places = _Places(job, told)
    places.watch()
    if job.largest is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (job.largest, job.largest))
    sys.argv = ["holdfast", *job.words]
    try:
        app(prog_name="holdfast")
    finally:
        if job.largest is None:
            job.counts.write_text(json.dumps(places.counts))


class _Places:
    """Counts how often this process is where; acts at its moment."""

    def __init__(self, job: _Job, told: Connection) -> None:
        self._job, self._told = job, told
        self._stage = ""
        self.counts: Counter[str] = Counter()

    def at(self, place: str) -> None:
        self.counts[place] += 1
        moment = self._job.moment
        if moment is None or (place, self.counts[place]) != (moment.place, moment.count):
            return
        if self._job.exact:
            os.kill(os.getpid(), signal.SIGKILL)
        self._told.send(True)

    def watch(self) -> None:
        """Learn of stages from the run's console, of files from Python, of steps from torch, of tokens from the
        sampler."""
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        from holdfast.cli.console import Lines
        from holdfast.model.sampler.hf import HFPolicy

        stage, poll = Lines.stage, HFPolicy.poll

        def staged(lines: Lines, name: str, total: int | None = None) -> None:
            self._stage = name.partition(" on ")[0]
            self.at(f"stage {self._stage}")
            stage(lines, name, total)

        def polled(policy: HFPolicy) -> Any:
            self.at("final evaluation" if self._stage == "final evaluation" else "rollout")
            return poll(policy)

        Lines.stage, HFPolicy.poll = staged, polled  # type: ignore[method-assign]
        register_optimizer_step_pre_hook(lambda *_: self.at("warm start" if self._stage == "warm start" else "update"))
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        writes = event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree")
        writes = writes or (event == "open" and isinstance(arguments[2], int) and bool(arguments[2] & WRITES))
        if not writes or not isinstance(arguments[0], str | Path):
            return
        path = str(arguments[0])
        if str(self._job.cache) in path:
            self.at("cache")
        elif "/checkpoints" in path:
            self.at("checkpoint")
        elif "/run/" in path or path.endswith("/run"):
            self.at("run folder")


# ---- two runs


def settings_of(root: Path, changes: dict[str, object]) -> list[str]:
    """The words that make `holdfast train` write the small run to root/run."""
    settings = RECIPE | {"run.dir": root, "run.name": "run"} | changes
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def compare(whole: Path, run: Path) -> Problems:
    """Whether a run has ended like the whole one, bit for bit; what a clock says is left out."""
    try:
        assert_same_run(whole, run)
        best = "checkpoints/best/model/model.safetensors"
        assert (whole / best).read_bytes() == (run / best).read_bytes(), best
        json.loads((run / "findings.json").read_text())  # which may speak of times
    except (AssertionError, OSError, ValueError) as error:
        return [f"not the run that nothing happened to: {type(error).__name__}: {error}"[:600]]
    return []
