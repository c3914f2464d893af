"""Influence: whether the theory of displacement holds for a checkpoint, rollout by rollout and action by action.

The theory (`holdfast.losses.gwhes`) predicts from one pass how much less likely the negative gradient makes correct
rollouts. This probe makes and measures one GRPO step on each question alone. It also measures the similarity of hidden
states, on which the prediction depends.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import mean
from typing import Any, Literal

import torch
from torch import Tensor

from holdfast.agent.batch import TokenBatch
from holdfast.agent.trajectory import Group, Trajectory
from holdfast.base.errors import RolloutError
from holdfast.losses import gwhes
from holdfast.methods.nthr import check_logits, output_layer
from holdfast.methods.penalties import NoPenalty
from holdfast.model.checkpoint import load_optimizer
from holdfast.model.passes.logprobs import hidden_states
from holdfast.recipe import Config, Loss
from holdfast.train.learner import make_learner
from holdfast.train.listener import Listener
from holdfast.train.objective import Objective
from holdfast.train.plan import Plan
from holdfast.train.rollouts import training_batch
from holdfast_research.probes.per_sample import note_skipped
from holdfast_research.probes.report import ALL, CORRECT, columns, panels, percent
from holdfast_research.probes.subject import Rollouts, Subject, borrowed_weights
from holdfast_research.ranks import correlation_interval, fifth, lowest_overlap, rank_correlation

_MOVED = 0.1
"""Nats by which the small steps of `_derivative` move a group: far above rounding, far below curvature."""

Measure = Literal["gradient", "optimizer"]
MEASURES: tuple[Measure, ...] = ("gradient", "optimizer")
UNITS = ("question", "rollout", "first action", "later action")


@dataclass(frozen=True, slots=True, kw_only=True)
class Influenced:
    """A correct rollout, or an action of one, and its change by one GRPO step on the group of its question."""

    question: str
    """Id of its question."""
    rollout: int
    """Its place among the rollouts of the group that did not fail."""
    action: int
    """1, 2, …; 0 for the whole rollout."""
    tokens: int
    predicted: float
    """−𝒢 / Z: change of log-likelihood per unit of step size, by the output layer alone."""
    gradient: float
    """The same by all weights, measured: d log-likelihood / d step size, in nats."""
    optimizer: float
    """New minus old log-likelihood after one step of the recipe's optimizer, in nats."""

    @property
    def unit(self) -> str:
        """Which of `UNITS` it is."""
        return {0: "rollout", 1: "first action"}.get(self.action, "later action")


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How well predictions rank what was measured."""

    unit: str
    measure: Measure
    count: int
    correlation: float | None
    """Spearman's; None where nothing can be ranked."""
    low: float | None
    high: float | None
    """Its 95 % interval: a percentile bootstrap over questions."""
    top: int
    """A fifth of the units."""
    overlap: float | None
    """Share of the `top` units with the lowest prediction that are also among the `top` with the lowest change. By
    chance it is about `top` / `count`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Similarity:
    """Mean cosine of hidden states, each the mean over an action's tokens, over pairs of rollouts; None: no pairs."""

    action: int
    """1, 2, …; 0 for whole rollouts."""
    incorrect_correct: float | None
    """An incorrect and a correct rollout of one question."""
    correct_correct: float | None
    """Two correct rollouts of one question."""
    other_questions: float | None
    """An incorrect rollout and a correct one of another question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Influence:
    """Predicted and measured influence of a GRPO step on the correct rollouts of its question."""

    asked: int
    """Questions rolled out."""
    used: int
    """Those of them with a correct and an incorrect rollout."""
    units: tuple[Influenced, ...]
    """Of correct rollouts."""
    similarity: tuple[Similarity, ...]
    """Of whole rollouts, then of the first, second, … action."""

    @property
    def rollouts(self) -> list[Influenced]:
        """Whole rollouts."""
        return [unit for unit in self.units if unit.action == 0]

    def pairs(self, unit: str, measure: Measure) -> list[tuple[str, float, float]]:
        """(question, predicted, measured) of all units of a kind; of a question, means over its correct rollouts."""
        if unit == "question":
            by_question = itertools.groupby(self.rollouts, key=lambda u: u.question)
            whole = [(name, list(group)) for name, group in by_question]
            return [(n, mean(u.predicted for u in g), mean(getattr(u, measure) for u in g)) for n, g in whole]
        return [(u.question, u.predicted, getattr(u, measure)) for u in self.units if u.unit == unit]

    def agreement(self, unit: str, measure: Measure) -> Agreement:
        """Over all units of a kind. For a question, means over its correct rollouts."""
        pairs = self.pairs(unit, measure)
        predicted, measured = [pair[1] for pair in pairs], [pair[2] for pair in pairs]
        low, high = correlation_interval(pairs)
        return Agreement(
            unit=unit,
            measure=measure,
            count=len(pairs),
            correlation=rank_correlation(predicted, measured),
            low=low,
            high=high,
            top=fifth(len(pairs)),
            overlap=lowest_overlap(predicted, measured),
        )

    def to_json(self) -> dict[str, object]:
        """As values that `json.dumps` takes."""
        agreements = [self.agreement(unit, measure) for unit in UNITS for measure in MEASURES]
        return {
            "asked": self.asked,
            "used": self.used,
            "agreement": [asdict(a) for a in agreements],
            "similarity": [asdict(s) for s in self.similarity],
            "units": [asdict(u) for u in self.units],
        }

    def lines(self) -> list[str]:
        """A sentence, a table of agreements, and one of similarities."""
        lower = [sum(getattr(u, name) < 0 for u in self.rollouts) for name in ("predicted", "gradient", "optimizer")]
        rows = [["unit", "measured by", "count", "rank correlation", "overlap"]]
        for unit, measure in itertools.product(UNITS, MEASURES):
            found = self.agreement(unit, measure)
            overlap = "–" if found.overlap is None else percent(found.overlap)
            rows.append([unit, measure, str(found.count), _correlation(found), overlap])
        similar = [["action", "incorrect, correct", "correct, correct", "other questions"]]
        for s in (*self.similarity[1:], self.similarity[0]):
            cosines = (s.incorrect_correct, s.correct_correct, s.other_questions)
            similar.append([str(s.action or "all"), *("–" if c is None else f"{c:.3f}" for c in cosines)])
        return [
            f"{self.used} of {self.asked} questions have a correct and an incorrect rollout. Each got its own GRPO "
            f"step. Correct rollouts that become less likely: {lower[0]} of {len(self.rollouts)} as predicted, "
            f"{lower[1]} by the gradient, {lower[2]} by the recipe's optimizer.",
            "Rank correlation of predicted and measured change (95 % interval), and overlap of the lowest fifths",
            *columns(rows),
            "",
            "Mean cosine of two rollouts' hidden states, each a mean over an action's tokens",
            *columns(similar),
        ]

    def draw(self, figure: Any) -> None:
        """Predicted against measured change, of whole rollouts and of first actions."""
        (axis,) = panels(figure)
        for unit, colour in (("rollout", ALL), ("first action", CORRECT)):
            points = [(u.predicted, u.gradient) for u in self.units if u.unit == unit]
            found = self.agreement(unit, "gradient").correlation
            name = f"{unit}s ({len(points)}" + (")" if found is None else f", rank correlation {found:+.2f})")
            axis.scatter(*zip(*points, strict=True), s=12, color=colour, alpha=0.6, label=name)
        axis.axhline(0, color=ALL, linewidth=0.8)
        axis.axvline(0, color=ALL, linewidth=0.8)
        axis.set_xlabel("predicted change of correct rollouts, −GWHES / Z")
        axis.set_ylabel("measured, by the gradient")
        axis.legend(fontsize="small")


def _correlation(agreement: Agreement) -> str:
    if agreement.correlation is None:
        return "–"
    if agreement.low is None or agreement.high is None:
        return f"{agreement.correlation:+.2f}"
    return f"{agreement.correlation:+.2f} ({agreement.low:+.2f} to {agreement.high:+.2f})"


def influence(subject: Subject, rollouts: Rollouts, *, listener: Listener) -> Influence:
    """For each question: predict, make one step on its group alone, and measure, by plain GRPO on right or wrong.

    The loss is −(1/Z) Σ A log π over the Z sampled tokens of the group, A of rewards 1 and 0, without penalty, KL and
    entropy. That is the loss of the theory, whatever the recipe's loss is. Passes are in float32.

    Raises `RolloutError` when no question has a correct and an incorrect rollout, and `ModelError` for a model whose
    output layer alone does not make the logits, or is frozen.
    """
    units: list[Influenced] = []
    states: list[_States] = []
    for place, step in group_steps(subject, rollouts, asked="--what influence", listener=listener):
        units += step.units(rollouts.groups[place].id)
        states.append(step.states)
    return Influence(asked=len(rollouts.groups), used=len(states), units=tuple(units), similarity=_similarities(states))


def group_steps(
    subject: Subject, rollouts: Rollouts, *, asked: str, listener: Listener
) -> Iterator[tuple[int, GroupStep]]:
    """For each question with a correct and an incorrect rollout: its place in `rollouts`, and the step on its group.

    `asked` begins the sentence of a `ModelError`; the errors are those of `influence`.
    """
    config = _plain(subject.config)
    policy = replace(subject.language_model, autocast_dtype=None)
    subject = replace(subject, config=config, language_model=policy, reference=None)
    unembedding = output_layer(policy, asked) / config.sampling.temperature
    used = [k for k, g in enumerate(rollouts.groups) if len({t.correct for t in learnable(g)}) == 2]
    if not used:
        raise RolloutError(
            f"{rollouts.correct_count()}, and no question has a correct and an incorrect one, so nothing pushes a "
            "correct rollout. Raise --questions or train.group_size, or probe a policy that is sometimes correct"
        )
    listener.stage("steps", len(used))
    for done, place in enumerate(used, start=1):
        groups = [rollouts.groups[place]]
        batch = training_batch(groups, Objective(config.loss), pad_token_id=policy.pad_token_id, device=policy.device)
        batch = replace(batch, advantages=_advantages(batch.correct))
        step = GroupStep(subject, batch, unembedding, listener.note)
        check_logits(step.hidden, unembedding, step.tokens, step.logprobs, asked)
        yield place, step
        listener.advance(done)


def learnable(group: Group) -> list[Trajectory]:
    """Rollouts with sampled tokens, in the order of the rows of `GroupStep`."""
    return [t for t in group.trajectories if any(t.loss_mask)]


def _plain(config: Config) -> Config:
    """The recipe with one optimizer step of plain GRPO, over the whole vocabulary."""
    return config.model_copy(
        update={
            "loss": Loss(penalty=NoPenalty(), kl_coef=0.0),
            "train": config.train.model_copy(update={"optimizer_steps_per_rollout": 1}),
            "sampling": config.sampling.model_copy(update={"mask_logprobs": False}),
        }
    )


def _advantages(correct: Tensor) -> Tensor:
    """p⁺ or −p⁻ of each rollout, `[B, 1]`: the group's advantages, by the standard deviation of the population."""
    rewards = correct.float()
    return ((rewards - rewards.mean()) / rewards.std(correction=0))[:, None]


class GroupStep:
    """The rollouts of one question under the policy, and one GRPO step on them.

    The N sampled tokens are in one sequence, rollout after rollout.
    """

    def __init__(self, subject: Subject, batch: TokenBatch, unembedding: Tensor, note: Callable[[str], None]) -> None:
        self.batch, self.unembedding = batch, unembedding
        self._subject, self._note = subject, note
        self._learner = make_learner(subject.config, subject.language_model)
        self._plan: Plan = self._learner.plan_whole(batch)
        with hidden_states(subject.language_model.model) as collected, torch.no_grad():
            logprobs = self._learner.batch_logprobs(batch, self._plan)
        order = list(itertools.chain.from_iterable(itertools.chain.from_iterable(self._plan)))
        counts = batch.loss_mask.sum(-1).tolist()
        by_row = dict(zip(order, torch.cat(collected).split([counts[row] for row in order]), strict=True))
        mask = batch.loss_mask
        self.hidden = torch.cat([by_row[row] for row in range(len(batch))])
        """[N, d], the input of the output layer that predicts each token."""
        self.tokens, self.logprobs = batch.token_ids[mask], logprobs[mask]
        """[N], ids and log-probs before the step."""
        self.rows = torch.arange(len(batch), device=mask.device)[:, None].expand(mask.shape)[mask]
        """[N], the rollout of each token."""
        # The gradient by a layer is that by the layer divided by the temperature, divided once more.
        self.z = int(mask.sum()) * subject.config.sampling.temperature**2
        """Scores of tokens, times advantages, divided by this, are changes per unit of step size."""

    def units(self, question: str) -> list[Influenced]:
        """The correct rollouts and their actions."""
        batch = self.batch
        group = (self.hidden, self.unembedding, self.tokens, batch.correct[self.rows], self.rows)
        per_token = torch.zeros(batch.loss_mask.shape, dtype=self.hidden.dtype, device=self.hidden.device)
        per_token[batch.loss_mask] = gwhes(*group, logprobs=self.logprobs)
        gradient, optimizer = _by_action(self._derivative(), batch), _by_action(self.optimizer_step(), batch)
        sizes = _by_action(batch.loss_mask.float(), batch)
        scores = {k: score for k, score in _by_action(per_token, batch).items() if sizes[k]}

        def unit(row: int, action: int) -> Influenced:
            places = [k for k in scores if k[0] == row and action in (0, k[1])]
            return Influenced(
                question=question,
                rollout=row,
                action=action,
                tokens=int(sum(sizes[k] for k in places)),
                predicted=-sum(scores[k] for k in places) / self.z,
                gradient=sum(gradient[k] for k in places),
                optimizer=sum(optimizer[k] for k in places),
            )

        right = [row for row in range(len(batch)) if bool(batch.correct[row])]
        return [unit(row, k) for row in right for k in (0, *sorted(k[1] for k in scores if k[0] == row))]

    def _derivative(self) -> Tensor:
        """d log π / d step size of each token, `[B, T]`, for a step along the gradient of the loss.

        By central differences: two passes, a small step ahead and one back.
        """
        model = self._subject.language_model.model
        with borrowed_weights(model):
            trained = [p for p in model.parameters() if p.requires_grad]
            self._backward()
            gradient = [p.grad for p in trained]
            squared = sum(float((g.double() ** 2).sum()) for g in gradient if g is not None)
            step = _MOVED / (int(self.batch.loss_mask.sum()) * max(squared, 1e-30))
            ahead, back = (self._after(trained, gradient, change) for change in (-step, 2 * step))
        return (ahead - back) / (2 * step)

    def _backward(self) -> None:
        """Gradients of the loss, into the parameters."""
        batch, z = self.batch, int(self.batch.loss_mask.sum())
        for rows in itertools.chain.from_iterable(self._plan):
            micro = batch.select(rows).trim()
            logprobs = self._learner.logprobs(micro.token_ids, micro.loss_mask).logprobs
            (-(micro.advantages * logprobs).sum() / z).backward()

    @torch.no_grad()
    def _after(self, trained: Iterable[Tensor], gradient: Iterable[Tensor | None], change: float) -> Tensor:
        """Log-probs after the weights have moved by `change` times the gradient."""
        for parameter, g in zip(trained, gradient, strict=True):
            if g is not None:
                parameter.add_(g, alpha=change)
        return self._learner.batch_logprobs(self.batch, self._plan)

    def optimizer_step(self) -> Tensor:
        """Change of each token's log-prob, `[B, T]`, by one step of the recipe's optimizer, which is undone."""
        with borrowed_weights(self._subject.language_model.model):
            learner = make_learner(self._subject.config, self._subject.language_model)
            if self._subject.optimizer_state is not None:
                load_optimizer(self._subject.optimizer_state, learner.optimizer)
            minibatches, batch, _ = learner.old_pass(self.batch, self._plan)
            note_skipped(learner.step(minibatches, mean_searches=0.0), self._note)
            return learner.token_change(batch, self._plan)

    @property
    def states(self) -> _States:
        """The mean hidden state of each rollout (action 0) and of each of its actions."""
        means: list[dict[int, Tensor]] = []
        for row in range(len(self.batch)):
            hidden = self.hidden[self.rows == row]
            actions = self.batch.action_ids[row][self.batch.loss_mask[row]]
            numbers = actions.unique().tolist()
            means.append({0: hidden.mean(0), **{int(k): hidden[actions == k].mean(0) for k in numbers}})
        return _States(means=means, correct=self.batch.correct.tolist())


def _by_action(values: Tensor, batch: TokenBatch) -> Mapping[tuple[int, int], float]:
    """(row, action) -> sum over the action's tokens."""
    sums = torch.zeros(len(batch), int(batch.action_ids.max()) + 1, dtype=torch.float64, device=values.device)
    sums.scatter_add_(1, batch.action_ids, torch.where(batch.loss_mask, values, 0.0).double())
    return {(row, k): value for row, line in enumerate(sums.tolist()) for k, value in enumerate(line) if k}


# ---- similarity of hidden states


@dataclass(frozen=True, slots=True)
class _States:
    """Mean hidden states of the rollouts of one question, by action, and which are correct."""

    means: Sequence[Mapping[int, Tensor]]
    correct: Sequence[bool]

    def directions(self, action: int, correct: bool) -> Tensor:
        """Unit vectors `[n, d]` of the rollouts of a kind that have the action."""
        rows = [m[action] for m, c in zip(self.means, self.correct, strict=True) if c is correct and action in m]
        width = len(self.means[0][0])
        return (
            torch.nn.functional.normalize(torch.stack(rows).double().cpu(), dim=-1)
            if rows
            else torch.zeros(0, width, dtype=torch.float64)
        )


def _similarities(groups: Sequence[_States]) -> tuple[Similarity, ...]:
    """Of whole rollouts, then of each action that occurs."""
    last = max(max(means) for group in groups for means in group.means)
    return tuple(_similarity(groups, action) for action in range(last + 1))


def _similarity(groups: Sequence[_States], action: int) -> Similarity:
    right = [group.directions(action, True) for group in groups]
    wrong = [group.directions(action, False) for group in groups]
    same = [float(c) for r, w in zip(right, wrong, strict=True) for c in (w @ r.T).flatten()]
    among = [float(c) for r in right for c in (r @ r.T)[*torch.triu_indices(len(r), len(r), 1)]]
    every = float((torch.cat(wrong) @ torch.cat(right).T).sum())
    others = sum(map(len, wrong)) * sum(map(len, right)) - len(same)
    return Similarity(
        action=action,
        incorrect_correct=mean(same) if same else None,
        correct_correct=mean(among) if among else None,
        other_questions=(every - sum(same)) / others if others else None,
    )
