"""Each row of docs/reference/papers.md is trained for one step, which minimises what the method's paper describes.

The descriptions here are written from the papers, with the pages' settings and not with the library's losses: an
advantage for each rollout of a group, and a loss for the rollouts of a mini-batch. A row without one fails.
"""

from __future__ import annotations

import copy
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from holdfast.agent.batch import TokenBatch
from holdfast.agent.trajectory import Group, Invalid, Search, Trajectory
from holdfast.cli.recipes import bundled
from holdfast.methods.registry import Methods
from holdfast.recipe import Config, load, setting_values
from holdfast.train.plan import Plan

from .one_update import double, run
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
    factor: Tensor
    """Of its policy loss, from `Method.factors`."""
    left_out: Tensor
    """bool: not in the loss, from `Method.left_out`."""

    @property
    def drop(self) -> Tensor:
        return self.old - self.new

    @property
    def ratio(self) -> Tensor:
        return (-self.drop).exp()


Rollouts = Sequence[Rollout]


class Facts(NamedTuple):
    """What is known of the rollouts of a step before its update; all are lists with an entry per rollout."""

    rollouts: list[Trajectory]
    groups: list[int]
    positive: list[bool]
    old: list[Tensor]
    """float64 [N], of each sampled token."""
    hidden: list[Tensor]
    """float64 [N, d], the states that predict them."""
    unembedding: Tensor
    tokens: list[Tensor]


class Method(NamedTuple):
    """`advantages(rewards, lengths)` of a group; `loss(rollouts, searches)`: of a mini-batch, at V mean searches.
    `factors` and `left_out` give a tensor [N] per rollout; `settings` are those that make the method visible."""

    advantages: Callable[[list[float], list[int]], list[float]]
    loss: Callable[[Rollouts, float], Tensor]
    factors: Callable[[Facts], list[Tensor]] = lambda facts: [torch.ones_like(old) for old in facts.old]
    left_out: Callable[[Facts], list[Tensor]] = lambda facts: [torch.zeros(len(x), dtype=bool) for x in facts.old]
    settings: dict[str, Any] = {}  # noqa: RUF012


def grpo(rewards: list[float], _: list[int]) -> list[float]:
    return [(r - mean(rewards)) / (stdev(rewards) + 1e-6) for r in rewards]


def dr_grpo(rewards: list[float], _: list[int]) -> list[float]:
    return [r - mean(rewards) for r in rewards]


def opo(rewards: list[float], lengths: list[int]) -> list[float]:
    return [r - sum(x * n for x, n in zip(rewards, lengths, strict=True)) / sum(lengths) for r in rewards]


def by_token(terms: Sequence[Tensor]) -> Tensor:
    tokens = torch.cat(list(terms))
    return tokens.sum() / max(len(tokens), 1)


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
    return lambda o: (o.factor * surrogate(o) + kl_coef * kl(o) - entropy * o.entropy)[~o.left_out]


def llds(unit: str, coef: float, answers: Callable[[float], float] = lambda _: 1.0) -> Method:
    """The paper's: the penalty is divided by the tokens of the rollouts with A ≥ 0."""

    def loss(batch: Rollouts, searches: float) -> Tensor:
        held = sum(kept_up(o, unit, answers(searches)).sum() for o in batch)
        return by_token([policy()(o) for o in batch]) + coef * held / max(sum(len(o.new) for o in batch if o.a >= 0), 1)

    return Method(grpo, loss)


def nll_of_positives(batch: Rollouts, _: float) -> Tensor:
    """VAPO's: the mean over the tokens of the rollouts with A > 0."""
    mine = [o for o in batch if o.a > 0]
    held = -sum(o.new.sum() for o in mine) / max(sum(len(o.new) for o in mine), 1)
    return by_token([policy()(o) for o in batch]) + 0.1 * held


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


def plain(term: Callable[[Rollout], Tensor], advantages: Any = grpo, reduce: Any = by_token, **others: Any) -> Method:
    return Method(advantages, lambda batch, _: reduce([term(o) for o in batch]), **others)


def action_clipped(o: Rollout) -> Tensor:
    """The geometric mean of an action's ratios, whose gradient each of its tokens takes as its own."""
    mean_of = torch.stack([(-o.drop[o.action == k]).mean() for k in o.action])
    s = mean_of.exp().detach() * (o.new - o.new.detach()).exp()
    return -torch.min(s * o.a, s.clamp(0.8, 1.2) * o.a)


def cispo(o: Rollout) -> Tensor:
    return -o.ratio.clamp(0.0, 5.0).detach() * o.a * o.new


def dppo(o: Rollout) -> Tensor:
    """The plain ratio; without tokens whose probability has moved by more than 0.2 in the direction of A."""
    rise = (o.new.exp() - o.old.exp()).detach() * math.copysign(1, o.a)
    return -o.ratio * o.a * (rise <= 0.2)


def near_in_probability(o: Rollout) -> Tensor:
    """IPO: the plain ratio; without tokens whose probability has moved by more than 0.3, up or down."""
    return -o.ratio * o.a * ((o.new.exp() - o.old.exp()).detach().abs() <= 0.3)


def near_the_sampler(o: Rollout) -> Tensor:
    """DeepSeek-V3.2's mask, at half a nat per token."""
    return clipped(o) * (o.a >= 0 or float(o.drop.mean()) <= 0.5)


def void(facts: Facts) -> list[Tensor]:
    """SimpleTIR: every token of a rollout with a turn that neither searches nor answers."""
    return [
        torch.full((len(old),), any(isinstance(turn.action, Invalid) for turn in t.turns))
        for t, old in zip(facts.rollouts, facts.old, strict=True)
    ]


def matching_first_actions(facts: Facts) -> list[Tensor]:
    """The first search of an incorrect rollout, if a correct one of the question found the same passages first."""
    found = []
    for group, t, old in zip(facts.groups, facts.rollouts, facts.old, strict=True):
        siblings = [u for g, u in zip(facts.groups, facts.rollouts, strict=True) if g == group and u.correct]
        same = any(u.turns[0].hits == t.turns[0].hits for u in siblings if u.turns[0].hits)
        first = torch.arange(len(old)) < len(t.turns[0].tokens or ())
        found.append(first & same & (not t.correct))
    return found


def sampler_ratio(facts: Facts) -> list[Tensor]:
    """float64 [N] per rollout: the old policy over a sampler that draws from a part of the vocabulary."""
    found = []
    for t, old in zip(facts.rollouts, facts.old, strict=True):
        sampled = torch.tensor([x for turn in t.turns for x in turn.logprobs or ()])
        mass = torch.tensor([x for turn in t.turns for x in turn.mask_mass or ()])
        found.append((old - (sampled - mass.log()).double()).exp())
    return found


def unlike_the_sampler(facts: Facts) -> list[Tensor]:
    """Geo-RS: every token of a rollout whose geometric mean is outside the bounds."""
    means = [x.log().mean().exp() for x in sampler_ratio(facts)]
    return [torch.full((len(x),), not 0.99 <= m <= 1.01) for m, x in zip(means, facts.old, strict=True)]


def nthr(facts: Facts) -> list[Tensor]:
    """η = 2·|0.5 − p| on negative tokens whose score against the positive ones is above the least mean of those."""
    factors = [torch.ones_like(old) for old in facts.old]
    for group in set(facts.groups):
        rows = [row for row, g in enumerate(facts.groups) if g == group]
        words = torch.cat([facts.tokens[row] for row in rows]).unique()
        errors = {}  # e_y − π over the words of the group
        for row in rows:
            pi = (facts.hidden[row] @ facts.unembedding.T).log_softmax(-1).exp()[:, words]
            errors[row] = (facts.tokens[row][:, None] == words).double() - pi
        right = [row for row in rows if facts.positive[row]]
        if not right or len(right) == len(rows):
            continue
        score = {
            row: sum(
                ((errors[row] @ errors[other].T) * (facts.hidden[row] @ facts.hidden[other].T)).sum(1)
                for other in right
            )
            for row in rows
        }
        least = min(float(score[row].mean()) for row in right)
        eta = 2 * abs(0.5 - len(right) / len(rows))
        for row in rows:
            if row not in right:
                factors[row] = torch.where(score[row] > least, eta, 1.0)
    return factors


TRUNCATED = {"sampling.top_p": 0.9, "sampling.top_k": 40}


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
    "likelihood of positives": Method(grpo, nll_of_positives),
    "CISPO": plain(policy(cispo)),
    "DPPO": plain(policy(dppo)),
    "IPO": plain(policy(near_in_probability)),
    "ratio of an action": plain(policy(action_clipped)),
    "off-policy sequence mask": plain(policy(near_the_sampler)),
    "positive rollouts alone": plain(policy(lambda o: clipped(o) * (o.a >= 0))),
    "NTHR": plain(policy(kl_coef=1e-4), factors=nthr),
    "SimpleTIR": plain(policy(), left_out=void),
    "first actions left out": plain(policy(), left_out=matching_first_actions),
    "dynamic sampling": plain(policy()),  # of the groups that it learns from
    "filter by reward variance": plain(policy()),  # the same
    "supervised steps": plain(policy()),  # and between these steps
    "TIS": plain(policy(), factors=lambda facts: [w.clamp(max=2) for w in sampler_ratio(facts)], settings=TRUNCATED),
    "IcePop": plain(
        policy(),
        factors=lambda facts: [w * ((w >= 0.5) & (w <= 5)) for w in sampler_ratio(facts)],
        settings=TRUNCATED,
    ),
    "Geo-RS": plain(policy(), left_out=unlike_the_sampler, settings={"sampling.top_k": 320}),  # rejects a part
}

ELSEWHERE = {
    "GiGPO": "tests/methods/test_gigpo.py",
    "IGPO": "tests/methods/test_igpo.py",
    "score centering": "tests/losses/test_centering.py",
    "Clip-Cov": "tests/losses/test_remedies_differential.py",
}
"""What has loops of its own: advantages of actions, probabilities of other tokens, a draw."""

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
    """After so short a warm start nothing is correct: the best rollouts of a group become so, and all searches find
    the same passages."""

    def changed(t: Trajectory, best: float) -> Trajectory:
        turns = tuple(replace(x, hits=("p",) if isinstance(x.action, Search) else ()) for x in t.turns)
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
    metrics, weights = run(model, weighed, plan, loss, lr=0.05, answer_weight=weight, max_tokens=MOST_TOKENS)
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

    result = trainer.step()
    assert result.metrics["optimizer_steps_per_rollout"] == steps and result.metrics["grad/skipped_steps"] == 0
    assert ("loss/penalty" in result.metrics) == (penalty is not None)
    if config.loss.methods.dynamic_sampling.on:
        learned = sum(group.mixed for group in result.groups)
        extra = result.metrics["rollout/extra_questions"]
        assert len(result.groups) == config.train.questions + extra
        assert [group.mixed for group in result.groups] == [True] * learned + [False] * (len(result.groups) - learned)


# ---- PPO: advantages of tokens, and a critic


def ppo_settings() -> dict[str, Any]:
    """The settings in the section of the page about PPO."""
    _, _, section = PAGE.read_text(encoding="utf-8").partition("## PPO with a critic")
    return flattened(tomllib.loads(section.partition("```toml")[2].partition("```")[0]))


def flattened(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted names of nested tables."""
    found: dict[str, Any] = {}
    for key, x in values.items():
        found |= flattened(x, f"{prefix}{key}.") if isinstance(x, dict) else {prefix + key: x}
    return found


def ppo_advantages(values: list[Tensor], old: list[Tensor], ref: list[Tensor], rewards: list[float]) -> list[Tensor]:
    """With γ = λ = 1 what a token is still paid, less its value; then whitened over the sampled tokens of the batch.
    A token is paid minus the KL to the reference, and the last one the reward too."""
    raw = []
    for v, o, r, reward in zip(values, old, ref, rewards, strict=True):
        paid = -0.001 * (o - r)
        paid[-1] += reward
        raw.append(torch.stack([paid[k:].sum() for k in range(len(paid))]) - v)
    every = torch.cat(raw)
    return [(a - every.mean()) / (every.var() + 1e-8).sqrt() for a in raw]


def test_ppo_trains_as_its_section_says(recipe: Recipe) -> None:
    """Two steps of plain gradient descent on critic and policy, against descriptions in float64."""
    learning = {"reward.f1": 0.0, "reward.format": 0.5, "train.questions": 12, "train.lr": 3e-3}
    trainer = a_trainer(recipe(ppo_settings() | learning | {"critic.lr": 3e-3}))
    trainer.step()  # from now on values are not 0, and the policy is not the reference
    groups, _ = trainer.roll_out(trainer.question_order.next(12))
    batch = trainer.make_batch(groups)
    mask, critic, reference = batch.loss_mask, trainer.critic, trainer.learner.reference
    assert critic is not None and reference is not None and len(batch) == 12
    assert batch.rewards.tolist() == [reward_of(t, {}) for g in groups for t in g.trajectories]

    policy, value_model = trainer.learner.language_model.model, copy.deepcopy(critic.language_model.model).double()
    with reference.in_place():
        start = copy.deepcopy(policy)
    with torch.no_grad():
        old, ref = ([x[m] for x, m in zip(double(model)(batch.token_ids, mask)[0], mask, strict=True)]
                    for model in (copy.deepcopy(policy).double(), start.double()))  # fmt: skip
        values = [v[m] for v, m in zip(value_of(value_model, batch), mask, strict=True)]
    assert max(float(v.abs().max()) for v in values) > 1e-3
    assert max(float((o - r).abs().max()) for o, r in zip(old, ref, strict=True)) > 1e-3
    advantages = ppo_advantages(values, old, ref, batch.rewards.tolist())
    returns = [  # not whitened
        torch.stack([(-0.001 * (o - r))[k:].sum() + reward for k in range(len(o))])
        for o, r, reward in zip(old, ref, batch.rewards.tolist(), strict=True)
    ]

    lr, values_before = 0.05, [p.detach().clone() for p in critic.weights.values()]
    plan = trainer.learner.plan(batch, torch.Generator().manual_seed(0))
    assert len(plan) == 2

    def value_error(model: Any, rows: list[int]) -> Tensor:
        errors = []
        for row, new in zip(rows, value_of(model, batch.select(rows)), strict=True):
            v, before = new[mask[row]], values[row]
            held = before + (v - before).clamp(-0.5, 0.5)
            errors.append(torch.maximum((v - returns[row]) ** 2, (held - returns[row]) ** 2) / 2)
        return by_token(errors)

    def policy_loss(model: Any, rows: list[int]) -> Tensor:
        new = double(model)(batch.select(rows).token_ids, mask[rows])[0]
        ratios = [(new[k][mask[row]] - old[row]).exp() for k, row in enumerate(rows)]
        terms = [
            (r * advantages[row], r.clamp(0.8, 1.2) * advantages[row]) for r, row in zip(ratios, rows, strict=True)
        ]
        return by_token([-torch.min(*pair) for pair in terms])

    critic.optimizer = torch.optim.SGD(critic.weights.values(), lr=lr)
    critic._settings = critic._settings.model_copy(update={"lr": lr})
    critic._train = critic._train.model_copy(update={"grad_clip": 1e9})
    learned, metrics = critic.learn(trainer.learner.old_pass(batch, plan), plan, completed_steps=1)
    for row, expected in enumerate(advantages):
        torch.testing.assert_close(learned.batch.advantages[row][mask[row]].double(), expected, atol=1e-5, rtol=1e-5)
    assert metrics["critic/value_mean"] == pytest.approx(float(torch.cat(values).mean()), abs=1e-6)
    assert metrics["critic/return_mean"] == pytest.approx(float(torch.cat(returns).mean()), abs=1e-6)
    for (name, wanted), got in zip(
        stepped(value_model, plan, value_error, lr).items(), critic.weights.values(), strict=True
    ):
        torch.testing.assert_close(got.double(), wanted, atol=1e-6, rtol=1e-6, msg=name)  # the critic's is float32
    assert (
        max(float((w.detach() - b).abs().max()) for w, b in zip(critic.weights.values(), values_before, strict=True))
        > 1e-3
    )

    of_tokens = torch.zeros(mask.shape).double()
    for row, a in enumerate(advantages):
        of_tokens[row, mask[row]] = a
    _, weights = run(policy, replace(batch, advantages=of_tokens), plan, trainer.config.loss, lr=lr)
    for name, wanted in stepped(policy, plan, policy_loss, lr).items():
        torch.testing.assert_close(weights[name], wanted, atol=1e-8, rtol=1e-6, msg=name)


def stepped(model: Any, plan: Plan, loss: Callable[[Any, list[int]], Tensor], lr: float) -> dict[str, Tensor]:
    """The weights after one step of plain gradient descent for each mini-batch, in float64."""
    model = copy.deepcopy(model).double()
    for mini in plan:
        model.zero_grad(set_to_none=True)
        loss(model, [row for micro in mini for row in micro]).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= lr * p.grad if p.grad is not None else 0.0
    return {name: p.detach() for name, p in model.named_parameters()}


def value_of(model: Any, batch: TokenBatch) -> Tensor:
    """float64 [B, T]: what the critic says where each token is predicted."""
    logits = model(input_ids=batch.token_ids, use_cache=False).logits[:, :-1, 0]
    return torch.nn.functional.pad(logits, (1, 0))


# ---- recipes for published models, with the tiny model and the bundled world in their place

SMALL = {"train.questions": 4, "train.lr": 3e-3}


def kept(name: str) -> dict[str, Any]:
    """What the small run has of a recipe: all of its method, nothing of its model and data."""
    values = setting_values(load(bundled()[name]))
    sections = ("loss.", "sampling.", "train.", "reward.", "critic.", "protocol.preset")
    return {key: x for key, x in values.items() if key.startswith(sections) and key not in SMALL and x is not None}


PUBLISHED = {str(kept(name)): name for name in sorted(set(bundled()) - {"quickstart", "collapse", "flaky", "factbook"})}
"""One recipe of those that differ in their model alone."""


def test_the_published_recipes_have_these_methods() -> None:
    assert len(PUBLISHED) == 6  # LLDS v1, v2, v2 at 0.3, v2 with masked answers, SAPO, PPO


@pytest.mark.parametrize("name", PUBLISHED.values())
def test_a_published_recipe_trains_for_one_step(name: str, recipe: Recipe) -> None:
    published = load(bundled()[name])
    config: Config = recipe(kept(name) | SMALL | {"reward.format": 0.5})
    assert config.loss == published.loss and config.sampling == published.sampling
    trainer = a_trainer(config)
    result = trainer.step()
    metrics = result.metrics
    steps = 2 if name.endswith("ppo") else 10
    assert metrics["optimizer_steps_per_rollout"] == published.train.optimizer_steps_per_rollout == steps
    assert ("critic/value_loss" in metrics) == name.endswith("ppo")
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
    assert metrics["loss/entropy"] != 0
    both = {"loss/kl", "loss/penalty"}
    assert both & set(metrics) == (set() if name.endswith("ppo") else both)  # PPO's KL is in its rewards
    assert any("documents" in turn.observation_text for t in everyone for turn in t.turns) == name.startswith("sapo")
