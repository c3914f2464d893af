"""Loading a causal language model so that it can be trained exactly: fp32 weights, no dropout, LoRA by choice."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from torch import Tensor

from holdfast.base.errors import CheckpointError, ConfigError, ModelError
from holdfast.base.importing import optional
from holdfast.base.stored import read_object
from holdfast.model.hub import explain, hub_id, read_tokenizer
from holdfast.model.passes.logprobs import TokenLogprobs, token_logprobs
from holdfast.model.passes.onednn import use_onednn
from holdfast.model.settings import Model
from holdfast.model.support import avoid_cudnn_attention, dropouts, worth_sharing

ADAPTERS_FILE = "adapter_config.json"
_ALIGNMENT = 64  # bytes: where torch's own tensors begin on a CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModel:
    """A model with its tokenizer and the settings of its passes."""

    model: Any
    tokenizer: Any
    autocast_dtype: torch.dtype | None = None
    gradient_checkpointing: bool = False
    """Activations are recomputed in the backward pass, which transformers does in training mode only."""

    @property
    def pad_token_id(self) -> int:
        """Any id that the model embeds works: padding is masked everywhere. Many base models have none, and some
        tokenizers have one beyond the model's last."""
        vocabulary = self.model.get_input_embeddings().weight.shape[0]
        for token_id in (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id):
            if token_id is not None and token_id < vocabulary:
                return int(token_id)
        return 0

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = next(self.model.parameters()).device
        return device

    def logprobs(self, token_ids: Tensor, loss_mask: Tensor, **options: Any) -> TokenLogprobs:
        """`token_logprobs` of this model, in its precision, with the `options` of that."""
        return token_logprobs(self.model, token_ids, loss_mask, autocast_dtype=self.autocast_dtype, **options)


def pick_device(name: str) -> torch.device:
    """`auto`, `cpu` or `cuda` as a device."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("run.device = 'cuda', but PyTorch sees no GPU here; set run.device = 'auto' or 'cpu'")
    return torch.device(name)


def load_model(config: Model, path: str | Path, device: torch.device) -> LanguageModel:
    """Model and tokenizer from a directory (of a model, or of LoRA adapters) or a hub id.

    Weights are fp32 whatever they were saved in: optimizing bf16 weights loses updates smaller than their last bit.
    Dropout is set to 0, so that old and new log-probs of the same weights are equal. Raises `ModelError` for what
    cannot be loaded whole: transformers would initialise absent weights at random and accept an empty tokenizer. Code
    that comes with the model runs only with `config.trust_remote_code`, without a question.
    """
    path = _find(path)
    with quiet():
        tokenizer = read_tokenizer(path, config)
        if has_adapters(path):
            model = _load_adapters(Path(path), config)
        else:
            model = _load_weights(path, f"model.path = {str(path)!r}", config)
            if config.lora_rank:
                model = _with_fresh_lora(model, config)
    return ready(model, tokenizer, config, device)


def has_adapters(path: str | Path) -> bool:
    """Whether a folder holds LoRA adapters of another model."""
    return (Path(path) / ADAPTERS_FILE).is_file()


def load_skeleton(config: Model) -> LanguageModel | None:
    """The recipe's model without its weights (on the meta device), and its tokenizer: what a second is enough to check.

    None for a model of the hub, which would have to be fetched. Raises the errors of `load_model`, except for damaged
    weights.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = Path(_find(config.path))
    if not folder.is_dir():
        return None
    with quiet():
        tokenizer = read_tokenizer(folder, config)
        base, name = folder, f"model.path = {config.path!r}"
        if has_adapters(folder):
            base = Path(_adapters_base(folder, config))
            name = f"{folder / ADAPTERS_FILE}: base_model_name_or_path = {str(base)!r}"
            if not base.is_dir() and not base.is_absolute():
                return None  # a hub id
        try:
            architecture = AutoConfig.from_pretrained(base, trust_remote_code=config.trust_remote_code)
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(architecture, trust_remote_code=config.trust_remote_code)
            if not any(base.glob("*.safetensors")) and not any(base.glob("*.bin")):
                raise OSError("it contains no weights (*.safetensors or *.bin)")
        except Exception as error:  # as in `read_tokenizer`
            raise ModelError(explain(base, name, "causal language model", error)) from None
    return LanguageModel(model=model, tokenizer=tokenizer)


def ready(model: Any, tokenizer: Any, config: Model, device: torch.device) -> LanguageModel:
    """Move to the device, switch dropout off, switch checkpointing on if configured."""
    for _, module, probability in dropouts(model):
        setattr(module, probability, 0.0)
    if config.gradient_checkpointing:
        with quiet():
            model.enable_input_require_grads()  # frozen embeddings (LoRA) would otherwise cut the graph
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    bf16 = config.autocast == "bf16" or (config.autocast == "auto" and device.type == "cuda")
    if device.type == "cpu" and worth_sharing(model):
        use_onednn(model, bf16=bf16)
    if device.type == "cuda":
        avoid_cudnn_attention()
    return LanguageModel(
        model=_aligned(model.to(device)).eval(),
        tokenizer=tokenizer,
        autocast_dtype=torch.bfloat16 if bf16 else None,
        gradient_checkpointing=config.gradient_checkpointing,
    )


def _aligned(model: Any) -> Any:
    """Let every weight begin where torch lets its own tensors begin.

    Transformers maps weights from their file, where they begin anywhere. On a CPU the address of a weight decides how
    sums are rounded, so a start taken from a file would train to other last bits than the same start just made.
    """
    for weight in model.parameters():
        if weight.data_ptr() % _ALIGNMENT:
            weight.data = weight.data.clone()
    return model


def save_model(folder: Path, language_model: LanguageModel) -> None:
    """Write what `from_pretrained` loads: weights (of LoRA the adapters) and tokenizer."""
    model = language_model.model
    # Without this peft asks the hub, at every save, whether the embeddings have grown. Ours never do.
    options = {"save_embedding_layers": False} if hasattr(model, "peft_config") else {}
    with quiet():
        model.save_pretrained(folder, **options)
        language_model.tokenizer.save_pretrained(folder)


def take_weights(language_model: LanguageModel, config: Model, saved: Path) -> None:
    """Give a model the weights of a saved one. Raises `CheckpointError` when they are another model's."""
    weights = load_model(config, saved, torch.device("cpu")).model.state_dict()
    try:
        language_model.model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(
            f"{saved} contains the weights of another model ({str(error).strip().splitlines()[-1].strip()[:120]}). "
            "Restore [model] of the recipe, or start a new run"
        ) from None


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress bars and reports, which break a live table; what matters is an error here."""
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # between transformers and peft
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _find(path: str | Path) -> str | Path:
    """Where to load a model from. Raises `ModelError` for a folder that holds no model, and as `hub_id`."""
    folder, model = Path(path), str(path)
    if folder.is_dir():
        if _has_model(folder):
            return path
        nothing = f"model.path = {model!r} is a folder without config.json: no model was saved there"
        if (inside := _newest_inside(folder)) is None:
            raise ModelError(nothing)
        raise ModelError(
            f"{nothing}. The newest one inside is {inside.relative_to(folder)}: give {str(inside)!r}",
            hint=f"holdfast eval run {quote(str(inside))}, or --model.path {quote(str(inside))}",
        )
    if folder.suffix.lower() == ".gguf" and folder.is_file():
        raise ModelError(
            f"model.path = {model!r} is a GGUF file, a quantized model for llama.cpp, and training needs a folder of "
            "whole weights. Convert it once with transformers, which reads it with gguf_file: "
            "docs/guide/quickstart.md has the lines"
        )
    return hub_id(model, "config.json")


def _has_model(folder: Path) -> bool:
    return (folder / "config.json").is_file() or has_adapters(folder)


def _newest_inside(folder: Path) -> Path | None:
    """The checkpoint with the highest step in the output folder of a trainer: of TRL's `checkpoint-10`, or of a run."""
    inside = [*folder.glob("checkpoint-*"), *folder.glob("checkpoints/step-*/model")]
    saved = [(int(step[0]), path) for path in inside if (step := re.findall(r"-(\d+)", str(path.relative_to(folder))))]
    return max(((step, path) for step, path in saved if _has_model(path)), default=(0, None))[1]


def _load_weights(path: str | Path, name: str, config: Model) -> Any:
    from transformers import AutoModelForCausalLM

    # A folder by its full path, which adapters record as their base: they must load from any working directory.
    where = str(Path(path).resolve()) if Path(path).is_dir() else path
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            where, dtype=torch.float32, output_loading_info=True, trust_remote_code=config.trust_remote_code
        )
    except Exception as error:  # as above
        raise ModelError(explain(path, name, "causal language model", error)) from None
    model, report = loaded
    if absent := sorted(report["missing_keys"]):
        raise ModelError(
            f"{name}: its weight files lack {len(absent)} of the weights of a {type(model).__name__}, such as "
            f"{absent[0]}. Give a causal language model with all its weights"
        )
    return model


def _adapters_base(folder: Path, config: Model) -> str:
    """The path or hub id of the model that adapters were trained on."""
    remedy = "save the adapters again, or set model.path to another folder"
    settings = read_object(folder / ADAPTERS_FILE, ModelError, remedy, base_model_name_or_path=str)
    base: str = settings["base_model_name_or_path"]
    rank = settings.get("r")
    if config.lora_rank and config.lora_rank != rank:
        raise ConfigError(
            f"model.lora_rank = {config.lora_rank}, but the adapters in model.path = {str(folder)!r} have rank {rank}; "
            "training continues with that rank, so remove model.lora_rank"
        )
    return base


def _load_adapters(folder: Path, config: Model) -> Any:
    peft, base = optional("peft", "peft"), _adapters_base(folder, config)
    model = _load_weights(base, f"{folder / ADAPTERS_FILE}: base_model_name_or_path = {base!r}", config)
    try:
        return peft.PeftModel.from_pretrained(model, str(folder), is_trainable=True)
    except Exception as error:  # as above
        raise ModelError(explain(folder, f"model.path = {str(folder)!r}", "set of adapters", error)) from None


def _with_fresh_lora(model: Any, config: Model) -> Any:
    peft = optional("peft", "peft")
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


def unread_code(language_model: LanguageModel, config: Model) -> bool:
    """Whether the model comes with code that was not run, because transformers has its own class for it."""
    return not config.trust_remote_code and bool(getattr(language_model.model.config, "auto_map", None))
