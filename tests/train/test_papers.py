"""Each row of docs/papers.md is trained for one step, and what the step minimises is what the method's paper describes.

The descriptions here are written from the papers, with the pages' settings and not with the library's losses: an
advantage for each rollout of a group, and a loss for the rollouts of a mini-batch. A row without one fails.
"""

from __future__ import annotations

import copy
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from holdfast.cli.recipes import bundled
from holdfast.config import Config, load, setting_values
from holdfast.trajectory import Trajectory

from .one_update import double, run
from .whole_runs import Recipe, a_trainer

PAGE = Path(__file__).parents[2] / "docs" / "papers.md"


def rows() -> Iterator[tuple[str, dict[str, Any]]]:
    """The first cell of each table row with settings, and the settings."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        settings = re.findall(r"`([a-z0-9_.]+) = ([^`]+)`", line)
        if line.startswith("| ") and settings:
            yield (
                line.split(" | ")[0].removeprefix("| "),
                {name: tomllib.loads(f"value = {text}")["value"] for name, text in settings},
            )


# ---- descriptions


@dataclass(frozen=True)
class Rollout:
    """A rollout of a mini-batch: its advantage, and float64 [N] for its N sampled tokens."""

    a: float
    new: Tensor
    old: Tensor
    ref: Tensor
    entropy: Tensor
    action: Tensor
    answer: Tensor

    @property
    def drop(self) -> Tensor:
        return self.old - self.new

    @property
    def ratio(self) -> Tensor:
        return (-self.drop).exp()


Rollouts = Sequence[Rollout]


class Method(NamedTuple):
    """`advantages(rewards, lengths)` of a group; `loss(rollouts, searches)`: of a mini-batch, at V mean searches."""

    advantages: Callable[[list[float], list[int]], list[float]]
    loss: Callable[[Rollouts, float], Tensor]


def grpo(rewards: list[float], _: list[int]) -> list[float]:
    return [(r - mean(rewards)) / (stdev(rewards) + 1e-6) for r in rewards]


def dr_grpo(rewards: list[float], _: list[int]) -> list[float]:
    return [r - mean(rewards) for r in rewards]


def opo(rewards: list[float], lengths: list[int]) -> list[float]:
    return [r - sum(x * n for x, n in zip(rewards, lengths, strict=True)) / sum(lengths) for r in rewards]


def by_token(terms: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(terms)).mean()


def by_rollout(terms: Sequence[Tensor]) -> Tensor:
    return torch.stack([term.mean() for term in terms]).mean()


def clipped(o: Rollout, low: float = 0.2, high: float = 0.2, bound: float = math.inf) -> Tensor:
    """PPO's, and for A < 0 at most `bound` times |A|."""
    value = torch.min(o.ratio * o.a, o.ratio.clamp(1 - low, 1 + high) * o.a)
    return -(value if o.a >= 0 or bound == math.inf else value.clamp(min=bound * o.a))


def sequence_clipped(o: Rollout) -> Tensor:
    """GSPO's: the geometric mean of the ratios, whose gradient each token takes as its own."""
    s = (-o.drop.mean()).exp().detach() * (o.new - o.new.detach()).exp()
    return -torch.min(s * o.a, s.clamp(1 - 3e-4, 1 + 4e-4) * o.a)


def kl(o: Rollout) -> Tensor:
    d = o.ref - o.new
    return d.exp() - d - 1


def kept_up(o: Rollout, unit: str, answers: float) -> Tensor:
    """max(0, Δ) of a rollout with A ≥ 0 where the sum of Δ over the token's unit is above 0."""
    if o.a < 0:
        return 0 * o.new
    of_unit = {"token": torch.arange(len(o.new)), "response": 0 * o.action, "action": o.action}[unit]
    opened = torch.stack([o.drop[of_unit == u].sum() > 0 for u in of_unit])
    return torch.where(opened, o.drop.clamp(min=0), 0.0) * torch.where(o.answer, answers, 1.0)


def policy(
    surrogate: Callable[[Rollout], Tensor] = clipped, kl_coef: float = 0.001, entropy: float = 0.0
) -> Callable[[Rollout], Tensor]:
    return lambda o: surrogate(o) + kl_coef * kl(o) - entropy * o.entropy


def llds(unit: str, coef: float, answers: Callable[[float], float] = lambda _: 1.0) -> Method:
    """The released code's: the penalty is divided by all tokens."""
    return Method(
        grpo,
        lambda batch, searches: by_token([policy()(o) + coef * kept_up(o, unit, answers(searches)) for o in batch]),
    )


def conditional_kl(tau: float, of: Callable[[Rollout], bool], entropy: float = 0.0) -> Method:
    """SAPO: γ · 1[r < τ] · (−log r), in the mean over rollouts of the mean over tokens."""

    def term(o: Rollout) -> Tensor:
        return policy(entropy=entropy)(o) + 0.1 * torch.where((o.ratio < tau) & of(o), o.drop, 0.0)

    return Method(grpo, lambda batch, _: by_rollout([term(o) for o in batch]))


def sapo_code(batch: Rollouts, _: float) -> Tensor:
    """The released code: tokens with r < 1 of rollouts with A ≥ 0, divided by all tokens of those rollouts."""
    mine = [o for o in batch if o.a >= 0]
    held = sum(torch.where(o.ratio < 1, o.drop, 0.0).sum() for o in mine) / max(sum(len(o.new) for o in mine), 1)
    return by_token([policy(entropy=0.001)(o) for o in batch]) + 0.1 * held


def plain(term: Callable[[Rollout], Tensor], advantages: Any = grpo, reduce: Any = by_token) -> Method:
    return Method(advantages, lambda batch, _: reduce([term(o) for o in batch]))


MOST_TOKENS = 3 * 24
"""Sampled tokens that a rollout of the small recipe may have."""


METHODS: dict[str, Method] = {
    # beginning of the row
    "LLDS, action gate (v2, the default)": llds("action", 0.2),
    "LLDS-R, response gate (v1)": llds("response", 0.1),
    "LLD, no gate (v1)": llds("token", 0.1),
    "LLDS-MA, answers masked (v1)": llds("response", 0.1, lambda _: 0.0),
    "LLDS-MA, adaptive (v2)": llds("action", 0.2, lambda searches: min(searches / 2, 1.0)),
    "SAPO, as in the paper": conditional_kl(1.0, lambda o: o.a > 0, entropy=0.001),
    "SAPO, as in its code": Method(grpo, sapo_code),
    "KL to the old policy on r alone": conditional_kl(1.0, lambda o: True),
    "KL to the old policy, no condition": conditional_kl(math.inf, lambda o: True),
    "GRPO,": plain(policy(entropy=0.001)),
    "Dr.GRPO": plain(
        policy(kl_coef=0.0), dr_grpo, lambda terms: sum(term.sum() for term in terms) / MOST_TOKENS / len(terms)
    ),
    "OPO": plain(policy(kl_coef=0.0), opo),
    "REINFORCE": plain(policy(), lambda rewards, _: rewards),
    "clip-higher of DAPO": plain(policy(lambda o: clipped(o, high=0.28))),
    "dual clip": plain(policy(lambda o: clipped(o, bound=3.0))),
    "GSPO": plain(policy(sequence_clipped), reduce=by_rollout),
    "likelihood of positives": plain(lambda o: policy()(o) - 0.1 * o.new * (o.a > 0)),
}

ROWS = list(rows())


def test_every_row_has_a_description_and_the_other_way_round() -> None:
    found = [[name for name in METHODS if row.startswith(name)] for row, _ in ROWS]
    assert sorted(found) == sorted([name] for name in METHODS)


# ---- one step of each


def descend(model: Any, batch: Any, plan: Any, method: Method, searches: float, lr: float) -> dict[str, Tensor]:
    """The weights after one step of plain gradient descent for each mini-batch, in float64."""
    model = copy.deepcopy(model).double()
    forward = double(model)
    with torch.no_grad():
        old, _ = forward(batch.token_ids, batch.loss_mask)
    for mini in plan:
        part = batch.select([row for micro in mini for row in micro])
        start = old[[row for micro in mini for row in micro]]
        new, entropy = forward(part.token_ids, part.loss_mask, entropy=True)
        rollouts = [
            Rollout(float(a), *(x[row][m] for x in (new, start, start, entropy, part.action_ids, part.answer_mask)))
            for row, (a, m) in enumerate(zip(part.advantages[:, 0], part.loss_mask, strict=True))
        ]
        model.zero_grad()
        method.loss(rollouts, searches).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= lr * p.grad
    return {name: p.detach() for name, p in model.named_parameters()}


def reward_of(trajectory: Trajectory, settings: dict[str, Any]) -> float:
    """By the row's own words: exact match, or F1 for those that say so. The small recipe adds half for the format."""
    parts = trajectory.reward_parts
    return parts["f1" if settings.get("reward.f1") else "em"] + 0.5 * parts["format"]


@pytest.mark.parametrize(("row", "settings"), ROWS, ids=[row.partition(",")[0] for row, _ in ROWS])
def test_a_row_trains_as_its_paper_says(row: str, settings: dict[str, Any], recipe: Recipe) -> None:
    (method,) = [method for name, method in METHODS.items() if row.startswith(name)]
    small = {"reward": {"em": 1.0, "format": 0.5}, "loss.kl_coef": 0.001}
    trainer = a_trainer(recipe(small | settings))
    config, model = trainer.config, trainer.learner.language_model.model
    groups, _ = trainer.roll_out(trainer.question_order.next(config.train.questions))
    batch = trainer.make_batch(groups)
    everyone = [t for group in groups for t in group.trajectories]
    assert len(everyone) == len(batch) == config.train.questions * settings.get("train.group_size", 4)

    expected = []
    for group in groups:
        rewards = [reward_of(t, settings) for t in group.trajectories]
        assert [t.reward for t in group.trajectories] == pytest.approx(rewards)
        expected += method.advantages(rewards, [sum(t.loss_mask) for t in group.trajectories])
    assert batch.advantages[:, 0].tolist() == pytest.approx(expected, abs=1e-4)
    assert max(expected) > 0 and (min(expected) < 0 or "reinforce" in settings.values())

    steps = settings.get("train.optimizer_steps_per_rollout", 3)
    plan = trainer.learner.plan(batch, torch.Generator().manual_seed(0))
    assert len(plan) == steps
    searches = mean(t.searches for t in everyone)
    penalty = config.loss.penalty.term
    weight = (penalty.weight_at(searches) if penalty is not None else None) or 0.0
    metrics, weights = run(model, batch, plan, config.loss, lr=0.05, answer_weight=weight, max_tokens=MOST_TOKENS)
    wanted = descend(model, batch, plan, method, searches, lr=0.05)
    moved = 0.0
    for name, start in model.named_parameters():
        torch.testing.assert_close(weights[name], wanted[name], atol=1e-8, rtol=1e-6, msg=name)
        moved = max(moved, float((weights[name] - start.detach().double()).abs().max()))
    assert moved > 1e-4
    assert metrics.get("loss/penalty", 0.0) > 0 or penalty is None or "no condition" in row

    result = trainer.step()
    assert result.metrics["optimizer_steps_per_rollout"] == steps and result.metrics["grad/skipped_steps"] == 0
    assert ("loss/penalty" in result.metrics) == (penalty is not None)


# ---- recipes for published models, with the tiny model and the bundled world in their place

SMALL = {"train.questions": 4, "train.lr": 3e-3}


def kept(name: str) -> dict[str, Any]:
    """What the small run has of a recipe: all of its method, nothing of its model and data."""
    values = setting_values(load(bundled()[name]))
    sections = ("loss.", "sampling.", "train.", "reward.", "protocol.preset")
    return {key: x for key, x in values.items() if key.startswith(sections) and key not in SMALL and x is not None}


PUBLISHED = {str(kept(name)): name for name in sorted(set(bundled()) - {"quickstart", "collapse", "flaky"})}
"""One recipe of those that differ in their model alone."""


def test_the_published_recipes_have_these_methods() -> None:
    assert len(PUBLISHED) == 5  # LLDS v1, v2, v2 at 0.3, v2 with masked answers, SAPO


@pytest.mark.parametrize("name", PUBLISHED.values())
def test_a_published_recipe_trains_for_one_step(name: str, recipe: Recipe) -> None:
    published = load(bundled()[name])
    config: Config = recipe(kept(name) | SMALL | {"reward.format": 0.5})
    assert config.loss == published.loss and config.sampling == published.sampling
    trainer = a_trainer(config)
    result = trainer.step()
    metrics = result.metrics
    assert metrics["optimizer_steps_per_rollout"] == published.train.optimizer_steps_per_rollout == 10
    everyone = [t for group in result.groups for t in group.trajectories]
    assert len(everyone) == 4 * published.train.group_size
    assert metrics["lr"] == pytest.approx(3e-3 / (published.train.warmup + 1))
    part = "reward/f1" if name.startswith("sapo") else "reward/em"
    assert metrics["reward/mean"] == pytest.approx(
        metrics[part] + 0.5 * mean(t.reward_parts["format"] for t in everyone), abs=1e-6
    )
    weight = metrics.get("penalty/answer_weight")
    if published.loss.penalty.name == "llds":
        adaptive = published.loss.penalty.answer_weight != 1
        assert weight == pytest.approx(min(metrics["rollout/searches"] / 2, 1.0) if adaptive else 1.0)
    assert metrics["loss/entropy"] != 0 and "loss/kl" in metrics and "loss/penalty" in metrics
    assert any("documents" in turn.observation_text for t in everyone for turn in t.turns) == name.startswith("sapo")
