"""Open the model to evaluate, with its settings: a run folder, a model folder, a hub id, or a server.

Settings come from a recipe that the user names, else from the run's own, else they are the defaults. Settings that the
user gives override all of them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.agent.agent import SearchAgent
from holdfast.agent.protocol import SearchProtocol
from holdfast.agent.tools import ToolProtocol
from holdfast.base.errors import ConfigError, ModelError
from holdfast.base.run_folder import MODEL, checkpoints_of, is_run
from holdfast.evaluate.methods import METHODS, Method
from holdfast.evaluate.openai import OpenAIPolicy, WordTokenizer
from holdfast.evaluate.questions import asks_world, is_of_recipe, usual_questions
from holdfast.evaluate.servers import Server
from holdfast.model.checkpoint import model_folder
from holdfast.model.hub import load_tokenizer
from holdfast.model.language_model import load_model, pick_device
from holdfast.model.sampler.hf import HFPolicy
from holdfast.model.support import positions_of
from holdfast.model.text.chat_template import ChatTemplate
from holdfast.recipe import Config, load
from holdfast.recipe.loading import PASSAGES
from holdfast.recipe.overrides import parse_overrides
from holdfast.tasks.machine import choose_threads
from holdfast.tasks.opening import load_protocol, load_recipe, load_retriever, open_retriever, open_tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedModel:
    """A policy, and what is needed to ask it questions."""

    name: str
    config: Config
    policy: Any
    tokenizer: Any
    positions: float
    """The most tokens of a context; infinite when a server does not say."""
    local: bool
    """True when rounding makes answers depend on the others in their batch: see `run.py`."""
    weights: str
    """Identifies the weights, as far as possible without reading them."""
    decoding: str
    tokenizer_name: str | None = None
    """For a server: the model whose tokenizer writes the prompts."""


def run_of(path: Path) -> Path | None:
    """The run folder of a path: the path itself, or the run of a checkpoint or saved model; None for other paths."""
    parents = [folder for folder in list(path.resolve().parents)[:3] if checkpoints_of(folder).is_dir()]
    if path.name == MODEL:
        parents.append(path.resolve().parent)
    return next((folder for folder in (path, *parents) if is_run(folder)), None)


def run_at(model: str) -> Path | None:
    """`run_of` a text that may be anything; None when it is not a path."""
    return run_of(Path(model)) if Path(model).exists() else None


def settings_of(
    model: str | None, settings: Sequence[str], data: Sequence[str], recipe: Path | None = None
) -> tuple[Config, Path | None]:
    """The recipe under which a model is evaluated, and its run folder if it has one. `recipe` takes the place of the
    run's own. `model` is what the user named; None when only its server names it.

    Raises `ConfigError` for settings that cannot work together.
    """
    if model is not None and Path(model).suffix == ".toml":
        raise ConfigError(
            f"{model} is a recipe, and a model is needed: give a run that was trained with it, or a model folder or "
            f"hub id with --recipe {model}"
        )
    run = None if model is None else run_at(model)
    words = [] if run or model is None else ["--model.path", model]
    given = set(parse_overrides(settings, Config))
    if given & PASSAGES and not _asks_own_questions(run, recipe, data):
        # The world's questions allow no passages but its own. An evaluation reads its questions from --data.
        words += ["--data.train", next(iter(data), "questions")]
    return _recipe(run, recipe, [*words, *settings]), run


def _recipe(run: Path | None, recipe: Path | None, words: Sequence[str] = ()) -> Config:
    return load_recipe(run, words) if run and not recipe else load(recipe, words)


def _asks_own_questions(run: Path | None, recipe: Path | None, data: Sequence[str]) -> bool:
    """Whether the questions are the recipe's; without any, those of the world are not meant."""
    return all(map(is_of_recipe, data or [usual_questions(_recipe(run, recipe))]))


def open_model(
    model: str | None,
    config: Config,
    run: Path | None,
    *,
    samples: int | None,
    checkpoint: str = "last",
    server: Server | None = None,
    tokenizer: str | None = None,
    given: Sequence[str] = (),
    note: Callable[[str], None] | None = None,
) -> EvaluatedModel:
    """Load the model, or connect to its server.

    `model` as in `settings_of`. `samples` None decodes greedily. `given` are the settings of the user. Truncated
    sampling is used only when it is among them, so that a run trained with it is evaluated like the others. A local
    model gets as many CPU threads as are fastest, as in training; `note` gets a sentence on them.
    """
    top_p, top_k = _truncation(config, given)
    temperature = config.sampling.temperature
    decoding = "greedy"
    if samples is not None:
        truncation = "".join((f", top-p {top_p:g}" if top_p < 1 else "", f", top-k {top_k}" if top_k else ""))
        decoding = f"sampled at temperature {temperature:g}{truncation}"

    def folder() -> str | Path:
        if model is None:
            raise ConfigError(
                "MODEL is required: the server's name for its model does not say which tokenizer to load. Give "
                "MODEL, a hub id, folder or run. Or give --tokenizer a hub id or folder, or none, which sends plain "
                "text"
            )
        if run is None:
            return model
        return model_folder(run, checkpoint if Path(model).resolve() == run.resolve() else model)

    if server is not None:
        if top_k:
            raise ConfigError("--sampling.top_k is not supported with --server: OpenAI's API has no top_k")
        name, server_tokenizer = _tokenizer_for(server, tokenizer, folder, config)
        return EvaluatedModel(
            name=server.model,
            config=config,
            policy=OpenAIPolicy(
                server,
                server_tokenizer,
                template_variables=config.model.chat_template_kwargs,
                temperature=0.0 if samples is None else temperature,
                top_p=top_p,
            ),
            tokenizer=server_tokenizer,
            positions=server.context or math.inf,
            local=False,
            weights=server.url,
            decoding=decoding,
            tokenizer_name=name,
        )
    if tokenizer is not None:
        raise ConfigError("--tokenizer has no effect without --server, because a local model has its own tokenizer")
    saved = folder()  # once, because it reads the whole checkpoint for its checksums
    language_model = load_model(config.model, saved, pick_device(config.run.device))
    if (measured := choose_threads(language_model, config)) and note is not None:
        note(measured)
    policy = HFPolicy(
        language_model.model,
        language_model.tokenizer,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        autocast_dtype=language_model.autocast_dtype,
        greedy=samples is None,
    )
    return EvaluatedModel(
        name=str(model),
        config=config,
        policy=policy,
        tokenizer=language_model.tokenizer,
        positions=positions_of(language_model.model),
        local=True,
        weights=_weights(saved),
        decoding=decoding,
    )


def open_agent(
    model: str,
    config: Config,
    run: Path | None,
    *,
    greedy: bool,
    checkpoint: str,
    server: Server | None,
    given: Sequence[str],
) -> SearchAgent:
    """The agent of a recipe with the model of `open_model`. For one on a server, `model` gives the tokenizer.

    Raises `ConfigError` for a chat endpoint.
    """
    samples = None if greedy else 1
    opened = open_model(model, config, run, samples=samples, checkpoint=checkpoint, server=server, given=given)
    protocol = fitted(load_protocol(config), opened)
    refuse_unfit(opened, METHODS["search-r1"], protocol)
    return SearchAgent(
        policy=opened.policy,
        retriever=load_retriever(config),
        protocol=protocol,
    )


def fitted(protocol: SearchProtocol, model: EvaluatedModel) -> SearchProtocol:
    """The protocol, with rollouts no longer than the contexts of the model. A chat endpoint has the chat template."""
    template = ChatTemplate("none") if _is_chat(model) else protocol.template
    most = int(min(protocol.max_total_tokens, model.positions))
    return replace(protocol, max_total_tokens=most, template=template)


def refuse_unfit(model: EvaluatedModel, method: Method, protocol: SearchProtocol) -> None:
    """Raise `ConfigError` for a server that does not show calls of tools, or a chat endpoint that cannot continue an
    answer, when the method needs that."""
    served = isinstance(model.policy, OpenAIPolicy) and not _is_chat(model)
    if served and isinstance(protocol, ToolProtocol) and method.conversation is None:
        form = protocol.format(model.tokenizer)
        special = {str(token) for token in model.tokenizer.added_tokens_decoder.values() if token.special}
        if hidden := [token for token in special if token in "".join(form.tags)]:
            raise ConfigError(
                f"the chat template writes a call with the special token {min(hidden)}, and {model.policy.url} returns "
                "texts without special tokens, so that no call would be seen. Evaluate the model without --server"
            )
    if _is_chat(model) and method.continues(protocol):
        completions = model.policy.url.replace("/chat/", "/")
        raise ConfigError(
            f"{method.name} continues an answer that the model has begun, and chat endpoints do not do that exactly. "
            f"Give --server {completions}, or evaluate with --method direct, cot, rag or r1"
        )


def _is_chat(model: EvaluatedModel) -> bool:
    return isinstance(model.policy, OpenAIPolicy) and model.policy.server.is_chat


def agent_protocol(method: Method, config: Config) -> SearchProtocol:
    """The recipe's protocol. A preset of the method replaces its turns, and its prompt unless the recipe sets one."""
    protocol, preset = load_protocol(config), method.preset
    if preset is None:
        return protocol
    keep_prompt = config.protocol.prompt is not None or config.protocol.preset == preset.name
    return replace(protocol, prompt=protocol.prompt if keep_prompt else preset.prompt, max_turns=preset.max_turns)


def retriever_for(
    method: Method, config: Config, data: Sequence[str], note: Callable[[str], None] | None = None
) -> Any | None:
    """The retriever of the recipe; None for a method that never searches, and for an agent without that tool.

    Raises `ConfigError` when its passages belong to other questions.
    """
    if not method.searches or (method.conversation is None and not config.protocol.searches):
        return None
    tasks = open_tasks(config, note)
    mismatched = [name for name in data if not is_of_recipe(name) and asks_world(name) != tasks.closed]
    if mismatched and tasks.closed:
        raise ConfigError(
            f"--method {method.name} searches, but no passages are given for --data {mismatched[0]}: the passages of "
            "the bundled world answer only its own questions. Give --retrieval.url, or --retrieval.corpus with "
            "--retrieval.index"
        )
    if mismatched:
        raise ConfigError(
            f"--data {mismatched[0]} asks about the bundled world, but the retriever has other passages; evaluate a "
            "run of the world on it, or leave the --retrieval settings out"
        )
    return open_retriever(config, tasks, note)


def _truncation(config: Config, given: Sequence[str]) -> tuple[float, int]:
    names = set(parse_overrides(given, Config))
    top_p = config.sampling.top_p if "sampling.top_p" in names else 1.0
    return top_p, config.sampling.top_k if "sampling.top_k" in names else 0


def _tokenizer_for(
    server: Server, given: str | None, folder: Callable[[], str | Path], config: Config
) -> tuple[str, Any]:
    """(name, the tokenizer that writes prompts for a server's model)."""
    if server.is_chat and given not in (None, "none"):
        raise ConfigError(f"--tokenizer {given}: {server.url} applies the chat template itself; leave --tokenizer out")
    if server.is_chat or given == "none":
        return "none", WordTokenizer()
    name = given or str(folder())
    try:
        return name, load_tokenizer(name, config.model)
    except ModelError as error:
        raise ModelError(
            f"the tokenizer {name!r} cannot be loaded: {error}. It applies the chat template of the server's model. "
            "Name a folder or hub id that has it: to `eval run` as --tokenizer, to `ask` as RUN, with the server's "
            "name of the model as --model. For methods without search, --server may have the path "
            "/v1/chat/completions instead: there the server applies the template. --tokenizer none sends plain text, "
            "and counts words as tokens"
        ) from None


def _weights(folder: str | Path) -> str:
    path = Path(folder)
    if not path.is_dir():
        return str(folder)
    files = sorted((f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in path.iterdir() if f.is_file())
    return hashlib.sha256(repr(files).encode()).hexdigest()[:16]
