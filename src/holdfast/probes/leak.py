"""Where a truncated sampler leaks: turn by turn, the advantage of what was sampled and the mass that could not be."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from holdfast.errors import RolloutError
from holdfast.metrics import tail_advantage
from holdfast.probes.subject import Rollouts, Subject, batch_of
from holdfast.trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLeak:
    """All rollouts that came to a turn, or all turns together."""

    rollouts: int
    correct: int
    """Those of them that turned out right."""
    tokens: int
    advantage: float
    """Mean over the sampled tokens."""
    kept: float
    """Mean probability mass the sampler kept; 1 when it was not truncated."""
    tail_advantage: float | None
    """Mean advantage, each token weighted by the mass cut in its place; None when nothing was cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """Below 0 the mass outside the sampler grows in those contexts, unless the loss keeps the sampler's mask."""

    turns: tuple[TurnLeak, ...]
    """The first, second, … turn."""
    whole: TurnLeak
    keeps_mask: bool
    """The recipe's loss is over what the sampler kept, so that nothing leaks."""

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def leak(subject: Subject, rollouts: Rollouts) -> Leak:
    """Raises `RolloutError` when every episode failed, or no question has two rewards: then nothing is learned."""
    taken = [t for group in rollouts.groups for t in group.trajectories if any(t.loss_mask)]
    if not taken:
        raise RolloutError("all episodes failed, so there is nothing to learn from; check the retriever")
    advantages = batch_of(subject, rollouts.groups).advantages[:, 0].tolist()
    if not any(advantages):
        raise RolloutError(
            f"no question of {len(rollouts.groups)} has rollouts with different rewards, so every advantage is 0. "
            "Raise --questions or train.group_size, or probe a policy that is right now and then"
        )
    rows = list(zip(advantages, taken, strict=True))
    longest = max(len(t.turns) for t in taken)
    return Leak(
        turns=tuple(
            _of([(a, replace(t, turns=t.turns[k : k + 1])) for a, t in rows if len(t.turns) > k])
            for k in range(longest)
        ),
        whole=_of(rows),
        keeps_mask=subject.config.sampling.mask_logprobs,
    )


def _of(rows: list[tuple[float, Trajectory]]) -> TurnLeak:
    counts = [sum(len(turn.tokens or ()) for turn in t.turns) for _, t in rows]
    masses = [mass for _, t in rows for turn in t.turns for mass in turn.mask_mass or ()]
    tokens = sum(counts)
    return TurnLeak(
        rollouts=len(rows),
        correct=sum(t.correct for _, t in rows),
        tokens=tokens,
        advantage=sum(a * n for (a, _), n in zip(rows, counts, strict=True)) / max(tokens, 1),
        kept=sum(masses) / len(masses) if masses else 1.0,
        tail_advantage=tail_advantage([a for a, _ in rows], [t for _, t in rows]),
    )
