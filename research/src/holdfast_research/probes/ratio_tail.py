"""Tail of the importance ratios: one update on all rollouts, and how far it moves the probability of each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from holdfast.agent.batch import TokenBatch
from holdfast.base.errors import RolloutError
from holdfast.recipe import Config
from holdfast.train.listener import Listener
from holdfast_research.probes.per_sample import arms_of, no_contrast, note_skipped
from holdfast_research.probes.report import ALL, CORRECT, INCORRECT, columns, or_none, panels, percent
from holdfast_research.probes.subject import Rollouts, Subject, batch_of, borrowed_weights

EPSILONS = (0.9, 0.5, 0.2, 0.1, 0.01, 1e-3, 1e-4, 1e-6)
"""A grid, because the paper of ISDD names no ε."""

Kind = Literal["all", "positive", "negative"]
KINDS: dict[Kind, str] = {"all": "all", "positive": "A > 0", "negative": "A < 0"}
"""Kinds of rollouts by their advantage. An update is meant to make negative ones less likely, and not positive ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRatios:
    """A rollout, and how far an update moved its probability."""

    id: str
    """Id of its question."""
    correct: bool
    advantage: float
    tokens: int
    """Sampled tokens."""
    log_products: tuple[float, ...]
    """log ∏ r = Σ (new − old log-prob), in nats, after each optimizer step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRatios:
    """The update under one penalty."""

    penalty: str
    rollouts: tuple[RolloutRatios, ...]

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps of the update."""
        return len(self.rollouts[0].log_products)

    def of(self, kind: Kind, step: int) -> list[float]:
        """log ∏ r of the rollouts of a kind after an optimizer step (1, 2, …), ascending."""
        inside: Mapping[Kind, Callable[[float], bool]] = {
            "all": lambda a: True,
            "positive": lambda a: a > 0,
            "negative": lambda a: a < 0,
        }
        return sorted(r.log_products[step - 1] for r in self.rollouts if inside[kind](r.advantage))

    def share_below(self, epsilon: float, kind: Kind, step: int) -> float:
        """P(∏ r < ε) over the rollouts of a kind (arXiv 2603.10069, definition 1); NaN without rollouts."""
        products = self.of(kind, step)
        return sum(p < math.log(epsilon) for p in products) / len(products) if products else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioTail:
    """How far one update on a rollout batch moves the probability of its own rollouts."""

    arms: tuple[ArmRatios, ...]

    def to_json(self) -> dict[str, object]:
        """As values that `json.dumps` takes."""
        return {
            "epsilons": list(EPSILONS),
            "arms": [
                {
                    "penalty": arm.penalty,
                    "optimizer_steps": arm.optimizer_steps,
                    "share_below": {
                        kind: [
                            [or_none(arm.share_below(epsilon, kind, k)) for epsilon in EPSILONS]
                            for k in range(1, arm.optimizer_steps + 1)
                        ]
                        for kind in KINDS
                    },
                    "rollouts": [asdict(r) for r in arm.rollouts],
                }
                for arm in self.arms
            ],
        }

    def lines(self) -> list[str]:
        """A table of P(∏ r < ε) under a sentence, and its course over the optimizer steps."""
        rows = [["penalty", "rollouts", *(f"ε {_short(epsilon)}" for epsilon in EPSILONS)]]
        for arm in self.arms:
            last = arm.optimizer_steps
            for kind, title in KINDS.items():
                shares = [percent(arm.share_below(epsilon, kind, last)) for epsilon in EPSILONS]
                rows.append([arm.penalty, f"{title} ({len(arm.of(kind, last))})", *shares])
        steps = self.arms[0].optimizer_steps
        text = [
            f"P(∏ r < ε): share of rollouts whose probability was multiplied by less than ε in {steps} optimizer "
            f"step{'s' * (steps > 1)} on them",
            *columns(rows),
        ]
        half = EPSILONS[1]
        if steps > 1:
            text += ["", f"The same for ε = {half:g} and A > 0, after each optimizer step"]
            for arm in self.arms:
                each = (percent(arm.share_below(half, "positive", k)) for k in range(1, steps + 1))
                text.append(f"{arm.penalty}  {'  '.join(each)}")
        return text

    def draw(self, figure: Any) -> None:
        """P(∏ r < ε) over ε: after the last optimizer step, and for A > 0 after the earlier ones too."""
        axes = panels(figure, len(self.arms))
        colours: Mapping[Kind, str] = {"all": ALL, "positive": CORRECT, "negative": INCORRECT}
        for axis, arm in zip(axes, self.arms, strict=True):
            last = arm.optimizer_steps
            for step in range(1, last):
                places = _distribution(arm, "positive", step)
                axis.plot(*places, color=CORRECT, alpha=0.15 + 0.35 * step / last, linewidth=0.8)
            for kind, title in KINDS.items():
                if count := len(arm.of(kind, last)):
                    axis.plot(*_distribution(arm, kind, last), color=colours[kind], label=f"{title} ({count} rollouts)")
            axis.set_title(f"{arm.penalty}: after {last} optimizer steps (thin: A > 0, earlier steps)")
            axis.set_xscale("log")
            axis.set_xlim(EPSILONS[-1], 1)
            axis.set_ylim(0, 1)
            axis.set_ylabel("P(∏ r < ε)")
            axis.legend(fontsize="small")
        axes[-1].set_xlabel("ε")


def _distribution(arm: ArmRatios, kind: Kind, step: int) -> tuple[list[float], list[float]]:
    grid = [10 ** (math.log10(EPSILONS[-1]) * (1 - i / 200)) for i in range(201)]
    return grid, [arm.share_below(epsilon, kind, step) for epsilon in grid]


def _short(epsilon: float) -> str:
    return f"{epsilon:g}" if epsilon >= 0.01 else f"{epsilon:.0e}".replace("e-0", "e-")


def ratio_tail(
    subject: Subject, rollouts: Rollouts, *, seed: int, compare: Sequence[str] = (), listener: Listener
) -> RatioTail:
    """One update on all rollouts with the K of the recipe; ∏ r of every rollout after each optimizer step.

    Raises `RolloutError` when no two rewards of a question differ: such a batch moves nothing.
    """
    arms = arms_of(subject.config, compare)
    batch = batch_of(subject, rollouts.groups)
    if not len(batch) or not bool((batch.advantages != 0).any()):
        raise RolloutError(no_contrast(rollouts))
    advantages = batch.advantages[:, 0].tolist()
    ids = [group.id for group in rollouts.groups for t in group.trajectories if any(t.loss_mask)]
    facts = list(zip(ids, batch.correct.tolist(), advantages, batch.loss_mask.sum(-1).tolist(), strict=True))
    steps = subject.config.train.optimizer_steps_per_rollout
    if steps > len(batch):
        listener.note(
            f"train.optimizer_steps_per_rollout = {steps}, but there are {len(batch)} rollouts, and every optimizer "
            f"step needs one: the update takes {len(batch)}"
        )
    done = itertools.count(1)
    listener.stage("optimizer steps", len(arms) * min(steps, len(batch)))
    measured: list[ArmRatios] = []
    for name, arm in arms.items():
        changes = []
        for change in _steps(batch, subject, arm, rollouts.mean_searches, seed, listener):
            changes.append(change.tolist())
            listener.advance(next(done))
        rows = [
            RolloutRatios(id=i, correct=c, advantage=a, tokens=n, log_products=p)
            for (i, c, a, n), p in zip(facts, zip(*changes, strict=True), strict=True)
        ]
        measured.append(ArmRatios(penalty=name, rollouts=tuple(rows)))
    return RatioTail(arms=tuple(measured))


def _steps(
    batch: TokenBatch, subject: Subject, config: Config, mean_searches: float, seed: int, listener: Listener
) -> Iterator[Tensor]:
    """One update on `batch`, undone at the end: after each optimizer step, log ∏ r of each rollout, float [B]."""
    with borrowed_weights(subject.language_model.model):
        learner = subject.learner(config)
        plan = learner.plan(batch, torch.Generator().manual_seed(seed))
        minibatches, batch, _ = learner.old_pass(batch, plan)
        for mini in minibatches:
            note_skipped(learner.step([mini], mean_searches=mean_searches), listener.note)
            yield learner.token_change(batch, plan).sum(-1)
