"""The library of recorded runs: what is in it, how a log is packed, and the copies made of it on the fly.

`recordings/manifest.json` has a row for every run; beside it lies the run's log, as its host wrote it, gzipped, with
numbers rounded to five digits. Runs belong to an organism (one recipe, world and model, on one host), and an organism
to one side of the split: thresholds may be chosen on `calibration`, and are judged on `held-out`.
"""

from __future__ import annotations

import gzip
import json
import math
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from holdfast.collapse import halved
from holdfast.config import Config
from holdfast.diagnostics.log import Log, Series, reward_curve
from holdfast.penalties import PENALTIES
from holdfast_research.former_settings import renamed
from holdfast_research.paths import RECORDINGS

FOLDER = RECORDINGS
MANIFEST = "manifest.json"
LOGS = {"holdfast": "metrics.jsonl", "trl": "trainer_state.json"}  # the host's own names
DIGITS = 5
OURS = "holdfast/"  # what the observer adds to TRL's log


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One run."""

    name: str
    organism: str
    host: str
    split: str
    cause: str
    """What was done to the run: `healthy-…`, or the fault that was put in."""
    also: tuple[str, ...] = ()
    """Other faults the run has, which did not decide how it went: a finding that names one is no false alarm."""
    seed: int
    steps: int
    """Rollout batches."""
    start: int = 0
    """The rollout batch before which the fault began; 0: it was there from the first."""
    every: int = 1
    """Steps of the log between rollout batches: TRL counts optimizer steps."""
    how: str
    """A sentence: what makes the run what it is."""
    recipe: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the run's resolved recipe has that is no default."""
    fall: tuple[int, int] | None = None
    """In steps of the log, by `holdfast.collapse`: where the reward peaked, and where half of that was lost."""

    @property
    def healthy(self) -> bool:
        return self.cause.startswith("healthy")


def read_manifest(folder: Path = FOLDER) -> list[Recording]:
    """Every recording, in the order of the file."""
    rows = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["recordings"]
    return [
        Recording(**row | {"also": tuple(row["also"]), "fall": tuple(row["fall"]) if row["fall"] else None})
        for row in rows
    ]


def write_manifest(recordings: Iterable[Recording], versions: Mapping[str, str], folder: Path = FOLDER) -> None:
    """A row a line, so that a new run is a new line."""
    rows = ",\n".join(
        json.dumps(asdict(r), sort_keys=False) for r in sorted(recordings, key=lambda r: (r.split, r.name))
    )
    text = f'{{"versions": {json.dumps(versions, sort_keys=True)},\n"recordings": [\n{rows}\n]}}\n'
    (folder / MANIFEST).write_text(text, encoding="utf-8")


# ---- a log, packed and unpacked


def packed(path: Path, host: str) -> bytes:
    """A host's log, smaller: numbers rounded, and times of day left out. The same log gives the same bytes."""
    if host == "trl":
        text = json.dumps(_short(json.loads(path.read_text(encoding="utf-8"))), separators=(",", ":"))
    else:
        text = shortened(path.read_text(encoding="utf-8"))
    return gzip.compress(text.encode(), 9, mtime=0)


def shortened(rows: str) -> str:
    """A metrics.jsonl with numbers rounded, and times of day left out."""
    lines = [json.loads(line) for line in rows.splitlines()]
    return "".join(json.dumps(_short({k: v for k, v in row.items() if k != "time"})) + "\n" for row in lines)


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_short(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) and math.isfinite(value) else value


def log_file(recording: Recording, folder: Path = FOLDER) -> Path:
    """Where its packed log lies."""
    return folder / f"{recording.name}{Path(LOGS[recording.host]).suffix}.gz"


def unpack(recording: Recording, into: Path, folder: Path = FOLDER, *, stock: bool = False) -> Path:
    """The log as its host leaves it, in a folder of the run's name; the path that `holdfast diagnose` takes.

    `stock` leaves out what our observer adds to TRL's log: what a user without it has.
    """
    own = into / recording.name
    own.mkdir(parents=True, exist_ok=True)
    text = gzip.decompress(log_file(recording, folder).read_bytes()).decode()
    if stock:
        state = json.loads(text)
        state["log_history"] = [
            {k: v for k, v in row.items() if not k.removeprefix("eval_").startswith(OURS)}
            for row in state["log_history"]
        ]
        text = json.dumps(state)
    (own / LOGS[recording.host]).write_text(text, encoding="utf-8")
    if recording.host == "holdfast":
        (own / "config.toml").write_text(tomli_w.dumps(_settings(recording)), encoding="utf-8")
        return own
    return own / LOGS[recording.host]


def load(recording: Recording, folder: Path = FOLDER, *, stock: bool = False) -> Log:
    """As `holdfast diagnose` reads it."""
    from holdfast.diagnostics.readers import read_log

    with tempfile.TemporaryDirectory() as temporary:
        return read_log(unpack(recording, Path(temporary), folder, stock=stock))


def _settings(recording: Recording) -> dict[str, Any]:
    """The whole recipe; unchecked, for some runs have what a recipe refuses."""

    def merged(base: Any, own: Any) -> Any:
        if not isinstance(base, dict):
            return own
        return {key: merged(value, own[key]) if key in own else value for key, value in base.items()}

    def present(value: Any) -> Any:
        return {k: present(v) for k, v in value.items() if v is not None} if isinstance(value, dict) else value

    whole = Config().model_dump(mode="json")
    method = recording.settings.get("loss", {}).get("penalty", {}).get("name", whole["loss"]["penalty"]["name"])
    whole["loss"]["penalty"] = PENALTIES[method]().model_dump(mode="json")
    return dict(present(merged(whole, renamed(recording.settings))))


# ---- copies: what a log of the same run might have looked like


def copies(log: Log, name: str, count: int = 5) -> dict[str, Log]:
    """Noisy, thinned, incomplete and cut copies of a log; the same name gives the same copies.

    `noise`: every series plus a tenth of its spread; `half` and `fifth`: every 2nd and 5th row; `gaps`: a quarter of
    the series missing, never the reward; `cut`: the last quarter is missing.
    """
    made = {
        "noise": _noisy(log, np.random.default_rng(list(f"{name}/noise".encode()))),
        "half": _only(log, log.steps[1::2]),
        "fifth": _only(log, log.steps[4::5]),
        "gaps": _gaps(log, np.random.default_rng(list(f"{name}/gaps".encode()))),
        "cut": log.until(int(log.steps[len(log.steps) * 3 // 4])),
    }
    return dict(list(made.items())[:count])


_COUNTS = (
    "optimizer_steps_per_rollout",
    "displacement/rollouts",
    "lr",
    "grad/skipped_steps",
)  # set, or counted: no noise


def _noisy(log: Log, rng: np.random.Generator) -> Log:
    def one(name: str, series: Series) -> Series:
        values = series.values
        finite = values[np.isfinite(values)]
        if name in _COUNTS or len(finite) < 3:
            return series
        # The spread around its own course, by first differences: a long way down is no noise.
        low, high = np.quantile(finite, [0.05, 0.95])
        return Series(series.steps, values + rng.normal(0, 0.1 * (high - low), len(values)))

    return replace(log, series={name: one(name, series) for name, series in log.series.items()})


def _only(log: Log, steps: np.ndarray) -> Log:
    series = {}
    for name, whole in log.series.items():
        kept = np.isin(whole.steps, steps)
        if kept.any():
            series[name] = Series(whole.steps[kept], whole.values[kept])
    return replace(log, series=series, steps=steps)


def _gaps(log: Log, rng: np.random.Generator) -> Log:
    names = [name for name in log.series if name != "reward/mean"]
    gone = set(rng.choice(names, len(names) // 4, replace=False))
    return replace(log, series={name: series for name, series in log.series.items() if name not in gone})


def measured(recording: Recording, folder: Path = FOLDER) -> Recording:
    """The recording, with the fall of its packed log."""
    curve = reward_curve(load(recording, folder))
    fall = None if curve is None else halved(curve)
    return replace(recording, fall=None if fall is None else (fall.peak_step, fall.step))
