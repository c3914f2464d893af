"""The methods by name, and what kinds there are. Light: the command line checks names here."""

from __future__ import annotations

AGENT = ("r1", "search-r1")
"""Run by the agent loop: without search, and with."""
METHODS = ("direct", "cot", "rag", "ircot", "search-o1", *AGENT)
SEARCHING = frozenset({"rag", "ircot", "search-o1", "search-r1"})
SINGLE_CALL = frozenset({"direct", "cot", "rag"})
"""Their whole output is scored beside the extracted answer, as some published rows seem to have been."""
