"""A recipe that fits documents, questions and a model: what `holdfast init` writes.

Everything is measured: how many passages a search must return, how long they are for this tokenizer, how long the turns
of the demonstrations are, and whether the model's chat template has tools.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from holdfast.agent.protocol import CLEAN, SearchProtocol, render_prompt
from holdfast.agent.searching import search_patiently
from holdfast.agent.tools import NATIVE
from holdfast.base.errors import ConfigError
from holdfast.base.scoring import HANGUL, UNSPACED
from holdfast.model.support import positions_of
from holdfast.recipe.loading import on_one_line
from holdfast.retrieval.types import Document, Hit, Retriever
from holdfast.tasks.demonstrate import Demonstrations, answer_in, demonstrate
from holdfast.tasks.questions import Example

TOPKS = (1, 2, 3, 5)
"""Numbers of passages that are tried."""
_NEARLY = 0.9
"""The smallest is taken that finds this share of what the largest finds."""
_TOPK = 3
"""Where no question tells."""
_SAMPLE = 1000
"""Passages and questions that are measured."""
_SEARCHES = 2
_ROOM, _STEP = 1.5, 20
"""A turn may be longer than those of the demonstrations; limits are multiples of 20."""
_SMALL = 3e8
"""Parameters below which all weights are trained, as in the recipe factbook, and a short prompt is enough."""
_ALONE = "{question}"
_SCRIPT = re.compile(f"[{UNSPACED}{HANGUL}]")
ANY_SCRIPT: Mapping[str, Any] = {"em": 0.0, "custom": {"holdfast.agent.rewards:unicode_em": 1.0}}
"""The reward of questions with answers in Chinese, Japanese, Korean, Thai and the like."""

SMALL_MODEL: Mapping[str, Mapping[str, Any]] = {
    "warm_start": {"batch_size": 8, "lr": 3e-4},
    "train": {
        "steps": 24,
        "questions": 8,
        "group_size": 6,
        "optimizer_steps_per_rollout": 4,
        "minibatches": "in-order",
        "lr": 2e-5,
        "micro_batch_tokens": 1000,
        "displacement_every": 5,
        "displacement_rows": 12,
    },
    "checkpoint": {"every": 12, "keep": 1},
}
"""The settings of the recipe factbook, of a model of 135 million parameters."""
LARGE_MODEL: Mapping[str, Mapping[str, Any]] = {
    "model": {"lora_rank": 16, "gradient_checkpointing": True},
    "warm_start": {"batch_size": 8, "lr": 1e-4},
    "train": {
        "steps": 60,
        "questions": 16,
        "group_size": 5,
        "optimizer_steps_per_rollout": 4,
        "lr": 1e-5,
        "micro_batch_tokens": 2048,
        "displacement_every": 5,
    },
}
"""The settings of docs/guide/quickstart.md#use-your-own-model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What was measured, and the settings that follow from it."""

    settings: Mapping[str, Mapping[str, Any]]
    """Section -> key -> value, of what is not a path."""
    found: Mapping[int, int]
    """topk -> the number of training questions of which a search shows an answer; empty without questions."""
    asked: int
    """Training questions that were searched for."""
    made: Demonstrations | None
    """None without questions."""


def fitted(
    language_model: Any, documents: Sequence[Document], retriever: Retriever, questions: Sequence[Example]
) -> Fitted:
    """Settings for a model (its skeleton is enough), passages, and training questions, if there are any.

    Raises `ConfigError` for a model that has no room for two searches.
    """
    tokenizer, positions = language_model.tokenizer, positions_of(language_model.model)
    is_small = sum(weights.numel() for weights in language_model.model.parameters()) < _SMALL
    preset = NATIVE if _has_tools(tokenizer) else CLEAN
    prompt = _ALONE if is_small else preset.prompt
    ranks = answer_ranks(questions[:_SAMPLE], retriever)
    found = {k: sum(rank <= k for rank in ranks) for k in TOPKS if ranks}
    wanted = next((k for k in found if found[k] and found[k] >= _NEARLY * max(found.values())), _TOPK)
    for topk in range(wanted, 0, -1):
        protocol = _with(preset, prompt, topk, positions)
        observation = _rounded(_longest_usual(protocol, documents, tokenizer))
        protocol = _with(preset, prompt, topk, observation)
        made = demonstrate(questions, retriever, protocol, most=2000) if questions else None
        texts = [text for _, turns in (made.rows if made else ()) for text, _ in turns]
        turn = _rounded(_ROOM * max((len(protocol.encode_turn(text, tokenizer)) for text in texts), default=66))
        sample = [example.question for example in questions[:_SAMPLE]] or ["?" * 100]
        prompt_tokens = max(len(render_prompt(question, protocol, tokenizer)) for question in sample)
        total = _rounded(prompt_tokens + (_SEARCHES + 1) * turn + _SEARCHES * observation)
        if total <= positions:
            break
    else:
        raise ConfigError(
            f"the model has {positions} positions, but a prompt, two searches that return one of these passages, and "
            f"an answer take {total}; name a model with more, or cut the passages shorter"
        )
    settings: dict[str, dict[str, Any]] = {name: dict(keys) for name, keys in _training(is_small, made).items()}
    if prompt == _ALONE:
        settings["protocol"]["prompt"] = prompt
    settings["protocol"] |= {
        "preset": preset.name,
        "topk": topk,
        "max_turns": _SEARCHES + 1,
        "max_turn_tokens": turn,
        "max_observation_tokens": observation,
        "max_total_tokens": total,
    }
    if 2 * sum(map(_in_another_script, questions)) > len(questions):
        settings["reward"] |= ANY_SCRIPT
    settings["train"]["questions"] = max(1, min(settings["train"]["questions"], len(questions) or 1000))
    return Fitted(settings=settings, found=found, asked=len(ranks), made=made)


def answer_ranks(questions: Sequence[Example], retriever: Retriever) -> list[float]:
    """For each question, the place of the first passage with an answer among those that a search for the question
    finds, from 1; infinite if none of the first five has one."""

    def rank(example: Example) -> float:
        hits = search_patiently(retriever, example.question, max(TOPKS))
        answers = example.golden_answers
        places = (n for n, hit in enumerate(hits, start=1) if answer_in([hit.document.contents], answers) is not None)
        return next(places, inf)

    return list(map(rank, questions))


def _in_another_script(example: Example) -> bool:
    """Whether an answer has a script of its own, whose punctuation Search-R1's rule would count."""
    return any(_SCRIPT.search(answer) for answer in example.golden_answers)


def as_toml(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """A recipe. Reads back equal."""
    sections = (
        "\n".join([f"[{name}]", *(f"{key} = {on_one_line(value)}" for key, value in keys.items())])
        for name, keys in settings.items()
        if keys
    )
    return "\n\n".join(sections) + "\n"


def _training(is_small: bool, made: Demonstrations | None) -> dict[str, dict[str, Any]]:
    """The sections that do not depend on lengths."""
    settings = {
        "model": {},
        "protocol": {},
        **{name: dict(keys) for name, keys in (SMALL_MODEL if is_small else LARGE_MODEL).items()},
    }
    count = len(made.rows) if made else 0
    settings["warm_start"] = {"steps": max(40, min(200, count // 8)), **settings["warm_start"]} if count else {}
    settings["reward"] = {"thrift": 0.2}
    settings["loss"] = {"advantage": "dr_grpo", "kl_coef": 0.0}
    settings["eval"] = {"every": 0, "start": True}
    return settings


def _with(preset: SearchProtocol, prompt: str, topk: int, observation: float) -> SearchProtocol:
    return replace(
        preset, prompt=prompt, topk=topk, max_turns=_SEARCHES + 1, max_observation_tokens=max(16, int(observation))
    )


def _has_tools(tokenizer: Any) -> bool:
    """Whether the model's chat template writes tool calls that we read."""
    if not tokenizer.chat_template:
        return False
    try:
        NATIVE.check_template(tokenizer)
    except ConfigError:
        return False
    return True


def _longest_usual(protocol: SearchProtocol, documents: Sequence[Document], tokenizer: Any) -> int:
    """Tokens of an observation into which 19 of 20 passages fit `topk` times."""
    sample = documents[:: -(-len(documents) // _SAMPLE)]
    sizes = sorted(
        len(protocol.observe([Hit(document, 0.0)] * protocol.topk, tokenizer).token_ids) for document in sample
    )
    return sizes[int(0.95 * (len(sizes) - 1))]


def _rounded(size: float) -> int:
    return int(-(-size // _STEP) * _STEP)
