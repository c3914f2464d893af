"""The settings of a model and its sampler: sections `[model]` and `[sampling]` of a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field, JsonValue

from holdfast.base.section import Refusal, Section

_WRITTEN = {
    *("conversation", "messages", "tools", "chat_template", "add_generation_prompt", "continue_final_message"),
    *("tokenize", "tokenizer_kwargs", "sanitize_control_tokens", "return_assistant_tokens_mask", "return_dict"),
    *("return_tensors", "padding", "truncation", "max_length", "strftime_now"),
}
"""What a rendering sets, or what would make something else of its text."""


TINY = "tiny"
"""The `model.path` of a model that the task set makes."""


class Model(Section):
    """The model and how it is trained."""

    path: str = TINY
    """A folder, or the hub id of any causal LM that transformers loads. `tiny`: a small model made for the bundled
    world."""
    lora_rank: int = Field(0, ge=0)
    """Rank of LoRA on all linear layers (needs peft). 0: train all weights."""
    lora_alpha: int = Field(32, ge=1)
    """LoRA updates are multiplied by `lora_alpha / lora_rank`."""
    autocast: Literal["auto", "bf16", "none"] = "auto"
    """Autocast to bf16, with fp32 weights. `auto`: only on a GPU. On a CPU it pays if `lscpu` shows `avx512_bf16` or
    `amx_bf16`."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. It can do whatever you can, so read it first."""
    chat_template: str = "auto"
    """`auto`: the tokenizer's template, if it has one. `none`: plain text. Otherwise the path of a Jinja file."""
    chat_template_kwargs: dict[str, JsonValue] = Field({})
    """Variables of the chat template, such as `{ enable_thinking = false }` for Qwen3. Used in every rendering."""

    @property
    def is_tiny(self) -> bool:
        """Whether the task set makes the model, a small one, instead of loading one from a path."""
        return self.path == TINY

    def refusals(self) -> Iterator[Refusal | str]:
        if self.is_tiny and self.lora_rank:
            yield Refusal(
                {"model.lora_rank": self.lora_rank, "model.path": "tiny"},
                "the tiny model is too small for LoRA",
                "Set model.lora_rank = 0, or model.path to a model of yours",
            )
        if written := sorted(_WRITTEN & set(self.chat_template_kwargs)):
            yield (
                f"model.chat_template_kwargs has {', '.join(written)}, which holdfast sets itself. Leave it out; set "
                "only the template's other variables, such as enable_thinking"
            )
        if self.chat_template == "none" and self.chat_template_kwargs:
            yield Refusal(
                {"model.chat_template_kwargs": self.chat_template_kwargs, "model.chat_template": "none"},
                "plain text has no variables",
                "Set model.chat_template = 'auto', or leave model.chat_template_kwargs out",
            )


class Sampling(Section):
    """The token sampler of training rollouts."""

    temperature: float = Field(1.0, gt=0)
    """Temperature of the sampler and of all log-probs: the logits are divided by it."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling. Below 1, the sampler is truncated but the log-probs are not. This mismatch alone can make a run
    collapse (research/docs/testbed.md), so a run warns about it."""
    top_k: int = Field(0, ge=0)
    """Sample from the k most likely tokens; 0: from all. Above 0, the same mismatch as with `top_p`."""
    mask_logprobs: bool = False
    """Compute log-probs in the loss only over the tokens that the sampler can draw, so that sampler and loss agree
    (arXiv 2512.02556). Needs `top_k`."""

    @property
    def truncated(self) -> bool:
        """Whether some tokens can never be drawn."""
        return self.top_p < 1 or self.top_k > 0

    def refusals(self) -> Iterator[Refusal | str]:
        if self.mask_logprobs and not self.top_k:
            yield Refusal(
                {"sampling.mask_logprobs": True, "sampling.top_k": 0},
                "the sampling mask of every token is kept in memory, and top_k limits its size",
                "Set sampling.top_k = 512, which rarely removes more than top_p does. A sampler that is not truncated "
                "needs no mask",
            )
