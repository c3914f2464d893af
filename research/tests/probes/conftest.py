"""The coin, the rollouts and the run of the library's probes, and cases made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from tests.evaluate.probes.conftest import asked, coin, episode, heard, home, one_thread, own_cache, rolled, trained

from holdfast.evaluate.probes import Subject
from holdfast.model.language_model import LanguageModel
from holdfast.recipe import validate
from holdfast_research.probes.cases import Case, CaseRollout, Cases, CaseToken, CaseTurn

__all__ = ["asked", "coin", "episode", "heard", "home", "one_thread", "own_cache", "rolled", "trained"]


@pytest.fixture
def policy_of() -> Callable[..., Subject]:
    """policy_of(tokenizer, vocabulary=5, temperature=0.7, lr=…): an untied float64 model over so many tokens."""

    def make(tokenizer: Any, *, vocabulary: int, temperature: float, lr: float) -> Subject:
        torch.manual_seed(0)
        model = transformers.Qwen2ForCausalLM(
            transformers.Qwen2Config(
                hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, vocab_size=vocabulary, max_position_embeddings=64, initializer_range=0.4,
                tie_word_embeddings=False,
            )
        ).double().eval()  # fmt: skip
        agent: Any = None
        config = validate({"sampling": {"temperature": temperature}, "train": {"lr": lr}, "loss": {"kl_coef": 0.0}})
        policy = LanguageModel(model=model, tokenizer=tokenizer)
        return Subject(name="toy", config=config, questions=(), agent=agent, language_model=policy)

    return make


def side(correct: bool, tokens: int, logprob: float) -> CaseRollout:
    said = [
        CaseToken(text="a|b`" if k else "red ", before=logprob, after=logprob - 0.25, push=-1) for k in range(tokens)
    ]
    turn = CaseTurn(tokens=tuple(said), observation="```\na passage")
    return CaseRollout(correct=correct, answer="x" if correct else None, turns=(turn,))


def make_case(
    *, displacement: float = -1.0, shared: int = 0, f1: float = 0.0, right: tuple[int, float] = (10, -1.0),
    wrong: tuple[int, float] = (10, -1.0),
) -> Case:  # fmt: skip
    return Case(
        id="s/train/0", question="Who <b>?", golden_answers=("x", "z"), correct_rollouts=2, incorrect_rollouts=3,
        displacement=displacement, push=-0.5, predicted=0.25, shared_tokens=shared, answer_f1=f1,
        correct=side(True, *right), incorrect=side(False, *wrong),
    )  # fmt: skip


@pytest.fixture
def case() -> Callable[..., Case]:
    """case(displacement=0.5, shared=9): a question with its pair; right and wrong are (tokens, log-prob)."""
    return make_case


@pytest.fixture
def found() -> Cases:
    """Three cases, of which two are shown."""
    return Cases(
        asked=9,
        every=(
            make_case(shared=5, wrong=(60, -2.0)),
            make_case(displacement=-0.5, shared=9),
            make_case(displacement=0.5),
        ),
        top=2,
    )
