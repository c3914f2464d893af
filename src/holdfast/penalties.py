"""The penalties, and the base class of your own."""

from holdfast.methods.penalties import LLDS, NLL, SAPO, CustomPenalty, NoPenalty, Penalty

__all__ = ["LLDS", "NLL", "SAPO", "CustomPenalty", "NoPenalty", "Penalty"]
