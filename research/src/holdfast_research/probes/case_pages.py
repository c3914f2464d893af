"""The cases of a checkpoint as a page of Markdown: pairs side by side, and their tokens before and after the step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from holdfast_research.probes.cases import LABELS, Case, CaseRollout, Cases, CaseToken

_MAX_TOKENS = 40
"""Rows of a table of tokens. The JSON has all."""


def case_pages(result: Cases, title: str) -> str:
    """The page: the labels with their rules and counts, then each case that is shown."""
    counts = result.label_counts
    rows = [[name, rule, *map(str, counts[name])] for name, rule in LABELS.items()]
    rows.append(["none", "no rule holds", *map(str, counts["none"])])
    return "\n".join(
        [
            f"# {_plain(title)}",
            "",
            result.sentence(),
            "",
            *_table(["label", "rule", "questions", "displaced"], rows),
            "",
            "Before and after are log-probs in nats. The push is per unit of step size, through the output layer. In "
            "the correct rollout, it is the push of the incorrect rollout on each token. In the incorrect rollout, "
            "it is the push of each token on the correct rollout.",
            *(line for number, case in enumerate(result.shown, start=1) for line in _case(number, case)),
            "",
        ]
    )


def _case(number: int, case: Case) -> Iterator[str]:
    pair = (case.correct, case.incorrect)
    yield from ("", f"## {number}. {_plain(case.question)}", "", f"Label: **{', '.join(case.labels) or 'none'}**.")
    yield from ("", f"* `{case.id}`, golden answer: {_plain(' or '.join(case.golden_answers))}")
    yield f"* {case.correct_rollouts} correct rollouts, {case.incorrect_rollouts} incorrect ones"
    yield f"* displacement: {case.displacement:+.3f} nats per correct rollout"
    yield f"* push of this pair: {case.push:+.3g}, of all rollouts: {case.predicted:+.3g}"
    yield f"* sampled tokens before the first difference: {case.shared_tokens}"
    yield f"* token F1 of the incorrect answer: {case.answer_f1:.2f}"
    yield ""
    yield from _table(
        ["", "correct", "incorrect"],
        [
            ["answer", *(_plain(r.answer) if r.answer is not None else "none" for r in pair)],
            ["sampled tokens", *(str(len(r.tokens)) for r in pair)],
            ["log-prob per token", *(f"{r.logprob:.3f}" for r in pair)],
            ["change of log-likelihood", *(f"{r.change:+.3f}" for r in pair)],
        ],
    )
    for rollout in pair:
        yield from ("", f"### {'Correct' if rollout.correct else 'Incorrect'} rollout", "")
        yield from _rollout(rollout)


def _rollout(rollout: CaseRollout) -> Iterator[str]:
    for turn in rollout.turns:
        yield from _quoted("".join(token.text for token in turn.tokens))
        if turn.observation:
            yield from ("", *_quoted(turn.observation.strip(), "> "))
        yield ""
    every = rollout.tokens
    kept = sorted(sorted(range(len(every)), key=lambda k: -abs(every[k].after - every[k].before))[:_MAX_TOKENS])
    if len(kept) < len(every):
        yield from (f"The {len(kept)} of {len(every)} tokens that changed most:", "")
    yield from _table(["", "token", "before", "after", "change", "push"], [_token(k + 1, every[k]) for k in kept])


def _token(number: int, token: CaseToken) -> list[str]:
    change = token.after - token.before
    text = f"`` {token.text!r} ``" if "`" in token.text else f"`{token.text!r}`"
    return [str(number), text, f"{token.before:.3f}", f"{token.after:.3f}", f"{change:+.4f}", f"{token.push:+.2g}"]


def _quoted(text: str, prefix: str = "") -> Iterator[str]:
    """A block of code, whatever backticks the text has."""
    fence = "```"
    while fence in text:
        fence += "`"
    yield from (prefix + line for line in (f"{fence}text", *text.split("\n"), fence))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for row in (head, ["---"] * len(head), *rows):
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def _plain(text: str) -> str:
    """On one line, and never HTML."""
    return escape(" ".join(text.split()), quote=False)
