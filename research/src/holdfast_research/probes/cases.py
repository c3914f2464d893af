"""Case studies: the questions whose correct rollouts one step displaces most, each with the pair that explains it.

The pair is the incorrect rollout that pushes correct ones down hardest, and the correct one that it pushes most. The
push is that of the theory (`holdfast.losses.token_influence`): what one rollout's gradient does to another's tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from statistics import mean
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from holdfast.agent.trajectory import Trajectory
from holdfast.base.scoring import f1
from holdfast.losses import token_influence
from holdfast.model.text.tokens import char_lengths, common_prefix
from holdfast.tasks.questions import Example
from holdfast.train.listener import Listener
from holdfast_research.probes.influence import GroupStep, group_steps, learnable
from holdfast_research.probes.report import ALL, CORRECT, INCORRECT, columns, panels
from holdfast_research.probes.subject import Rollouts, Subject

SHARED, LONG, NEAR = 0.5, 1.5, 0.5
"""The bounds of the labels: share of tokens, factor of lengths, F1."""
LABELS: Mapping[str, str] = {
    "shared prefix": f"at least {SHARED:.0%} of the shorter rollout's sampled tokens come before the first difference",
    "long and unlikely": f"the incorrect rollout has at least {LONG:g} times the sampled tokens of the correct one, "
    "and a lower log-prob per token",
    "near-miss answer": f"the incorrect answer has a token F1 of at least {NEAR:g}",
}
"""Label -> its rule. A case may have several, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseToken:
    """A sampled token of a case."""

    text: str
    """Its piece of the turn's text; empty for a token that ends inside a character, and for one that ends the turn."""
    before: float
    """Log-prob before the step, in nats."""
    after: float
    """Log-prob after it."""
    push: float
    """In nats per unit of step size, by the output layer. For a correct rollout's token: its change by the incorrect
    rollout's gradient. For an incorrect rollout's token: the change of the correct rollout by this token's gradient.
    Both sum to the push of the pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseTurn:
    """What the model sampled in a turn, and what came back."""

    tokens: tuple[CaseToken, ...]
    observation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRollout:
    """One rollout of a pair."""

    correct: bool
    answer: str | None
    turns: tuple[CaseTurn, ...]

    @property
    def tokens(self) -> list[CaseToken]:
        """All sampled tokens."""
        return [token for turn in self.turns for token in turn.tokens]

    @property
    def logprob(self) -> float:
        """Mean log-prob per token before the step, in nats."""
        return mean(token.before for token in self.tokens)

    @property
    def change(self) -> float:
        """Change of its log-likelihood by the step, in nats."""
        return sum(token.after - token.before for token in self.tokens)

    def to_json(self) -> dict[str, object]:
        """As values that `json.dumps` takes."""
        return {"tokens": len(self.tokens), "logprob": self.logprob, "change": self.change, **asdict(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A question, and the pair of its rollouts in which the push is largest."""

    id: str
    question: str
    golden_answers: tuple[str, ...]
    correct_rollouts: int
    incorrect_rollouts: int
    displacement: float
    """Mean change of its correct rollouts by the step, in nats per rollout; below 0 they became less likely."""
    push: float
    """Change of `correct` by the gradient of `incorrect`, in nats per unit of step size, by the output layer."""
    predicted: float
    """The same by the gradients of all rollouts: −𝒢 / Z (`holdfast.losses.gwhes`)."""
    shared_tokens: int
    """Sampled tokens before the first difference of the two rollouts."""
    answer_f1: float
    """Token F1 of the incorrect answer; 0 without an answer."""
    correct: CaseRollout
    incorrect: CaseRollout

    @property
    def labels(self) -> tuple[str, ...]:
        """Those of `LABELS` whose rule holds."""
        right, wrong = len(self.correct.tokens), len(self.incorrect.tokens)
        holds = (
            self.shared_tokens >= SHARED * min(right, wrong),
            wrong >= LONG * right and self.incorrect.logprob < self.correct.logprob,
            self.answer_f1 >= NEAR,
        )
        return tuple(label for label, rule in zip(LABELS, holds, strict=True) if rule)

    def to_json(self) -> dict[str, object]:
        """As values that `json.dumps` takes."""
        pair = {"correct": self.correct.to_json(), "incorrect": self.incorrect.to_json()}
        return {"labels": list(self.labels), **asdict(self), **pair}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """The cases of all questions with a correct and an incorrect rollout."""

    asked: int
    """Questions rolled out."""
    every: tuple[Case, ...]
    """By displacement, the most displaced first."""
    top: int
    """How many are shown."""

    @property
    def shown(self) -> tuple[Case, ...]:
        """The most displaced."""
        return self.every[: self.top]

    @property
    def displaced(self) -> int:
        """Questions whose correct rollouts became less likely."""
        return sum(case.displacement < 0 for case in self.every)

    @property
    def label_counts(self) -> Mapping[str, tuple[int, int]]:
        """Label -> its cases, and those of them that were displaced; `none` for cases without a label."""
        every, displaced = (
            Counter(label for case in self.every if case.displacement < bound for label in case.labels or ("none",))
            for bound in (torch.inf, 0.0)
        )
        return {label: (every[label], displaced[label]) for label in (*LABELS, "none")}

    def to_json(self) -> dict[str, object]:
        """As values that `json.dumps` takes."""
        counts = {label: {"cases": n, "displaced": d} for label, (n, d) in self.label_counts.items()}
        return {
            "asked": self.asked,
            "used": len(self.every),
            "displaced": self.displaced,
            "labels": counts,
            "cases": [case.to_json() for case in self.shown],
        }

    def sentence(self) -> str:
        """What was rolled out and how many questions the step displaced."""
        return (
            f"{len(self.every)} of {self.asked} questions have a correct and an incorrect rollout. Each got its own "
            f"GRPO step, which made the correct rollouts of {self.displaced} less likely. The {len(self.shown)} most "
            "displaced:"
        )

    def lines(self) -> list[str]:
        """The sentence, a table of the cases that are shown, and one of the labels."""
        rows = [["question", "displacement", "push", "label"]]
        rows += [[c.id, f"{c.displacement:+.3f}", f"{c.push:+.3g}", ", ".join(c.labels) or "none"] for c in self.shown]
        counts = [["label", "questions", "displaced"]]
        counts += [[name, str(every), str(displaced)] for name, (every, displaced) in self.label_counts.items()]
        return [self.sentence(), *columns(rows), "", *columns(counts)]

    def draw(self, figure: Any) -> None:
        """Change of each pair's log-likelihood, from the first token up to each one."""
        axes = panels(figure, len(self.shown))
        for axis, case in zip(axes, self.shown, strict=True):
            for rollout, colour in ((case.correct, CORRECT), (case.incorrect, INCORRECT)):
                sums = list(accumulate((t.after - t.before for t in rollout.tokens), initial=0.0))
                axis.plot(range(len(sums)), sums, color=colour, label="correct" if rollout.correct else "incorrect")
            axis.axvspan(0, case.shared_tokens, color=ALL, alpha=0.12, linewidth=0, label="the same tokens")
            axis.axhline(0, color=ALL, linewidth=0.8)
            axis.set_title(f"{case.id}: {', '.join(case.labels) or 'no label'}")
            axis.set_ylabel("change up to there, nats")
            axis.legend(fontsize="small")
        axes[-1].set_xlabel("sampled token")


def cases(subject: Subject, rollouts: Rollouts, *, top: int = 3, listener: Listener) -> Cases:
    """The `top` most displaced questions, by one step of the recipe's optimizer on plain GRPO, as in `influence`.

    Raises `RolloutError` when no question has a correct and an incorrect rollout, and `ModelError` for a model whose
    output layer alone does not make the logits, or is frozen.
    """
    tokenizer = subject.language_model.tokenizer
    of_questions = [
        _case(step, rollouts.examples[place], learnable(rollouts.groups[place]), tokenizer)
        for place, step in group_steps(subject, rollouts, asked="--what cases", listener=listener)
    ]
    every = sorted(of_questions, key=lambda case: case.displacement)
    return Cases(asked=len(rollouts.groups), every=tuple(every), top=top)


def pushes(step: GroupStep) -> Tensor:
    """float [B, N]: the change of each sampled token's log-prob by the gradient of each rollout, per unit of step size.

    By the output layer. The sum over all rollouts is −𝒢 / Z of `holdfast.losses.gwhes`, token by token.
    """
    group = (step.hidden, step.unembedding, step.tokens)
    scores = [token_influence(*group, step.rows == row, logprobs=step.logprobs) for row in range(len(step.batch))]
    return step.batch.advantages * torch.stack(scores) / step.z


def _case(
    step: GroupStep, example: Example, trajectories: Sequence[Trajectory], tokenizer: PreTrainedTokenizerBase
) -> Case:
    batch, by_token = step.batch, pushes(step)
    onto = torch.stack([by_token[:, step.rows == row].sum(-1) for row in range(len(batch))], dim=-1)  # [from, to]
    right, wrong = batch.correct.nonzero()[:, 0], (~batch.correct).nonzero()[:, 0]
    j = int(wrong[onto[wrong][:, right].sum(-1).argmin()])
    i = int(right[onto[j, right].argmin()])
    change = step.optimizer_step()[batch.loss_mask]
    # The product of two rollouts' gradients is the same both ways; only the advantage is the incorrect rollout's.
    pushed = {i: by_token[j], j: by_token[i] * batch.advantages[j] / batch.advantages[i]}

    def rollout(row: int) -> CaseRollout:
        numbers = torch.stack([step.logprobs, step.logprobs + change, pushed[row]], dim=-1)
        return _rollout(trajectories[row], numbers[step.rows == row].tolist(), tokenizer)

    shared = common_prefix(trajectories[i].token_ids, trajectories[j].token_ids)
    return Case(
        id=example.id,
        question=example.question,
        golden_answers=example.golden_answers,
        correct_rollouts=len(right),
        incorrect_rollouts=len(wrong),
        displacement=float(change[batch.correct[step.rows]].double().sum()) / len(right),
        push=float(onto[j, i]),
        predicted=float(onto[:, i].sum()),
        shared_tokens=sum(trajectories[i].loss_mask[:shared]),
        answer_f1=f1(trajectories[j].answer, example.golden_answers),
        correct=rollout(i),
        incorrect=rollout(j),
    )


def _rollout(
    trajectory: Trajectory, numbers: Sequence[Sequence[float]], tokenizer: PreTrainedTokenizerBase
) -> CaseRollout:
    """`numbers` are before, after and push of each sampled token."""
    turns, start = [], 0
    for turn in trajectory.turns:
        ids = turn.tokens or ()
        ends = accumulate(char_lengths(ids, turn.text, tokenizer), initial=0)
        pieces = [turn.text[a:b] for a, b in pairwise(ends)]
        rows = zip(pieces, numbers[start : start + len(ids)], strict=True)
        tokens = tuple(CaseToken(text=text, before=b, after=a, push=p) for text, (b, a, p) in rows)
        turns.append(CaseTurn(tokens=tokens, observation=turn.observation_text))
        start += len(ids)
    return CaseRollout(correct=trajectory.correct, answer=trajectory.answer, turns=tuple(turns))
