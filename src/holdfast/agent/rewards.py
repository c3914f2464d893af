"""Rewards: named parts of what one trajectory is worth, and their weighted sum.

Only what the model generated is scored: the answer comes from the action of the last turn, never from a search over the
text, where the prompt's example or a passage could be mistaken for it.

A part goes by its name in `PARTS`, or by the import path of a function, `module:function`, which takes a trajectory and
the golden answers and returns a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

from holdfast.agent.trajectory import Answer, Invalid, Trajectory, Turn
from holdfast.base.errors import ConfigError, nearest_name
from holdfast.base.importing import import_named, running
from holdfast.base.scoring import exact_match, f1, in_passages
from holdfast.base.section import MAX_NUMBER

EM: Mapping[str, float] = {"em": 1.0}
"""The published reward of Search-R1 and LLDS: exact match and nothing else. SAPO's is token F1, `{"f1": 1.0}`."""


def _em(trajectory: Trajectory, golds: Sequence[str]) -> float:
    return exact_match(trajectory.answer, golds)


def _f1(trajectory: Trajectory, golds: Sequence[str]) -> float:
    return f1(trajectory.answer, golds)


def _format(trajectory: Trajectory, golds: Sequence[str]) -> float:
    """1.0 when every turn is a call or an answer and the last one is an answer."""
    valid = not any(isinstance(turn.action, Invalid) for turn in trajectory.turns)
    return float(valid and trajectory.answer is not None)


def _retrieval(trajectory: Trajectory, golds: Sequence[str]) -> float:
    """1.0 when a golden answer is in a passage, as the model saw it: after any truncation."""
    seen = [turn.observation_text for turn in trajectory.turns if turn.hits]
    return in_passages(seen, golds)


def _thrift(trajectory: Trajectory, golds: Sequence[str]) -> float:
    """1 / n for a correct answer after n searches, and after none as after one; 0.0 for every other rollout, so that
    searching less is worth nothing without the answer."""
    return _em(trajectory, golds) / max(trajectory.searches, 1)


def unicode_em(trajectory: Trajectory, golds: Sequence[str]) -> float:
    """Exact match in scoring mode `unicode`, for answers in other languages than English. A recipe names it in
    `reward.custom`, as `holdfast.agent.rewards:unicode_em`."""
    return exact_match(trajectory.answer, golds, mode="unicode")


Part = Callable[[Trajectory, Sequence[str]], float]

PARTS: dict[str, Part] = {
    "em": _em,
    "f1": _f1,
    "format": _format,
    "retrieval": _retrieval,
    "thrift": _thrift,
}
"""The value of every part is in [0, 1]."""

JUDGE = "judge"
"""The part that a judge gives (`agent/judge.py`); its value comes with the rollout."""
_ALWAYS = ("em", "f1")  # recorded whatever the weights are: `correct` and the metrics need them


def part(name: str) -> Part:
    """The part for a name or an import path. Raises `ConfigError` when it does not exist or does not work."""
    if name in PARTS:
        return PARTS[name]
    if ":" in name:
        return _imported(name)
    hint = nearest_name(name, PARTS, f"the parts are {', '.join(PARTS)}, or module:function")
    raise ConfigError(f"reward part {name!r} does not exist; {hint}")


@cache
def _imported(path: str) -> Part:
    """The function at an import path, tried on a rollout with one correct answer."""
    function: Part = import_named(path)
    turn = Turn(tokens=(1,), logprobs=(-0.1,), action=Answer("Lisbon"))
    with running(f"{path!r} fails on a rollout with one correct answer"):
        value = function(Trajectory(example_id="an example", prompt=(0,), turns=(turn,)), ("Lisbon",))
    if not _is_number(value):
        raise ConfigError(f"{path!r} must return {_NUMBER} for a rollout; it returned {value!r}")
    return function


def _value(name: str, trajectory: Trajectory, golds: Sequence[str]) -> float:
    """The value of a part. Raises `ConfigError` for whatever a function of the user's raises."""
    if name in PARTS:
        return PARTS[name](trajectory, golds)
    with running(f"reward part {name!r} fails on a rollout of {trajectory.example_id}"):
        return part(name)(trajectory, golds)


# Of a weight, a part or a reward: advantages square rewards, in float32.
_NUMBER = f"a finite number, at most {MAX_NUMBER:g} in size"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) <= MAX_NUMBER


def check_weights(weights: Mapping[str, float]) -> None:
    """Raise `ConfigError` for a part that does not exist, a weight that is not finite or too large, or weights that are
    all 0."""
    for name, weight in weights.items():
        if name != JUDGE:
            part(name)
        if not _is_number(weight):
            raise ConfigError(f"reward weight {name} = {weight}; a weight must be {_NUMBER}")
    if not any(weights.values()):
        raise ConfigError("every reward weight is 0, so no rollout is better than another; set one, such as em = 1")


def score_trajectory(
    trajectory: Trajectory, golds: Sequence[str], weights: Mapping[str, float] = EM, *, judged: float | None = None
) -> Trajectory:
    """The trajectory with `reward` = Σ weight · part and `reward_parts`: `em` and `f1` always, others if weighted.

    `judged` is the value of the part `judge`. Where the judge could not decide, exact match stands for it.

    A rollout that failed for reasons other than the policy keeps reward `None` and no parts: an outage is not a wrong
    answer, and must not enter its group's mean.
    """
    check_weights(weights)
    if trajectory.status.is_failure:
        return replace(trajectory, reward=None, reward_parts={})
    names = [name for name in {**PARTS, **weights} if name in _ALWAYS or (weights.get(name) and name != JUDGE)]
    parts = {name: _value(name, trajectory, golds) for name in names}
    if weights.get(JUDGE):
        parts[JUDGE] = parts["em"] if judged is None else judged
    for name, value in parts.items():
        if not _is_number(value):
            raise ConfigError(f"reward part {name!r} must return {_NUMBER}; it returned {value!r}")
    reward = math.fsum(weight * parts[name] for name, weight in weights.items() if weight)
    if not _is_number(reward):
        raise ConfigError(f"the reward of a rollout is {reward:g}; it must be {_NUMBER}: lower the reward's weights")
    return replace(trajectory, reward=reward, reward_parts=parts)
