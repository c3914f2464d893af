"""Every kind of log that is read. The order is that of asking: whatever is text can be a console log."""

from __future__ import annotations

from holdfast.diagnostics.readers.console import CONSOLE
from holdfast.diagnostics.readers.csv_export import CSV
from holdfast.diagnostics.readers.jsonl import ARRAY, LINES, STATE
from holdfast.diagnostics.readers.reader import Reader

READERS: tuple[Reader, ...] = (STATE, ARRAY, LINES, CSV, CONSOLE)
