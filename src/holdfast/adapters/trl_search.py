"""TRL: rollouts of a search agent, their questions and their rewards."""

from holdfast.adapters.trl.search import SearchRollouts, question_dataset, reward_functions

__all__ = ["SearchRollouts", "question_dataset", "reward_functions"]
