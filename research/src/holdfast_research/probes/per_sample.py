"""Displacement per rollout: one update on each question alone, and what it does to the rollouts of that question."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from holdfast.agent.batch import TokenBatch
from holdfast.base.errors import ConfigError, RolloutError
from holdfast.methods.penalties import PENALTIES, WITHOUT_OLD_POLICY
from holdfast.model.sampler.policy import rollout_seed
from holdfast.recipe import Config, validate
from holdfast.train.listener import Listener
from holdfast_research.probes.report import ALL, CORRECT, INCORRECT, columns, or_none, panels, percent
from holdfast_research.probes.subject import Rollouts, Subject, batch_of, borrowed_weights


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
) -> Tensor:
    """One update on `batch`, undone at the end: the change of each rollout's log-likelihood, float [B], in nats.

    Its learning rate and loss are those of `config`. It takes `train.optimizer_steps_per_rollout` optimizer steps, but
    at most one for each rollout.
    """
    learner = subject.learner(config)
    with borrowed_weights(learner.language_model.model):
        plan = learner.plan(batch, torch.Generator().manual_seed(seed))
        old_pass = learner.old_pass(batch, plan)
        note_skipped(learner.step(old_pass.minibatches, mean_searches=mean_searches), note)
        return learner.token_change(old_pass.batch, plan).sum(-1)


def note_skipped(metrics: Mapping[str, float], note: Callable[[str], None]) -> None:
    """Say so if an optimizer step was skipped."""
    if metrics["grad/skipped_steps"]:
        note(
            "an optimizer step was skipped, its gradient was not finite: do not trust this result, and try "
            "model.autocast = 'none'"
        )


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
                    "incorrect_change": or_none(arm.mean_change(correct=False)),
                    "incorrect_change_per_token": or_none(arm.mean_change(correct=False, per_token=True)),
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

    def lines(self) -> list[str]:
        """A short table under a sentence."""
        used, steps = len(self.arms[0].questions), self.optimizer_steps
        rows = [["penalty", "questions displaced", "correct rollouts", "incorrect rollouts"]]
        for arm in self.arms:
            changes = [_change(arm, correct=kind) for kind in (True, False)]
            rows.append([arm.penalty, f"{arm.displaced} of {used} ({percent(arm.displaced / used)})", *changes])
        return [
            f"{used} of {self.asked} questions have a correct rollout and one with another reward. Each got its own "
            f"update of {steps} optimizer step{'s' * (steps > 1)}.",
            "Change of log-likelihood, mean over rollouts: nats per rollout (per token)",
            *columns(rows),
        ]

    def draw(self, figure: Any) -> None:
        """Figure 3 of the paper: a bar for each question, sorted."""
        axes = panels(figure, len(self.arms))
        for axis, arm in zip(axes, self.arms, strict=True):
            values = sorted(q.displacement for q in arm.questions)
            axis.bar(range(1, len(values) + 1), values, color=[INCORRECT if v < 0 else CORRECT for v in values])
            axis.axhline(0, color=ALL, linewidth=0.8)
            share = percent(arm.displaced / len(values))
            axis.set_title(f"{arm.penalty}: {arm.displaced} of {len(values)} questions displaced ({share})")
            axis.set_ylabel("change of correct rollouts, nats")
        axes[-1].set_xlabel("questions, sorted")


def _change(arm: ArmChange, *, correct: bool) -> str:
    whole, token = (arm.mean_change(correct=correct, per_token=per_token) for per_token in (False, True))
    return "–" if math.isnan(whole) else f"{whole:+.3f} ({token:+.4f})"


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
        raise RolloutError(no_contrast(rollouts))
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
            change = update_once(
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


def no_contrast(rollouts: Rollouts) -> str:
    """Why an update would teach nothing, and what to do."""
    return (
        f"{rollouts.correct_count()}, and no question has a correct rollout and one with another reward, so there is "
        "nothing to learn and nothing to displace. Raise --questions or train.group_size, or probe a policy that is "
        "sometimes correct"
    )
