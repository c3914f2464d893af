"""Which part of a JSON row is its step and which its metrics: every writer frames them in its own way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.diagnostics.log import Format, Host
from holdfast.diagnostics.readers.names import AXES, host_of

Row = dict[str, Any]
Open = Callable[[Row], tuple[Any, Row]]

_NOT_METRICS = ("_timestamp", "_runtime", "_step", "_wandb")


@dataclass(frozen=True, slots=True)
class Frame:
    """How a file's rows are framed."""

    format: Format
    host: Host
    split: Open
    """Row -> (its step as it stands there, None when there is none; its metrics). May take the row apart."""
    null_is_nan: bool


def frame_of(rows: Sequence[Row]) -> Frame | None:
    """From the first rows of a file; None when they are no log of a trainer."""
    some = [row for row in rows if row]
    if not some:
        return None
    if all(isinstance(row.get("data"), dict) and "step" in row for row in some[:3]):
        # orjson, which verl writes with, has no NaN and writes null.
        return Frame("verl", "verl", _verl, null_is_nan=True)
    names = dict.fromkeys(name for row in some for name in row)
    if any(name in names for name in ("_step", "_timestamp", "_runtime")):
        return wandb_frame(list(names))
    if "step" not in names:
        return None
    host = host_of(names)
    if host == "trl":
        # TRL writes None where a window of logging held nothing but NaN.
        return Frame("trl", "trl", _state, null_is_nan=True)
    if host == "verl":
        return Frame("verl", "verl", _plain, null_is_nan=True)
    ours = host == "holdfast" or "time" in names
    return Frame("holdfast", "holdfast", _holdfast, null_is_nan=False) if ours else None


def wandb_frame(names: Sequence[str]) -> Frame | None:
    """Of a W&B history with these columns; None when none of them is a step."""
    axis = next((name for name in AXES if name in names), None)
    if axis is None:
        return None

    def split(row: Row) -> tuple[Any, Row]:
        step = row.get(axis)
        metrics = {name: value for name, value in row.items() if name not in _NOT_METRICS and name not in AXES}
        return step, {name: value for name, value in metrics.items() if value is not None}

    return Frame("wandb", host_of(names), split, null_is_nan=False)


def state_frame() -> Frame:
    """Of a row of `log_history`."""
    return Frame("trl", "trl", _state, null_is_nan=True)


def _verl(row: Row) -> tuple[Any, Row]:
    data = row.get("data")
    return row.get("step"), data if isinstance(data, dict) else {}


def _plain(row: Row) -> tuple[Any, Row]:
    return row.pop("step", None), row


def _state(row: Row) -> tuple[Any, Row]:
    return row.pop("step", None), row


def _holdfast(row: Row) -> tuple[Any, Row]:
    step = row.pop("step", None)
    dropped = row.pop("dropped", None)
    row.pop("time", None)
    if isinstance(dropped, list):
        row |= {name: float("nan") for name in dropped if isinstance(name, str)}
    return step, row


def nested_settings(data: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """A nested configuration by dotted names.

    >>> nested_settings({"train": {"lr": 0.1}, "name": "x"})
    {'train.lr': 0.1, 'name': 'x'}
    """
    result: dict[str, object] = {}
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            result |= nested_settings(value, f"{prefix}{key}.")
        else:
            result[f"{prefix}{key}"] = value
    return result
