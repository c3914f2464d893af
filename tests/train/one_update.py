"""What tests of the update share: a ragged batch, a forward pass in float64, and an update with it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from holdfast.agent.batch import TokenBatch
from holdfast.model.language_model import LanguageModel
from holdfast.model.passes.logprobs import TokenLogprobs
from holdfast.recipe import Loss, Sampling, Train
from holdfast.train.learner import Learner, Reference
from holdfast.train.objective import Objective
from holdfast.train.plan import Plan


def a_batch(rows: int = 7, seed: int = 3, vocabulary: int = 280) -> TokenBatch:
    """Ragged rows: a prompt of 2 to 4 tokens, then one to three actions, the last one an answer; mixed advantages."""
    g = torch.Generator().manual_seed(seed)

    def between(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=g))

    width = 24
    fields = {name: torch.zeros(rows, width, dtype=torch.long) for name in ("token_ids", "action_ids")}
    lengths = torch.zeros(rows, dtype=torch.long)
    answer_mask = torch.zeros(rows, width, dtype=torch.bool)
    for row in range(rows):
        t = between(2, 4)
        actions = 1 + row % 3
        for k in range(1, actions + 1):
            said = between(2, 4)
            fields["action_ids"][row, t : t + said] = k
            if k == actions:
                answer_mask[row, t + said - 2 : t + said] = True
            t += said + (between(1, 2) if k < actions else 0)
        lengths[row] = t
        fields["token_ids"][row, :t] = torch.randint(2, vocabulary, (t,), generator=g)
    return TokenBatch(
        **fields,
        lengths=lengths,
        answer_mask=answer_mask,
        loss_mask=fields["action_ids"] > 0,
        rollout_logprobs=torch.zeros(rows, width),
        advantages=torch.tensor([1.2, -0.8, 0.0, 0.7, -1.5, 0.4, -0.2, 0.9, -0.3])[:rows, None],
        rewards=torch.zeros(rows),
        correct=torch.tensor([True, False, False, True, False, True, False, True, False])[:rows],
        group_ids=torch.arange(rows) // 2,
        valid=torch.ones(rows, dtype=torch.bool),
    )


def double(model: Any) -> Callable[..., Any]:
    """A forward pass in float64, so that different shapes of a batch differ by 1e-12 and not by 1e-6."""

    def forward(ids: Tensor, mask: Tensor, entropy: bool = False, **_: Any) -> tuple[Tensor, Tensor | None]:
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].double()
        every = torch.nn.functional.pad(logits, (0, 0, 1, 0)).log_softmax(-1)
        picked = torch.where(mask, every.gather(-1, ids[..., None])[..., 0], 0.0)
        if not entropy:
            return picked, None
        return picked, torch.where(mask, -(every.exp() * every).sum(-1), 0.0)

    return forward


class Double(LanguageModel):
    """A model whose log-probs are `double`'s."""

    def logprobs(self, token_ids: Tensor, loss_mask: Tensor, *, entropy: bool = False, **_: Any) -> TokenLogprobs:
        return TokenLogprobs(*double(self.model)(token_ids, loss_mask, entropy), log_mass=None)


def learner_of(
    language_model: LanguageModel,
    loss: Loss | None = None,
    *,
    reference: Any = None,
    max_tokens: int = 12,
    **train: Any,
) -> Learner:
    """A learner at temperature 1; `max_tokens` is the constant of `seq-mean-token-sum-norm`."""
    objective = Objective(loss or Loss(), max_tokens=max_tokens)
    return Learner(language_model, objective, Train(**train), Sampling(), reference)


def run(
    model: Any,
    batch: TokenBatch,
    plan: Plan,
    loss: Loss,
    *,
    lr: float = 1e-2,
    grad_clip: float = 1e9,
    answer_weight: float = 1.0,
    max_tokens: int = 12,
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Metrics and new weights of an update of a copy of `model` by SGD, in float64."""
    policy = Double(model=copy.deepcopy(model).double(), tokenizer=None)
    reference = Reference(policy) if loss.kl_coef else None
    learner = learner_of(policy, loss, reference=reference, grad_clip=grad_clip, max_tokens=max_tokens)
    learner.optimizer = torch.optim.SGD(learner.parameters, lr=lr)
    learner.objective.answer_weight = lambda _: answer_weight  # type: ignore[method-assign, misc]
    minibatches, _, _ = learner.old_pass(replace(batch, rollout_logprobs=batch.rollout_logprobs.double()), plan)
    metrics = learner.step(minibatches, mean_searches=0.0)
    return metrics, {name: p.detach() for name, p in policy.model.named_parameters()}
