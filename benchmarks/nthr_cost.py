"""What NTHR costs, as a share of an update: hidden states of the old pass, scores, weights.

    python benchmarks/nthr_cost.py
    python benchmarks/nthr_cost.py --shape 10m --json nthr_cost.json

Both arms take the old log-probs and make the update, forward and backward passes and the optimizer included, from the
same weights on the same rollouts. A step also has rollouts, which are left out here, so its share is smaller. A round
runs both arms once, the order reversed from round to round; the cost is the seconds with NTHR over those without
in the same round, minus 1. Shown is the median over rounds with a 95 % interval from order statistics. "active"
is the share of sampled tokens whose weight NTHR lowers.

Memory is the peak of the old pass, by PyTorch's record of every allocation: the scores' part beside one [V*, d] matrix
in float32, V* being the tokens that occur in a group, and beside the hidden states, which are kept until the pass ends
because a group's rollouts may be in any mini-batch.

With one thread (OMP_NUM_THREADS=1), seconds are CPU seconds of the process. Needs no network. One free core needs about
two minutes a shape.
"""

from __future__ import annotations

from itertools import accumulate

from torch.profiler import ProfilerActivity, profile

import penalty_cost
from holdfast.agent.batch import TokenBatch
from holdfast.methods.nthr import rows_for_nthr
from holdfast.methods.penalties import NoPenalty
from holdfast.methods.registry import NTHR, Methods
from holdfast.recipe import Loss
from holdfast.train.learner import Learner
from measuring import write_json
from penalty_cost import SHAPES, compare, cost_table, options_of

ARMS = {
    arm: Loss(kl_coef=0.0, penalty=NoPenalty(), methods=Methods(nthr=NTHR(on=arm == "nthr")))
    for arm in ("none", "nthr")
}
FLOAT32 = 4


class Update(penalty_cost.Update):
    """With the old pass in what is timed, made over and over too."""

    def minibatches(self, learner: Learner) -> list[list[TokenBatch]]:
        return learner.old_pass(self.batch, self.plan).minibatches

    def weighed(self) -> float:
        """Share of sampled tokens whose weight NTHR lowers."""
        micros = [micro for mini in self.minibatches(self.learner(ARMS["nthr"])) for micro in mini]
        lowered = sum(int((m.policy_weights[m.loss_mask] < 1).sum()) for m in micros if m.policy_weights is not None)
        return lowered / int(self.batch.loss_mask.sum())

    def peak(self, arm: str) -> int:
        """Most bytes that an old pass holds beyond what was there before it."""
        learner = self.learner(ARMS[arm])
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
            learner.old_pass(self.batch, self.plan)
        events = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
        changes = sorted((event.start_ns(), event.nbytes()) for event in events)  # below 0: freed
        return max(accumulate(change for _, change in changes))

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


def main() -> None:
    options = options_of(__doc__)
    results = {}
    for name in options.shape:
        update = Update(SHAPES[name], options.seed)
        lowered = {"none": 0.0, "nthr": update.weighed()}

        def measured(arm: str, update: Update = update, lowered: dict[str, float] = lowered) -> tuple[float, float]:
            return update.run(ARMS[arm])[0], lowered[arm]

        result = compare(measured, list(ARMS), options.rounds)
        shape, peak = update.describe(), {arm: update.peak(arm) for arm in ARMS}
        results[name] = {"shape": shape, "peak_bytes": peak, **result}
        print(f"\n{name}: " + ", ".join(f"{key} {value:,.0f}" for key, value in shape.items()))
        print(cost_table(result, "s per update"))
        sizes = (peak["nthr"] - peak["none"], shape["hidden bytes"], shape["matrix bytes"])
        more, hidden, matrix = (f"{size / 2**20:.2f} MiB" for size in sizes)
        print(f"the old pass holds {more} more; the hidden states are {hidden}, one [V*, d] is {matrix}")
    write_json(options.json, results)


if __name__ == "__main__":
    main()
