"""Tail leak, turn by turn: the advantage of the sampled tokens, and the probability mass outside top-p/top-k."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from holdfast.agent.metrics.rollouts import tail_advantage
from holdfast.agent.trajectory import Trajectory
from holdfast.base.errors import RolloutError
from holdfast_research.probes.report import ALL, CORRECT, INCORRECT, columns, panels, percent
from holdfast_research.probes.subject import Rollouts, Subject, batch_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLeak:
    """All rollouts that have a turn, or all turns together."""

    rollouts: int
    correct: int
    """Those of them that are correct."""
    tokens: int
    advantage: float
    """Mean over the sampled tokens."""
    mask_mass: float
    """Mean probability mass of the sampling mask; 1 if the sampler was not truncated."""
    tail_advantage: float | None
    """Mean advantage, each token weighted by the mass outside the mask at its place; None if there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TailLeak:
    """Where `tail_advantage` is below 0, the mass outside the sampling mask grows, unless the loss uses the mask
    too."""

    turns: tuple[TurnLeak, ...]
    """The first, second, … turn."""
    whole: TurnLeak
    mask_in_loss: bool
    """Whether the loss of the recipe is over the sampling mask, so that nothing leaks."""

    def to_json(self) -> dict[str, object]:
        """As values that `json.dumps` takes."""
        return asdict(self)

    def lines(self) -> list[str]:
        """A short table under a sentence."""
        rows = [["turn", "rollouts", "correct", "tokens", "advantage", "mask mass", "advantage of the tail"]]
        rows += [_row(str(k), turn) for k, turn in enumerate(self.turns, start=1)]
        return [self._sentence(), *columns([*rows, _row("all", self.whole)])]

    def _sentence(self) -> str:
        if self.whole.tail_advantage is None:
            return "The sampler is not truncated, so nothing can leak. Advantages are means over sampled tokens."
        if self.mask_in_loss:
            return "The loss uses the sampling mask, so nothing leaks. Without the mask, these advantages would:"
        return (
            "Advantages are means over sampled tokens. In the last column, each token is weighted by the probability "
            "outside the sampling mask at its position. Below 0, the loss moves probability there."
        )

    def draw(self, figure: Any) -> None:
        """A bar for each turn: the advantage of the tail, or of all tokens if the sampler is not truncated."""
        (axis,) = panels(figure)
        truncated = self.whole.tail_advantage is not None
        values = [turn.tail_advantage or 0.0 if truncated else turn.advantage for turn in self.turns]
        places = range(1, len(values) + 1)
        axis.bar(places, values, color=[INCORRECT if value < 0 else CORRECT for value in values])
        for place, value, turn in zip(places, values, self.turns, strict=True):
            axis.annotate(
                f"{turn.rollouts} rollouts\n{percent(turn.correct / turn.rollouts)} correct\n"
                f"mask mass {turn.mask_mass:.2f}",
                (place, value),
                xytext=(0, 4 if value >= 0 else -4),
                textcoords="offset points",
                ha="center",
                va="bottom" if value >= 0 else "top",
                fontsize="small",
            )
        axis.axhline(0, color=ALL, linewidth=0.8)
        axis.margins(y=0.3)
        axis.set_xticks(places)
        axis.set_xlabel("turn")
        axis.set_ylabel("advantage of the tail" if truncated else "advantage per token")


def _row(name: str, turn: TurnLeak) -> list[str]:
    correct = percent(turn.correct / turn.rollouts)
    tail = "–" if turn.tail_advantage is None else f"{turn.tail_advantage:+.3f}"
    means = [f"{turn.advantage:+.3f}", f"{turn.mask_mass:.3f}", tail]
    return [name, str(turn.rollouts), correct, str(turn.tokens), *means]


def tail_leak(subject: Subject, rollouts: Rollouts) -> TailLeak:
    """The tail leak of the recipe's sampler. Raises `RolloutError` when all rollouts failed, or no two rewards of a
    question differ."""
    trajectories = rollouts.learnable()
    advantages = batch_of(subject, rollouts.groups).advantages[:, 0].tolist()
    if not any(advantages):
        raise RolloutError(
            f"no question of {len(rollouts.groups)} has rollouts with different rewards, so every advantage is 0. "
            "Raise --questions or train.group_size, or probe a policy that is sometimes correct"
        )
    rows = list(zip(advantages, trajectories, strict=True))
    longest = max(len(t.turns) for t in trajectories)
    return TailLeak(
        turns=tuple(
            _turn_leak([(a, replace(t, turns=t.turns[k : k + 1])) for a, t in rows if len(t.turns) > k])
            for k in range(longest)
        ),
        whole=_turn_leak(rows),
        mask_in_loss=subject.config.sampling.mask_logprobs,
    )


def _turn_leak(rows: list[tuple[float, Trajectory]]) -> TurnLeak:
    """Of (advantage, trajectory) pairs."""
    counts = [sum(len(turn.tokens or ()) for turn in t.turns) for _, t in rows]
    masses = [mass for _, t in rows for turn in t.turns for mass in turn.mask_mass or ()]
    tokens = sum(counts)
    return TurnLeak(
        rollouts=len(rows),
        correct=sum(t.correct for _, t in rows),
        tokens=tokens,
        advantage=sum(a * n for (a, _), n in zip(rows, counts, strict=True)) / max(tokens, 1),
        mask_mass=sum(masses) / len(masses) if masses else 1.0,
        tail_advantage=tail_advantage([a for a, _ in rows], [t for _, t in rows]),
    )
