"""The policy of a run, its questions and its rollouts; and weights that come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.evaluate.probes import open_run, per_sample, roll_out_questions
from holdfast.train.listener import Listener
from holdfast.train.loading import load_questions
from holdfast.train.optimizer import borrowed_weights


def test_the_weights_of_a_model_are_what_they_were(trained: Path) -> None:
    subject = open_run(trained, "last", [], Listener(), with_reference=True)
    assert subject.reference is not None  # the recipe has a KL to it
    model = subject.language_model.model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first = roll_out_questions(subject, 6, 0, Listener())
    one = per_sample(subject, first, seed=0, listener=Listener())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert one == per_sample(subject, roll_out_questions(subject, 6, 0, Listener()), seed=0, listener=Listener())


def test_the_reference_is_the_policy_the_run_started_from(trained: Path) -> None:
    subject = open_run(trained, "1", [], Listener(), with_reference=True)
    assert subject.reference is not None
    token_ids = torch.tensor([[5, 6, 7, 8]])
    mask = torch.tensor([[False, True, True, True]])
    with torch.no_grad():
        now, _ = subject.language_model.logprobs(token_ids, mask)
    start = subject.reference.logprobs(token_ids, mask)
    assert not torch.allclose(now, start)
    assert open_run(trained, "1", ["--loss.kl_coef", "0"], Listener(), with_reference=True).reference is None
    assert open_run(trained, "1", [], Listener(), with_reference=False).reference is None


def test_policies_are_asked_the_same_and_the_recipes_questions(trained: Path) -> None:
    one = open_run(trained, "1", [], Listener(), with_reference=False)
    two = open_run(trained, "2", [], Listener(), with_reference=False)
    asked = [[e.id for e in roll_out_questions(s, 5, 3, Listener()).examples] for s in (one, two)]
    assert asked[0] == asked[1]
    assert set(asked[0]) <= {e.id for e in load_questions(one.config).train}
    assert [e.id for e in roll_out_questions(two, 5, 4, Listener()).examples] != asked[0]


def test_another_seed_is_another_episode(trained: Path) -> None:
    subject = open_run(trained, "2", [], Listener(), with_reference=False)
    said = [
        {
            e.id: [t.token_ids for t in g.trajectories]
            for rolled in [roll_out_questions(subject, 18, seed, Listener())]
            for e, g in zip(rolled.examples, rolled.groups, strict=True)
        }
        for seed in (0, 1)
    ]
    assert said[0].keys() == said[1].keys()  # all questions there are
    assert said[0] != said[1]


def test_rollouts_do_not_depend_on_how_many_others_there_are(trained: Path, heard: Any) -> None:
    subject = open_run(trained, "2", [], Listener(), with_reference=False)
    few, many = (roll_out_questions(subject, n, 0, heard) for n in (3, 15))
    assert [[t.token_ids for t in g.trajectories] for g in few.groups] == [
        [t.token_ids for t in g.trajectories] for g in many.groups[:3]
    ]
    assert heard.totals["rollouts"] == heard.done == 15


def test_borrowed_weights_come_back_after_an_error() -> None:
    model = torch.nn.Linear(2, 2)
    model.bias.requires_grad = False
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(KeyError), borrowed_weights(model):
        with torch.no_grad():
            model.weight.fill_(torch.nan)
        raise KeyError
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
