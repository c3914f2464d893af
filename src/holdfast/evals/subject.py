"""Who is evaluated: a run folder, a model folder, a hub id, or a server; opened with the settings it will answer under.

Settings are a recipe's. A run folder brings its own, any other model has the defaults, and what the user gives stands
above both.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.config import Config, load
from holdfast.errors import ConfigError, ModelError
from holdfast.evals.catalogue import Method
from holdfast.evals.questions import WORLD
from holdfast.language_model import load_model, pick_device
from holdfast.loading import load_protocol, load_recipe, load_retriever
from holdfast.rollout.hf import HFPolicy
from holdfast.rollout.openai import OpenAIPolicy, WordTokenizer
from holdfast.rollout.support import text_config
from holdfast.run_folder import MODEL, checkpoints_of, is_run
from holdfast.search.protocol import SearchProtocol
from holdfast.settings import parse_overrides
from holdfast.train.checkpoint import model_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A policy and what it needs to be asked."""

    name: str
    config: Config
    policy: Any
    tokenizer: Any
    positions: float
    """Most tokens of a context; infinite when only the server knows."""
    local: bool
    """True when answers depend on which others are computed beside them, by rounding: see `run.py`."""
    weights: str
    """Which weights these are, as far as one can tell without reading them."""
    decoding: str
    spoken: str | None = None
    """Whose tokenizer writes the prompts of a server's model."""


def run_of(path: Path) -> Path | None:
    """The run folder that a path is, or that it is a checkpoint or a saved model of."""
    above = [folder for folder in list(path.resolve().parents)[:3] if checkpoints_of(folder).is_dir()]
    if path.name == MODEL:
        above.append(path.resolve().parent)
    return next((folder for folder in (path, *above) if is_run(folder)), None)


def settings_of(model: str, settings: Sequence[str], data: Sequence[str]) -> tuple[Config, Path | None]:
    """The recipe a model is asked under, and its run folder if it has one.

    Raises `ConfigError` for settings that cannot work together.
    """
    path = Path(model)
    run = run_of(path) if path.exists() else None
    words = [] if run else ["--model.path", model]
    given = set(parse_overrides(settings, Config))
    if own := given & {"retrieval.url", "retrieval.corpus", "retrieval.index"}:
        # Passages that are given replace a run's own altogether.
        words += [] if "retrieval.corpus" in own else ["--retrieval.corpus", "world"]
        words += [] if "retrieval.index" in own else ["--retrieval.index", "none"]
        words += [] if "retrieval.url" in own else ["--retrieval.url", "none"]
        words += ["--data.train", next(iter(data), "questions")]
    words += settings
    return load_recipe(run, words) if run else load(None, words), run


def open_subject(
    model: str,
    config: Config,
    run: Path | None,
    *,
    samples: int | None,
    checkpoint: str = "last",
    server: str | None = None,
    tokenizer: str | None = None,
    given: Sequence[str] = (),
) -> Subject:
    """Load the model, or connect to its server.

    `samples` None decodes greedily. `given` are the settings the user wrote: truncated sampling is used only when it is
    among them, so that runs trained with it are evaluated as the others are.
    """
    top_p, top_k = _truncation(config, given)
    temperature = config.sampling.temperature
    decoding = "greedy"
    if samples is not None:
        cut = "".join((f", top-p {top_p:g}" if top_p < 1 else "", f", top-k {top_k}" if top_k else ""))
        decoding = f"sampled at temperature {temperature:g}{cut}"
    if server is not None:
        if top_k:
            raise ConfigError("--sampling.top_k does not go with --server: OpenAI's API has no such setting")
        speech = _tokenizer_for(model, tokenizer, config)
        policy: Any = OpenAIPolicy(
            server,
            model,
            speech,
            temperature=0.0 if samples is None else temperature,
            top_p=top_p,
            api_key=os.environ.get("OPENAI_API_KEY"),
        )
        return Subject(
            name=model,
            config=config,
            policy=policy,
            tokenizer=speech,
            positions=math.inf,
            local=False,
            weights=policy.url,
            decoding=decoding,
            spoken=tokenizer or model,
        )
    if tokenizer is not None:
        raise ConfigError("--tokenizer goes with --server; a model that is loaded here brings its own")
    folder: str | Path = model
    if run is not None:
        folder = _model_of(run, Path(model), checkpoint)
    language_model = load_model(config.model, folder, pick_device(config.run.device))
    policy = HFPolicy(
        language_model.model,
        language_model.tokenizer,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        autocast_dtype=language_model.autocast_dtype,
        greedy=samples is None,
    )
    positions = getattr(text_config(language_model.model), "max_position_embeddings", None) or math.inf
    return Subject(
        name=model,
        config=config,
        policy=policy,
        tokenizer=language_model.tokenizer,
        positions=positions,
        local=True,
        weights=_weights(folder),
        decoding=decoding,
    )


def agent_protocol(method: Method, config: Config) -> SearchProtocol:
    """The recipe's protocol, with the turns of the method's preset if it has one, and its prompt unless the recipe has
    a prompt of its own."""
    protocol, preset = load_protocol(config), method.preset
    if preset is None:
        return protocol
    keep_prompt = config.protocol.prompt is not None or config.protocol.preset == preset.name
    return replace(protocol, prompt=protocol.prompt if keep_prompt else preset.prompt, max_turns=preset.max_turns)


def retriever_for(
    method: Method, config: Config, data: Sequence[str], note: Callable[[str], None] | None = None
) -> Any | None:
    """The retriever of the recipe; None for a method that never searches.

    Raises `ConfigError` when it holds other passages than those that answer the questions.
    """
    if not method.searches:
        return None
    of_the_world = config.data.train == "world"
    strangers = [name for name in data if (name in WORLD) != of_the_world]
    if strangers and of_the_world:
        raise ConfigError(
            f"--method {method.name} searches, and no passages are given for --data {strangers[0]}: the bundled "
            "world's answer its own questions only. Give --retrieval.url, or --retrieval.corpus with --retrieval.index"
        )
    if strangers:
        raise ConfigError(
            f"--data {strangers[0]} asks about the bundled world, and the retriever holds other passages; evaluate a "
            "run of the world on it, or leave the --retrieval settings out"
        )
    return load_retriever(config, note=note)


def _truncation(config: Config, given: Sequence[str]) -> tuple[float, int]:
    names = set(parse_overrides(given, Config))
    top_p = config.sampling.top_p if "sampling.top_p" in names else 1.0
    return top_p, config.sampling.top_k if "sampling.top_k" in names else 0


def _model_of(run: Path, path: Path, checkpoint: str) -> Path:
    """The folder of the weights: the one named, if it lies inside the run; else the checkpoint asked for."""
    if path.resolve() != run.resolve():
        return model_folder(run, str(path))
    return model_folder(run, checkpoint)


def _tokenizer_for(model: str, tokenizer: str | None, config: Config) -> Any:
    """What writes prompts for a server's model."""
    if tokenizer == "none":
        return WordTokenizer()
    from transformers import AutoTokenizer

    name = tokenizer or model
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=config.model.trust_remote_code)
    except Exception as error:  # transformers raises a dozen kinds
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:120]
        raise ModelError(
            f"no tokenizer of the name {name!r} can be loaded ({reason}), and without one nobody knows the chat "
            "template of the server's model. Give --tokenizer with a folder or hub id; or --tokenizer none, which "
            "sends plain text and counts words as tokens"
        ) from None


def _weights(folder: str | Path) -> str:
    path = Path(folder)
    if not path.is_dir():
        return str(folder)
    files = sorted((f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in path.iterdir() if f.is_file())
    return hashlib.sha256(repr(files).encode()).hexdigest()[:16]
