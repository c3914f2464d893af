"""What groups without contrast cost, where the update passes over them and where it skips them.

    OMP_NUM_THREADS=1 python benchmarks/group_skip.py
    python benchmarks/group_skip.py --without 0.25 0.75

All rollouts of a share of the groups (`--without`) get the reward 1, so their advantages are 0 and plain GRPO has no
gradient for them. An arm is the old pass and `Learner.step` on the same batch of a model of ten million weights, from
the same weights; the arms differ in whether the learner may skip. A round runs both, in alternating order; shown is the
median over rounds of the ratio, with a 95 % interval from order statistics. One free core needs about two minutes.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import replace

import torch

from holdfast.agent.batch import TokenBatch
from holdfast.agent.trajectory import Group
from holdfast.losses import group_advantages
from holdfast.recipe import Loss, validate
from measuring import median_interval, seconds_now, table, write_json
from penalty_cost import SHAPES, Update, rollouts


class SkippingUpdate(Update):
    """An update whose first groups have no contrast."""

    def __init__(self, without: float, seed: int) -> None:
        shape = SHAPES["10m"]
        super().__init__(shape, seed)
        groups = rollouts(shape, random.Random(seed))
        equal = round(without * len(groups))
        batch = TokenBatch.from_trajectories(
            [*map(_all_correct, groups[:equal]), *map(_one_correct, groups[equal:])], pad_token_id=0
        )
        self.batch = replace(batch, advantages=group_advantages(batch.rewards, batch.group_ids))

    def seconds(self, loss: Loss, *, skips: bool) -> tuple[float, float]:
        """Seconds of the old pass, and of the optimizer steps."""
        with torch.no_grad():
            for parameter, value in zip(self.parameters, self.start, strict=True):
                parameter.copy_(value)
        learner = self.learner(loss)
        assert learner._skips
        learner._skips = skips
        plan = learner.plan(self.batch, torch.Generator().manual_seed(0))
        started = seconds_now()
        minis = learner.old_pass(self.batch, plan).minibatches
        between = seconds_now()
        learner.step(minis, mean_searches=1.0)
        return between - started, seconds_now() - between


def _all_correct(group: Group) -> Group:
    return replace(group, trajectories=tuple(replace(t, reward=1.0) for t in group.trajectories))


def _one_correct(group: Group) -> Group:
    trajectories = tuple(replace(t, reward=float(n == 0)) for n, t in enumerate(group.trajectories))
    return replace(group, trajectories=trajectories)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without", nargs="+", type=float, default=[0.5], help="shares of groups without contrast")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--json", metavar="PATH")
    options = parser.parse_args()
    loss = validate({"loss": {"kl_coef": 0.0, "penalty": {"name": "none"}}}).loss
    rows, results = [], {}
    for without in options.without:
        update = SkippingUpdate(without, seed=0)
        for skips in (False, True):
            update.seconds(loss, skips=skips)  # warms up
        steps, both = [], []
        for n in range(options.rounds):
            taken = {skips: update.seconds(loss, skips=skips) for skips in ((False, True), (True, False))[n % 2]}
            steps.append(taken[False][1] / taken[True][1])
            both.append(sum(taken[False]) / sum(taken[True]))
        for what, ratios in (("optimizer steps", steps), ("with the old pass", both)):
            middle, low, high = median_interval(ratios)
            rows.append([f"{without:.0%}", what, f"{middle:.2f} ×", f"{low:.2f} to {high:.2f}"])
        results[str(without)] = {"optimizer steps": steps, "with the old pass": both}
    print(table(["groups without contrast", "time, passed over / skipped", "median", "95 % interval"], rows))
    write_json(options.json, results)


if __name__ == "__main__":
    main()
