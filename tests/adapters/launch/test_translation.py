"""What a recipe becomes: exact options for small recipes, every refusal, and K optimizer steps per rollout batch."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.adapters.launch import Machines, Plan, plan
from holdfast.adapters.launch.trl_options import correct_above
from holdfast.base.errors import ConfigError
from holdfast.hosts import HOSTS
from holdfast.recipe import Config, setting_values

from .conftest import CUSTOM

MakeRecipe = Callable[..., Config]

ACTOR, ROLLOUT, LOSS = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.actor.policy_loss"
CORRECTION = "algorithm.rollout_correction"


@pytest.fixture
def planned(recipe: MakeRecipe) -> Callable[..., Plan]:
    """planned("trl", "train.lr=1 loss.kl_coef=0"): the small recipe with these overrides, on two GPUs."""
    return lambda host, words="", gpus=2, nodes=1: plan(
        host, recipe(*(f"--{word}" for word in words.split())), Machines(gpus=gpus, nodes=nodes)
    )


def holds(made: Plan, expected: dict[str, Any]) -> None:
    assert {name: made.values.get(name, "absent") for name in expected} == expected


# 40 questions × 5 = 200 rollouts, 20 in each of 10 steps, 10 on each GPU; 16384 / 4096 = 4 rows fit, 2 divide 10.
SMALL_IN_TRL = {
    "output_dir": "runs/small", "per_device_train_batch_size": 2, "gradient_accumulation_steps": 5,
    "steps_per_generation": 50, "num_iterations": 1, "num_generations": 5, "max_steps": 70, "warmup_steps": 30,
    "eval_steps": 20, "save_steps": 70, "logging_steps": 10, "learning_rate": 1e-6, "loss_type": "dapo",
    "scale_rewards": "group", "epsilon": 0.2, "epsilon_high": 0.2, "delta": None, "beta": 0.001,
    "use_bias_correction_kl": False, "vllm_importance_sampling_correction": False, "temperature": 1.0,
    "max_completion_length": 4096, "report_to": "none",
}  # fmt: skip
SMALL_IN_VERL = {
    "data.train_batch_size": 40, f"{ACTOR}.ppo_mini_batch_size": 4, f"{ACTOR}.ppo_epochs": 1, f"{ROLLOUT}.n": 5,
    f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": 16384, f"{ACTOR}.optim.lr": 1e-6,
    f"{ACTOR}.optim.lr_warmup_steps": 3, f"{ACTOR}.loss_agg_mode": "token-mean", f"{ACTOR}.clip_ratio_c": 1e9,
    f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_type": "low_var_kl", f"{LOSS}.loss_mode": "holdfast_llds",
    f"+{LOSS}.base_loss_mode": "vanilla", f"+{LOSS}.penalty_coef": 0.2, f"+{LOSS}.penalty_preserve": "nonnegative",
    f"+{LOSS}.penalty_tau": "absent", "algorithm.norm_adv_by_std_in_grpo": True, f"{ROLLOUT}.top_k": -1,
    "data.max_prompt_length": 512, "data.max_response_length": 3584, "trainer.total_training_steps": 7,
    "trainer.test_freq": 2, "trainer.save_freq": 7, "trainer.nnodes": 2, "trainer.n_gpus_per_node": 2,
    "trainer.logger": ["console", "file"], f"{CORRECTION}.rollout_is": "absent",
    f"{ROLLOUT}.calculate_log_probs": "absent", f"+{LOSS}.penalty_answer": "absent",
    f"+{LOSS}.penalty_answer_weight": "absent",
}  # fmt: skip


@pytest.mark.parametrize(
    ("host", "nodes", "expected"), [("trl", 1, SMALL_IN_TRL), ("verl", 2, SMALL_IN_VERL)], ids=["trl", "verl"]
)
def test_options_of_the_small_recipe(host: str, nodes: int, expected: dict[str, Any], planned: Any) -> None:
    holds(planned(host, "train.warmup=3 train.steps=7 eval.every=2 checkpoint.every=0", nodes=nodes), expected)


CISPO = "loss.surrogate=cispo loss.clip_low=1 loss.clip_high=4"
PPO = "loss.advantage=gae loss.penalty.name=none"
WEIGHTS = "loss.methods.sampler_weights."


@pytest.mark.parametrize(("overrides", "expected"), [
    ("loss.reduction=seq-mean-token-mean", {"loss_type": "grpo"}),
    # TRL divides by max_completion_length: 4 turns of 500 tokens.
    ("loss.reduction=seq-mean-token-sum-norm", {"loss_type": "dr_grpo", "max_completion_length": 2000}),
    ("loss.reduction=seq-mean-token-sum loss.ratio=sequence",
     {"loss_type": "luspo", "importance_sampling_level": "sequence"}),
    ("loss.advantage=dr_grpo", {"scale_rewards": "none"}),
    ("loss.dual_clip=3", {"delta": 3.0}),
    ("eval.samples=4", {"num_generations_eval": 4, "per_device_eval_batch_size": 16}),
    ("track.wandb=p track.tensorboard", {"report_to": ["wandb", "tensorboard"]}),
    ("track.trajectories=0", {"log_completions": False, "num_completions_to_print": None}),
    ("run.device=cpu", {"use_cpu": True, "bf16": False}),
    ("run.device=cuda", {"use_cpu": False, "bf16": True}),
    ("run.device=auto", {"use_cpu": False, "bf16": "torch.cuda.is_available()"}),
    ("eval.every=0", {"eval_steps": 600}),
    (CISPO, {"loss_type": "cispo", "epsilon_high": 5.0}),
    ("loss.methods.off_policy_mask.threshold=0.5", {"off_policy_mask_threshold": 0.5}),
    (f"{WEIGHTS}level=token",
     {"use_vllm": True, "vllm_importance_sampling_correction": True,
      "vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_min": None,
      "vllm_importance_sampling_clip_max": 2.0}),
    (f"{WEIGHTS}level=sequence {WEIGHTS}keep=mask {WEIGHTS}low=0.5 {WEIGHTS}high=5",
     {"vllm_importance_sampling_mode": "sequence_mask", "vllm_importance_sampling_clip_min": 0.5,
      "vllm_importance_sampling_clip_max": 5.0}),
])  # fmt: skip
def test_what_a_setting_becomes_in_trl(overrides: str, expected: dict[str, Any], planned: Any) -> None:
    holds(planned("trl", overrides), expected)


@pytest.mark.parametrize(("overrides", "expected"), [
    ("loss.penalty.name=none", {f"{LOSS}.loss_mode": "holdfast_observe", f"+{LOSS}.penalty_coef": "absent"}),
    ("loss.penalty.gate=response", {f"{LOSS}.loss_mode": "holdfast_llds_response"}),
    ("loss.penalty.gate=token", {f"{LOSS}.loss_mode": "holdfast_lld"}),
    ("loss.penalty.name=sapo loss.penalty.tau=0.9",
     {f"{LOSS}.loss_mode": "holdfast_search_sapo", f"+{LOSS}.penalty_tau": 0.9, f"+{LOSS}.penalty_coef": 0.1,
      f"+{LOSS}.penalty_preserve": "positive", f"+{LOSS}.penalty_threshold": "absent"}),
    ("loss.penalty.name=nll",
     {f"{LOSS}.loss_mode": "holdfast_nll", f"+{LOSS}.penalty_coef": 0.1, f"+{LOSS}.penalty_preserve": "absent"}),
    ("loss.penalty.answer_weight=0",
     {f"+{LOSS}.penalty_answer": "answer-span", f"+{LOSS}.penalty_answer_weight": 0.0}),
    ("loss.penalty.answer_weight=adaptive-paper loss.penalty.answer_target=3",
     {f"+{LOSS}.penalty_answer": "answer-span", f"+{LOSS}.penalty_answer_weight": "adaptive-paper",
      f"+{LOSS}.penalty_answer_base": 1.0, f"+{LOSS}.penalty_answer_target": 3.0}),
    ("loss.penalty.name=custom loss.penalty.path=holdfast.methods.penalties:LLDS "
     "loss.penalty.settings=answer_weight=0.5",
     {f"+{LOSS}.penalty_settings": {"answer_weight": 0.5}, f"+{LOSS}.penalty_answer": "answer-span"}),
    ("loss.ratio=sequence", {f"+{LOSS}.base_loss_mode": "gspo"}),
    ("loss.reduction=seq-mean-token-sum-norm",
     {f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm", f"{ACTOR}.loss_scale_factor": 2000}),
    ("loss.reduction=token-sum", {f"{ACTOR}.loss_agg_mode": "token-sum", f"{ACTOR}.loss_scale_factor": "absent"}),
    ("loss.dual_clip=3", {f"{ACTOR}.clip_ratio_c": 3.0}),
    ("loss.kl_coef=0", {f"{ACTOR}.use_kl_loss": False}),
    ("loss.kl_estimator=k2", {f"{ACTOR}.kl_loss_type": "mse"}),
    ("loss.advantage=dr_grpo loss.baseline=length",
     {"algorithm.adv_estimator": "opo", "algorithm.norm_adv_by_std_in_grpo": False}),
    ("loss.advantage=reinforce train.group_size=1",
     {"algorithm.norm_adv_by_std_in_grpo": False, "algorithm.adv_estimator": "grpo", f"{ROLLOUT}.n": 1}),
    (f"{PPO} train.group_size=1 loss.kl_coef=0 reward.kl=0.001 critic.lr=2e-5 critic.warmup=15 critic.gamma=0.99",
     {"algorithm.adv_estimator": "gae", "algorithm.norm_adv_by_std_in_grpo": "absent", "algorithm.gamma": 0.99,
      "algorithm.lam": 1.0, "algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.kl_coef": 0.001,
      "algorithm.kl_penalty": "kl", f"{ACTOR}.use_kl_loss": False, "critic.optim.lr": 2e-5,
      "critic.optim.lr_warmup_steps": 15, "critic.cliprange_value": 0.5, "critic.loss_agg_mode": "token-mean",
      "critic.model.path": "Qwen/Qwen2.5-0.5B-Instruct"}),
    (f"{PPO} critic.clip=0", {"critic.cliprange_value": 1e9}),
    ("sampling.top_k=20 sampling.top_p=0.9", {f"{ROLLOUT}.top_k": 20, f"{ROLLOUT}.top_p": 0.9}),
    ("eval.samples=1", {f"{ROLLOUT}.val_kwargs.do_sample": False, f"{ROLLOUT}.val_kwargs.temperature": 0}),
    ("eval.samples=4 sampling.temperature=0.7",
     {f"{ROLLOUT}.val_kwargs.n": 4, f"{ROLLOUT}.val_kwargs.do_sample": True,
      f"{ROLLOUT}.val_kwargs.temperature": 0.7}),
    ("model.lora_rank=16",
     {"actor_rollout_ref.model.lora_rank": 16, "actor_rollout_ref.model.lora_alpha": 32,
      f"{ROLLOUT}.load_format": "safetensors"}),
    ("model.autocast=none",
     {f"+{part}.fsdp_config.mixed_precision.param_dtype": "fp32" for part in (ACTOR, "actor_rollout_ref.ref")}),
    ("track.wandb=p", {"trainer.project_name": "p", "trainer.logger": ["console", "file", "wandb"]}),
    (CISPO, {f"+{LOSS}.base_loss_mode": "cispo", f"{ACTOR}.clip_ratio_high": 4.0, f"{ACTOR}.clip_ratio_low": 1.0}),
    ("loss.surrogate=dppo", {f"+{LOSS}.base_loss_mode": "dppo_tv", f"{ACTOR}.clip_ratio_c": 1e9}),
    (f"{WEIGHTS}level=sequence",
     {f"{ROLLOUT}.calculate_log_probs": True, f"{CORRECTION}.rollout_is": "sequence",
      f"{CORRECTION}.rollout_is_threshold": "2", f"{CORRECTION}.rollout_rs": "absent"}),
    (f"{WEIGHTS}level=token {WEIGHTS}keep=mask {WEIGHTS}low=0.5 {WEIGHTS}high=5",
     {f"{CORRECTION}.rollout_is": "token", f"{CORRECTION}.rollout_is_threshold": "0.5_5"}),
    (f"{WEIGHTS}level=sequence {WEIGHTS}aggregate=mean {WEIGHTS}keep=reject {WEIGHTS}low=0.8 {WEIGHTS}high=1.6",
     {f"{CORRECTION}.rollout_rs": "seq_mean_k1", f"{CORRECTION}.rollout_rs_threshold": "0.625_1.25",
      f"{CORRECTION}.rollout_is": "absent"}),
])  # fmt: skip
def test_what_a_setting_becomes_in_verl(overrides: str, expected: dict[str, Any], planned: Any) -> None:
    holds(planned("verl", overrides), expected)


@pytest.mark.parametrize(("host", "others"), [
    ("trl", ()),
    ("verl", ("loss.advantage=gae", "loss.penalty.name=none", "train.group_size=1", "loss.kl_coef=0", "reward.kl=0.1",
              "critic.lr=2e-5", "critic.gamma=0.9", "critic.lam=0.8", "model.lora_rank=16")),
])  # fmt: skip
def test_an_option_of_the_hosts_table_has_the_value_of_its_setting(
    host: str, others: tuple[str, ...], recipe: MakeRecipe
) -> None:
    """Remedies name these options by the same table."""
    config = recipe("--model.chat_template_kwargs={ deep = true }", *(f"--{word}" for word in others))
    values, made = setting_values(config), plan(host, config).values
    table = HOSTS[host].settings
    assert {name: made[name] for name in table.values()} == {name: values[ours] for ours, name in table.items()}


BOTH_REFUSE = [
    ("model.path=tiny", r"model\.path = 'tiny'.*(holdfast warm-start|Qwen2\.5-0\.5B)"),
    ("warm_start.steps=5", "warm_start.steps = 5.*holdfast warm-start"),
    ("loss.advantage=reinforce", "loss.advantage = 'reinforce'.*'dr_grpo'"),
    ("loss.ratio=action", "do(es)? not know actions"),
    (f"{WEIGHTS}level=action", "does not know actions"),
    ("loss.methods.drop_void.on=true", "which turns are invalid"),
    ("loss.methods.dynamic_sampling.rounds=2", "every group"),
]
TRL_REFUSES = [
    (f"{PPO} critic.lr=1e-4", r"loss\.advantage = 'gae' with critic\.lr = 0\.0001: .*Use verl"),
    ("loss.baseline=length", "loss.baseline = 'length'.*'mean', or use verl"),
    ("loss.reduction=token-sum", "loss.reduction = 'token-sum'.*'token-mean'"),
    ("loss.reduction=seq-mean-token-sum", "loss.reduction = 'seq-mean-token-sum'.*loss.ratio = 'sequence'"),
    ("loss.kl_estimator=k2", "loss.kl_estimator = 'k2'.*'k3'"),
    ("loss.dual_clip=1.1", "loss.dual_clip = 1.1.*to 1.2 or more"),
    ("loss.penalty.preserve=correct reward.em=0.1 reward.format=1", "loss.penalty.preserve = 'correct'.*Raise reward"),
    ("loss.surrogate=dppo", "does not have it"),
    ("loss.surrogate=cispo", "no lower bound"),
    ("loss.surrogate=cispo loss.clip_low=1 loss.reduction=seq-mean-token-mean", "over tokens"),
    (f"{WEIGHTS}level=sequence {WEIGHTS}keep=reject", "also weights the tokens"),
    ("sampling.top_k=512 sampling.mask_logprobs=true train.optimizer_steps_per_rollout=1 loss.penalty.name=none",
     r"loss\.kl_coef = 0"),
]  # fmt: skip
VERL_REFUSES = [
    ("retrieval.url=none retrieval.corpus=c.jsonl", "retrieval.corpus = .*/c.jsonl'.*set retrieval.url"),
    ("data.train=world retrieval.url=none", "data.train = 'world'.*retrieval.url"),
    ("loss.penalty.preserve=correct", "loss.penalty.preserve = 'correct'.*'positive'"),
    (f"{PPO} critic.whiten=false", "critic.whiten = False.*whitens"),
    (f"{PPO} critic.path=c", "critic.path = .*Leave it out"),
    ("loss.ratio=sequence loss.dual_clip=3", "loss.dual_clip = 3.0.*Leave it out"),
    ("train.micro_batch_tokens=2048", "train.micro_batch_tokens = 2048.*4096"),
    ("run.device=cpu", "run.device = 'cpu'.*TRL"),
    ("sampling.top_k=512 sampling.mask_logprobs=true", "sampling.mask_logprobs = True.*top_k = 0, or use TRL"),
    ("loss.methods.off_policy_mask.threshold=0.5", "does not have this mask"),
    ("loss.methods.nthr.on=true", "hidden states"),
    (f"{WEIGHTS}level=token {WEIGHTS}low=0.5", "no lower bound"),
    (f"{WEIGHTS}level=token {WEIGHTS}keep=mask", "two bounds"),
    (f"{WEIGHTS}level=sequence {WEIGHTS}aggregate=mean", "product of its ratios"),
    (f"{WEIGHTS}level=token {WEIGHTS}keep=reject {WEIGHTS}low=0.5", "splits actions"),
]


@pytest.mark.parametrize(
    ("host", "overrides", "says"),
    [
        *((host, *case) for host in ("trl", "verl") for case in BOTH_REFUSE),
        *(("trl", *case) for case in TRL_REFUSES),
        *(("verl", *case) for case in VERL_REFUSES),
    ],
)
def test_what_a_host_refuses(host: str, overrides: str, says: str, planned: Any) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        planned(host, overrides)
    assert "\n" not in str(raised.value), "one problem is one sentence"


def test_all_problems_are_told_together(planned: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        planned("verl", "loss.penalty.preserve=correct run.device=cpu train.questions=41")
    first, *problems = str(raised.value).split("\n")
    assert first == "this recipe cannot run in verl as it is" and len(problems) == 3


@pytest.mark.parametrize(("penalty", "call"), [
    ("name=sapo loss.penalty.tau=0.9", "SAPO(coef=0.1, normalizer='preserved', preserve='positive', tau=0.9)"),
    ("name=nll", "NLL(coef=0.1, normalizer='preserved')"),
    ("answer_weight=adaptive-paper", "LLDS(coef=0.2, normalizer='preserved', preserve='nonnegative', gate='action', "
     "threshold=0.0, answer_weight='adaptive-paper', answer_base=1.0, answer_target=2.0)"),
    ("name=none", ""),
])  # fmt: skip
def test_penalties_in_the_script(penalty: str, call: str, planned: Any) -> None:
    script = planned("trl", f"loss.penalty.{penalty}").files["train.py"]
    name = call.partition("(")[0]
    assert f"    {call},\n" in script if call else not any(name in script for name in ("LLDS", "SAPO", "NLL"))
    assert f"from holdfast.adapters.trl import {name and f'{name}, '}with_penalties\n" in script


def test_a_penalty_and_a_reward_of_ones_own(recipe: MakeRecipe) -> None:
    config = recipe(
        *CUSTOM, "--loss.penalty.settings=margin = 0.5", '--reward.custom="own_code_of_launch:brevity" = 0.2'
    )
    trl, verl = plan("trl", config), plan("verl", config)
    script = trl.files["train.py"]
    assert "from own_code_of_launch import Hinge\n" in script and "import with_penalties\n" in script
    assert "Hinge(coef=0.3, normalizer='preserved', margin=0.5)" in script
    assert "{'em': 1.0, 'own_code_of_launch:brevity': 0.2}" in script
    assert "correct_above" not in script  # nobody knows what the part is worth
    path = "own_code_of_launch:Hinge"
    holds(verl, {f"{LOSS}.loss_mode": "holdfast_custom", f"+{LOSS}.penalty_path": path,
                 f"+{LOSS}.penalty_settings": {"margin": 0.5}})  # fmt: skip
    assert "penalty_settings='{margin:0.5}'" in verl.files["run.sh"]
    assert 'reward: {"em": 1.0, "own_code_of_launch:brevity": 0.2}' in verl.files["agent_loops.yaml"]
    for made in (trl, verl):
        said = "was imported to check it. Python must find own_code_of_launch where this runs too"
        assert len([note for note in made.notes if said in note]) == 2
    with pytest.raises(ConfigError, match="did you mean brevity"):
        plan("trl", recipe('--reward.custom="own_code_of_launch:brevty" = 1.0'))


@pytest.mark.parametrize(("overrides", "above"), [
    # The best wrong one has format and retrieval, 0.3; the worst right one has em alone, 1.
    (("--reward.format=0.2", "--reward.retrieval=0.1"), 0.65),
    # A punishment can leave a right one with 0.8; the best wrong one has 0.
    (("--reward.format=-0.2",), 0.4),
    # F1 is 1 when the answer is right, and close to it when nearly right.
    (("--reward.em=0", "--reward.f1=1"), None),
    (("--reward.em=0.1", "--reward.format=0.5"), None),
])  # fmt: skip
def test_a_right_rollout_is_told_by_its_reward(recipe: MakeRecipe, overrides: list[str], above: float | None) -> None:
    config = recipe(*overrides)
    assert correct_above(config.reward) == (above and pytest.approx(above))
    script = plan("trl", config).files["train.py"]
    assert f"correct_above={above}," in script if above else "correct_above" not in script


@pytest.mark.parametrize(("host", "overrides", "told"), [
    ("trl", "sampling.top_p=0.95", "top_p = 0.95 and top_k = 0 truncate the sampler"),
    ("verl", "sampling.top_p=0.95", "top_p = 0.95 and top_k = 0 truncate the sampler"),
    ("verl", "loss.penalty.answer_weight=adaptive-paper", "searches in the last 256 rollouts"),
])  # fmt: skip
def test_what_differs_is_noted(host: str, overrides: str, told: str, planned: Any) -> None:
    assert [note for note in planned(host, overrides).notes if told in note]
    assert not [note for note in planned(host).notes if told[-12:] in note]


def test_the_sampling_mask_and_nthr_are_arguments_in_trl(planned: Any) -> None:
    """With the mask nothing is told of the truncation."""
    made = planned("trl", "sampling.top_p=0.95 sampling.top_k=512 sampling.mask_logprobs=true")
    assert "    mask_logprobs=True,\n" in made.files["train.py"]
    assert not [note for note in made.notes if "truncate" in note]
    assert "    nthr=True,\n" in planned("trl", "loss.methods.nthr.on=true").files["train.py"]
    plain = planned("trl", "sampling.top_p=0.95").files["train.py"]
    assert "mask_logprobs" not in plain and "nthr" not in plain


def test_nthr_in_trl_needs_whole_groups_on_every_gpu(planned: Any) -> None:
    """TRL's schedule takes 40 questions of 5 rollouts on 25 GPUs, 8 rollouts each."""
    once = "train.group_size=5 train.optimizer_steps_per_rollout=2"
    planned("trl", once, gpus=25)
    with pytest.raises(ConfigError, match=r"nthr\.on = true with train\.questions = 40: .* to a multiple of 25"):
        planned("trl", f"{once} loss.methods.nthr.on=true", gpus=25)
    planned("trl", f"{once} loss.methods.nthr.on=true", gpus=20)


# ---- K optimizer steps per rollout batch, in each host's own arithmetic

QUESTIONS, GROUPS, STEPS, GPUS = (8, 48, 510, 512), (2, 5), (1, 3, 10), (1, 3, 8)
CASES = list(itertools.product(QUESTIONS, GROUPS, STEPS, GPUS))


def made(host: str, recipe: MakeRecipe, questions: int, group: int, steps: int, gpus: int) -> dict[str, object] | str:
    """The host's options, or the sentence of the refusal."""
    config = recipe(
        f"--train.questions={questions}",
        f"--train.group_size={group}",
        f"--train.optimizer_steps_per_rollout={steps}",
        "--loss.penalty.name=none",
    )
    try:
        return plan(host, config, Machines(gpus=gpus)).values
    except ConfigError as error:
        return str(error)


def trl_steps(options: dict, gpus: int) -> float:
    """As `GRPOTrainer` counts: it draws a generation batch every `steps_per_generation × num_iterations` micro-steps,
    and the optimizer steps every `gradient_accumulation_steps` of them."""
    generation_batch = options["per_device_train_batch_size"] * gpus * options["steps_per_generation"]
    assert generation_batch % options["num_generations"] == 0
    assert options["steps_per_generation"] % options["gradient_accumulation_steps"] == 0
    return options["steps_per_generation"] * options["num_iterations"] / options["gradient_accumulation_steps"]


def verl_steps(options: dict, gpus: int) -> float:
    """As `train_mini_batch` counts, on one data-parallel rank, and as `_balance_batch` pads before."""
    n = options["actor_rollout_ref.rollout.n"]
    mini = options["actor_rollout_ref.actor.ppo_mini_batch_size"] * n
    rows = options["data.train_batch_size"] * n
    assert mini % gpus == 0
    assert rows % mini == 0, "verl would fill the last step up with empty rows"
    return (rows // gpus) // (mini // gpus) * options["actor_rollout_ref.actor.ppo_epochs"]


@pytest.mark.parametrize("host", ["trl", "verl"])
def test_the_host_takes_k_steps_or_the_recipe_is_refused(host: str, recipe: MakeRecipe) -> None:
    count = {"trl": trl_steps, "verl": verl_steps}[host]
    accepted = 0
    for questions, group, steps, gpus in CASES:
        if steps > questions * group:
            continue
        options = made(host, recipe, questions, group, steps, gpus)
        if isinstance(options, str):
            assert f"train.optimizer_steps_per_rollout = {steps} with train.questions = {questions}" in options
            continue
        accepted += 1
        assert count(options, gpus) == steps, (questions, group, steps, gpus)
    assert accepted > len(CASES) / 4
    assert isinstance(made(host, recipe, 30, 5, 10, 5), dict), "3 questions a step are 15 rollouts, 3 on each GPU"


@pytest.mark.parametrize("host", ["trl", "verl"])
def test_what_a_refusal_suggests_works_and_nothing_nearer_does(host: str, recipe: MakeRecipe) -> None:
    refused = 0
    for questions, group, steps, gpus in [
        (512, 5, 10, 8),
        (32, 5, 10, 1),
        (8, 5, 3, 3),
        (510, 5, 10, 8),
        (7, 5, 2, 1),
    ]:
        sentence = made(host, recipe, questions, group, steps, gpus)
        if not isinstance(sentence, str):
            continue
        refused += 1
        (more,) = map(int, re.findall(r"can: train\.questions = (\d+)", sentence))
        assert isinstance(made(host, recipe, more, group, steps, gpus), dict)
        for nearer in range(max(1, questions - abs(more - questions) + 1), questions + abs(more - questions)):
            if steps <= nearer * group:
                assert isinstance(made(host, recipe, nearer, group, steps, gpus), str)
        for fewer in map(int, re.findall(r"or train\.optimizer_steps_per_rollout = (\d+)", sentence)):
            assert fewer > 1, "which would make the penalty inert"
            assert isinstance(made(host, recipe, questions, group, fewer, gpus), dict)
    assert refused >= 2


def test_a_forward_pass_of_trl_holds_no_more_tokens_than_the_recipe_says(recipe: MakeRecipe) -> None:
    for budget, total, fits in [(16384, 4096, 4), (6000, 4096, 1), (64, 4096, 1), (65536, 512, 128)]:
        config = recipe(f"--train.micro_batch_tokens={budget}", f"--protocol.max_total_tokens={total}")
        size = plan("trl", config).values["per_device_train_batch_size"]
        assert 1 <= size <= fits
        assert 40 * 5 // 10 % size == 0
