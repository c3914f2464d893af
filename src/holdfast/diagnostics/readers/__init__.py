"""Logs of any trainer as `Log` values: what is read, and how it is recognised, stands in docs/logs.md."""

from holdfast.diagnostics.readers.read import read_log, read_logs

__all__ = ["read_log", "read_logs"]
