"""holdfast's rollouts inside a real TRL trainer: every mask token by token, failures, rewards, resuming."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl")

import trl

from holdfast.adapters.trl import LLDS
from holdfast.adapters.trl.penalty_mixin import answer_weight
from holdfast.adapters.trl.search import columns, completion_limit, question_dataset, reward_functions
from holdfast.agent.trajectory import Answer, Search, Status, Trajectory
from holdfast.base.errors import ConfigError, DataError, RolloutError

from ...rollouts import rollout, turn
from .conftest import QUESTIONS, Down, sampled_rows, say, train_and_keep_batches


def test_what_trl_trains_on_is_what_was_sampled(searching: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks follow the trajectory."""
    rows = sampled_rows(train_and_keep_batches(searching(LLDS()), monkeypatch))
    assert all(trained == list(t.loss_mask[len(t.prompt) :]) for t, trained in rows)
    assert sum(t.searches for t, _ in rows) > 0 and any(len(t.turns) == 3 for t, _ in rows)


def test_the_longest_completion_is_the_trainers(searching: Any) -> None:
    """TRL's default is meant for one turn, and under dr_grpo the setting is the divisor of the loss."""
    for settings in ({"max_completion_length": 9, "loss_type": "dr_grpo"}, {}, {"max_completion_length": None}):
        assert completion_limit(trl.GRPOConfig(use_cpu=True, bf16=False, **settings)) is None
    trainer = searching(max_completion_length=9, script=lambda id, turn: "Mora lake town " * 4)
    trained = trainer.rollout_func([QUESTIONS[0].question] * 8, trainer)
    assert max(len(ids) for ids in trained["completion_ids"]) == 9
    assert "truncated" in {t.status for t in trained["trajectory"]}


def test_the_log_has_what_can_be_seen(searching: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = searching(LLDS(coef=0.2))
    observed: set[str] = set()
    log = type(trainer._observer)._log
    monkeypatch.setattr(
        type(trainer._observer), "_log", lambda self, metrics: (observed.update(metrics), log(self, metrics))
    )
    trainer.train()
    assert "loss/tokens" in observed
    assert "rollout/length" not in observed  # the rewards measure it, as it was sampled
    logged = {name for row in trainer.state.log_history for name in row}
    expected = """
        likelihood/correct likelihood/correct/action_1 likelihood/incorrect likelihood/incorrect/action_2
        displacement/correct displacement/fraction ratio/mean ratio/p01 clip/fraction penalty/active_fraction
        penalty/preserved_fraction loss/penalty loss/host reward/em rollout/searches rollout/length
        rollout/mixed_group_fraction sampler/logprob_gap retrieval/error_fraction optimizer_steps_per_rollout
    """
    assert [name for name in expected.split() if f"holdfast/{name}" not in logged] == []
    before, _, after, *_ = trainer.state.log_history  # an update moves the likelihood by less than itself
    assert abs(after["holdfast/displacement/correct"]) < abs(before["holdfast/likelihood/correct"])


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_searches_are_lost_in_training_only(rate: float, searching: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hits: dict[bool, list[int]] = {True: [], False: []}
    batch_of = trl.GRPOTrainer._generate_and_score_completions

    def keep(self: Any, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch = batch_of(self, inputs)
        turns = [turn for row in inputs for turn in row["trajectory"].turns if isinstance(turn.action, Search)]
        hits[self.model.training] += [len(turn.hits) for turn in turns if turn.observation]
        return batch

    monkeypatch.setattr(trl.GRPOTrainer, "_generate_and_score_completions", keep)
    trainer = searching(max_steps=6, learning_rate=1e-9, search_failure_rate=rate)
    trainer.train()
    trainer.evaluate(question_dataset(QUESTIONS))
    assert hits[True] and hits[False] and all(hits[False])
    assert all(hits[True]) if rate == 0 else not any(hits[True])


def test_batches_of_one_step_are_drawn_apart(searching: Any) -> None:
    """An evaluation has many, all at one step. The first of a step has the seeds it always had."""
    trainer = searching(script=None)
    rollouts, questions = trainer.rollout_func, [example.question for example in QUESTIONS]
    again = copy.copy(rollouts)
    first, second = (rollouts(questions, trainer)["completion_ids"] for _ in range(2))
    assert first != second
    assert again(questions, trainer)["completion_ids"] == first
    trainer.state.global_step = 1
    third = rollouts(questions, trainer)["completion_ids"]
    again(questions, trainer)
    trainer.state.global_step = 0
    assert rollouts(questions, trainer)["completion_ids"] == first != third


def test_mask_mass_of_a_sampler_that_does_not_report_it_is_measured(searching: Any) -> None:
    """As with vLLM. What rollouts report is logged by the rewards."""
    trainer = searching(top_p=0.7, max_steps=2)
    rollouts = trainer.rollout_func

    def silent(prompts: Any, trainer: Any) -> dict[str, Any]:
        done = rollouts(prompts, trainer)
        untold = [replace(t, turns=tuple(replace(x, mask_mass=None) for x in t.turns)) for t in done["trajectory"]]
        return done | {"trajectory": untold}

    trainer.rollout_func = silent
    trainer.train()
    mass = trainer.state.log_history[0]["holdfast/sampler/mask_mass"]
    assert 0.7 <= mass < 0.99
    (first, *_), _ = reward_functions()
    for reported, logged in ((0.5, 0.5), (None, None)):
        said = turn(Answer("town"), 1, mask_mass=reported and (reported,))
        series: dict[str, float] = {}
        first([rollout(said)], [["town"]], log_metric=series.__setitem__)
        assert series.get("holdfast/sampler/mask_mass") == logged


def test_a_failed_search_is_no_wrong_answer() -> None:
    """Its rewards are None, its mask is empty; the others keep theirs."""
    fine = rollout(turn(Answer("town"), [5]))
    lost = rollout(turn(Search("x"), [6, 7]), failed=True)
    never = rollout(failed=True, status=Status.ERROR)
    rows = columns([fine, lost, never], filler=9)
    assert rows["env_mask"] == [[1], [0, 0], [0]]
    assert rows["completion_ids"] == [[5], [6, 7], [9]]
    logged: dict[str, float] = {}
    (em, f1), weights = reward_functions({"em": 1.0, "f1": 0.5})
    more = {"log_metric": logged.__setitem__, "example_id": ["q"] * 3}
    assert em(trajectory=[fine, lost, never], golden_answers=[["town"]] * 3, **more) == [1.0, None, None]
    assert f1(trajectory=[fine, lost, never], golden_answers=[["lake"]] * 3, **more) == [0.0, None, None]
    assert weights == [1.0, 0.5]
    assert logged["holdfast/rollout/failed_fraction"] == pytest.approx(2 / 3) and logged["holdfast/reward/em"] == 1.0


def test_an_outage_stops_the_run(searching: Any) -> None:
    with pytest.raises(RolloutError, match=r"more than max_failed = 0\.1"):
        searching(retriever=Down(), max_failed=0.1).train()


def test_episodes_do_not_end_with_an_end_token_and_begin_with_a_question(searching: Any) -> None:
    with pytest.raises(ConfigError, match="mask_truncated_completions=True"):
        searching(mask_truncated_completions=True).train()
    trainer = searching()
    for prompt in ([{"role": "system", "content": "x"}, {"role": "user", "content": "y"}], 3):
        with pytest.raises(DataError, match="needs the question"):
            trainer.rollout_func([prompt], trainer)


def test_answer_masking_needs_answers_and_searches(searching: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    penalty = LLDS(answer_weight="adaptive-paper")
    trainer = searching(penalty, max_steps=2)
    ((rows, batch),) = train_and_keep_batches(trainer, monkeypatch)
    counted = [row | {"searches": i % 3} for i, row in enumerate(rows)]
    given = answer_weight(trainer, counted, penalty)
    for inputs, weight in ((rows, batch["holdfast_answer_weight"]), (counted, given)):
        mean = sum(row["searches"] for row in inputs) / len(inputs)
        assert float(weight) == pytest.approx(penalty.weight_at(mean))
    assert 0 < penalty.weight_at(mean) < 1
    for missing, says in (("answer_mask", "needs the tokens of the answer"), ("searches", "needs the number of")):
        bare = [{key: value for key, value in row.items() if key != missing} for row in rows]
        with pytest.raises(ConfigError, match=says):
            answer_weight(trainer, bare, penalty)


def test_lora_with_a_reference(searching: Any) -> None:
    """Only adapters move, the reference is the model without them, and the sampler is the model with them."""
    from peft import LoraConfig

    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    trainer = searching(LLDS(), peft_config=lora, beta=0.01, learning_rate=1e-2)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    moved = {name for name, p in trainer.model.named_parameters() if not torch.equal(p, before[name])}
    assert moved and all("lora" in name for name in moved)
    gaps = [row["holdfast/sampler/logprob_gap"] for row in trainer.state.log_history if "kl" in row and "reward" in row]
    assert len(gaps) == 2 and max(map(abs, gaps)) < 1e-4


def test_a_resumed_run_goes_on(searching: Any, tmp_path: Path) -> None:
    """Save at step 2, go on from there: the weights of step 4 are those of a run that never stopped."""
    whole = searching(LLDS(), output_dir=str(tmp_path / "a"), save_strategy="steps", save_steps=2)
    whole.train()
    resumed = searching(LLDS(), output_dir=str(tmp_path / "b"))
    resumed.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2"))
    pairs = zip(whole.model.parameters(), resumed.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_sampled_pad_token_stays_in_mask_and_loss(
    searching: Any, tiny_model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mask is by position, never by id: TRL fills the ends of rows with the same token."""
    model, pad = copy.deepcopy(tiny_model).double(), tokenizer.pad_token_id
    (lake,) = tokenizer(" lake")["input_ids"]
    trainer = searching(
        LLDS(),
        model=model,
        loss_type="bnpo",
        max_steps=1,
        learning_rate=0.0,
        script=lambda id, turn: [pad, lake, pad, lake] if turn else say(id, turn),
    )
    batches, losses = [], []
    generate, compute = type(trainer)._generate_and_score_completions, type(trainer)._compute_loss

    def keep_batch(self: Any, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batches.append((inputs, generate(self, inputs)))
        return dict(batches[-1][1])

    def keep_loss(self: Any, model: Any, inputs: dict[str, Any]) -> Any:
        loss = compute(self, model, inputs)
        (slope,) = torch.autograd.grad(loss, model.get_output_embeddings().weight, retain_graph=True)
        losses.append((inputs, slope))
        return loss

    monkeypatch.setattr(type(trainer), "_generate_and_score_completions", keep_batch)
    monkeypatch.setattr(type(trainer), "_compute_loss", keep_loss)
    trainer.train()
    ((inputs, batch),) = batches
    mask, pads = (batch["completion_mask"] * batch["tool_mask"]).bool(), 0
    for i, row in enumerate(inputs):
        t: Trajectory = row["trajectory"]
        ids, sampled = t.token_ids[len(t.prompt) :], t.loss_mask[len(t.prompt) :]
        assert batch["completion_ids"][i, : len(ids)].tolist() == list(ids)
        assert mask[i, : len(ids)].tolist() == list(sampled)
        pads += sum(a == pad and inside and later for a, inside, later in zip(ids, sampled, sampled[1:], strict=False))
    assert pads >= 4 and bool((batch["completion_ids"][batch["completion_mask"] == 0] == pad).all())

    assert len(losses) == 2
    for micro, slope in losses:
        expected, without = (slope_by_loops(trainer.model, micro, skip) for skip in (None, pad))
        torch.testing.assert_close(slope.double(), expected / 2, rtol=0, atol=1e-6)  # 2 micro-batches a step
        assert float((expected - without).norm()) > 0.1 * float(expected.norm())


def slope_by_loops(model: Any, batch: dict[str, Any], skip: int | None) -> torch.Tensor:
    """The gradient of −Σ A log π / tokens by the output layer, each row alone and without padding."""
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for i, advantage in enumerate(batch["advantages"].tolist()):
        prompt = batch["prompt_ids"][i][batch["prompt_mask"][i].bool()].tolist()
        completion = batch["completion_ids"][i, : int(batch["completion_mask"][i].sum())].tolist()
        logprobs = model(input_ids=torch.tensor([prompt + completion])).logits[0].double().log_softmax(-1)
        for t, token in enumerate(completion):
            if batch["tool_mask"][i, t] and token != skip:
                total, tokens = total - advantage * logprobs[len(prompt) + t - 1, token], tokens + 1
    (slope,) = torch.autograd.grad(total / tokens, model.get_output_embeddings().weight)
    return slope.double()
