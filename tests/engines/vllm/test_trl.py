"""TRL's own `GRPOTrainer` with its own vLLM: colocated over two rollout batches, and by a server."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed; `make contracts-vllm` installs it", allow_module_level=True)

import torch
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.generation.vllm_client import VLLMClient
from typer.testing import CliRunner

from holdfast.adapters.trl import LLDS, with_penalties
from holdfast.adapters.trl.search import SearchRollouts, question_dataset, reward_functions
from holdfast.adapters.trl.vllm import VLLMPolicy
from holdfast.agent.trajectory import Trajectory
from holdfast.cli.main import app
from holdfast.model.sampler.hf import HFPolicy
from holdfast.model.sampler.policy import generate
from holdfast.retrieval.bm25 import BM25Retriever

from ..setting_up import SETTING_UP
from .conftest import POSITIONS, PROTOCOL, QUESTIONS, Tiny
from .test_serve import turns

LEARNING_RATE = 5e-4


@dataclass
class Run:
    """A trainer, and every rollout batch: what TRL handed to the rewards, and what it trains on."""

    trainer: Any
    batches: list[tuple[list[dict[str, Any]], dict[str, Any]]] = field(default_factory=list)

    def trajectories(self) -> list[Trajectory]:
        return [row["trajectory"] for inputs, _ in self.batches for row in inputs]

    def series(self, name: str) -> list[float]:
        return [row[name] for row in self.trainer.state.log_history if name in row]


def make_run(
    tiny: Tiny, retriever: BM25Retriever, folder: Path, *, mask_logprobs: bool = False, **settings: Any
) -> Run:
    """Four optimizer steps for each batch of 16 rollouts, with LLDS. In pairs, so that some groups are all wrong: their
    advantage is 0, they are preserved, and the others' gradients move them."""
    functions, weights = reward_functions({"em": 1.0})
    run = Run(trainer=None)

    class Kept(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
            batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
            run.batches.append((inputs, batch))
            return batch

    adapted = with_penalties(Kept, LLDS(coef=0.2, gate="action"), displacement_every=1, mask_logprobs=mask_logprobs)
    run.trainer = adapted(
        str(tiny.folder),
        functions,
        args=GRPOConfig(
            output_dir=str(folder),
            use_vllm=True,
            vllm_max_model_length=POSITIONS,
            vllm_importance_sampling_correction=False,
            per_device_train_batch_size=4,
            num_generations=2,
            steps_per_generation=4,
            gradient_accumulation_steps=1,
            max_completion_length=240,
            lr_scheduler_type="constant",
            learning_rate=LEARNING_RATE,
            logging_steps=1,
            report_to="none",
            bf16=False,
            use_cpu=True,
            disable_tqdm=True,
            reward_weights=weights,
            seed=1,
            save_strategy="no",
            **settings,
        ),
        train_dataset=question_dataset(QUESTIONS),
        rollout_func=SearchRollouts(retriever, PROTOCOL),
    )
    return run


def check_rollouts(run: Run) -> None:
    """Searches happen, some answers are right, and TRL trains on exactly what was sampled."""
    done = run.trajectories()
    assert not any(t.status.is_failure for t in done)
    assert sum(t.searches for t in done) > 0 and sum(len(turn.hits) for t in done for turn in t.turns) > 0
    assert 0 < sum(t.answer == "town" for t in done) < len(done)
    for inputs, batch in run.batches:
        mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
        for i, row in enumerate(inputs):
            t: Trajectory = row["trajectory"]
            n, length = len(t.prompt), len(t.token_ids) - len(t.prompt)
            assert batch["completion_ids"][i, :length].tolist() == list(t.token_ids[n:])
            assert mask[i, :length].tolist() == list(t.loss_mask[n:]) and not mask[i, length:].any()


def gap(batch: dict[str, Any]) -> torch.Tensor:
    """|log-prob of the sampler − that of TRL's forward pass|, of each sampled token."""
    mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
    return (batch["sampling_per_token_logps"] - batch["old_per_token_logps"])[mask].abs()


# ---- colocated


@pytest.fixture(scope="module")
def colocated(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from .conftest import PASSAGES

    folder = tmp_path_factory.mktemp("colocated")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"):  # which TRL sets for good
            patch.setenv(name, "")
            patch.delenv(name)
        run = make_run(
            tiny,
            BM25Retriever.build(PASSAGES),
            folder,
            vllm_mode="colocate",
            vllm_gpu_memory_utilization=0.1,
            max_steps=8,
        )
        run.trainer.train()
        run.trainer.save_state()
        yield run


def test_colocated_rollouts_are_trained_on_as_they_were_sampled(colocated: Run) -> None:
    assert colocated.trainer.state.global_step == 8 and len(colocated.batches) == 2
    check_rollouts(colocated)
    active = colocated.series("holdfast/penalty/active_fraction")
    assert active[0] == active[4] == 0.0 < max(active), "the first step of a batch has none"
    # TRL names no dtype, so its vLLM computes in bfloat16; the trainer in float32.
    assert all(0 < float(gap(batch).mean()) < 0.05 for _, batch in colocated.batches)


def test_vllm_has_the_weights_of_the_trainer(colocated: Run, tiny: Tiny) -> None:
    generation, trainer = colocated.trainer.vllm_generation, colocated.trainer
    generation.sync_weights()  # after the last optimizer step TRL has no more to generate
    policy = VLLMPolicy(generation, trainer.accelerator, tiny.tokenizer, trainer.eos_token_ids)
    start = AutoModelForCausalLM.from_pretrained(tiny.folder).eval()
    trained = trainer.model.eval()
    now, before = [], []
    for request, completion in zip(turns(tiny), generate(policy, turns(tiny)), strict=True):
        assert completion.token_ids and completion.logprobs
        pair = (request.token_ids, completion.token_ids)
        now += [abs(a - b) for a, b in zip(completion.logprobs, tiny.logprobs(*pair, trained), strict=True)]
        before += [abs(a - b) for a, b in zip(completion.logprobs, tiny.logprobs(*pair, start), strict=True)]
    assert sum(now) / len(now) < 0.1
    assert sum(before) / len(before) > 5 * sum(now) / len(now), "the update changed nothing that could be told"


def test_its_log_says_that_it_is_set_up_well(colocated: Run) -> None:
    state = Path(colocated.trainer.args.output_dir) / "trainer_state.json"
    done = CliRunner().invoke(app, ["diagnose", str(state), "--json"])
    assert done.exit_code in (0, 1), done.output
    findings = json.loads(done.output)["findings"]
    assert not SETTING_UP & {finding["code"] for finding in findings if finding["level"] == "finding"}, findings


# ---- by a server


@pytest.fixture
def without_new_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """They go to a server by NCCL alone, so on a machine without a GPU they stay as they are."""
    monkeypatch.setattr(VLLMClient, "init_communicator", lambda self, device=0: None)
    monkeypatch.setattr(VLLMClient, "close_communicator", lambda self: None)
    monkeypatch.setattr(VLLMClient, "update_named_params", lambda self, *_: None)


@pytest.mark.usefixtures("without_new_weights")
def test_rollouts_by_a_server_are_trained_on_as_they_were_sampled(
    served: str, tiny: Tiny, retriever: BM25Retriever, tmp_path: Path
) -> None:
    """One rollout batch, which needs no new weights."""
    run = make_run(tiny, retriever, tmp_path, vllm_mode="server", vllm_server_base_url=served, max_steps=4)
    run.trainer.train()
    check_rollouts(run)
    ((_, batch),) = run.batches
    assert float(gap(batch).max()) < 1e-3, "float32 on both sides"
    assert max(run.series("holdfast/penalty/active_fraction")) > 0

    generation = run.trainer.vllm_generation
    policy = VLLMPolicy(generation, run.trainer.accelerator, tiny.tokenizer, run.trainer.eos_token_ids)
    for request, completion in zip(turns(tiny), generate(policy, turns(tiny)), strict=True):
        assert completion.token_ids and len(completion.token_ids) <= request.max_new_tokens
        assert completion.logprobs == pytest.approx(tiny.logprobs(request.token_ids, completion.token_ids), abs=1e-3)

    generation.temperature = 0.0
    there = generate(policy, turns(tiny))
    with torch.no_grad():
        here = generate(HFPolicy(tiny.model, tiny.tokenizer, greedy=True, max_tokens=POSITIONS), turns(tiny))
    facts = [[(c.token_ids, c.text, c.stop_reason) for c in completions] for completions in (there, here)]
    assert facts[0] == facts[1]


@pytest.mark.parametrize("min_p", [None, 0.15])
@pytest.mark.usefixtures("without_new_weights")
def test_the_mask_of_a_truncated_sampler_is_recomputed(
    served: str, tiny: Tiny, retriever: BM25Retriever, tmp_path: Path, min_p: float | None
) -> None:
    """vLLM's processed log-probs are over its sampling mask. With `mask_logprobs` TRL's old ones are of the same
    distribution, for every token; without it they miss the mass outside the mask."""
    sampler = {"top_p": 0.7, "top_k": 40, "min_p": min_p, "temperature": 1.3}
    settings = {"vllm_mode": "server", "vllm_server_base_url": served, "max_steps": 4, **sampler}
    masked = make_run(tiny, retriever, tmp_path / "masked", mask_logprobs=True, **settings)
    masked.trainer.train()
    ((_, batch),) = masked.batches
    assert float(gap(batch).max()) < 1e-3, "float32 on both sides"
    assert abs(masked.series("holdfast/sampler/logprob_gap")[0]) < 1e-3
    assert masked.series("holdfast/sampler/mask_mass")[0] < 0.98
    assert masked.series("holdfast/sampler/mask_in_loss") == [1.0]

    whole = make_run(tiny, retriever, tmp_path / "whole", **settings)
    whole.trainer.train()
    ((_, batch),) = whole.batches
    assert float(gap(batch).max()) > 0.1 and whole.series("holdfast/sampler/logprob_gap")[0] > 0.01
