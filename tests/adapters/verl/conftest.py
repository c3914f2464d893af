"""Real verl: its registry, its configuration, its agent loop worker; and the penalties in plain loops.
`make contracts-verl` runs these.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ..by_hand import by_hand, numbered

Batch = dict[str, Tensor]
MakeConfig = Callable[..., Any]
GLOBAL = {"dp_size": 2, "batch_num_tokens": 61, "global_batch_size": 9, "loss_scale_factor": 20}


@pytest.fixture
def actor_config() -> Callable[..., Any]:
    """actor_config("gspo", penalty_coef=0.5, global_batch_info={…}, loss_agg_mode=…): a real ActorConfig.

    A penalty is a mean over all tokens unless `penalty_normalizer` is given.
    """
    from verl.workers.config import ActorConfig

    import holdfast.adapters.verl as adapter

    def make(
        base: str = "vanilla", *, loss_mode: str = "holdfast_llds", actor: dict[str, Any] | None = None, **fields: Any
    ) -> Any:
        if loss_mode not in ("holdfast_observe", "holdfast_custom") and loss_mode in adapter.LOSSES:
            fields.setdefault("penalty_normalizer", "policy")
        own = adapter.HoldfastPolicyLossConfig(loss_mode=loss_mode, base_loss_mode=base, **fields)
        sizes = {"strategy": "fsdp", "ppo_mini_batch_size": 4, "ppo_micro_batch_size_per_gpu": 4, "rollout_n": 1}
        return ActorConfig(**sizes, policy_loss=own, **(actor or {}))

    return make


@pytest.fixture
def batch() -> Batch:
    """Five rollouts of seven tokens, float64: two actions and one, an empty row; A > 0, = 0 and < 0. An action gate
    closes the first action of rows 0 and 1 and the second of 3, a response gate rows 1 and 3, a token gate nothing."""
    generator = torch.Generator().manual_seed(3)
    old = -torch.rand(5, 7, generator=generator, dtype=torch.float64) - 0.05
    change = torch.tensor(
        [
            [-0.3, 0.5, 0.9, -0.9, -0.4, 0.1, -0.2],
            [-0.1, 0.6, 0.2, 0.1, -0.9, -0.5, 0.9],
            [-0.3, 0.2, -0.6, 0.4, -0.1, 0.3, -0.2],
            [-0.25, 0.9, 0.35, -0.05, 0.9, -0.9, 0.9],
            [-0.3, 0.2, -0.6, 0.4, -0.1, 0.3, -0.2],
        ],
        dtype=torch.float64,
    )
    new = old + change
    mask = torch.tensor(
        [
            [1, 1, 0, 0, 1, 1, 1],
            [1, 1, 1, 1, 0, 1, 0],
            [1, 1, 1, 1, 1, 1, 1],
            [1, 0, 1, 1, 0, 0, 0],
            [0, 0, 0, 0, 0, 0, 0],
        ],
        dtype=torch.bool,
    )
    advantages = torch.tensor([1.2, 0.0, -0.7, 0.4, 0.9], dtype=torch.float64)[:, None] * mask
    return {"old_log_prob": old, "log_prob": new, "advantages": advantages, "response_mask": mask}


def call(name: str, config: Any, batch: Batch, **changed: Any) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """(loss, gradient of the log-probs, metrics), called as verl's `ppo_loss` calls."""
    from verl.trainer.ppo import core_algos

    new = batch["log_prob"].clone().requires_grad_()
    arguments = {**batch, "log_prob": new, "rollout_is_weights": None, **changed}
    loss, metrics = core_algos.get_policy_loss_fn(name)(**arguments, loss_agg_mode=config.loss_agg_mode, config=config)
    (gradient,) = torch.autograd.grad(loss, new)
    return loss.detach(), gradient, metrics


def naive_penalty(name: str, batch: Batch, *, answer_weight: float = 1.0, **fields: float) -> tuple[Tensor, Tensor]:
    """(penalty, its derivative by the new log-prob) per token, in Python numbers, from the papers. The answer is the
    last action; `fields` are `threshold` and `tau`."""
    from holdfast.adapters.verl_losses import penalty_for

    penalty = penalty_for(name, {f"penalty_{key}": value for key, value in fields.items()})
    old, new, mask = (batch[key].tolist() for key in ("old_log_prob", "log_prob", "response_mask"))
    value, slope = torch.zeros(5, 7, dtype=torch.float64), torch.zeros(5, 7, dtype=torch.float64)
    for i, advantage in enumerate(batch["advantages"].sum(-1).tolist()):
        actions = numbered(mask[i])
        for t, pair in enumerate(by_hand(penalty, new[i], old[i], actions, advantage)):
            value[i, t], slope[i, t] = (x * (answer_weight if actions[t] == max(actions) else 1.0) for x in pair)
    return value, slope


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory, learn_tokenizer: Callable[..., Any]) -> Path:
    """A tiny Qwen2 with a byte-level tokenizer in which `>` swallows the newlines behind it, as Qwen's does."""
    import transformers

    texts = ["<search> lake </search>\n\n", "<answer> town </answer>\n"] * 20
    tokenizer = learn_tokenizer(texts, 320, ["<|pad|>", "<|end|>"], pad_token="<|pad|>", eos_token="<|end|>")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    folder = tmp_path_factory.mktemp("model")
    tokenizer.save_pretrained(folder)
    config = transformers.Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    torch.manual_seed(0)  # under some weights no preserved token becomes less likely, and no penalty is ever at work
    transformers.Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder
