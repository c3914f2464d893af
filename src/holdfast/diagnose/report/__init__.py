"""`report.html`: one self-contained file about one run or several. docs/reference/report.md describes it."""

from holdfast.diagnose.readers.rollouts import SampledRollout, SampledTurn
from holdfast.diagnose.report.page import is_replaceable, reported, write_report
from holdfast.diagnose.report.samples import ReportedRun, SampleChanges

__all__ = [
    "ReportedRun",
    "SampleChanges",
    "SampledRollout",
    "SampledTurn",
    "is_replaceable",
    "reported",
    "write_report",
]
