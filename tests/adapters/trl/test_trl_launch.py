"""Scripts for TRL run: what `holdfast launch trl` writes, against TRL itself (its options are taken, K is K, the folder
trains), and examples/: two scripts that differ in one line and its import, and a notebook.

To make the outputs of the notebook again, in an environment with Jupyter:

    jupyter execute --inplace examples/failing_and_stabilised_trl.ipynb
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("trl")

import trl
from transformers import TrainingArguments

from holdfast.adapters.launch import Machines, plan, write_plan
from holdfast.losses import clipped_policy_loss
from holdfast.recipe import load
from holdfast.train.start import warm_start_only

from ..launch.conftest import SMALL as SMALL_RECIPE
from .test_trl_penalties import host_loss, micro_batch

SMALL = (*SMALL_RECIPE, "--run.device=cpu")
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


TINY = [
    "--world.people=60", "--world.train_questions=40", "--world.dev_questions=6", "--world.test_questions=5",
    "--world.model.hidden=32", "--world.model.layers=1", "--world.model.heads=2",
    "--run.device=cpu", "--run.name=tiny",
    "--protocol.max_turn_tokens=16", "--protocol.max_observation_tokens=48", "--protocol.max_total_tokens=256",
    "--protocol.prompt=Question: {question}\n", "--protocol.max_turns=2",
    "--warm_start.steps=3", "--world.scripts.count=40", "--warm_start.batch_size=8",
    "--train.steps=2", "--train.questions=4", "--train.group_size=2", "--train.optimizer_steps_per_rollout=2",
    "--train.lr=1e-3", "--eval.questions=2", "--eval.every=1", "--checkpoint.every=1", "--loss.kl_coef=0.001",
]  # fmt: skip


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


@pytest.mark.parametrize("dual_clip", [None, 1.5])
def test_the_clipping_is_the_recipes(make_trainer: Any, dual_clip: float | None, tmp_path: Path) -> None:
    """TRL's `delta` is the dual clip, when it is not below 1 + clip_high."""
    words = [*SMALL, "--loss.kl_coef=0", "--loss.reduction=seq-mean-token-sum-norm", "--protocol.max_turns=1"]
    config = load(None, [*words, *([f"--loss.dual_clip={dual_clip}"] if dual_clip else [])])
    args = grpo_config(plan("trl", config).files["train.py"], tmp_path)
    names = ("loss_type", "epsilon", "epsilon_high", "delta", "max_completion_length")
    trainer = make_trainer(trl.GRPOTrainer, **{name: getattr(args, name) for name in names})
    trainer.model.train()
    batch = micro_batch()
    new, mask = batch["logprobs"], (batch["completion_mask"] * batch["tool_mask"]).bool()
    old = batch["old_per_token_logps"] = new + 4 * (batch["old_per_token_logps"] - new)
    advantages = batch["advantages"][:, None]
    assert ((new - old).exp()[mask & (advantages < 0)] > 1.5).any()
    own = clipped_policy_loss(new, old, advantages, mask, dual_clip=dual_clip).sum()
    loss = host_loss(trainer, batch, new, window=1)
    torch.testing.assert_close(loss * args.max_completion_length * len(mask), own)


@pytest.mark.long
def test_the_folder_trains_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tiny model of a small world, after the warm start that the refusal of `tiny` names."""
    run_dir, launched = tmp_path / "run", tmp_path / "launched"
    run_dir.mkdir()
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    model = warm_start_only(load(None, TINY), run_dir)
    words = [*TINY, f"--model.path={model}", "--warm_start.steps=0", "--eval.every=3"]
    write_plan(plan("trl", load(None, words)), launched)
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
        assert [row["step"] for row in whole if "eval_reward" in row] == [4], "the last step is evaluated once"
        state = sorted((launched / "runs/tiny").glob("checkpoint-*"), key=lambda p: int(p.name.split("-")[1]))[-1]
        return state.name, json.loads((state / "trainer_state.json").read_text())

    name, state = run()
    assert name == "checkpoint-4"  # 2 rollout batches × K = 2
    logged = [row for row in state["log_history"] if "loss" in row]
    assert [row["step"] for row in logged] == [2, 4], "a line for each rollout batch"
    assert {"holdfast/reward/em", "holdfast/penalty/active_fraction", "rewards/em/mean"} <= set(logged[0])
    assert (launched / "runs/tiny/model.safetensors").is_file()
    shutil.rmtree(launched / "runs/tiny/checkpoint-4")
    name, again = run("--resume")
    assert name == "checkpoint-4"
    before, after = (
        [row for row in rows["log_history"] if "loss" in row and row["step"] <= 2] for rows in (state, again)
    )
    assert before == after, "the first rollout batch was not done again"


# ---- examples/

EXAMPLES = Path(__file__).parents[3] / "examples"
NOTEBOOK = EXAMPLES / "failing_and_stabilised_trl.ipynb"


@pytest.mark.parametrize("name", ["failing", "stabilised"])
def test_a_script_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rollout batch of two questions, with an untrained model of the recipe's world."""
    monkeypatch.chdir(EXAMPLES.parent)
    spec = importlib.util.spec_from_file_location(f"trl_{name}", EXAMPLES / f"trl_{name}.py")
    assert spec is not None and spec.loader is not None
    script: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    from holdfast.recipe import load
    from holdfast.recipe.loading import find_recipe
    from holdfast.tasks.world.facts import build_world
    from holdfast.tasks.world.model import build_model, build_tokenizer

    world = build_world(load(find_recipe("collapse")).world)
    tokenizer = build_tokenizer([document.contents for document in world.documents()][:200])
    build_model(tokenizer, hidden=32, layers=1, heads=2).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    trainer = script.train(str(tmp_path / "model"), rollout_batches=1, questions=2, output_dir=str(tmp_path / "run"))
    logged = trainer.state.log_history[0]
    assert logged["step"] == 10 and logged["holdfast/rollout/length"] > 0
    assert ("holdfast/penalty/active_fraction" in logged) is (name == "stabilised")


@pytest.mark.long
@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rollout batch a run instead of all of them."""
    pytest.importorskip("matplotlib").use("agg")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "notebook"}
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            source = re.sub(r"^BATCHES = \d+", "BATCHES = 1", "".join(cell["source"]), flags=re.M)
            exec(compile(source, NOTEBOOK.name, "exec"), namespace)
    assert set(namespace["logs"]) == {"failing", "stabilised", "untruncated"}
    assert "holdfast/penalty/active_fraction" in namespace["logs"]["stabilised"][0]
    first = {name: rows[0]["reward"] for name, rows in namespace["logs"].items()}
    assert first["failing"] == first["stabilised"], "the same start, the same seed"
    for name in namespace["logs"]:
        assert (tmp_path / "runs" / "notebook" / name / "trainer_state.json").is_file()
