"""A model's name as files, and its tokenizer. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.base.environment import unreachable
from holdfast.base.errors import ModelError
from holdfast.base.stored import read_object
from holdfast.model import models
from holdfast.model.settings import Model
from holdfast.model.text.chat_template import is_costly
from holdfast.model.text.tokens import decode, encode


def load_tokenizer(path: str | Path, config: Model) -> Any:
    """The tokenizer of a folder or a hub id. Raises `ModelError`."""
    return read_tokenizer(path if Path(path).is_dir() else hub_id(str(path), "tokenizer_config.json"), config)


def read_tokenizer(path: str | Path, config: Model) -> Any:
    """The tokenizer of a folder, or of a hub id that `hub_id` has found. Raises `ModelError`."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    name = f"model.path = {str(path)!r}"
    try:
        # AutoTokenizer chooses by the model's family, and would read a custom tokenizer by the family's rules.
        generic = _tokenizer_class(Path(path)) in ("TokenizersBackend", "PreTrainedTokenizerFast")
        loader = PreTrainedTokenizerFast if generic else AutoTokenizer
        tokenizer = loader.from_pretrained(path, trust_remote_code=config.trust_remote_code)
    except Exception as error:  # transformers raises a dozen kinds, all of which mean the same to the user
        raise ModelError(explain(path, name, "tokenizer", error)) from None
    if is_costly(tokenizer):
        raise ModelError(
            f"{name}: its chat template needs many seconds or hundreds of megabytes to render one word, and so for "
            "every prompt. Use another model, or the template of the original model"
        )
    word = "search"
    if decode(tokenizer, encode(tokenizer, word)).strip() != word:
        raise ModelError(
            f"{name}: its tokenizer cannot encode the word {word!r}, so its vocabulary is missing. "
            "Copy the tokenizer's files (tokenizer.json, tokenizer_config.json …) of the original model into the folder"
        )
    return tokenizer


def _tokenizer_class(folder: Path) -> str | None:
    """The tokenizer class that a folder names, if the tokenizer is complete in tokenizer.json."""
    config = folder / "tokenizer_config.json"
    if not config.is_file() or not (folder / "tokenizer.json").is_file():
        return None
    return read_object(config, ModelError, "copy it from the original model").get("tokenizer_class")


def hub_id(model: str, file: str) -> str | Path:
    """A hub id, which has `file`, or the folder that `holdfast model get` has stored for it.

    Raises `ModelError` for one that is in no cache without a hub, whose client would take a minute to find out.
    """
    if (ours := models.stored(model)) is not None:
        return ours
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(model, file)
    except HFValidationError:
        raise ModelError(
            f"model.path = {model!r} is not a folder here, and it cannot be a hub id (those are NAME or OWNER/NAME). "
            "Check the spelling. The models of a run are in its checkpoints/step-…/model"
        ) from None
    if cached is None and (why := unreachable()) is not None:
        name = models.getting(model)
        what_to_do = "Check the spelling, go online, or give the path of a downloaded model"
        raise ModelError(
            f"model.path = {model!r} is not a folder here and not in the hub's cache, and {why}. "
            + (f"Get it without the hub: holdfast model get {name}" if name else what_to_do)
        )
    return model


def explain(path: str | Path, name: str, what: str, error: Exception) -> str:
    """Why transformers could not load a `what`, in a sentence."""
    if "trust_remote_code" in str(error):
        return (
            f"{name}: its {what} is Python code that comes with the model, and holdfast runs such code only if you "
            "allow it. Read that code. If you trust it, set model.trust_remote_code = true"
        )
    reason = str(error).strip().partition("\n")[0][:160].rstrip(" .:") or type(error).__name__
    if Path(path).is_dir():
        return (
            f"{name}: no {what} can be loaded from this folder ({reason}). It must contain the files that "
            "`save_pretrained` of a causal language model and of its tokenizer writes"
        )
    return (
        f"{name} is not a folder here, and no {what} of that name could be fetched from the hub ({reason}). Check the "
        "spelling and the network, or give the path of a downloaded model"
    )
