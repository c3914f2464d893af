"""NTHR in TRL: its scores and the loss, against loops over float64 numbers. test_trl_equals_local.py trains with it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

trl = pytest.importorskip("trl")

import holdfast.losses  # noqa: E402
from holdfast.adapters.trl import LLDS, with_penalties  # noqa: E402
from holdfast.base.errors import ConfigError, ModelError  # noqa: E402

TEMPERATURE = 1.3


def few_tokens(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """Rollouts of an action, an observation and an action, over six tokens, which right and wrong ones share."""
    prompt_ids = [trainer.processing_class(prompt)["input_ids"] for prompt in prompts]
    generator = torch.Generator().manual_seed(0)
    lengths = [(3 + row % 3, 4, 2 + row % 2) for row in range(len(prompts))]
    completions = [torch.randint(2, 8, (sum(parts),), generator=generator).tolist() for parts in lengths]
    masks = [[1] * first + [0] * heard + [1] * last for first, heard, last in lengths]
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": completions,
        "logprobs": [[-1.0] * len(ids) for ids in completions],
        "env_mask": masks,
        "number": list(range(len(prompts))),
    }


def nthr_by_loops(
    model: Any, prompts: list[list[int]], completions: list[list[int]], masks: list[list[int]], positive: list[bool]
) -> tuple[list[list[float]], list[list[float]]]:
    """Scores and factors of the sampled tokens of one group, each rollout passed alone and without padding."""
    states, errors, tokens = [], [], []
    for prompt, completion, mask in zip(prompts, completions, masks, strict=True):
        with torch.no_grad():
            output = model(input_ids=torch.tensor([prompt + completion]), output_hidden_states=True)
        places = [len(prompt) + t - 1 for t, sampled in enumerate(mask) if sampled]
        states.append(output.hidden_states[-1][0, places])
        probabilities = (output.logits[0, places].double() / TEMPERATURE).softmax(-1)
        tokens.append([y for y, sampled in zip(completion, mask, strict=True) if sampled])
        errors.append(torch.nn.functional.one_hot(torch.tensor(tokens[-1]), probabilities.size(-1)) - probabilities)
    occurring = sorted({y for row in tokens for y in row})

    def product(i: int, n: int, j: int, m: int) -> float:
        alpha = sum(float(errors[i][n, v] * errors[j][m, v]) for v in occurring)
        return alpha * float(states[i][n] @ states[j][m])

    def score(i: int, n: int) -> float:
        return sum(product(i, n, j, m) for j, good in enumerate(positive) if good for m in range(len(tokens[j])))

    scores = [[score(i, n) for n in range(len(row))] for i, row in enumerate(tokens)]
    lowest = min(sum(row) / len(row) for row, good in zip(scores, positive, strict=True) if good)
    eta = 2 * abs(0.5 - sum(positive) / len(positive))
    factors = [
        [eta if not good and s > lowest else 1.0 for s in row] for row, good in zip(scores, positive, strict=True)
    ]
    return scores, factors


def test_scores_factors_and_loss_are_those_of_loops(
    make_trainer: Any, tiny_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = copy.deepcopy(tiny_model).double()
    scores: list[torch.Tensor] = []
    original = holdfast.losses.token_influence

    def keep(*args: Any, **kwargs: Any) -> torch.Tensor:
        scores.append(original(*args, **kwargs))
        return scores[-1]

    monkeypatch.setattr(holdfast.losses, "token_influence", keep)
    trainer = make_trainer(
        with_penalties(trl.GRPOTrainer, nthr=True, displacement_every=0),
        model=copy.deepcopy(model), temperature=TEMPERATURE, loss_type="grpo", max_steps=1,
        rollout_func=few_tokens,
    )  # fmt: skip
    batches: list[Any] = []
    generate = type(trainer)._generate_and_score_completions

    def record(self: Any, inputs: Any) -> Any:
        batches.append(generate(self, inputs))
        return dict(batches[-1])

    losses: list[tuple[Any, float]] = []
    compute = type(trainer)._compute_loss

    def loss_of(self: Any, model: Any, inputs: Any) -> Any:
        loss = compute(self, model, inputs)
        losses.append((inputs, float(loss.detach())))
        return loss

    monkeypatch.setattr(type(trainer), "_generate_and_score_completions", record)
    monkeypatch.setattr(type(trainer), "_compute_loss", loss_of)
    trainer.train()
    (batch,) = batches
    mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
    positive, factors = batch["advantages"] > 0, batch["holdfast_nthr"]
    expected = torch.ones_like(factors)
    for group, start in enumerate(range(0, 8, 4)):
        rows = range(start, start + 4)
        prompts = [batch["prompt_ids"][i][batch["prompt_mask"][i].bool()].tolist() for i in rows]
        lengths = [int(batch["completion_mask"][i].sum()) for i in rows]
        completions = [batch["completion_ids"][i, :n].tolist() for i, n in zip(rows, lengths, strict=True)]
        masks = [batch["tool_mask"][i, :n].tolist() for i, n in zip(rows, lengths, strict=True)]
        by_loops = nthr_by_loops(model, prompts, completions, masks, positive[rows.start : rows.stop].tolist())
        own = torch.tensor([s for row in by_loops[0] for s in row], dtype=torch.float64)
        torch.testing.assert_close(scores[group].double(), own, rtol=1e-6, atol=1e-6)
        for i, row in zip(rows, by_loops[1], strict=True):
            expected[i, mask[i]] = torch.tensor(row, dtype=expected.dtype)
    torch.testing.assert_close(factors, expected, rtol=1e-6, atol=1e-6)
    assert 0 < int((expected < 1).sum()) < int((mask & ~positive[:, None]).sum()), "some tokens, and not all"

    # Before the first step every ratio is 1: the loss of a micro-batch is a mean over rollouts of −A · mean factor.
    assert len(losses) == 2
    for inputs, loss in losses:
        sampled = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
        by_rows = [
            -float(a) * sum(f[m].tolist()) / int(m.sum())
            for a, f, m in zip(inputs["advantages"], inputs["holdfast_nthr"], sampled, strict=True)
        ]
        assert loss == pytest.approx(sum(by_rows) / len(by_rows) / 2, abs=1e-6)  # 2 micro-batches a step


def test_what_cannot_work_is_refused(make_trainer: Any) -> None:
    Trainer = with_penalties(trl.GRPOTrainer, LLDS(), nthr=True)
    with pytest.raises(ConfigError, match=r"nthr=True with mask_logprobs=True: .* Leave one out"):
        with_penalties(trl.GRPOTrainer, nthr=True, mask_logprobs=True)
    assert Trainer.__name__ == "GRPOTrainerWithLLDSAndNTHR"
    with pytest.raises(ModelError, match=r"with_penalties\(nthr=True\): the output layer of this model is frozen"):
        frozen = copy.deepcopy(make_trainer(trl.GRPOTrainer).model)
        frozen.get_output_embeddings().weight.requires_grad_(False)
        make_trainer(Trainer, model=frozen)
