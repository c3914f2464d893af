"""Attack holdfast: stop it, let it run out of room, start it twice. Each run must end like the run that nothing
happened to, bit for bit. Damaged files are in tests/train.

    make chaos                                     # everything
    make chaos ARGS="-k 'killed 3'"                # one case
    HOLDFAST_CHAOS=7 make chaos ARGS="-k stops"    # one group, other random moments

Without HOLDFAST_CHAOS, which is the seed, a few of each are tried. A case holds when no byte differs (times left out),
nothing is a traceback, and every command ends as it should: finished, or refused in a sentence.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("processes are forked", allow_module_level=True)

from tests.chaos.kit import RECIPE, Bench, Case, Ended, Moment, Problems, Stop, compare, settings_of

KILL, TERM, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
STEPS = int(str(RECIPE["train.steps"]))
KILLS = (
    ("warm start", "cache"),
    ("cache", "rollout", "checkpoint"),
    ("update", "checkpoint", "final evaluation"),
    ("rollout", "update", "run folder"),
    ("run folder", "checkpoint", "final evaluation"),
    ("checkpoint", "rollout", "checkpoint"),
    ("warm start", "update"),
)
"""Where the process is killed: a row for each run, which is resumed after each kill. 19 in all."""
COLD = ("warm start", "cache")
"""Places that a run whose warm start is cached may not come to."""
REFUSED, INTERRUPTED, TERMINATED = 2, 130, 143


class Runs:
    """The uninterrupted run that others are compared with, made when it is first needed."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.counts: Counter[str] = Counter()
        self._whole: Path | None = None

    @property
    def whole(self) -> Path:
        """Its folder. From then on its start is in the cache. Raises `RuntimeError` if it fails."""
        if self._whole is None:
            bench, began = self.bench, time.monotonic()
            bench.slowest = 60.0  # nothing is known yet
            root = bench.fresh("whole")
            ended = bench.run("train", *settings_of(root, {}))
            if ended.code != 0:
                raise RuntimeError(f"the run to compare with failed:\n{ended.output[-3000:]}")
            if unmet := {place for places in KILLS for place in places} - ended.counts.keys():
                raise RuntimeError(f"the run to compare with never came to {', '.join(sorted(unmet))}")
            bench.slowest = time.monotonic() - began
            self.counts = ended.counts
            self._whole = root / "run"
        return self._whole

    def go_on(
        self, run: Path, *, stop: Stop | None = None, largest: int | None = None, cache: Path | None = None
    ) -> Ended:
        """Resume a run, or begin it if it was stopped before it had a recipe."""
        words = ["resume", str(run)] if (run / "config.toml").is_file() else ["train", *settings_of(run.parent, {})]
        return self.bench.run(*words, stop=stop, largest=largest, cache=cache)

    def finish(self, run: Path, cache: Path | None = None) -> Problems:
        """Resume a run without interruption: it must end well, and as the whole one."""
        return self.go_on(run, cache=cache).judged(0) + compare(self.whole, run)

    def moment(self, rng: random.Random, place: str, run: Path) -> Moment:
        """A random moment of what is left of a run, early enough to be met."""
        steps = [int(f.name.removeprefix("step-")) for f in (run / "checkpoints").glob("step-*") if f.is_dir()]
        left = 1 - max(steps, default=0) / STEPS
        if place in ("rollout", "update", "checkpoint", "run folder") and left == 0:
            place = "final evaluation"
        elif place in ("rollout", "update", "checkpoint", "run folder"):
            return Moment(place, rng.randint(1, max(1, int(0.8 * self.counts[place] * left))))
        begun = (run / "final_evaluation.json").is_file()
        return Moment(place, rng.randint(1, max(1, self.counts[place] // (2 if begun else 1))))


def stops(bench: Bench, runs: Runs) -> list[Case]:
    """Runs that are stopped at random moments, and resumed until they are done."""

    def again() -> Problems:
        whole, root = runs.whole, bench.fresh("again")
        return bench.run("train", *settings_of(root, {})).judged(0) + compare(whole, root / "run")

    def killed(name: str, places: tuple[str, ...]) -> Problems:
        run, rng = bench.fresh(name) / "run", bench.rng(name)
        whole = runs.whole
        cache = run.parent / "cache" if places[0] in COLD else bench.folder / "cache"
        problems, met = Problems(), []
        for place in places:
            moment = runs.moment(rng, place, run)
            ended = runs.go_on(run, stop=Stop(moment, after=rng.choice((0.0, 0.0, rng.random() / 5))), cache=cache)
            met += [f"{moment.place} {moment.count}"] * (ended.code == -KILL)
            problems += ended.judged(-KILL, 0)
            if ended.code == 0:
                break
        if not (run / "results.json").is_file():
            problems += runs.go_on(run, cache=cache).judged(0)
        problems += compare(whole, run)
        return [f"{len(met)} kills ({', '.join(met)})", *problems] if problems else []

    def signalled(name: str, signals: tuple[signal.Signals, ...], place: str) -> Problems:
        run, rng = bench.fresh(name) / "run", bench.rng(name)
        whole = runs.whole
        moment = runs.moment(rng, place, run)
        ended = runs.go_on(run, stop=Stop(moment, signals, after=rng.random() / 20))
        code = INTERRUPTED if signals[0] == INT else TERMINATED
        problems = ended.judged(code, 0)
        if ended.code == code and "holdfast resume" not in ended.output and (run / "config.toml").is_file():
            problems.append(f"does not say how to go on: {ended.output[-300:]!r}")
        problems += runs.finish(run) if ended.code else compare(whole, run)
        return [f"at {moment.place} {moment.count}, exit code {ended.code}", *problems] if problems else []

    cases: list[Case] = [("uninterrupted again", again)]
    for number, places in enumerate(KILLS[-1:] if bench.small else KILLS, 1):
        cases.append((f"killed {number}", partial(killed, f"killed {number}", places)))
    for name, signals, place in (
        ("SIGTERM", (TERM,), "update"),
        ("SIGTERM twice", (TERM, TERM), "checkpoint"),
        ("SIGINT", (INT,), "rollout"),
        ("SIGINT twice", (INT, INT), "checkpoint"),
    ):
        cases.append((name, partial(signalled, name, signals, place)))
    return cases


# ---- disks


def disks(bench: Bench, runs: Runs) -> list[Case]:
    """Disks without room. What was saved stays, and the run goes on once there is room."""

    def short_of_room(share: float) -> Problems:
        name = f"files up to {share:.0%}"
        whole, run = runs.whole, bench.fresh(name) / "run"
        largest = max(path.stat().st_size for path in whole.rglob("*.safetensors"))
        ended = runs.go_on(run, largest=int(share * largest))
        return ended.judged(REFUSED) + runs.finish(run)

    shares = (0.5,) if bench.small else (0.01, 0.3, 0.9)
    return [(f"files up to {share:.0%}", partial(short_of_room, share)) for share in shares]


# ---- two processes


def pairs(bench: Bench, runs: Runs) -> list[Case]:
    """Two processes that want one folder: one works, the other is refused."""

    def beside() -> Problems:
        whole, root = runs.whole, bench.fresh("beside")
        words = settings_of(root, {})
        first = bench.start("train", *words, stop=Stop(Moment("update", 1), signals=()))
        if not first.wait_for_moment():
            return [f"the first process did not come to an update: {first.output()[-300:]!r}"]
        problems = bench.run("resume", root / "run").judged(REFUSED)
        problems += bench.run("train", *words).judged(REFUSED)
        problems += bench.run("train", *words, "--overwrite").judged(REFUSED)
        return problems + first.end().judged(0) + compare(whole, root / "run")

    return [("beside a run", beside)]


# ---- the cases


SEED = os.environ.get("HOLDFAST_CHAOS")
GROUPS: dict[str, Callable[[Bench, Runs], list[Case]]] = {make.__name__: make for make in (stops, disks, pairs)}


def bench_in(folder: Path) -> Bench:
    return Bench(folder, seed=int(SEED or 0), small=SEED is None)


def names() -> list[tuple[str, str]]:
    """Every case; making the list starts nothing."""
    bench = bench_in(Path())
    return [(group, name) for group, make in GROUPS.items() for name, _ in make(bench, Runs(bench))]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return bench_in(tmp_path_factory.mktemp("chaos"))


@pytest.fixture(scope="module")
def made(bench: Bench) -> Runs:
    return Runs(bench)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("group", "name"), names(), ids=lambda word: word)
def test_a_case_holds(group: str, name: str, bench: Bench, made: Runs) -> None:
    with bench.nothing_left_running():
        assert not dict(GROUPS[group](bench, made))[name]()
