"""The runs of a report: log, diagnosis and sampled rollouts, read from files and written as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.diagnostics.finding import Diagnosis
from holdfast.diagnostics.log import Log
from holdfast.run_folder import DISPLACEMENT, TRAJECTORIES


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
class ReportedCase:
    """A displaced question with the pair of its rollouts."""

    labels: tuple[str, ...]
    displacement: float
    push: float
    pair: tuple[SampledRollout, ...]
    """The correct rollout, then the incorrect one that pushes it, with the change of each token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedRun:
    """One run of a report."""

    log: Log
    diagnosis: Diagnosis
    rollouts: tuple[SampledRollout, ...] = ()
    changes: tuple[SampleChanges, ...] = ()
    cases: tuple[ReportedCase, ...] = ()


UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
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
            for line in file:
                try:
                    yield parse(json.loads(line))
                except UNREADABLE:
                    continue
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


MOST_ROLLOUTS = 240
MOST_CHARACTERS = 6000
"""Characters of one text. A longer text is cut, and ends with the number of characters cut."""
_TOTAL_CHARACTERS = 1_500_000


def rollouts_json(rollouts: Sequence[Sequence[SampledRollout]]) -> list[dict[str, Any]]:
    """The same number of rollouts for every run, evenly over its steps and with the newest, until the page is full."""
    count = max(sum(map(bool, rollouts)), 1)
    shown: list[dict[str, Any]] = []
    for run, sampled in enumerate(rollouts):
        room = _TOTAL_CHARACTERS // count
        for rollout in reversed(_spread(sampled, max(MOST_ROLLOUTS // count, 1))):
            room -= sum(min(len(t), MOST_CHARACTERS) for turn in rollout.turns for t in (turn.text, turn.observation))
            if room < 0:
                break
            shown.append(_rollout_json(rollout, run))
    return shown


def _spread(rollouts: Sequence[SampledRollout], most: int) -> list[SampledRollout]:
    """At most `most` of them: whole steps, evenly over the run, including the first and the last."""
    steps = sorted({rollout.step for rollout in rollouts})
    per_step = max(1, -(-len(rollouts) // max(len(steps), 1)))
    kept = np.unique(np.linspace(0, len(steps) - 1, max(1, min(len(steps), most // per_step))).astype(int)).tolist()
    chosen = {steps[k] for k in ({*kept[:-1], len(steps) - 1} if steps else set())}
    return [rollout for rollout in rollouts if rollout.step in chosen][-most:]


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
