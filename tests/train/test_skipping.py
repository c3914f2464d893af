"""Rollouts that change nothing but divisors: which recipes let an update skip them, and what stays the same."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.agent.batch import TokenBatch
from holdfast.methods.penalties import LLDS, NLL, PENALTIES, SAPO, NoPenalty
from holdfast.methods.registry import METHODS, NTHR, Methods, NegativeWeight, SamplerWeights, ScoreCentering
from holdfast.model.language_model import LanguageModel
from holdfast.model.passes.logprobs import TokenLogprobs
from holdfast.recipe import Loss, Sampling, Train
from holdfast.train import learner as learner_module
from holdfast.train.learner import Learner
from holdfast.train.objective import OF_PASSED, Objective, may_skip

VOCABULARY, GROUP, LENGTH = 60, 3, 100


def plain(**settings: Any) -> Loss:
    return Loss(**{"kl_coef": 0.0, "penalty": NoPenalty(), **settings})


def with_method(method: Any) -> Loss:
    return plain(methods=Methods(**{method.name: method}))


# ---- which recipes


def test_methods_that_judge_every_token_by_the_present_policy_keep_their_passes() -> None:
    keep = {name for name, method in METHODS.items() if not may_skip(with_method(method(on=True)))}
    assert keep == {"clip_cov", "off_policy_mask", "ipo", "m2po"}


def test_penalties_of_ones_own_may_act_on_any_rollout() -> None:
    ours = {name for name, penalty in PENALTIES.items() if name != "custom" and may_skip(plain(penalty=penalty()))}
    assert ours == {"none", "llds", "sapo", "nll"}
    assert not may_skip(plain(penalty={"name": "custom", "path": f"{__name__}:OfAll"}))


class OfAll(NLL):
    """Derived from one of ours, it acts on every rollout all the same."""

    def per_token(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, loss_mask: Tensor, **_: Any
    ) -> Tensor:
        return torch.where(loss_mask, -logprobs, 0.0)


@pytest.mark.parametrize("settings", [{"kl_coef": 0.1}, {"entropy_coef": 0.1}, {"advantage": "gae"}])
def test_terms_of_every_token_and_a_critic_keep_every_pass(settings: dict[str, Any]) -> None:
    assert may_skip(plain()) and not may_skip(plain(**settings))


@pytest.mark.parametrize(
    ("penalty", "learned"),
    [
        (NoPenalty(), [True, False, False, True]),
        (NLL(), [True, False, False, True]),
        (SAPO(preserve="positive"), [True, False, False, True]),
        (LLDS(preserve="correct"), [True, True, False, True]),
        (LLDS(preserve="nonnegative"), [True, True, True, True]),
    ],
)
def test_a_group_without_contrast_is_learned_from_where_the_penalty_preserves_it(
    penalty: Any, learned: list[bool]
) -> None:
    """The groups: mixed, all correct, all incorrect, mixed."""
    assert Objective(plain(penalty=penalty)).learns(a_batch()).view(4, GROUP).all(-1).tolist() == learned


# ---- what stays the same


def a_batch() -> TokenBatch:
    """Four groups: mixed, all correct, all incorrect, mixed. The rollouts of a group share their prompt."""
    generator = torch.Generator().manual_seed(1)
    rows = 4 * GROUP
    ids = torch.randint(0, VOCABULARY, (rows, LENGTH), generator=generator)
    ids[:, :60] = ids[::GROUP, :60].repeat_interleave(GROUP, 0)
    mask = (torch.arange(LENGTH) >= 60).repeat(rows, 1)
    mask[:, 75:80] = False
    correct = torch.tensor([True, False, False, *[True] * GROUP, *[False] * GROUP, True, True, False])
    advantages = torch.tensor([1.4, -0.7, -0.7, *[0.0] * 2 * GROUP, 0.7, 0.7, -1.4])
    return TokenBatch(
        token_ids=ids,
        lengths=torch.full((rows,), LENGTH),
        loss_mask=mask,
        action_ids=mask.long() + (mask & (torch.arange(LENGTH) >= 80)),
        answer_mask=mask & (torch.arange(LENGTH) >= 90),
        query_mask=mask & (torch.arange(LENGTH) < 70),
        rollout_logprobs=torch.where(mask, -4.0, 0.0),
        sampler_logprobs=torch.where(mask, -4.0, 0.0),
        advantages=advantages[:, None],
        rewards=correct.float(),
        correct=correct,
        group_ids=torch.arange(rows) // GROUP,
        valid=torch.ones(rows, dtype=torch.bool),
    )


@pytest.fixture(scope="module")
def model() -> Any:
    """As small as a model can be whose updates skip."""
    import transformers

    torch.manual_seed(0)
    kind: Any = transformers.LlamaConfig
    config = kind(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        attn_implementation="sdpa",
    )
    return transformers.LlamaForCausalLM(config)


class Counted(LanguageModel):
    """Writes down the rows of the passes in which a gradient is wanted."""

    def logprobs(self, token_ids: Tensor, loss_mask: Tensor, **options: Any) -> TokenLogprobs:
        found = LanguageModel.logprobs(self, token_ids, loss_mask, **options)
        if found.logprobs.requires_grad:
            rows_passed.append(len(token_ids))
        return found


rows_passed: list[int] = []


def update(model: Any, loss: Loss, batch: TokenBatch, sampling: Sampling | None = None) -> tuple[Any, list[Tensor]]:
    """Metrics and weights of an update of two optimizer steps by plain SGD."""
    rows_passed.clear()
    policy = Counted(model=copy.deepcopy(model), tokenizer=None)
    train = Train(optimizer_steps_per_rollout=2, minibatches="in-order", grad_clip=1e9)
    learner = Learner(policy, Objective(loss, max_tokens=40), train, sampling or Sampling())
    learner.optimizer = torch.optim.SGD(learner.parameters, lr=0.1)
    old_pass = learner.old_pass(batch, learner.plan(batch, torch.Generator()))
    metrics = learner.step(old_pass.minibatches, mean_searches=1.0)
    return metrics, [parameter.detach() for parameter in learner.parameters]


LOSSES: dict[str, Loss] = {
    "grpo": plain(),
    "dr grpo": plain(reduction="seq-mean-token-sum-norm"),
    "sequence means": plain(reduction="seq-mean-token-mean"),
    "gspo": plain(ratio="sequence", reduction="seq-mean-token-mean"),
    "cispo": plain(surrogate="cispo", clip_high=0.5),
    "dppo": plain(surrogate="dppo"),
    "the sampler's ratio": plain(old_policy="sampler"),
    "sapo": plain(penalty=SAPO(coef=1.0)),
    "sapo over the policy's tokens": plain(penalty=SAPO(coef=1.0, normalizer="policy")),
    "nll": plain(penalty=NLL()),
    "llds of correct ones": plain(penalty=LLDS(coef=1.0, preserve="correct")),
    "llds of a response": plain(penalty=LLDS(coef=1.0, gate="response", preserve="positive")),
    "positive alone": with_method(NegativeWeight(on=True)),
    "weights": with_method(SamplerWeights(on=True, keep="reject", high=1.1)),
    "nthr": with_method(NTHR(on=True)),
    "score centering": with_method(ScoreCentering(on=True)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_an_update_that_skips_learns_and_logs_the_same(model: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but what says how far the tokens of the passes moved."""
    loss, sampling = LOSSES[name], Sampling(top_p=0.9) if name == "score centering" else None
    metrics, weights = update(model, loss, a_batch(), sampling)
    assert sum(rows_passed) == (3 if "correct" in name else 2) * GROUP
    monkeypatch.setattr(learner_module, "may_skip", lambda loss: False)
    whole_metrics, whole_weights = update(model, loss, a_batch(), sampling)
    assert metrics.keys() == whole_metrics.keys() and whole_metrics["grad/norm"] > 0
    for key in set(metrics) - {*OF_PASSED, "penalty/noise_floor"}:
        assert metrics[key] == pytest.approx(whole_metrics[key], rel=1e-4, abs=1e-6), key
    for one, other in zip(weights, whole_weights, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_the_update_still_begins_with_its_old_log_probs(model: Any) -> None:
    metrics, _ = update(model, plain(), a_batch())
    assert metrics["penalty/noise_floor"] == 0 and metrics["ratio/max"] > 1


def test_a_batch_without_contrast_gets_no_pass_and_no_ratio(model: Any) -> None:
    """A mean over nothing is absent."""
    batch = replace(a_batch(), advantages=torch.zeros(4 * GROUP, 1))
    metrics, weights = update(model, plain(), batch)
    assert not rows_passed and not set(OF_PASSED) & set(metrics) and metrics["grad/norm"] == 0
    assert metrics["loss/policy"] == 0 and metrics["clip/fraction"] == 0
    assert all(torch.equal(one, other) for one, other in zip(weights, model.parameters(), strict=True))


def test_few_rows_stay_where_they_are(model: Any) -> None:
    """A pass of their own would cost more than it saves."""
    batch = a_batch()
    batch = replace(batch, advantages=torch.where(torch.arange(4 * GROUP)[:, None] == 4, 0.0, 1.0))
    update(model, plain(), batch)
    assert sum(rows_passed) == 4 * GROUP
