"""Probes of any checkpoint or model: what one update does to the policy, and how likely its rollouts are.

`open_run` or `open_model`, then `roll_out_questions`, then one of `per_sample`, `first_action`, `by_searches`,
`ratio_tail`, `tail_leak`, `influence` and `cases`. Each returns a frozen value with `to_json()`. `document` adds what
is needed to repeat the probe, `lines` is a table for people, `case_pages` are the cases as Markdown, and `draw` writes
a figure. The policy stays the same, bit for bit.
"""

from holdfast.evaluate.probes.case_pages import case_pages
from holdfast.evaluate.probes.cases import Cases, cases
from holdfast.evaluate.probes.figures import draw
from holdfast.evaluate.probes.influence import Influence, influence
from holdfast.evaluate.probes.likelihood import BySearches, FirstAction, by_searches, first_action
from holdfast.evaluate.probes.report import Result, document, lines
from holdfast.evaluate.probes.subject import Rollouts, Subject, open_model, open_run, roll_out_questions
from holdfast.evaluate.probes.tail_leak import TailLeak, tail_leak
from holdfast.evaluate.probes.updates import PerSample, RatioTail, arms_of, per_sample, ratio_tail

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
    "lines",
    "open_model",
    "open_run",
    "per_sample",
    "ratio_tail",
    "roll_out_questions",
    "tail_leak",
]
