"""What the observer tells of a set-up: tool text in the loss, and a sampler that is truncated."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("trl")

import trl
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from holdfast.adapters.trl import LLDS, with_penalties
from holdfast.adapters.trl.observe import Observer, Truncation
from holdfast.adapters.trl_monitor import Monitoring
from holdfast.losses import ratio_stats

from .conftest import every_other, series_of

HEARD = 8


@torch.no_grad()
def heard_and_trained_on(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """Eight tokens sampled from the trainer's model, eight of noise behind them, and no `env_mask`."""
    generator = torch.Generator().manual_seed(trainer.state.global_step)
    prompt_ids = [trainer.processing_class(prompt)["input_ids"] for prompt in prompts]
    completions, logprobs = [], []
    for ids in prompt_ids:
        said = [*ids]
        scores = []
        for _ in range(8):
            chances = trainer.model(input_ids=torch.tensor([said])).logits[0, -1].log_softmax(-1)
            said.append(int(torch.multinomial(chances.exp(), 1, generator=generator)))
            scores.append(float(chances[said[-1]]))
        heard = torch.randint(2, 250, (HEARD,), generator=generator).tolist()
        completions.append(said[len(ids) :] + heard)
        logprobs.append(scores + [0.0] * HEARD)
    number = list(range(len(prompts)))
    return {"prompt_ids": prompt_ids, "completion_ids": completions, "logprobs": logprobs, "number": number}


def masked(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """The same with the mask."""
    rollouts = heard_and_trained_on(prompts, trainer)
    return rollouts | {"env_mask": [[1] * 8 + [0] * HEARD for _ in prompts]}


def run(trainer: Any) -> tuple[list[str], dict[str, list[float]]]:
    """The codes found while a trainer runs, and its series."""
    watch = Monitoring()
    trainer.add_callback(watch)
    series = {name.removeprefix("holdfast/"): values for name, values in series_of(trainer).items()}
    return [finding.code for finding in watch.findings], series


def test_tool_text_in_the_loss_is_found(make_trainer: Any, sharp_model: Any) -> None:
    """TRL's own count of tokens is of the loss's mask, and proves nothing."""
    settings = {"model": sharp_model, "max_steps": 8, "learning_rate": 1e-5}
    trainer_class = with_penalties(trl.GRPOTrainer)
    codes, series = run(make_trainer(trainer_class, rollout_func=heard_and_trained_on, **settings))
    assert codes[0] == "MSK001" and "SMP001" not in codes
    assert "loss/tokens" not in series
    codes, _ = run(make_trainer(trainer_class, rollout_func=masked, **settings))
    assert codes == []


@pytest.mark.parametrize(
    ("sampler", "kept", "found"),
    [
        ({"temperature": 1.6}, (1.0, 1.0), False),  # TRL's log-probs are at the same temperature
        ({"top_p": 0.95}, (0.95, 1.0), False),
        ({"generation_kwargs": {"min_p": 0.9}}, (0.0, 0.75), True),
    ],
    ids=str,
)
def test_a_truncated_sampler_is_measured(
    make_trainer: Any, sampler: dict[str, Any], kept: tuple[float, float], found: bool
) -> None:
    settings = {"rollout_func": None, "reward_funcs": every_other, "max_steps": 8, "learning_rate": 1e-6}
    codes, series = run(make_trainer(with_penalties(trl.GRPOTrainer), **settings, **sampler))
    masses = series["sampler/mask_mass"]
    assert len(masses) == 4, "one for each rollout batch"
    assert all(kept[0] <= mass <= kept[1] for mass in masses), masses
    assert ("SMP001" in codes) == found


def test_it_is_measured_through_an_adapter(make_trainer: Any) -> None:
    from peft import LoraConfig

    lora = LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM")
    settings = {"rollout_func": None, "reward_funcs": every_other, "peft_config": lora, "top_p": 0.4}
    _, series = run(make_trainer(with_penalties(trl.GRPOTrainer), **settings))
    assert all(0.4 <= mass <= 0.6 for mass in series["sampler/mask_mass"])


def test_a_warm_up_is_no_inert_penalty(make_trainer: Any) -> None:
    """Two optimizer steps per rollout batch, a row each, and a first learning rate of 0."""
    codes, series = run(make_trainer(with_penalties(trl.GRPOTrainer, LLDS()), warmup_steps=4, max_steps=8))
    assert series["penalty/active_fraction"][:3] == [0.0] * 3 and max(series["penalty/active_fraction"]) > 0
    assert series["learning_rate"][0] == 0
    assert "PEN001" not in codes


def test_statistics_are_gathered_on_a_device_without_float64() -> None:
    """Apple's MPS has none."""
    seen: list[torch.Tensor] = []
    accelerator = SimpleNamespace(sync_gradients=True, device="cpu", gather=lambda x: (seen.append(x), x)[1])
    observer = Observer(SimpleNamespace(accelerator=accelerator, _metrics={"train": defaultdict(list)}), every=0)
    one = torch.ones(1, 2)
    observer._stats = [ratio_stats(-one, -one, one, one.bool())]
    observer._add("loss/host", torch.tensor(0.5))
    observer.micro_batch_done()
    assert observer.trainer._metrics["train"]["holdfast/ratio/mean"] == [1.0]
    assert {x.dtype for x in seen} == {torch.float32}


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(0, 0.7, 0.0), (5, 1.0, 0.0), (0, 1.0, 0.2), (7, 0.6, 0.3)])
def test_what_is_kept_is_what_transformers_keeps(top_k: int, top_p: float, min_p: float) -> None:
    logits = 3 * torch.randn(40, 30, generator=torch.Generator().manual_seed(0))
    warpers = LogitsProcessorList([TemperatureLogitsWarper(0.8)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    if min_p:
        warpers.append(MinPLogitsWarper(min_p))
    kept = warpers(torch.zeros(40, 1, dtype=torch.long), logits.clone()).isfinite()
    expected = torch.where(kept, (logits / 0.8).softmax(-1), 0.0).sum(-1)
    truncation = Truncation(0.8, top_k, top_p, min_p)
    assert truncation.active
    torch.testing.assert_close(truncation.mask_mass(logits), expected)
    assert not Truncation(0.8, 0, 1.0, 0.0).active
