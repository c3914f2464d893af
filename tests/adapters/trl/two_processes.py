"""Run by test_trl_processes.py in two processes: a trainer with a penalty, whose log the first process prints."""

import json
import os
import sys
import warnings

import torch
import trl
from datasets import Dataset

from holdfast.adapters.trl import LLDS, with_penalties
from holdfast.data.world.model import build_model, build_tokenizer

warnings.simplefilter("ignore")
RANK = int(os.environ["RANK"])
tokenizer = build_tokenizer(["What is the lake?"] * 3)


def rollouts(prompts, trainer):
    """Four rollouts each; those of the second process are longer and have an action more."""
    generator = torch.Generator().manual_seed(RANK + 10 * trainer.state.global_step)
    said = [3 + row % 3 + 2 * RANK for row in range(len(prompts))]
    last = [2] * 2 if RANK == 0 else [2, 3]
    return {
        "prompt_ids": [tokenizer(prompt)["input_ids"] for prompt in prompts],
        "completion_ids": [torch.randint(2, 250, (n + 4,), generator=generator).tolist() for n in said],
        "logprobs": [[-1.0] * (n + 4) for n in said],
        "env_mask": [[1] * n + [0] * 2 + [1] * 2 for n in said],
        "action_ids": [[1] * n + [0] * 2 + last for n in said],
        "number": list(range(len(prompts))),
    }


args = trl.GRPOConfig(
    output_dir=sys.argv[1],
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    steps_per_generation=4,
    num_generations=4,
    max_completion_length=16,
    max_steps=4,
    logging_steps=1,
    learning_rate=1e-2,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
)
trainer = with_penalties(trl.GRPOTrainer, LLDS(coef=0.5), displacement_every=1, displacement_rows=6)(
    model=build_model(tokenizer, seed=1, hidden=32, layers=2, heads=2),
    processing_class=tokenizer,
    reward_funcs=lambda number, **_: [float(n % 3 == 0) for n in number],
    rollout_func=rollouts,
    train_dataset=Dataset.from_list([{"prompt": f"What is the lake {i}?"} for i in range(12)]),
    args=args,
)
trainer.train()
if RANK == 0:
    print("LOG", json.dumps(trainer.state.log_history), flush=True)
torch.distributed.barrier()
torch.distributed.destroy_process_group()
os._exit(0)  # at a normal exit the threads of the backend may abort a process that has done its work
