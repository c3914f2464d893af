"""What a recipe becomes: exact options for small recipes, and every refusal."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.adapters.launch import Machines, plan
from holdfast.adapters.launch.view import correct_above
from holdfast.base.errors import ConfigError
from holdfast.recipe import Config

from .conftest import CUSTOM

MakeRecipe = Callable[..., Config]

ACTOR, ROLLOUT, LOSS = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.actor.policy_loss"


def holds(options: dict[str, object], expected: dict[str, object]) -> None:
    assert {name: options.get(name, "absent") for name in expected} == expected


def test_trl_options_of_the_small_recipe(recipe: MakeRecipe) -> None:
    # 40 questions × 5 = 200 rollouts, 20 in each of 10 steps, 10 on each GPU; 16384 / 4096 = 4 rows fit, 2 divide 10.
    made = plan("trl", recipe("--train.warmup=3", "--train.steps=7", "--eval.every=2", "--checkpoint.every=0"),
                Machines(gpus=2))  # fmt: skip
    holds(made.values, {
        "output_dir": "runs/small",
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 5,
        "steps_per_generation": 50,
        "num_iterations": 1,
        "num_generations": 5,
        "max_steps": 70,
        "warmup_steps": 30,
        "eval_steps": 20,
        "save_steps": 70,
        "logging_steps": 10,
        "learning_rate": 1e-6,
        "loss_type": "dapo",
        "scale_rewards": "group",
        "epsilon": 0.2,
        "epsilon_high": 0.2,
        "delta": None,
        "beta": 0.001,
        "use_bias_correction_kl": False,
        "vllm_importance_sampling_correction": False,
        "temperature": 1.0,
        "max_completion_length": 4096,
        "report_to": "none",
    })  # fmt: skip
    assert "LLDS(coef=0.2, normalizer='preserved', preserve='nonnegative', gate='action', threshold=0.0, " in script(
        made
    )


def test_verl_options_of_the_small_recipe(recipe: MakeRecipe) -> None:
    made = plan("verl", recipe("--train.warmup=3", "--train.steps=7", "--eval.every=2", "--checkpoint.every=0"),
                Machines(gpus=2, nodes=2))  # fmt: skip
    holds(made.values, {
        "data.train_batch_size": 40,
        f"{ACTOR}.ppo_mini_batch_size": 4,
        f"{ACTOR}.ppo_epochs": 1,
        f"{ROLLOUT}.n": 5,
        f"{ACTOR}.use_dynamic_bsz": True,
        f"{ACTOR}.ppo_max_token_len_per_gpu": 16384,
        f"{ACTOR}.optim.lr": 1e-6,
        f"{ACTOR}.optim.lr_warmup_steps": 3,
        f"{ACTOR}.loss_agg_mode": "token-mean",
        f"{ACTOR}.clip_ratio_c": 1e9,
        f"{ACTOR}.use_kl_loss": True,
        f"{ACTOR}.kl_loss_type": "low_var_kl",
        f"{LOSS}.loss_mode": "holdfast_llds",
        f"+{LOSS}.base_loss_mode": "vanilla",
        f"+{LOSS}.penalty_coef": 0.2,
        f"+{LOSS}.penalty_preserve": "nonnegative",
        "algorithm.norm_adv_by_std_in_grpo": True,
        f"{ROLLOUT}.top_k": -1,
        "data.max_prompt_length": 512,
        "data.max_response_length": 3584,
        "trainer.total_training_steps": 7,
        "trainer.test_freq": 2,
        "trainer.save_freq": 7,
        "trainer.nnodes": 2,
        "trainer.n_gpus_per_node": 2,
        "trainer.logger": ["console", "file"],
    })  # fmt: skip
    assert f"+{LOSS}.penalty_tau" not in made.values


def script(made: object) -> str:
    return made.files["train.py"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("overrides", "expected"), [
    (["--loss.reduction=seq-mean-token-mean"], {"loss_type": "grpo"}),
    # TRL divides by max_completion_length: 4 turns of 500 tokens.
    (["--loss.reduction=seq-mean-token-sum-norm"], {"loss_type": "dr_grpo", "max_completion_length": 2000}),
    (["--loss.reduction=seq-mean-token-sum", "--loss.ratio=sequence"],
     {"loss_type": "luspo", "importance_sampling_level": "sequence"}),
    (["--loss.advantage=dr_grpo"], {"scale_rewards": "none"}),
    (["--loss.dual_clip=3"], {"delta": 3.0}),
    (["--sampling.top_k=20"], {"top_k": 20}),
    (["--eval.samples=4"], {"num_generations_eval": 4, "per_device_eval_batch_size": 16}),
    (["--track.wandb=p", "--track.tensorboard"], {"report_to": ["wandb", "tensorboard"]}),
    (["--track.trajectories=0"], {"log_completions": False, "num_completions_to_print": None}),
    (["--run.device=cpu"], {"use_cpu": True, "bf16": False}),
    (["--run.device=cuda"], {"use_cpu": False, "bf16": True}),
    (["--run.device=auto"], {"use_cpu": False, "bf16": "torch.cuda.is_available()"}),
    (["--eval.every=0"], {"eval_steps": 600}),
])  # fmt: skip
def test_what_a_setting_becomes_in_trl(overrides: list[str], expected: dict[str, object], recipe: MakeRecipe) -> None:
    holds(plan("trl", recipe(*overrides)).values, expected)


@pytest.mark.parametrize(("overrides", "expected"), [
    (["--loss.penalty.name=none"],
     {f"{LOSS}.loss_mode": "holdfast_observe", f"+{LOSS}.penalty_coef": "absent"}),
    (["--loss.penalty.gate=response"], {f"{LOSS}.loss_mode": "holdfast_llds_response"}),
    (["--loss.penalty.gate=token"], {f"{LOSS}.loss_mode": "holdfast_lld"}),
    (["--loss.penalty.name=sapo", "--loss.penalty.tau=0.9"],
     {f"{LOSS}.loss_mode": "holdfast_search_sapo", f"+{LOSS}.penalty_tau": 0.9, f"+{LOSS}.penalty_coef": 0.1,
      f"+{LOSS}.penalty_preserve": "positive", f"+{LOSS}.penalty_threshold": "absent"}),
    (["--loss.penalty.name=nll"],
     {f"{LOSS}.loss_mode": "holdfast_nll", f"+{LOSS}.penalty_coef": 0.1, f"+{LOSS}.penalty_preserve": "absent"}),
    ([], {f"+{LOSS}.penalty_answer": "absent", f"+{LOSS}.penalty_answer_weight": "absent"}),
    (["--loss.penalty.answer_weight=0"],
     {f"+{LOSS}.penalty_answer": "answer-span", f"+{LOSS}.penalty_answer_weight": 0.0}),
    (["--loss.penalty.answer_weight=adaptive-paper", "--loss.penalty.answer_target=3"],
     {f"+{LOSS}.penalty_answer": "answer-span", f"+{LOSS}.penalty_answer_weight": "adaptive-paper",
      f"+{LOSS}.penalty_answer_base": 1.0, f"+{LOSS}.penalty_answer_target": 3.0}),
    (["--loss.penalty.name=custom", "--loss.penalty.path=holdfast.methods.penalties:LLDS",
      "--loss.penalty.settings=answer_weight = 0.5"],
     {f"+{LOSS}.penalty_settings": {"answer_weight": 0.5}, f"+{LOSS}.penalty_answer": "answer-span"}),
    (["--loss.ratio=sequence"], {f"+{LOSS}.base_loss_mode": "gspo"}),
    (["--loss.reduction=seq-mean-token-sum-norm"],
     {f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm", f"{ACTOR}.loss_scale_factor": 2000}),
    (["--loss.reduction=token-sum"], {f"{ACTOR}.loss_agg_mode": "token-sum", f"{ACTOR}.loss_scale_factor": "absent"}),
    (["--loss.dual_clip=3"], {f"{ACTOR}.clip_ratio_c": 3.0}),
    (["--loss.kl_coef=0"], {f"{ACTOR}.use_kl_loss": False}),
    (["--loss.kl_estimator=k2"], {f"{ACTOR}.kl_loss_type": "mse"}),
    (["--loss.advantage=dr_grpo"], {"algorithm.norm_adv_by_std_in_grpo": False}),
    (["--loss.advantage=dr_grpo", "--loss.baseline=length"],
     {"algorithm.adv_estimator": "opo", "algorithm.norm_adv_by_std_in_grpo": False}),
    (["--loss.advantage=reinforce", "--train.group_size=1"],
     {"algorithm.norm_adv_by_std_in_grpo": False, "algorithm.adv_estimator": "grpo", f"{ROLLOUT}.n": 1}),
    (["--loss.advantage=gae", "--loss.penalty.name=none", "--train.group_size=1", "--loss.kl_coef=0",
      "--reward.kl=0.001", "--critic.lr=2e-5", "--critic.warmup=15", "--critic.gamma=0.99"],
     {"algorithm.adv_estimator": "gae", "algorithm.norm_adv_by_std_in_grpo": "absent", "algorithm.gamma": 0.99,
      "algorithm.lam": 1.0, "algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.kl_coef": 0.001,
      "algorithm.kl_penalty": "kl", f"{ACTOR}.use_kl_loss": False, "critic.optim.lr": 2e-5,
      "critic.optim.lr_warmup_steps": 15, "critic.cliprange_value": 0.5, "critic.loss_agg_mode": "token-mean",
      "critic.model.path": "Qwen/Qwen2.5-0.5B-Instruct", f"{ROLLOUT}.n": 1}),
    (["--loss.advantage=gae", "--loss.penalty.name=none", "--critic.clip=0"], {"critic.cliprange_value": 1e9}),
    (["--sampling.top_k=20", "--sampling.top_p=0.9"], {f"{ROLLOUT}.top_k": 20, f"{ROLLOUT}.top_p": 0.9}),
    (["--eval.samples=1"], {f"{ROLLOUT}.val_kwargs.do_sample": False, f"{ROLLOUT}.val_kwargs.temperature": 0}),
    (["--eval.samples=4", "--sampling.temperature=0.7"],
     {f"{ROLLOUT}.val_kwargs.n": 4, f"{ROLLOUT}.val_kwargs.do_sample": True,
      f"{ROLLOUT}.val_kwargs.temperature": 0.7}),
    (["--model.lora_rank=16"],
     {"actor_rollout_ref.model.lora_rank": 16, "actor_rollout_ref.model.lora_alpha": 32,
      f"{ROLLOUT}.load_format": "safetensors"}),
    (["--model.autocast=none"],
     {f"+{ACTOR}.fsdp_config.mixed_precision.param_dtype": "fp32",
      "+actor_rollout_ref.ref.fsdp_config.mixed_precision.param_dtype": "fp32"}),
    (["--track.wandb=p"], {"trainer.project_name": "p", "trainer.logger": ["console", "file", "wandb"]}),
])  # fmt: skip
def test_what_a_setting_becomes_in_verl(overrides: list[str], expected: dict[str, object], recipe: MakeRecipe) -> None:
    holds(plan("verl", recipe(*overrides)).values, expected)


@pytest.mark.parametrize(("overrides", "says"), [
    (["--model.path=tiny"], ["model.path = 'tiny'", "holdfast warm-start"]),
    (["--warm_start.steps=5"], ["warm_start.steps = 5", "holdfast warm-start"]),
    (["--loss.advantage=reinforce"], ["loss.advantage = 'reinforce'", "'dr_grpo'"]),
    (["--loss.advantage=gae", "--loss.penalty.name=none", "--critic.lr=1e-4"],
     ["loss.advantage = 'gae' (with critic.lr)", "Use verl"]),
    (["--loss.baseline=length"], ["loss.baseline = 'length'", "'mean', or use verl"]),
    (["--loss.reduction=token-sum"], ["loss.reduction = 'token-sum'", "'token-mean'"]),
    (["--loss.reduction=seq-mean-token-sum"], ["loss.reduction = 'seq-mean-token-sum'", "loss.ratio = 'sequence'"]),
    (["--loss.kl_estimator=k2"], ["loss.kl_estimator = 'k2'", "'k3'"]),
    (["--loss.dual_clip=1.1"], ["loss.dual_clip = 1.1", "to 1.2 or more"]),
    (["--loss.penalty.preserve=correct", "--reward.em=0.1", "--reward.format=1"],
     ["loss.penalty.preserve = 'correct'", "Raise reward.em"]),
])  # fmt: skip
def test_what_trl_refuses(overrides: list[str], says: list[str], recipe: MakeRecipe) -> None:
    with pytest.raises(ConfigError) as raised:
        plan("trl", recipe(*overrides))
    for words in says:
        assert words in str(raised.value)


@pytest.mark.parametrize(("overrides", "says"), [
    (["--model.path=tiny"], ["model.path = 'tiny'", "Qwen2.5-0.5B"]),
    (["--warm_start.steps=5"], ["warm_start.steps = 5", "holdfast warm-start"]),
    (["--retrieval.url=none", "--retrieval.corpus=c.jsonl"], ["retrieval.corpus = ", "/c.jsonl'", "set retrieval.url"]),
    (["--data.train=world", "--retrieval.url=none"], ["data.train = 'world'", "retrieval.url"]),
    (["--loss.penalty.preserve=correct"], ["loss.penalty.preserve = 'correct'", "'positive'"]),
    (["--loss.advantage=reinforce"], ["loss.advantage = 'reinforce'", "train.group_size = 1"]),
    (["--loss.advantage=gae", "--loss.penalty.name=none", "--critic.whiten=false"],
     ["critic.whiten = False", "whitens"]),
    (["--loss.advantage=gae", "--loss.penalty.name=none", "--critic.path=c"], ["critic.path = ", "Leave it out"]),
    (["--loss.ratio=sequence", "--loss.dual_clip=3"], ["loss.dual_clip = 3.0", "leave it out"]),
    (["--train.micro_batch_tokens=2048"], ["train.micro_batch_tokens = 2048", "4096"]),
    (["--run.device=cpu"], ["run.device = 'cpu'", "TRL"]),
])  # fmt: skip
def test_what_verl_refuses(overrides: list[str], says: list[str], recipe: MakeRecipe) -> None:
    with pytest.raises(ConfigError) as raised:
        plan("verl", recipe(*overrides))
    assert "\n" not in str(raised.value), "one problem is one sentence"
    for words in says:
        assert words in str(raised.value)


def test_whose_searches_a_schedule_counts_in_verl_is_noted(recipe: MakeRecipe) -> None:
    def notes(*overrides: str) -> list[str]:
        return [note for note in plan("verl", recipe(*overrides)).notes if "256 rollouts" in note]

    assert (notes(), notes("--loss.penalty.answer_weight=0")) == ([], [])
    assert len(notes("--loss.penalty.answer_weight=adaptive-paper")) == 1


def test_all_problems_are_told_together(recipe: MakeRecipe) -> None:
    with pytest.raises(ConfigError) as raised:
        plan("verl", recipe("--loss.penalty.preserve=correct", "--run.device=cpu", "--train.questions=41"))
    first, *problems = str(raised.value).split("\n")
    assert first == "this recipe cannot run in verl as it is"
    assert len(problems) == 3


def test_penalties_in_the_script(recipe: MakeRecipe) -> None:
    sapo = script(plan("trl", recipe("--loss.penalty.name=sapo", "--loss.penalty.tau=0.9")))
    assert "SAPO(coef=0.1, normalizer='preserved', preserve='positive', tau=0.9)" in sapo
    assert "from holdfast.adapters.trl import SAPO, with_penalties" in sapo
    assert "NLL(coef=0.1, normalizer='preserved')" in script(plan("trl", recipe("--loss.penalty.name=nll")))
    none = script(plan("trl", recipe("--loss.penalty.name=none")))
    assert "import with_penalties" in none
    assert not [name for name in ("LLDS", "SAPO", "NLL") if name in none]
    adaptive = script(plan("trl", recipe("--loss.penalty.answer_weight=adaptive-paper")))
    assert "answer_weight='adaptive-paper', answer_base=1.0, answer_target=2.0)" in adaptive


def test_a_penalty_and_a_reward_of_ones_own(recipe: MakeRecipe) -> None:
    config = recipe(
        *CUSTOM, "--loss.penalty.settings=margin = 0.5", '--reward.custom="own_code_of_launch:brevity" = 0.2'
    )
    trl, verl = plan("trl", config), plan("verl", config)
    assert "from own_code_of_launch import Hinge\n" in script(trl) and "import with_penalties\n" in script(trl)
    assert "Hinge(coef=0.3, normalizer='preserved', margin=0.5)" in script(trl)
    assert "{'em': 1.0, 'own_code_of_launch:brevity': 0.2}" in script(trl)
    assert "correct_above" not in script(trl)  # nobody knows what the part is worth
    assert verl.values[f"{LOSS}.loss_mode"] == "holdfast_custom"
    assert verl.values[f"+{LOSS}.penalty_path"] == "own_code_of_launch:Hinge"
    assert verl.values[f"+{LOSS}.penalty_settings"] == {"margin": 0.5}
    assert "penalty_settings='{margin:0.5}'" in verl.files["run.sh"]
    assert 'reward: {"em": 1.0, "own_code_of_launch:brevity": 0.2}' in verl.files["agent_loops.yaml"]
    for made in (trl, verl):
        said = "was imported to check it. Python must find own_code_of_launch where this runs too"
        assert len([note for note in made.notes if said in note]) == 2


def test_code_that_cannot_be_imported_is_refused(recipe: MakeRecipe) -> None:
    for host in ("trl", "verl"):
        with pytest.raises(ConfigError, match="the module no_such cannot be imported"):
            plan(host, recipe("--loss.penalty.name=custom", "--loss.penalty.path=no_such:Hinge"))
        with pytest.raises(ConfigError, match="did you mean brevity"):
            plan(host, recipe('--reward.custom="own_code_of_launch:brevty" = 1.0'))


def test_a_right_rollout_is_told_by_its_reward(recipe: MakeRecipe) -> None:
    # The best wrong one has format and retrieval, 0.3; the worst right one has em alone, 1.
    config = recipe("--reward.format=0.2", "--reward.retrieval=0.1")
    assert correct_above(config.reward) == pytest.approx(0.65)
    assert "correct_above=0.65" in script(plan("trl", config))
    # A punishment can leave a right one with 0.8; the best wrong one has 0.
    assert correct_above(recipe("--reward.format=-0.2").reward) == pytest.approx(0.4)
    # F1 is 1 when the answer is right, and close to it when nearly right.
    assert correct_above(recipe("--reward.em=0", "--reward.f1=1").reward) is None
    assert "correct_above" not in script(plan("trl", recipe("--reward.em=0", "--reward.f1=1")))


def test_an_unknown_host(recipe: MakeRecipe) -> None:
    with pytest.raises(ConfigError, match="choose trl or verl"):
        plan("skyrl", recipe())


@pytest.mark.parametrize("host", ["trl", "verl"])
def test_a_truncated_sampler_is_told_of(host: str, recipe: MakeRecipe) -> None:
    told = "top_p = 0.95 and top_k = 0 truncate the sampler"
    assert [note for note in plan(host, recipe("--sampling.top_p=0.95")).notes if note.startswith(told)]
    assert not [note for note in plan(host, recipe()).notes if "truncate" in note]


def test_the_sampling_mask_goes_to_trl_alone(recipe: MakeRecipe) -> None:
    """With it nothing is told of the truncation; it needs old log-probs where there is a reference."""
    masked = ["--sampling.top_p=0.95", "--sampling.top_k=512", "--sampling.mask_logprobs=true"]
    made = plan("trl", recipe(*masked))
    assert "    mask_logprobs=True,\n" in script(made)
    assert not [note for note in made.notes if "truncate" in note]
    assert "mask_logprobs" not in script(plan("trl", recipe(*masked[:2])))
    with pytest.raises(ConfigError, match=r"sampling.mask_logprobs = True.*top_k = 0, or use TRL"):
        plan("verl", recipe(*masked))
    once = ["--train.optimizer_steps_per_rollout=1", "--loss.penalty.name=none"]
    plan("trl", recipe(*masked, *once, "--loss.kl_coef=0"))
    with pytest.raises(ConfigError, match=r"loss\.kl_coef = 0"):
        plan("trl", recipe(*masked, *once, "--loss.kl_coef=0.001"))


# ---- remedies that a host has under another name

WEIGHTS = "--loss.methods.sampler_weights."


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (("--loss.surrogate=cispo", "--loss.clip_low=1", "--loss.clip_high=4"),
         {"loss_type": "cispo", "epsilon_high": 5.0}),
        (("--loss.methods.off_policy_mask.threshold=0.5",), {"off_policy_mask_threshold": 0.5}),
        ((f"{WEIGHTS}level=token",), {
            "use_vllm": True, "vllm_importance_sampling_correction": True,
            "vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_min": None,
            "vllm_importance_sampling_clip_max": 2.0,
        }),
        ((f"{WEIGHTS}level=sequence", f"{WEIGHTS}keep=mask", f"{WEIGHTS}low=0.5", f"{WEIGHTS}high=5"), {
            "vllm_importance_sampling_mode": "sequence_mask", "vllm_importance_sampling_clip_min": 0.5,
            "vllm_importance_sampling_clip_max": 5.0,
        }),
    ],
)  # fmt: skip
def test_remedies_in_trl(recipe: MakeRecipe, changes: tuple[str, ...], expected: dict[str, object]) -> None:
    holds(plan("trl", recipe(*changes), Machines(gpus=2)).values, expected)


CORRECTION = "algorithm.rollout_correction"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (("--loss.surrogate=cispo", "--loss.clip_low=1", "--loss.clip_high=4"),
         {f"+{LOSS}.base_loss_mode": "cispo", f"{ACTOR}.clip_ratio_high": 4.0, f"{ACTOR}.clip_ratio_low": 1.0}),
        (("--loss.surrogate=dppo",), {f"+{LOSS}.base_loss_mode": "dppo_tv", f"{ACTOR}.clip_ratio_c": 1e9}),
        ((f"{WEIGHTS}level=sequence",), {
            f"{ROLLOUT}.calculate_log_probs": True, f"{CORRECTION}.rollout_is": "sequence",
            f"{CORRECTION}.rollout_is_threshold": "2", f"{CORRECTION}.rollout_rs": "absent",
        }),
        ((f"{WEIGHTS}level=token", f"{WEIGHTS}keep=mask", f"{WEIGHTS}low=0.5", f"{WEIGHTS}high=5"), {
            f"{CORRECTION}.rollout_is": "token", f"{CORRECTION}.rollout_is_threshold": "0.5_5",
        }),
        ((f"{WEIGHTS}level=sequence", f"{WEIGHTS}aggregate=mean", f"{WEIGHTS}keep=reject", f"{WEIGHTS}low=0.8",
          f"{WEIGHTS}high=1.6"), {
            f"{CORRECTION}.rollout_rs": "seq_mean_k1", f"{CORRECTION}.rollout_rs_threshold": "0.625_1.25",
            f"{CORRECTION}.rollout_is": "absent",
        }),
        ((), {f"{CORRECTION}.rollout_is": "absent", f"{ROLLOUT}.calculate_log_probs": "absent"}),
    ],
)  # fmt: skip
def test_remedies_in_verl(recipe: MakeRecipe, changes: tuple[str, ...], expected: dict[str, object]) -> None:
    holds(plan("verl", recipe(*changes), Machines(gpus=2)).values, expected)


def test_nthr_is_an_argument_in_trl(recipe: MakeRecipe) -> None:
    assert "    nthr=True,\n" in plan("trl", recipe("--loss.methods.nthr.on=true")).files["train.py"]
    assert "nthr" not in plan("trl", recipe()).files["train.py"]


def test_nthr_in_trl_needs_whole_groups_on_every_gpu(recipe: MakeRecipe) -> None:
    """TRL's schedule takes 40 questions of 5 rollouts on 25 GPUs, 8 rollouts each."""
    once = ("--train.group_size=5", "--train.optimizer_steps_per_rollout=2")
    plan("trl", recipe(*once), Machines(gpus=25))
    with pytest.raises(ConfigError, match=r"nthr\.on = true with train\.questions = 40 .* to a multiple of 25"):
        plan("trl", recipe(*once, "--loss.methods.nthr.on=true"), Machines(gpus=25))
    plan("trl", recipe(*once, "--loss.methods.nthr.on=true"), Machines(gpus=20))


@pytest.mark.parametrize(
    ("host", "changes", "words"),
    [
        *((host, (change,), words) for host in ("trl", "verl") for change, words in (
            ("--loss.methods.drop_void.on=true", "which turns are invalid"),
            ("--loss.methods.drop_first_actions.on=true", "the same passages"),
            ("--loss.methods.negative_weight.weight=0", "all rollouts the same weight"),
            ("--loss.methods.dynamic_sampling.rounds=2", "every group"),
            ("--loss.ratio=action", "do(es)? not know actions"),
            (f"{WEIGHTS}level=action", "does not know actions"),
        )),
        ("trl", ("--loss.surrogate=dppo",), "does not have it"),
        ("trl", ("--loss.surrogate=cispo",), "no lower bound"),
        ("trl", ("--loss.surrogate=cispo", "--loss.clip_low=1", "--loss.reduction=seq-mean-token-mean"), "over tokens"),
        ("trl", (f"{WEIGHTS}level=sequence", f"{WEIGHTS}keep=reject"), "also weights the tokens"),
        ("verl", ("--loss.methods.off_policy_mask.threshold=0.5",), "does not have this mask"),
        ("verl", ("--loss.methods.nthr.on=true",), "hidden states"),
        ("verl", (f"{WEIGHTS}level=token", f"{WEIGHTS}low=0.5"), "no lower bound"),
        ("verl", (f"{WEIGHTS}level=token", f"{WEIGHTS}keep=mask"), "two bounds"),
        ("verl", (f"{WEIGHTS}level=sequence", f"{WEIGHTS}aggregate=mean"), "product of its ratios"),
        ("verl", (f"{WEIGHTS}level=token", f"{WEIGHTS}keep=reject", f"{WEIGHTS}low=0.5"), "splits actions"),
    ],
)  # fmt: skip
def test_remedies_that_a_host_lacks_are_refused(
    recipe: MakeRecipe, host: str, changes: tuple[str, ...], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        plan(host, recipe(*changes), Machines(gpus=2))
