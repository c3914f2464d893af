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


def measure(shape: Shape, arms: list[str], rounds: int, seed: int) -> dict[str, Any]:
    """Seconds of every round, and costs in percent with their intervals."""
    losses = {arm: validate({"loss": {"kl_coef": 0.0, "penalty": ARMS[arm]}}).loss for arm in arms}
    update = Update(shape, seed)
    # Warms up, and shows whether the penalty has something to do.
    active = {arm: update.run(loss)[1].get("penalty/active_fraction", 0.0) for arm, loss in losses.items()}
    seconds: dict[str, list[float]] = {arm: [] for arm in arms}
    for n in range(rounds):
        for arm in arms if n % 2 else reversed(arms):
            seconds[arm].append(update.run(losses[arm])[0])
    return {"shape": update.describe(), "seconds": seconds, "cost_percent": costs(seconds), "active_fraction": active}


def costs(seconds: dict[str, list[float]]) -> dict[str, tuple[float, float, float]]:
    """Per arm the median over rounds of what it costs beyond `none`, in percent, with its interval."""
    return {
        arm: median_interval([100 * (a / b - 1) for a, b in zip(arm_seconds, seconds["none"], strict=True)])
        for arm, arm_seconds in seconds.items()
        if arm != "none"
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=["quickstart"])
    parser.add_argument("--arms", nargs="+", choices=[arm for arm in ARMS if arm != "none"], default=list(ARMS)[1:])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="PATH")
    options = parser.parse_args()
    results = {}
    for name in options.shape:
        result = results[name] = measure(SHAPES[name], ["none", *options.arms], options.rounds, options.seed)
        print(f"\n{name}: " + ", ".join(f"{key} {value:,.0f}" for key, value in result["shape"].items()))
        baseline = median_interval(result["seconds"]["none"])[0]
        rows = [["plain GRPO", f"{baseline:.3f}", "", "", ""]]
        for arm, (cost, low, high) in result["cost_percent"].items():
            seconds = median_interval(result["seconds"][arm])[0]
            active = f"{result['active_fraction'][arm]:.2f}"
            rows.append([arm, f"{seconds:.3f}", active, f"{cost:+.2f} %", f"{low:+.2f} to {high:+.2f} %"])
        print(table(["arm", "s per update", "active", "cost", "95 % interval"], rows))
    write_json(options.json, results)


if __name__ == "__main__":
    main()
