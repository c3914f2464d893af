"""The samples that a run folder of ours holds, read without a complaint: a report shows what there is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from holdfast.diagnostics.report.values import Episode, EpisodeTurn, SampleChanges
from holdfast.run_folder import DISPLACEMENT, TRAJECTORIES

_ALWAYS_BAD = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


def read_episodes(folder: Path) -> tuple[Episode, ...]:
    """Episodes of `trajectories.jsonl` by step; empty without the file. Lines that hold none are passed over."""
    return tuple(sorted(_read(folder / TRAJECTORIES, _episode), key=lambda episode: episode.step))


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


def _episode(row: Mapping[str, Any]) -> Episode:
    parts = row.get("reward_parts") or {}
    return Episode(
        step=int(row["step"]),
        question=str(row["question"]),
        golden_answers=tuple(map(str, row.get("golden_answers") or ())),
        turns=tuple(map(_turn, row["turns"])),
        answer=None if row.get("answer") is None else str(row["answer"]),
        correct=float(parts.get("em", 0.0)) == 1.0,
        reward=None if row.get("reward") is None else float(row["reward"]),
        status=str(row.get("status", "ok")),
    )


def _turn(row: Mapping[str, Any]) -> EpisodeTurn:
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
