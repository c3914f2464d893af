"""What `with_penalties` costs in TRL, as a share of a step of plain GRPOTrainer that has no rollouts to make.

    pip install -c constraints.txt -e '.[train,trl]'
    python benchmarks/trl_overhead.py
    python benchmarks/trl_overhead.py --shape 10m --arms llds --json trl_overhead.json

The strictest measure: rollouts are made up beforehand, so a step is the old log-probs and the optimizer steps alone.
Every arm is `trainer.train()` over two rollout batches from the same weights, timed from the first step to the last. A
round runs all arms once, the order reversed from round to round; an arm's cost is its seconds over those of plain
GRPOTrainer in the same round, minus 1. Shown is the median over rounds with a 95 % interval from order statistics.

    observe        with_penalties(GRPOTrainer): the series alone
    llds, sapo     with the penalty
    displacement   observing, with displacement measured for one of the two batches (the default is one of ten)

With one thread (OMP_NUM_THREADS=1), seconds are the process's CPU seconds, which other jobs on the machine hardly
disturb; else they are wall-clock seconds. Needs no network. One free core needs about ten minutes.
"""

from __future__ import annotations

import argparse
import copy
import gc
import os
import random
import tempfile
from typing import Any

from measuring import median_interval, seconds_now, table, write_json
from penalty_cost import SHAPES, Shape, costs, model_of, rollouts

BATCHES = 2
ARMS = ("none", "observe", "llds", "sapo", "displacement")


def trainer_class(arm: str) -> Any:
    from trl import GRPOTrainer

    from holdfast.adapters.trl import LLDS, SAPO, with_penalties

    if arm == "none":
        return GRPOTrainer
    penalty = {"llds": LLDS(), "sapo": SAPO()}.get(arm)
    return with_penalties(GRPOTrainer, penalty, displacement_every=BATCHES if arm == "displacement" else 0)


class Task:
    """Rollouts of `penalty_cost`, as a `rollout_func` that only hands them out, and a model."""

    def __init__(self, shape: Shape, seed: int) -> None:
        from holdfast.adapters.trl_search import columns
        from holdfast.data.world.model import build_tokenizer

        self.shape, self.model = shape, model_of(shape, seed)
        trajectories = [t for group in rollouts(shape, random.Random(seed)) for t in group.trajectories]
        self.rows = columns(trajectories, 0) | {"score": [t.reward for t in trajectories]}
        del self.rows["trajectory"]
        self.tokenizer = build_tokenizer(["a question"] * 3)

    def rollout_func(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        return {name: list(values) for name, values in self.rows.items()}

    def seconds(self, arm: str) -> tuple[float, float]:
        """Seconds of the steps, and the mean share of preserved tokens on which the penalty was at work."""
        from datasets import Dataset
        from transformers import TrainerCallback
        from trl import GRPOConfig

        shape, times = self.shape, []

        class Clock(TrainerCallback):
            def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
                times.append(seconds_now())

            def on_train_end(self, *args: Any, **kwargs: Any) -> None:
                times.append(seconds_now())

        with tempfile.TemporaryDirectory() as folder:
            trainer = trainer_class(arm)(
                model=copy.deepcopy(self.model),
                processing_class=self.tokenizer,
                reward_funcs=lambda score, **_: score,
                rollout_func=self.rollout_func,
                train_dataset=Dataset.from_list([{"prompt": f"a question {i}"} for i in range(shape.questions * 4)]),
                callbacks=[Clock()],
                args=GRPOConfig(
                    output_dir=folder,
                    use_cpu=True,
                    bf16=False,
                    gradient_checkpointing=False,
                    per_device_train_batch_size=shape.questions * shape.group // shape.updates,
                    gradient_accumulation_steps=1,
                    steps_per_generation=shape.updates,
                    num_generations=shape.group,
                    max_completion_length=512,
                    max_steps=BATCHES * shape.updates,
                    learning_rate=5e-4,
                    lr_scheduler_type="constant",
                    report_to=[],
                    logging_steps=shape.updates,
                    save_strategy="no",
                    disable_tqdm=True,
                ),
            )
            trainer.remove_callback(next(c for c in trainer.callback_handler.callbacks if "Print" in type(c).__name__))
            trainer.train()
        name = "holdfast/penalty/active_fraction"
        active = [row[name] for row in trainer.state.log_history if name in row]
        del trainer
        gc.collect()
        return times[-1] - times[0], sum(active) / max(len(active), 1)


def measure(shape: Shape, arms: list[str], rounds: int, seed: int) -> dict[str, Any]:
    """Seconds of every round, and costs in percent with their intervals."""
    task = Task(shape, seed)
    active = {arm: task.seconds(arm)[1] for arm in arms}  # warms up, and shows whether the penalty has something to do
    seconds: dict[str, list[float]] = {arm: [] for arm in arms}
    for n in range(rounds):
        for arm in arms if n % 2 == 0 else reversed(arms):
            seconds[arm].append(task.seconds(arm)[0])
    return {"seconds": seconds, "active_fraction": active, "cost_percent": costs(seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=["quickstart"])
    parser.add_argument("--arms", nargs="+", choices=ARMS[1:], default=list(ARMS[1:]))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="PATH")
    options = parser.parse_args()
    os.environ |= dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRL_EXPERIMENTAL_SILENCE"), "1")
    results = {}
    for name in options.shape:
        result = results[name] = measure(SHAPES[name], ["none", *options.arms], options.rounds, options.seed)
        baseline = median_interval(result["seconds"]["none"])[0] / BATCHES
        rows = [["GRPOTrainer", f"{baseline:.3f}", "", "", ""]]
        for arm, (cost, low, high) in result["cost_percent"].items():
            seconds = median_interval(result["seconds"][arm])[0] / BATCHES
            active = f"{result['active_fraction'][arm]:.2f}"
            rows.append([arm, f"{seconds:.3f}", active, f"{cost:+.2f} %", f"{low:+.2f} to {high:+.2f} %"])
        print(f"\n{name}")
        print(table(["arm", "s per rollout batch", "active", "cost", "95 % interval"], rows))
    write_json(options.json, results)


if __name__ == "__main__":
    main()
