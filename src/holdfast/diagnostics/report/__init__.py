"""`report.html`: one self-contained file of a run, or of several, that one reads at a glance. docs/report.md."""

from holdfast.diagnostics.report.values import Episode, EpisodeTurn, ReportedRun, SampleChanges
from holdfast.diagnostics.report.write import is_replaceable, reported, write_report

__all__ = ["Episode", "EpisodeTurn", "ReportedRun", "SampleChanges", "is_replaceable", "reported", "write_report"]
