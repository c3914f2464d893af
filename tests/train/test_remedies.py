"""Remedies in the local trainer: what they leave out or weigh down, NTHR's factors, further questions."""

from __future__ import annotations

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
from holdfast.agent.trajectory import Answer, Group, Invalid, Search, Trajectory, Turn
from holdfast.base.errors import ConfigError, ModelError
from holdfast.losses import nthr_weights, sampler_weights, token_influence
from holdfast.methods.drop_first_actions import DropFirstActions
from holdfast.methods.drop_void import DropVoid
from holdfast.methods.negative_weight import NegativeWeight
from holdfast.methods.nthr import NTHR, check_logits, output_layer, rows_for_nthr
from holdfast.methods.penalties import NoPenalty
from holdfast.methods.registry import Methods
from holdfast.methods.sampler_weights import SamplerWeights
from holdfast.model.language_model import LanguageModel
from holdfast.recipe import Config, Loss, validate
from holdfast.train.rollouts import training_batch
from holdfast.train.run import train

from .one_update import a_batch, learner_of
from .whole_runs import a_trainer

Recipe = Callable[..., Config]
PLAN = [[[0, 3, 2], [1]], [[4, 6], [5]]]


def turn(action: Any, *, hits: tuple[str, ...] = (), masses: tuple[float, ...] | None = None) -> Turn:
    return Turn(
        tokens=(7, 8), logprobs=(-1.0, -2.0), observation=(4,), action=action, hits=hits, mask_mass=masses
    )  # fmt: skip


def rollout(correct: bool, *turns: Turn) -> Trajectory:
    return Trajectory(
        example_id="q", prompt=(1, 2), turns=turns, reward=float(correct), reward_parts={"em": float(correct)}
    )


def batch_of(group: Group, **methods: Any) -> TokenBatch:
    return training_batch([group], Loss(methods=Methods(**methods)), pad_token_id=0, device=torch.device("cpu"))


SEARCH, OTHER = turn(Search("lake"), hits=("a", "b")), turn(Search("sea"), hits=("c",))
END = turn(Answer("x"))
GROUP = Group(
    "q",
    (
        rollout(True, SEARCH, END),
        rollout(False, SEARCH, END),
        rollout(False, OTHER, END),
        rollout(False, SEARCH, turn(Invalid("empty")), END),
    ),
)


def test_void_rollouts_are_left_out_and_count_in_their_group() -> None:
    plain, batch = batch_of(GROUP), batch_of(GROUP, drop_void=DropVoid())
    assert torch.equal(batch.advantages, plain.advantages) and plain.excluded is None
    assert batch.learned_mask.sum(-1).tolist() == [4, 4, 4, 0]
    assert batch.loss_mask.sum(-1).tolist() == [4, 4, 4, 6]


def test_first_actions_that_a_correct_rollout_shares_are_left_out() -> None:
    batch = batch_of(GROUP, drop_first_actions=DropFirstActions())
    assert batch.learned_mask.sum(-1).tolist() == [4, 2, 4, 4]
    assert not (batch.learned_mask & (batch.action_ids == 1))[[1, 3]].any()


def test_a_truncated_sampler_drew_from_what_it_kept() -> None:
    group = Group("q", (rollout(True, turn(Answer("x"), masses=(0.5, 0.25))), rollout(False, END)))
    batch = batch_of(group, sampler_weights=SamplerWeights(level="token"))
    assert batch.sampler_logprobs is not None
    expected = [-1.0 - math.log(0.5), -2.0 - math.log(0.25), -1.0, -2.0]
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


@pytest.mark.parametrize("keep", ["truncate", "mask", "reject"])
@pytest.mark.parametrize("level", ["token", "action", "sequence"])
def test_sampler_weights_are_those_of_the_function(make_model: Callable[..., Any], keep: Any, level: Any) -> None:
    g = torch.Generator().manual_seed(0)
    batch, model = a_batch(), make_model()
    policy = LanguageModel(model=model, tokenizer=None)
    with torch.no_grad():
        old, _ = policy.logprobs(batch.token_ids, batch.loss_mask)
    batch = replace(batch, sampler_logprobs=old + 0.4 * torch.randn(old.shape, generator=g))
    settings = SamplerWeights(level=level, keep=keep, low=0.7, high=1.4)
    minis, _ = updated(model, batch, Loss(kl_coef=0.0, methods=Methods(sampler_weights=settings)))
    assert batch.sampler_logprobs is not None
    expected = sampler_weights(
        old, batch.sampler_logprobs, batch.loss_mask, level=level, keep=keep, low=0.7, high=1.4,
        action_ids=batch.action_ids,
    )  # fmt: skip
    seen = set()
    for mini, rows_of in zip(minis, PLAN, strict=True):
        for micro, rows in zip(mini, rows_of, strict=True):
            width, seen = micro.loss_mask.shape[1], seen | set(rows)
            want = expected[rows, :width]
            if keep == "reject":
                assert micro.policy_weights is None
                assert torch.equal(micro.learned_mask, micro.loss_mask & (want > 0))
            else:
                assert micro.policy_weights is not None
                torch.testing.assert_close(micro.policy_weights, want, atol=1e-5, rtol=1e-5)
    assert seen == set(range(7))


def test_a_weight_multiplies_the_policy_gradient_alone(make_model: Callable[..., Any]) -> None:
    """Halved advantages give the same step, as long as the penalty is off."""
    batch, loss = (
        a_batch(),
        Loss(kl_coef=0.0, penalty=NoPenalty(), methods=Methods(negative_weight=NegativeWeight(weight=0.5))),
    )
    _, weights = updated(make_model(), batch, loss)
    halved = torch.where(batch.advantages < 0, batch.advantages / 2, batch.advantages)
    _, others = updated(make_model(), replace(batch, advantages=halved), Loss(kl_coef=0.0, penalty=NoPenalty()))
    assert close(weights, others)


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


@pytest.mark.parametrize(
    ("changes", "logged"),
    [
        ({"loss.methods.nthr.on": True}, {"loss/mean_weight"}),
        ({"loss.methods.negative_weight.weight": 0.0}, {"loss/mean_weight"}),
        ({"loss.methods.drop_void.on": True}, {"loss/excluded_fraction"}),
        ({"loss.methods.drop_first_actions.on": True}, {"loss/excluded_fraction"}),
        ({"loss.methods.off_policy_mask.threshold": 1e-4}, {"loss/dropped_fraction"}),
        ({"loss.surrogate": "dppo", "loss.clip_low": 1e-4, "loss.clip_high": 1e-4}, {"loss/dropped_fraction"}),
        ({"loss.surrogate": "cispo", "loss.clip_low": 1.0, "loss.clip_high": 4.0}, set()),
        ({"loss.ratio": "action"}, set()),
        ({"loss.methods.sampler_weights": {"level": "token"}, "sampling.top_p": 0.7}, {"loss/mean_weight"}),
        (
            {"loss.methods.sampler_weights": {"level": "sequence", "aggregate": "mean", "keep": "reject", "low": 0.99,
                                      "high": 1.01}, "sampling.top_p": 0.5},
            {"loss/excluded_fraction"},
        ),
    ],
    ids=str,
)  # fmt: skip
def test_a_step_with_each_remedy(recipe: Recipe, changes: dict[str, Any], logged: set[str]) -> None:
    trainer = a_trainer(recipe(changes))
    start = [p.detach().clone() for p in trainer.learner.language_model.model.parameters()]
    metrics = trainer.step().metrics
    names = {"loss/mean_weight", "loss/excluded_fraction", "loss/dropped_fraction"}
    assert names & set(metrics) == logged
    assert all(math.isfinite(value) for value in metrics.values())
    moved = zip(start, trainer.learner.language_model.model.parameters(), strict=True)
    assert any(not torch.equal(before, after) for before, after in moved)
    if "loss.methods.negative_weight.weight" in changes:
        assert 0 < metrics["loss/mean_weight"] < 1
    if logged == {"loss/dropped_fraction"}:
        assert 0 < metrics["loss/dropped_fraction"] < 1
    if changes.get("sampling.top_p") == 0.5:
        assert metrics["loss/excluded_fraction"] > 0


def test_weights_of_an_untruncated_sampler_are_one(recipe: Recipe) -> None:
    metrics = a_trainer(recipe({"loss.methods.sampler_weights": {"level": "sequence"}})).step().metrics
    assert metrics["loss/mean_weight"] == pytest.approx(1.0, abs=1e-3)


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


def test_further_questions_replace_groups_with_equal_rewards(recipe: Recipe) -> None:
    trainer = a_trainer(recipe({"loss.methods.dynamic_sampling.rounds": 3, "train.group_size": 2}))
    learned = []
    make_batch = trainer.make_batch
    trainer.make_batch = lambda groups: learned.append(groups) or make_batch(groups)  # type: ignore[method-assign, func-returns-value]
    result = trainer.step()
    (groups,) = learned
    extra = result.metrics["rollout/extra_questions"]
    assert extra > 0 and len(result.groups) == len(result.examples) == 4 + extra
    assert list(groups) == list(result.groups)[: len(groups)] and len(groups) <= 4
    assert all(group.mixed for group in groups) and not any(group.mixed for group in result.groups[len(groups) :])
    assert [group.id for group in result.groups] == [example.id for example in result.examples]
    assert result.metrics["rollout/mixed_group_fraction"] == pytest.approx(len(groups) / len(result.groups))
    assert len(groups) == 4 or extra >= 3


@pytest.mark.parametrize(("mixed", "rounds", "drawn"), [("1111", 3, 4), ("1010" + "11", 3, 6), ("0" * 12, 2, 12)])
def test_rounds_end_when_there_are_enough_groups(recipe: Recipe, mixed: str, rounds: int, drawn: int) -> None:
    trainer = a_trainer(recipe({"loss.methods.dynamic_sampling.rounds": rounds}))
    kinds = iter(mixed)

    def roll_out(examples: Any) -> Any:
        return [
            Group(example.id, (rollout(next(kinds) == "1", END), rollout(False, END))) for example in examples
        ], RolloutStats(searches=len(examples))

    trainer.roll_out = roll_out  # type: ignore[method-assign]
    examples = trainer.question_order.next(4)
    groups, stats = roll_out(examples)
    examples, groups, learned = trainer._resampled(examples, groups, stats)
    assert len(examples) == len(groups) == stats.searches == drawn
    assert [group.mixed for group in groups] == sorted((kind == "1" for kind in mixed), reverse=True)
    assert learned == (groups[:4] if "1" in mixed else groups)


# ---- settings that cannot work


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss.methods.sampler_weights": {"level": "token", "low": 2.0}}, "must be below"),
        ({"loss.methods.sampler_weights": {"level": "token", "aggregate": "mean"}}, "a token has only one ratio"),
        ({"loss.surrogate": "cispo", "loss.dual_clip": 3.0}, "only PPO's clip"),
        ({"loss.surrogate": "dppo", "loss.ratio": "action"}, "of single tokens"),
        ({"loss.surrogate": "dppo", "loss.clip_high": 1.0}, "a probability cannot change by 1"),
        ({"loss.methods.nthr.on": True, "loss.methods.negative_weight.weight": 0.0}, "whose weight is 0"),
        ({"loss.methods.off_policy_mask.on": True, "loss.methods.negative_weight.weight": 0.0}, "whose weight is 0"),
        ({"loss.methods.nthr.on": True, "loss.advantage": "reinforce"}, "compares positive and negative"),
        (
            {"loss.methods.off_policy_mask": {}, "train.optimizer_steps_per_rollout": 1, "loss.penalty.name": "none"},
            "no rollout has become less likely",
        ),
        (
            {"loss.methods.nthr.on": True, "sampling.mask_logprobs": True, "sampling.top_k": 8},
            "over the whole vocabulary",
        ),
        ({"loss.methods.dynamic_sampling.rounds": 1, "loss.advantage": "reinforce"}, "replaces groups whose rewards"),
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(recipe: Recipe, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        recipe(changes)


def test_nthr_with_lora_is_refused() -> None:
    with pytest.raises(ConfigError, match="which LoRA freezes"):
        validate({"loss": {"methods": {"nthr": {}}}, "model": {"path": "model", "lora_rank": 8}})
