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
from typing import Any

from torch.profiler import ProfilerActivity, profile

import penalty_cost
from holdfast.agent.batch import TokenBatch
from holdfast.methods.nthr import rows_for_nthr
from holdfast.methods.penalties import NoPenalty
from holdfast.methods.registry import NTHR, Methods
from holdfast.recipe import Loss
from holdfast.train.learner import Learner
from measuring import median_interval, table, write_json
from penalty_cost import SHAPES, Shape

ARMS = {nthr: Loss(kl_coef=0.0, penalty=NoPenalty(), methods=Methods(nthr=NTHR(on=nthr))) for nthr in (False, True)}
FLOAT32 = 4


class Update(penalty_cost.Update):
    """With the old pass in what is timed, made over and over too."""

    def minibatches(self, learner: Learner) -> list[list[TokenBatch]]:
        return learner.old_pass(self.batch, self.plan).minibatches

    def weighed(self) -> float:
        """Share of sampled tokens whose weight NTHR lowers."""
        minis = self.minibatches(self.learner(ARMS[True]))
        micros = [micro for mini in minis for micro in mini]
        lowered = sum(int((m.policy_weights[m.loss_mask] < 1).sum()) for m in micros if m.policy_weights is not None)
        return lowered / int(self.batch.loss_mask.sum())

    def peak(self, *, nthr: bool) -> int:
        """Most bytes that an old pass holds beyond what was there before it."""
        learner = self.learner(ARMS[nthr])
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
        update.run(ARMS[nthr])  # warms up
    seconds: dict[bool, list[float]] = {nthr: [] for nthr in ARMS}
    for n in range(rounds):
        for nthr in (False, True) if n % 2 else (True, False):
            seconds[nthr].append(update.run(ARMS[nthr])[0])
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
