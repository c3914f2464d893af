"""The policy a run starts from: loaded, or made on the spot, and warm-started if the recipe says so. Cached."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from holdfast import __version__
from holdfast.config import Config
from holdfast.data import Example
from holdfast.errors import ConfigError
from holdfast.train.checkpoint import find_damage, save_checkpoint
from holdfast.train.events import Observer
from holdfast.train.model import LanguageModel, load_model, prepare
from holdfast.train.session import Workspace, cache_dir
from holdfast.train.warm_start import Episode, disguised, encode_episode, read_episodes, warm_start
from holdfast.world.bundle import filler_of, interchangeable_tokens, scripted_episodes, world_tokenizer
from holdfast.world.model import build_model
from holdfast.world.scripted import ScriptedEpisode


def starting_policy(workspace: Workspace, observer: Observer) -> LanguageModel:
    """The model the recipe names, after its warm start.

    A warm start is kept in the cache folder under a name made from everything it depends on, and taken from there the
    next time; so is the tiny model itself.
    """
    config = workspace.config
    if config.model.path != "tiny" and not config.warm_start.steps:
        observer.stage("loading the model")
        return load_model(config.model, config.model.path, workspace.device)
    folder = cache_dir() / "start" / _fingerprint(config)
    if find_damage(folder) is None:
        observer.note(f"warm start: taken from the cache ({folder})")
        return load_model(config.model, folder / "model", workspace.device)
    made = _make(workspace, observer)
    save_checkpoint(folder, model=made.model, tokenizer=made.tokenizer, optimizer=None, state={"made_by": __version__})
    return made


def _make(workspace: Workspace, observer: Observer) -> LanguageModel:
    config, device = workspace.config, workspace.device
    own = config.warm_start
    if config.model.path == "tiny" and workspace.world is None:
        raise ConfigError(
            f"model.path = 'tiny' with data.train = {config.data.train!r}: the tiny model knows only the bundled world's "
            "words. Set model.path to a model of yours, for example a Qwen2.5 directory"
        )
    if config.model.path == "tiny":
        language_model, lessons = _tiny(workspace)
    else:
        language_model = load_model(config.model, config.model.path, device)
        lessons = [(own.steps, _episodes_from_file(workspace, language_model.tokenizer))]
    observer.stage("warm start", sum(steps for steps, _ in lessons))
    done = 0
    recent: list[float] = []
    for steps, episodes in lessons:
        for row in warm_start(
            language_model.model,
            episodes,
            pad_token_id=language_model.pad_token_id,
            steps=steps,
            batch=own.batch,
            lr=own.lr,
            seed=own.seed,
            device=device,
            autocast_dtype=language_model.autocast_dtype,
        ):
            done, recent = done + 1, [*recent, row["loss"]][-20:]
            observer.advance(done, {"loss": sum(recent) / len(recent)})
    return language_model


def _tiny(workspace: Workspace) -> tuple[LanguageModel, list[tuple[int, list[Episode]]]]:
    """The tiny model and its lessons: (steps, episodes), plain ones first if the recipe wants them."""
    config, world = workspace.config, workspace.world
    assert world is not None
    own, filler = config.warm_start, filler_of(config.world)
    scripts = scripted_episodes(world, filler, workspace.train_retriever, workspace.protocol, own)
    tokenizer = world_tokenizer(world, filler, scripts, workspace.protocol)
    model = build_model(
        tokenizer, seed=own.seed, hidden=config.model.hidden, layers=config.model.layers, heads=config.model.heads
    )
    pools = interchangeable_tokens(world, tokenizer)

    def lesson(steps: int, scripts: list[ScriptedEpisode]) -> tuple[int, list[Episode]]:
        encoded = [
            encode_episode(
                workspace.prompt(script.question.example, tokenizer), script.turns, workspace.protocol, tokenizer
            )
            for script in scripts
        ]
        return steps, disguised(encoded, pools, steps * own.batch, own.seed)

    lessons = [lesson(own.steps, scripts)] if own.steps else []
    if own.plain_steps:
        plain = scripted_episodes(world, None, workspace.train_retriever, workspace.protocol, own)
        lessons.insert(0, lesson(own.plain_steps, plain))
    return prepare(model, tokenizer, config.model, workspace.device), lessons


def _episodes_from_file(workspace: Workspace, tokenizer: Any) -> list[Episode]:
    path = workspace.config.warm_start.data
    if path is None:
        raise ConfigError(
            f"warm_start.steps = {workspace.config.warm_start.steps} with model.path = {workspace.config.model.path!r}, but "
            "warm_start.data is not set: give a JSONL of episodes to learn from, or set warm_start.steps = 0"
        )
    return [
        encode_episode(workspace.prompt(_question(question), tokenizer), turns, workspace.protocol, tokenizer)
        for question, turns in read_episodes(Path(path))
    ]


def _question(text: str) -> Example:
    return Example(source="warm-start", split="train", index=0, question=text, golden_answers=("-",))


def _fingerprint(config: Config) -> str:
    """Everything the starting policy depends on; the content of a file, not its name."""
    parts: dict[str, Any] = {
        "version": __version__,
        "world": config.world.model_dump(),
        "model": config.model.model_dump(),
        "protocol": config.protocol.model_dump(),
        "retrieval": config.retrieval.model_dump(),
        "warm_start": config.warm_start.model_dump(),
    }
    if config.warm_start.data is not None:
        parts["episodes"] = hashlib.sha256(Path(config.warm_start.data).read_bytes()).hexdigest()
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
