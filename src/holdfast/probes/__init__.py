"""Probes: what one update would do to a policy, and how likely its rollouts are, on any checkpoint and any model.

`open_run` or `open_model`, then `roll_out_questions`, then one of `per_sample`, `first_action`, `tool_rounds`,
`drift` and `leak`. Each returns a frozen value with `to_json()`; `document` adds what it takes to make it again,
`lines` is a table for a person, `draw` a figure. The policy is left as it was, bit for bit.
"""

from holdfast.probes.figures import draw
from holdfast.probes.leak import Leak, leak
from holdfast.probes.likelihood import FirstAction, ToolRounds, first_action, tool_rounds
from holdfast.probes.report import Result, document, lines
from holdfast.probes.subject import Rollouts, Subject, open_model, open_run, roll_out_questions
from holdfast.probes.updates import Drift, PerSample, arms_of, drift, per_sample

__all__ = [
    "Drift",
    "FirstAction",
    "Leak",
    "PerSample",
    "Result",
    "Rollouts",
    "Subject",
    "ToolRounds",
    "arms_of",
    "document",
    "draw",
    "drift",
    "first_action",
    "leak",
    "lines",
    "open_model",
    "open_run",
    "per_sample",
    "roll_out_questions",
    "tool_rounds",
]
