"""Each row of docs/reference/papers.md is trained for one step, which minimises what the method's paper describes.

The descriptions are in `papers.py`. A row without one fails.
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.agent.batch import TokenBatch
from holdfast.agent.trajectory import Group, Search, Trajectory
from holdfast.methods.registry import Methods
from holdfast.recipe import Config, load, setting_values
from holdfast.recipe.loading import bundled
from holdfast.train.plan import Plan

from .one_update import double, run
from .papers import MAX_TOKENS, METHODS, Facts, Method, Rollout
from .whole_runs import Recipe, a_trainer

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "papers.md"


def rows() -> Iterator[tuple[str, dict[str, Any]]]:
    """The first cell of each table row with settings, and the settings."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        settings = re.findall(r"`([a-z0-9_.]+) = ([^`]+)`", line)
        if line.startswith("| ") and settings:
            yield (
                line.split(" | ")[0].removeprefix("| "),
                {name: tomllib.loads(f"value = {text}")["value"] for name, text in settings},
            )


ELSEWHERE = {
    "GiGPO": "tests/methods/test_credit.py",
    "score centering": "tests/losses/test_centering.py",
    "Clip-Cov": "tests/losses/test_remedies_differential.py",
    "M2PO": "tests/losses/test_remedies_differential.py",
    "decoupled PPO": "tests/losses/test_remedies_differential.py",
}
"""What has loops of its own: advantages of actions, probabilities of other tokens, a draw, log-probs of an older
sampler."""

ALL_ROWS = list(rows())
ROWS = [(row, settings) for row, settings in ALL_ROWS if not row.startswith(tuple(ELSEWHERE))]


def test_every_row_has_a_description() -> None:
    assert len(ROWS) > 15
    for row, _ in ALL_ROWS:
        assert len([name for name in (*METHODS, *ELSEWHERE) if row.startswith(name)]) == 1, row
    root = Path(__file__).parents[2]
    assert all((root / path).is_file() for path in ELSEWHERE.values())


# ---- one step of each


def facts_of(model: Any, batch: TokenBatch, trajectories: list[Trajectory]) -> Facts:
    """Under the weights before the update, in float64."""
    mask = batch.loss_mask
    with torch.no_grad():
        old, _ = double(model)(batch.token_ids, mask)
        states = model(input_ids=batch.token_ids, use_cache=False, output_hidden_states=True).hidden_states[-1]
    before = states.roll(1, 1)
    return Facts(
        trajectories,
        batch.group_ids.tolist(),
        (batch.advantages[:, 0] > 0).tolist(),
        *([x[row][m] for row, m in enumerate(mask)] for x in (old, before)),
        model.get_output_embeddings().weight.detach(),
        [ids[m] for ids, m in zip(batch.token_ids, mask, strict=True)],
    )


def descend(
    model: Any, batch: TokenBatch, plan: Plan, method: Method, trajectories: list[Trajectory], lr: float
) -> dict[str, Tensor]:
    """The weights after one step of plain gradient descent for each mini-batch, in float64."""
    model = copy.deepcopy(model).double()
    forward = double(model)
    facts = facts_of(model, batch, trajectories)
    factors, left_out = method.factors(facts), method.left_out(facts)
    searches = mean(t.searches for t in trajectories)
    for mini in plan:
        rows = [row for micro in mini for row in micro]
        part = batch.select(rows)
        new, entropy = forward(part.token_ids, part.loss_mask, entropy=True)
        assert entropy is not None
        rollouts = []
        for k, row in enumerate(rows):
            now, bonus, action, answer = (
                x[k][part.loss_mask[k]] for x in (new, entropy, part.action_ids, part.answer_mask)
            )
            old = facts.old[row]
            a = float(part.advantages[k, 0])
            rollouts.append(Rollout(a, now, old, old, bonus, action, answer, factors[row], left_out[row]))
        model.zero_grad()
        method.loss(rollouts, searches).backward()
        with torch.no_grad():
            for p in model.parameters():
                assert p.grad is not None
                p -= lr * p.grad
    return {name: p.detach() for name, p in model.named_parameters()}


def reward_of(trajectory: Trajectory, settings: dict[str, Any]) -> float:
    """By the row's own words: exact match, or F1 for those that say so. The small recipe adds half for the format."""
    parts = trajectory.reward_parts
    return parts["f1" if settings.get("reward.f1") else "em"] + 0.5 * parts["format"]


def with_matches(groups: Sequence[Group]) -> list[Group]:
    """After so short a warm start nothing is correct: the best rollouts of a group become so. All begin with a search
    for the same passages."""

    def changed(t: Trajectory, best: float) -> Trajectory:
        first, *later = t.turns
        turns = (replace(first, action=Search("q"), hits=("p",)), *(replace(x, hits=()) for x in later))
        return replace(t, turns=turns, reward_parts=t.reward_parts | {"em": float(t.reward == best)})

    return [
        Group(g.id, tuple(changed(t, max(u.reward or 0.0 for u in g.trajectories)) for t in g.trajectories))
        for g in groups
    ]


@pytest.mark.grid(5)
@pytest.mark.parametrize(("row", "settings"), ROWS, ids=[row.partition(",")[0] for row, _ in ROWS])
def test_a_row_trains_as_its_paper_says(row: str, settings: dict[str, Any], recipe: Recipe) -> None:
    (method,) = [method for name, method in METHODS.items() if row.startswith(name)]
    small = {"reward": {"em": 1.0, "format": 0.5}, "loss.kl_coef": 0.001}
    trainer = a_trainer(recipe(small | method.settings | settings))
    config, model = trainer.config, trainer.learner.language_model.model
    groups, _ = trainer.roll_out(trainer.question_order.next(config.train.questions))
    rewards = [[reward_of(t, settings) for t in group.trajectories] for group in groups]
    assert [[t.reward for t in group.trajectories] for group in groups] == [pytest.approx(r) for r in rewards]
    # What so small a model did may be equally good or bad: every other rollout gets 1 more.
    rewards = [[r + (g + k) % 2 for k, r in enumerate(group)] for g, group in enumerate(rewards)]
    groups = [
        Group(group.id, tuple(replace(t, reward=x) for t, x in zip(group.trajectories, r, strict=True)))
        for group, r in zip(groups, rewards, strict=True)
    ]
    if config.loss.methods.drop_first_actions.on:
        groups = with_matches(groups)
    batch = trainer.make_batch(groups)
    everyone = [t for group in groups for t in group.trajectories]
    assert len(everyone) == len(batch) == config.train.questions * settings.get("train.group_size", 4)
    expected = [
        a
        for group, r in zip(groups, rewards, strict=True)
        for a in method.advantages(r, [sum(t.loss_mask) for t in group.trajectories])
    ]
    assert batch.advantages[:, 0].tolist() == pytest.approx(expected, abs=1e-4)
    assert max(expected) > 0 and (min(expected) < 0 or "reinforce" in settings.values())

    steps = settings.get("train.optimizer_steps_per_rollout", 3)
    plan = trainer.learner.plan(batch, torch.Generator().manual_seed(0))
    assert len(plan) == steps
    penalty, loss, weighed = config.loss.penalty.term, config.loss, batch
    weight = (penalty.weight_at(mean(t.searches for t in everyone)) if penalty is not None else None) or 0.0
    if loss.methods.nthr.on:  # its factors are made in the old pass, from the states behind a forward pass
        factors = torch.ones(batch.loss_mask.shape)
        for micros, mini in zip(trainer.learner.old_pass(batch, plan).minibatches, plan, strict=True):
            for micro, rows_of_micro in zip(micros, mini, strict=True):
                assert micro.policy_weights is not None
                factors[rows_of_micro, : micro.loss_mask.shape[1]] = micro.policy_weights
        loss, weighed = loss.model_copy(update={"methods": Methods()}), replace(batch, policy_weights=factors)
    metrics, weights = run(model, weighed, plan, loss, lr=0.05, answer_weight=weight, max_tokens=MAX_TOKENS)
    wanted = descend(model, batch, plan, method, everyone, lr=0.05)
    moved = 0.0
    for name, start in model.named_parameters():
        torch.testing.assert_close(weights[name], wanted[name], atol=1e-8, rtol=1e-6, msg=name)
        moved = max(moved, float((weights[name] - start.detach().double()).abs().max()))
    assert moved > 1e-4
    assert metrics.get("loss/penalty", 0.0) > 0 or penalty is None or "no condition" in row
    facts = facts_of(copy.deepcopy(model).double(), batch, everyone)
    if method.factors is not Method._field_defaults["factors"]:
        assert min(float(x.min()) for x in method.factors(facts)) < 0.999, "the method has something to do"
    if method.left_out is not Method._field_defaults["left_out"]:
        assert 0 < sum(int(x.sum()) for x in method.left_out(facts)) < sum(len(x) for x in facts.old)

    if config.loss.methods.dynamic_sampling.on:
        result = trainer.step()
        learned = sum(group.mixed for group in result.groups)
        extra = result.metrics["rollout/extra_questions"]
        assert len(result.groups) == config.train.questions + extra
        assert [group.mixed for group in result.groups] == [True] * learned + [False] * (len(result.groups) - learned)


# ---- recipes for published models, with the tiny model and the bundled world in their place

SMALL = {"train.questions": 4, "train.lr": 3e-3}


def kept(name: str) -> dict[str, Any]:
    """What the small run has of a recipe: all of its method, nothing of its model and data."""
    values = setting_values(load(bundled()[name]))
    sections = ("loss.", "sampling.", "train.", "reward.", "critic.", "protocol.preset")
    return {key: x for key, x in values.items() if key.startswith(sections) and key not in SMALL and x is not None}


PUBLISHED = {str(kept(name)): name for name in sorted(set(bundled()) - {"quickstart", "collapse", "flaky", "factbook"})}
"""One recipe of those that differ in their model alone."""


@pytest.mark.grid(2)
@pytest.mark.parametrize("name", PUBLISHED.values())
def test_a_published_recipe_trains_for_one_step(name: str, recipe: Recipe) -> None:
    published = load(bundled()[name])
    config: Config = recipe(kept(name) | SMALL | {"reward.format": 0.5})
    assert config.loss == published.loss and config.sampling == published.sampling
    result = a_trainer(config).step()
    metrics, everyone = result.metrics, [t for group in result.groups for t in group.trajectories]
    ppo = name.endswith("ppo")
    assert metrics["optimizer_steps_per_rollout"] == (2 if ppo else 10) and ("critic/value_loss" in metrics) == ppo
    assert len(everyone) == 4 * published.train.group_size
    assert metrics["lr"] == pytest.approx(3e-3 / (published.train.warmup + 1))
    part = "reward/f1" if name.startswith("sapo") else "reward/em"
    formats = mean(t.reward_parts["format"] for t in everyone)
    assert metrics["reward/mean"] == pytest.approx(metrics[part] + 0.5 * formats, abs=1e-6)
    if published.loss.penalty.name == "llds":
        adaptive = published.loss.penalty.answer_weight != 1
        weight = min(metrics["rollout/searches"] / 2, 1.0) if adaptive else 1.0
        assert metrics["penalty/answer_weight"] == pytest.approx(weight)
    both = {"loss/kl", "loss/penalty"}
    assert both & set(metrics) == (set() if ppo else both)  # PPO's KL is in its rewards
    assert any("documents" in turn.observation_text for t in everyone for turn in t.turns) == name.startswith("sapo")
