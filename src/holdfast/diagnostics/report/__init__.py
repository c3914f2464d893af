"""`report.html`: one self-contained file of a run, or of several, that one reads at a glance. docs/report.md."""

from holdfast.diagnostics.report.page import is_replaceable, reported, write_report
from holdfast.diagnostics.report.samples import Episode, EpisodeTurn, ReportedRun, SampleChanges

__all__ = ["Episode", "EpisodeTurn", "ReportedRun", "SampleChanges", "is_replaceable", "reported", "write_report"]
