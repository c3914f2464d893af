"""Doctests import every module; those of a host's adapter only where the host is installed."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("verl") else [f"holdfast/adapters/verl{part}.py" for part in ("", "_agent", "_check")]
