"""PPO's critic: a copy of the starting policy with a value head, and its own optimizer.

For each rollout batch: values under the old weights, rewards of tokens, advantages by GAE from sampled token to sampled
token; then one optimizer step per mini-batch towards the returns. The policy's update reads the advantages alone.
"""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.agent.batch import TokenBatch
from holdfast.agent.metrics.rollouts import value_metrics
from holdfast.losses import gae_advantages, token_rewards, value_loss, whiten
from holdfast.model.checkpoint import CRITIC_OPTIMIZER, load_critic, load_optimizer
from holdfast.model.language_model import LanguageModel
from holdfast.model.passes.logprobs import token_values
from holdfast.recipe import Config
from holdfast.train.learner import OldPass
from holdfast.train.optimizer import adamw, clipped_step, set_learning_rate, training_mode, warmed_up
from holdfast.train.plan import Plan, gathered


class Critic:
    """A critic of the policy as it is now, on the policy's device. It trains what the policy trains, and its head.

    Raises `CheckpointError` when `critic.path` holds no critic of such a model.
    """

    def __init__(self, policy: LanguageModel, config: Config) -> None:
        self.language_model = replace(policy, model=_with_value_head(policy.model))
        self.weights: dict[str, Tensor] = {
            name: p for name, p in self.language_model.model.named_parameters() if p.requires_grad
        }
        """What is trained, by name."""
        self._parameters = list(self.weights.values())
        self._settings, self._train = config.critic, config.train
        self._reward_kl, self._loss_kl = config.reward.kl, config.loss.kl_coef
        self.optimizer = adamw(self._parameters, lr=config.critic.lr, weight_decay=config.train.weight_decay)
        if config.critic.path is not None:
            load_critic(Path(config.critic.path), self.weights)

    def learn(self, old_pass: OldPass, plan: Plan, *, completed_steps: int) -> tuple[OldPass, dict[str, float]]:
        """The old pass with advantages of tokens, `[B, T]`, and metrics. Then the critic is updated.

        Advantages come from the values before the update. `plan` is that of the old pass.
        """
        settings, batch = self._settings, old_pass.batch
        lr = warmed_up(settings.lr, completed_steps, settings.warmup)
        set_learning_rate(self.optimizer, lr)
        values = self.values(batch, plan)
        rewards, metrics = self._rewards(old_pass, plan)
        advantages, returns = gae_advantages(rewards, values, batch.loss_mask, gamma=settings.gamma, lam=settings.lam)
        if settings.whiten:
            advantages = whiten(advantages, batch.loss_mask)
        metrics |= value_metrics(values, returns, batch.loss_mask) | {"critic/lr": lr}
        metrics |= self._update(batch, plan, values, returns)
        return self._with_advantages(old_pass, plan, advantages), metrics

    @torch.no_grad()
    def values(self, batch: TokenBatch, plan: Plan) -> Tensor:
        """`[B, T]`: the predicted return before each sampled token, under the present weights."""
        parts = (self._values(batch.select(rows).trim()) for rows in itertools.chain.from_iterable(plan))
        return gathered(parts, plan, batch.rollout_logprobs)

    def restore(self, folder: Path) -> None:
        """Continue from a checkpoint. Raises `CheckpointError` for one without a critic, or with another model's."""
        load_critic(folder, self.weights)
        load_optimizer(folder, self.optimizer, CRITIC_OPTIMIZER)

    def _values(self, micro: TokenBatch) -> Tensor:
        model = self.language_model
        return token_values(model.model, micro.token_ids, micro.loss_mask, autocast_dtype=model.autocast_dtype)

    def _rewards(self, old_pass: OldPass, plan: Plan) -> tuple[Tensor, dict[str, float]]:
        """Rewards of tokens `[B, T]`, and the KL in them as a metric, if there is one."""
        batch = old_pass.batch
        if not self._reward_kl:
            return token_rewards(batch.rewards[:, None], torch.zeros_like(batch.rollout_logprobs), batch.loss_mask), {}
        micros = list(itertools.chain(*old_pass.minibatches))
        old, ref = (
            gathered((getattr(micro, name) for micro in micros), plan, batch.rollout_logprobs)
            for name in ("old_logprobs", "ref_logprobs")
        )
        rewards = token_rewards(batch.rewards[:, None], old, batch.loss_mask, ref_logprobs=ref, kl_coef=self._reward_kl)
        kl = float(torch.where(batch.loss_mask, old - ref, 0.0).sum() / batch.loss_mask.sum().clamp(min=1))
        return rewards, {"kl/reference": kl}

    def _update(self, batch: TokenBatch, plan: Plan, old_values: Tensor, returns: Tensor) -> dict[str, float]:
        """One optimizer step per mini-batch, on the mean of the loss over its sampled tokens."""
        clip = self._settings.clip or None
        losses, clipped, norms, total = 0.0, 0.0, [], 0.0
        with training_mode(self.language_model):
            for mini in plan:
                self.optimizer.zero_grad(set_to_none=True)
                tokens = max(float(batch.loss_mask[list(itertools.chain(*mini))].sum()), 1.0)
                for rows in mini:
                    micro = batch.select(rows).trim()
                    width = micro.loss_mask.shape[1]
                    old, target = old_values[rows, :width], returns[rows, :width]
                    values = self._values(micro)
                    loss = value_loss(values, old, target, micro.loss_mask, clip=clip)
                    share = loss.sum() / tokens
                    share.backward()
                    losses += float(share.detach())
                    free = value_loss(values.detach(), old, target, micro.loss_mask, clip=None)
                    clipped += float((loss.detach() > free).sum())  # beyond the clip, and closer to the return
                total += tokens
                norms.append(clipped_step(self.optimizer, self._parameters, self._train.grad_clip))
        self.optimizer.zero_grad(set_to_none=True)  # rollouts need the memory
        finite = [norm for norm in norms if math.isfinite(norm)]
        return {
            "critic/value_loss": losses / len(norms),
            "critic/clip_fraction": clipped / max(total, 1.0),
            "critic/skipped_steps": float(len(norms) - len(finite)),
            **({"critic/grad_norm": sum(finite) / len(finite)} if finite else {}),
        }

    def _with_advantages(self, old_pass: OldPass, plan: Plan, advantages: Tensor) -> OldPass:
        """Without reference log-probs where the loss has no KL: they were for the reward."""
        minibatches = [
            [
                replace(
                    micro,
                    advantages=advantages[rows, : micro.loss_mask.shape[1]],
                    ref_logprobs=micro.ref_logprobs if self._loss_kl else None,
                )
                for micro, rows in zip(micros, mini, strict=True)
            ]
            for micros, mini in zip(old_pass.minibatches, plan, strict=True)
        ]
        return old_pass._replace(minibatches=minibatches, batch=replace(old_pass.batch, advantages=advantages))


def _with_value_head(model: Any) -> Any:
    """A copy of the model whose output layer is one number wide, and zero: the first values are 0 for every token."""
    value_model = copy.deepcopy(model)
    weight = value_model.get_output_embeddings().weight
    head = torch.nn.Linear(weight.shape[1], 1, device=weight.device, dtype=torch.float32)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    value_model.set_output_embeddings(head)
    return value_model
