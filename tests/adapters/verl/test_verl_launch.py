"""`holdfast launch verl` against verl itself: the command composes, verl's own checks pass, and K is K."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("verl")

import verl
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import get_class
from omegaconf import OmegaConf
from verl.utils.config import omega_conf_to_dataclass, validate_config

from holdfast.adapters.launch import Machines, plan, write_plan
from holdfast.adapters.verl import LOSSES, HoldfastPolicyLossConfig
from holdfast.adapters.verl.agent import SearchAgentLoop, golden_answers
from holdfast.adapters.verl.check import checks
from holdfast.adapters.verl.plugin import plan as planned
from holdfast.recipe import load
from holdfast.recipe.loading import bundled

from ..launch.conftest import SMALL as SMALL_RECIPE
from ..launch.conftest import run_with_fakes

SMALL = (*SMALL_RECIPE, "--data.test=questions.jsonl")
Compose = Callable[..., Any]


@pytest.fixture
def composed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compose:
    """composed("--train.lr=1", gpus=2): the small recipe, launched, and verl's configuration of its command."""
    monkeypatch.chdir(tmp_path)
    rows = [json.dumps({"question": f"Who is {i}", "golden_answers": [f"Person {i}", "P"]}) for i in range(60)]
    Path("questions.jsonl").write_text("\n".join(rows))

    def make(*overrides: str, gpus: int = 1, nodes: int = 1, recipe: str | None = None) -> Any:
        config = load(bundled()[recipe], overrides) if recipe else load(None, [*SMALL, *overrides])
        folder = tmp_path / "launched"
        write_plan(plan("verl", config, Machines(gpus=gpus, nodes=nodes)), folder, overwrite=True)
        GlobalHydra.instance().clear()
        with initialize_config_dir(str(Path(verl.__file__).parent / "trainer/config"), version_base=None):
            module, *words = run_with_fakes(folder, "python3")[1:-2]
            assert module == "verl.trainer.main_ppo"
            if version("verl").startswith("0.8."):  # the one line that run.sh tells its users to delete
                words = [word for word in words if not word.startswith("actor_rollout_ref.rollout.seed=")]
            return compose("ppo_trainer", words)

    return make


def optimizer_steps(config: Any) -> int:
    """Counted by verl's own iterator, over the rows of one data-parallel rank, as `train_mini_batch` makes it."""
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
    n = config.actor_rollout_ref.rollout.n
    mini = config.actor_rollout_ref.actor.ppo_mini_batch_size * n
    assert mini % ranks == 0, "verl asserts this"
    rows = config.data.train_batch_size * n
    batch = TensorDict({"row": torch.arange(rows // ranks)}, batch_size=[rows // ranks])
    actor = config.actor_rollout_ref.actor
    steps = list(
        tu.make_iterator(
            batch,
            mini_batch_size=mini // ranks,
            epochs=actor.ppo_epochs,
            seed=actor.data_loader_seed,
            dataloader_kwargs={"shuffle": actor.shuffle},
        )
    )
    seen = torch.cat([step["row"] for step in steps])
    assert sorted(seen.tolist()) == list(range(rows // ranks)), "every rollout is used once"
    return len(steps)


CUSTOM = "loss.penalty.name=custom loss.penalty.path=holdfast.methods.penalties:"
CASES = [
    "",
    "loss.penalty.name=none",
    "loss.penalty.gate=response loss.penalty.threshold=0.01 model.lora_rank=16",
    "loss.penalty.gate=token loss.penalty.preserve=positive protocol.preset=search-r1 reward.f1=0.5",
    "loss.penalty.name=sapo loss.penalty.tau=0.9",
    "loss.penalty.name=nll loss.penalty.coef=0.3",
    "loss.penalty.answer_weight=0",
    f"{CUSTOM}SAPO loss.penalty.coef=0.3 loss.penalty.settings=tau=0.9",
    "loss.ratio=sequence loss.reduction=seq-mean-token-mean",
    "loss.reduction=seq-mean-token-sum-norm loss.advantage=dr_grpo loss.dual_clip=4",
    "loss.kl_coef=0 loss.entropy_coef=0.001 loss.clip_high=0.28",
    "loss.kl_estimator=k2 eval.samples=4 sampling.top_k=20 train.optimizer_steps_per_rollout=5",
    "model.autocast=none track.wandb=p track.tensorboard checkpoint.every=0 eval.every=0",
    "loss.methods.sampler_weights.on loss.methods.sampler_weights.keep=mask loss.methods.sampler_weights.low=0.5 "
    "loss.methods.sampler_weights.high=5",
]
NAMES = ["run.name=vögel, a = 1", "run.dir=/abs/it's \\'a\\b\" $(c) `d` {e}:\n[1]", "train.warmup=3"]


@pytest.mark.parametrize("words", [*map(str.split, CASES), NAMES], ids=lambda words: " ".join(words) or "defaults")
def test_the_command_composes_and_passes_verls_checks(words: list[str], composed: Compose) -> None:
    overrides = [f"--{word}" for word in words]
    recipe = load(None, [*SMALL, *overrides])
    config = composed(*overrides, gpus=2, nodes=2)
    assert [check.text for check in checks(config) if not check.passed] == [], "the doctor finds no fault"
    for name, value in plan("verl", recipe, Machines(gpus=2, nodes=2)).values.items():
        if type(value) in (str, bool, int, float):  # what is written is what verl gets, of the same type
            got = OmegaConf.select(config, name.lstrip("+"), default=value)
            assert got == value and type(got) is type(value), name
    validate_config(config, use_reference_policy=recipe.loss.kl_coef > 0, use_critic=False)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    omega_conf_to_dataclass(config.algorithm)
    assert optimizer_steps(config) == recipe.train.optimizer_steps_per_rollout

    assert isinstance(actor.policy_loss, HoldfastPolicyLossConfig)
    assert actor.policy_loss.loss_mode in LOSSES
    penalty, _ = planned(actor.policy_loss.loss_mode, actor.policy_loss)
    assert penalty == recipe.loss.penalty.term
    assert actor.policy_loss.base_loss_mode == ("gspo" if recipe.loss.ratio == "sequence" else "vanilla")
    assert config.trainer.default_local_dir.endswith(f"{recipe.run.dir}/{recipe.run.name}")
    assert Path(config.data.train_files).is_file()
    (loop,) = OmegaConf.load(config.actor_rollout_ref.rollout.agent.agent_loop_config_path)
    assert loop.pop("name") == config.actor_rollout_ref.rollout.agent.default_agent_loop
    assert get_class(loop.pop("_target_")) is SearchAgentLoop
    assert set(loop) <= set(inspect.signature(SearchAgentLoop.__init__).parameters)
    if recipe.model.autocast == "none":
        assert actor.engine.mixed_precision["param_dtype"] == "fp32"


@pytest.mark.parametrize(("kind", "estimator"), [("low_var_kl", "k3"), ("mse", "k2")])
def test_the_kl_is_the_recipes(kind: str, estimator: str, composed: Compose) -> None:
    from verl.trainer.ppo.core_algos import kl_penalty

    from holdfast.losses import kl_loss

    config = composed(f"--loss.kl_estimator={estimator}")
    assert config.actor_rollout_ref.actor.kl_loss_type == kind
    new, ref = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    own = kl_loss(new, ref, torch.ones(3, 4, dtype=torch.bool), estimator=estimator)  # type: ignore[arg-type]
    torch.testing.assert_close(kl_penalty(new, ref, kind), own)


PPO = (
    "--loss.advantage=gae",
    "--loss.penalty.name=none",
    "--loss.kl_coef=0",
    "--reward.kl=0.01",
    "--train.group_size=1",
)


def test_ppo_is_the_recipes(composed: Compose) -> None:
    """Rewards of tokens, GAE over an observation, whitening and the loss of values, by verl's functions and by ours."""
    from verl.trainer.ppo.core_algos import compute_value_loss, get_adv_estimator_fn, kl_penalty
    from verl.trainer.ppo.utils import need_critic, need_reference_policy

    from holdfast.losses import gae_advantages, token_rewards, value_loss, whiten

    config = composed(*PPO, "--critic.gamma=0.9", "--critic.lam=0.8", "--critic.lr=2e-5", "--critic.warmup=3")
    validate_config(config, use_reference_policy=True, use_critic=False)  # verl's check of a critic loads its model
    assert need_critic(config) and need_reference_policy(config)
    critic, algorithm = config.critic, config.algorithm
    assert (critic.optim.lr, critic.optim.lr_warmup_steps, critic.optim.clip_grad) == (2e-5, 3, 1.0)
    assert critic.ppo_mini_batch_size == config.actor_rollout_ref.actor.ppo_mini_batch_size
    assert critic.model.path == config.actor_rollout_ref.model.path

    values, old, ref, new, returns = torch.randn(
        5, 3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    mask = torch.tensor([[1, 1, 0, 0, 1, 1, 0], [1, 0, 0, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1]]).bool()
    rewards = torch.tensor([[1.0], [0.0], [0.5]], dtype=torch.float64)
    last = torch.zeros(3, 7, dtype=torch.float64).scatter(1, torch.tensor([[5], [3], [6]]), rewards)
    theirs = last - algorithm.kl_ctrl.kl_coef * kl_penalty(old, ref, algorithm.kl_penalty) * mask
    ours = token_rewards(rewards, old, mask, ref_logprobs=ref, kl_coef=0.01)
    torch.testing.assert_close(theirs, ours)
    given, targets = get_adv_estimator_fn(algorithm.adv_estimator)(
        theirs, values, mask.double(), gamma=algorithm.gamma, lam=algorithm.lam
    )
    advantages, own_targets = gae_advantages(ours, values, mask, gamma=0.9, lam=0.8)
    torch.testing.assert_close(given[mask], whiten(advantages, mask)[mask])
    torch.testing.assert_close(targets[mask], own_targets[mask])
    loss, _ = compute_value_loss(
        new, returns, values, mask.double(), critic.cliprange_value, loss_agg_mode=critic.loss_agg_mode
    )
    torch.testing.assert_close(loss, value_loss(new, values, returns, mask, clip=0.5).sum() / mask.sum())


@pytest.mark.parametrize("dual_clip", [None, 4.0])
def test_the_clipping_is_the_recipes(dual_clip: float | None, composed: Compose) -> None:
    """verl always clips twice; where the recipe does not, the second clip is beyond any ratio."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn

    from holdfast.losses import clipped_policy_loss

    config = composed(*([f"--loss.dual_clip={dual_clip}"] if dual_clip else []), "--loss.reduction=seq-mean-token-sum")
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    generator = torch.Generator().manual_seed(0)
    new = -torch.rand(3, 5, dtype=torch.float64, generator=generator)
    old = new - torch.tensor([[0.1, -0.5, 0.5, 8.0, 12.0]], dtype=torch.float64)
    advantages = torch.tensor([[1.0], [0.0], [-1.0]], dtype=torch.float64)
    mask = torch.ones(3, 5, dtype=torch.bool)
    loss, _ = get_policy_loss_fn("vanilla")(
        old_log_prob=old,
        log_prob=new,
        advantages=advantages.expand(3, 5),
        response_mask=mask,
        loss_agg_mode="seq-mean-token-sum",
        config=actor,
    )
    torch.testing.assert_close(loss, clipped_policy_loss(new, old, advantages, mask, dual_clip=dual_clip).sum() / 3)


@pytest.mark.parametrize("advantage", ["grpo", "dr_grpo", "reinforce"])
def test_the_advantages_are_the_recipes(advantage: str, composed: Compose) -> None:
    import numpy as np
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    from holdfast.losses import group_advantages

    size = 1 if advantage == "reinforce" else 2
    config = composed(f"--loss.advantage={advantage}", f"--train.group_size={size}")
    rewards = torch.tensor([1.0, 0.0, 0.5, 0.5], dtype=torch.float64)
    groups = torch.arange(4) // size
    given, _ = get_adv_estimator_fn(config.algorithm.adv_estimator)(
        token_level_rewards=rewards[:, None].clone(),
        response_mask=torch.ones(4, 1, dtype=torch.float64),
        index=np.array(groups.tolist()),
        norm_adv_by_std_in_grpo=config.algorithm.norm_adv_by_std_in_grpo,
    )
    expected = rewards if advantage == "reinforce" else group_advantages(rewards, groups, scale=advantage == "grpo")
    torch.testing.assert_close(given.flatten(), expected.flatten())


@pytest.mark.parametrize("name", ["qwen2.5-3b", "sapo-qwen2.5-3b"])
def test_shipped_recipes_take_the_published_steps(name: str, composed: Compose) -> None:
    rows = [json.dumps({"question": f"Who is {i}", "golden_answers": ["P"]}) for i in range(600)]
    Path("many.jsonl").write_text("\n".join(rows))
    config = composed("--data.train=many.jsonl", recipe=name, gpus=8)
    validate_config(config, use_reference_policy=True, use_critic=False)
    assert optimizer_steps(config) == 10
    loss = config.actor_rollout_ref.actor.policy_loss
    masked = ("answer-span", "adaptive-paper") if name == "qwen2.5-3b" else (None, None)
    assert (loss.get("penalty_answer"), loss.get("penalty_answer_weight")) == masked


def test_verl_reads_the_questions(composed: Compose) -> None:
    from verl.utils.dataset.rl_dataset import RLHFDataset

    config = composed("--eval.questions=4")
    train = RLHFDataset(config.data.train_files, tokenizer=None, config=config.data)
    assert len(train) == 54, "a tenth is held out"
    row = train[0]
    assert row["agent_name"] == config.actor_rollout_ref.rollout.agent.default_agent_loop == "holdfast_search"
    assert row["raw_prompt"][0]["content"].endswith(f"Question: {row['question']}\n")
    assert golden_answers(row["reward_model"]) == [f"Person {row['index']}", "P"]
    assert len(RLHFDataset(config.data.val_files, tokenizer=None, config=config.data)) == 4


def test_a_rejection_added_by_hand_reaches_the_loss(composed: Compose) -> None:
    """The action gate needs whole actions, and token-level rejection cuts them."""
    config = composed()
    omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    config.algorithm.rollout_correction.rollout_rs = "token_k1"
    with pytest.raises(Exception, match="rollout_rs"):
        omega_conf_to_dataclass(config.actor_rollout_ref.actor)
