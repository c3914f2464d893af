"""What NTHR costs, as a share of an update: hidden states of the old pass, scores, weights.

    python benchmarks/nthr_cost.py
    python benchmarks/nthr_cost.py --shape 10m --json nthr_cost.json

Both arms take the old log-probs and make the update, forward and backward passes and the optimizer included, from the
same weights on the same rollouts. A step also has rollouts, which are left out here, so its share is smaller. A round
runs both arms once, the order reversed from round to round; the cost is the seconds with NTHR over those without
in the same round, minus 1. Shown is the median over rounds with a 95 % interval from order statistics.

Memory is the peak of the old pass, by PyTorch's record of every allocation: the scores' part beside one [V*, d] matrix
in float32, V* being the tokens that occur in a group, and beside the hidden states, which are kept until the pass ends
because a group's rollouts may be in any mini-batch.

With one thread (OMP_NUM_THREADS=1), seconds are CPU seconds of the process. Needs no network. One free core needs about
two minutes a shape.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import replace
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from holdfast.agent.batch import TokenBatch
from holdfast.losses import group_advantages
from holdfast.methods.nthr import NTHR, rows_for_nthr
from holdfast.methods.penalties import NoPenalty
from holdfast.methods.registry import Methods
from holdfast.model.language_model import LanguageModel
from holdfast.recipe import Loss, Sampling, Train
from holdfast.train.learner import Learner
from holdfast.train.objective import Objective
from measuring import median_interval, seconds_now, table, write_json
from penalty_cost import SHAPES, Shape, model_of, rollouts

ARMS = {nthr: Loss(kl_coef=0.0, penalty=NoPenalty(), methods=Methods(nthr=NTHR(on=nthr))) for nthr in (False, True)}
FLOAT32 = 4


class Update:
    """The same old pass and update over and over, each time from the same weights."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.policy = LanguageModel(model=model_of(shape, seed), tokenizer=None)
        self.train = Train(lr=5e-4, optimizer_steps_per_rollout=shape.updates)
        learner = self.learner(nthr=False)
        self.parameters = learner.parameters
        self.start = [parameter.detach().clone() for parameter in self.parameters]
        batch = TokenBatch.from_trajectories(rollouts(shape, random.Random(seed)), pad_token_id=0)
        self.batch = replace(batch, advantages=group_advantages(batch.rewards, batch.group_ids))
        self.plan = learner.plan(self.batch, torch.Generator().manual_seed(seed))

    def learner(self, *, nthr: bool) -> Learner:
        return Learner(self.policy, Objective(ARMS[nthr]), self.train, Sampling())

    def run(self, *, nthr: bool) -> tuple[float, dict[str, float]]:
        """Seconds of one old pass and update, and its metrics."""
        with torch.no_grad():
            for parameter, value in zip(self.parameters, self.start, strict=True):
                parameter.copy_(value)
        learner = self.learner(nthr=nthr)
        started = seconds_now()
        old = learner.old_pass(self.batch, self.plan)
        metrics = learner.step(old.minibatches, mean_searches=1.0)
        return seconds_now() - started, metrics

    def weighed(self) -> float:
        """Share of sampled tokens whose weight NTHR lowers."""
        minis = self.learner(nthr=True).old_pass(self.batch, self.plan).minibatches
        micros = [micro for mini in minis for micro in mini]
        lowered = sum(int((m.policy_weights[m.loss_mask] < 1).sum()) for m in micros if m.policy_weights is not None)
        return lowered / int(self.batch.loss_mask.sum())

    def peak(self, *, nthr: bool) -> int:
        """Most bytes that an old pass holds beyond what was there before it."""
        learner = self.learner(nthr=nthr)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
            learner.old_pass(self.batch, self.plan)
        return peak_bytes([(e.start_ns(), e.nbytes()) for e in record.profiler.kineto_results.events()
                           if e.name() == "[memory]"])  # fmt: skip

    def describe(self) -> dict[str, float]:
        batch, width = self.batch, self.policy.model.config.hidden_size
        groups = [batch.token_ids[batch.group_ids == g][batch.loss_mask[batch.group_ids == g]] for g in
                  batch.group_ids.unique()]  # fmt: skip
        scored = batch.loss_mask[rows_for_nthr(batch)].sum()
        return {
            "parameters": sum(p.numel() for p in self.parameters),
            "rollouts": len(batch),
            "sampled tokens": int(batch.loss_mask.sum()),
            "largest V*": max(len(tokens.unique()) for tokens in groups),
            "matrix bytes": FLOAT32 * width * max(len(tokens.unique()) for tokens in groups),
            "hidden bytes": FLOAT32 * width * int(scored),
        }


def peak_bytes(changes: list[tuple[int, int]]) -> int:
    """The highest sum of (time, bytes allocated or, below 0, freed) in the order of time.

    >>> peak_bytes([(2, -10), (0, 10), (1, 30), (3, 5)])
    40
    """
    total = highest = 0
    for _, change in sorted(changes):
        total += change
        highest = max(highest, total)
    return highest


def measure(shape: Shape, rounds: int, seed: int) -> dict[str, Any]:
    """Seconds of every round, the cost in percent with its interval, and peaks of memory in bytes."""
    update = Update(shape, seed)
    for nthr in ARMS:
        update.run(nthr=nthr)  # warms up
    seconds: dict[bool, list[float]] = {nthr: [] for nthr in ARMS}
    for n in range(rounds):
        for nthr in (False, True) if n % 2 else (True, False):
            seconds[nthr].append(update.run(nthr=nthr)[0])
    return {
        "shape": update.describe(),
        "lowered": update.weighed(),
        "seconds": {"plain": seconds[False], "nthr": seconds[True]},
        "cost_percent": median_interval(
            [100 * (a / b - 1) for a, b in zip(seconds[True], seconds[False], strict=True)]
        ),
        "peak_bytes": {"plain": update.peak(nthr=False), "nthr": update.peak(nthr=True)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=["quickstart"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="PATH")
    options = parser.parse_args()
    results, rows = {}, []
    for name in options.shape:
        result = results[name] = measure(SHAPES[name], options.rounds, options.seed)
        shape, peak = result["shape"], result["peak_bytes"]
        print(f"{name}: " + ", ".join(f"{key} {value:,.0f}" for key, value in shape.items()))
        cost, low, high = result["cost_percent"]
        plain, nthr = (median_interval(result["seconds"][arm])[0] for arm in ("plain", "nthr"))
        sizes = (peak["nthr"] - peak["plain"], shape["hidden bytes"], shape["matrix bytes"])
        rows.append([name, f"{plain:.3f}", f"{nthr:.3f}", f"{cost:+.2f} %", f"{low:+.2f} to {high:+.2f} %",
                     f"{result['lowered']:.2f}", *(f"{size / 2**20:.2f}" for size in sizes)])  # fmt: skip
    header = ["shape", "s plain", "s NTHR", "cost", "95 % interval", "lowered", "MiB more", "of hidden", "[V*, d]"]
    print(table(header, rows))
    write_json(options.json, results)


if __name__ == "__main__":
    main()
