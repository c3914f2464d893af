"""The name by which verifiers finds holdfast's environment: `taskset.id = "holdfast-verifiers"`."""

from holdfast.adapters.verifiers.environment import SearchHarness, SearchTaskset

__all__ = ["SearchHarness", "SearchTaskset"]
