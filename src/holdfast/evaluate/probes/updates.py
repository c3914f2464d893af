"""Probes that make an update and undo it: displacement per question, and tail of the importance ratios."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Literal

import torch
from torch import Tensor

from holdfast.agent.batch import TokenBatch
from holdfast.agent.policy import rollout_seed
from holdfast.base.errors import ConfigError, RolloutError
from holdfast.evaluate.probes.subject import (
    Rollouts,
    Subject,
    batch_of,
    borrowed_weights,
)
from holdfast.methods.penalties import PENALTIES, WITHOUT_OLD_POLICY
from holdfast.recipe import Config, validate
from holdfast.train.checkpoint import load_optimizer
from holdfast.train.listener import Listener

EPSILONS = (0.9, 0.5, 0.2, 0.1, 0.01, 1e-3, 1e-4, 1e-6)
"""A grid, because the paper of ISDD names no ε."""

Kind = Literal["all", "positive", "negative"]
KINDS: dict[Kind, str] = {"all": "all", "positive": "A > 0", "negative": "A < 0"}
"""Kinds of rollouts by their advantage. An update is meant to make negative ones less likely, and not positive ones."""


def arms_of(config: Config, names: Sequence[str]) -> dict[str, Config]:
    """The recipe under each named penalty; without names, as it is. Raises `ConfigError`.

    The penalty of the recipe keeps its settings, another one gets its published ones.

    >>> arms = arms_of(Config(), ["none", "llds"])
    >>> {name: arm.loss.penalty for name, arm in arms.items()}["none"]
    NoPenalty(name='none')
    """
    recipe = config.model_dump(exclude_none=True)
    arms = {}
    for name in names or [config.loss.penalty.name]:
        if name not in PENALTIES:
            known = ", ".join(PENALTIES)
            raise ConfigError(f"--compare {name}: there is no such penalty; choose from {known}, with commas between")
        penalty = recipe["loss"]["penalty"] if name == config.loss.penalty.name else {"name": name}
        train = recipe["train"] | ({"anchor_every": 0} if name in WITHOUT_OLD_POLICY else {})
        loss = {**recipe["loss"], "penalty": penalty}
        arms[name] = validate({**recipe, "loss": loss, "train": train}, where=f"--compare {name}")
    return arms


def update_once(
    batch: TokenBatch,
    subject: Subject,
    config: Config,
    *,
    mean_searches: float,
    seed: int,
    note: Callable[[str], None],
    after_step: Callable[[], None] | None = None,
) -> list[Tensor]:
    """One update on `batch`, undone at the end: the change of log-likelihoods.

    Its optimizer is fresh, or has the run's AdamW state if `subject.optimizer_state` is set. The learning
    rate is that of the recipe. It takes `train.optimizer_steps_per_rollout` optimizer steps, but at most one
    for each rollout.

    Returns:
        float [B], nats over the whole rollout, new minus old: after the last optimizer step, or after every step if
        `after_step` is given.
    """
    model = subject.language_model.model
    changes = []
    with borrowed_weights(model):
        learner = subject.learner(config)
        if subject.optimizer_state is not None:
            load_optimizer(subject.optimizer_state, learner.optimizer)
        plan = learner.plan(batch, torch.Generator().manual_seed(seed))
        minibatches, batch, _ = learner.old_pass(batch, plan)
        tokens = batch.loss_mask.sum(-1)
        for k, mini in enumerate(minibatches, start=1):
            metrics = learner.step([mini], mean_searches=mean_searches)
            if metrics["grad/skipped_steps"]:
                note(
                    f"optimizer step {k} of {len(minibatches)} was skipped, its gradient was not finite: do not trust "
                    "this result, and try model.autocast = 'none'"
                )
            if after_step is not None or k == len(minibatches):
                changes.append(learner.likelihood_change(batch, plan) * tokens)
            if after_step is not None:
                after_step()
    return changes


# ---- per-sample displacement


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A rollout, and its displacement by the update on its question."""

    correct: bool
    tokens: int
    """Sampled tokens."""
    change: float
    """New minus old log-likelihood, in nats over all its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionChange:
    """The update on one question alone."""

    id: str
    question: str
    responses: tuple[Response, ...]

    @property
    def displacement(self) -> float:
        """Mean change of correct rollouts; below 0 they became less likely (arXiv 2512.04220, Figure 3)."""
        return mean(r.change for r in self.responses if r.correct)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmChange:
    """All questions under one penalty."""

    penalty: str
    questions: tuple[QuestionChange, ...]

    @property
    def displaced(self) -> int:
        """Questions whose correct rollouts became less likely."""
        return sum(q.displacement < 0 for q in self.questions)

    def mean_change(self, *, correct: bool, per_token: bool = False) -> float:
        """Mean over rollouts of all questions, in nats per rollout or per token; NaN without rollouts."""
        responses = [r for q in self.questions for r in q.responses if r.correct is correct]
        changes = [r.change / r.tokens if per_token else r.change for r in responses]
        return mean(changes) if changes else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class PerSample:
    """Displacement by an update on one question alone, of the rollouts of that question."""

    asked: int
    """Questions rolled out. Those in `arms` have a correct rollout and one with another reward."""
    optimizer_steps: int
    """Most optimizer steps of an update."""
    arms: tuple[ArmChange, ...]

    def to_json(self) -> dict[str, object]:
        """As values that `json.dumps` takes."""
        return {
            "asked": self.asked,
            "optimizer_steps": self.optimizer_steps,
            "arms": [
                {
                    "penalty": arm.penalty,
                    "questions_used": len(arm.questions),
                    "displaced": arm.displaced,
                    "displaced_share": arm.displaced / len(arm.questions),
                    "correct_change": arm.mean_change(correct=True),
                    "correct_change_per_token": arm.mean_change(correct=True, per_token=True),
                    "incorrect_change": _or_none(arm.mean_change(correct=False)),
                    "incorrect_change_per_token": _or_none(arm.mean_change(correct=False, per_token=True)),
                    "questions": [
                        {
                            "id": q.id,
                            "question": q.question,
                            "displacement": q.displacement,
                            "responses": [asdict(r) for r in q.responses],
                        }
                        for q in arm.questions
                    ],
                }
                for arm in self.arms
            ],
        }


def per_sample(
    subject: Subject, rollouts: Rollouts, *, seed: int, compare: Sequence[str] = (), listener: Listener
) -> PerSample:
    """For each question: reset weights and optimizer, update on its group alone, measure likelihoods.

    It uses questions with a correct rollout and one with another reward. From other groups a group-relative advantage
    learns nothing, or there is no correct rollout to displace. Raises `RolloutError` when there is no such question.
    """
    arms = arms_of(subject.config, compare)
    used = [
        (e, g)
        for e, g in zip(rollouts.examples, rollouts.groups, strict=True)
        if g.mixed and any(t.correct for t in g.trajectories)
    ]
    if not used:
        raise RolloutError(_no_contrast(rollouts))
    batches = [batch_of(subject, [group]) for _, group in used]
    asked, most = subject.config.train.optimizer_steps_per_rollout, max(map(len, batches))
    if asked > most:
        listener.note(
            f"train.optimizer_steps_per_rollout = {asked}, but the group of a question has {most} rollouts, and every "
            f"optimizer step needs one: each update takes {most}"
        )
    listener.stage("updates", len(arms) * len(used))
    changes: list[ArmChange] = []
    for name, config in arms.items():
        questions: list[QuestionChange] = []
        for (example, _), batch in zip(used, batches, strict=True):
            (change,) = update_once(
                batch,
                subject,
                config,
                mean_searches=rollouts.mean_searches,
                seed=rollout_seed("probe", seed, example.id),
                note=listener.note,
            )
            questions.append(
                QuestionChange(id=example.id, question=example.question, responses=_responses(batch, change))
            )
            listener.advance(len(changes) * len(used) + len(questions))
        changes.append(ArmChange(penalty=name, questions=tuple(questions)))
    return PerSample(asked=len(rollouts.groups), optimizer_steps=min(asked, most), arms=tuple(changes))


def _responses(batch: TokenBatch, change: Tensor) -> tuple[Response, ...]:
    rows = zip(batch.correct.tolist(), batch.loss_mask.sum(-1).tolist(), change.tolist(), strict=True)
    return tuple(Response(correct=c, tokens=n, change=value) for c, n, value in rows)


# ---- tail of the importance ratios


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
                            [_or_none(arm.share_below(epsilon, kind, k)) for epsilon in EPSILONS]
                            for k in range(1, arm.optimizer_steps + 1)
                        ]
                        for kind in KINDS
                    },
                    "rollouts": [asdict(r) for r in arm.rollouts],
                }
                for arm in self.arms
            ],
        }


def ratio_tail(
    subject: Subject, rollouts: Rollouts, *, seed: int, compare: Sequence[str] = (), listener: Listener
) -> RatioTail:
    """One update on all rollouts with the K of the recipe; ∏ r of every rollout after each optimizer step.

    Raises `RolloutError` when no two rewards of a question differ: such a batch moves nothing.
    """
    arms = arms_of(subject.config, compare)
    batch = batch_of(subject, rollouts.groups)
    if not len(batch) or not bool((batch.advantages != 0).any()):
        raise RolloutError(_no_contrast(rollouts))
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
    for name, config in arms.items():
        changes = update_once(
            batch,
            subject,
            config,
            mean_searches=rollouts.mean_searches,
            seed=seed,
            note=listener.note,
            after_step=lambda: listener.advance(next(done)),
        )
        products = zip(*(change.tolist() for change in changes), strict=True)
        rows = [
            RolloutRatios(id=i, correct=c, advantage=a, tokens=n, log_products=p)
            for (i, c, a, n), p in zip(facts, products, strict=True)
        ]
        measured.append(ArmRatios(penalty=name, rollouts=tuple(rows)))
    return RatioTail(arms=tuple(measured))


def _no_contrast(rollouts: Rollouts) -> str:
    return (
        f"{rollouts.correct_count()}, and no question has a correct rollout and one with another reward, so there is "
        "nothing to learn and nothing to displace. Raise --questions or train.group_size, or probe a policy that is "
        "sometimes correct"
    )


def _or_none(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else value
