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

import copy
import gc
import os
import random
import tempfile
from typing import Any

from measuring import seconds_now, write_json
from penalty_cost import SHAPES, Shape, compare, cost_table, model_of, options_of, rollouts

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
        from holdfast.adapters.trl.search import columns
        from holdfast.tasks.world.model import build_tokenizer

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


def main() -> None:
    options = options_of(__doc__, ARMS)
    os.environ |= dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRL_EXPERIMENTAL_SILENCE"), "1")
    results = {}
    for name in options.shape:
        task = Task(SHAPES[name], options.seed)
        results[name] = compare(task.seconds, ["none", *options.arms], options.rounds)
        print(f"\n{name}\n{cost_table(results[name], 's per rollout batch', BATCHES)}")
    write_json(options.json, results)


if __name__ == "__main__":
    main()
