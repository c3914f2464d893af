"""Two processes: the log counts the rollouts of both, and nobody waits for a call the other does not make."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")


def main(folder: str) -> None:
    """In each of the two processes: a trainer with a penalty, whose log the first process prints."""
    import torch
    import trl
    from datasets import Dataset

    from holdfast.adapters.trl import LLDS, with_penalties
    from holdfast.tasks.world.model import build_model, build_tokenizer

    rank = int(os.environ["RANK"])
    tokenizer = build_tokenizer(["What is the lake?"] * 3)

    def rollouts(prompts: list[str], trainer: Any) -> dict[str, Any]:
        """Four rollouts each; those of the second process are longer and have an action more."""
        generator = torch.Generator().manual_seed(rank + 10 * trainer.state.global_step)
        said = [3 + row % 3 + 2 * rank for row in range(len(prompts))]
        last = [2] * 2 if rank == 0 else [2, 3]
        return {
            "prompt_ids": [tokenizer(prompt)["input_ids"] for prompt in prompts],
            "completion_ids": [torch.randint(2, 250, (n + 4,), generator=generator).tolist() for n in said],
            "logprobs": [[-1.0] * (n + 4) for n in said],
            "env_mask": [[1] * n + [0] * 2 + [1] * 2 for n in said],
            "action_ids": [[1] * n + [0] * 2 + last for n in said],
            "number": list(range(len(prompts))),
        }

    args = trl.GRPOConfig(
        output_dir=folder,
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
    if rank == 0:
        print("LOG", json.dumps(trainer.state.log_history), flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    os._exit(0)  # at a normal exit the threads of the backend may abort a process that has done its work


@pytest.mark.slow
def test_two_processes_log_as_one(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    quiet = {"OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        [*command, __file__, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | quiet,
        start_new_session=True,
    )
    try:
        said, errors = process.communicate(timeout=600)
    finally:
        if process.poll() is None:  # else the two would wait for each other for ever
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors[-3000:]
    rows = json.loads(next(line for line in said.splitlines() if line.startswith("LOG"))[4:])
    steps = [row for row in rows if "loss" in row]
    assert len(steps) == 4
    for row in steps:
        assert row["loss"] == pytest.approx(row["holdfast/loss/host"] + row["holdfast/loss/penalty"], abs=1e-5)
    assert steps[1]["holdfast/loss/penalty"] > 0
    # Rows of 3, 4, 5 and of 5, 6, 7 tokens and 2 more, in turn: their mean over both processes.
    first = [3 + row % 3 + 2 for row in range(8)]
    assert steps[0]["holdfast/rollout/length"] == pytest.approx(sum(2 * n + 2 for n in first) / 16)
    assert "holdfast/likelihood/correct/action_3" in steps[0]  # only the second process has third actions
    assert steps[2]["holdfast/displacement/rollouts"] == 6


if __name__ == "__main__":
    main(sys.argv[1])
