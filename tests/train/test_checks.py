"""What is refused before the first step, and what is said."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from holdfast.config import Config
from holdfast.data import Example
from holdfast.errors import ConfigError, ModelError
from holdfast.train.checks import Watch, doubts, refuse_misfits
from holdfast.train.model import LanguageModel
from holdfast.train.session import open_workspace

Recipe = Callable[..., Config]


def an_example(question: str, split: str = "train", index: int = 0) -> Example:
    return Example(source="mine", split=split, index=index, question=question, golden_answers=("x",))


# ---- misfits


def test_what_fits_is_let_pass(recipe: Recipe, language_model: LanguageModel) -> None:
    refuse_misfits(open_workspace(recipe()), language_model)


def test_a_prompt_longer_than_an_episode_is_refused(recipe: Recipe, language_model: LanguageModel) -> None:
    workspace = replace(open_workspace(recipe()), test=(an_example("why " * 300, "test", 7),))
    with pytest.raises(
        ConfigError, match=r"prompt of test question mine/test/7 takes \d{3,} tokens, which leaves no ro"
    ):
        refuse_misfits(workspace, language_model)


def test_a_prompt_must_leave_room_for_one_token(recipe: Recipe, language_model: LanguageModel) -> None:
    workspace = open_workspace(recipe())
    longest = max(len(workspace.prompt(e, language_model.tokenizer)) for e in (*workspace.train, *workspace.test))
    limits = {"protocol.max_turn_tokens": 4, "protocol.max_observation_tokens": 16}
    refuse_misfits(open_workspace(recipe(limits | {"protocol.max_total_tokens": longest + 1})), language_model)
    with pytest.raises(ConfigError, match="leaves no room"):
        refuse_misfits(open_workspace(recipe(limits | {"protocol.max_total_tokens": longest})), language_model)


def test_an_episode_longer_than_the_model_is_refused_at_the_start(
    recipe: Recipe, make_model: Callable[..., Any], tokenizer: PreTrainedTokenizerFast
) -> None:
    """Not at step 37, when an episode first grows that long."""
    for positions, fits in ((220, True), (219, False)):
        made = LanguageModel(
            model=make_model(max_position_embeddings=positions), tokenizer=tokenizer, autocast_dtype=None
        )
        if fits:
            refuse_misfits(open_workspace(recipe()), made)
        else:
            with pytest.raises(ConfigError, match=r"has 219 positions.*set protocol\.max_total_tokens to 219 or less"):
                refuse_misfits(open_workspace(recipe()), made)


def test_a_tokenizer_of_another_model_is_refused(
    recipe: Recipe, make_model: Callable[..., Any], tokenizer: PreTrainedTokenizerFast
) -> None:
    small = LanguageModel(model=make_model(vocab_size=60), tokenizer=tokenizer, autocast_dtype=None)
    with pytest.raises(ModelError, match=r"embeddings for 60 only: they do not belong together"):
        refuse_misfits(open_workspace(recipe()), small)


# ---- doubts


def test_a_plain_recipe_raises_no_doubt(recipe: Recipe) -> None:
    assert list(doubts(open_workspace(recipe()))) == []


@pytest.mark.parametrize("changes", [{"sampling.top_p": 0.95}, {"sampling.top_k": 50}])
def test_a_truncated_sampler_is_warned_of(recipe: Recipe, changes: Mapping[str, Any]) -> None:
    (told,) = doubts(open_workspace(recipe(changes)))
    assert "truncate the sampler" in told and "sampler/logprob_gap" in told


def test_questions_in_two_splits_are_told_of(recipe: Recipe) -> None:
    workspace = replace(
        open_workspace(recipe()),
        train=tuple(an_example(q) for q in ("Who is A?", "Who is B?", "Who is C?")),
        dev=tuple(an_example(q, "dev") for q in ("who is  A?", "Who is D?")),
        test=tuple(an_example(q, "test") for q in ("WHO IS A?", "Who is C? ", "Who is D?", "Who is E?")),
    )
    told = list(doubts(workspace))
    assert [sentence.partition(":")[0] for sentence in told] == [
        "1 of 2 dev questions are also train questions",
        "2 of 4 test questions are also train questions",
        "2 of 4 test questions are also dev questions",
    ]


# ---- while it runs


def after(config: Config, *steps: Mapping[str, float]) -> list[list[str]]:
    watch = Watch(config)
    return [list(watch(metrics)) for metrics in steps]


HEALTHY = {"rollout/mixed_groups": 0.5, "penalty/active_fraction": 0.1, "penalty/preserved_share": 0.6}


def test_a_healthy_run_is_left_alone(recipe: Recipe) -> None:
    assert after(recipe(), *[HEALTHY | {"grad/skipped": 0.0}] * 9) == [[]] * 9


def test_an_inert_penalty_is_told_of_once_after_three_steps(recipe: Recipe) -> None:
    inert = HEALTHY | {"penalty/active_fraction": 0.0}
    told = after(recipe(), *[inert] * 5)
    assert [len(t) for t in told] == [0, 0, 1, 0, 0]
    assert "penalty was inert in the first 3 steps" in told[2][0] and "train.lr" in told[2][0]
    assert after(recipe(), inert, HEALTHY, inert, inert) == [[]] * 4
    assert after(recipe({"loss.penalty.name": "none"}), *[inert] * 3) == [[]] * 3


def test_a_penalty_that_protects_nobody_is_told_of_as_such(recipe: Recipe) -> None:
    nobody = HEALTHY | {"penalty/active_fraction": 0.0, "penalty/preserved_share": 0.0}
    told = after(recipe({"loss.penalty.preserve": "correct"}), *[nobody] * 3)
    assert "no rollout was protected by loss.penalty.preserve = 'correct'" in told[2][0]


def test_groups_without_contrast_are_told_of(recipe: Recipe) -> None:
    flat = HEALTHY | {"rollout/mixed_groups": 0.0, "penalty/active_fraction": 0.0}
    (told,) = after(recipe(), *[flat] * 3)[2]
    assert "nothing was learned" in told and "[reward]" in told
    assert after(recipe({"loss.advantage": "reinforce"}), *[flat | HEALTHY] * 3)[2] == []


def test_skipped_steps_are_told_of_once(recipe: Recipe) -> None:
    skipped = HEALTHY | {"grad/skipped": 2.0, "optimizer_steps_per_rollout": 10.0}
    told = after(recipe(), HEALTHY, skipped, skipped)
    assert [len(t) for t in told] == [0, 1, 0]
    assert told[1][0].startswith("2 of 10 optimizer steps were skipped")


def test_a_step_in_which_everything_failed_is_no_evidence(recipe: Recipe) -> None:
    assert after(recipe(), *[{"rollout/failed_fraction": 1.0}] * 3) == [[]] * 3
