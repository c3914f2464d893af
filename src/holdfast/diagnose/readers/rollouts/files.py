"""From a path to the rollouts in it, of any trainer. No pickle is opened."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from os.path import isdir
from pathlib import Path
from statistics import fmean
from typing import Any

from holdfast.base.errors import DataError, HoldfastError, MissingExtra
from holdfast.base.jsonl import BadField, Skipped, Skips, objects
from holdfast.base.opening import beginning, left_out
from holdfast.base.rows import iter_rows
from holdfast.base.run_folder import TRAJECTORIES
from holdfast.base.stored import read_json
from holdfast.diagnose.readers.columns import Columns, number_in
from holdfast.diagnose.readers.reader import LogFile, Raw, Reader
from holdfast.diagnose.readers.rollouts import SampledRollout
from holdfast.diagnose.readers.rollouts.forms import FIELDS, PANELS, Form, form_of, rollouts_of
from holdfast.diagnose.readers.text import COLOUR, Tally, head, lines

MAX_ROLLOUTS = 10_000
_MAX_CHARACTERS = 120_000_000
_SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson", ".json", ".parquet")
_PICKLES = (".pt", ".pkl", ".pickle", ".pth")
_DUMPS = ("rollout", "eval_", "traj", "sample", "debug")
"""Parts of names and folders in which a pickle may hold rollouts; others are weights and optimizers."""
_MAX_FILES = 20_000
_DEPTH = 5
_FIRST = 50
"""Lines of a file in which its first rollout stands."""
_LEFT_OUT = ("checkpoint-", "global_step_")
_HEAD_LINE = "┡"
"""Stands under the names of the columns of a printed table, and in few other texts."""
_TITLE = re.compile(r"─ Step (\d+) ─")


@dataclass(frozen=True, slots=True)
class Rollouts:
    """What was read of the rollouts at a path."""

    rollouts: tuple[SampledRollout, ...] = ()
    """By step."""
    notes: tuple[str, ...] = ()
    """One sentence for each thing that was left out."""
    hosts: tuple[str, ...] = ()
    """The trainers whose forms the files have, the most frequent first."""


def parts_given(names: Mapping[str, str]) -> dict[str, str]:
    """Of the names that a user gave (`--name reward=MY_SCORE`), those of parts of a rollout."""
    return {part: name for part, name in names.items() if part in FIELDS}


def is_rollouts(path: Path, given: Mapping[str, str] | None = None) -> bool:
    """Whether a file holds rollouts, by its first row."""
    if path.suffix == ".parquet":
        return True
    with suppress(Exception):  # what cannot be read is said when it is
        return _form_in(path, given or {}) is not None
    return False


def has_rollouts(folder: Path) -> bool:
    """Whether some file in a folder holds rollouts."""
    return any(map(is_rollouts, _paths(folder)[0]))


def rollouts_beside(names: Mapping[str, str] | None = None) -> Callable[[Path, str], Rollouts]:
    """What reads the rollouts of a log with this name that was read from a path: those in the file, in the folder of
    the run, or in `trajectories.jsonl` beside the file. What thousands of logs share is read once."""
    at, holds = cache(partial(rollouts_at, names=names)), cache(partial(is_rollouts, given=parts_given(names or {})))

    def beside(path: Path, name: str) -> Rollouts:
        folder = run_folder(path, name)
        if path.is_file() and holds(path):
            return at(path)
        return at(folder if path.is_dir() else folder / TRAJECTORIES)

    return beside


def run_folder(path: Path, name: str) -> Path:
    """The folder of a log called `name` that was read from `path`: the folder of the run, a file in it, or a folder of
    runs."""
    named = path / name  # the log chooses its name, which may be a path to anywhere, or too long for one
    is_inside = named.resolve().is_relative_to(path.resolve())
    return named if is_inside and isdir(named) else path if path.is_dir() else path.parent


def rollouts_at(path: Path, names: Mapping[str, str] | None = None) -> Rollouts:
    """The rollouts in a file, or in the files of a folder.

    At most `MAX_ROLLOUTS` are kept, of steps spread over the run. What cannot be read is left out and noted. `names`
    are those that the user gave to parts of a row.
    """
    given = parts_given(names or {})
    paths, notes = _paths(path)
    kept, hosts = _Kept(), Counter[str]()
    skips, unread = Skips(), list[str]()
    before: set[int] = set()
    for one in paths:
        rows: list[SampledRollout] = []
        try:
            with left_out(one):
                for form, rollout in _read(one, one.relative_to(path.parent), given, skips):
                    rows.append(rollout)
                    hosts[form.host] += 1
                    if len(rows) > MAX_ROLLOUTS:
                        kept.add(rows)
                        rows = []
        except MissingExtra as error:
            unread.append(f"parquet cannot be read: {error}")
            continue
        except HoldfastError as error:
            unread.append(" ".join(str(error).split()))
        if one.suffix == ".parquet" and hosts["trl"]:
            rows, before = _new(rows, before)
        kept.add(rows)
    notes += [f"{sentence}." for sentence in [*skips.sentences(), *dict.fromkeys(unread)]]
    if kept.left_out:
        whole = len(kept.rollouts) + kept.left_out
        notes.append(f"{len(kept.rollouts):,} of {whole:,} rollouts are read, of steps spread over the run.")
    ordered = sorted(kept.rollouts, key=lambda rollout: rollout.step)
    if ordered and all(rollout.reward is None for rollout in ordered):
        notes.append(
            "The rollouts have no rewards. If one of their fields is the reward, name it: --name reward=FIELD."
        )
    return Rollouts(tuple(ordered), tuple(notes), tuple(host for host, _ in hosts.most_common()))


class _Kept:
    """Rollouts in bounded memory: where there are too many, every second step of them is left out."""

    def __init__(self) -> None:
        self.rollouts: list[SampledRollout] = []
        self.left_out = 0
        self._size = 0

    def add(self, rows: list[SampledRollout]) -> None:
        """Add some."""
        self.rollouts += rows
        self._size += sum(rollout.size for rollout in rows)
        while len(self.rollouts) > MAX_ROLLOUTS or self._size > _MAX_CHARACTERS:
            before = len(self.rollouts)
            steps = sorted({rollout.step for rollout in self.rollouts})
            if len(steps) > 2:
                wanted = {*steps[::2], steps[-1]}
                self.rollouts = [rollout for rollout in self.rollouts if rollout.step in wanted]
            else:
                self.rollouts = self.rollouts[::2]
            self._size = sum(rollout.size for rollout in self.rollouts)
            self.left_out += before - len(self.rollouts)


def _new(rows: list[SampledRollout], before: set[int]) -> tuple[list[SampledRollout], set[int]]:
    """The rollouts that the file before did not have, and what identifies those of this one: TRL's files repeat rows
    of an earlier step, under the number of the new one."""
    keys = [hash((row.question, row.turns, row.reward, row.advantage)) for row in rows]
    return [row for row, key in zip(rows, keys, strict=True) if key not in before], set(keys)


# ---- files


def _paths(path: Path) -> tuple[list[Path], list[str]]:
    """The files that may hold rollouts, and what is said of those that are not opened."""
    if not path.is_dir():
        return [path] if path.is_file() else [], []
    found, pickles = list[Path](), list[Path]()
    for one in islice(_below(path, _DEPTH), _MAX_FILES):
        name = one.name.lower()
        if name.endswith(_SUFFIXES) and name not in ("metrics.jsonl", "trainer_state.json"):
            found.append(one)
        elif name.endswith(_PICKLES) and any(part in f"{one.parent.name}/{name}".lower() for part in _DUMPS):
            pickles.append(one)
    whole = {one.parent.parent for one in found if one.parent.name == "all"}  # prime-rl writes the batch again
    found = [one for one in found if not (one.parent.name == "effective" and one.parent.parent in whole)]
    if not pickles:
        return found, []
    count = "1 file was" if len(pickles) == 1 else f"{len(pickles):,} files were"
    return found, [
        f"{count} such as {pickles[0].name} not opened, because a pickle can run any code. If you trust its source, "
        "convert the samples to JSON lines with prompt, response and reward."
    ]


def _below(folder: Path, depth: int) -> Iterator[Path]:
    with suppress(OSError):
        for entry in sorted(folder.iterdir(), key=lambda one: (len(one.name), one.name)):
            if entry.is_file():
                yield entry
            elif depth and entry.is_dir() and not entry.is_symlink() and not _is_checkpoint(entry):
                yield from _below(entry, depth - 1)


def _is_checkpoint(folder: Path) -> bool:
    return folder.name.startswith(_LEFT_OUT) and not folder.name.endswith("_evals")


def _read(path: Path, place: Path, given: Mapping[str, str], skips: Skips) -> Iterator[tuple[Form, SampledRollout]]:
    """(form, rollout) of each in a file; nothing from a file that holds none. Raises `DataError`."""
    form = None if path.suffix == ".parquet" else _form_in(path, given)
    if form is None and path.suffix != ".parquet":
        return

    def parse(row: dict[str, Any], line: int) -> list[tuple[Form, SampledRollout]]:
        nonlocal form
        form = form or form_of(row, given)
        if form is None:
            raise BadField("row", f"is not a rollout: it has {', '.join(islice(row, 8))}")
        return [(form, rollout) for rollout in rollouts_of(row, form, place, given)]

    if path.suffix == ".json" and (rows := _objects(path)) is not None:
        for number, row in enumerate(rows, 1):
            try:
                yield from parse(row, number)
            except BadField as bad:
                skips(Skipped(path=str(path), line=number, field=bad.field, reason=bad.reason))
    elif form is PANELS:
        for row in panel_rows(path):
            yield from parse(row, 0)
    else:
        for found in iter_rows(path, parse, what="rollout", on_skip=skips, replace=True):
            yield from found


def _objects(path: Path) -> list[dict[str, Any]] | None:
    """The objects in a file that is one JSON value; None if it has a row a line."""
    try:
        value = read_json(path, DataError, "copy it again", max_bytes=1 << 28)
    except DataError:
        return None
    return [row for row in (value if isinstance(value, list) else [value]) if isinstance(row, dict)]


def _form_in(path: Path, given: Mapping[str, str]) -> Form | None:
    """The form of a file's first row; None for a file without rollouts."""
    if path.suffix == ".json":
        values = None if '"log_history"' in head(path) else _objects(path)
        return form_of(values[0], given) if values else None
    rows = objects(islice(lines(path, Tally(path)), _FIRST), on_bad=lambda line, bad: None)
    found = next((form for _, row in rows if (form := form_of(row, given)) is not None), None)
    if found is not None or path.suffix == ".jsonl":
        return found
    return PANELS if _HEAD_LINE.encode() in beginning(path, 1 << 20) else None


# ---- the tables of completions that TRL prints


def panel_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of every table in a log, by the names of its columns in small letters, with `step`. A cell of several
    lines is one text; a table that was cut off ends with its last whole row."""
    step, names = 0, list[str]()
    cells: list[list[str]] = []
    for _, printed in lines(path, Tally(path)):
        line = COLOUR.sub("", printed)
        if title := _TITLE.search(line):
            step, names, cells = int(title[1]), [], []
        elif "┃" in line:
            heads = [part.strip().lower() for part in line.split("┃")[1:-1]]
            names = [f"{name} {more}".strip() for name, more in zip(names or [""] * len(heads), heads, strict=False)]
        elif names and any(mark in line for mark in "├└"):
            if cells:
                texts = zip(names, (" ".join(filter(None, part)) for part in cells), strict=False)
                yield {"step": step, **{name: text if (x := number_in(text)) is None else x for name, text in texts}}
            cells = []
        elif names and line.count("│") > len(names):
            inner = line.strip().removeprefix("│").removesuffix("│").strip().split("│")[1:-1]
            cells = cells or [[] for _ in inner]
            for cell, part in zip(cells, inner, strict=False):
                cell.append(part.strip())


# ---- rollouts as a log, where a folder has no other


def _as_log(file: LogFile, tally: Tally) -> list[Raw]:
    """The run that wrote the rollouts. Those of evaluations count only where there are no others."""
    read = rollouts_at(file.path, file.names)
    for note in read.notes:
        tally.add(note.rstrip("."))
    trained = [rollout for rollout in read.rollouts if not rollout.held_out]
    steps: dict[int, list[SampledRollout]] = defaultdict(list)
    for rollout in trained or read.rollouts:
        steps[rollout.step].append(rollout)
    columns = Columns(tally, null_is_nan=False)
    for place, (step, rows) in enumerate(steps.items(), 1):
        columns.add(place, step, _means(rows))
    if steps:
        tally.add(f"the log is made of {len(read.rollouts):,} rollouts, by means of each step")
    return [Raw("jsonl", read.hosts[0] if read.hosts else "unknown", file.name, columns, {})]


def _means(rows: Sequence[SampledRollout]) -> dict[str, float]:
    """What a step's rollouts have in the mean, by our names, and by their own for other numbers."""
    rewards = [row.reward for row in rows if row.reward is not None]
    names = dict.fromkeys(name for row in rows for name in row.numbers)
    result = {name: fmean([row.numbers[name] for row in rows if name in row.numbers]) for name in names}
    groups: dict[str, set[float]] = defaultdict(set)
    for row in rows:
        if row.reward is not None:
            groups[row.prompt or row.question].add(row.reward)
    if rewards:
        result["reward/mean"] = fmean(rewards)
    if len(rewards) > len(groups) > 0:
        result["rollout/mixed_group_fraction"] = fmean([len(group) > 1 for group in groups.values()])
    if any(row.turns for row in rows):
        result["rollout/searches"] = fmean([sum(bool(turn.observation) for turn in row.turns) for row in rows])
    return result | {"rollout/truncated_fraction": fmean([row.status == "truncated" for row in rows])}


ROLLOUTS: Reader[bytes] = Reader(
    recognises=lambda path, start: is_rollouts(path),
    read=_as_log,
    lacks="has no rollout that can be read",
    suffixes=(),  # beside a log, rollouts are not a second one
)
