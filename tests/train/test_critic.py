"""PPO with a critic: advantages of rewards and values, values that learn, an exact resume, and what is refused."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.base.errors import CheckpointError, ConfigError
from holdfast.base.run_folder import list_checkpoints, step_folder
from holdfast.losses import gae_advantages, whiten
from holdfast.model.language_model import LanguageModel
from holdfast.recipe import load, validate
from holdfast.train.critic import Critic
from holdfast.train.prepare import prepare
from holdfast.train.run import resume, train
from holdfast.train.trainer import Trainer, make_trainer

from .one_update import a_batch
from .whole_runs import Recipe, a_start, a_trainer, assert_same_run

PPO: dict[str, Any] = {
    "loss.advantage": "gae",
    "loss.kl_coef": 0.0,
    "loss.penalty.name": "none",
    "reward.kl": 0.05,
    "train.group_size": 1,
    "train.questions": 12,
    "train.optimizer_steps_per_rollout": 2,
    "critic.lr": 3e-3,
}


def prepared(trainer: Trainer) -> tuple[Any, Any]:
    """An old pass of a fresh rollout batch, and its plan."""
    groups, _ = trainer.roll_out(trainer.question_order.next(trainer.config.train.questions))
    batch = trainer.make_batch(groups)
    plan = trainer.learner.plan(batch, trainer.generator)
    return trainer.learner.old_pass(batch, plan), plan


@pytest.mark.usefixtures("told_what_to_say")
@pytest.mark.parametrize(
    "settings",
    [{}, {"critic.whiten": False, "critic.gamma": 0.97, "critic.lam": 0.9, "train.group_size": 2}],
    ids=str,
)
def test_advantages_of_a_step_come_from_its_rewards_and_values(recipe: Recipe, settings: dict[str, Any]) -> None:
    """Values and log-probs as the models have them, row by row in float64."""
    trainer = a_trainer(recipe(PPO | settings | {"protocol.max_turns": 3}))
    trainer.step()  # values are not zero, and the policy is not the reference, from now on
    critic = trainer.critic
    assert critic is not None
    old_pass, plan = prepared(trainer)
    batch, mask = old_pass.batch, old_pass.batch.loss_mask
    assert (batch.action_ids.amax(-1) > 1).any(), "some rollout has an observation between its actions"

    values_model = copy.deepcopy(critic.language_model.model).double()
    policy = copy.deepcopy(trainer.learner.language_model.model).double()
    reference = trainer.learner.reference
    assert reference is not None
    with reference.in_place():
        start = copy.deepcopy(trainer.learner.language_model.model).double()
    values, kl = torch.zeros(mask.shape).double(), torch.zeros(mask.shape).double()
    with torch.no_grad():
        for row, length in enumerate(batch.lengths.tolist()):
            ids = batch.token_ids[row : row + 1, :length]
            values[row, 1:length] = values_model(input_ids=ids).logits[0, :-1, 0]
            new, old = (m(input_ids=ids).logits[0, :-1].log_softmax(-1) for m in (policy, start))
            kl[row, 1:length] = (new - old).gather(-1, ids[0, 1:, None])[:, 0]
    assert float(kl[mask].abs().max()) > 1e-3 and float(values[mask].abs().max()) > 1e-3

    rewards = -0.05 * kl
    for row, reward in enumerate(batch.rewards.tolist()):
        rewards[row, mask[row].nonzero().max()] += reward
    section = trainer.config.critic
    expected, _ = gae_advantages(rewards, values, mask, gamma=section.gamma, lam=section.lam)
    expected = whiten(expected, mask) if section.whiten else expected
    result, metrics = critic.learn(old_pass, plan, completed_steps=1)
    got = result.batch.advantages.double()  # float32 models beside float64 ones
    torch.testing.assert_close(got, expected.double(), atol=1e-5, rtol=1e-6)
    assert (got[~mask] == 0).all()
    assert metrics["kl/reference"] == pytest.approx(float(kl[mask].mean()), abs=1e-6)
    for micros, mini in zip(result.minibatches, plan, strict=True):  # and so the policy learns from them
        for micro, rows in zip(micros, mini, strict=True):
            assert torch.equal(micro.advantages, result.batch.advantages[rows, : micro.loss_mask.shape[1]])


@pytest.mark.usefixtures("told_what_to_say")
def test_values_move_towards_returns(recipe: Recipe) -> None:
    trainer = a_trainer(recipe(PPO | {"reward.kl": 0.0, "critic.clip": 0.0, "train.questions": 24}))
    critic = trainer.critic
    assert critic is not None
    old_pass, plan = prepared(trainer)
    rows = [critic.learn(old_pass, plan, completed_steps=0)[1] for _ in range(30)]
    assert rows[0]["critic/explained_variance"] == 0.0
    assert rows[-1]["critic/explained_variance"] > 0.5
    assert rows[-1]["critic/value_loss"] < rows[0]["critic/value_loss"] / 2
    assert rows[-1]["critic/value_mean"] == pytest.approx(rows[-1]["critic/return_mean"], abs=0.1)
    assert all(row["critic/clip_fraction"] == 0 for row in rows)


@pytest.mark.usefixtures("told_what_to_say")
def test_tokens_beyond_the_clip_are_counted(recipe: Recipe) -> None:
    """From the second optimizer step on, after values have moved by more than the clip."""
    steps = {"train.questions": 24, "train.optimizer_steps_per_rollout": 6}
    trainer = a_trainer(recipe(PPO | steps | {"reward.kl": 0.0, "critic.clip": 1e-6}))
    assert trainer.critic is not None
    old_pass, plan = prepared(trainer)
    _, metrics = trainer.critic.learn(old_pass, plan, completed_steps=0)
    assert 0 < metrics["critic/clip_fraction"] < 1, old_pass.batch.rewards


@pytest.mark.parametrize("settings", [{"tie_word_embeddings": True}, {"family": "Llama"}], ids=str)
def test_values_of_a_model_do_not_depend_on_the_shape_of_the_batch(
    make_model: Callable[..., Any], settings: dict[str, Any]
) -> None:
    policy = LanguageModel(model=make_model(**settings), tokenizer=None)
    before = {name: w.clone() for name, w in policy.model.state_dict().items()}
    critic = Critic(policy, validate({"loss": {"advantage": "gae", "penalty": {"name": "none"}}}))
    batch = a_batch()
    assert (critic.values(batch, [[[0, 1, 2, 3, 4, 5, 6]]]) == 0).all()
    with torch.no_grad():
        head = critic.language_model.model.get_output_embeddings()
        head.weight.normal_(generator=torch.Generator().manual_seed(0))
        head.bias.fill_(0.25)
    whole, single = critic.values(batch, [[[0, 1, 2, 3, 4, 5, 6]]]), critic.values(batch, [[[k] for k in range(7)]])
    torch.testing.assert_close(whole, single, atol=1e-5, rtol=1e-5)
    assert (whole[~batch.loss_mask] == 0).all() and (whole[batch.loss_mask] != 0).all()
    ids, k = batch.token_ids[:1], int(batch.loss_mask[0].nonzero()[0])
    expected = critic.language_model.model(input_ids=ids[:, :k]).logits[0, -1, 0]  # before token k is drawn
    assert float(whole[0, k]) == pytest.approx(float(expected.detach()), abs=1e-5)
    after = policy.model.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.usefixtures("told_what_to_say")
def test_recomputed_activations_and_micro_batches_change_nothing(recipe: Recipe) -> None:
    rows = []
    for recomputed, tokens in ((False, 16384), (True, 250)):
        start, config = a_start(recipe(PPO)), recipe(PPO | {"reward.kl": 0.0, "train.micro_batch_tokens": tokens})
        if recomputed:
            model = start.model
            enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            enable({"use_reentrant": False})
            start = replace(start, gradient_checkpointing=True)
        trainer = make_trainer(prepare(config), start)
        critic = trainer.critic
        assert critic is not None
        old_pass, plan = prepared(trainer)
        critic.learn(old_pass, plan, completed_steps=0)
        rows.append((sum(map(len, plan)), critic.learn(old_pass, plan, completed_steps=0)[1]))
    (few, plain), (many, other) = rows
    assert many > few
    assert other == pytest.approx(plain, rel=1e-3, abs=1e-4)


def test_adapters_have_a_critic_of_adapters(make_model: Callable[..., Any]) -> None:
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    policy = LanguageModel(model=peft.get_peft_model(make_model(), settings).eval(), tokenizer=None)
    critic = Critic(policy, validate({"loss": {"advantage": "gae", "penalty": {"name": "none"}}}))
    heads = [name for name in critic.weights if "lora_" not in name]
    assert len(heads) == 2 and all("lm_head" in name for name in heads) and len(critic.weights) > 2
    assert (critic.values(a_batch(), [[list(range(7))]]) == 0).all()


# ---- checkpoints


def same_critic(one: Path, other: Path) -> None:
    from safetensors.torch import load_file

    for name in ("critic.safetensors", "critic_optimizer.safetensors"):
        left, right = (load_file(list_checkpoints(folder)[0] / name) for folder in (one, other))
        assert left and left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


RUN = PPO | {"train.steps": 4, "checkpoint.every": 2, "eval.every": 2, "critic.warmup": 2, "checkpoint.keep": 4}


@pytest.fixture(scope="module")
def whole_ppo(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("ppo") / "run"
    train(recipe(RUN), run_dir)
    return run_dir


def test_a_critic_of_another_run_is_the_one_to_begin_with(whole_ppo: Path, recipe: Recipe) -> None:
    folder = step_folder(whole_ppo, 2)
    config = recipe(PPO | {"critic.path": str(folder)})
    prepare(config)
    metrics = a_trainer(config).step().metrics
    assert metrics["critic/value_mean"] != 0.0


def test_a_run_goes_on_without_the_critic_it_began_with(whole_ppo: Path, tmp_path: Path) -> None:
    """Its own checkpoints have one, and the other run may have pruned that checkpoint."""
    run_dir = tmp_path / "run"
    shutil.copytree(whole_ppo, run_dir)
    (run_dir / "results.json").unlink()
    shutil.rmtree(step_folder(run_dir, 4))
    recipe = run_dir / "config.toml"
    recipe.write_text(recipe.read_text().replace("[critic]\n", f'[critic]\npath = "{tmp_path / "pruned"}"\n'))
    assert load(recipe).critic.path is not None
    resume(run_dir)
    assert_same_run(whole_ppo, run_dir)
    same_critic(whole_ppo, run_dir)


def test_a_critic_that_is_missing_or_another_models_is_refused(
    whole_ppo: Path, recipe: Recipe, tmp_path: Path, make_model: Callable[..., Any]
) -> None:
    (tmp_path / "empty").mkdir()
    best = whole_ppo / "checkpoints" / "best"
    for path in (tmp_path / "absent", tmp_path / "empty", best):
        with pytest.raises(ConfigError, match=r"critic\.path = .* has no critic: give a checkpoint"):
            prepare(recipe(PPO | {"critic.path": str(path)}))
    critic = Critic(LanguageModel(model=make_model(), tokenizer=None), recipe(PPO))
    with pytest.raises(CheckpointError, match=r"has no critic \(critic\.safetensors\)"):
        critic.restore(best)
    with pytest.raises(CheckpointError, match=r"the critic of another model: .* has shape"):
        critic.restore(step_folder(whole_ppo, 2))


# ---- settings


def test_the_section_is_there_when_there_is_a_critic() -> None:
    plain = load()
    assert plain.unused() == {"critic"}
    ppo = load(None, ["--loss.advantage=gae", "--loss.penalty.name=none", "--train.group_size=1"])
    assert ppo.unused() == set() and ppo.train.group_size == 1
