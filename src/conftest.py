"""Doctests import every module; those of a host's adapter only where the host is installed."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("verl") else ["holdfast/adapters/verl", "holdfast/adapters/verl_agent.py"]
