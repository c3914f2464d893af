"""Probes of a checkpoint or model: what one update does to rollouts, and figures of the papers (`study-probe`).

`open_run` or `open_model`, then `roll_out_questions`, then a probe. Each returns a frozen `Result`: `to_json()` for
programs, `lines()` for people. `document` adds what is needed to repeat the probe, `draw` writes a figure, and
`case_pages` shows the cases. The policy stays the same, bit for bit.
"""

from holdfast_research.probes.case_pages import case_pages
from holdfast_research.probes.cases import Cases, cases
from holdfast_research.probes.influence import Influence, influence
from holdfast_research.probes.likelihood import BySearches, FirstAction, by_searches, first_action
from holdfast_research.probes.per_sample import PerSample, arms_of, per_sample
from holdfast_research.probes.ratio_tail import RatioTail, ratio_tail
from holdfast_research.probes.report import Result, document, draw
from holdfast_research.probes.subject import Rollouts, Subject, open_model, open_run, roll_out_questions
from holdfast_research.probes.tail_leak import TailLeak, tail_leak

__all__ = [
    "BySearches",
    "Cases",
    "FirstAction",
    "Influence",
    "PerSample",
    "RatioTail",
    "Result",
    "Rollouts",
    "Subject",
    "TailLeak",
    "arms_of",
    "by_searches",
    "case_pages",
    "cases",
    "document",
    "draw",
    "first_action",
    "influence",
    "open_model",
    "open_run",
    "per_sample",
    "ratio_tail",
    "roll_out_questions",
    "tail_leak",
]
