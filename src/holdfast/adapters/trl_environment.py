"""TRL: an `environment_factory` in which the model searches, reads and calls tools."""

from holdfast.adapters.trl.environment import environment_rewards, search_environment, tool_dataset

__all__ = ["environment_rewards", "search_environment", "tool_dataset"]
