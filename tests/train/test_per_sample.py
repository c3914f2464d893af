"""Displacement per sample while a run trains: against an update of a copy, and without a trace in the run."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
import torch

from holdfast.base.errors import ConfigError
from holdfast.model.language_model import LanguageModel
from holdfast.recipe import Config, load
from holdfast.train.displacement import measure_per_sample, per_sample_metrics

from .one_update import Double, a_batch, learner_of
from .whole_runs import a_trainer

Recipe = Callable[..., Config]
ROWS = {0: [0, 1], 1: [2, 3], 2: [4, 5], 3: [6]}  # by question; rewards differ in 0 to 2


def contrast() -> Any:
    batch = a_batch()
    rewards = batch.correct.float()
    return replace(batch, rewards=rewards, rollout_logprobs=batch.rollout_logprobs.double())


def test_against_an_update_of_a_copy(make_model: Callable[..., Any]) -> None:
    model, batch = make_model(seed=0).double(), contrast()
    expected: dict[str, list[float]] = {"correct": [], "incorrect": []}
    displaced = []
    for rows in list(ROWS.values())[:3]:
        policy = Double(model=copy.deepcopy(model), tokenizer=None)
        learner = learner_of(policy, lr=1e-2, optimizer_steps_per_rollout=1)
        part = batch.select(rows).trim()
        before = policy.logprobs(part.token_ids, part.loss_mask)[0].detach()
        learner.step(learner.old_pass(part, [[[0, 1]]]).minibatches, mean_searches=0.0)
        change = (policy.logprobs(part.token_ids, part.loss_mask)[0].detach() - before).tolist()
        totals = []
        for row, right in enumerate(part.correct.tolist()):
            values = [x for x, sampled in zip(change[row], part.loss_mask[row].tolist(), strict=True) if sampled]
            expected["correct" if right else "incorrect"].append(fmean(values))
            totals += [sum(values)] * right
        displaced.append(fmean(totals) < 0)
    learner = learner_of(Double(model=model, tokenizer=None), lr=1e-2, optimizer_steps_per_rollout=1)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    found = measure_per_sample(learner, batch, questions=9, mean_searches=0.0, seed=1)
    assert found == pytest.approx(
        {
            "displacement/per_sample/questions": 3,
            "displacement/per_sample/fraction": fmean(displaced),
            **{f"displacement/per_sample/{kind}": fmean(values) for kind, values in expected.items()},
        },
        abs=1e-6,
    )
    assert abs(found["displacement/per_sample/correct"]) > 1e-4
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert not learner.optimizer.state
    assert (
        measure_per_sample(learner, batch, questions=1, mean_searches=0.0, seed=1)["displacement/per_sample/questions"]
        == 1
    )


def test_without_contrast_there_is_nothing(make_model: Callable[..., Any]) -> None:
    learner = learner_of(LanguageModel(model=make_model(), tokenizer=None))
    assert measure_per_sample(learner, a_batch(), questions=4, mean_searches=0.0, seed=0) == {}


def test_shares_and_means_by_hand() -> None:
    changes = [torch.tensor([0.2, -0.4]), torch.tensor([-0.1, 0.3])]
    correct = [torch.tensor([True, False]), torch.tensor([True, True])]
    assert per_sample_metrics(changes, [0.6, -1.0], correct) == pytest.approx(
        {
            "displacement/per_sample/questions": 2,
            "displacement/per_sample/fraction": 0.5,
            "displacement/per_sample/correct": 0.4 / 3,
            "displacement/per_sample/incorrect": -0.4,
        }
    )


def test_the_run_is_the_same_with_it(recipe: Recipe) -> None:
    with_it, without = (a_trainer(recipe({"train.per_sample_every": every})) for every in (2, 0))
    for trainer in (with_it, without):  # a warm start this short gives no correct rollout: the better half counts
        batch_of = trainer.make_batch

        def marked(groups: Any, batch_of: Any = batch_of) -> Any:
            batch = batch_of(groups)
            return replace(batch, correct=batch.advantages[:, 0] > 0)

        trainer.make_batch = marked  # type: ignore[method-assign]
    for step in range(3):
        rows = [
            {k: v for k, v in t.step().metrics.items() if not k.startswith(("time/", "tokens_per_s", "retrieval/lat"))}
            for t in (with_it, without)
        ]
        added = rows[0].keys() - rows[1].keys()
        assert bool(added) is (step != 1) and all(name.startswith("displacement/per_sample/") for name in added)
        assert {k: v for k, v in rows[0].items() if k not in added} == rows[1]


def test_a_critic_cannot_be_of_one_question() -> None:
    with pytest.raises(ConfigError, match="would need a critic of its own"):
        load(overrides=["--train.per_sample_every", "5", "--loss.advantage", "gae", "--loss.penalty.name", "none"])
