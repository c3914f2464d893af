"""verl: the agent loop that a YAML file names."""

from holdfast.adapters.verl.agent import SearchAgentLoop

__all__ = ["SearchAgentLoop"]
