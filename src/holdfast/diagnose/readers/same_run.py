"""Logs of one run by several writers: `trainer_state.json`, the trackers' files and the console's output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from holdfast.diagnose.log import Format, Log, Series
from holdfast.diagnose.readers.reader import LogFile, Reader

_MIN_STEPS = 3
"""Steps at which two logs of one run must agree."""
_DIGITS = 1e-3
"""How far two numbers may differ: consoles print four digits, TensorBoard writes single precision."""
_SAME_IN_MANY = ("lr", "epoch", "num_tokens")
_CLOCKS = ("time/", "timing_s/", "perf/", "step_time", "runtime")


def deduplicate_runs(read: Iterable[tuple[LogFile, Log]]) -> list[Log]:
    """Every run once. If logs from different kinds of files have the same numbers, the one with the most values is
    kept. It gets the settings that only the others have. A log that is `beside` another with a different run is left
    out."""
    ordered = sorted(read, key=lambda pair: pair[0].beside)
    kinds: dict[tuple[bool, Reader[Any], Format], list[int]] = {}
    for i, (file, log) in enumerate(ordered):
        kinds.setdefault((file.beside, file.reader, log.format), []).append(i)
    groups: list[list[int]] = []
    for (beside, *_), members in kinds.items():
        earlier = tuple(groups)  # logs of one kind are different runs, so thousands are not compared with each other
        for i in members:
            group = next((g for g in earlier if all(_is_same(*ordered[i], *ordered[j]) for j in g)), None)
            if group is not None:
                group.append(i)
            elif not beside:
                groups.append([i])
    return [_richest([ordered[i] for i in group]) for group in sorted(map(sorted, groups))]


def joined_parts(read: list[tuple[LogFile, Log]]) -> list[tuple[LogFile, Log]]:
    """Logs, with those of one run's processes as one: the log in a run's folder, and those beside it of the same host
    that have other series at the same steps, as prime-rl's trainer and orchestrator write them."""
    result: list[tuple[LogFile, Log]] = []
    for file, log in read:
        parts = enumerate(result) if file.beside else ()  # thousands of others are not compared with each other
        at = next((i for i, (other, whole) in parts if _is_part(file, log, other, whole)), None)
        if at is None:
            result.append((file, log))
            continue
        other, whole = result[at]
        note = f"read {other.path} and {file.path} as one run: they have different metrics at the same steps."
        series = dict(sorted({**log.series, **whole.series}.items()))
        notes = (*(one for one in (*whole.notes, *log.notes) if "--name reward" not in one), note[0].upper() + note[1:])
        steps = np.union1d(whole.steps, log.steps)
        result[at] = other, replace(whole, series=series, steps=steps, notes=notes)
    return result


def _is_part(file: LogFile, log: Log, other: LogFile, whole: Log) -> bool:
    shared = [name for name in log.series if name in whole.series and not name.startswith(_CLOCKS)]
    return (
        file.path.parent.parent == other.path.parent
        and log.host == whole.host
        and not shared
        and len(np.intersect1d(log.steps, whole.steps)) >= _MIN_STEPS
    )


def with_unique_names(logs: list[Log]) -> list[Log]:
    """Logs whose names differ: those with one name are numbered."""
    count = Counter(log.name for log in logs)
    seen: Counter[str] = Counter()
    result: list[Log] = []
    for log in logs:
        seen[log.name] += 1
        result.append(replace(log, name=f"{log.name} ({seen[log.name]})") if count[log.name] > 1 else log)
    return result


def _richest(group: list[tuple[LogFile, Log]]) -> Log:
    file, best = max(group, key=lambda pair: (sum(map(len, pair[1].series.values())), len(pair[1].settings)))
    others = [other for other, _ in group if other is not file]
    if not others:
        return best
    settings = {name: value for _, log in group for name, value in log.settings.items()} | {**best.settings}
    last = max(log.last_step for _, log in group if log is not best)
    further = f", which ends at step {last}" if last < best.last_step else ""
    note = f"read {file.path}; the same run is also in {' and '.join(str(other.path) for other in others)}{further}."
    return replace(best, name=group[0][1].name, settings=settings, notes=(note[0].upper() + note[1:], *best.notes))


def _is_same(file: LogFile, log: Log, other_file: LogFile, other: Log) -> bool:
    """Whether two files of different kinds have the same numbers."""
    if file.reader is other_file.reader and log.format == other.format:
        return False
    known = [name for name in log.series if name in other.series and not name.startswith(_CLOCKS)]
    compared = [_agree(log.series[name], other.series[name]) for name in known]
    telling = [name for name, same in zip(known, compared, strict=True) if same and name not in _SAME_IN_MANY]
    return bool(telling) and all(same is not False for same in compared)


def _agree(first: Series, second: Series) -> bool | None:
    """Whether two series agree at all their common steps; None if these are few or the series does not change."""
    _, mine, theirs = np.intersect1d(first.steps, second.steps, assume_unique=True, return_indices=True)
    a, b = first.values[mine], second.values[theirs]
    if not np.allclose(a, b, rtol=_DIGITS, atol=1e-9, equal_nan=True):
        return False
    known = a[np.isfinite(a)]
    return True if len(known) >= _MIN_STEPS and np.ptp(known) > 0 else None
