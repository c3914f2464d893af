"""Freeze the behaviour: replay fixed runs and compare them with what was recorded.

    make golden                          # everything; 5 minutes the first time, 2 after that
    make golden ARGS="findings table"    # some parts
    make golden ARGS="--record runs"     # after a change of behaviour that is meant; commit it with that change

Parts:
    starts      the warm-started policies of quickstart and flaky, by checksum (--fresh makes them anew)
    runs        10 steps of quickstart and flaky on one thread: every metric of every step
    resumes     the same runs, stopped after step 5 and resumed: equal to the runs
    findings    the codes and steps that the rules find in every recorded run
    evaluation  one `holdfast eval` with the agent, one with a prompting method
    table       one row of `holdfast table make`, trained and evaluated
    hosts       three equal steps of the local trainer, TRL and verl (where their environments are installed)

On the kind of CPU that made the recording, everything is equal bit for bit. On another kind, sums are rounded
otherwise: the starting policy is another, and so is every number after it. There the same metrics must be logged, and
the mean reward of the ten steps must be within 0.15 of the recorded one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
EXPECTED = Path(__file__).parent / "expected"
WORK = ROOT / "build" / "golden"
RECIPES = ("quickstart", "flaky")
STEPS, STOP = 10, 5
REWARD_WITHIN = 0.15
"""Of the recorded mean reward, on another kind of CPU: three standard deviations between warm starts."""
TIMED = ("time", "tokens_per_s", "retrieval/latency_ms")
"""Measured, and never the same: `time` and all of `time/…` too."""
ADDED = ("drift/", "isdd/", "ratio/log_product/", "displacement/action_fraction", "displacement/correct/",
         "displacement/incorrect/", "centering/", "control/", "negative/",
         "entropy/before", "entropy/after", "likelihood/before", "likelihood/after", "rollout/repetition")  # fmt: skip
"""Beginnings of metrics that may be younger than the recording. One that the recording has is compared."""
LATE_ACTION = re.compile(r"/action_[3-9]$")
"""Of the k-th action: whether any rollout has so many is chance, which another CPU draws otherwise."""

SELF_CHECKED = ("resumes", "hosts")
"""Parts with nothing to record: they compare two things that are made now."""

Numbers = dict[str, Any]


class Different(Exception):
    """What was replayed is not what was recorded."""


# ---- the parts: each returns what is recorded of it, as JSON


def starts(fresh: bool) -> Numbers:
    return {recipe: _digest(_start(recipe, fresh) / "model.safetensors") for recipe in RECIPES}


def runs(fresh: bool) -> Numbers:
    return {recipe: metrics_of(_trained(recipe, fresh)) for recipe in RECIPES}


def resumes(fresh: bool) -> Numbers:
    """Every run once more from its middle. Nothing is recorded: it must equal the whole run."""
    for recipe in RECIPES:
        whole = _trained(recipe, fresh)
        folder = whole.with_name(f"{recipe}-resumed")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)
        shutil.rmtree(folder / "checkpoints" / f"step-{STEPS:06d}")
        (folder / "results.json").unlink()
        _holdfast("resume", str(folder))
        if problems := list(differences(metrics_of(whole), metrics_of(folder), recipe)):
            raise Different("\n    ".join(["the resumed run differs from the whole one", *problems[:20]]))
        for name in ("trajectories.jsonl", "displacement.jsonl"):
            if (folder / name).read_bytes() != (whole / name).read_bytes():
                raise Different(f"{recipe}: {name} of the resumed run differs")
    return {}


def findings(fresh: bool, watch: Callable[[Any, Any], None] = lambda log, diagnosis: None) -> Numbers:
    """`watch` is given every log and its diagnosis."""
    sys.path.insert(0, str(ROOT / "research" / "src"))
    from holdfast.diagnose.diagnose import diagnose
    from holdfast_research.recordings.library import load, read_manifest

    found = {}
    for recording in read_manifest():
        for stock in (False, True) if recording.host == "trl" else (False,):
            log = load(recording, stock=stock)
            diagnosis = diagnose(log)
            watch(log, diagnosis)
            half = diagnosis.course.half
            found[recording.name + (" (stock)" if stock else "")] = {
                "findings": " ".join(f"{f.code}@{f.certain}" for f in diagnosis.findings if not f.by_verdict),
                "cannot tell": " ".join(c.code for c in diagnosis.cannot_tell),
                "fall": [None, None] if half is None else [half.peak_step, half.step],
            }
    return found


def evaluation(fresh: bool) -> Numbers:
    folder = _trained("quickstart", fresh)
    found = {}
    for method in ("search-r1", "ircot"):
        out = _fresh_folder(f"eval-{method}")
        _holdfast("eval", "run", str(folder), "--method", method, "--limit", "20", "--out", str(out))
        found[method] = {p.name: _rows(p.read_text()) for p in sorted(out.iterdir()) if p.suffix == ".jsonl"}
    return found


def table(fresh: bool) -> Numbers:
    out = _fresh_folder("table")
    _holdfast("table", "make", "world", "--rows", "GSPO + LLDS", "--short", "--jobs", "1", "--out", str(out))
    return {"table.csv": (out / "table.csv").read_text()}


def hosts(fresh: bool) -> Numbers:
    """The tests of equality themselves; what is recorded is that they pass."""
    tests = {
        "trl": ["tests/adapters/trl/test_trl_equals_local.py"],
        "verl": ["tests/adapters/verl/test_verl_training.py"],
    }
    for host, files in tests.items():
        python = ROOT / f".venv-{host}" / "bin" / "python"
        if not python.exists():
            print(f"  {host} is not installed: `make contracts-{host}` installs it", flush=True)
            continue
        done = subprocess.run([str(python), "-m", "pytest", "-q", "-x", *files], cwd=ROOT, env=_environment())
        if done.returncode:
            raise Different(f"{host} and the local trainer differ: {files[0]}")
    return {}


PARTS: dict[str, Callable[[bool], Numbers]] = {
    part.__name__: part for part in (starts, runs, resumes, findings, evaluation, table, hosts)
}


# ---- how they are replayed


def _start(recipe: str, fresh: bool) -> Path:
    """The warm-started policy of a recipe. Kept between calls unless `fresh`: it takes minutes."""
    folder = WORK / "starts" / recipe
    if (fresh and recipe not in _STARTED) or not (folder / "model").is_dir():
        shutil.rmtree(folder, ignore_errors=True)
        where = ("--run.dir", str(folder.parent), "--run.name", recipe, "--run.threads", "1")
        _holdfast("warm-start", recipe, *where)
    _STARTED.add(recipe)
    return folder / "model"


_STARTED: set[str] = set()
_DONE: set[str] = set()
"""Recipes whose start, or whose run, this call has made."""


def _trained(recipe: str, fresh: bool) -> Path:
    """Ten steps of a recipe, made once per call of this script."""
    folder = WORK / "runs" / recipe
    if recipe not in _DONE:
        start = _start(recipe, fresh)
        shutil.rmtree(folder, ignore_errors=True)
        settings = {
            "model.path": start,
            "warm_start.steps": 0,
            "world.scripts.plain_steps": 0,
            "run.dir": folder.parent,
            "run.name": recipe,
            "run.threads": 1,
            "world.test_questions": 40,
            "train.steps": STEPS,
            "train.warmup": 2,
            "eval.every": STOP,
            "eval.questions": 20,
            "checkpoint.every": STOP,
        }
        words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        _holdfast("train", recipe, *words)
        _DONE.add(recipe)
    return folder


def _holdfast(*words: str) -> None:
    command = [sys.executable, "-m", "holdfast_research" if words[0] == "table" else "holdfast", *words]
    print(f"  holdfast {' '.join(words[:2])} …", flush=True)
    done = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True)
    if done.returncode:
        raise Different(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")


def _environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "HOLDFAST_CACHE": str(WORK / "cache"), "HF_HUB_OFFLINE": "1"}


def _fresh_folder(name: str) -> Path:
    shutil.rmtree(WORK / name, ignore_errors=True)
    (WORK / name).mkdir(parents=True)
    return WORK / name


def metrics_of(run: Path) -> list[Numbers]:
    """Rows of metrics.jsonl without what a clock says."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in TIMED and not k.startswith("time/")} for row in rows]


def without_younger(recorded: Numbers, replayed: Numbers) -> Numbers:
    """The replayed runs without the metrics of `ADDED` that the recorded run of the recipe does not have."""
    known = {recipe: {name for row in rows for name in row} for recipe, rows in recorded.items()}
    return {
        recipe: [{k: v for k, v in row.items() if k in known[recipe] or not k.startswith(ADDED)} for row in rows]
        for recipe, rows in replayed.items()
    }


def _rows(text: str) -> list[str]:
    """The prediction of every answer, and a checksum of all that is kept of it."""
    rows = [{k: v for k, v in json.loads(line).items() if "second" not in k} for line in text.splitlines()]
    digests = [hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:16] for row in rows]
    return [f"{row.get('prediction')} {digest}" for row, digest in zip(rows, digests, strict=True)]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ---- how they are compared


def machine() -> dict[str, str]:
    """What the rounding of sums depends on."""
    import torch

    model = "unknown"
    if (cpuinfo := Path("/proc/cpuinfo")).is_file():
        lines = (line.partition(":") for line in cpuinfo.read_text().splitlines())
        model = next((value.strip() for name, _, value in lines if name.strip() == "model name"), model)
    kind = f"{platform.machine()} {model} {torch.backends.cpu.get_cpu_capability()}"
    return {"cpu": kind, "torch": torch.__version__.partition("+")[0]}


def differences(recorded: Any, replayed: Any, where: str = "") -> Iterator[str]:
    """Every place at which two JSON values differ."""
    if isinstance(recorded, Mapping) and isinstance(replayed, Mapping):
        for name in [*recorded, *(name for name in replayed if name not in recorded)]:
            if name not in recorded or name not in replayed:
                yield f"{where}/{name} is {'new' if name in replayed else 'missing'}"
            else:
                yield from differences(recorded[name], replayed[name], f"{where}/{name}")
    elif isinstance(recorded, list) and isinstance(replayed, list) and len(recorded) == len(replayed):
        for i, (a, b) in enumerate(zip(recorded, replayed, strict=True)):
            yield from differences(a, b, f"{where}[{i}]")
    elif recorded != replayed:
        yield f"{where}: recorded {_short(recorded)}, replayed {_short(replayed)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 120 else f"{text[:117]}…"


def roughly(recorded: Numbers, replayed: Numbers) -> Iterator[str]:
    """Runs on another kind of CPU: the same metrics, and about the same reward."""
    for recipe in RECIPES:
        names, rewards = [], []
        for rows in (recorded[recipe], replayed[recipe]):
            every = {name for row in rows for name in row}
            names.append({name for name in every if not name.startswith(ADDED) and not LATE_ACTION.search(name)})
            rewards.append(mean(row["reward/mean"] for row in rows if "reward/mean" in row))
        if names[0] != names[1]:
            yield f"{recipe}: metrics {sorted(names[0] ^ names[1])} are logged by one only"
        if abs(rewards[0] - rewards[1]) > REWARD_WITHIN:
            yield f"{recipe}: mean reward {rewards[1]:.3f}, recorded {rewards[0]:.3f}"


def check(part: str, replayed: Numbers) -> str:
    """`equal`, or in what way it is good enough. Raises `Different`."""
    if part in SELF_CHECKED:
        return "equal"
    expected = json.loads((EXPECTED / f"{part}.json").read_text(encoding="utf-8"))
    recorded = expected["recorded"]
    exact = part == "findings" or expected["machine"] == machine()
    if not exact and part != "runs":
        return "not compared (another kind of CPU or torch)"
    if part == "runs":
        replayed = without_younger(recorded, replayed)
    problems = list(differences(recorded, replayed) if exact else roughly(recorded, replayed))
    if problems:
        raise Different("\n    ".join([f"{len(problems)} differences", *problems[:20]]))
    return "equal" if exact else "alike (another kind of CPU or torch)"


def record(part: str, replayed: Numbers) -> None:
    EXPECTED.mkdir(exist_ok=True)
    text = json.dumps({"machine": machine(), "recorded": replayed}, indent=0, ensure_ascii=False, sort_keys=True)
    (EXPECTED / f"{part}.json").write_text(text + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], metavar="PART")
    parser.add_argument("--record", action="store_true", help="write what is replayed as the new recording")
    parser.add_argument("--fresh", action="store_true", help="make the warm starts anew")
    arguments = parser.parse_args()
    failed = False
    for part in arguments.parts or PARTS:
        print(f"{part}:", flush=True)
        try:
            replayed = PARTS[part](arguments.fresh)
            if arguments.record and part not in SELF_CHECKED:
                record(part, replayed)
                print("  recorded")
            else:
                print(f"  {check(part, replayed)}")
        except Different as different:
            failed = True
            print(f"  DIFFERENT: {different}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
