"""What `with_penalties` cannot honour is refused in a sentence that names the setting to change; what would make it do
nothing is told: a loss that is replaced, a threshold that separates nothing."""

from __future__ import annotations

import copy
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("trl")

import trl
from torch import Tensor
from transformers import Trainer

from holdfast.adapters.trl import LLDS, NLL, SAPO, mask, notices, penalty_mixin, trainer, unsloth, with_penalties
from holdfast.adapters.trl.notices import RewardWatch
from holdfast.adapters.trl.penalty_mixin import PenaltyMixin
from holdfast.adapters.trl_environment import search_environment
from holdfast.adapters.trl_search import SearchRollouts, question_dataset, reward_functions
from holdfast.agent.protocol import CLEAN
from holdfast.agent.tools import NATIVE
from holdfast.base.errors import ConfigError, DataError, ModelError
from holdfast.methods.penalties import Penalty
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.types import Document

from .conftest import CHECKPOINTING, every_other


def test_the_penalty_is_at_work_only_from_the_second_step_on(make_trainer: Any) -> None:
    trainer = make_trainer(with_penalties(trl.GRPOTrainer, LLDS()))
    trainer.train()
    name = "holdfast/penalty/active_fraction"
    active = [row[name] for row in trainer.state.log_history if name in row]
    assert active[0] == active[2] == 0 and active[1] > 0 and active[3] > 0


@pytest.mark.parametrize(
    ("vllm", "weighted", "support", "warned"),
    [(False, True, "1", True), (True, True, None, False), (True, False, None, True), (True, False, "1", False)],
)
def test_a_truncated_sampler_in_unsloth(
    vllm: bool, weighted: bool, support: str | None, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With vLLM Unsloth takes log-probs over what it can draw, or says why not."""
    monkeypatch.delenv(unsloth._SUPPORT, raising=False)
    if support:
        monkeypatch.setenv(unsloth._SUPPORT, support)
    weights = {"vllm_importance_sampling_correction": weighted, CHECKPOINTING: False}
    args = trl.GRPOConfig(use_cpu=True, bf16=False, top_p=0.9, **weights)
    args.use_vllm = vllm
    told = unsloth._UnslothMixin._truncation(SimpleNamespace(args=args))
    assert (told is not None) is warned and "mask_logprobs" not in (told or "")


@pytest.mark.parametrize(("installed", "vllm", "twice"), [
    ("1.17.0", True, True),
    ("1.17.0", False, False),
    ("1.16.2", True, False),
])  # fmt: skip
@pytest.mark.parametrize("masked", [True, False])
def test_a_trl_that_corrects_for_truncation_itself(
    installed: str, vllm: bool, twice: bool, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mask would do it again, so it is advised with TRL's correction off, and with it on it is told."""
    monkeypatch.setattr(mask, "version", lambda _: installed)
    args = trl.GRPOConfig(use_cpu=True, bf16=False, top_p=0.9, **{CHECKPOINTING: False})
    args.use_vllm = vllm
    settings = SimpleNamespace(mask_logprobs=masked)
    told = PenaltyMixin._truncation(SimpleNamespace(args=args, holdfast_settings=settings))
    assert (told is None) is (masked and not twice)
    assert ("vllm_importance_sampling_correction=False" in (told or "")) is twice


@pytest.mark.parametrize("penalty", [LLDS(), SAPO()])
def test_the_default_schedule_makes_a_penalty_inert(tmp_path: Path, penalty: Any) -> None:
    """TRL's default: one optimizer step per rollout batch. It is refused before a model is loaded, which can take
    minutes."""
    args = trl.GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, gradient_accumulation_steps=2)
    says = "steps_per_generation=2, gradient_accumulation_steps=2 and num_iterations=1 .*num_iterations=2 keeps this"
    with pytest.raises(ConfigError, match=says):
        with_penalties(trl.GRPOTrainer, penalty)(model="no/such-model", reward_funcs=[], args=args)


def test_an_answer_weight_without_answers_is_refused_at_the_first_rollout_batch(make_trainer: Any) -> None:
    """TRL's own loop does not say which tokens are the answer. A subclass may."""
    trainer = make_trainer(with_penalties(GRPO, LLDS(answer_weight=0.5)), rollout_func=None, reward_funcs=every_other)
    with pytest.raises(ConfigError, match=r"LLDS\(.*answer_weight=0.5.* rollouts have no `answer_mask`. Use SearchR"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_an_unknown_loss_type(make_trainer: Any) -> None:
    with pytest.raises(ConfigError, match=r"loss_type='brand_new': .* its denominator.* Use one of grpo, "):
        make_trainer(with_penalties(trl.GRPOTrainer, LLDS()), loss_type="brand_new")


class Own(Penalty):
    coef: float = 0.2

    def per_token(self, logprobs: Tensor, *_: Any, preserved: Tensor, **__: Any) -> Tensor:
        return logprobs.sum()


GRPO, KIND = trl.GRPOTrainer, "needs TRL's GRPOTrainer, its AsyncGRPOTrainer, or a subclass"


@pytest.mark.parametrize(("trainer_class", "penalty", "settings", "says"), [
    (Trainer, LLDS(), {}, KIND),
    ("GRPOTrainer", LLDS(), {}, KIND),
    (LLDS(), GRPO, {}, "the first argument is the class of a trainer"),
    (object.__new__(GRPO), LLDS(), {}, "the first argument is the class of a trainer"),
    (with_penalties(GRPO, LLDS()), NLL(), {}, r"GRPOTrainerWithLLDS, \.\.\.\): this class has been through"),
    (GRPO, LLDS, {}, r"LLDS\(coef=0.2\)"),
    (GRPO, {"coef": 0.2}, {}, r"LLDS\(coef=0.2\)"),
    (GRPO, Own(), {}, r"Own\.per_token must return a float32 tensor \[B, T\], here \[2, 6\]"),
    (GRPO, None, {"displacement_every": -1}, "displacement_every="),
    (GRPO, None, {"nthr": True, "mask_logprobs": True}, "nthr=True with mask_logprobs=True: .* Leave one out"),
])  # fmt: skip
def test_what_with_penalties_refuses(trainer_class: Any, penalty: Any, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        with_penalties(trainer_class, penalty, **settings)


def test_an_older_trl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "version", lambda name: "1.14.0")
    with pytest.raises(ConfigError, match=r"trl 1.14.0 is installed, but .* pip install 'holdfast-rl\[trl\]'"):
        with_penalties(trl.GRPOTrainer, LLDS())


@pytest.mark.parametrize("installed", ["1.16.3", "1.17.0", "2.0.0"])
def test_a_newer_trl_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, installed: str) -> None:
    monkeypatch.setattr(trainer, "version", lambda name: installed)
    with_penalties(trl.GRPOTrainer, LLDS())
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == (installed != "1.16.3")
    assert all(f"trl {installed} is newer than 1.16, the newest" in text for text in told)


def em(number: list[int], **_: Any) -> list[float]:
    return [0.0 for _ in number]


def tens(number: list[int], **_: Any) -> list[float]:
    return [10.0 if n % 2 else 4.0 for n in number]


@pytest.mark.parametrize(
    ("functions", "above", "kinds"),
    [([tens], 0.5, {"correct"}), ([tens], 5.0, {"correct", "incorrect"}), ([em, tens], 0.5, {"incorrect"})],
)
def test_correct_is_what_exceeds_the_threshold(
    make_trainer: Any, functions: list[Any], above: float, kinds: set[str]
) -> None:
    """Where exact match is a reward, it decides."""
    trainer = make_trainer(with_penalties(trl.GRPOTrainer, correct_above=above), reward_funcs=functions, max_steps=2)
    trainer.train()
    names = {name for row in trainer.state.log_history for name in row}
    assert {kind for kind in ("correct", "incorrect") if f"holdfast/likelihood/{kind}" in names} == kinds


def test_nthr_needs_an_output_layer_that_learns(make_trainer: Any) -> None:
    trainer_class = with_penalties(trl.GRPOTrainer, LLDS(), nthr=True)
    assert trainer_class.__name__ == "GRPOTrainerWithLLDSAndNTHR"
    frozen = copy.deepcopy(make_trainer(trl.GRPOTrainer).model)
    frozen.get_output_embeddings().weight.requires_grad_(False)
    with pytest.raises(ModelError, match=r"with_penalties\(nthr=True\): the output layer of this model is frozen"):
        make_trainer(trainer_class, model=frozen)


# ---- what would make it do nothing is told


class Replacing(trl.GRPOTrainer):
    """A loss of its own, as Unsloth's `compute_loss` has: TRL's `_compute_loss` is never called."""

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        return next(model.parameters()).sum()


@pytest.mark.parametrize(("penalty", "lost"), [(LLDS(), "LLDS(.*) is not added to the loss"), (None, "nothing is obs")])
def test_a_trainer_that_replaces_the_loss_is_stopped(make_trainer: Any, penalty: Any, lost: str) -> None:
    trainer = make_trainer(with_penalties(Replacing, penalty))
    with pytest.raises(ConfigError, match=rf"with_penalties: {lost}.*compute_loss` is now `.*Replacing") as caught:
        trainer.train()
    assert f"of the class {Replacing.__module__}.Replacing" in str(caught.value)
    assert trainer.state.global_step == 0, "before the first optimizer step"


def with_dropout(tiny_model: Any) -> Any:
    model = copy.deepcopy(tiny_model)
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    return model


@pytest.mark.parametrize(
    ("lora", "functional", "disable", "penalty", "places", "remedy"),
    [
        (0.05, False, False, LLDS(), 4, "and LLDS acts on that noise. Set LoraConfig(lora_dropout=0)"),
        (0.05, False, False, None, 4, "before any update. Set LoraConfig(lora_dropout=0)"),
        (0.05, False, True, LLDS(), 0, ""),
        (0.0, True, True, SAPO(), 2, "noise. Set model_init_kwargs={'attention_dropout': 0.0}"),
        (0.05, True, False, NLL(), 6, "update. Set LoraConfig(lora_dropout=0) and model_init_kwargs={"),
        (0.0, False, False, LLDS(), 0, ""),
    ],
)
def test_dropout_is_told(
    make_trainer: Any,
    tiny_model: Any,
    caplog: pytest.LogCaptureFixture,
    lora: float,
    functional: bool,
    disable: bool,
    penalty: Any,
    places: int,
    remedy: str,
) -> None:
    """0.05 is the default of LoRA in TRL's own scripts."""
    from peft import LoraConfig

    adapter = LoraConfig(target_modules=["q_proj", "v_proj"], lora_dropout=lora, task_type="CAUSAL_LM")
    model = with_dropout(tiny_model) if functional else tiny_model
    make_trainer(with_penalties(GRPO, penalty), model=model, peft_config=adapter, disable_dropout=disable)
    told = [text for record in caplog.records if "dropout" in (text := record.getMessage())]
    assert len(told) == bool(places)
    assert all(f"({places} places in all)" in text and remedy in text for text in told)


@pytest.mark.parametrize("vllm", [False, True])
def test_dropout_is_told_only_if_old_log_probs_have_a_pass_of_their_own(
    make_trainer: Any, tiny_model: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, vllm: bool
) -> None:
    """With one optimizer step per rollout batch TRL makes that pass only to weight vLLM's rollouts."""
    monkeypatch.setattr(penalty_mixin, "weights_vllm", lambda args: vllm)
    once = {"steps_per_generation": 2, "max_steps": 1}
    trainer = make_trainer(with_penalties(GRPO, NLL()), model=with_dropout(tiny_model), **once)
    assert len([record for record in caplog.records if "dropout" in record.getMessage()]) == vllm
    trainer.train()
    assert trainer.state.log_history[0]["holdfast/ratio/mean"] == 1.0


def test_dropout_makes_a_penalty_act_before_an_update(make_trainer: Any, tiny_model: Any) -> None:
    """Which is why it is told: without it the first step has a penalty of exactly 0."""
    trainer = make_trainer(with_penalties(GRPO, LLDS(gate="token")), model=with_dropout(tiny_model), max_steps=1)
    trainer.train()
    assert trainer.state.log_history[0]["holdfast/penalty/active_fraction"] > 0


@pytest.mark.parametrize(("batches", "beginning"), [
    ([[-1.0, -0.5, 0.0, -0.2]] * 12,
     "none of the first 20 rollouts (rewards from -1 to 0) counts as correct: correct is"),
    ([[4.0, 10.0, 7.0, 3.0]] * 12,
     "100% of the first 20 rollouts (rewards from 3 to 10) count as correct: correct is"),
    ([[0.0, 0.1, float("nan"), 0.3]] * 12,
     "none of the first 20 rollouts (rewards from 0 to 0.3) counts as correct"),
    ([[0.0, 1.0, 0.0, 0.0]] * 9, None),
    ([[1.0, 1.0, 1.0, 1.0]] * 4 + [[1.0, 1.0, 1.0, 0.0]] * 5, None),  # a policy that is nearly always right
    ([[0.0] * 4] * 9, None),  # nothing is right, and nothing else happens: GRP001's business
    ([[0.0, 10.0, 0.0, 0.0]] * 9, None),  # ten times larger, and still told apart
    ([[-1.0, -0.5, 0.0, -0.2]] * 4 + [[0.0, 1.0, 0.0, 0.0]], None),
])  # fmt: skip
def test_a_threshold_that_tells_nothing_apart_is_said_once(batches: list[list[float]], beginning: str | None) -> None:
    watch = RewardWatch(0.5)
    found = [watch.warning(torch.tensor(batch), torch.tensor(batch) > 0.5, by_em=False) for batch in batches]
    doubts = [doubt for doubt in found if doubt is not None]
    assert len(doubts) == (beginning is not None)
    for doubt in doubts:
        assert doubt.startswith(str(beginning)) and "pass with_penalties(..., correct_above=X)" in doubt


def test_a_real_run_with_negative_rewards_is_told(
    make_trainer: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_BATCHES", 2)

    def distance(number: list[int], **_: Any) -> list[float]:
        return [-1.0 + 0.1 * n for n in number]

    with caplog.at_level(logging.WARNING, logger="holdfast"):
        make_trainer(with_penalties(trl.GRPOTrainer), reward_funcs=distance, max_steps=6).train()
    (record,) = [r for r in caplog.records if "correct_above" in r.getMessage()]
    assert record.getMessage().startswith("holdfast: none of the first 16 rollouts (rewards from -1 to -0.3) counts")


def test_a_loss_that_shows_no_log_probs_is_refused(make_trainer: Any) -> None:
    """As of a kernel that goes from the hidden states to the loss."""

    class Kernel(trl.GRPOTrainer):
        def _compute_loss(self, model: Any, inputs: Any) -> Tensor:
            loss: Tensor = next(model.parameters()).sum()
            return loss

    with pytest.raises(ConfigError, match="without passing on the log-probs"):
        make_trainer(with_penalties(Kernel, LLDS())).train()


TOOLS = replace(NATIVE, tools=("search",))
RETRIEVER = BM25Retriever.build([Document("d", "Mora\nA lake.")])


@pytest.mark.parametrize(("made", "says"), [
    (lambda: SearchRollouts("http://127.0.0.1:8000"), "has no search and no in_process.* pass HTTPRetriever"),
    (lambda: SearchRollouts(None), "retriever = None has no search"),
    (lambda: SearchRollouts(RETRIEVER, "clean"), "protocol = 'clean': pass a SearchProtocol, such as CLEAN"),
    (lambda: search_environment(RETRIEVER, None, CLEAN), "pass a ToolProtocol, such as NATIVE"),
    (lambda: search_environment(None, None, TOOLS), "retriever = None has no search"),
    (lambda: reward_functions(["em"]), "give each part its weight, as in {'em': 1.0}"),
    (lambda: reward_functions()[0][0](golden_answers=[["x"]]), "Pass rollout_func=SearchRollouts"),
    (lambda: reward_functions()[0][0](trajectory=[None]), "needs the column `golden_answers`"),
    (lambda: question_dataset("questions.jsonl"), "'q' is not a question of holdfast.*columns `prompt`"),
    (lambda: question_dataset([{"question": "?"}]), "is not a question of holdfast"),
])  # fmt: skip
def test_a_slip_in_the_search_agent_is_a_sentence(made: Any, says: str) -> None:
    with pytest.raises((ConfigError, DataError), match=says):
        made()


def test_tools_without_search_need_no_retriever() -> None:
    assert SearchRollouts(None, replace(NATIVE, tools=("math:gcd",))).retriever.search(["x"], 3) == [[]]
