"""Probes of any checkpoint or model: what one update does to the policy, and how likely its rollouts are.

`open_run` or `open_model`, then `roll_out_questions`, then one of `per_sample`, `first_action`, `tool_rounds`,
`drift` and `tail_leak`. Each returns a frozen value with `to_json()`. `document` adds what is needed to repeat the
probe, `lines` is a table for people, and `draw` writes a figure. The policy stays the same, bit for bit.
"""

from holdfast.probes.figures import draw
from holdfast.probes.likelihood import FirstAction, ToolRounds, first_action, tool_rounds
from holdfast.probes.report import Result, document, lines
from holdfast.probes.subject import Rollouts, Subject, open_model, open_run, roll_out_questions
from holdfast.probes.tail_leak import TailLeak, tail_leak
from holdfast.probes.updates import Drift, PerSample, arms_of, drift, per_sample

__all__ = [
    "Drift",
    "FirstAction",
    "PerSample",
    "Result",
    "Rollouts",
    "Subject",
    "TailLeak",
    "ToolRounds",
    "arms_of",
    "document",
    "draw",
    "drift",
    "first_action",
    "lines",
    "open_model",
    "open_run",
    "per_sample",
    "roll_out_questions",
    "tail_leak",
    "tool_rounds",
]
