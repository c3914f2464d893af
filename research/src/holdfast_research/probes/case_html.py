"""The cases of a checkpoint as one HTML file, in the style of `holdfast report`: tokens coloured by their change."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from importlib.resources import files

from holdfast_research.probes.cases import Case, CaseRollout, Cases, CaseToken, CaseTurn

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def case_html(result: Cases, title: str) -> str:
    """The page: what was measured, then the pair of each case that is shown."""
    sizes = sorted(
        abs(t.after - t.before) for case in result.shown for r in (case.correct, case.incorrect) for t in r.tokens
    )
    scale = max(sizes[int(0.95 * len(sizes))] if sizes else 0.0, 0.01)
    style = (files("holdfast.diagnose.report") / "web" / "page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n<p>{escape(result.sentence())}</p>\n"
        '<p class="soft">Blue tokens became more likely by one GRPO step on the question alone, orange ones less. Full '
        f"colour: {scale:.2g} nats.</p>\n{''.join(_case(case, scale) for case in result.shown)}</body>\n</html>\n"
    )


def _case(case: Case, scale: float) -> str:
    facts = f"displacement {case.displacement:+.3g} nats per correct rollout, push of this pair {case.push:+.3g}"
    labels = ", ".join(case.labels) or "no label"
    golden = " or ".join(case.golden_answers)
    cards = "".join(_rollout(rollout, scale) for rollout in (case.correct, case.incorrect))
    return (
        f'<h2 dir="auto">{escape(case.question)}</h2>\n<p class="soft" dir="auto">{escape(labels)}; {facts}. Expected: '
        f'{escape(golden)}</p>\n<div class="rollouts">{cards}</div>\n'
    )


def _rollout(rollout: CaseRollout, scale: float) -> str:
    outcome = '<span class="outcome ok">✓ correct' if rollout.correct else '<span class="outcome">✗ incorrect'
    turns = "".join(part for turn in rollout.turns for part in _turn(turn, scale))
    answer = "none" if rollout.answer is None else escape(rollout.answer)
    return (
        f'<article class="rollout"><header>{outcome}</span></header>{turns}'
        f'<p class="soft" dir="auto">Answer: {answer}</p></article>'
    )


def _turn(turn: CaseTurn, scale: float) -> Iterator[str]:
    spans = "".join(_token(token, scale) for token in turn.tokens)
    yield f'<div class="turn"><div class="text" dir="auto">{spans}</div>'
    if turn.observation:
        yield f'<div class="observation" dir="auto">{escape(turn.observation.strip())}</div>'
    yield "</div>"


def _token(token: CaseToken, scale: float) -> str:
    change = token.after - token.before
    opacity = min(1.0, abs(change) / scale) * 0.85
    colour = f"rgba(var(--{'down' if change < 0 else 'up'}),{opacity:.2f})"
    return f'<span style="background:{colour}" title="{change:+.3g} nats">{escape(token.text) or "∎"}</span>'
