"""The runs of a report: log, diagnosis and sampled rollouts, read from files and written as JSON."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.base.jsonl import objects
from holdfast.base.run_folder import DISPLACEMENT, TRAJECTORIES
from holdfast.diagnose.finding import Diagnosis
from holdfast.diagnose.log import Log


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTurn:
    """One turn: the model's text, and the observation after it."""

    text: str
    observation: str = ""
    query: str | None = None
    """The query of a search; None for other actions, and in files without queries."""
    hits: tuple[str, ...] = ()
    tokens: tuple[tuple[str, float], ...] | None = None
    """(piece of `text`, change of its log-prob by the update of the step, in nats); None if not measured. The piece is
    empty for a token that ends inside a character, and for the token that ends the turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRollout:
    """A rollout of a step."""

    step: int
    question: str
    golden_answers: tuple[str, ...]
    turns: tuple[SampledTurn, ...]
    answer: str | None
    correct: bool
    reward: float | None
    status: str = "ok"


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
    changes: tuple[SampleChanges, ...] = ()


_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError)
"""What a file that another program wrote raises when it is parsed."""


def read_rollouts(folder: Path) -> tuple[SampledRollout, ...]:
    """Rollouts of `trajectories.jsonl` by step; empty without the file. Lines without one are skipped."""
    return tuple(sorted(_read(folder / TRAJECTORIES, _parse_rollout), key=lambda rollout: rollout.step))


def read_changes(folder: Path) -> tuple[SampleChanges, ...]:
    """Rows of `displacement.jsonl` by step; empty without the file."""
    return tuple(sorted(_read(folder / DISPLACEMENT, _changes), key=lambda row: row.step))


def _read(path: Path, parse: Any) -> Iterator[Any]:
    if not path.is_file():  # a pipe would be waited for
        return
    try:
        with path.open("rb") as file:
            for _, row in objects(enumerate(file, 1), on_bad=lambda line, bad: None):
                with suppress(*_UNREADABLE):
                    yield parse(row)
    except OSError:
        return


def _parse_rollout(row: Mapping[str, Any]) -> SampledRollout:
    parts = row.get("reward_parts") or {}
    return SampledRollout(
        step=int(row["step"]),
        question=str(row["question"]),
        golden_answers=tuple(map(str, row.get("golden_answers") or ())),
        turns=tuple(map(_parse_turn, row["turns"])),
        answer=None if row.get("answer") is None else str(row["answer"]),
        correct=float(parts.get("em", 0.0)) == 1.0,
        reward=None if row.get("reward") is None else float(row["reward"]),
        status=str(row.get("status", "ok")),
    )


def _parse_turn(row: Mapping[str, Any]) -> SampledTurn:
    text, query = str(row["text"]), row.get("query")
    return SampledTurn(
        text=text,
        observation=str(row.get("observation") or ""),
        query=None if query is None else str(query),
        hits=tuple(map(str, row.get("hits") or ())),
        tokens=_tokens(text, row.get("token_chars"), row.get("token_changes")),
    )


def _tokens(text: str, chars: Any, changes: Any) -> tuple[tuple[str, float], ...] | None:
    """Pieces of the text with their changes; None if not measured, or if they do not fit the text."""
    if not chars or not changes or len(chars) != len(changes) or min(chars) < 0 or sum(chars) != len(text):
        return None
    ends = accumulate(chars, initial=0)
    return tuple((text[a:b], _number(change)) for (a, b), change in zip(pairwise(ends), changes, strict=True))


def _number(value: Any) -> float:
    """NaN for null, which JSON has in place of NaN."""
    return float("nan" if value is None else value)


def _changes(row: Mapping[str, Any]) -> SampleChanges:
    correct, incorrect = (tuple(map(_number, row.get(name) or ())) for name in ("correct", "incorrect"))
    return SampleChanges(step=int(row["step"]), correct=correct, incorrect=incorrect)


def outcomes_of(rollout: SampledRollout) -> list[str]:
    """`correct` or `incorrect`, and what else can be said of it: `truncated`, `failed` (not the policy's fault),
    `unanswered`, `invalid` (a turn that neither searched nor answered), `empty` (a search found nothing)."""
    failed = rollout.status in FAILURES
    searched = [turn.query is not None or bool(turn.hits) for turn in rollout.turns]
    ends = rollout.answer is not None or rollout.status != "ok"  # the last turn answered, or was cut off
    also = {
        "truncated": rollout.status == "truncated",
        "failed": failed,
        "unanswered": rollout.answer is None and not failed,
        "invalid": not all(searched[:-1] if ends else searched),
        "empty": any(turn.query is not None and turn.observation and not turn.hits for turn in rollout.turns),
    }
    return ["correct" if rollout.correct else "incorrect", *(name for name, holds in also.items() if holds)]


FAILURES = ("retrieval_failed", "error")
"""Statuses of rollouts that say nothing about the policy."""
MOST_ROLLOUTS = 240
MOST_CHARACTERS = 6000
"""Characters of one text. A longer text is cut, and ends with the number of characters cut."""
_TOTAL_CHARACTERS = 1_500_000


def rollouts_json(
    rollouts: Sequence[Sequence[SampledRollout]], near: Sequence[Sequence[int]] | None = None
) -> list[dict[str, Any]]:
    """The same number of rollouts for every run, newest first, until the page is full.

    They are spread evenly over the run's steps, with the newest. `near` has the steps of each run's findings: the
    samples around them are kept first.
    """
    count = max(sum(map(bool, rollouts)), 1)
    shown: list[dict[str, Any]] = []
    for run, sampled in enumerate(rollouts):
        room = _TOTAL_CHARACTERS // count
        chosen = _chosen_steps(sampled, max(MOST_ROLLOUTS // count, 1), near[run] if near else ())
        fitting: set[int] = set()
        for step in chosen:
            room -= sum(_size(rollout) for rollout in sampled if rollout.step == step)
            if room < 0 and fitting:
                break
            fitting.add(step)
        kept = [rollout for rollout in sampled if rollout.step in fitting][-MOST_ROLLOUTS // count :]
        shown += [_rollout_json(rollout, run) for rollout in reversed(kept)]
    return shown


def _size(rollout: SampledRollout) -> int:
    """Characters that a rollout takes on the page."""
    return sum(min(len(text), MOST_CHARACTERS) for turn in rollout.turns for text in (turn.text, turn.observation))


def _chosen_steps(rollouts: Sequence[SampledRollout], most: int, near: Sequence[int]) -> list[int]:
    """Steps with about `most` rollouts together, the more important ones first: the last step, those before, at and
    after a finding, which take half of the room at most, then the others, evenly over the run."""
    steps = sorted({rollout.step for rollout in rollouts})
    if not steps:
        return []
    room = max(1, most // max(1, -(-len(rollouts) // len(steps))))
    around = [k for step in near for at in (bisect_left(steps, step),) for k in (at, at - 1, at + 1)]
    near_findings = list(dict.fromkeys(k for k in around if 0 <= k < len(steps)))[: room // 2]
    even = np.unique(
        np.linspace(0, len(steps) - 1, max(1, min(len(steps), room - len(near_findings)))).astype(int)
    ).tolist()
    order = dict.fromkeys([len(steps) - 1, *near_findings, *reversed(even[:-1])])
    return [steps[k] for k in order][:room]


def _rollout_json(rollout: SampledRollout, run: int) -> dict[str, Any]:
    return {
        "run": run,
        "step": rollout.step,
        "question": _cut(rollout.question),
        "expected": _cut(" or ".join(rollout.golden_answers)),
        "answer": None if rollout.answer is None else _cut(rollout.answer),
        "correct": rollout.correct,
        "reward": None if rollout.reward is None else short(rollout.reward, 3),
        "status": rollout.status,
        "outcomes": outcomes_of(rollout),
        "turns": [_turn_json(turn) for turn in rollout.turns],
    }


def _turn_json(turn: SampledTurn) -> dict[str, Any]:
    row: dict[str, Any] = {"text": _cut(turn.text)}
    if turn.observation:
        row["observation"] = _cut(turn.observation)
    if turn.query is not None:
        row["query"] = _cut(turn.query)
    if turn.hits:
        row["hits"] = [_cut(hit) for hit in turn.hits[:20]]
    if turn.tokens is not None:
        used, kept = 0, []
        for piece, change in turn.tokens:
            used += len(piece)
            if used > MOST_CHARACTERS:
                break
            kept.append((piece, short(change, 3)))
        row["pieces"], row["changes"] = [piece for piece, _ in kept], [change for _, change in kept]
        if len(kept) == len(turn.tokens):
            del row["text"]
        else:
            row["text"] = f"… {len(turn.text) - sum(len(p) for p in row['pieces']):,} more characters"
    return row


def _cut(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:MOST_CHARACTERS]} … {len(text) - MOST_CHARACTERS:,} more characters"


def short(value: float, digits: int = 5) -> float | int | None:
    """The number in few characters; None for one that JSON cannot hold.

    >>> short(0.1234567), short(3.0), short(float("nan"))
    (0.12346, 3, None)
    """
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
