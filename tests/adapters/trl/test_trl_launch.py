"""`holdfast launch trl` against TRL itself: its options are taken, K is K, and the folder trains."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

trl = pytest.importorskip("trl")

from transformers import TrainingArguments  # noqa: E402

from holdfast.adapters.launch import Machines, plan, write_plan  # noqa: E402
from holdfast.cli.recipes import bundled  # noqa: E402
from holdfast.recipe import Config, load  # noqa: E402

SMALL = (
    "--run.name=small",
    "--data.train=questions.jsonl",
    "--retrieval.url=http://127.0.0.1:8000/retrieve",
    "--model.path=Qwen/Qwen2.5-0.5B-Instruct",
    "--train.questions=40",
    "--run.device=cpu",
)
CASES = [
    [],
    ["--loss.penalty.name=none", "--train.optimizer_steps_per_rollout=1"],
    ["--loss.reduction=seq-mean-token-mean", "--loss.ratio=sequence", "--loss.dual_clip=4", "--loss.clip_high=0.28"],
    ["--loss.reduction=seq-mean-token-sum-norm", "--loss.advantage=dr_grpo", "--loss.kl_coef=0"],
    ["--loss.reduction=seq-mean-token-sum", "--loss.ratio=sequence", "--loss.entropy_coef=0.001"],
    ["--eval.samples=4", "--eval.every=0", "--checkpoint.every=0", "--sampling.top_k=20", "--train.warmup=3"],
    ["--model.gradient_checkpointing"],
    ["--run.device=auto", "--train.micro_batch_tokens=4096", "--track.tensorboard", "--track.trajectories=0"],
]


def grpo_config(script: str, folder: Path) -> Any:
    """The `args` of the script, made."""
    wanted = ("checkpointing = ", "args = ")
    body = [node for node in ast.parse(script).body if ast.unparse(node).startswith(wanted)]
    names = {"GRPOConfig": trl.GRPOConfig, "torch": torch, "weights": [1.0]}
    exec(compile(ast.Module(body, []), "train.py", "exec"), names)
    args: Any = names["args"]
    args.output_dir = str(folder)
    return args


def optimizer_steps(args: Any) -> float:
    """Per generation batch, counted on TRL's own sampler: prompts of one batch, rows of one optimizer step."""
    trainer = SimpleNamespace(
        args=args, num_generations=args.num_generations, num_iterations=args.num_iterations, shuffle_dataset=True
    )
    sampler = trl.GRPOTrainer._get_train_sampler(trainer, list(range(1000)))
    drawn = sampler.batch_size * args.num_generations * sampler.repeat_count / args.steps_per_generation
    rows = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    assert args.steps_per_generation % args.gradient_accumulation_steps == 0, "a step would span two batches"
    return drawn / rows


@pytest.mark.filterwarnings("error:`gradient_checkpointing:FutureWarning")  # by its former name
@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("overrides", CASES, ids=lambda words: " ".join(words) or "defaults")
def test_trl_takes_the_options_and_k_is_k(
    overrides: list[str], gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainingArguments, "world_size", property(lambda self: gpus))
    config = load(None, [*SMALL, *overrides])
    args = grpo_config(plan("trl", config, Machines(gpus=gpus)).files["train.py"], tmp_path)
    steps = config.train.optimizer_steps_per_rollout
    assert optimizer_steps(args) == steps
    assert args.generation_batch_size == config.train.questions * config.train.group_size
    assert args.max_steps == config.train.steps * steps
    assert args.get_warmup_steps(args.max_steps) == config.train.warmup * steps
    assert (args.epsilon, args.epsilon_high) == (config.loss.clip_low, config.loss.clip_high)
    assert args.gradient_checkpointing is config.model.gradient_checkpointing
    assert args.bf16 is (torch.cuda.is_available() and config.run.device != "cpu")


@pytest.mark.parametrize("name", ["llds-v1", "qwen2.5-3b", "qwen2.5-7b-instruct", "sapo-qwen2.5-3b"])
def test_shipped_recipes_take_the_published_steps(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingArguments, "world_size", property(lambda self: 8))
    made = plan("trl", load(bundled()[name], ["--run.device=cpu"]), Machines(gpus=8))
    args = grpo_config(made.files["train.py"], tmp_path)
    assert optimizer_steps(args) == 10
    penalties = {
        "qwen2.5-3b": "LLDS(coef=0.2, ",
        "qwen2.5-7b-instruct": "LLDS(coef=0.3, ",
        "llds-v1": "LLDS(coef=0.1, ",
    }
    assert penalties.get(name, "SAPO(coef=0.1, ") in made.files["train.py"]


@pytest.mark.parametrize("advantage", [-1.0, 0.7])
@pytest.mark.parametrize("dual_clip", [None, 1.5])
def test_the_clipping_is_the_recipes(advantage: float, dual_clip: float | None, tmp_path: Path) -> None:
    """TRL's `delta` is the dual clip, when it is not below 1 + clip_high."""
    from holdfast.losses import clipped_policy_loss

    words = [*SMALL, "--loss.kl_coef=0", "--loss.reduction=seq-mean-token-sum-norm", "--protocol.max_turns=1"]
    config = load(None, [*words, *([f"--loss.dual_clip={dual_clip}"] if dual_clip else [])])
    args = grpo_config(plan("trl", config).files["train.py"], tmp_path)
    new = -torch.rand(1, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    old = new - torch.tensor([[0.1, -0.5, 0.5, 2.0, 5.0, 0.0]], dtype=torch.float64)
    ones = torch.ones(1, 6, dtype=torch.bool)
    trainer = _Bare(args, new)
    loss = trl.GRPOTrainer._compute_loss(
        trainer,
        None,
        {
            "prompt_ids": torch.zeros(1, 1, dtype=torch.long),
            "prompt_mask": torch.ones(1, 1, dtype=torch.long),
            "completion_ids": torch.zeros(1, 6, dtype=torch.long),
            "completion_mask": ones.long(),
            "advantages": torch.tensor([advantage], dtype=torch.float64),
            "old_per_token_logps": old,
        },
    )
    own = clipped_policy_loss(new, old, torch.tensor([[advantage]], dtype=torch.float64), ones, dual_clip=dual_clip)
    torch.testing.assert_close(loss * args.max_completion_length, own.sum())


class _Bare:
    """As much of a GRPOTrainer as its loss reads."""

    def __init__(self, args: Any, logprobs: torch.Tensor) -> None:
        self.args, self.logprobs = args, logprobs
        self.loss_type, self.beta = args.loss_type, args.beta
        self.epsilon_low, self.epsilon_high = args.epsilon, args.epsilon_high
        self.importance_sampling_level = args.importance_sampling_level
        self.max_completion_length = args.max_completion_length
        self.top_entropy_quantile, self.off_policy_mask_threshold = 1.0, None
        self.use_vllm = self.aux_loss_enabled = self._entropy_bonus_enabled = False
        self.current_gradient_accumulation_steps = 1
        self.model = SimpleNamespace(training=False)
        self.accelerator = SimpleNamespace(reduce=lambda x, reduction: x, gather=lambda x: x)
        self._metrics: Any = {"eval": _Lists()}

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor, None]:
        return self.logprobs, torch.zeros_like(self.logprobs), None


class _Lists(dict[str, list[float]]):
    def __missing__(self, key: str) -> list[float]:
        return self.setdefault(key, [])


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Config]:
    """A tiny model of a small world, after the warm start that the refusal of `tiny` names."""
    from holdfast.train.start import warm_start_only

    folder = tmp_path_factory.mktemp("tiny")
    words = ["people=60", "train_questions=40", "dev_questions=6", "test_questions=5"]
    config = load(None, [
        *(f"--world.{word}" for word in words),
        "--world.model.hidden=32", "--world.model.layers=1", "--world.model.heads=2",
        "--run.device=cpu", "--run.name=tiny",
        "--protocol.max_turn_tokens=16", "--protocol.max_observation_tokens=48", "--protocol.max_total_tokens=256",
        "--protocol.prompt=Question: {question}\n", "--protocol.max_turns=2",
        "--warm_start.steps=3", "--world.scripts.count=40", "--warm_start.batch_size=8",
        "--train.steps=2", "--train.questions=4", "--train.group_size=2", "--train.optimizer_steps_per_rollout=2",
        "--train.lr=1e-3", "--eval.questions=2", "--eval.every=1", "--checkpoint.every=1", "--loss.kl_coef=0.001",
    ])  # fmt: skip
    run_dir = folder / "run"
    run_dir.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_CACHE", str(folder / "cache"))
        model = warm_start_only(config, run_dir)
    return folder, load(None, _words(config, model))


def _words(config: Config, model: Path) -> list[str]:
    from holdfast.adapters.launch import Machines
    from holdfast.adapters.launch.view import Recipe

    recipe = Recipe("trl", config, Machines())
    own = {name: recipe.values[name] for name in recipe.changed} | {"model.path": str(model), "warm_start.steps": 0}
    return [f"--{name}={value}" for name, value in own.items()]


@pytest.mark.long
def test_the_folder_trains_and_resumes(tiny_run: tuple[Path, Config]) -> None:
    folder, config = tiny_run
    launched = folder / "launched"
    write_plan(plan("trl", config), launched)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parents[3] / "src"),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
    }

    def run(*words: str) -> Any:
        """The newest checkpoint and its state. At the end the scores on test are printed and kept."""
        done = subprocess.run([launched / "run.sh", *words], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        (last,) = [line for line in done.stdout.splitlines() if line.startswith("test: ")]
        assert "'test_holdfast/reward/em': " in last and "'eval_" not in last and "'test_loss': " in last
        whole = json.loads((launched / "runs/tiny/trainer_state.json").read_text())["log_history"]
        assert "test_loss" in whole[-1]
        state = sorted((launched / "runs/tiny").glob("checkpoint-*"), key=lambda p: int(p.name.split("-")[1]))[-1]
        return state.name, json.loads((state / "trainer_state.json").read_text())

    name, state = run()
    assert name == "checkpoint-4"  # 2 rollout batches × K = 2
    logged = [row for row in state["log_history"] if "loss" in row]
    assert [row["step"] for row in logged] == [2, 4], "a line for each rollout batch"
    assert {"holdfast/reward/em", "holdfast/penalty/active_fraction", "rewards/em/mean"} <= set(logged[0])
    assert [row["step"] for row in state["log_history"] if "eval_reward" in row] == [2, 4]
    assert (launched / "runs/tiny/model.safetensors").is_file()
    shutil.rmtree(launched / "runs/tiny/checkpoint-4")
    name, again = run("--resume")
    assert name == "checkpoint-4"
    before, after = (
        [row for row in rows["log_history"] if "loss" in row and row["step"] <= 2] for rows in (state, again)
    )
    assert before == after, "the first rollout batch was not done again"
