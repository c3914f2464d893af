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
from holdfast.model.checkpoint import find_damage, save_checkpoint, save_whole_model
from holdfast.model.language_model import LanguageModel, load_model, ready, unread_code
from holdfast.recipe import Config, absolute, dump
from holdfast.tasks.demonstrations import Text, read_demonstrations
from holdfast.tasks.files import skipped_rows
from holdfast.tasks.machine import choose_threads, set_up_torch
from holdfast.train.cost import cost_of
from holdfast.train.listener import Listener
from holdfast.train.model_fit import validate_model_and_prompts
from holdfast.train.prepare import Prepared, prepare
from holdfast.train.start_cache import has_warm_start, shipped_start, start_folder
from holdfast.train.warm_start import Demonstration, augment_by_renaming, encode_demonstration, warm_start


def starting_policy(prepared: Prepared, listener: Listener | None = None) -> LanguageModel:
    """The model of the recipe, after its warm start. Raises `ModelError` before the warm start if rollouts cannot use
    it.

    The starts of bundled recipes come with holdfast. Another warm start, or a tiny model without one, is kept in the
    cache folder and taken from there the next time.
    """
    start, config = _Start(prepared, listener or Listener(), measured=listener is not None), prepared.config
    if not config.model.is_tiny and not has_warm_start(config):
        return start.load()
    shipped, folder = shipped_start(config), start_folder(config, prepared.tasks)
    for place, origin in ((shipped, "comes with holdfast"), (folder, "taken from the cache")):
        if place is not None and find_damage(place) is None:
            start.listener.note(f"warm start: {origin} ({place})")
            policy = load_model(config.model, place / "model", prepared.device)
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
        is_shipped = shipped_start(config) is not None
        policy = _Start(prepared, listener).make() if is_shipped else starting_policy(prepared, listener)
        save_whole_model(run_dir / run_folder.MODEL, policy)
    return run_dir / run_folder.MODEL


@dataclass(frozen=True, slots=True)
class _Start:
    """Inputs of a starting policy."""

    prepared: Prepared
    listener: Listener
    measured: bool = True
    """Whether to look how many CPU threads are fastest, and how much memory the run needs."""

    def load(self) -> LanguageModel:
        """The model of the recipe, checked now because a warm start takes time."""
        config = self.prepared.config
        self.listener.stage("loading the model")
        language_model = load_model(config.model, config.model.path, self.prepared.device)
        self._validate(language_model)
        self.measure(language_model)
        if unread_code(language_model, config.model):
            self.listener.note(
                f"model.path = {config.model.path!r} has its own Python code, which was not run: the model is loaded "
                f"as transformers' {type(language_model.model).__name__}. To run it: model.trust_remote_code = true"
            )
        return language_model

    def measure(self, language_model: LanguageModel) -> None:
        """Note the memory and disk that the run needs on a CPU, and the number of threads that is fastest."""
        config = self.prepared.config
        if self.measured and not config.model.is_tiny and language_model.device.type == "cpu":
            made = start_folder(config, self.prepared.tasks).is_dir()
            self.listener.note(
                f"this run needs {cost_of(language_model.model, config, self.prepared.questions, made=made)}"
            )
            if threads := choose_threads(language_model, config):
                self.listener.note(threads)

    def make(self) -> LanguageModel:
        """Loaded or built, and warm-started."""
        config, settings = self.prepared.config, self.prepared.config.warm_start
        of_tasks = self._demonstrations() if config.model.is_tiny or (settings.steps and settings.data is None) else ()
        if config.model.is_tiny:
            policy = self._tiny(of_tasks)
        else:
            torch.manual_seed(settings.seed)  # fresh LoRA weights are part of the start, which runs with any seed share
            policy = self.load()
            torch.manual_seed(config.run.seed)
        lessons = [
            (steps, self._fitting(self._encode(texts, policy.tokenizer), policy.tokenizer, steps * settings.batch_size))
            for steps, texts in self._lessons(of_tasks)
        ]
        self._learn(policy, lessons)
        return policy

    def _learn(self, policy: LanguageModel, lessons: Sequence[tuple[int, Sequence[Demonstration]]]) -> None:
        settings = self.prepared.config.warm_start
        self.listener.stage("warm start", sum(steps for steps, _ in lessons))
        done = 0
        recent: list[float] = []
        for steps, demonstrations in lessons:
            stage = settings.model_copy(update={"steps": steps})
            micro_batch_tokens = self.prepared.config.train.micro_batch_tokens
            for row in warm_start(policy, demonstrations, stage, micro_batch_tokens=micro_batch_tokens):
                done, recent = done + 1, [*recent, row["loss"]][-20:]
                self.listener.advance(done, {"loss": sum(recent) / len(recent)})

    def _demonstrations(self) -> Sequence[Text]:
        """Those of the task set."""
        prepared, settings = self.prepared, self.prepared.config.warm_start
        return prepared.tasks.demonstrations(
            prepared.questions.train,
            prepared.retrievers.train,
            prepared.protocol,
            seed=settings.seed,
            most=max(settings.steps, 1) * settings.batch_size,
        )

    def _lessons(self, of_tasks: Sequence[Text]) -> Iterator[tuple[int, Sequence[Text]]]:
        """(steps, texts) in the order they are learned: the first lesson of the task set, then its demonstrations or
        the file of the recipe."""
        prepared, settings = self.prepared, self.prepared.config.warm_start
        steps, texts = prepared.tasks.first_lesson(prepared.retrievers.train, prepared.protocol, seed=settings.seed)
        if steps:
            yield steps, texts
        if settings.steps:
            if settings.data is not None:
                with skipped_rows(settings.data, "warm_start.data", self.listener.note) as on_skip:
                    of_tasks = read_demonstrations(Path(settings.data), prepared.protocol, on_skip=on_skip)
            yield settings.steps, of_tasks

    def _encode(self, texts: Sequence[Text], tokenizer: Any) -> list[Demonstration]:
        """Each text as token ids, with the prompt of the agent."""
        protocol = self.prepared.protocol
        return [
            encode_demonstration(render_prompt(question, protocol, tokenizer), turns, protocol, tokenizer)
            for question, turns in texts
        ]

    def _fitting(self, demonstrations: Sequence[Demonstration], tokenizer: Any, count: int) -> Sequence[Demonstration]:
        """The demonstrations that are short enough; for the tiny model, `count` copies with other names."""
        config = self.prepared.config
        limit = config.protocol.max_total_tokens
        short = [demonstration for demonstration in demonstrations if len(demonstration.token_ids) <= limit]
        if too_long := len(demonstrations) - len(short):
            left_out = f"{too_long} of {len(demonstrations)} demonstrations of the warm start are longer than"
            left_out = f"{left_out} protocol.max_total_tokens = {limit}"
            if not short:
                raise ConfigError(f"{left_out}; raise it")
            self.listener.note(f"{left_out} and are left out")
        if not config.model.is_tiny:
            return short
        pools = self.prepared.tasks.interchangeable(tokenizer)
        return augment_by_renaming(short, pools, count, config.warm_start.seed)

    def _tiny(self, demonstrations: Sequence[Text]) -> LanguageModel:
        """The untrained tiny model of the task set, and a tokenizer that knows its words."""
        config = self.prepared.config
        model, tokenizer = self.prepared.tasks.tiny_model(config, demonstrations, self.prepared.protocol)
        language_model = ready(model, tokenizer, config.model, self.prepared.device)
        self._validate(language_model)
        return language_model

    def _validate(self, language_model: LanguageModel) -> None:
        validate_model_and_prompts(language_model, self.prepared.questions, self.prepared.protocol)
