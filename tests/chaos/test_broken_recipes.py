"""Recipes and settings that are broken at random: every refusal is a sentence, and in time. Broken rows, requests and
answers of servers are in tests/tasks and tests/retrieval, logs in tests/diagnose. Seeds are of `test_chaos.py`."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.diagnose import test_readers_fuzz as fuzz
from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.recipe import BUNDLED, setting_names

SEED = os.environ.get("HOLDFAST_CHAOS")
LIMIT = 60
"""Seconds for one broken input. A reader that takes longer hangs."""
TOML = ("true", "-1", "0", "1e999", "nan", "9" * 5000, "[" * 400, "[[1]]", "{}", '""', '"x"', '"\\u0000"', "1979-05-27")


def recipe(rng: random.Random, folder: Path) -> list[str]:
    """A bundled recipe with other values, or other bytes."""
    raw = rng.choice(sorted(BUNDLED.glob("*.toml"))).read_bytes()
    if rng.random() < 0.5:
        lines = raw.decode().splitlines()
        places = [i for i, line in enumerate(lines) if " = " in line]
        for i in rng.sample(places, min(len(places), rng.choice((1, 2, 5)))):
            lines[i] = f"{lines[i].partition(' = ')[0]} = {rng.choice(TOML)}"
        raw = "\n".join(lines).encode()
    else:
        raw = fuzz.broken_bytes(raw, rng)
    (folder / "a.toml").write_bytes(raw)
    return [str(folder / "a.toml"), "--run.dir", str(folder / "runs")]


def settings(rng: random.Random, _: Path) -> list[str]:
    """Values that no setting can have, as options."""
    names = rng.sample(sorted(setting_names()), rng.choice((1, 2, 4)))
    return [word for name in names for word in (f"--{name}", rng.choice((*TOML, str(fuzz.weird(rng)))))]


@pytest.fixture
def alarm() -> Iterator[None]:
    def hangs(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, hangs)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGALRM")
@pytest.mark.parametrize(("make", "count"), [(recipe, 200), (settings, 100)])
def test_what_is_broken_is_refused_in_a_sentence(
    make: Callable[[random.Random, Path], list[str]], count: int, tmp_path: Path, alarm: None
) -> None:
    for number in range(4 if SEED is None else count):
        words = make(random.Random(f"{SEED or 0} {make.__name__} {number}"), tmp_path)
        signal.alarm(LIMIT)
        result = CliRunner().invoke(app, ["train", *words, "--dry-run"])
        assert result.exception is None or isinstance(result.exception, SystemExit), (number, words, result.exception)
        assert result.exit_code in (0, 1, 2) and "Traceback" not in result.output, (number, words, result.output)
