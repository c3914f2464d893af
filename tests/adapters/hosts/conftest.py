"""Four rollouts of different lengths, and every penalty on them in Python numbers, from the papers."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast.methods.penalties import LLDS, NLL, SAPO

from ..by_hand import by_hand, numbered

collect_ignore = ["stand_ins.py", "slime_two_ranks.py"]

MASKS = ((0, 0, 1, 1, 0, 1, 1, 1), (0, 1, 1, 0, 1, 1), (0, 1, 1, 1, 1, 1, 1), (0, 0, 0, 1, 0, 1, 1, 0, 1))
ADVANTAGES = (0.7, 0.0, -0.4, 1.1)
# `[loss.penalty]` of a recipe.
SECTIONS: dict[str, dict[str, Any]] = {
    "llds": {"name": "llds", "coef": 0.3},
    "llds, response": {"name": "llds", "coef": 0.3, "gate": "response", "preserve": "positive"},
    "lld, threshold": {"name": "llds", "coef": 0.3, "gate": "token", "threshold": 0.15, "preserve": "all"},
    "sapo": {"name": "sapo", "coef": 0.4, "tau": 0.9},
    "nll": {"name": "nll", "coef": 0.5},
}
for section in SECTIONS.values():
    section["normalizer"] = "policy"  # the host's own mean


@dataclass(frozen=True)
class Rollout:
    """One rollout; lists of the same length."""

    mask: list[bool]
    advantage: float
    new: list[float]
    old: list[float]


@pytest.fixture
def rollouts() -> list[Rollout]:
    """With tokens that became less likely by more and by less, in actions that did and did not."""
    draw = random.Random(5)
    made = []
    for mask, advantage in zip(MASKS, ADVANTAGES, strict=True):
        old = [-0.05 - draw.random() for _ in mask]
        new = [min(x + draw.uniform(-0.5, 0.4), -0.01) for x in old]
        made.append(Rollout([bool(m) for m in mask], advantage, new, old))
    return made


@pytest.fixture
def preserved_share() -> Any:
    """preserved_share(section, rollouts) -> preserved tokens / tokens."""

    def share(section: dict[str, Any], rollouts: list[Rollout]) -> float:
        rule = section.get("preserve", "nonnegative" if section["name"] == "llds" else "positive")
        keeps = {"positive": lambda a: a > 0, "nonnegative": lambda a: a >= 0, "all": lambda a: True}[rule]
        return sum(sum(r.mask) for r in rollouts if keeps(r.advantage)) / sum(sum(r.mask) for r in rollouts)

    return share


@pytest.fixture
def written_out() -> Any:
    """written_out(section, rollout) -> [(value, its derivative by the new log-prob)] for each token."""

    def terms(section: dict[str, Any], rollout: Rollout) -> list[tuple[float, float]]:
        penalty = {"llds": LLDS, "sapo": SAPO, "nll": NLL}[section["name"]](**section)
        return by_hand(penalty, rollout.new, rollout.old, numbered(rollout.mask), rollout.advantage)

    return terms
