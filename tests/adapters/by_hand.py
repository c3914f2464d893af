"""The penalties of the papers on one rollout, in Python numbers: what every host must add to its own loss."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from holdfast.methods.penalties import LLDS, NLL, SAPO


def numbered(mask: Sequence[bool]) -> list[int]:
    """k on the k-th run of a mask, 0 outside."""
    runs = itertools.accumulate(inside and not before for before, inside in zip([False, *mask], mask, strict=False))
    return [run if inside else 0 for run, inside in zip(runs, mask, strict=True)]


def by_hand(
    penalty: Any, new: Sequence[float], old: Sequence[float], actions: Sequence[int], a: float, *, correct: bool = False
) -> list[tuple[float, float]]:
    """(value, its derivative by the new log-prob) of each token, without the coefficient. `actions` is k on the tokens
    of the k-th action, 0 outside; `a` the advantage."""
    rules = {"nonnegative": a >= 0, "positive": a > 0, "correct": a > 0 or (a == 0 and correct), "all": True}
    sampled = [t for t, action in enumerate(actions) if action]
    result = [(0.0, 0.0)] * len(actions)
    for t in sampled if rules[getattr(penalty, "preserve", "positive")] else []:
        drop = old[t] - new[t]
        if isinstance(penalty, NLL):
            result[t] = (-new[t], -1.0)
        elif isinstance(penalty, SAPO):
            result[t] = (drop, -1.0) if drop > -math.log(penalty.tau) else (0.0, 0.0)
        elif isinstance(penalty, LLDS):
            of_action = [u for u in sampled if actions[u] == actions[t]]
            unit = {"action": of_action, "response": sampled, "token": [t]}[penalty.gate]
            opened = sum(old[u] - new[u] - penalty.threshold for u in unit) > 0
            result[t] = (drop, -1.0) if opened and drop > penalty.threshold else (0.0, 0.0)
        else:  # a hinge of a user's own
            result[t] = (drop - penalty.margin, -1.0) if drop > penalty.margin else (0.0, 0.0)
    return result
