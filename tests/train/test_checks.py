"""What is refused before the first step, and what is said."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from holdfast.agent.protocol import render_prompt
from holdfast.base.errors import ConfigError, ModelError
from holdfast.data.questions import Example
from holdfast.model.language_model import LanguageModel
from holdfast.recipe import Config
from holdfast.train.checks import config_warnings, cut_passages, overlap_warnings, validate_model_and_prompts
from holdfast.train.loading import Questions, load_protocol, load_questions

Recipe = Callable[..., Config]


def an_example(question: str, split: str = "train", index: int = 0) -> Example:
    return Example(source="mine", split=split, index=index, question=question, golden_answers=("x",))


def validate(config: Config, language_model: LanguageModel, **questions: tuple[Example, ...]) -> None:
    asked = replace(load_questions(config), **questions)
    validate_model_and_prompts(language_model, asked, load_protocol(config), config.model.chat_template)


# ---- models and prompts


def test_what_fits_is_let_pass(recipe: Recipe, language_model: LanguageModel) -> None:
    validate(recipe(), language_model)


def test_a_prompt_longer_than_an_episode_is_refused(recipe: Recipe, language_model: LanguageModel) -> None:
    with pytest.raises(
        ConfigError, match=r"prompt of test question mine/test/7 takes \d{3,} tokens, which leaves no ro"
    ):
        validate(recipe(), language_model, test=(an_example("why " * 300, "test", 7),))


def test_a_question_of_few_characters_and_many_tokens_is_refused(recipe: Recipe, language_model: LanguageModel) -> None:
    plain = tuple(an_example("What is the lake of Mora? " * 4, index=i) for i in range(50))
    emojis = an_example("\N{FAMILY}" * 70, index=50)
    assert len(emojis.question) < len(plain[0].question)
    validate(recipe(), language_model, train=plain)
    with pytest.raises(ConfigError, match=r"prompt of train question mine/train/50 takes \d{3,} tokens"):
        validate(recipe(), language_model, train=(*plain, emojis))


def test_a_prompt_must_leave_room_for_one_token(recipe: Recipe, language_model: LanguageModel) -> None:
    questions, protocol = load_questions(recipe()), load_protocol(recipe())
    longest = max(
        len(render_prompt(e.question, protocol, language_model.tokenizer)) for e in (*questions.train, *questions.test)
    )
    limits = {"protocol.max_turn_tokens": 4, "protocol.max_observation_tokens": 16}
    validate(recipe(limits | {"protocol.max_total_tokens": longest + 1}), language_model)
    with pytest.raises(ConfigError, match="leaves no room"):
        validate(recipe(limits | {"protocol.max_total_tokens": longest}), language_model)


def test_an_episode_longer_than_the_model_is_refused_at_the_start(
    recipe: Recipe, make_model: Callable[..., Any], tokenizer: PreTrainedTokenizerFast
) -> None:
    """Not at step 37, when an episode first grows that long."""
    for positions, fits in ((220, True), (219, False)):
        made = LanguageModel(
            model=make_model(max_position_embeddings=positions), tokenizer=tokenizer, autocast_dtype=None
        )
        if fits:
            validate(recipe(), made)
        else:
            with pytest.raises(ConfigError, match=r"has 219 positions.*set protocol\.max_total_tokens to 219 or less"):
                validate(recipe(), made)


def test_a_tokenizer_of_another_model_is_refused(
    recipe: Recipe, make_model: Callable[..., Any], tokenizer: PreTrainedTokenizerFast
) -> None:
    small = LanguageModel(model=make_model(vocab_size=60), tokenizer=tokenizer, autocast_dtype=None)
    with pytest.raises(ModelError, match=r"only 60 embeddings, so they do not fit"):
        validate(recipe(), small)


# ---- warnings


def test_a_plain_recipe_raises_no_doubt(recipe: Recipe) -> None:
    assert list(config_warnings(recipe())) == []


@pytest.mark.parametrize("changes", [{"sampling.top_p": 0.95}, {"sampling.top_k": 50}])
def test_a_truncated_sampler_is_warned_of(recipe: Recipe, changes: Mapping[str, Any]) -> None:
    (told,) = config_warnings(recipe(changes))
    assert "truncate the sampler" in told and "score_centering" in told


def test_a_mask_that_is_kept_raises_no_doubt(recipe: Recipe) -> None:
    changes = {"sampling.top_p": 0.95, "sampling.top_k": 50, "sampling.mask_logprobs": True}
    assert list(config_warnings(recipe(changes))) == []


def test_a_penalty_without_strength_is_told_of(recipe: Recipe) -> None:
    (told,) = config_warnings(recipe({"loss.penalty.name": "llds", "loss.penalty.coef": 0.0}))
    assert told.startswith("loss.penalty.coef = 0 with") and "not added to the loss" in told


def test_searches_that_fail_on_purpose_are_told_of(recipe: Recipe) -> None:
    (told,) = config_warnings(recipe({"faults.search_failure_rate": 0.25}))
    assert told.startswith("faults.search_failure_rate = 0.25: ") and "Set it to 0" in told


def test_questions_in_two_splits_are_told_of(recipe: Recipe) -> None:
    questions = Questions(
        train=tuple(an_example(q) for q in ("Who is A?", "Who is B?", "Who is C?")),
        dev=tuple(an_example(q, "dev") for q in ("who is  A?", "Who is D?")),
        test=tuple(an_example(q, "test") for q in ("WHO IS A?", "Who is C? ", "Who is D?", "Who is E?")),
    )
    told = list(overlap_warnings(questions))
    assert [sentence.partition(":")[0] for sentence in told] == [
        "1 of 2 dev questions are also train questions",
        "2 of 4 test questions are also train questions",
        "2 of 4 test questions are also dev questions",
    ]


# ---- passages


def test_passages_that_an_observation_cannot_show_are_counted(recipe: Recipe, own: Recipe) -> None:
    long = cut_passages(own("raw", {"protocol.max_observation_tokens": 30, "protocol.topk": 1}))
    assert long is not None and re.match(r"[1-9]\d* of \d+ passages do not fit into an observation of ", long)
    assert cut_passages(own("raw", {"protocol.max_observation_tokens": 400, "protocol.max_total_tokens": 500})) is None
    assert cut_passages(recipe()) is None
