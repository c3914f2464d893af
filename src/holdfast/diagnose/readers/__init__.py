"""`read_log` reads the log of any trainer as a `Log`. docs/reference/logs.md lists what can be read."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from holdfast.base.errors import DataError
from holdfast.base.files import is_pipe
from holdfast.base.opening import BLOCK, left_out, piped, spooled
from holdfast.diagnose.log import REWARDS, Log, Series, finite
from holdfast.diagnose.readers.columns import series_of
from holdfast.diagnose.readers.find import CONSOLES, READABLE, STORES, find_logs
from holdfast.diagnose.readers.inside import NOTEBOOK
from holdfast.diagnose.readers.names import (
    COMMON,
    COMPLEMENTS,
    by_common_names,
    common,
    is_share,
    like_a_reward,
    mean_alone,
    not_understood,
    spelled,
    translation,
)
from holdfast.diagnose.readers.reader import LogFile, Raw
from holdfast.diagnose.readers.rollouts.files import ROLLOUTS
from holdfast.diagnose.readers.same_run import deduplicate_runs, joined_parts, with_unique_names
from holdfast.diagnose.readers.seen import how_it_ended, what_was_seen
from holdfast.diagnose.readers.services import is_address, read_service
from holdfast.diagnose.readers.text import Tally, clean, listed
from holdfast.hosts import HOSTS
from holdfast.hosts.host import CHANGES, Name

_logger = logging.getLogger("holdfast")
_SEE = "docs/reference/logs.md lists what can be read"


def read_log(path: str | Path) -> Log:
    """The log of one run: a file, a run's folder, or a folder with one run in it.

    Raises `DataError` for a path that cannot be read, without a log, or with several (`read_logs` reads them all).
    """
    logs = read_logs(path)
    if len(logs) > 1:
        raise DataError(_several(path, [log.name for log in logs]))
    return logs[0]


def read_logs(path: str | Path, names: Mapping[str, str] | None = None) -> tuple[Log, ...]:
    """Every run at a path: in a folder of runs, in a tracker's database, or in the CSV of a chart with one column per
    run. A run that is in several files of a folder is read once.

    An address such as `wandb://entity/project/run` is read from the service. "-" is standard input, and a pipe is read
    to its end. In a folder, a file that is empty or not a log is left out with a logged warning. Raises `DataError` if
    no run is left, or a log lacks a series of `names`: our name of a series, or "reward" and the like -> the log's.
    """
    given = names or {}
    if is_address(path):
        return _at_service(str(path), given)
    if str(path) == "-":
        return _from_pipe(iter(lambda: sys.stdin.buffer.read(BLOCK), b""), "standard input", given)
    if is_pipe(path):
        return _from_pipe(piped(Path(path)), str(path), given)
    return _logs_at(Path(path), given)


def _from_pipe(parts: Iterable[bytes], name: str, given: Mapping[str, str]) -> tuple[Log, ...]:
    """The logs in a pipe, which is copied to a file because readers read twice."""
    with spooled(parts, "stdin", name) as path:
        try:
            return _logs_at(path, given)
        except DataError as error:
            raise DataError(str(error).replace(str(path), name)) from None


def _at_service(address: str, given: Mapping[str, str]) -> tuple[Log, ...]:
    raws = read_service(address)
    if not raws:
        raise DataError(f"{address} has no metric with a step: the run has logged nothing yet")
    return tuple(with_unique_names([_log(raw, raw.columns.tally, given) for raw in raws]))


def _logs_at(path: Path, given: Mapping[str, str]) -> tuple[Log, ...]:
    read: list[tuple[LogFile, Log]] = []
    unread: list[DataError] = []
    has_texts = not {"prompt", "completion", "messages"}.isdisjoint(given)
    for file in [LogFile(ROLLOUTS, path, path.name)] if has_texts else find_logs(path):
        try:
            with left_out(file.path) if path.is_dir() else nullcontext():
                read += [(file, log) for log in _read(file, given)]
        except DataError as error:
            if not file.beside:
                unread.append(error)
    logs = with_unique_names(deduplicate_runs(joined_parts(read)))
    if not logs:
        raise unread[0]
    for problem in unread:  # of which one sentence is enough, beside logs that can be read
        _logger.warning("left out: %s", str(problem).removesuffix(f". {READABLE}"))
    return tuple(logs)


def _read(file: LogFile, given: Mapping[str, str]) -> tuple[Log, ...]:
    tally = Tally(file.path)
    if file.note:
        tally.add(file.note)
    if file.reader is ROLLOUTS:  # whose names are those of fields
        file, given = replace(file, names=given), {}
    filled = [run for run in file.reader.read(file, tally) if run.columns]
    if not filled:
        raise DataError(_nothing(file, tally))
    if file.reader in CONSOLES and (ended := how_it_ended(file.path)):
        tally.add(ended)
    return tuple(_log(run, tally, given) for run in filled)


def _named(
    host: str,
    targets: Mapping[str, Name],
    given: Mapping[str, str],
    run: str,
    doubtful: Mapping[str, str],
    series: Mapping[str, Series],
) -> dict[str, Name]:
    """The translation with the names that the user gave, and with names that everybody understands for what it lacks.

    Raises `DataError` if the log has no series of a given name.
    """
    result = dict(targets)
    for ours, name in given.items():
        if name not in result:
            near = get_close_matches(name, result, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {listed(sorted(result))}"
            raise DataError(f"--name {ours}={name}: the log {clean(run)} has no metric {name!r}; {hint}")
        ours = COMMON.get(ours, ours)
        result = {other: Name(other, other) if target.ours == ours else target for other, target in result.items()}
        result[name] = Name(name, ours)
    kept = [name for name in _untold(host, result) if result[name].ours == clean(name) and name not in doubtful]
    found = by_common_names(_often(kept, series), (target.ours for target in result.values()))
    named = {name: Name(name, of, "1 − x" if common(name) in COMPLEMENTS else "x") for name, of in found.items()}
    return {name: named.get(name, target) for name, target in result.items()}


def _often(names: list[str], series: Mapping[str, Series]) -> list[str]:
    """These names without one that far fewer rows have than another of the same meaning: a sample that was shown."""
    rows: dict[str, int] = {}
    for name in names:
        ours = COMMON.get(common(name), name)
        rows[ours] = max(rows.get(ours, 0), len(series[name]))
    return [name for name in names if 2 * len(series[name]) >= rows[COMMON.get(common(name), name)]]


def _untold(host: str, names: Iterable[str]) -> list[str]:
    """The names of which the host's tables do not say that they mean something else than they look like."""
    return [name for name in names if name.removeprefix("train/") not in HOSTS[host].left_alone]


def _guessed(host: str, targets: dict[str, Name], series: Mapping[str, Series]) -> list[str]:
    """Takes the series for the reward that is called like one, rather one that moves; a sentence that says so."""
    able = _untold(host, targets)
    moving = [name for name in able if len(np.unique(finite(series[name]).values)) > 1]
    name = like_a_reward(moving) or like_a_reward(able) or mean_alone(able)
    if name is None:
        return []
    targets[name] = Name(name, "reward/mean")
    return [
        f"holdfast takes {clean(name)} for the reward. If another metric is the reward, name it: `--name "
        "reward=METRIC`."
    ]


def _log(raw: Raw, of_file: Tally, given: Mapping[str, str]) -> Log:
    of_run = raw.columns.tally
    series, steps = series_of(raw.columns, of_run)
    spelling = spelled(raw.host, series)
    series = {spelling.get(name, name): part for name, part in series.items()}
    given = {ours: spelling.get(name, name) for ours, name in given.items()}
    plain = {HOSTS[raw.host].plain(name): part for name, part in series.items()}
    host = HOSTS[HOSTS[raw.host].variant(plain, raw.settings) or raw.host]
    unclear = host.doubtful(plain, raw.settings)
    reasons = {why: [name for name in unclear if unclear[name] == why] for why in unclear.values()}
    notes = [
        f"{listed(named)} {'was' if len(named) == 1 else 'were'} not matched to a metric of holdfast: {why}."
        for why, named in reasons.items()
    ]
    result: dict[str, Series] = {}
    targets = translation(host.id, series, doubtful=unclear, instead=host.by_version(plain))
    targets = _named(host.id, targets, given, raw.name, unclear, series)
    if not any(target.ours in REWARDS for target in targets.values()):
        notes += _guessed(host.id, targets, series)
    for name, target in targets.items():
        values = CHANGES[target.change](series[name].values)
        if target.differs:
            notes.append(f"{target.ours} is {host.known_as}'s {name}: {target.differs}.")
        if is_share(target.ours) and _is_percentage(values):
            notes.append(f"{target.ours} goes up to {np.nanmax(values):g}, so its values were divided by 100.")
            values = values / 100
        result[target.ours] = replace(series[name], values=values)
    if said := not_understood(host.id, targets):
        notes.append(said)
    if "entropy/mean" in result and _is_no_measurement(result["entropy/mean"]):
        del result["entropy/mean"]
        notes.append("The entropy is exactly 0 in every row, so it was not measured.")
    return Log(
        format=raw.format,
        host=host.id,
        name=clean(raw.name),
        series=dict(sorted(result.items())),
        steps=steps,
        settings=raw.settings,
        old_policy=host.old_policy(plain, raw.settings),
        resumed=tuple(of_run.resumed),
        notes=(*of_file.notes(), *(of_run.notes() if of_run is not of_file else ()), *notes),
    )


def _is_no_measurement(entropy: Series) -> bool:
    """Whether an entropy is 0 to the last digit in all rows. The sharpest policy has a little."""
    return not entropy.rounded and len(entropy) > 1 and not entropy.values.any()


def _is_percentage(values: np.ndarray) -> bool:
    """A fraction cannot be above 1. If no value is above 100, it is a percentage."""
    finite = values[np.isfinite(values)]
    return bool(len(finite)) and 1.01 < float(finite.max()) <= 100 and float(finite.min()) >= 0


def _several(path: str | Path, names: list[str]) -> str:
    shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    return f"{path} contains {len(names)} runs: {shown}. Name one of them"


def _nothing(file: LogFile, tally: Tally) -> str:
    is_text = file.path.is_file() and file.reader not in (*STORES, ROLLOUTS, NOTEBOOK)  # which holds code too
    seen = what_was_seen(file.path) if is_text else ""
    notes = [note[0].upper() + note[1:] for note in tally.notes()]
    return " ".join(filter(None, (f"{file.path} {file.reader.lacks}.", *notes, seen, _SEE if seen else READABLE)))
