"""`mask_logprobs` on real TRL: the loss over the sampling mask is the formula, and everything else stays."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("trl")

import trl

from holdfast.adapters.trl import LLDS, with_penalties
from holdfast.adapters.trl.mask import SAMPLING_MASK, WHOLE_LOGPS, Truncation
from holdfast.base.errors import ConfigError

from .conftest import every_other, series_of
from .test_trl_penalties import host_loss

SAMPLER = {"temperature": 0.9, "top_p": 0.7, "top_k": 30}


GENERATED = {"rollout_func": None, "reward_funcs": every_other}


def naive_mask(logits: Tensor, token: int) -> list[int]:
    """The drawable ids of one position, written out."""
    probabilities = (logits / SAMPLER["temperature"]).double().softmax(-1)
    first = sorted(range(len(logits)), key=lambda v: -float(probabilities[v]))[: SAMPLER["top_k"]]
    total = sum(float(probabilities[v]) for v in first)
    kept, mass = [], 0.0
    for v in first:
        if mass >= SAMPLER["top_p"] * total:
            break
        kept.append(v)
        mass += float(probabilities[v])
    return [*kept, *([] if token in kept else [token])]


def rows_of(batch: dict[str, Any]) -> list[tuple[list[int], list[int]]]:
    """Of every rollout: its ids without padding, and where the sampled tokens are."""
    result = []
    for i in range(len(batch["prompt_ids"])):
        prompt = batch["prompt_ids"][i][batch["prompt_mask"][i].bool()].tolist()
        seen = batch["completion_mask"][i].bool()
        sampled = seen & batch["tool_mask"][i].bool() if "tool_mask" in batch else seen
        where = [len(prompt) + t for t in sampled.nonzero().flatten().tolist()]
        result.append((prompt + batch["completion_ids"][i][seen].tolist(), where))
    return result


def naive_logprobs(
    model: Any, batch: dict[str, Any], masks: list[list[list[int]]] | None
) -> tuple[Tensor, Any, Tensor]:
    """[B, T] over the sampling mask, one rollout at a time and without padding; the masks; and over everything."""
    over_mask = torch.zeros(batch["completion_ids"].shape, dtype=model.dtype)
    whole, found = torch.zeros_like(over_mask), []
    for i, (ids, where) in enumerate(rows_of(batch)):
        logits = model(input_ids=torch.tensor([ids])).logits[0]
        start = int(batch["prompt_mask"][i].sum())
        found.append([])
        for k, at in enumerate(where):
            drawable = naive_mask(logits[at - 1].detach(), ids[at]) if masks is None else masks[i][k]
            found[-1].append(drawable)
            scaled = logits[at - 1] / SAMPLER["temperature"]
            over_mask[i, at - start] = scaled[ids[at]] - scaled[drawable].logsumexp(0)
            whole[i, at - start] = scaled.log_softmax(-1)[ids[at]].detach()
    return over_mask, found, whole


def rollout_batch(trainer: Any) -> list[dict[str, Any]]:
    """The micro-batches of a rollout batch, as TRL shuffles and splits it."""
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 2
    rows = next(iter(trainer.get_train_dataloader()))
    batches = []
    for step in range(trainer.args.steps_per_generation):
        trainer._step = step
        batches.append(trainer._prepare_inputs(rows))
    return batches


def moved(model: Any, seed: int) -> Any:
    """Another model near this one."""
    result, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in result.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return result


@pytest.mark.parametrize("generated", [True, False], ids=["generate", "rollout_func"])
@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo", "cispo"])
def test_loss_and_gradient_are_the_formula(
    make_trainer: Any, sharp_model: Any, tmp_path: Path, loss_type: str, generated: bool
) -> None:
    """Old, reference and current log-probs over the mask of the old weights, in TRL's own loss, to 1e-6."""
    sharp_model.save_pretrained(tmp_path / "model")
    reference = type(sharp_model).from_pretrained(tmp_path / "model")
    old, reference = moved(reference, 1).double(), reference.double()
    settings = {**SAMPLER, "loss_type": loss_type, "beta": 0.1, **(GENERATED if generated else {})}
    settings |= {"model": old, "num_iterations": 2}
    masked = make_trainer(with_penalties(trl.GRPOTrainer, mask_logprobs=True), **settings)
    plain = make_trainer(trl.GRPOTrainer, **settings)
    masked.ref_model.double()
    batches = rollout_batch(masked)
    new = moved(old, 2)
    masked.model.load_state_dict(new.state_dict())
    for batch in batches:
        old_logprobs, masks, whole = naive_logprobs(old, batch, None)
        assert [[sorted(set(row.tolist()) - {-1}) for row in rows] for rows in batch[SAMPLING_MASK]] == [
            [sorted(ids) for ids in rows] for rows in masks
        ]
        sampled = masked_positions(batch)
        torch.testing.assert_close(batch["old_per_token_logps"] * sampled, old_logprobs.detach(), atol=1e-5, rtol=0)
        torch.testing.assert_close(batch[WHOLE_LOGPS], whole, atol=1e-5, rtol=0)
        ref_logprobs, *_ = naive_logprobs(reference, batch, masks)
        torch.testing.assert_close(batch["ref_per_token_logps"] * sampled, ref_logprobs.detach(), atol=1e-5, rtol=0)

        new.zero_grad()
        new_logprobs, *_ = naive_logprobs(new, batch, masks)
        given = batch | {"old_per_token_logps": old_logprobs.detach(), "ref_per_token_logps": ref_logprobs.detach()}
        plain.model.train()
        expected = host_loss(plain, given, new_logprobs)
        expected.backward()
        masked.model.zero_grad()
        loss = masked._compute_loss(masked.model, dict(batch))
        loss.backward()
        torch.testing.assert_close(loss.detach(), expected.detach(), atol=1e-6, rtol=0)
        ours, formula = (torch.cat([p.grad.flatten() for p in model.parameters()]) for model in (masked.model, new))
        torch.testing.assert_close(ours, formula, atol=1e-6, rtol=0)
        assert float(formula.abs().max()) > 1e-3


def masked_positions(batch: dict[str, Any]) -> Tensor:
    return batch["completion_mask"] * batch.get("tool_mask", 1)


@pytest.mark.parametrize("window", [2, 4])  # two optimizer steps a rollout batch, or one: no old log-probs
def test_series_of_a_run(make_trainer: Any, sharp_model: Any, window: int) -> None:
    settings = {**SAMPLER, **GENERATED, "model": sharp_model, "gradient_accumulation_steps": window}
    series = series_of(make_trainer(with_penalties(trl.GRPOTrainer, mask_logprobs=True), **settings, max_steps=2))
    assert series["holdfast/likelihood/correct"][0] < 0 and series["entropy"][0] > 0
    assert 0.5 < series["holdfast/sampler/mask_mass"][0] < 1
    assert set(series["holdfast/sampler/mask_in_loss"]) == {1.0}
    plain = series_of(make_trainer(with_penalties(trl.GRPOTrainer), **settings, max_steps=2))
    for name in ("holdfast/likelihood/correct", "holdfast/likelihood/incorrect", "entropy"):  # not over the mask
        assert series[name][0] == pytest.approx(plain[name][0], abs=1e-5)


def test_a_search_agent_has_no_gap_between_sampler_and_loss(searching: Any, sharp_model: Any) -> None:
    """The log-probs of its sampler are over the whole vocabulary; the adapter puts them over the mask as well."""
    masked = with_penalties(trl.GRPOTrainer, mask_logprobs=True)
    settings = {"model": sharp_model, "max_steps": 2, "max_completion_length": 120}
    series = series_of(searching(trainer_class=masked, **SAMPLER, **settings))
    assert abs(series["holdfast/sampler/logprob_gap"][0]) < 1e-5
    assert 0.5 < series["holdfast/sampler/mask_mass"][0] < 0.999


def test_lora(make_trainer: Any, sharp_model: Any) -> None:
    """The reference is the model without its adapter; the mask comes from the model with it."""
    peft = pytest.importorskip("peft")
    lora = peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    settings = {**SAMPLER, **GENERATED, "model": sharp_model, "peft_config": lora, "beta": 0.1}
    trainer = make_trainer(with_penalties(trl.GRPOTrainer, LLDS(), mask_logprobs=True), **settings)
    batch = rollout_batch(trainer)[0]
    old, masks, _ = naive_logprobs(trainer.model, batch, None)
    torch.testing.assert_close(batch["old_per_token_logps"], old.detach(), atol=1e-5, rtol=0)
    with trainer.model.disable_adapter():
        reference, *_ = naive_logprobs(trainer.model, batch, masks)
    torch.testing.assert_close(batch["ref_per_token_logps"], reference.detach(), atol=1e-5, rtol=0)
    assert float((reference - old).detach().abs().max()) > 1e-2


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"top_p": 0.9}, "top_k=512|Set top_k=512"),
        ({}, "Set top_k"),
        ({"top_k": 20, "repetition_penalty": 1.1}, "repetition_penalty"),
        ({"top_k": 20, "generation_kwargs": {"typical_p": 0.9}}, "typical_p"),
        ({"top_k": 20, "generation_kwargs": {"temperature": 0.5}}, "temperature 0.5"),
        ({"top_k": 20, "beta": 0.1, "steps_per_generation": 2}, "beta=0"),
    ],
)
def test_what_cannot_be_recomputed_is_refused(make_trainer: Any, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make_trainer(with_penalties(trl.GRPOTrainer, mask_logprobs=True), **settings)


def test_a_replaced_forward_pass_is_refused(make_trainer: Any, sharp_model: Any) -> None:
    class Own(trl.GRPOTrainer):
        def _get_per_token_logps_and_entropies(
            self, model: Any, ids: Tensor, attention: Tensor, keep: int, **_: Any
        ) -> Any:
            logits = model(input_ids=ids, attention_mask=attention).logits[:, -keep - 1 : -1]
            logprobs = logits.log_softmax(-1).gather(-1, ids[:, -keep:, None])[..., 0]
            return logprobs, torch.zeros_like(logprobs), None

    trainer = make_trainer(with_penalties(Own, mask_logprobs=True), model=sharp_model, **SAMPLER, **GENERATED)
    with pytest.raises(ConfigError, match="only 0 of 8 rollouts passed"):
        trainer.train()


def test_min_p_comes_first_in_vllm() -> None:
    """Probabilities 0.5, 0.3, 0.15, 0.05: top_p = 0.8 keeps two tokens; after min_p = 0.2 has cut one, still two; of
    0.5, 0.2, 0.2, 0.1 it keeps three, and with min_p = 0.3 first, which leaves 0.9 of the mass, two of three."""
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.45, 0.27, 0.18, 0.10]]).log()
    for first, kept in ((False, [2, 3]), (True, [2, 2])):
        sampler = Truncation(1.0, 0, 0.75, 0.3, first)
        ranked, _ = sampler.truncate(logits)
        assert (ranked > 0).sum(-1).tolist() == kept
