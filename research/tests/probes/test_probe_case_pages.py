"""The cases as Markdown."""

from __future__ import annotations

from holdfast_research.probes import Cases, case_pages


def test_the_page_has_each_pair_token_by_token(found: Cases) -> None:
    page = case_pages(found, "cases · a run")
    assert page.count("\n## ") == 2 and page.count("\n### ") == 4 and "## 1. Who &lt;b&gt;?" in page
    rows = [row.replace("\\|", "").count("|") for row in page.splitlines() if row.startswith("| ")]
    assert set(rows) == {4, 5, 7}
    assert page.count("The 40 of 60 tokens that changed most:") == 1
    assert "| log-prob per token | -1.000 | -2.000 |" in page and "| change of log-likelihood | -2.500 |" in page
    assert page.count("> ````text") == 4, "a fence longer than that in the passage"
