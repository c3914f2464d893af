"""The policy a run starts from: loaded, or made on the spot, and warm-started if the recipe says so. Cached."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from holdfast import __version__
from holdfast.config import Config, WarmStart
from holdfast.data import Example
from holdfast.errors import CheckpointError, ConfigError, DataError
from holdfast.retrieval.cache import CachedRetriever
from holdfast.search.protocol import SearchProtocol
from holdfast.train.checkpoint import find_damage, save_checkpoint
from holdfast.train.checks import refuse_misfits
from holdfast.train.events import Observer
from holdfast.train.model import LanguageModel, load_model, prepare, unread_code
from holdfast.train.session import Workspace, cache_dir, telling_skipped
from holdfast.train.short_answers import short_answers
from holdfast.train.warm_start import Episode, disguised, encode_episode, read_episodes, warm_start
from holdfast.world.bundle import filler_of, interchangeable_tokens, scripted_episodes, world_tokenizer
from holdfast.world.model import build_model
from holdfast.world.scripted import ScriptedEpisode

_Text = tuple[str, list[tuple[str, str]]]
"""A question, and what was said to it: (text of the turn, text of the observation after it) pairs."""


def starting_policy(workspace: Workspace, observer: Observer) -> LanguageModel:
    """The model the recipe names, after its warm start. Raises before it for a model that cannot serve.

    A warm start is kept in the cache folder under a name made from everything it depends on, and taken from there the
    next time; so is the tiny model itself.
    """
    config = workspace.config
    if config.model.path == "tiny":
        _refuse_tiny(config)
    elif not has_warm_start(config):
        return _loaded(workspace, observer)
    folder = start_folder(config)
    if find_damage(folder) is None:
        observer.note(f"warm start: taken from the cache ({folder})")
        return load_model(config.model, folder / "model", workspace.device)
    made = _make(workspace, observer)
    try:
        save_checkpoint(folder, made, state={"made_by": __version__})
    except CheckpointError as error:
        if find_damage(folder) is not None:  # else another run made the same one in the meantime
            observer.note(f"the warm start is not kept for later runs: {error.__cause__}. Set HOLDFAST_CACHE")
    return made


def start_folder(config: Config) -> Path:
    """Where the cache keeps the policy that a recipe's warm start makes. Raises `DataError`."""
    return cache_dir() / "start" / _fingerprint(config)


def has_warm_start(config: Config) -> bool:
    return bool(config.warm_start.steps or config.warm_start.plain_steps)


def _make(workspace: Workspace, observer: Observer) -> LanguageModel:
    config, own, world = workspace.config, workspace.config.warm_start, workspace.world
    scripts: list[ScriptedEpisode] = []
    if world is not None and (config.model.path == "tiny" or (own.teaches == "search" and own.data is None)):
        scripts = scripted_episodes(world, filler_of(config.world), *_script_settings(workspace))
    if config.model.path == "tiny":
        made = _tiny(workspace, scripts)
    else:
        torch.manual_seed(own.seed)  # fresh LoRA weights are part of the start, which runs with any seed share
        made = _loaded(workspace, observer)
        torch.manual_seed(config.run.seed)
    if own.teaches == "search":
        lessons = [
            (steps, _encoded(texts, workspace, made.tokenizer, steps * own.batch, observer))
            for steps, texts in _lessons(workspace, scripts, observer)
        ]
    else:
        taught = short_answers(workspace, made.tokenizer, own.steps * own.batch)
        # What is answered from memory must be remembered, not read.
        lessons = [(own.steps, _fitting(taught, workspace, made.tokenizer, own.steps * own.batch, observer))]
    observer.stage("warm start", own.plain_steps + own.steps)
    done = 0
    recent: list[float] = []
    for steps, episodes in lessons:
        for row in warm_start(
            made.model,
            episodes,
            pad_token_id=made.pad_token_id,
            steps=steps,
            batch=own.batch,
            lr=own.lr,
            seed=own.seed,
            device=workspace.device,
            micro_batch_tokens=config.train.micro_batch_tokens,
            autocast_dtype=made.autocast_dtype,
        ):
            done, recent = done + 1, [*recent, row["loss"]][-20:]
            observer.advance(done, {"loss": sum(recent) / len(recent)})
    return made


def _loaded(workspace: Workspace, observer: Observer) -> LanguageModel:
    """The recipe's own model, if it can serve at all: a warm start takes time."""
    observer.stage("loading the model")
    language_model = load_model(workspace.config.model, workspace.config.model.path, workspace.device)
    refuse_misfits(workspace, language_model)
    if unread_code(language_model, workspace.config.model):
        observer.note(
            f"model.path = {workspace.config.model.path!r} brings Python code of its own, which was not run: it is "
            f"loaded as transformers' {type(language_model.model).__name__}. To run it: model.trust_remote_code = true"
        )
    return language_model


def _lessons(
    workspace: Workspace, scripts: Sequence[ScriptedEpisode], observer: Observer
) -> Iterator[tuple[int, list[_Text]]]:
    """(steps, episodes) in the order they are learned: plain scripts, then scripts, or the recipe's own file."""
    own, world = workspace.config.warm_start, workspace.world
    if own.plain_steps:
        if world is None:
            raise ConfigError(
                f"warm_start.plain_steps = {own.plain_steps}, but only the bundled world has scripts to learn from; "
                "set it to 0"
            )
        yield own.plain_steps, _texts(scripted_episodes(world, None, *_script_settings(workspace)))
    if own.steps and own.data is not None:
        with telling_skipped(own.data, "warm_start.data", observer.note) as on_skip:
            texts = read_episodes(Path(own.data), on_skip=on_skip)
        yield own.steps, texts
    elif own.steps:
        if world is None:
            raise ConfigError(
                f"warm_start.steps = {own.steps}, but warm_start.data is not set, and only the bundled world has "
                "scripts to learn from. Give a JSONL of episodes, or set warm_start.steps = 0"
            )
        yield own.steps, _texts(scripts)


def _texts(scripts: Sequence[ScriptedEpisode]) -> list[_Text]:
    return [(script.question.example.question, list(script.turns)) for script in scripts]


def _script_settings(workspace: Workspace) -> tuple[CachedRetriever, SearchProtocol, WarmStart]:
    return workspace.train_retriever, workspace.protocol, workspace.config.warm_start


def _encoded(
    texts: Sequence[_Text], workspace: Workspace, tokenizer: Any, count: int, observer: Observer
) -> Sequence[Episode]:
    """Token ids of episodes of the agent."""
    episodes = [
        encode_episode(workspace.prompt(_as_example(question), tokenizer), turns, workspace.protocol, tokenizer)
        for question, turns in texts
    ]
    return _fitting(episodes, workspace, tokenizer, count, observer)


def _fitting(
    episodes: Sequence[Episode], workspace: Workspace, tokenizer: Any, count: int, observer: Observer
) -> Sequence[Episode]:
    """Those that are not too long; for the tiny model to learn reading from, `count` of them in disguise."""
    config = workspace.config
    most = config.protocol.max_total_tokens
    short = [episode for episode in episodes if len(episode.token_ids) <= most]
    if len(short) < len(episodes):
        told = f"{len(episodes) - len(short)} of {len(episodes)} episodes of the warm start are longer than"
        told = f"{told} protocol.max_total_tokens = {most}"
        if not short:
            raise ConfigError(f"{told}; raise it")
        observer.note(f"{told} and are left out")
    if config.model.path != "tiny" or config.warm_start.teaches == "direct":
        return short
    assert workspace.world is not None
    return disguised(short, interchangeable_tokens(workspace.world, tokenizer), count, config.warm_start.seed)


def _tiny(workspace: Workspace, scripts: Sequence[ScriptedEpisode]) -> LanguageModel:
    """The tiny model as it is born, and a tokenizer that knows the world's words."""
    config, world = workspace.config, workspace.world
    assert world is not None
    own = config.model
    tokenizer = world_tokenizer(world, filler_of(config.world), scripts, workspace.protocol)
    model = build_model(tokenizer, seed=config.warm_start.seed, hidden=own.hidden, layers=own.layers, heads=own.heads)
    language_model = prepare(model, tokenizer, own, workspace.device)
    refuse_misfits(workspace, language_model)
    return language_model


def _refuse_tiny(config: Config) -> None:
    if config.data.train != "world":
        raise ConfigError(
            f"model.path = 'tiny' with data.train = {config.data.train!r}: the tiny model knows only the bundled "
            "world's words. Set model.path to a model of yours, for example a Qwen2.5 directory"
        )
    if config.model.lora_rank:
        raise ConfigError(
            f"model.lora_rank = {config.model.lora_rank} with model.path = 'tiny': the tiny model has nothing worth "
            "freezing and is trained whole. Set model.lora_rank = 0, or model.path to a model of yours"
        )


def _as_example(question: str) -> Example:
    return Example(source="warm-start", split="train", index=0, question=question, golden_answers=("-",))


def _fingerprint(config: Config) -> str:
    """Everything the starting policy depends on. Of a file it learns from that is its content, of a model's folder the
    names, sizes and times of its files; a hub id stands for itself."""
    parts: dict[str, Any] = {"version": __version__, **config.start_parts()}
    if config.warm_start.teaches != "search" and config.data.train != "world":
        parts["questions"] = _digest(config.data.train, "data.train")
    if config.warm_start.data is not None:
        parts["episodes"] = _digest(config.warm_start.data, "warm_start.data")
    if Path(config.model.path).is_dir():
        files = sorted(path for path in Path(config.model.path).rglob("*") if path.is_file())
        parts["files"] = [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _digest(path: str, setting: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(f"{setting} = {path!r} cannot be read: {error.strerror}") from None
