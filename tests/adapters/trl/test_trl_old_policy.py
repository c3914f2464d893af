"""What a penalty compares with under each schedule of TRL's GRPOTrainer, in TRL's own trainer: log-probs under the
weights with which the rollout batch began, and never the sampler's. `test_trl_async` has AsyncGRPOTrainer."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

pytest.importorskip("trl")

import trl

from holdfast.adapters.trl import with_penalties
from holdfast.diagnose.readers import read_log
from holdfast.methods.penalties import Penalty

from .conftest import MakeTrainer

CORRECTED = {"use_vllm": True, "vllm_importance_sampling_correction": True}
SCHEDULES: dict[str, dict[str, Any]] = {
    "the batch split": {},
    "the batch used twice": {"steps_per_generation": 2, "num_iterations": 2},
    "windows across batches": {"steps_per_generation": 2, "gradient_accumulation_steps": 3},
    "an off-policy mask": {"off_policy_mask_threshold": 1e-3},
    "a ratio by sequence": {"importance_sampling_level": "sequence", "loss_type": "grpo"},
    "vLLM, uncorrected": {"use_vllm": True, "vllm_importance_sampling_correction": False},
    "tokens truncated": {**CORRECTED, "vllm_importance_sampling_mode": "token_truncate"},
    "tokens masked": {**CORRECTED, "vllm_importance_sampling_mode": "token_mask"},
    "sequences truncated": {**CORRECTED, "vllm_importance_sampling_mode": "sequence_truncate"},
    "sequences masked": {**CORRECTED, "vllm_importance_sampling_mode": "sequence_mask"},
}


class Kept(Penalty):
    """A penalty that keeps what it compares."""

    coef: float = 0.1
    seen: ClassVar[list[tuple[Tensor, Tensor]]] = []

    def per_token(self, logprobs: Tensor, old_logprobs: Tensor, _: Any, loss_mask: Tensor, **__: Any) -> Tensor:
        self.seen.append((old_logprobs.detach().clone(), loss_mask))
        return torch.where(loss_mask, old_logprobs.detach() - logprobs, 0.0)


class Remembers(trl.GRPOTrainer):
    """Computes, for each micro-batch, log-probs under the weights that were there when its rollouts were made."""

    began: Any = None

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        weights = copy.deepcopy(self.accelerator.unwrap_model(self.model).state_dict())
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        self.made = [*getattr(self, "made", []), weights]
        return batch | {"made": torch.full((len(inputs),), len(self.made) - 1)}

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        ids, attention = (
            torch.cat([inputs[f"prompt_{name}"], inputs[f"completion_{name}"]], 1) for name in ("ids", "mask")
        )
        width, inner = inputs["completion_ids"].size(1), self.accelerator.unwrap_model(model)
        own = type(inner)(inner.config).eval()  # no copy, whose forward pass would be the one that TRL has patched
        own.load_state_dict(self.made[int(inputs["made"][0])])
        positions = (attention.cumsum(1) - 1).clamp(min=0)
        with torch.no_grad():
            every = own(input_ids=ids, attention_mask=attention, position_ids=positions).logits.log_softmax(-1)
        expected = every[:, -width - 1 : -1].gather(-1, inputs["completion_ids"][..., None])[..., 0]
        self.expected = [*getattr(self, "expected", []), expected]
        loss: Tensor = super()._compute_loss(model, inputs)
        return loss


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_penalty_compares_with_the_weights_that_its_rollout_batch_began_with(
    make_trainer: MakeTrainer, schedule: str
) -> None:
    """The sampler reported -1 for every token, and vLLM's correction leaves out rollouts; neither reaches a penalty."""
    settings = dict(SCHEDULES[schedule])
    use_vllm = settings.pop("use_vllm", False)
    trainer = make_trainer(with_penalties(Remembers, Kept(), displacement_every=1), **settings)
    trainer.use_vllm, trainer.vllm_generation = use_vllm, SimpleNamespace(sync_weights=lambda: None)
    trainer._last_loaded_step = 0
    Kept.seen.clear()
    trainer.train()
    masks = [mask for _, mask in Kept.seen]
    pairs = [(old[mask], own[mask]) for (old, mask), own in zip(Kept.seen, trainer.expected, strict=True)]
    assert len(trainer.made) > 1 and all(mask.any() for mask in masks)
    for old, own in pairs:
        torch.testing.assert_close(old, own, rtol=0, atol=1e-5)
        assert float((old + 1).abs().max()) > 1  # not the sampler's
    trainer.save_state()
    log = read_log(f"{trainer.args.output_dir}/trainer_state.json")
    assert (log.host, log.old_policy) == ("trl", "recomputed")
    assert {"displacement/correct", "penalty/preserved_fraction", "ratio/max", "sampler/ess"} <= log.series.keys()
    assert log.series["optimizer_steps_per_rollout"].values[0] > 1 or schedule == "windows across batches"
