"""What the papers of docs/reference/papers.md describe: an advantage for each rollout of a group, and a loss for the
rollouts of a mini-batch. Written from the papers, with the page's settings and not with the library's losses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any, NamedTuple

import torch
from torch import Tensor

from holdfast.agent.trajectory import Invalid, Trajectory


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
    return clipped(o) * (o.a >= 0 or float(o.drop.detach().mean()) <= 0.5)


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


MAX_TOKENS = 3 * 24
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
        policy(kl_coef=0.0), dr_grpo, lambda terms: sum(term.sum() for term in terms) / MAX_TOKENS / len(terms)
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
