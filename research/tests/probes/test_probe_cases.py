"""Cases: displacement and pushes against independent computations, labels, and the pages."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.rollouts import rollout, turn

from holdfast.agent.trajectory import Answer, Search, Trajectory
from holdfast_research.probes import Cases, Rollouts, Subject, case_pages, cases, influence
from holdfast_research.probes.cases import LABELS

Make = Callable[..., Any]
WORDS = ["<pad>", "red ", "green ", "blue ", "</s>"]


class Tokenizer:
    """A word for each id."""

    pad_token_id, eos_token_id = 0, 4

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join(WORDS[k] for k in ids)


@pytest.fixture
def subject(policy_of: Make) -> Callable[..., Subject]:
    """subject(temperature=0.7): over the five words."""
    return lambda temperature=1.0: policy_of(Tokenizer(), vocabulary=len(WORDS), temperature=temperature, lr=1e-2)


def said(correct: bool, *turns: Sequence[int], answer: str = "y") -> Trajectory:
    """Searches with two tokens of observation, then the answer, which is `x` if correct."""
    texts = ["".join(WORDS[i] for i in ids).removesuffix("</s>") for ids in turns]
    searches = [
        turn(Search("q"), ids, text=text, observation=(1, 2), observation_text="a passage")
        for ids, text in zip(turns[:-1], texts[:-1], strict=True)
    ]
    last = turn(Answer("x" if correct else answer), turns[-1], text=texts[-1])
    return rollout(*searches, last, right=correct, prompt=(3, 1))


@pytest.fixture
def some(rolled: Make) -> Rollouts:
    """Three questions of two correct and three incorrect rollouts, one and two turns, and all tokens in each group."""
    groups = [
        [
            said(True, [1, 2, 3], [g + 1, 4]),
            said(True, [3, 4]),
            said(False, [1, 2, 3], [2, 1, g + 1]),
            said(False, [2, 2, 1, 3, 0, 4]),
            said(False, [g + 1, 4]),
        ]
        for g in range(3)
    ]
    made: Rollouts = rolled(*groups)
    return made


def logprobs(model: Any, trajectory: Trajectory, temperature: float) -> torch.Tensor:
    """Of the sampled tokens, from transformers' own logits: [n]."""
    ids = torch.tensor([trajectory.token_ids])
    places = [k for k, sampled in enumerate(trajectory.loss_mask) if sampled]
    every = (model(input_ids=ids).logits[0] / temperature).log_softmax(-1)
    return torch.stack([every[k - 1, trajectory.token_ids[k]] for k in places])


def test_pushes_are_products_of_gradients(subject: Make, some: Rollouts, heard: Any) -> None:
    """One rollout's gradient at the output layer times another's, by autograd; the pair is where that is lowest."""
    temperature = 0.7
    policy = subject(temperature)
    model = policy.language_model.model
    found = cases(policy, some, top=9, listener=heard)
    assert (found.asked, len(found.every), heard.done[-1]) == (3, 3, 3)
    for case in found.every:
        group = next(g for g in some.groups if g.id == case.id)
        weight = model.lm_head.weight
        per_token = [
            [torch.autograd.grad(value, weight, retain_graph=True)[0] for value in logprobs(model, t, temperature)]
            for t in group.trajectories
        ]
        whole = [torch.stack(g).sum(0) for g in per_token]
        z, negative = sum(map(len, per_token)), -((2 / 3) ** 0.5)
        onto = {(j, i): negative * float((whole[j] * whole[i]).sum()) / z for j in (2, 3, 4) for i in (0, 1)}
        j = min((2, 3, 4), key=lambda j: onto[j, 0] + onto[j, 1])
        i = min((0, 1), key=lambda i: onto[j, i])
        assert [len(case.correct.tokens), len(case.incorrect.tokens)] == [len(per_token[i]), len(per_token[j])]
        assert case.push == pytest.approx(onto[j, i], rel=1e-4, abs=1e-7)
        for name, mine, other in (("correct", i, j), ("incorrect", j, i)):
            tokens = getattr(case, name).tokens
            expected = [negative * float((g * whole[other]).sum()) / z for g in per_token[mine]]
            assert [t.push for t in tokens] == pytest.approx(expected, rel=1e-4, abs=1e-6)
            assert sum(t.push for t in tokens) == pytest.approx(case.push, rel=1e-4, abs=1e-6)
            said = [WORDS[k] for turn in group.trajectories[mine].turns for k in turn.tokens or ()]
            assert [t.text for t in tokens] == [word if word != "</s>" else "" for word in said]
            before = logprobs(model, group.trajectories[mine], temperature)
            assert [t.before for t in tokens] == pytest.approx(before.tolist(), abs=1e-5)


def test_changes_and_totals_are_those_of_the_influence_probe(subject: Make, some: Rollouts, heard: Any) -> None:
    policy = subject()
    start = [p.clone() for p in policy.language_model.model.parameters()]
    found = cases(policy, some, top=2, listener=heard)
    assert all(torch.equal(a, b) for a, b in zip(start, policy.language_model.model.parameters(), strict=True))
    units = influence(policy, some, listener=heard).rollouts
    by_question = {q: list(group) for q, group in itertools.groupby(units, key=lambda u: u.question)}
    for case in found.every:
        of_it = by_question[case.id]
        assert case.displacement == pytest.approx(sum(u.optimizer for u in of_it) / 2, abs=1e-6)
        assert any(
            case.predicted == pytest.approx(u.predicted, rel=1e-4)
            and case.correct.change == pytest.approx(u.optimizer, abs=1e-6)
            for u in of_it
        )
    assert [c.displacement for c in found.every] == sorted(c.displacement for c in found.every)
    assert found.shown == found.every[:2]
    json.dumps(found.to_json(), allow_nan=False)


def test_the_prefix_is_counted_in_sampled_tokens(subject: Make, rolled: Make, heard: Any) -> None:
    """Two observations of two tokens lie between; the rollouts differ in the last token."""
    pair = [said(True, [1], [2, 3], [1, 2]), said(False, [1], [2, 3], [1, 3], answer="x y")]
    (case,) = cases(subject(), rolled(pair), listener=heard).every
    assert (case.shared_tokens, case.answer_f1) == (4, pytest.approx(2 / 3))
    assert case.labels == ("shared prefix", "near-miss answer")


# ---- labels, of cases made by hand


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ({"shared": 4, "wrong": (14, -2.0), "f1": 0.49}, ()),
        ({"wrong": (15, -0.5)}, ()),
        ({"shared": 2, "right": (4, -1.0)}, ("shared prefix",)),
        ({"shared": 10, "f1": 1.0, "wrong": (20, -2.0)}, tuple(LABELS)),
    ],
)
def test_labels(case: Make, made: dict[str, Any], expected: tuple[str, ...]) -> None:
    assert case(**made).labels == expected


# ---- the pages


def test_the_page_has_each_pair_token_by_token(found: Cases) -> None:
    page = case_pages(found, "cases · a run")
    assert page.count("\n## ") == 2 and page.count("\n### ") == 4 and "## 1. Who &lt;b&gt;?" in page
    rows = [row.replace("\\|", "").count("|") for row in page.splitlines() if row.startswith("| ")]
    assert set(rows) == {4, 5, 7}
    assert page.count("The 40 of 60 tokens that changed most:") == 1
    assert "| log-prob per token | -1.000 | -2.000 |" in page and "| change of log-likelihood | -2.500 |" in page
    assert page.count("> ````text") == 4, "a fence longer than that in the passage"
