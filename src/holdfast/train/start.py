"""The policy a run starts from: loaded or built, and warm-started if the recipe says so. Cached."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from holdfast import __version__
from holdfast.agent.protocol import render_prompt
from holdfast.base import run_folder
from holdfast.base.errors import CheckpointError, ConfigError
from holdfast.model.language_model import LanguageModel, load_model, pick_device, ready, unread_code
from holdfast.recipe import Config, absolute, dump
from holdfast.retrieval.types import Retriever
from holdfast.tasks import factbook
from holdfast.tasks.factbook import FACTBOOK
from holdfast.tasks.factbook.demonstrations import demonstrations_of
from holdfast.tasks.world.bundle import filler_of, interchangeable_tokens, scripted_rollouts, world_of, world_tokenizer
from holdfast.tasks.world.model import build_model
from holdfast.tasks.world.scripted import ScriptedRollout
from holdfast.train.checkpoint import find_damage, save_checkpoint, save_whole_model
from holdfast.train.checks import Prepared, prepare, validate_model_and_prompts
from holdfast.train.cost import cost_of
from holdfast.train.listener import Listener
from holdfast.train.loading import Questions, load_protocol, skipped_rows
from holdfast.train.start_cache import has_warm_start, shipped_start, start_folder
from holdfast.train.threads import choose_threads, set_up_torch
from holdfast.train.warm_start import (
    Demonstration,
    Turns,
    augment_by_renaming,
    encode_demonstration,
    read_demonstrations,
    warm_start,
)

_Text = tuple[str, Turns]
"""A question and its turns."""


def starting_policy(
    config: Config, questions: Questions, retriever: Retriever, listener: Listener | None = None
) -> LanguageModel:
    """The model of the recipe, after its warm start. Raises `ModelError` before the warm start if rollouts cannot use
    it.

    `retriever` is that of training. The starts of bundled recipes come with holdfast. Another warm start, or a tiny
    model without one, is kept in the cache folder and taken from there the next time.
    """
    start = _Start(config, questions, retriever, listener or Listener(), measured=listener is not None)
    if config.model.path != "tiny" and not has_warm_start(config):
        return start.load()
    shipped, folder = shipped_start(config), start_folder(config)
    for place, origin in ((shipped, "comes with holdfast"), (folder, "taken from the cache")):
        if place is not None and find_damage(place) is None:
            start.listener.note(f"warm start: {origin} ({place})")
            policy = load_model(config.model, place / "model", pick_device(config.run.device))
            start.measure(policy)
            return policy
    policy = start.make()
    try:
        save_checkpoint(folder, policy, state={"made_by": __version__})
    except CheckpointError as error:
        if find_damage(folder) is not None:  # else another run has saved the same start
            cause = error.__cause__
            start.listener.note(f"the warm start could not be cached for later runs: {cause}. Set HOLDFAST_CACHE")
    return policy


def warm_start_only(config: Config, run_dir: Path, *, listener: Listener | None = None) -> Path:
    """Run the warm start alone. Returns the folder of the saved model, which `model.path` and `from_pretrained` load.

    One that comes with holdfast is made again.
    """
    return warm_start_prepared(prepare(config, stage="warm-start"), run_dir, listener=listener)


def warm_start_prepared(prepared: Prepared, run_dir: Path, *, listener: Listener | None = None) -> Path:
    """`warm_start_only`, for a recipe that is prepared for it."""
    listener, config = listener or Listener(), absolute(prepared.config)
    run_folder.begin(run_dir, dump(config))
    with run_folder.writing(run_dir):
        set_up_torch(config)
        for note in prepared.notes:
            listener.note(note)
        questions, retriever = prepared.questions, prepared.retrievers.train
        if shipped_start(config):
            policy = _Start(config, questions, retriever, listener).make()
        else:
            policy = starting_policy(config, questions, retriever, listener)
        save_whole_model(run_dir / run_folder.MODEL, policy)
    return run_dir / run_folder.MODEL


@dataclass(frozen=True, slots=True)
class _Start:
    """Inputs of a starting policy."""

    config: Config
    questions: Questions
    retriever: Retriever
    listener: Listener
    measured: bool = True
    """Whether to look how many CPU threads are fastest, and how much memory the run needs."""

    def load(self) -> LanguageModel:
        """The model of the recipe, checked now because a warm start takes time."""
        config = self.config
        self.listener.stage("loading the model")
        language_model = load_model(config.model, config.model.path, pick_device(config.run.device))
        self._validate(language_model)
        self.measure(language_model)
        if unread_code(language_model, config.model):
            self.listener.note(
                f"model.path = {config.model.path!r} comes with its own Python code, which was not run: the model is "
                f"loaded as transformers' {type(language_model.model).__name__}. To run it: model.trust_remote_code "
                "= true"
            )
        return language_model

    def measure(self, language_model: LanguageModel) -> None:
        """Note the memory and disk that the run needs on a CPU, and the number of threads that is fastest."""
        config = self.config
        if self.measured and config.model.path != "tiny" and language_model.device.type == "cpu":
            self.listener.note(f"this run needs {cost_of(language_model.model, config, self.questions)}")
            if threads := choose_threads(language_model, config):
                self.listener.note(threads)

    def make(self) -> LanguageModel:
        """Loaded or built, and warm-started."""
        config, settings = self.config, self.config.warm_start
        scripts: list[ScriptedRollout] = []
        if config.data.train == "world" and (config.model.path == "tiny" or settings.data is None):
            scripts = self._scripts(plain=False)
        if config.model.path == "tiny":
            policy = self._tiny(scripts)
        else:
            torch.manual_seed(settings.seed)  # fresh LoRA weights are part of the start, which runs with any seed share
            policy = self.load()
            torch.manual_seed(config.run.seed)
        lessons = [
            (steps, self._fitting(self._encode(texts, policy.tokenizer), policy.tokenizer, steps * settings.batch_size))
            for steps, texts in self._sft_stages(scripts)
        ]
        self._learn(policy, lessons)
        return policy

    def _learn(self, policy: LanguageModel, lessons: Sequence[tuple[int, Sequence[Demonstration]]]) -> None:
        settings, micro_batch_tokens = self.config.warm_start, self.config.train.micro_batch_tokens
        self.listener.stage("warm start", self.config.world.scripts.plain_steps + settings.steps)
        done = 0
        recent: list[float] = []
        for steps, demonstrations in lessons:
            stage = settings.model_copy(update={"steps": steps})
            for row in warm_start(policy, demonstrations, stage, micro_batch_tokens=micro_batch_tokens):
                done, recent = done + 1, [*recent, row["loss"]][-20:]
                self.listener.advance(done, {"loss": sum(recent) / len(recent)})

    def _sft_stages(self, scripts: Sequence[ScriptedRollout]) -> Iterator[tuple[int, list[_Text]]]:
        """(steps, texts) in the order they are learned: plain scripts, then scripts or the file of the recipe."""
        settings = self.config.warm_start
        if plain_steps := self.config.world.scripts.plain_steps:
            yield plain_steps, _texts(self._scripts(plain=True))
        if not settings.steps:
            return
        if settings.data is None:
            texts = _texts(scripts)  # `check_training` has made sure that there is a world
        elif factbook.is_factbook(settings.data):
            texts = self._demonstrations(settings.data)
        else:
            with skipped_rows(settings.data, "warm_start.data", self.listener.note) as on_skip:
                texts = read_demonstrations(Path(settings.data), load_protocol(self.config), on_skip=on_skip)
        yield settings.steps, texts

    def _demonstrations(self, name: str) -> list[_Text]:
        """Those of the Factbook, with what the recipe's retriever finds."""
        if name != f"{FACTBOOK}demonstrations":
            raise ConfigError(f"warm_start.data = {name!r}: those of the Factbook are factbook:demonstrations")
        examples = factbook.load_questions(f"{FACTBOOK}train")
        protocol, seed = load_protocol(self.config), self.config.warm_start.seed
        return [(question, turns) for question, turns in demonstrations_of(examples, self.retriever, protocol, seed)]

    def _scripts(self, *, plain: bool) -> list[ScriptedRollout]:
        config = self.config
        filler = None if plain else filler_of(config.world)
        return scripted_rollouts(
            world_of(config.world),
            filler,
            self.retriever,
            load_protocol(config),
            config.world.scripts,
            seed=config.warm_start.seed,
            plain=plain,
        )

    def _encode(self, texts: Sequence[_Text], tokenizer: Any) -> list[Demonstration]:
        """Each text as token ids, with the prompt of the agent."""
        protocol = load_protocol(self.config)
        return [
            encode_demonstration(render_prompt(question, protocol, tokenizer), turns, protocol, tokenizer)
            for question, turns in texts
        ]

    def _fitting(self, demonstrations: Sequence[Demonstration], tokenizer: Any, count: int) -> Sequence[Demonstration]:
        """The demonstrations that are short enough; for the tiny model, `count` copies with other names."""
        config = self.config
        most = config.protocol.max_total_tokens
        short = [demonstration for demonstration in demonstrations if len(demonstration.token_ids) <= most]
        if too_long := len(demonstrations) - len(short):
            left_out = f"{too_long} of {len(demonstrations)} demonstrations of the warm start are longer than"
            left_out = f"{left_out} protocol.max_total_tokens = {most}"
            if not short:
                raise ConfigError(f"{left_out}; raise it")
            self.listener.note(f"{left_out} and are left out")
        if config.model.path != "tiny":
            return short
        pools = interchangeable_tokens(world_of(config.world), tokenizer)
        return augment_by_renaming(short, pools, count, config.warm_start.seed)

    def _tiny(self, scripts: Sequence[ScriptedRollout]) -> LanguageModel:
        """The untrained tiny model, and a tokenizer that knows the words of the world."""
        config = self.config
        world, protocol = world_of(config.world), load_protocol(config)
        tokenizer = world_tokenizer(world, filler_of(config.world), scripts, protocol)
        model = build_model(tokenizer, seed=config.warm_start.seed, **config.world.model.model_dump())
        language_model = ready(model, tokenizer, config.model, pick_device(config.run.device))
        self._validate(language_model)
        return language_model

    def _validate(self, language_model: LanguageModel) -> None:
        validate_model_and_prompts(language_model, self.questions, load_protocol(self.config))


def _texts(scripts: Sequence[ScriptedRollout]) -> list[_Text]:
    return [(script.question.example.question, list(script.turns)) for script in scripts]
