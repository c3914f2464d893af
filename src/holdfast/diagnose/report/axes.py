"""What a page can draw its curves over besides steps: seconds and tokens, as far as the log has them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnose.log import Log, Series, finite, has
from holdfast.diagnose.log.trailing import Values
from holdfast.diagnose.seconds import seconds_of

TOKENS_SO_FAR = ("num_tokens", "train/num_tokens", "progress/total_tokens")
"""Series of all tokens up to a step."""
TOKENS = "perf/total_num_tokens"
"""The tokens of one step, prompts included, from verl."""
_POINTS = 400


def axes_of(log: Log) -> dict[str, Any]:
    """`seconds` and `tokens` -> `{"x": steps, "y": what had passed by then}`, both rising. What the log lacks is left
    out. A row that stands for several steps counts as often."""
    found = {}
    seconds = seconds_of(log)
    if seconds is not None and seconds.total.any():
        found["seconds"] = _summed(seconds.steps, seconds.total)
    so_far = next((name for name in TOKENS_SO_FAR if has(log, name)), None)
    if so_far is not None:
        counted = finite(log.series[so_far])
        found["tokens"] = _thinned(counted.steps, np.maximum.accumulate(counted.values))
    elif has(log, TOKENS):
        counted = finite(log.series[TOKENS])
        found["tokens"] = _summed(counted.steps, counted.values)
    elif (sampled := _sampled(log)) is not None:
        found["tokens"] = _summed(sampled.steps, sampled.values)
    return {name: axis for name, axis in found.items() if axis["y"][-1] > axis["y"][0]}


def _sampled(log: Log) -> Series | None:
    """Sampled tokens of each step of holdfast, whose settings say how many rollouts a step has."""
    questions, group = (log.settings.get(f"train.{name}") for name in ("questions", "group_size"))
    if not (isinstance(questions, int) and isinstance(group, int) and has(log, "rollout/length")):
        return None
    length = finite(log.series["rollout/length"])
    return Series(length.steps, length.values * questions * group)


def _summed(steps: NDArray[np.int64], values: Values) -> dict[str, Any]:
    """The sum of what steps take, from 0 before the first row."""
    gaps = np.diff(steps)
    first = int(gaps[0]) if len(gaps) else 1
    so_far = np.cumsum(np.maximum(values, 0.0) * np.append(first, gaps))
    return _thinned(np.append(steps[0] - first, steps), np.append(0.0, so_far))


def _thinned(steps: NDArray[np.int64], values: Values) -> dict[str, Any]:
    kept = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _POINTS)).astype(np.int64))
    return {"x": steps[kept].tolist(), "y": [float(f"{value:.6g}") for value in values[kept].tolist()]}
