"""The runs of a report: log, diagnosis and sampled rollouts, read from files and written as JSON."""

from __future__ import annotations

import json
import math
import zlib
from base64 import b64encode
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base.errors import DataError
from holdfast.base.jsonl import objects
from holdfast.base.opening import lines
from holdfast.base.run_folder import DISPLACEMENT
from holdfast.diagnose.finding import Diagnosis
from holdfast.diagnose.log import Log
from holdfast.diagnose.log.trailing import spread
from holdfast.diagnose.readers.rollouts import SampledRollout, SampledTurn
from holdfast.diagnose.readers.rollouts.conversation import MAX_CHARACTERS, cut
from holdfast.diagnose.readers.rollouts.forms import number_or_nan
from holdfast.diagnose.texts import outcomes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleChanges:
    """The effect of one update on single rollouts: change of log-likelihood in nats per sampled token."""

    step: int
    correct: tuple[float, ...]
    incorrect: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedRun:
    """One run of a report."""

    log: Log
    diagnosis: Diagnosis
    rollouts: tuple[SampledRollout, ...] = ()
    """By step."""
    changes: tuple[SampleChanges, ...] = ()


_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError)
"""What a file that another program wrote raises when it is parsed."""


def read_changes(folder: Path) -> tuple[SampleChanges, ...]:
    """Rows of `displacement.jsonl` by step; empty without the file."""
    return tuple(sorted(_rows_of(folder / DISPLACEMENT), key=lambda row: row.step))


def _rows_of(path: Path) -> Iterator[SampleChanges]:
    with suppress(DataError):
        for _, row in objects(lines(path, on_long=lambda line: None), on_bad=lambda line, bad: None):
            with suppress(*_UNREADABLE):
                yield _changes(row)


def _changes(row: Mapping[str, Any]) -> SampleChanges:
    correct, incorrect = (tuple(map(number_or_nan, row.get(name) or ())) for name in ("correct", "incorrect"))
    return SampleChanges(step=int(row["step"]), correct=correct, incorrect=incorrect)


MAX_ROLLOUTS = 240
_TOTAL_CHARACTERS = 1_500_000


def rollouts_json(
    rollouts: Sequence[Sequence[SampledRollout]], near: Sequence[Sequence[int]] | None = None, *, whole: bool = False
) -> list[dict[str, Any]]:
    """The same number of rollouts for every run, newest first, until the page is full.

    They are spread evenly over the run's steps, with the newest. `near` has the steps of each run's findings: the
    samples around them are kept first. With `whole`, all the others follow, to be packed.
    """
    count = max(sum(map(bool, rollouts)), 1)
    shown: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for run, sampled in enumerate(rollouts):
        room = _TOTAL_CHARACTERS // count
        chosen = _chosen_steps(sampled, max(MAX_ROLLOUTS // count, 1), near[run] if near else ())
        sizes: Counter[int] = Counter()
        for rollout in sampled:
            sizes[rollout.step] += _size(rollout)
        fitting: set[int] = set()
        for step in chosen:
            room -= sizes[step]
            if room < 0 and fitting:
                break
            fitting.add(step)
        kept = [rollout for rollout in sampled if rollout.step in fitting][-MAX_ROLLOUTS // count :]
        shown += [_rollout_json(rollout, run) for rollout in reversed(kept)]
        if whole:
            there = set(map(id, kept))
            others += [_rollout_json(one, run) for one in reversed(sampled) if id(one) not in there]
    groups: dict[tuple[Any, ...], int] = {}
    for row in shown + others:
        row["group"] = groups.setdefault((row["run"], row["question"], row.get("prompt")), len(groups))
    return shown + others


_PACK = 50
"""Rollouts in a pack: 400 kB of text, which a browser unpacks within milliseconds."""
_OF_TEXT = ("prompt", "expected", "answer", "turns")


def packed(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The texts of rollouts after the first `MAX_ROLLOUTS`, taken out of their rows: compressed JSON in base64,
    `_PACK` rollouts each, which the page unpacks when they are looked at. A row then has its place, `pack`, and the
    beginning of its question."""
    packs = []
    for number, start in enumerate(range(MAX_ROLLOUTS, len(rows), _PACK)):
        texts = []
        for row in rows[start : start + _PACK]:
            texts.append({name: row.pop(name) for name in _OF_TEXT if name in row} | {"question": row["question"]})
            row["question"] = row["question"][:_SHORT_QUESTION]
            row["pack"] = [number, len(texts) - 1]
        text = json.dumps(texts, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        deflate = zlib.compressobj(1, wbits=-15)
        packs.append(b64encode(deflate.compress(text.encode("utf-8", "replace")) + deflate.flush()).decode())
    return packs


_SHORT_QUESTION = 160


def _size(rollout: SampledRollout) -> int:
    """Characters that a rollout takes on the page."""
    return sum(min(len(text), MAX_CHARACTERS) for turn in rollout.turns for text in (turn.text, turn.observation))


def _chosen_steps(rollouts: Sequence[SampledRollout], most: int, near: Sequence[int]) -> list[int]:
    """Steps with about `most` rollouts together, the more important ones first: the last step, those before, at and
    after a finding, which take half of the room at most, then the others, evenly over the run."""
    steps = sorted({rollout.step for rollout in rollouts})
    if not steps:
        return []
    room = max(1, most // max(1, -(-len(rollouts) // len(steps))))
    around = [k for step in near for at in (bisect_left(steps, step),) for k in (at, at - 1, at + 1)]
    near_findings = list(dict.fromkeys(k for k in around if 0 <= k < len(steps)))[: room // 2]
    even = spread(len(steps), max(1, room - len(near_findings))).tolist()
    order = dict.fromkeys([len(steps) - 1, *near_findings, *reversed(even[:-1])])
    return [steps[k] for k in order][:room]


def _rollout_json(rollout: SampledRollout, run: int) -> dict[str, Any]:
    prompt = {"prompt": rollout.prompt} if rollout.prompt else {}
    advantage = {} if rollout.advantage is None else {"advantage": short(rollout.advantage, 3)}
    return {
        "run": run,
        "step": rollout.step,
        "length": sum(len(turn.text) for turn in rollout.turns),
        "question": cut(rollout.question),
        "expected": cut(" or ".join(rollout.golden_answers)),
        "answer": None if rollout.answer is None else cut(rollout.answer),
        "correct": rollout.correct,
        "reward": None if rollout.reward is None else short(rollout.reward, 3),
        "status": rollout.status,
        "outcomes": outcomes_of(rollout),
        "turns": [_turn_json(turn) for turn in rollout.turns],
        **prompt,
        **advantage,
    }


def _turn_json(turn: SampledTurn) -> dict[str, Any]:
    row: dict[str, Any] = {"text": cut(turn.text)}
    if turn.observation:
        row["observation"] = cut(turn.observation)
    if turn.query is not None:
        row["query"] = cut(turn.query)
    if turn.hits or (turn.hits is not None and turn.query is not None):
        row["hits"] = [cut(hit) for hit in turn.hits[:20]]
    if turn.tokens is not None:
        used, kept = 0, []
        for piece, change in turn.tokens:
            used += len(piece)
            if used > MAX_CHARACTERS:
                break
            kept.append((piece, short(change, 3)))
        row["pieces"], row["changes"] = [piece for piece, _ in kept], [change for _, change in kept]
        if len(kept) == len(turn.tokens):
            del row["text"]
        else:
            row["text"] = f"… {len(turn.text) - sum(len(p) for p in row['pieces']):,} more characters"
    return row


def short(value: float, digits: int = 5) -> float | int | None:
    """The number in few characters; None for one that JSON cannot hold.

    >>> short(0.1234567), short(3.0), short(float("nan"))
    (0.12346, 3, None)
    """
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
