"""What a likelihood-preserving penalty and its statistics cost, as a share of the update of plain GRPO.

    python benchmarks/penalty_cost.py
    python benchmarks/penalty_cost.py --shape 10m --arms llds-action
    python benchmarks/penalty_cost.py --json penalty_cost.json

Every arm runs `Learner.step`, forward and backward passes and the optimizer included, from the same weights on the
same micro-batches. Plain GRPO (`none`) logs the statistics of its ratio, as the others do. A round runs all arms once,
the order reversed from round to round; an arm's cost is its seconds over those of `none` in the same round, minus 1.
Shown is the median over rounds with a 95 % interval from order statistics. "active" is the share of preserved tokens on
which the penalty is not 0.

With one thread (OMP_NUM_THREADS=1), seconds are the process's CPU seconds, which other jobs on the machine hardly
disturb; else they are wall-clock seconds. Needs no network. One free core needs about two minutes a shape.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from holdfast.agent.batch import TokenBatch
from holdfast.agent.trajectory import Answer, Group, Search, Trajectory, Turn
from holdfast.losses import group_advantages
from holdfast.model.language_model import LanguageModel
from holdfast.recipe import Loss, Sampling, Train, validate
from holdfast.train.learner import Learner
from holdfast.train.objective import Objective
from measuring import median_interval, seconds_now, table, write_json

ARMS: dict[str, dict[str, Any]] = {
    "none": {"name": "none"},
    "llds-action": {"name": "llds", "gate": "action"},
    "llds-response": {"name": "llds", "gate": "response"},
    "sapo": {"name": "sapo"},
}
PROMPT, SAMPLED, OBSERVATION = 16, (15, 30), 66  # tokens; about 45 sampled and 150 in all per rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model, and what one update trains it on."""

    questions: int
    group: int
    updates: int
    hidden: int
    layers: int
    heads: int
    vocabulary: int


SHAPES = {
    "quickstart": Shape(questions=32, group=5, updates=10, hidden=64, layers=3, heads=4, vocabulary=840),
    "10m": Shape(questions=4, group=5, updates=5, hidden=320, layers=6, heads=5, vocabulary=6000),
    "tiny": Shape(questions=2, group=3, updates=2, hidden=16, layers=1, heads=2, vocabulary=64),
}


def rollouts(shape: Shape, rng: random.Random) -> list[Group]:
    """Rollouts of one to three actions with random tokens; about half are correct."""

    def tokens(n: int) -> tuple[int, ...]:
        return tuple(rng.randrange(2, shape.vocabulary) for _ in range(n))

    def rollout(question: int) -> Trajectory:
        actions = rng.choice((1, 2, 2, 3, 3))
        turns = []
        for k in range(actions):
            sampled, last = rng.randint(*SAMPLED), k == actions - 1
            turns.append(
                Turn(
                    tokens=tokens(sampled),
                    logprobs=(0.0,) * sampled,
                    observation=() if last else tokens(OBSERVATION),
                    action=Answer("x") if last else Search("x"),
                    answer_span=(sampled - 6, sampled) if last else None,
                )
            )
        right = float(rng.random() < 0.5)
        return Trajectory(
            example_id=str(question),
            prompt=tokens(PROMPT),
            turns=tuple(turns),
            reward=right,
            reward_parts={"em": right},
        )

    return [Group(str(q), tuple(rollout(q) for _ in range(shape.group))) for q in range(shape.questions)]


def model_of(shape: Shape, seed: int) -> Any:
    """An untrained model of the Qwen2 family, as the quickstart's."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=3 * shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        tie_word_embeddings=True,
        initializer_range=shape.hidden**-0.5,
    )
    return Qwen2ForCausalLM(config).eval()


class Update:
    """The same update over and over, each time from the same weights."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.policy = LanguageModel(model=model_of(shape, seed), tokenizer=None)
        self.train = Train(lr=5e-4, optimizer_steps_per_rollout=shape.updates)
        learner = self.learner(Loss())
        self.parameters = learner.parameters
        self.start = [parameter.detach().clone() for parameter in self.parameters]
        batch = TokenBatch.from_trajectories(rollouts(shape, random.Random(seed)), pad_token_id=0)
        self.batch = replace(batch, advantages=group_advantages(batch.rewards, batch.group_ids))
        self.plan = learner.plan(self.batch, torch.Generator().manual_seed(seed))
        self.minis = learner.old_pass(self.batch, self.plan).minibatches

    def learner(self, loss: Loss) -> Learner:
        return Learner(self.policy, Objective(loss), self.train, Sampling())

    def describe(self) -> dict[str, float]:
        return {
            "parameters": sum(p.numel() for p in self.parameters),
            "rollouts": len(self.batch),
            "tokens per rollout": float(self.batch.lengths.float().mean()),
            "sampled tokens per rollout": float(self.batch.loss_mask.sum(-1).float().mean()),
            "optimizer steps": len(self.minis),
            "passes": sum(map(len, self.minis)),
        }

    def run(self, loss: Loss) -> tuple[float, dict[str, float]]:
        """Seconds of one update, and its metrics."""
        with torch.no_grad():
            for parameter, value in zip(self.parameters, self.start, strict=True):
                parameter.copy_(value)
        learner = self.learner(loss)
        started = seconds_now()
        metrics = learner.step(self.minibatches(learner), mean_searches=1.0)
        return seconds_now() - started, metrics

    def minibatches(self, learner: Learner) -> list[list[TokenBatch]]:
        """What the learner steps on: always the same."""
        return self.minis


Measured = Callable[[str], tuple[float, float]]
"""Arm -> seconds of one update, and the share of preserved tokens on which the penalty was not 0."""


def compare(measured: Measured, arms: Sequence[str], rounds: int) -> dict[str, Any]:
    """Seconds of every round, and what each arm costs beyond the first, in percent, with its interval."""
    active = {arm: measured(arm)[1] for arm in arms}  # warms up, and shows whether the penalty has something to do
    seconds: dict[str, list[float]] = {arm: [] for arm in arms}
    for n in range(rounds):
        for arm in arms if n % 2 else reversed(arms):
            seconds[arm].append(measured(arm)[0])
    cost = {
        arm: median_interval([100 * (a / b - 1) for a, b in zip(seconds[arm], seconds[arms[0]], strict=True)])
        for arm in arms[1:]
    }
    return {"seconds": seconds, "cost_percent": cost, "active_fraction": active}


def cost_table(result: dict[str, Any], what: str, updates: int = 1) -> str:
    """A row an arm; seconds are those of one of the `updates` that were timed together."""
    rows = []
    for arm, seconds in result["seconds"].items():
        row = [arm, f"{median_interval(seconds)[0] / updates:.3f}", f"{result['active_fraction'][arm]:.2f}"]
        if arm in result["cost_percent"]:
            cost, low, high = result["cost_percent"][arm]
            row += [f"{cost:+.2f} %", f"{low:+.2f} to {high:+.2f} %"]
        rows.append(row + [""] * (5 - len(row)))
    return table(["arm", what, "active", "cost", "95 % interval"], rows)


def options_of(description: str, arms: Sequence[str] = ()) -> argparse.Namespace:
    """The command line of the benchmarks of costs. The first of `arms` always takes part."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=["quickstart"])
    if arms:
        parser.add_argument("--arms", nargs="+", choices=arms[1:], default=arms[1:])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="PATH")
    return parser.parse_args()


def main() -> None:
    options = options_of(__doc__, list(ARMS))
    results = {}
    for name in options.shape:
        update = Update(SHAPES[name], options.seed)

        def measured(arm: str, update: Update = update) -> tuple[float, float]:
            loss = validate({"loss": {"kl_coef": 0.0, "penalty": ARMS[arm]}}).loss
            seconds, metrics = update.run(loss)
            return seconds, metrics.get("penalty/active_fraction", 0.0)

        result = compare(measured, ["none", *options.arms], options.rounds)
        results[name] = {"shape": update.describe(), **result}
        print(f"\n{name}: " + ", ".join(f"{key} {value:,.0f}" for key, value in update.describe().items()))
        print(cost_table(result, "s per update"))
    write_json(options.json, results)


if __name__ == "__main__":
    main()
