"""A pad token that the model has sampled is a token like any other: masks are by position, never by id."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from holdfast.agent.agent import Task, run_rollouts
from holdfast.agent.batch import TokenBatch
from holdfast.agent.protocol import CLEAN
from holdfast.agent.trajectory import Group
from holdfast.model.hf import HFPolicy
from holdfast.recipe import Loss
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.types import Document

from .one_update import run

ROWS = 6


def test_a_sampled_pad_token_stays_in_mask_and_loss(make_model: Callable[..., Any], tokenizer: Any) -> None:
    model, pad = make_model(), tokenizer.pad_token_id
    with torch.no_grad():  # on purpose: in about half of the contexts its logit is now the largest
        model.lm_head.weight[pad] *= 10
    protocol = replace(CLEAN, max_turns=2, max_turn_tokens=12, max_observation_tokens=40, max_total_tokens=120)
    rollouts = run_rollouts(
        [Task(id=str(i), example_id=str(i), prompt=(5, 6, 7 + i), seed=i) for i in range(ROWS)],
        policy=HFPolicy(model, tokenizer),
        retriever=BM25Retriever.build([Document("d", "a lake")]),
        protocol=protocol,
        tokenizer=tokenizer,
    )
    groups = [Group(str(i), (replace(t, reward=0.0),)) for i, t in enumerate(rollouts)]
    batch = TokenBatch.from_trajectories(groups, pad_token_id=pad)
    batch = replace(batch, advantages=torch.linspace(-1, 1, ROWS)[:, None])
    sampled = [list(zip(t.token_ids, t.loss_mask, strict=True)) for t in rollouts]
    pads = sum(token == pad and inside for row in sampled for token, inside in row)
    inside = (batch.token_ids == pad) & batch.loss_mask
    within = inside[:, :-1] & (batch.action_ids[:, 1:] == batch.action_ids[:, :-1])
    assert int(inside.sum()) == pads and int(within.sum()) > 3, "and sampling went on after it"
    assert bool((batch.token_ids[batch.attention_mask == 0] == pad).all()), "it also fills the ends of rows"

    loss = Loss.model_validate({"kl_coef": 0.0, "reduction": "token-mean", "penalty": {"name": "none"}})
    _, weights = run(model, batch, [[[*range(ROWS)]]], loss, lr=1.0)
    start = copy.deepcopy(model).double()
    expected = gradient(start, sampled, batch.advantages[:, 0].tolist(), skip=None)
    moved = torch.cat([(p.detach() - weights[name]).flatten() for name, p in start.named_parameters()])
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-6)
    without = gradient(start, sampled, batch.advantages[:, 0].tolist(), skip=pad)
    assert float((moved - without).norm()) > 0.1 * float(moved.norm())


def gradient(
    model: Any, rows: list[list[tuple[int, bool]]], advantages: list[float], *, skip: int | None
) -> torch.Tensor:
    """Of −Σ A log π / tokens, each row alone and without padding."""
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for row, advantage in zip(rows, advantages, strict=True):
        ids = torch.tensor([[token for token, _ in row]])
        logprobs = model(input_ids=ids).logits[0].double().log_softmax(-1)
        for t, (token, inside) in enumerate(row):
            if inside and token != skip:
                total, tokens = total - advantage * logprobs[t - 1, token], tokens + 1
    return torch.cat([g.flatten() for g in torch.autograd.grad(total / tokens, list(model.parameters()))])
