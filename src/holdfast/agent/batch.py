"""TokenBatch: the tensors an update reads, made from trajectories without re-encoding anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from holdfast.agent.trajectory import Group, Trajectory
from holdfast.model.sampler.sampling import SamplingMask

# Metadata of a tensor: the shapes that it may have.
_PER_TOKEN: dict[str, Any] = {"shapes": ("B T",)}
_PER_ROW: dict[str, Any] = {"shapes": ("B",)}
_PER_EITHER: dict[str, Any] = {"shapes": ("B 1", "B T")}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """Rollouts as right-padded rows: B rows, T columns. Change a field with `dataclasses.replace`.

    In all log-prob fields `[:, t]` is log p(token_ids[:, t] | token_ids[:, :t]) in nats, 0 at t = 0 and on padding.
    None means absent, zero means zero.

    Example: a prompt of two tokens, then one search of two tokens and its observation, then an answer:

    >>> from holdfast.agent.trajectory import Answer, Group, Search, Trajectory, Turn
    >>> t = Trajectory(
    ...     example_id="world/train/7", prompt=(1, 2), reward=1.0, reward_parts={"em": 1.0},
    ...     turns=(Turn(tokens=(3, 4), logprobs=(-0.5, -0.25), observation=(5,), action=Search("q")),
    ...            Turn(tokens=(7, 8), logprobs=(-0.125, -1.0), action=Answer("x"), answer_span=(1, 2))))
    >>> short = Trajectory(example_id="world/train/7", prompt=(1, 2), reward=0.0,
    ...                    turns=(Turn(tokens=(9,), logprobs=(-2.0,), action=Answer("y"), answer_span=(0, 1)),))
    >>> batch = TokenBatch.from_trajectories([Group("world/train/7", (t, short))], pad_token_id=0)
    >>> batch.token_ids.tolist()
    [[1, 2, 3, 4, 5, 7, 8], [1, 2, 9, 0, 0, 0, 0]]
    >>> batch.action_ids.tolist()
    [[0, 0, 1, 1, 0, 2, 2], [0, 0, 1, 0, 0, 0, 0]]
    >>> batch.answer_mask.long().tolist()
    [[0, 0, 0, 0, 0, 0, 1], [0, 0, 1, 0, 0, 0, 0]]
    >>> batch.rewards.tolist(), batch.correct.tolist(), batch.group_ids.tolist()
    ([1.0, 0.0], [True, False], [0, 0])
    """

    token_ids: Tensor = field(metadata=_PER_TOKEN)
    """int64 [B, T]: prompt, turns and observations, token for token what the model saw."""
    lengths: Tensor = field(metadata=_PER_ROW)
    """int64 [B]: real tokens of each row. What follows them is padding."""
    loss_mask: Tensor = field(metadata=_PER_TOKEN)
    """bool [B, T]: True on tokens the model sampled. All False in rows that are not `valid`."""
    action_ids: Tensor = field(metadata=_PER_TOKEN)
    """int64 [B, T]: 0 outside actions, k on the k-th action. Separates adjacent actions, which a mask cannot."""
    answer_mask: Tensor = field(metadata=_PER_TOKEN)
    """bool [B, T]: True on the final answer, tags included; known from generation, not from re-tokenising."""
    query_mask: Tensor | None = field(default=None, metadata=_PER_TOKEN)
    """bool [B, T]: True on queries, tags included. The model's other sampled tokens are its thoughts."""
    rollout_logprobs: Tensor = field(metadata=_PER_TOKEN)
    """float32 [B, T]: the sampler's log-probs, 0 outside actions."""
    advantages: Tensor = field(metadata=_PER_EITHER)
    """float [B, 1] or [B, T]: zeros until they are set."""
    rewards: Tensor = field(metadata=_PER_ROW)
    """float32 [B]: NaN in rows that are not `valid`, which are never scored: an outage is not a reward of 0."""
    correct: Tensor = field(metadata=_PER_ROW)
    """bool [B]: exact match 1 (not "advantage above 0")."""
    group_ids: Tensor = field(metadata=_PER_ROW)
    """int64 [B]: equal for trajectories of the same question."""
    valid: Tensor = field(metadata=_PER_ROW)
    """bool [B]: False where the rollout failed for reasons other than the policy."""
    old_logprobs: Tensor | None = field(default=None, metadata=_PER_TOKEN)
    """float [B, T]: under the policy frozen for this rollout batch."""
    old_entropy: Tensor | None = field(default=None, metadata=_PER_TOKEN)
    """float [B, T]: of the old policy at each sampled token, in nats. For the log."""
    misplaced: Tensor | None = field(default=None, metadata=_PER_TOKEN)
    """float [B, T]: log-probability, under the old policy, of all control tokens that are out of place at a sampled
    token, in nats; 0 elsewhere. For the log."""
    ref_logprobs: Tensor | None = field(default=None, metadata=_PER_TOKEN)
    """float [B, T]: under the frozen reference."""
    anchor_logprobs: Tensor | None = field(default=None, metadata=_PER_TOKEN)
    """float [B, T]: under the older policy that the penalty compares with; None: it compares with `old_logprobs`."""
    excluded: Tensor | None = field(default=None, metadata=_PER_TOKEN)
    """bool [B, T]: sampled tokens that the loss leaves out."""
    policy_weights: Tensor | None = field(default=None, metadata=_PER_TOKEN)
    """float [B, T]: factors on the policy loss of each token."""
    sampler_logprobs: Tensor | None = field(default=None, metadata=_PER_TOKEN)
    """float [B, T]: of the distribution that the tokens were drawn from, after truncation."""
    log_mass: Tensor | None = field(default=None, metadata=_PER_TOKEN)
    """float [B, T]: log-probability of all tokens of `sampling_mask` together, under the policy being updated."""
    old_log_mass: Tensor | None = field(default=None, metadata=_PER_TOKEN)
    """float [B, T]: the same under the policy frozen for this rollout batch. Where present, log-probs are over the
    vocabulary."""
    sampling_mask: SamplingMask | None = None
    """What the sampler could draw. Without `old_log_mass`, all log-probs of the loss are normalised over it."""

    def __post_init__(self) -> None:
        if self.token_ids.dim() != 2:
            raise ValueError(f"token_ids must have shape [B, T], not {list(self.token_ids.shape)}")
        rows, width = self.token_ids.shape
        sizes: dict[str, tuple[int, ...]] = {"B": (rows,), "B 1": (rows, 1), "B T": (rows, width)}
        for spec in self._tensors():
            value: Tensor = getattr(self, spec.name)
            shapes = [sizes[shape] for shape in spec.metadata["shapes"]]
            if tuple(value.shape) not in shapes:
                expected = " or ".join(str(list(shape)) for shape in shapes)
                raise ValueError(f"{spec.name} has shape {list(value.shape)}, but this batch needs {expected}")
        if self.sampling_mask is not None and len(self.sampling_mask) != rows:
            raise ValueError(f"sampling_mask has {len(self.sampling_mask)} rows, but this batch needs {rows}")

    @classmethod
    def from_trajectories(cls, groups: Sequence[Group], *, pad_token_id: int) -> TokenBatch:
        """Rows in the order of the groups and of their trajectories; padding on the right.

        Groups with the same id are one group (a question drawn twice in a batch): they share `group_ids`.

        Args:
            groups: scored trajectories; only failed ones may lack a reward.
            pad_token_id: fills the rest of short rows. Any id will do: padding is masked everywhere.

        Raises:
            ValueError: no trajectories; a turn without token ids or with another number of log-probs; an unscored
                trajectory that did not fail; sampled tokens without a prompt before them.
        """
        rows = [(group.id, trajectory) for group in groups for trajectory in group.trajectories]
        if not rows:
            raise ValueError("there are no trajectories to batch; pass at least one group with a trajectory")
        number = {group_id: k for k, group_id in enumerate(dict.fromkeys(group_id for group_id, _ in rows))}
        trajectories = [trajectory for _, trajectory in rows]
        for trajectory in trajectories:
            _check_trainable(trajectory)
        sequences = [trajectory.token_ids for trajectory in trajectories]
        width = max(map(len, sequences))

        def pad(values: Sequence[Sequence[float]], fill: float, dtype: torch.dtype) -> Tensor:
            out = torch.full((len(values), width), fill, dtype=dtype)
            for row, value in zip(out, values, strict=True):
                row[: len(value)] = torch.tensor(value, dtype=dtype)
            return out

        rewards = [float("nan") if t.reward is None else t.reward for t in trajectories]
        return cls(
            token_ids=pad(sequences, pad_token_id, torch.long),
            lengths=torch.tensor([len(s) for s in sequences]),
            loss_mask=pad([t.loss_mask for t in trajectories], False, torch.bool),
            action_ids=pad([t.action_ids for t in trajectories], 0, torch.long),
            answer_mask=pad([t.answer_mask for t in trajectories], False, torch.bool),
            query_mask=pad([t.query_mask for t in trajectories], False, torch.bool),
            rollout_logprobs=pad([t.rollout_logprobs for t in trajectories], 0.0, torch.float32),
            advantages=torch.zeros(len(rows), 1),
            rewards=torch.tensor(rewards, dtype=torch.float32),
            correct=torch.tensor([t.correct for t in trajectories]),
            group_ids=torch.tensor([number[group_id] for group_id, _ in rows]),
            valid=torch.tensor([not t.status.is_failure for t in trajectories]),
        )

    def __len__(self) -> int:
        return self.token_ids.shape[0]

    @property
    def penalty_logprobs(self) -> Tensor:
        """float [B, T]: what the penalty compares with: the anchor's log-probs, or else the old ones."""
        logprobs = self.old_logprobs if self.anchor_logprobs is None else self.anchor_logprobs
        assert logprobs is not None
        return logprobs

    @property
    def learned_mask(self) -> Tensor:
        """bool [B, T]: sampled tokens that the loss reads."""
        return self.loss_mask if self.excluded is None else self.loss_mask & ~self.excluded

    def without(self, tokens: Tensor) -> TokenBatch:
        """The loss leaves out these tokens too, bool [B, T], or these rows, bool [B, 1]."""
        tokens = self.loss_mask & tokens
        return replace(self, excluded=tokens if self.excluded is None else self.excluded | tokens)

    def weighted(self, factors: Tensor) -> TokenBatch:
        """The policy loss of each token times float [B, T]."""
        return replace(self, policy_weights=factors if self.policy_weights is None else self.policy_weights * factors)

    def select(self, rows: Sequence[int] | Tensor) -> TokenBatch:
        """The given rows, in the given order, with every field. The width stays; see `trim`.

        Args:
            rows: indices, or a bool tensor [B].
        """
        index = rows if isinstance(rows, Tensor) else torch.tensor(rows, dtype=torch.long)
        index = index.to(self.token_ids.device)
        mask = self.sampling_mask
        if mask is not None:
            mask = mask.select(torch.arange(len(self), device=index.device)[index].tolist())
        return self._map(lambda value: value[index], mask)

    def trim(self) -> TokenBatch:
        """Without the columns on the right that are padding in every row."""
        longest = int(self.lengths.max()) if len(self) else 0
        if longest == self.token_ids.shape[1]:
            return self
        return self._map(lambda value: value[:, :longest] if value.dim() == 2 else value, self.sampling_mask)

    def to(self, device: torch.device | str) -> TokenBatch:
        """Every tensor on `device`."""
        mask = None if self.sampling_mask is None else self.sampling_mask.to(device)
        return self._map(lambda value: value.to(device), mask)

    def _tensors(self) -> list[Field[Any]]:
        return [spec for spec in fields(self) if spec.metadata and getattr(self, spec.name) is not None]

    def _map(self, change: Callable[[Tensor], Tensor], sampling_mask: SamplingMask | None) -> TokenBatch:
        """Every tensor changed, with this mask."""
        tensors = {spec.name: change(getattr(self, spec.name)) for spec in self._tensors()}
        return TokenBatch(**tensors, sampling_mask=sampling_mask)


def sampling_log_mass(batch: TokenBatch, trajectories: Sequence[Trajectory]) -> Tensor:
    """float [B, T]: log-probability of all that the sampler could draw at each token, in nats, as the sampler computed
    it; 0 where it was not truncated. `trajectories` are the rows of `batch`."""
    log_mass = torch.zeros(batch.rollout_logprobs.shape)
    for row, trajectory in enumerate(trajectories):
        if masses := [mass for turn in trajectory.turns for mass in turn.mask_mass or ()]:
            action_ids = torch.tensor(trajectory.action_ids)
            log_mass[row, : len(action_ids)][action_ids > 0] = torch.tensor(masses).clamp(min=1e-30).log()
    return log_mass.to(batch.rollout_logprobs.device)


def _check_trainable(trajectory: Trajectory) -> None:
    where = f"trajectory of {trajectory.example_id}"
    for k, turn in enumerate(trajectory.turns, start=1):
        if turn.tokens is not None and turn.logprobs is not None and len(turn.tokens) != len(turn.logprobs):
            raise ValueError(
                f"{where}, turn {k}: {len(turn.tokens)} tokens but {len(turn.logprobs)} log-probs; each sampled token "
                "needs the sampler's log-prob"
            )
    if trajectory.reward is None and not trajectory.status.is_failure:
        raise ValueError(f"{where} has no reward; score it before batching (None is not 0)")
    if not trajectory.prompt and any(turn.tokens for turn in trajectory.turns):
        raise ValueError(
            f"{where} has an empty prompt, so its first sampled token follows nothing and has no log-prob; start the "
            "prompt with at least one token, for example BOS"
        )
