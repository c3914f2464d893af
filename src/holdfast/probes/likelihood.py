"""Probes that only look: first actions of wrong rollouts, and likelihood by action and by number of searches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import mean

import torch

from holdfast.errors import RolloutError
from holdfast.listener import Listener
from holdfast.metrics import first_action_matches, likelihood_rows
from holdfast.probes.subject import Rollouts, Subject, batch_of
from holdfast.trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """How likely the sampled tokens of some rollouts are."""

    rollouts: int
    logprob: float | None
    """Mean over the rollouts of the mean log-prob per sampled token, in nats; None when there are no rollouts."""


def level(values: Sequence[float]) -> Level:
    """Of mean log-probs per token.

    >>> level([-0.5, -1.5])
    Level(rollouts=2, logprob=-1.0)
    """
    return Level(rollouts=len(values), logprob=mean(values) if values else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Likelihoods:
    """Episodes that did not fail, with the mean log-prob per sampled token of each: whole, and action by action."""

    trajectories: tuple[Trajectory, ...]
    whole: tuple[float, ...]
    actions: tuple[tuple[float, ...], ...]
    """One value for each action the episode took."""


def likelihoods(subject: Subject, rollouts: Rollouts, listener: Listener) -> Likelihoods:
    """Under the policy itself, at the recipe's temperature and over the whole vocabulary.

    Raises `RolloutError` when every episode failed.
    """
    trajectories = [t for group in rollouts.groups for t in group.trajectories if any(t.loss_mask)]
    if not trajectories:
        raise RolloutError(
            f"all {sum(len(group.trajectories) for group in rollouts.groups)} episodes failed; check the retriever"
        )
    listener.stage("log-probs")
    batch = batch_of(subject, rollouts.groups)
    learner = subject.learner()
    logprobs = learner.batch_logprobs(batch, learner.plan(batch, torch.Generator(), steps=1))
    rows = likelihood_rows(logprobs, batch.loss_mask, batch.action_ids).tolist()
    return Likelihoods(
        trajectories=tuple(trajectories),
        whole=tuple(row[0] for row in rows),
        actions=tuple(tuple(value for value in row[1:] if value == value) for row in rows),  # NaN: no such action
    )


# ---- first actions


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstAction:
    """How wrong rollouts begin, and how likely each action is (arXiv 2512.04220, Figure 5)."""

    compared: int
    """Incorrect rollouts with a correct one of the same question beside them."""
    matching: int
    """Those of them whose first search returned the same passages as that of a correct one."""
    correct: tuple[Level, ...]
    """Of the first, second, … action of correct rollouts."""
    incorrect: tuple[Level, ...]
    first_matching: Level
    """Of the first action of the incorrect rollouts that are `matching`."""
    first_other: Level
    """Of the first action of the other `compared` ones."""

    @property
    def share(self) -> float:
        return self.matching / self.compared

    def to_json(self) -> dict[str, object]:
        return {"share_matching": self.share, **asdict(self)}


def first_action(subject: Subject, rollouts: Rollouts, *, listener: Listener) -> FirstAction:
    """Raises `RolloutError` when no question has a correct and an incorrect rollout."""
    matches = [
        (t, same)
        for group in rollouts.groups
        for t, same in zip(group.trajectories, first_action_matches(group), strict=True)
    ]
    if all(same is None for _, same in matches):
        everyone = [t for group in rollouts.groups for t in group.trajectories]
        raise RolloutError(
            f"{sum(t.correct for t in everyone)} of {len(everyone)} rollouts on {len(rollouts.groups)} questions are "
            "correct, and no question has a correct one that searched beside an incorrect one, so there is no first "
            "action to compare. Raise --questions or train.group_size, or probe a policy that is right now and then"
        )
    found = likelihoods(subject, rollouts, listener)
    firsts: dict[bool | None, list[float]] = {True: [], False: [], None: []}
    taken = (same for t, same in matches if any(t.loss_mask))
    for same, actions in zip(taken, found.actions, strict=True):
        firsts[same].append(actions[0])
    return FirstAction(
        compared=len(firsts[True]) + len(firsts[False]),
        matching=len(firsts[True]),
        correct=_by_action(found, correct=True),
        incorrect=_by_action(found, correct=False),
        first_matching=level(firsts[True]),
        first_other=level(firsts[False]),
    )


def _by_action(found: Likelihoods, *, correct: bool) -> tuple[Level, ...]:
    rows = [a for t, a in zip(found.trajectories, found.actions, strict=True) if t.correct is correct]
    longest = max(map(len, rows), default=0)
    return tuple(level([row[k] for row in rows if len(row) > k]) for k in range(longest))


# ---- tool rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Rollouts with the same number of searches."""

    searches: int
    everyone: Level
    correct: Level
    incorrect: Level


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRounds:
    """How likely rollouts are by how often they searched (arXiv 2512.04220)."""

    rounds: tuple[Rounds, ...]
    """By number of searches, ascending; numbers nobody searched are left out."""

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def tool_rounds(subject: Subject, rollouts: Rollouts, *, listener: Listener) -> ToolRounds:
    """Raises `RolloutError` when every episode failed."""
    found = likelihoods(subject, rollouts, listener)
    rows = list(zip(found.trajectories, found.whole, strict=True))

    def of(searches: int, *kinds: bool) -> Level:
        return level([value for t, value in rows if t.searches == searches and t.correct in kinds])

    return ToolRounds(
        rounds=tuple(
            Rounds(searches=n, everyone=of(n, True, False), correct=of(n, True), incorrect=of(n, False))
            for n in sorted({t.searches for t in found.trajectories})
        )
    )
