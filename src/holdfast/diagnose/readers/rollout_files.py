"""Rollouts as a log: means of each step, for a folder of rollouts without any other log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from holdfast.diagnose.readers.columns import Columns
from holdfast.diagnose.readers.reader import LogFile, Raw, Reader
from holdfast.diagnose.readers.rollouts.files import is_rollouts, rollouts_at
from holdfast.diagnose.readers.rollouts.record import SampledRollout
from holdfast.diagnose.readers.text import Tally


def _read(file: LogFile, tally: Tally) -> list[Raw]:
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
    read=_read,
    lacks="has no rollout that can be read",
    suffixes=(),  # beside a log, rollouts are not a second one
)
