"""The local trainer: one process, on a CPU or one GPU. `Trainer.step` is the whole method on one screen.

Questions → rollouts → rewards → advantages → old pass → K optimizer steps → displacement of the rollouts: their
log-prob after the update − before. The parts are in `rollouts.py`, `learner.py` (with the loss in `objective.py`) and
`displacement.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from holdfast.agent.agent import SearchAgent
from holdfast.agent.batch import TokenBatch
from holdfast.agent.metrics.control import ControlTokens, control_metrics
from holdfast.agent.metrics.explanations import centering_metrics, negative_metrics, observation_metrics
from holdfast.agent.metrics.rollouts import (
    advantage_metrics,
    likelihood_metrics,
    likelihood_rows,
    retrieval_metrics,
    rollout_metrics,
    sampler_metrics,
    tail_metrics,
)
from holdfast.agent.searching import RolloutStats
from holdfast.agent.trajectory import Group, with_tokens
from holdfast.losses import effective_sample_size
from holdfast.methods.operations import selected, weight_percentiles
from holdfast.model.checkpoint import load_anchor, load_optimizer, read_state
from holdfast.model.language_model import LanguageModel
from holdfast.model.support import end_ids
from holdfast.recipe import Config
from holdfast.tasks.opening import make_agent
from holdfast.tasks.questions import Example, QuestionOrder
from holdfast.train.critic import Critic
from holdfast.train.displacement import measure_displacement
from holdfast.train.learner import AsSampler, Learner, OldPass, Reference, make_learner
from holdfast.train.listener import StepResult
from holdfast.train.optimizer import warmed_up
from holdfast.train.prepare import Prepared
from holdfast.train.rollouts import Judging, open_judge, roll_out, score, training_batch
from holdfast.train.stale_sampler import StaleSampler


class Trainer:
    """The state of training: an agent, its learner, the position in the questions, the random generator."""

    def __init__(
        self,
        config: Config,
        agent: SearchAgent,
        learner: Learner,
        questions: Sequence[Example],
        critic: Critic | None = None,
        judging: Judging | None = None,
    ) -> None:
        self.config, self.agent, self.learner, self.critic = config, agent, learner, critic
        self._judging = judging
        self._methods = config.loss.methods
        model = learner.language_model
        tags, ends = agent.protocol.control_tags(model.tokenizer), end_ids(model.model, model.tokenizer)
        self._control = ControlTokens(tags, model.tokenizer, ends)
        self._sampler = StaleSampler(config, model.model) if config.sampler_differs else None
        self.question_order = QuestionOrder(questions, seed=config.run.seed)
        self.generator = torch.Generator().manual_seed(config.run.seed)
        self.completed_steps = 0
        self.rolling_out = False
        """True until the policy changes: a step that is stopped now can be forgotten, and the last one saved."""

    def step(self) -> StepResult:
        """One rollout batch and its K optimizer steps."""
        train, learner, clock = self.config.train, self.learner, _Clock()
        learner.learning_rate = warmed_up(train.lr, self.completed_steps, train.warmup)
        position = self.question_order.state()
        examples: Sequence[Example] = self.question_order.next(train.questions)
        try:
            self.rolling_out = True
            with clock("rollout"):
                groups, stats = self.roll_out(examples)
                examples, groups, learned = self._resampled(examples, groups, stats)
            self.rolling_out = False
        except BaseException:
            self.question_order.restore(position)  # this step did not happen: a checkpoint now is that of the last one
            raise
        metrics = rollout_metrics(groups) | retrieval_metrics(stats)
        if self._judging is not None:
            metrics |= self._judging.metrics(groups)
        if self._methods.dynamic_sampling.on:
            metrics["rollout/extra_questions"] = float(len(examples) - train.questions)
        batch, displacement = self.make_batch(learned), None
        if len(batch):
            with clock("update"):
                plan = learner.plan(batch, self.generator)
                misplaced = self._control.misplaced(with_tokens(learned))
                old_pass = learner.old_pass(batch, plan, misplaced, self._as_sampler())
                if self.critic is not None:
                    old_pass, of_critic = self.critic.learn(old_pass, plan, completed_steps=self.completed_steps)
                    metrics |= of_critic
                if train.anchor_every and self.completed_steps % train.anchor_every == 0:
                    learner.renew_anchor()
                metrics["entropy/mean"] = old_pass.entropy
                metrics |= learner.step(old_pass.minibatches, mean_searches=metrics["rollout/searches"])
            with clock("displacement"):
                if train.displacement_every and self.completed_steps % train.displacement_every == 0:
                    displacement_metrics, displacement = measure_displacement(
                        learner,
                        old_pass.batch,
                        learned,
                        rows=train.displacement_rows,
                        logged_questions=self.config.track.trajectories,
                        generator=self.generator,
                    )
                    metrics |= displacement_metrics
            metrics |= _batch_metrics(old_pass, learned, self.config)
            supervised = self._methods.interleaved_sft
            if supervised.on and (self.completed_steps + 1) % supervised.every == 0 and bool(batch.correct.any()):
                metrics["loss/supervised"] = learner.supervise(batch.select(batch.correct))
        metrics |= clock.metrics() | {"lr": learner.learning_rate}
        metrics["tokens_per_s"] = sum(len(t.token_ids) for g in groups for t in g.trajectories) / clock.total()
        self.completed_steps += 1
        return StepResult(
            step=self.completed_steps, metrics=metrics, groups=groups, examples=examples, displacement=displacement
        )

    def _resampled(
        self, examples: Sequence[Example], groups: list[Group], stats: RolloutStats
    ) -> tuple[Sequence[Example], list[Group], list[Group]]:
        """Further rounds of rollouts of dynamic sampling: all questions, all groups, those to learn from.

        Groups to learn from come first. If methods would leave out every group, they are all. `stats` grows by those of
        the further rounds.
        """
        examples, operations = list(examples), self.learner.objective.operations
        resampling = self._methods.dynamic_sampling
        for number in range(1, resampling.rounds + 1 if resampling.on else 1):
            missing = self.config.train.questions - sum(selected(groups, operations))
            if missing <= 0:
                break
            further = self.question_order.next(missing)
            more, round_stats = self.roll_out(further, number)
            examples, groups = [*examples, *further], [*groups, *more]
            stats.add(round_stats)
        chosen = selected(groups, operations)
        if all(chosen) or not any(chosen):
            return examples, groups, groups
        order = sorted(range(len(groups)), key=lambda k: not chosen[k])  # stable
        groups = [groups[k] for k in order]
        return [examples[k] for k in order], groups, groups[: sum(chosen)]

    def roll_out(self, examples: Sequence[Example], *further: int) -> tuple[list[Group], RolloutStats]:
        """A scored group for each question, sampled with this step's seed.

        `further` is the number of a further round, which has a seed of its own: where an epoch ends within the step, a
        question comes again, and must not get the same rollouts.
        """
        config = self.config
        sampler = self._as_sampler()
        with sampler() if sampler is not None else nullcontext():
            groups, stats = roll_out(
                self.agent,
                examples,
                size=config.train.group_size,
                seed=(config.run.seed, self.completed_steps, *further),
                max_failed=config.run.max_failed_fraction,
            )
        if self._judging is not None:
            return self._judging.score(groups, examples, config), stats
        return score(groups, examples, config.reward.weights()), stats

    def _as_sampler(self) -> AsSampler | None:
        """The weights of this step's rollouts, where they are not the model's own."""
        return None if self._sampler is None else partial(self._sampler.in_place, self.completed_steps)

    def make_batch(self, groups: Sequence[Group]) -> TokenBatch:
        """The batch to learn from, with advantages. It has no rows when every rollout failed."""
        language_model = self.learner.language_model
        return training_batch(
            groups,
            self.learner.objective,
            pad_token_id=language_model.pad_token_id,
            device=language_model.device,
        )

    def free_training_state(self) -> None:
        """Free what nothing but a step reads, after the last one: the critic, weights of earlier batches, and what the
        learner holds beside the policy."""
        self.critic = self._sampler = None
        self.learner.free_training_state()

    # ---- checkpoints

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps beside weights and optimizers, as JSON."""
        return {
            "step": self.completed_steps,
            "question_order": self.question_order.state(),
            "generator": self.generator.get_state().tolist(),
        }

    def restore(self, folder: Path) -> dict[str, Any]:
        """Continue from a checkpoint whose weights the model already has. Returns its state, as `Saver` wrote it."""
        state = read_state(folder)
        load_optimizer(folder, self.learner.optimizer)
        if anchor := load_anchor(folder):
            self.learner.renew_anchor(anchor)
        if self.critic is not None:
            self.critic.restore(folder)
        self.question_order.restore(state["question_order"])
        self.generator.set_state(torch.tensor(state["generator"], dtype=torch.uint8))
        self.completed_steps = int(state["step"])
        return state


def make_trainer(prepared: Prepared, policy: LanguageModel, run_dir: Path | None = None) -> Trainer:
    """The trainer of a recipe, at its first step. The reference of the KL and the critic are copies of the policy as it
    is now, so a resumed run loads the weights of its checkpoint after this. A judge's grades are kept in `run_dir`."""
    config = prepared.config
    reference = Reference(policy) if config.loss.kl_coef > 0 or config.reward.kl > 0 else None
    critic = Critic(policy, config) if config.loss.advantage == "gae" else None
    learner = make_learner(config, policy, reference)
    agent = make_agent(config, policy, prepared.retrievers.train, prepared.protocol)
    judging = open_judge(config, run_dir)
    return Trainer(config, agent, learner, prepared.questions.train, critic, judging)


def _batch_metrics(old_pass: OldPass, groups: Sequence[Group], config: Config) -> dict[str, float]:
    """Metrics of the training batch: advantages, the sampler's agreement with the old policy, likelihoods."""
    batch, mask = old_pass.batch, old_pass.batch.loss_mask
    micros = [micro for mini in old_pass.minibatches for micro in mini]
    assert batch.old_logprobs is not None
    metrics = advantage_metrics(batch.advantages, mask) | tail_metrics(batch.advantages, groups)
    metrics |= sampler_metrics(micros, groups) | observation_metrics(batch)
    metrics["sampler/ess"] = float(effective_sample_size(batch.old_logprobs, batch.rollout_logprobs, mask))
    metrics |= centering_metrics(batch, groups, other_weights=config.sampler_differs)
    metrics |= negative_metrics(micros, reduction=config.loss.reduction) | _method_metrics(micros, config)
    if batch.misplaced is not None:
        metrics |= control_metrics(batch.misplaced, mask)
    metrics["loss/tokens"] = float(mask.sum()) / len(batch)
    return metrics | likelihood_metrics(likelihood_rows(batch.old_logprobs, mask, batch.action_ids), batch.correct)


def _method_metrics(micros: Sequence[TokenBatch], config: Config) -> dict[str, float]:
    """What methods left out of the loss, the mean weight of what stayed, and the weights of the sampler."""
    sampled = sum(int(micro.loss_mask.sum()) for micro in micros)
    learned = sum(int(micro.learned_mask.sum()) for micro in micros)
    metrics = {}
    if any(micro.excluded is not None for micro in micros):
        metrics["loss/excluded_fraction"] = 1 - learned / max(sampled, 1)
    if weights := [(m.learned_mask, m.policy_weights) for m in micros if m.policy_weights is not None]:
        total = sum(float(torch.where(mask, weight, 0.0).sum()) for mask, weight in weights)
        metrics["loss/mean_weight"] = total / max(learned, 1)
    settings = config.loss.methods.sampler_weights
    return metrics | weight_percentiles(settings, micros) if settings.on else metrics


class _Clock:
    """Seconds of the parts of a step."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._started = time.perf_counter()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._seconds[name] = time.perf_counter() - started

    def total(self) -> float:
        return time.perf_counter() - self._started

    def metrics(self) -> dict[str, float]:
        return {f"time/{name}_s": s for name, s in self._seconds.items()} | {"time/step_s": self.total()}
