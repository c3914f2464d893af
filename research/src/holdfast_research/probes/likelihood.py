"""Probes without an update: first actions of incorrect rollouts, and likelihood by action and by number of searches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

from holdfast.agent.metrics.rollouts import first_action_matches, likelihood_rows
from holdfast.agent.trajectory import Trajectory
from holdfast.base.errors import RolloutError
from holdfast.train.listener import Listener
from holdfast_research.probes.report import ALL, CORRECT, INCORRECT, columns, panels, percent
from holdfast_research.probes.subject import Rollouts, Subject, batch_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The likelihood of the sampled tokens of some rollouts."""

    rollouts: int
    logprob: float | None
    """Mean over the rollouts of the mean log-prob per sampled token, in nats; None without rollouts."""


def level(values: Sequence[float]) -> Level:
    """The `Level` of rollouts with these mean log-probs per token.

    >>> level([-0.5, -1.5])
    Level(rollouts=2, logprob=-1.0)
    """
    return Level(rollouts=len(values), logprob=mean(values) if values else None)


def _cell(level: Level) -> str:
    return "–" if level.logprob is None else f"{level.logprob:.3f} ({level.rollouts})"


def _line(axis: Any, places: Sequence[int], levels: Sequence[Level], name: str, colour: str) -> None:
    points = [(x, level) for x, level in zip(places, levels, strict=True) if level.logprob is not None]
    axis.plot([x for x, _ in points], [level.logprob for _, level in points], "o-", color=colour, label=name)
    for x, level in points:
        axis.annotate(
            f"{level.rollouts}",
            (x, level.logprob),
            xytext=(5, 5),
            textcoords="offset points",
            color=colour,
            fontsize="small",
        )


def _likelihood_axis(axis: Any, last: int, first: int = 1) -> None:
    axis.set_xticks(range(first, last + 1))
    axis.set_ylabel("log-prob per token, nats")
    axis.legend(title="numbers: rollouts", title_fontsize="small", fontsize="small")


@dataclass(frozen=True, slots=True, kw_only=True)
class Likelihoods:
    """Rollouts that did not fail, with the mean log-prob per sampled token of each: whole, and action by action."""

    trajectories: tuple[Trajectory, ...]
    whole: tuple[float, ...]
    actions: tuple[tuple[float, ...], ...]
    """One value for each action of the rollout."""


def likelihoods(subject: Subject, rollouts: Rollouts, listener: Listener) -> Likelihoods:
    """Likelihoods under the policy, at the temperature of the recipe and over the whole vocabulary.

    Raises `RolloutError` when all rollouts failed.
    """
    trajectories = rollouts.learnable()
    listener.stage("log-probs")
    batch = batch_of(subject, rollouts.groups)
    learner = subject.learner()
    logprobs = learner.batch_logprobs(batch, learner.plan_whole(batch))
    rows = likelihood_rows(logprobs, batch.loss_mask, batch.action_ids).tolist()
    return Likelihoods(
        trajectories=tuple(trajectories),
        whole=tuple(row[0] for row in rows),
        actions=tuple(tuple(value for value in row[1:] if value == value) for row in rows),  # NaN: no such action
    )


# ---- first actions


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstAction:
    """How incorrect rollouts begin, and how likely each action is (arXiv 2512.04220, Figure 5)."""

    compared: int
    """Incorrect rollouts of questions that also have a correct rollout."""
    matching: int
    """Those of them whose first search returned the same passages as that of a correct rollout."""
    correct: tuple[Level, ...]
    """The first, second, … action of correct rollouts."""
    incorrect: tuple[Level, ...]
    first_matching: Level
    """The first action of the `matching` rollouts."""
    first_other: Level
    """The first action of the other `compared` rollouts."""

    @property
    def share(self) -> float:
        """`matching` as a fraction of `compared`."""
        return self.matching / self.compared

    def to_json(self) -> dict[str, object]:
        """As values that `json.dumps` takes."""
        return {"share_matching": self.share, **asdict(self)}

    def lines(self) -> list[str]:
        """A short table under a sentence."""
        longest = max(len(self.correct), len(self.incorrect))
        rows = [["action", *map(str, range(1, longest + 1))]]
        rows.append(["correct rollouts", *map(_cell, self.correct)])
        rows.append(["incorrect rollouts", *map(_cell, self.incorrect)])
        rows.append(["incorrect, began as a correct one", _cell(self.first_matching)])
        rows.append(["incorrect, began differently", _cell(self.first_other)])
        return [
            f"{self.compared} incorrect rollouts belong to questions with a correct one. {self.matching} of them "
            f"({percent(self.share)}) began with a search that returned the same passages.",
            "Log-prob per token, mean over rollouts (rollouts)",
            *columns(rows),
        ]

    def draw(self, figure: Any) -> None:
        """Figure 5 of the paper: likelihood by action, and how incorrect rollouts begin."""
        (axis,) = panels(figure)
        for name, levels, colour in (("correct", self.correct, CORRECT), ("incorrect", self.incorrect, INCORRECT)):
            _line(axis, range(1, len(levels) + 1), levels, name, colour)
        for name, first, marker in (
            ("incorrect, began as a correct one", self.first_matching, "^"),
            ("incorrect, began differently", self.first_other, "v"),
        ):
            if first.logprob is not None:
                axis.plot([1], [first.logprob], marker, color=INCORRECT, markerfacecolor="white", label=name)
        axis.set_title(
            f"{self.matching} of {self.compared} incorrect rollouts ({percent(self.share)}) began as a correct one"
        )
        axis.set_xlabel("action")
        _likelihood_axis(axis, max(len(self.correct), len(self.incorrect)))


def first_action(subject: Subject, rollouts: Rollouts, *, listener: Listener) -> FirstAction:
    """Compare first actions. Raises `RolloutError` when no question has a correct and an incorrect rollout."""
    matches = [
        (t, same)
        for group in rollouts.groups
        for t, same in zip(group.trajectories, first_action_matches(group), strict=True)
    ]
    if all(same is None for _, same in matches):
        raise RolloutError(
            f"{rollouts.correct_count()}, and no question has a correct one that searched and an incorrect one, so "
            "there is no first action to compare. Raise --questions or train.group_size, or probe a policy that is "
            "sometimes correct"
        )
    measured = likelihoods(subject, rollouts, listener)
    firsts: dict[bool | None, list[float]] = {True: [], False: [], None: []}
    learnable = (same for t, same in matches if any(t.loss_mask))
    for same, actions in zip(learnable, measured.actions, strict=True):
        firsts[same].append(actions[0])
    return FirstAction(
        compared=len(firsts[True]) + len(firsts[False]),
        matching=len(firsts[True]),
        correct=_by_action(measured, correct=True),
        incorrect=_by_action(measured, correct=False),
        first_matching=level(firsts[True]),
        first_other=level(firsts[False]),
    )


def _by_action(measured: Likelihoods, *, correct: bool) -> tuple[Level, ...]:
    rows = [a for t, a in zip(measured.trajectories, measured.actions, strict=True) if t.correct is correct]
    longest = max(map(len, rows), default=0)
    return tuple(level([row[k] for row in rows if len(row) > k]) for k in range(longest))


# ---- likelihood by number of searches


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Rollouts with the same number of searches."""

    searches: int
    everyone: Level
    correct: Level
    incorrect: Level


@dataclass(frozen=True, slots=True, kw_only=True)
class BySearches:
    """Likelihood of rollouts by their number of searches (arXiv 2512.04220)."""

    rounds: tuple[Rounds, ...]
    """Ascending; numbers of searches without a rollout are left out."""

    def to_json(self) -> dict[str, object]:
        """As values that `json.dumps` takes."""
        return asdict(self)

    def lines(self) -> list[str]:
        """A short table under a sentence."""
        rows = [["searches", "all", "correct", "incorrect"]]
        rows += [[str(r.searches), _cell(r.everyone), _cell(r.correct), _cell(r.incorrect)] for r in self.rounds]
        return ["Log-prob per token, mean over rollouts (rollouts)", *columns(rows)]

    def draw(self, figure: Any) -> None:
        """Three lines: all, correct and incorrect rollouts."""
        (axis,) = panels(figure)
        searches = [row.searches for row in self.rounds]
        _line(axis, searches, [row.everyone for row in self.rounds], "all", ALL)
        _line(axis, searches, [row.correct for row in self.rounds], "correct", CORRECT)
        _line(axis, searches, [row.incorrect for row in self.rounds], "incorrect", INCORRECT)
        axis.set_xlabel("searches")
        _likelihood_axis(axis, searches[-1], searches[0])


def by_searches(subject: Subject, rollouts: Rollouts, *, listener: Listener) -> BySearches:
    """Likelihood by number of searches. Raises `RolloutError` when all rollouts failed."""
    measured = likelihoods(subject, rollouts, listener)
    rows = list(zip(measured.trajectories, measured.whole, strict=True))

    def of(searches: int, *kinds: bool) -> Level:
        return level([value for t, value in rows if t.searches == searches and t.correct in kinds])

    return BySearches(
        rounds=tuple(
            Rounds(searches=n, everyone=of(n, True, False), correct=of(n, True), incorrect=of(n, False))
            for n in sorted({t.searches for t in measured.trajectories})
        )
    )
