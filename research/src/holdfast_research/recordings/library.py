"""The library of recorded runs: the manifest, and packed logs.

`recordings/manifest.json` has a row for every run. The logs are in one file beside it, as the hosts wrote them, with
numbers rounded to five digits. Every run belongs to a testbed (one recipe, world and model, on one host), and every
testbed to one side of the split: thresholds may be chosen on `calibration` and `tuning`, and are judged on `held-out`.
The runs are not made again; what made them is in the history of the repository.
"""

from __future__ import annotations

import json
import lzma
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import tomli_w

from holdfast.base.files import replacing
from holdfast.diagnose.log import Log
from holdfast.methods.penalties import PENALTIES
from holdfast.recipe import Config
from holdfast_research.former_names import renamed, with_present_metrics
from holdfast_research.paths import RECORDINGS

FOLDER = RECORDINGS
MANIFEST = "manifest.json"
PACKED = "logs.json.xz"
LOGS = {"holdfast": "metrics.jsonl", "trl": "trainer_state.json"}
"""Host -> the name of its log."""
SINGLE_TURN = ("practice", "fourth")
"""Sets of single-turn runs in TRL, each in a folder of its own."""
REAL_MODEL = "real-model"
"""Search agents that are a pretrained language model."""
SETS = (*SINGLE_TURN, REAL_MODEL)
_DIGITS = 5
_OBSERVED = "holdfast/"  # prefix of what the observer adds to TRL's log


def folder_of(name: str) -> Path:
    """The folder of one of `SETS`."""
    return FOLDER.with_name(f"{FOLDER.name}-{name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One run."""

    name: str
    testbed: str
    host: str
    split: str
    cause: str
    """`healthy-…`, or what the fault that was put in leads to."""
    also: tuple[str, ...] = ()
    """Other causes the run has, which did not decide how it went: a finding that names one is not a false alarm."""
    seed: int
    steps: int
    """Rollout batches."""
    start: int = 0
    """The rollout batches before the fault began."""
    every: int = 1
    """Steps of the log between rollout batches: TRL counts optimizer steps."""
    how: str
    """A sentence: what makes the run what it is."""
    recipe: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Nested settings of the run's resolved recipe that differ from the defaults, by the names of their time."""
    fall: tuple[int, int] | None = None
    """The steps at which the reward peaked, and at which half of that was lost (`holdfast.diagnose.log.collapse`)."""

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong with the run."""
        return self.cause.startswith("healthy")


def read_manifest(folder: Path = FOLDER) -> list[Recording]:
    """Every recording, in the order of the file."""
    rows = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["recordings"]
    return [
        Recording(**row | {"also": tuple(row["also"]), "fall": tuple(row["fall"]) if row["fall"] else None})
        for row in rows
    ]


# ---- a collection: the text files of many runs in one compressed file. It is JSON: the name of a run, and for each of
# its files the text. Runs repeat each other's words, so together they take 60 % of what they take apart.

Files = Mapping[str, str]
"""The text of each file, by its name."""


@cache
def read_collection(path: Path) -> Mapping[str, Files]:
    """The files of every run, by the name of the run; empty without a collection. Unpacked once per process."""
    runs: dict[str, Files] = json.loads(lzma.decompress(path.read_bytes())) if path.exists() else {}
    return runs


def write_collection(path: Path, runs: Mapping[str, Files]) -> None:
    """Write a collection. The same runs give the same bytes, in whichever order they come."""
    runs = dict(sorted(runs.items()))
    if runs == read_collection(path):
        return  # another version of xz might pack the same runs otherwise
    text = json.dumps(runs, indent=0, ensure_ascii=False)
    with replacing(path) as temporary:
        temporary.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    read_collection.cache_clear()


# ---- a log, packed and unpacked


def shortened(log: str, host: str = "holdfast") -> str:
    """The log of a host with numbers rounded; a metrics.jsonl without times of day."""
    if host == "trl":
        return json.dumps(_short(json.loads(log)), separators=(",", ":"))
    lines = [json.loads(line) for line in log.splitlines()]
    return "".join(json.dumps(_short({k: v for k, v in row.items() if k != "time"})) + "\n" for row in lines)


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_short(item) for item in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) and math.isfinite(value) else value


def unpack(recording: Recording, into: Path, folder: Path = FOLDER, *, stock: bool = False) -> Path:
    """Write the log as its host does, into a folder of the run's name; the path that `holdfast diagnose` takes.

    `stock` leaves out what the observer adds to TRL's log: the log of a user without it.
    """
    run = into / recording.name
    run.mkdir(parents=True, exist_ok=True)
    text = with_present_metrics(read_collection(folder / PACKED)[recording.name][LOGS[recording.host]])
    if stock:
        state = json.loads(text)
        state["log_history"] = [
            {k: v for k, v in row.items() if not k.removeprefix("eval_").startswith(_OBSERVED)}
            for row in state["log_history"]
        ]
        text = json.dumps(state)
    (run / LOGS[recording.host]).write_text(text, encoding="utf-8")
    if recording.host == "holdfast":
        (run / "config.toml").write_text(tomli_w.dumps(_settings(recording)), encoding="utf-8")
        return run
    return run / LOGS[recording.host]


def load(recording: Recording, folder: Path = FOLDER, *, stock: bool = False) -> Log:
    """The log as `holdfast diagnose` reads it."""
    from holdfast.diagnose.readers import read_log

    with tempfile.TemporaryDirectory() as temporary:
        return read_log(unpack(recording, Path(temporary), folder, stock=stock))


def _settings(recording: Recording) -> dict[str, Any]:
    """The whole recipe, not validated: some runs have settings that a recipe refuses."""

    def merged(base: Any, changed: Any) -> Any:
        if not isinstance(base, dict):
            return changed
        return {key: merged(value, changed[key]) if key in changed else value for key, value in base.items()}

    def present(value: Any) -> Any:
        return {k: present(v) for k, v in value.items() if v is not None} if isinstance(value, dict) else value

    whole = Config().model_dump(mode="json")
    method = recording.settings.get("loss", {}).get("penalty", {}).get("name", whole["loss"]["penalty"]["name"])
    whole["loss"]["penalty"] = PENALTIES[method]().model_dump(mode="json")
    return dict(present(merged(whole, renamed(recording.settings))))
