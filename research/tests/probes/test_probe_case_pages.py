"""The cases as HTML and as Markdown: a token's colour is its change, and what a model wrote stays text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from holdfast_research.probes import Cases, case_html, case_pages
from holdfast_research.probes.cases import Case, CaseRollout, CaseToken, CaseTurn

HOSTILE = "</script><img src=x onerror=alert(1)>"


def side(correct: bool, *changes: float) -> CaseRollout:
    tokens = [CaseToken(text=HOSTILE, before=-1.0, after=-1.0 + change, push=0.0) for change in changes]
    turn = CaseTurn(tokens=tuple(tokens), observation=HOSTILE)
    return CaseRollout(correct=correct, answer=HOSTILE, turns=(turn,))


def test_each_token_has_the_colour_of_its_change(case: Callable[..., Case]) -> None:
    pair = replace(
        case(displacement=-2.0), question=HOSTILE, golden_answers=(HOSTILE,), shared_tokens=1,
        correct=side(True, -0.5, 0.25), incorrect=side(False, -1.0),
    )  # fmt: skip
    page = case_html(Cases(asked=1, every=(pair,), top=3), HOSTILE)
    colours = [part.split(')"')[0] for part in page.split('style="background:rgba(var(--')[1:]]
    assert colours == ["down),0.42", "up),0.21", "down),0.85"]
    assert "shared prefix; displacement -2 nats" in page and "Full colour: 1 nats" in page
    assert "<img" not in page and "</script>" not in page


def test_without_cases_the_page_says_so(found: Cases) -> None:
    page = case_html(replace(found, every=()), "cases")
    assert "<article" not in page and "0 of 9 questions" in page


def test_the_page_has_each_pair_token_by_token(found: Cases) -> None:
    page = case_pages(found, "cases · a run")
    assert page.count("\n## ") == 2 and page.count("\n### ") == 4 and "## 1. Who &lt;b&gt;?" in page
    rows = [row.replace("\\|", "").count("|") for row in page.splitlines() if row.startswith("| ")]
    assert set(rows) == {4, 5, 7}
    assert page.count("The 40 of 60 tokens that changed most:") == 1
    assert "| log-prob per token | -1.000 | -2.000 |" in page and "| change of log-likelihood | -2.500 |" in page
    assert page.count("> ````text") == 4, "a fence longer than that in the passage"
