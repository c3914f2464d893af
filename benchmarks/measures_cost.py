"""What the measures of rival explanations cost, as a share of a training step of the quickstart.

    OMP_NUM_THREADS=1 python benchmarks/measures_cost.py MODEL --steps 12

MODEL is the folder of a warm-started model of the recipe (`holdfast warm-start quickstart`). Processor seconds of one
thread. Metrics are timed within the steps. The probability of misplaced control tokens is part of the old pass, so
that pass is made again with and without it, in turns. Displacement per sample is off by default; the last lines are
what one measurement on four questions takes, and every tenth step. The share of ratios below one, some sums over
numbers that are there anyway, is not timed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

import holdfast.train.trainer as trainer_module
from holdfast.agent.trajectory import with_tokens
from holdfast.recipe import load
from holdfast.train.displacement import measure_per_sample
from holdfast.train.loading import load_questions, load_retrievers
from holdfast.train.start import starting_policy
from holdfast.train.trainer import Trainer, make_trainer
from measuring import median_interval

RECIPE = Path(__file__).parents[1] / "src/holdfast/recipe/bundled/quickstart.toml"
METRICS = ("turn_metrics", "centering_metrics", "observation_metrics", "negative_metrics", "control_metrics")


def seconds(function: Callable[[], Any]) -> float:
    started = time.process_time()
    function()
    return time.process_time() - started


def timed(function: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    """The function, noting the processor seconds of every call."""

    def call(*arguments: Any, **named: Any) -> Any:
        result: list[Any] = []
        spent.append(seconds(lambda: result.append(function(*arguments, **named))))
        return result[0]

    return call


def old_pass_difference(trainer: Trainer, groups: list[Any]) -> float:
    """Seconds that the probability of misplaced tokens adds to the old pass: median of five pairs."""
    learner, batch = trainer.learner, trainer.make_batch(groups)
    plan = learner.plan(batch, torch.Generator().manual_seed(0))
    misplaced = trainer._control.misplaced(with_tokens(groups))
    learner.old_pass(batch, plan)
    pairs = [
        seconds(lambda: learner.old_pass(batch, plan, misplaced)) - seconds(lambda: learner.old_pass(batch, plan))
        for _ in range(5)
    ]
    return median(pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=12)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    settings = ["--model.path", arguments.model, "--warm_start.steps", "0", "--run.threads", "1"]
    config = load(RECIPE, [*settings, "--world.scripts.plain_steps", "0"])
    retriever, questions = load_retrievers(config).train, load_questions(config)
    policy = starting_policy(config, questions, retriever, None)
    trainer = make_trainer(config, policy, questions.train, retriever)
    spent: list[float] = []
    for name in METRICS:
        setattr(trainer_module, name, timed(getattr(trainer_module, name), spent))
    trainer._control.misplaced = timed(trainer._control.misplaced, spent)  # type: ignore[method-assign]
    shares, probes = [], []
    for _ in range(arguments.steps):
        spent.clear()
        started = time.process_time()
        result = trainer.step()
        step, metrics = time.process_time() - started, sum(spent)
        added = metrics + old_pass_difference(trainer, list(result.groups))
        shares.append(100 * added / (step - added))
        batch = trainer.make_batch(result.groups)
        probe = seconds(
            lambda batch=batch: measure_per_sample(trainer.learner, batch, questions=4, mean_searches=1.0, seed=0)
        )
        probes.append(100 * probe / (step - added))
        print(f"step {step:.2f} s, metrics {1000 * metrics:.0f} ms, all {shares[-1]:+.2f} %, probe {probes[-1]:.1f} %")
    print("measures, % of a step without them: median {:.2f} ({:.2f} to {:.2f})".format(*median_interval(shares)))
    print("displacement per sample, % of a step: median {:.1f} ({:.1f} to {:.1f})".format(*median_interval(probes)))
    print(f"every tenth step: {median(probes) / 10:.2f} %")


if __name__ == "__main__":
    main()
