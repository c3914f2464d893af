"""A policy whose every number is known, a run of seconds some of whose rollouts are right, and cases made by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from tests.conftest import learn_tokenizer, random_model, shared_folder
from tests.listening import Told
from tests.rollouts import rollout, turn
from tests.told import by_number, says
from tests.train.conftest import home, lesson, make_model, one_thread, own, own_cache, recipe, tokenizer, write_rows
from torch import Tensor

from holdfast.agent.trajectory import Answer, Group, Search, Trajectory
from holdfast.model.language_model import LanguageModel
from holdfast.model.passes.logprobs import TokenLogprobs
from holdfast.recipe import Config, dump, load, validate
from holdfast.tasks.questions import Example
from holdfast.train.run import train
from holdfast_research.probes import Rollouts, Subject
from holdfast_research.probes.cases import Case, CaseRollout, Cases, CaseToken, CaseTurn

__all__ = ["home", "learn_tokenizer", "lesson", "make_model", "one_thread", "own", "own_cache"]
__all__ += ["random_model", "recipe", "shared_folder", "tokenizer", "write_rows"]


@pytest.fixture
def heard() -> Told:
    return Told()


class Coin(torch.nn.Module):
    """Says token 0 or 1 with the same probabilities whatever came before: two weights are the whole policy."""

    def __init__(self, heads: float) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(torch.tensor([heads, 1 - heads]).log())

    def logprobs(self, token_ids: Tensor, loss_mask: Tensor, *, entropy: bool = False, **_: Any) -> TokenLogprobs:
        every = self.logits.log_softmax(0)
        spread = torch.where(loss_mask, -(every.exp() * every).sum(), 0.0) if entropy else None
        return TokenLogprobs(torch.where(loss_mask, every[token_ids], 0.0), spread, None)


@pytest.fixture
def coin() -> Callable[..., Subject]:
    """coin(heads=0.5, {"train.lr": 0.2}): a subject, lr 0.1, K = 1, plain GRPO, no weight decay."""

    def make(heads: float = 0.5, changes: Mapping[str, Any] | None = None) -> Subject:
        data: dict[str, Any] = {
            "train": {"lr": 0.1, "weight_decay": 0.0, "optimizer_steps_per_rollout": 1},
            "loss": {"kl_coef": 0.0, "penalty": {"name": "none"}},
        }
        for name, value in (changes or {}).items():
            *sections, key = name.split(".")
            place = data
            for section in sections:
                place = place.setdefault(section, {})
            place[key] = value
        model = Coin(heads)
        language_model: Any = SimpleNamespace(
            model=model,
            logprobs=model.logprobs,
            pad_token_id=0,
            device=torch.device("cpu"),
            gradient_checkpointing=False,
        )
        agent: Any = None
        return Subject(name="coin", config=validate(data), questions=(), agent=agent, language_model=language_model)

    return make


@pytest.fixture
def episode() -> Callable[..., Trajectory]:
    """episode(True, [0, 1], [1]): a right one of two turns; all but the last search, for the documents in `hits`."""

    def make(
        correct: bool, *turns: Sequence[int], hits: str = "d", reward: float | None = None, failed: bool = False
    ) -> Trajectory:
        *searches, answer = turns
        said = [turn(Search("q"), tokens, observation=(1, 1), hits=tuple(hits)) for tokens in searches]
        more = {} if reward is None else {"reward": reward}
        return rollout(*said, turn(Answer("x"), answer), right=correct, failed=failed, prompt=(0, 1), **more)

    return make


@pytest.fixture
def rolled() -> Callable[..., Rollouts]:
    """rolled([episode, …], […]): the rollouts of one question after another."""

    def make(*groups: Sequence[Trajectory]) -> Rollouts:
        examples = [
            Example(source="s", split="train", index=i, question=f"Question {i}?", golden_answers=("x",))
            for i in range(len(groups))
        ]
        return Rollouts(
            examples=tuple(examples),
            groups=tuple(Group(e.id, tuple(group)) for e, group in zip(examples, groups, strict=True)),
        )

    return make


@pytest.fixture
def asked(episode: Callable[..., Trajectory], rolled: Callable[..., Rollouts]) -> Rollouts:
    """Two questions to learn from, and three that teach nothing: all right, all wrong, rewards but nothing right."""
    return rolled(
        [episode(True, [0]), episode(False, [1])],
        [episode(True, [0, 1]), episode(False, [0, 0, 0])],
        [episode(True, [0]), episode(True, [1])],
        [episode(False, [0]), episode(False, [1])],
        [episode(False, [0], reward=0.5), episode(False, [1])],
    )


# ---- a real run


@pytest.fixture(scope="session")
def recipe_file(home: Path, own: Callable[..., Config], lesson: dict[str, Any]) -> Path:
    """A recipe for the model in `raw` of `home`, which some episodes teach to answer `town` or `lake`."""
    changes = {"data.test": None, "train.questions": 6, "loss.kl_coef": 0.01, "reward": {}, "eval": {"every": 0}}
    (home / "recipe.toml").write_text(dump(own("raw", lesson | changes)))
    return home / "recipe.toml"


SAID = (
    ("<search> place </search>", "<answer> town </answer>"),
    ("<answer> lake </answer>",),
    ("<search> lake </search>", "<search> place </search>", "<answer> lake </answer>"),
    ("<answer> town </answer>",),
)
"""What the rollouts of a question say: half of them are right, and half search."""


@pytest.fixture(scope="session")
def finished_run(recipe_file: Path) -> Path:
    """The folder of a run whose rollouts said that, with checkpoints of steps 1 and 2. Write nothing into it."""
    run = recipe_file.parent / "runs" / "tiny"
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.model.sampler.hf.HFPolicy", says(by_number(SAID)))
        train(load(recipe_file), run)
    return run


@pytest.fixture
def trained(finished_run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, for a test whose own rollouts say it too."""
    monkeypatch.setattr("holdfast.model.sampler.hf.HFPolicy", says(by_number(SAID)))
    return finished_run


# ---- what the study's figures need


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
