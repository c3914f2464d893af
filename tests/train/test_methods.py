"""Remedies in the local trainer: what they leave out or weigh down, NTHR's factors, further questions."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.agent.batch import TokenBatch
from holdfast.agent.searching import RolloutStats
from holdfast.agent.trajectory import Answer, Group
from holdfast.base.errors import ModelError
from holdfast.losses import llds_penalty, nthr_weights, token_influence
from holdfast.methods.nthr import check_logits, output_layer, rows_for_nthr
from holdfast.methods.penalties import LLDS
from holdfast.methods.registry import NTHR, Methods, NegativeWeight, SamplerWeights
from holdfast.model.language_model import LanguageModel
from holdfast.recipe import Loss
from holdfast.tasks.questions import QuestionOrder
from holdfast.train.objective import Objective
from holdfast.train.rollouts import training_batch
from holdfast.train.run import train
from holdfast.train.trainer import Trainer

from ..rollouts import rollout, turn
from .one_update import a_batch, learner_of
from .whole_runs import Recipe, a_trainer

PLAN = [[[0, 3, 2], [1]], [[4, 6], [5]]]


def batch_of(group: Group, **methods: Any) -> TokenBatch:
    objective = Objective(Loss(methods=Methods(**methods)))
    return training_batch([group], objective, pad_token_id=0, device=torch.device("cpu"))


END = turn(Answer("x"), observation=(4,))


def test_a_truncated_sampler_drew_from_what_it_kept() -> None:
    group = Group("q", (rollout(turn(Answer("x"), mask_mass=(0.5, 0.25)), right=True), rollout(END)))
    batch = batch_of(group, sampler_weights=SamplerWeights(level="token"))
    assert batch.sampler_logprobs is not None
    expected = [-1.0 - math.log(0.5), -1.0 - math.log(0.25), -1.0, -1.0]
    assert batch.sampler_logprobs[batch.loss_mask].tolist() == pytest.approx(expected)


# ---- in an update


def updated(
    model: Any, batch: TokenBatch, loss: Loss, **train: Any
) -> tuple[list[list[TokenBatch]], dict[str, Tensor]]:
    """The micro-batches of the old pass, and the weights after the update, by plain gradient steps."""
    policy = LanguageModel(model=model, tokenizer=None)
    learner = learner_of(policy, loss, grad_clip=1e9, **train)
    learner.optimizer = torch.optim.SGD(learner.parameters, lr=0.01)
    minibatches = learner.old_pass(batch, PLAN).minibatches
    learner.step(minibatches, mean_searches=0.0)
    return minibatches, {name: p.detach() for name, p in model.named_parameters()}


def close(weights: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> bool:
    return all(torch.allclose(weights[name], others[name], atol=1e-6) for name in weights)


def test_excluded_rows_train_as_if_they_were_not_there(make_model: Callable[..., Any]) -> None:
    """Denominators, penalty and entropy too."""
    batch, loss = a_batch(), Loss(kl_coef=0.0, entropy_coef=0.01)
    excluded = batch.loss_mask & torch.tensor([False, False, True, False, True, False, False])[:, None]
    _, weights = updated(make_model(), replace(batch, excluded=excluded), loss)
    bare = replace(batch, loss_mask=batch.loss_mask & ~excluded)
    _, others = updated(make_model(), bare, loss)
    _, all_rows = updated(make_model(), batch, loss)
    assert close(weights, others) and not close(weights, all_rows)


# ---- NTHR


def nthr_batch() -> TokenBatch:
    """Groups of two, two, two and one, the first two of which are mixed; few different tokens, so that some agree."""
    batch = a_batch()
    return replace(
        batch,
        token_ids=batch.token_ids % 3 + 2,
        advantages=torch.tensor([[0.7], [-0.7], [-1.0], [1.0], [0.0], [0.0], [1.0]]),
        group_ids=torch.tensor([0, 0, 1, 1, 2, 2, 3]),
    )


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_nthr_factors_are_those_of_the_functions(make_model: Callable[..., Any], temperature: float) -> None:
    """Hidden states from transformers' own output, group by group; the plan scatters the groups."""
    model, batch = make_model(), nthr_batch()
    policy = LanguageModel(model=model, tokenizer=None)
    learner = learner_of(
        policy, Loss(kl_coef=0.0, methods=Methods(nthr=NTHR(), negative_weight=NegativeWeight(weight=0.5)))
    )
    object.__setattr__(learner.sampling, "temperature", temperature)
    minis = learner.old_pass(batch, PLAN).minibatches
    with torch.no_grad():
        hidden = model(input_ids=batch.token_ids, output_hidden_states=True, use_cache=False).hidden_states[-1]
    factors = torch.ones(batch.loss_mask.shape)
    weight = model.get_output_embeddings().weight.detach() / temperature
    for group in (0, 1):
        rows = (batch.group_ids == group).nonzero()[:, 0].tolist()
        places = [(row, t) for row in rows for t in range(24) if batch.loss_mask[row, t]]
        states = torch.stack([hidden[row, t - 1] for row, t in places])
        tokens = torch.stack([batch.token_ids[place] for place in places])
        correct = torch.tensor([bool(batch.advantages[row] > 0) for row, _ in places])
        rollout_ids = torch.tensor([row for row, _ in places])
        weights = nthr_weights(token_influence(states, weight, tokens, correct), correct, rollout_ids)
        for place, value in zip(places, weights, strict=True):
            factors[place] = value
    assert (factors == 0).any()  # half of a group is correct: η = 0
    for mini, rows_of in zip(minis, PLAN, strict=True):
        for micro, rows in zip(mini, rows_of, strict=True):
            assert micro.policy_weights is not None
            negative = torch.where(batch.advantages[rows] < 0, 0.5, 1.0)
            want = (factors[rows] * negative)[:, : micro.loss_mask.shape[1]]
            assert torch.equal(micro.policy_weights[micro.loss_mask], want[micro.loss_mask])


def test_nthr_changes_no_log_prob_and_nothing_without_mixed_groups(make_model: Callable[..., Any]) -> None:
    batch = replace(a_batch(), group_ids=torch.arange(7))
    policy = LanguageModel(model=make_model(), tokenizer=None)
    plain = learner_of(policy, Loss(kl_coef=0.0)).old_pass(nthr_batch(), PLAN)
    scored = learner_of(policy, Loss(kl_coef=0.0, methods=Methods(nthr=NTHR()))).old_pass(nthr_batch(), PLAN)
    assert plain.batch.old_logprobs is not None and scored.batch.old_logprobs is not None
    assert torch.equal(plain.batch.old_logprobs, scored.batch.old_logprobs)
    assert rows_for_nthr(nthr_batch()).tolist() == [True, True, True, True, False, False, False]
    assert not rows_for_nthr(batch).any()  # groups of one
    minis = learner_of(policy, Loss(kl_coef=0.0, methods=Methods(nthr=NTHR()))).old_pass(batch, PLAN).minibatches
    assert all(micro.policy_weights is None for mini in minis for micro in mini)


def test_excluded_tokens_push_nothing_in_nthr(make_model: Callable[..., Any]) -> None:
    """A dropped rollout is not a member of its group."""
    batch = nthr_batch()
    excluded = batch.loss_mask & torch.tensor([False, True, False, False, False, False, False])[:, None]
    policy = LanguageModel(model=make_model(), tokenizer=None)
    learner = learner_of(policy, Loss(kl_coef=0.0, methods=Methods(nthr=NTHR())))
    minis = learner.old_pass(replace(batch, excluded=excluded), [[[0, 1], [2, 3]]]).minibatches
    first, second = minis[0]
    assert first.policy_weights is not None and second.policy_weights is not None
    assert (first.policy_weights == 1).all() and (second.policy_weights[second.loss_mask] == 0).any()


def test_models_that_nthr_cannot_score_are_refused(make_model: Callable[..., Any]) -> None:
    def refused(change: Callable[[Any], None], words: str) -> None:
        model = make_model()
        change(model)
        with pytest.raises(ModelError, match=words):
            learner_of(LanguageModel(model=model, tokenizer=None), Loss(methods=Methods(nthr=NTHR())))

    class Wrapped(torch.nn.Linear):
        pass

    def wrap(model: Any) -> None:
        model.lm_head = Wrapped(32, model.config.vocab_size, bias=False)

    def bias(model: Any) -> None:
        model.lm_head = torch.nn.Linear(32, model.config.vocab_size)

    def shard(model: Any) -> None:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach()[: model.config.vocab_size // 2])

    def freeze(model: Any) -> None:
        model.lm_head.weight.requires_grad_(False)

    refused(wrap, "is a Wrapped")
    refused(bias, "has a bias")
    refused(shard, "sharded")
    refused(freeze, "frozen")
    tied = LanguageModel(model=make_model(tie_word_embeddings=True), tokenizer=None)
    assert output_layer(tied).shape[1] == 32
    assert tied.model.get_output_embeddings().weight is tied.model.get_input_embeddings().weight


def test_logits_that_are_changed_after_the_output_layer_are_refused() -> None:
    g = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(6, 4, generator=g), 3 * torch.randn(9, 4, generator=g)
    tokens = torch.arange(6)
    logits = hidden @ weight.T

    def of(changed: Tensor) -> Tensor:
        return changed.log_softmax(-1).gather(1, tokens[:, None])[:, 0]

    check_logits(hidden, weight, tokens, of(logits))
    with pytest.raises(ModelError, match="cap or a scale"):
        check_logits(hidden, weight, tokens, of(2 * (logits / 2).tanh()))


# ---- whole steps


ROLLOUTS = itertools.count()


def every_other(trajectory: Any, golden_answers: Any) -> float:
    """A part of the reward that tells any rollouts of a group apart."""
    return float(next(ROLLOUTS) % 2)


def test_what_methods_leave_out_and_weigh_down_is_logged(recipe: Recipe) -> None:
    """That each trains as its paper says is in `test_papers.py`."""
    rejecting = {"sampler_weights": {"keep": "reject", "low": 0.9}, "clip_cov": {"low": 0.1, "share": 0.05}}
    changes = {"loss.methods": rejecting | {"negative_weight": {"weight": 0.5}}}
    changes |= {"reward": {"em": 1.0, "custom": {f"{__name__}:every_other": 1.0}}}
    metrics = a_trainer(recipe(changes | {"sampling.top_p": 0.7, "sampling.top_k": 12})).step().metrics
    for name in ("loss/mean_weight", "loss/excluded_fraction", "loss/dropped_fraction"):
        assert 0 < metrics[name] < 1, name


@pytest.mark.parametrize(
    ("weights", "series"),
    [({"level": "sequence", "aggregate": "mean", "keep": "reject"}, "loss/excluded_fraction"),
     ({"level": "token", "keep": "mask"}, "loss/mean_weight")],
    ids=["reject", "mask"],
)  # fmt: skip
def test_bounds_that_no_weight_meets_are_told_after_the_first_step(
    recipe: Recipe, tmp_path: Path, told: Any, weights: dict[str, Any], series: str
) -> None:
    changes = {"loss.methods.sampler_weights": weights | {"low": 1.5, "high": 2.0}, "sampling.top_p": 0.5}
    short = {"train.steps": 2, "eval.every": 0, "checkpoint.every": 0, "track.trajectories": 0}
    train(recipe(changes | short), tmp_path / "run", listener=told)
    (alarm,) = [alarm for alarm in told.alarms if alarm.code == "GRD003"]
    assert alarm.step == 1 and alarm.evidence[series] == (1.0 if "excluded" in series else 0.0)
    low, high = alarm.evidence["sampler/weight_p05"], alarm.evidence["sampler/weight_p95"]
    assert 0 < low < high <= 1.001  # a sampler that draws from a part of the vocabulary is never below the policy
    assert "loss.methods.sampler_weights, 1.5 to 2.0" in alarm.summary


# ---- dynamic sampling


def test_a_question_that_comes_again_in_a_step_gets_other_rollouts(recipe: Recipe) -> None:
    """Four questions are an epoch, so those of the further round are the same."""
    trainer = a_trainer(recipe({"loss.methods.dynamic_sampling.rounds": 1, "reward": {"em": 1.0}}))
    nobody = [replace(example, golden_answers=("☃",)) for example in trainer.question_order.next(4)]
    trainer.question_order = QuestionOrder(nobody, seed=0)
    examples = trainer.question_order.next(4)
    groups, stats = trainer.roll_out(examples)
    assert groups == trainer.roll_out(examples)[0] and not any(group.mixed for group in groups)
    _, both, _ = trainer._resampled(examples, groups, stats)
    assert len(both) == 8 and {group.id for group in both[4:]} == {group.id for group in groups}
    assert all(group not in groups for group in both[4:])


@pytest.mark.parametrize(("mixed", "rounds", "drawn"), [("1111", 3, 4), ("1010" + "11", 3, 6), ("0" * 12, 2, 12)])
def test_rounds_end_when_there_are_enough_groups(recipe: Recipe, mixed: str, rounds: int, drawn: int) -> None:
    trainer = a_trainer(recipe({"loss.methods.dynamic_sampling.rounds": rounds}))
    kinds = iter(mixed)

    def roll_out(examples: Any, *further: int) -> Any:
        return [
            Group(example.id, (rollout(END, right=next(kinds) == "1"), rollout(END))) for example in examples
        ], RolloutStats(searches=len(examples))

    trainer.roll_out = roll_out  # type: ignore[method-assign]
    examples = trainer.question_order.next(4)
    groups, stats = roll_out(examples)
    examples, groups, learned = trainer._resampled(examples, groups, stats)
    assert len(examples) == len(groups) == stats.searches == drawn
    assert [group.mixed for group in groups] == sorted((kind == "1" for kind in mixed), reverse=True)
    assert learned == (groups[:4] if "1" in mixed else groups)


# ---- supervised steps between those of reinforcement learning


ON = {"loss.methods.interleaved_sft.every": 2}


def test_a_supervised_step_makes_its_rollouts_likelier_and_returns_their_mean(recipe: Recipe) -> None:
    trainer = a_trainer(recipe({"train.lr": 1e-3, "train.micro_batch_tokens": 400}))
    batch = trainer.make_batch(trainer.roll_out(trainer.question_order.next(3))[0])
    chosen = batch.select(torch.arange(len(batch)) % 3 == 0)
    before = trainer.learner.logprobs(chosen.token_ids, chosen.loss_mask)[0].detach()
    loss = trainer.learner.supervise(chosen)
    torch.testing.assert_close(loss, -float(before[chosen.loss_mask].mean()), atol=1e-5, rtol=1e-5)
    after = trainer.learner.logprobs(chosen.token_ids, chosen.loss_mask)[0].detach()
    assert float(after.sum()) > float(before.sum())


@pytest.mark.parametrize("correct", [True, False])
def test_every_second_step_has_one_if_a_rollout_is_correct(correct: bool, recipe: Recipe) -> None:
    trainer = a_trainer(recipe(ON))
    make = trainer.make_batch
    trainer.make_batch = lambda groups: replace(  # type: ignore[method-assign]
        batch := make(groups), correct=torch.full((len(batch),), correct)
    )
    rows = [trainer.step().metrics for _ in range(4)]
    assert [("loss/supervised" in row) for row in rows] == [False, correct, False, correct]


# ---- an anchor


ONE_STEP = {"train.optimizer_steps_per_rollout": 1, "train.lr": 3e-3, "reward": {"em": 1.0, "format": 0.5}}


def weights(trainer: Trainer) -> list[Tensor]:
    return [p.detach().clone() for p in trainer.learner.language_model.model.parameters()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.usefixtures("told_what_to_say")
def test_with_one_optimizer_step_it_acts_from_the_second_batch_on(recipe: Recipe) -> None:
    trainer = a_trainer(recipe(ONE_STEP | {"train.anchor_every": 1, "train.micro_batch_tokens": 100_000}))
    before = copy.deepcopy(trainer.learner.language_model.model)
    first = trainer.step().metrics
    assert first["loss/penalty"] == first["penalty/mean_decrease"] == first["penalty/active_fraction"] == 0

    now = LanguageModel(model=copy.deepcopy(trainer.learner.language_model.model), tokenizer=None)
    second = trainer.step()
    batch = trainer.make_batch(second.groups)
    inputs = (batch.token_ids, batch.loss_mask)
    with torch.no_grad():
        new = now.logprobs(*inputs).logprobs
        anchor = LanguageModel(model=before, tokenizer=None).logprobs(*inputs).logprobs
    penalty = llds_penalty(new, anchor, batch.advantages, batch.loss_mask, action_ids=batch.action_ids)
    expected = 0.2 * float(penalty.sum() / (batch.loss_mask & (batch.advantages >= 0)).sum())
    assert second.metrics["loss/penalty"] == pytest.approx(expected, rel=1e-3) and expected > 0
    assert second.metrics["penalty/active_fraction"] > 0
    assert second.metrics["penalty/noise_floor"] == 0, "the ratio of the policy loss is to the sampling policy"
    assert second.metrics["ratio/max"] == 1


def test_the_anchor_is_one_to_n_batches_old(recipe: Recipe) -> None:
    trainer = a_trainer(recipe(ONE_STEP | {"train.anchor_every": 2}))
    policies = []
    assert trainer.learner.anchor is None
    for anchor in (0, 0, 2, 2, 4):  # the policy before that batch's update, after this one
        policies.append(weights(trainer))
        trainer.step()
        assert trainer.learner.anchor is not None and same(trainer.learner.anchor.weights, policies[anchor])


def test_the_policy_loss_and_its_statistics_keep_the_sampling_policy(make_model: Callable[..., Any]) -> None:
    """Only the penalty sees an anchor, here one under which every token was likelier by 0.3 nats."""
    learner = learner_of(LanguageModel(model=make_model(), tokenizer=None), Loss(kl_coef=0.0, penalty=LLDS(coef=1.0)))
    minibatches, _, _ = learner.old_pass(a_batch(), [[[*range(7)]]])
    assert minibatches[0][0].old_logprobs is not None
    plain = learner.step(minibatches, mean_searches=0.0)
    higher = [
        [replace(m, anchor_logprobs=m.penalty_logprobs + 0.3 * m.loss_mask) for m in mini] for mini in minibatches
    ]
    learner = learner_of(LanguageModel(model=make_model(), tokenizer=None), Loss(kl_coef=0.0, penalty=LLDS(coef=1.0)))
    metrics = learner.step(higher, mean_searches=0.0)
    assert metrics["loss/penalty"] == pytest.approx(0.3, rel=1e-4)
    assert metrics["penalty/mean_decrease"] == pytest.approx(0.3, rel=1e-4)
    changed = {"loss/penalty", "penalty/mean_decrease", "penalty/active_fraction", "grad/norm", "grad/norm_max"}
    assert {name for name in plain if metrics[name] != plain[name]} == changed
