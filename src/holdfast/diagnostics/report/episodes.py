"""Which of the sampled episodes a report shows, and as what JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from holdfast.diagnostics.report.curves import short
from holdfast.diagnostics.report.values import Episode, EpisodeTurn

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
            shown.append(_episode(episode, run))
    return shown


def _spread(episodes: Sequence[Episode], most: int) -> list[Episode]:
    """At most `most` of them, whole steps evenly over the run, the first and the last included."""
    steps = sorted({episode.step for episode in episodes})
    per_step = max(1, -(-len(episodes) // max(len(steps), 1)))
    kept = np.unique(np.linspace(0, len(steps) - 1, max(1, min(len(steps), most // per_step))).astype(int)).tolist()
    wanted = {steps[k] for k in ({*kept[:-1], len(steps) - 1} if steps else set())}
    return [episode for episode in episodes if episode.step in wanted][-most:]


def _episode(episode: Episode, run: int) -> dict[str, Any]:
    return {
        "run": run,
        "step": episode.step,
        "question": _cut(episode.question),
        "expected": _cut(" or ".join(episode.golden_answers)),
        "answer": None if episode.answer is None else _cut(episode.answer),
        "correct": episode.correct,
        "reward": None if episode.reward is None else short(episode.reward, 3),
        "status": episode.status,
        "turns": [_turn(turn) for turn in episode.turns],
    }


def _turn(turn: EpisodeTurn) -> dict[str, Any]:
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
