"""Loading a causal language model so that it can be trained exactly: fp32 weights, no dropout, LoRA by choice."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from holdfast.config import Model
from holdfast.errors import ConfigError, MissingExtra, ModelError
from holdfast.train.forward import token_logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModel:
    """A model with its tokenizer and the precision its passes run in."""

    model: Any
    tokenizer: Any
    autocast_dtype: torch.dtype | None

    @property
    def pad_token_id(self) -> int:
        """Any id will do, padding is masked everywhere; many base models have none."""
        for token_id in (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id):
            if token_id is not None:
                return int(token_id)
        return 0

    def forward(self, temperature: float) -> Any:
        """`token_logprobs` bound to this model and sampling temperature."""
        return partial(token_logprobs, self.model, temperature=temperature, autocast_dtype=self.autocast_dtype)


def pick_device(name: str) -> torch.device:
    """`auto`, `cpu` or `cuda` as a device."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("run.device = 'cuda', but PyTorch sees no GPU here; set run.device = 'auto' or 'cpu'")
    return torch.device(name)


def load_model(config: Model, path: str | Path, device: torch.device) -> LanguageModel:
    """Model and tokenizer from a directory or a hub id.

    Weights are fp32 whatever they were saved in: optimizing bf16 weights loses updates smaller than their last bit.
    Dropout is set to 0, so that old and new log-probs of the same weights are equal.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    local = Path(path)
    if local.is_dir() and not (local / "config.json").is_file() and not (local / "adapter_config.json").is_file():
        raise ModelError(f"model.path = {str(path)!r} is a folder without config.json: no model was saved there")
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except Exception as error:  # transformers raises a dozen kinds, all of which mean the same to the user
        raise ModelError(_explain(path, "tokenizer", error)) from None
    adapters = local / "adapter_config.json"
    base = _adapter_base(adapters) if adapters.is_file() else path
    try:
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    except Exception as error:
        raise ModelError(_explain(base, "model", error)) from None
    if adapters.is_file():
        model = _peft().PeftModel.from_pretrained(model, str(path), is_trainable=True)
    elif config.lora_rank:
        model = _with_lora(model, config)
    return prepare(model, tokenizer, config, device)


def prepare(model: Any, tokenizer: Any, config: Model, device: torch.device) -> LanguageModel:
    """Move to the device, switch dropout off, switch checkpointing on if asked for."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
    if config.gradient_checkpointing:
        model.enable_input_require_grads()  # frozen embeddings (LoRA) would otherwise cut the graph
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    bf16 = config.autocast == "bf16" or (config.autocast == "auto" and device.type == "cuda")
    return LanguageModel(
        model=model.to(device).eval(), tokenizer=tokenizer, autocast_dtype=torch.bfloat16 if bf16 else None
    )


class Reference:
    """The frozen policy the run started from: a copy, or with LoRA the same model with its adapters off."""

    def __init__(self, language_model: LanguageModel) -> None:
        self._lora = hasattr(language_model.model, "disable_adapter")
        self._model = language_model.model if self._lora else copy.deepcopy(language_model.model).requires_grad_(False)
        self._language_model = language_model

    def forward(self, temperature: float) -> Any:
        """Like `LanguageModel.forward`, of the reference."""

        def run(*args: Any, **kwargs: Any) -> Any:
            with self.switched_on(), torch.no_grad():
                return token_logprobs(
                    self._model,
                    *args,
                    temperature=temperature,
                    autocast_dtype=self._language_model.autocast_dtype,
                    **kwargs,
                )

        return run

    @contextmanager
    def switched_on(self) -> Iterator[None]:
        with self._model.disable_adapter() if self._lora else nullcontext():
            yield


def _with_lora(model: Any, config: Model) -> Any:
    peft = _peft()
    return peft.get_peft_model(
        model,
        peft.LoraConfig(
            r=config.lora_rank,
            lora_alpha=config.lora_alpha,
            lora_dropout=0.0,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        ),
    )


def _peft() -> Any:
    try:
        import peft
    except ImportError:
        raise MissingExtra("peft", "peft") from None
    return peft


def _adapter_base(path: Path) -> str:
    import json

    return str(json.loads(path.read_text())["base_model_name_or_path"])


def _explain(path: str | Path, what: str, error: Exception) -> str:
    if Path(path).is_dir():
        return (
            f"model.path = {str(path)!r}: no {what} can be loaded from this folder ({_first_line(error)}). It must hold what "
            "`save_pretrained` of a causal language model and of its tokenizer writes"
        )
    return (
        f"model.path = {str(path)!r} is no folder here, and no {what} of that name could be fetched from the hub "
        f"({_first_line(error)}). Check the spelling and the network, or give the path of a downloaded model"
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:160] or type(error).__name__
