"""Run by test_verl_agent.py in a process of its own: two rollouts one after the other, as a Ray worker of verl makes
them. Nothing imports `holdfast.adapters.verl_agent` before verl's worker has read the YAML file. Prints a line of JSON:
the status of each rollout and how often it searched.

Arguments: the model's folder, the YAML file.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
from verl.protocol import DataProto
from verl.workers.rollout.replica import TokenOutput

from holdfast.adapters.verl_check import EXAMPLE, compose

TURNS = ["<search> lake </search>", "<answer> Mirn </answer>"]


class TokenServer:
    """Searches in the first turn of an episode, answers in the second."""

    def __init__(self) -> None:
        self.tokenizer: Any = None

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
        said = TURNS["</search>" in self.tokenizer.decode(prompt_ids)]
        ids = self.tokenizer(said, add_special_tokens=False)["input_ids"]
        return TokenOutput(token_ids=ids, log_probs=[-0.1] * len(ids), stop_reason="completed")


def row() -> DataProto:
    columns: dict[str, Any] = {
        "raw_prompt": [{"role": "user", "content": "Which lake?"}],
        "reward_model": {"ground_truth": ["Mirn"]},
    }
    arrays = {name: np.empty(1, dtype=object) for name in columns}
    for name, value in columns.items():
        arrays[name][0] = value
    batch = TensorDict({"dummy_tensor": torch.zeros(1, 1)}, batch_size=[1])
    return DataProto(batch=batch, non_tensor_batch=arrays, meta_info={"global_steps": 1})


def main(model: str, loops: str) -> None:
    rollout = "actor_rollout_ref.rollout"
    config = compose(
        [
            *EXAMPLE,
            f"actor_rollout_ref.model.path={model}",
            f"{rollout}.name=vllm",
            f"{rollout}.prompt_length=120",
            f"{rollout}.response_length=220",
            f"{rollout}.agent.default_agent_loop=holdfast_search",
            f"{rollout}.agent.agent_loop_config_path={loops}",
        ]
    )
    server = TokenServer()
    worker = AgentLoopWorker(config, llm_client=server)
    server.tokenizer = worker.tokenizer
    assert "holdfast.adapters.verl_agent" not in sys.modules, "the order is not verl's"
    done = [asyncio.run(worker.generate_sequences(row())).non_tensor_batch for _ in range(2)]
    print("RESULT " + json.dumps([[fields["status"][0], int(fields["searches"][0])] for fields in done]))


if __name__ == "__main__":
    main(*sys.argv[1:])
