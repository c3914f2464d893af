"""Recipes and settings that are broken at random: every refusal is a sentence. Broken rows, requests and answers of
servers are in tests/data, tests/retrieval and tests/train/test_outages.py, logs in tests/diagnose."""

from __future__ import annotations

import json
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.chaos.kit import ROOT, TRACEBACK, Bench, Case, Outcome, quiet_process
from tests.chaos.runs import Runs
from tests.diagnose import test_readers_fuzz as fuzz

RECIPES = ROOT / "src" / "holdfast" / "recipe" / "bundled"
INPUT_LIMIT = 60
"""Seconds for one broken input. A reader that takes longer hangs."""


Input = tuple[str, dict[str, bytes], list[str]]
"""Its name, files to write, and the command, in which `{}` is the folder of the files."""


def inputs(bench: Bench, _: Runs) -> list[Case]:
    """Files broken at random, for the commands that read them. Many commands in one process, none of which trains."""
    sizes = {recipes: 200, settings: 100}
    return [
        (f"broken {make.__name__}", partial(read, bench, make, 4 if bench.small else count))
        for make, count in sizes.items()
    ]


TOML = ("true", "-1", "0", "1e999", "nan", "9" * 5000, "[" * 400, "[[1]]", "{}", '""', '"x"', '"\\u0000"', "1979-05-27")


def recipes(rng: random.Random) -> Input:
    """For `holdfast train`, which reads them and trains nothing."""
    path = rng.choice(sorted(RECIPES.glob("*.toml")))
    raw = path.read_bytes()
    if rng.random() < 0.5:
        lines = raw.decode().splitlines()
        places = [i for i, line in enumerate(lines) if " = " in line]
        for i in rng.sample(places, min(len(places), rng.choice((1, 2, 5)))):
            lines[i] = f"{lines[i].partition(' = ')[0]} = {rng.choice(TOML)}"
        raw = "\n".join(lines).encode()
    else:
        raw = fuzz.broken_bytes(raw, rng)
    return path.name, {"a.toml": raw}, ["train", "{}/a.toml", "--dry-run", "--run.dir", "{}/runs"]


def settings(rng: random.Random) -> Input:
    """For `holdfast train`: values that no setting can have, as options."""
    from holdfast.recipe import setting_names

    words = []
    for name in rng.sample(sorted(setting_names()), rng.choice((1, 2, 4))):
        words += [f"--{name}", rng.choice((*TOML, str(fuzz.weird(rng))))]
    return " ".join(words)[:100], {}, ["train", *words, "--dry-run"]


def read(bench: Bench, make: Callable[[random.Random], Input], count: int) -> Outcome:
    """So many broken inputs, in one process. Each ends with 0, 1 or 2, without a traceback, in time."""
    root = bench.fresh(f"broken {make.__name__}")
    process = bench.fork.Process(target=read_all, args=(make, count, bench.seed, root, bench.folder), daemon=True)
    process.start()
    process.join()
    rows = [json.loads(line) for line in (root / "outcomes.jsonl").read_text().splitlines()]
    codes = Counter(row["code"] for row in rows)
    bad = [row for row in rows if row["problem"]]
    outcome = Outcome(
        tracebacks=sum(row["problem"] == "traceback" for row in bad),
        lost=count - len(rows),
        wrong=sum(row["problem"] != "traceback" for row in bad),
        said=f"{len(rows)} inputs, exit codes {dict(sorted(codes.items()))}",
    )
    for row in bad[:10]:
        outcome += Outcome(said=f"{row['problem']} at input {row['number']} ({row['name']}): {row['said']}")
    return outcome


class Hangs(BaseException):
    """An input that took longer than `INPUT_LIMIT`."""


def read_all(make: Callable[[random.Random], Input], count: int, seed: int, root: Path, shared: Path) -> None:
    """In a process of its own: writes a row for each input to outcomes.jsonl. Inputs that failed stay."""
    quiet_process(root / "log.txt", shared / "cache")
    signal.signal(signal.SIGALRM, _hangs)
    with (root / "outcomes.jsonl").open("w") as file:
        for number in range(count):
            name, files, words = make(random.Random(f"{seed} {make.__name__} {number}"))
            folder = root / str(number)
            folder.mkdir()
            for path, raw in files.items():
                (folder / path).write_bytes(raw)
            code, problem, said = run_in_process([word.replace("{}", str(folder)) for word in words])
            row = {"number": number, "name": name, "code": code, "problem": problem, "said": said}
            file.write(json.dumps(row) + "\n")
            file.flush()
            if not problem:
                shutil.rmtree(folder)


def _hangs(*_: object) -> None:
    raise Hangs


def run_in_process(words: Sequence[str]) -> tuple[int, str, str]:
    """Exit code, problem if any, and what was said of it."""
    from typer.testing import CliRunner

    from holdfast.cli.main import app

    signal.setitimer(signal.ITIMER_REAL, INPUT_LIMIT)
    try:
        result = CliRunner().invoke(app, list(words))
    except Hangs:
        return -1, "no end", f"{INPUT_LIMIT} s"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if (result.exception is not None and not isinstance(result.exception, SystemExit)) or TRACEBACK in result.output:
        return result.exit_code, "traceback", f"{type(result.exception).__name__}: {result.exception}"[:300]
    if result.exit_code not in (0, 1, 2):
        return result.exit_code, f"exit code {result.exit_code}", result.output[-300:]
    return result.exit_code, "", ""
