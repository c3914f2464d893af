"""Probes of any checkpoint or model: does one update make correct rollouts less likely, and does the loss leak?

`open_run` or `open_model`, then `roll_out_questions`, then `per_sample` or `tail_leak`. Both return a frozen `Result`:
`to_json()` for programs, `lines()` for people. `document` adds what is needed to repeat the probe, and `draw` writes a
figure. The policy stays the same, bit for bit.
"""

from holdfast.evaluate.probes.per_sample import PerSample, arms_of, per_sample
from holdfast.evaluate.probes.report import Result, document, draw
from holdfast.evaluate.probes.subject import Rollouts, Subject, open_model, open_run, roll_out_questions
from holdfast.evaluate.probes.tail_leak import TailLeak, tail_leak

__all__ = [
    "PerSample",
    "Result",
    "Rollouts",
    "Subject",
    "TailLeak",
    "arms_of",
    "document",
    "draw",
    "open_model",
    "open_run",
    "per_sample",
    "roll_out_questions",
    "tail_leak",
]
