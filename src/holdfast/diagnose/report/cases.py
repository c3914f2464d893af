"""Case studies that `holdfast probe --what cases` wrote into the run's folder, as a section of the report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any

from holdfast.diagnose.report.samples import UNREADABLE, ReportedCase, SampledRollout, SampledTurn


def read_cases(folder: Path) -> tuple[ReportedCase, ...]:
    """The cases of the newest `probes/cases-*.json`; empty without one that can be read."""
    try:
        files = filter(Path.is_file, (folder / "probes").glob("cases-*.json"))  # a pipe would be waited for
        newest = max(files, key=lambda path: path.stat().st_mtime)
        return tuple(map(_case, json.loads(newest.read_text(encoding="utf-8"))["result"]["cases"]))
    except (OSError, *UNREADABLE):
        return ()


def _case(row: Mapping[str, Any]) -> ReportedCase:
    return ReportedCase(
        labels=tuple(map(str, row["labels"])),
        displacement=float(row["displacement"]),
        push=float(row["push"]),
        pair=tuple(_rollout(row, row[side]) for side in ("correct", "incorrect")),
    )


def _rollout(case: Mapping[str, Any], row: Mapping[str, Any]) -> SampledRollout:
    turns = []
    for turn in row["turns"]:
        tokens = tuple((str(t["text"]), float(t["after"]) - float(t["before"])) for t in turn["tokens"])
        text = "".join(piece for piece, _ in tokens)
        turns.append(SampledTurn(text=text, observation=str(turn["observation"]), tokens=tokens))
    return SampledRollout(
        step=0,
        question=str(case["question"]),
        golden_answers=tuple(map(str, case["golden_answers"])),
        turns=tuple(turns),
        answer=None if row["answer"] is None else str(row["answer"]),
        correct=bool(row["correct"]),
        reward=None,
    )


def cases_html(cases: Sequence[ReportedCase]) -> str:
    """The section, or nothing without cases."""
    if not cases:
        return ""
    rollouts = chain.from_iterable(case.pair for case in cases)
    sizes = sorted(abs(change) for r in rollouts for turn in r.turns for _, change in turn.tokens or ())
    scale = max(sizes[int(0.95 * len(sizes))] if sizes else 0.0, 0.01)
    text = "Blue tokens became more likely by one GRPO step on the question alone, orange ones less. Full colour: "
    items = "".join(_item(case, scale) for case in cases)
    return f'<section id="cases"><h2>Case studies</h2>\n<p class="soft">{text}{scale:.2g} nats.</p>\n{items}</section>'


def _item(case: ReportedCase, scale: float) -> str:
    facts = f"displacement {case.displacement:+.3g} nats per correct rollout, push of this pair {case.push:+.3g}"
    labels = ", ".join(case.labels) or "no label"
    golden = " or ".join(case.pair[0].golden_answers)
    cards = "".join(_card(rollout, scale) for rollout in case.pair)
    return (
        f'<h3 dir="auto">{escape(case.pair[0].question)}</h3>\n<p class="soft" dir="auto">{escape(labels)}; {facts}. '
        f'Expected: {escape(golden)}</p>\n<div class="rollouts">{cards}</div>\n'
    )


def _card(rollout: SampledRollout, scale: float) -> str:
    outcome = '<span class="outcome ok">✓ correct' if rollout.correct else '<span class="outcome">✗ incorrect'
    turns = "".join(part for turn in rollout.turns for part in _turn(turn, scale))
    answer = "none" if rollout.answer is None else escape(rollout.answer)
    return (
        f'<article class="rollout"><header>{outcome}</span></header>{turns}'
        f'<p class="soft" dir="auto">Answer: {answer}</p></article>'
    )


def _turn(turn: SampledTurn, scale: float) -> Iterator[str]:
    spans = "".join(_token(piece, change, scale) for piece, change in turn.tokens or ())
    yield f'<div class="turn"><div class="text" dir="auto">{spans}</div>'
    if turn.observation:
        yield f'<div class="observation" dir="auto">{escape(turn.observation.strip())}</div>'
    yield "</div>"


def _token(piece: str, change: float, scale: float) -> str:
    opacity = min(1.0, abs(change) / scale) * 0.85
    colour = f"rgba(var(--{'down' if change < 0 else 'up'}),{opacity:.2f})"
    return f'<span style="background:{colour}" title="{change:+.3g} nats">{escape(piece) or "∎"}</span>'
