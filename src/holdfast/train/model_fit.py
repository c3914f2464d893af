"""Whether a recipe fits its model: weights, tokenizer, prompts, memory. It loads torch; `prepare` does not, and the
tiny model fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.agent.protocol import SearchProtocol, render_prompt
from holdfast.base.errors import ConfigError, ModelError
from holdfast.model.language_model import LanguageModel, has_adapters, load_skeleton, pick_device
from holdfast.model.sampler.hf import HFPolicy
from holdfast.model.support import end_ids, positions_of, refuse_unsupported
from holdfast.model.text.tokens import encode
from holdfast.recipe import Config
from holdfast.tasks.machine import set_up_torch
from holdfast.tasks.questions import Example
from holdfast.tasks.task_set import Questions, TaskSet
from holdfast.train.cost import cost_of
from holdfast.train.start_cache import start_folder

_PROMPTS = 16
"""Prompts checked per split, the longest first: rendering a hundred thousand would take a minute."""
_RENDERED = 1000
"""Questions per split whose tokens are counted, the longest in bytes first: a tokenizer makes a token or less of each
byte."""


@dataclass(frozen=True, slots=True)
class ModelFit:
    """What a dry run learns of a model without its weights."""

    tokenizer: Any
    needs: str | None
    """The memory, disk and time that a run on a CPU needs; None on a GPU."""


def fit_model(config: Config, tasks: TaskSet, questions: Questions, protocol: SearchProtocol) -> ModelFit | None:
    """Check the model in a folder, its tokenizer and the prompts. None for a model of the hub, which is not fetched.

    Raises `ModelError` for a model that rollouts cannot use, and as `validate_prompts`.
    """
    skeleton = load_skeleton(config.model)
    if skeleton is None:
        return None
    refuse_unsupported(skeleton.model)
    validate_prompts(skeleton, questions, protocol)
    needs = None
    if not has_adapters(config.model.path) and pick_device(config.run.device).type == "cpu":
        set_up_torch(config)  # the time is that of the run's threads
        made = start_folder(config, tasks).is_dir()
        needs = cost_of(skeleton.model, config, questions, lora_rank=config.model.lora_rank, made=made)
    return ModelFit(skeleton.tokenizer, needs)


def validate_model_and_prompts(language_model: LanguageModel, questions: Questions, protocol: SearchProtocol) -> None:
    """Raise `ModelError` for a model that rollouts cannot use, and as `validate_prompts`."""
    HFPolicy(language_model.model, language_model.tokenizer)  # checks the model
    validate_prompts(language_model, questions, protocol)
    protocol.check_template(language_model.tokenizer, end_ids(language_model.model, language_model.tokenizer))


def validate_prompts(language_model: LanguageModel, questions: Questions, protocol: SearchProtocol) -> None:
    """Raise `ConfigError` for a model, or a prompt, that leaves no room for a rollout; `ModelError` for the tokenizer
    of another model."""
    limit, positions = protocol.max_total_tokens, positions_of(language_model.model)
    if positions < limit:
        raise ConfigError(
            f"protocol.max_total_tokens = {limit}, but the model has {positions} positions (max_position_embeddings, "
            f"or its attention window); set protocol.max_total_tokens to {positions} or less"
        )
    vocabulary = language_model.model.get_input_embeddings().weight.shape[0]
    for split, examples in questions.splits.items():
        for example in _longest(examples, language_model.tokenizer):
            prompt = render_prompt(example.question, protocol, language_model.tokenizer)
            if len(prompt) >= limit:
                raise ConfigError(
                    f"the prompt of {split} question {example.id} takes {len(prompt)} tokens, which leaves no room in "
                    f"a rollout of protocol.max_total_tokens = {limit}; raise that, shorten protocol.prompt, or drop "
                    "the question"
                )
            if max(prompt) >= vocabulary:
                raise ModelError(
                    f"the tokenizer produces token id {max(prompt)}, but the model has only {vocabulary} embeddings, "
                    "so they do not fit. Give a folder with the model's own tokenizer"
                )


def _longest(examples: Sequence[Example], tokenizer: Any) -> list[Example]:
    """The questions with the most tokens. An emoji is one character and several tokens."""
    counted = sorted(examples, key=lambda e: -len(e.question.encode()))[:_RENDERED]
    return sorted(counted, key=lambda e: -len(encode(tokenizer, e.question)))[:_PROMPTS]
