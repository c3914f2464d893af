"""What a report shows of a run: its log, its diagnosis and its sampled rollouts, as values, from files and as JSON."""

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
class EpisodeTurn:
    """What the model said, and what came back."""

    text: str
    observation: str = ""
    query: str | None = None
    """Of a search; None for another action, and in files that do not tell."""
    hits: tuple[str, ...] = ()
    tokens: tuple[tuple[str, float], ...] | None = None
    """(piece of `text`, change of its log-prob by the step's update in nats); None where that was not measured. A piece
    is empty for a token that ends inside a character, and for the one that ends the turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A sampled episode of a step."""

    step: int
    question: str
    golden_answers: tuple[str, ...]
    turns: tuple[EpisodeTurn, ...]
    answer: str | None
    correct: bool
    reward: float | None
    status: str = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleChanges:
    """What one update did to single rollouts: change of log-likelihood in nats per sampled token."""

    step: int
    correct: tuple[float, ...]
    incorrect: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedRun:
    """One run of a report."""

    log: Log
    diagnosis: Diagnosis
    episodes: tuple[Episode, ...] = ()
    changes: tuple[SampleChanges, ...] = ()


_ALWAYS_BAD = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


def read_episodes(folder: Path) -> tuple[Episode, ...]:
    """Episodes of `trajectories.jsonl` by step; empty without the file. Lines that hold none are passed over."""
    return tuple(sorted(_read(folder / TRAJECTORIES, _parse_rollout), key=lambda episode: episode.step))


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
                except _ALWAYS_BAD:
                    continue
    except OSError:
        return


def _parse_rollout(row: Mapping[str, Any]) -> Episode:
    parts = row.get("reward_parts") or {}
    return Episode(
        step=int(row["step"]),
        question=str(row["question"]),
        golden_answers=tuple(map(str, row.get("golden_answers") or ())),
        turns=tuple(map(_parse_turn, row["turns"])),
        answer=None if row.get("answer") is None else str(row["answer"]),
        correct=float(parts.get("em", 0.0)) == 1.0,
        reward=None if row.get("reward") is None else float(row["reward"]),
        status=str(row.get("status", "ok")),
    )


def _parse_turn(row: Mapping[str, Any]) -> EpisodeTurn:
    text, query = str(row["text"]), row.get("query")
    return EpisodeTurn(
        text=text,
        observation=str(row.get("observation") or ""),
        query=None if query is None else str(query),
        hits=tuple(map(str, row.get("hits") or ())),
        tokens=_tokens(text, row.get("token_chars"), row.get("token_changes")),
    )


def _tokens(text: str, chars: Any, changes: Any) -> tuple[tuple[str, float], ...] | None:
    """Pieces of the text with their changes; None where they were not measured, or do not fit."""
    if not chars or not changes or len(chars) != len(changes) or min(chars) < 0 or sum(chars) != len(text):
        return None
    ends = accumulate(chars, initial=0)
    return tuple((text[a:b], _number(change)) for (a, b), change in zip(pairwise(ends), changes, strict=True))


def _number(value: Any) -> float:
    """NaN for the null that stands where JSON has no number."""
    return float("nan" if value is None else value)


def _changes(row: Mapping[str, Any]) -> SampleChanges:
    correct, incorrect = (tuple(map(_number, row.get(name) or ())) for name in ("correct", "incorrect"))
    return SampleChanges(step=int(row["step"]), correct=correct, incorrect=incorrect)


MOST_EPISODES = 240
MOST_CHARACTERS = 6000
"""Of one text: a turn of 50,000 characters is cut, and says so."""
_TOTAL_CHARACTERS = 1_500_000


def shown_episodes(episodes: Sequence[Sequence[Episode]]) -> list[dict[str, Any]]:
    """Of every run the same number, spread evenly over its steps with the newest kept, until the page is full."""
    count = max(sum(bool(own) for own in episodes), 1)
    shown: list[dict[str, Any]] = []
    for run, own in enumerate(episodes):
        room = _TOTAL_CHARACTERS // count
        for episode in reversed(_spread(own, max(MOST_EPISODES // count, 1))):
            room -= sum(min(len(t), MOST_CHARACTERS) for turn in episode.turns for t in (turn.text, turn.observation))
            if room < 0:
                break
            shown.append(_rollout_json(episode, run))
    return shown


def _spread(episodes: Sequence[Episode], most: int) -> list[Episode]:
    """At most `most` of them, whole steps evenly over the run, the first and the last included."""
    steps = sorted({episode.step for episode in episodes})
    per_step = max(1, -(-len(episodes) // max(len(steps), 1)))
    kept = np.unique(np.linspace(0, len(steps) - 1, max(1, min(len(steps), most // per_step))).astype(int)).tolist()
    wanted = {steps[k] for k in ({*kept[:-1], len(steps) - 1} if steps else set())}
    return [episode for episode in episodes if episode.step in wanted][-most:]


def _rollout_json(episode: Episode, run: int) -> dict[str, Any]:
    return {
        "run": run,
        "step": episode.step,
        "question": _cut(episode.question),
        "expected": _cut(" or ".join(episode.golden_answers)),
        "answer": None if episode.answer is None else _cut(episode.answer),
        "correct": episode.correct,
        "reward": None if episode.reward is None else short(episode.reward, 3),
        "status": episode.status,
        "turns": [_turn_json(turn) for turn in episode.turns],
    }


def _turn_json(turn: EpisodeTurn) -> dict[str, Any]:
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
