"""Probes that redo figures of the papers: `holdfast study-probe`. They take a subject of `holdfast.evaluate.probes`.

Each returns a frozen result with `to_json()`, `lines()` and `draw()`. `case_pages` shows the cases.
"""

from holdfast_research.probes.case_pages import case_pages
from holdfast_research.probes.cases import Cases, cases
from holdfast_research.probes.influence import Influence, influence
from holdfast_research.probes.likelihood import BySearches, FirstAction, by_searches, first_action
from holdfast_research.probes.ratio_tail import RatioTail, ratio_tail

__all__ = [
    "BySearches",
    "Cases",
    "FirstAction",
    "Influence",
    "RatioTail",
    "by_searches",
    "case_pages",
    "cases",
    "first_action",
    "influence",
    "ratio_tail",
]
