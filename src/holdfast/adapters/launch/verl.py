"""A recipe for verl 0.8 or 0.9: overrides of `verl.trainer.main_ppo`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from holdfast import __version__
from holdfast.adapters.launch import verl_files
from holdfast.adapters.launch.plan import (
    LOCAL_ONLY,
    Machines,
    Plan,
    local_notes,
    methods_in,
    model_path,
    noted,
    refuse,
    section,
    trackers,
    truncation,
)
from holdfast.adapters.launch.schedule import verl_mini_batch, verl_schedule_problem
from holdfast.adapters.verl_losses import ANSWER_SPAN, LOSSES, loss_name
from holdfast.base.section import as_toml
from holdfast.methods.method import Option
from holdfast.methods.surrogates import SURROGATES
from holdfast.recipe import Config, setting_values

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"
CRITIC = "critic"

# Settings that are one option of verl under another name.
DIRECT: Mapping[str, str] = {
    "train.questions": "data.train_batch_size",
    "train.group_size": f"{ROLLOUT}.n",
    "train.lr": f"{ACTOR}.optim.lr",
    "train.weight_decay": f"{ACTOR}.optim.weight_decay",
    "train.grad_clip": f"{ACTOR}.optim.clip_grad",
    "loss.clip_low": f"{ACTOR}.clip_ratio_low",
    "loss.clip_high": f"{ACTOR}.clip_ratio_high",
    "loss.reduction": f"{ACTOR}.loss_agg_mode",
    "loss.entropy_coef": f"{ACTOR}.entropy_coeff",
    "sampling.temperature": f"{ROLLOUT}.temperature",
    "sampling.top_p": f"{ROLLOUT}.top_p",
    "model.trust_remote_code": f"{MODEL}.trust_remote_code",
    "model.gradient_checkpointing": f"{MODEL}.enable_gradient_checkpointing",
    "checkpoint.keep": "trainer.max_actor_ckpt_to_keep",
}

# These are in agent_loops.yaml, and run.code, which is PYTHONPATH, in run.sh.
AGENT_LOOP = frozenset([
    *("run.code", "retrieval.url", "protocol.preset", "protocol.tools", "protocol.tool_timeout"),
    *("protocol.max_turns", "protocol.max_turn_tokens", "protocol.max_observation_tokens", "protocol.topk"),
    "model.chat_template",
    *section("reward", but=("kl",)),
])  # fmt: skip

# These decide what the parquet files hold.
DATA = frozenset({"data.train", "data.dev", "data.test", "eval.questions", "protocol.preset", "protocol.prompt"})

# These belong to the bundled world, which verl cannot train on. A recipe that verl can run has none of them.
WORLD = frozenset(dotted for name in ("world", "world.model", "world.scripts") for dotted in section(name))

# `_problems` refuses some values of these; the others need no option.
CHECKED = frozenset({"run.device"})

NOTED: Mapping[str, str] = {
    **dict.fromkeys(section("faults"), "verl's rollouts have no faults on purpose"),
    "run.threads": "Ray gives every worker its threads",
    "retrieval.stem": "the server of the index has its own",
    "retrieval.fields": "the index of the server has its passages",
    "retrieval.cache_size": "the server has its own cache",
    "run.max_failed_fraction": "verl continues however many rollouts fail. It leaves them out and logs that",
    "train.displacement_every": "a loss function of verl cannot see rollouts before and after a whole update",
    **dict.fromkeys(
        ("train.displacement_rows", "train.per_sample_every", "train.per_sample_questions"),
        "displacement is not measured in verl",
    ),
    "track.trajectories": "verl writes all rollouts of a step or none; for all, add trainer.rollout_data_dir=rollouts",
    **dict.fromkeys(
        section("guard"), "verl has no callbacks while it trains; run `holdfast diagnose` on its log instead"
    ),
    **dict.fromkeys(section("warm_start", but=("steps",)), "a warm start is a separate stage before training"),
}

REFUSED: Mapping[str, str] = {
    "retrieval.corpus": (
        "verl's rollouts run on many machines, so they need a retrieval server. Serve these passages (`holdfast "
        "index build`, then `holdfast serve`), and set retrieval.url to its address"
    ),
    "retrieval.index": (
        "verl's rollouts run on many machines, so they need a retrieval server. Start `holdfast serve` with this "
        "folder, and set retrieval.url to its address"
    ),
    "sampling.mask_logprobs": (
        "the log-probs of verl's loss are over the whole vocabulary. Set sampling.top_p = 1 and sampling.top_k = 0, or "
        "use TRL"
    ),
    "warm_start.steps": (
        "verl's trainer has no warm start. Make the model with `holdfast warm-start RECIPE`, set "
        "model.path to the folder it names, and warm_start.steps = 0"
    ),
    **LOCAL_ONLY,
    "critic.path": "verl's critic starts from a model, but this is a checkpoint of holdfast. Leave it out",
    "critic.whiten": "verl whitens every advantage of a critic. Leave it at true, or use `holdfast train`",
}

_NO_VALUE_CLIP = 1e9  # verl always clips values
_NO_DUAL_CLIP = 1e9  # verl always clips twice; ratios end at e^20, below this


def translate(config: Config, machines: Machines) -> Plan:
    """The plan for verl. Raises one `ConfigError` for all that cannot be carried over."""
    refuse("verl", _problems(config, machines))
    train = config.train
    options = tuple(sorted(_options(config, machines), key=_part))
    return Plan(
        host="verl",
        options=options,
        files=verl_files.files(config, options, machines),
        data=verl_files.parquet_files(config),
        write_data=partial(verl_files.write_splits, config),
        schedule=(
            f"{train.optimizer_steps_per_rollout} = train_batch_size {train.questions} / ppo_mini_batch_size "
            f"{verl_mini_batch(train)} × ppo_epochs 1"
        ),
        first=("pip install 'holdfast-rl[verl]' vllm", "./run.sh --check"),
        notes=(*noted(config, NOTED), *_differences(config)),
    )


def _problems(config: Config, machines: Machines) -> Iterator[str]:
    loss, train = config.loss, config.train
    yield from noted(config, REFUSED)
    for name, value in setting_values(config).items():
        if "${" in str(value) and name not in DATA and name not in NOTED:
            yield (
                f"{name} = {as_toml(value)}: verl's configuration replaces every ${{...}}, for example by a variable "
                "of the environment, so the text would not get there as it is. Write it without ${"
            )
    if config.data.train == "world":
        yield (
            "data.train = 'world': the bundled world exists only inside one process, but verl's rollouts need a "
            "server. Set data.train to your questions and retrieval.url to a server over your passages, or train on "
            "it in TRL"
        )
    elif config.retrieval.url is None and config.retrieval.corpus == "world" and config.protocol.searches:
        yield "retrieval.url is not set, but verl's rollouts need a retrieval server; set it to the address of one"
    if config.model.path == "tiny" and not config.warm_start.steps:
        yield (
            "model.path = 'tiny': verl's rollout servers load a model from a folder or the hub, but the tiny one is "
            "made by holdfast. Set model.path, for example to 'Qwen/Qwen2.5-0.5B-Instruct'"
        )
    if config.run.device == "cpu":
        yield "run.device = 'cpu': verl's rollout servers need GPUs. Leave it at 'auto', or use TRL"
    if loss_name(loss.penalty) is None:
        yield (
            f"loss.penalty.name = {loss.penalty.name!r}: verl does not have this penalty; the nearest is 'sapo', or "
            "use TRL"
        )
    if getattr(loss.penalty.term, "preserve", None) == "correct":
        yield (
            "loss.penalty.preserve = 'correct': a loss function of verl sees advantages, not rewards. The nearest is "
            "'positive', which leaves out groups whose rollouts are all correct"
        )
    if loss.advantage == "reinforce" and train.group_size > 1:
        yield (
            f"loss.advantage = 'reinforce' with train.group_size = {train.group_size}: verl subtracts the mean of a "
            "group. Set train.group_size = 1, where there is none, or loss.advantage = 'dr_grpo'"
        )
    if loss.baseline == "length" and loss.advantage != "dr_grpo":
        yield (
            f"loss.baseline = 'length' with loss.advantage = {loss.advantage!r}: verl supports it only without "
            "division by the standard deviation, as in OPO. Set loss.advantage = 'dr_grpo', or loss.baseline = 'mean'"
        )
    if loss.ratio == "action":
        yield "loss.ratio = 'action': verl's losses do not know actions. The nearest are 'token' and 'sequence'"
    yield from methods_in("verl", config).problems
    if loss.ratio == "sequence" and loss.dual_clip is not None:
        yield (
            f"loss.dual_clip = {loss.dual_clip} with loss.ratio = 'sequence': verl's GSPO has no dual clip; leave "
            "it out"
        )
    if train.micro_batch_tokens < config.protocol.max_total_tokens:
        yield (
            f"train.micro_batch_tokens = {train.micro_batch_tokens} with protocol.max_total_tokens = "
            f"{config.protocol.max_total_tokens}: verl fails on a rollout that does not fit into one forward pass. "
            "Raise the first to at least the second"
        )
    if problem := verl_schedule_problem(train, machines):
        yield problem


def _differences(config: Config) -> Iterator[str]:
    yield from truncation(config)
    yield from methods_in("verl", config).notes
    yield "verl keeps the newest checkpoints, but not the best on dev"
    yield (
        "verl has separate limits for prompt and response, so with a short prompt a rollout ends before "
        "protocol.max_total_tokens"
    )
    yield from local_notes(config)
    if config.loss.advantage == "gae":
        yield "the value head of verl's critic begins at random, not at zero"
    penalty = config.loss.penalty.term
    if penalty is not None and penalty.uses_search_count:
        yield "the weight of the answer depends on the searches in the last 256 rollouts of a process"
    if config.train.warmup:
        yield "verl's warm-up begins at a learning rate of 0, so the first rollout batch changes nothing"


def prompt_tokens(total: int) -> int:
    """Tokens of a rollout of `total` that verl reserves for the prompt: an eighth, or 256, but at most half.

    >>> prompt_tokens(4096), prompt_tokens(1024), prompt_tokens(256)
    (512, 256, 128)
    """
    return min(max(total // 8, 256), total // 2)


def _part(option: Option) -> int:
    """The place of an option in the command, which groups options by their kind."""
    kinds = ("data", MODEL, ACTOR, "actor_rollout_ref.ref", ROLLOUT, CRITIC, "algorithm", "trainer")
    return next(i for i, kind in enumerate(kinds) if option.name.lstrip("+").startswith(f"{kind}."))


def _options(config: Config, machines: Machines) -> Iterator[Option]:
    """Overrides in the order of the command."""
    run, train, loss, limits = config.run, config.train, config.loss, config.protocol
    k = "train.optimizer_steps_per_rollout"
    yield Option("data.train_files", verl_files.here("train.parquet"), "data.train")
    yield Option("data.val_files", verl_files.here("dev.parquet"), "data.dev, eval.questions")
    prompt = prompt_tokens(limits.max_total_tokens)
    yield Option("data.max_prompt_length", prompt, "protocol.max_total_tokens: room for the question")
    yield Option("data.max_response_length", limits.max_total_tokens - prompt, "protocol.max_total_tokens: the rest")
    yield Option("data.trust_remote_code", config.model.trust_remote_code, "model.trust_remote_code: of the tokenizer")
    yield Option("data.seed", run.seed, "run.seed")
    yield Option(f"{MODEL}.path", model_path(config), "model.path")
    if config.model.lora_rank:
        yield Option(f"{MODEL}.lora_rank", config.model.lora_rank, "model.lora_rank")
        yield Option(f"{MODEL}.lora_alpha", config.model.lora_alpha, "model.lora_alpha")
        yield Option(f"{MODEL}.target_modules", "all-linear", "model.lora_rank")
        yield Option(f"{ROLLOUT}.load_format", "safetensors", "model.lora_rank: the server needs the base weights")
    values = setting_values(config)
    for setting, name in DIRECT.items():
        yield Option(name, values[setting], setting)

    yield Option(f"{ACTOR}.ppo_mini_batch_size", verl_mini_batch(train), f"{k}: questions in a step, times rollout.n")
    yield Option(f"{ACTOR}.ppo_epochs", 1, "every rollout is used once")
    yield Option(f"{ACTOR}.shuffle", train.minibatches == "shuffled", "train.minibatches")
    yield Option(f"{ACTOR}.use_dynamic_bsz", True, "train.micro_batch_tokens")
    yield Option(f"{ACTOR}.ppo_max_token_len_per_gpu", train.micro_batch_tokens, "train.micro_batch_tokens")
    yield Option(f"{ACTOR}.data_loader_seed", run.seed, "run.seed")
    yield Option(f"{ACTOR}.optim.lr_scheduler_type", "constant", "train.warmup")
    yield Option(f"{ACTOR}.optim.lr_warmup_steps", train.warmup, "train.warmup; rollout batches here too")
    if config.model.autocast == "none":
        for part in (ACTOR, "actor_rollout_ref.ref"):
            yield Option(f"+{part}.fsdp_config.mixed_precision.param_dtype", "fp32", "model.autocast")

    if loss.advantage == "gae":
        yield from _critic(config)
    else:
        estimator = "opo" if loss.baseline == "length" else "grpo"
        why = "loss.advantage, loss.baseline; a rollout alone in its group keeps its reward"
        yield Option("algorithm.adv_estimator", estimator, why)
        yield Option("algorithm.norm_adv_by_std_in_grpo", loss.advantage == "grpo", "loss.advantage")
        yield Option("algorithm.use_kl_in_reward", False, "the KL is in the loss")
    yield Option(f"{ACTOR}.use_kl_loss", loss.kl_coef > 0, "loss.kl_coef")
    yield Option(f"{ACTOR}.kl_loss_coef", loss.kl_coef, "loss.kl_coef")
    kl = {"k3": "low_var_kl", "k2": "mse"}[loss.kl_estimator]
    yield Option(f"{ACTOR}.kl_loss_type", kl, "loss.kl_estimator")
    double = _NO_DUAL_CLIP if loss.dual_clip is None else loss.dual_clip
    yield Option(f"{ACTOR}.clip_ratio_c", double, "loss.dual_clip" if loss.dual_clip else "loss.dual_clip: none")
    if loss.reduction == "seq-mean-token-sum-norm":
        yield Option(
            f"{ACTOR}.loss_scale_factor", limits.max_sampled_tokens, "protocol.max_turns, protocol.max_turn_tokens"
        )
    yield from _policy_loss(config)
    yield from methods_in("verl", config).options

    yield Option(f"{ROLLOUT}.name", "vllm", "the rollout server")
    yield Option(f"{ROLLOUT}.tensor_model_parallel_size", 1, "a server on each GPU")
    yield Option(f"{ROLLOUT}.gpu_memory_utilization", 0.6, "as in the published runs")
    yield Option(f"{ROLLOUT}.max_model_len", limits.max_total_tokens, "protocol.max_total_tokens")
    yield Option(f"{ROLLOUT}.top_k", config.sampling.top_k or -1, "sampling.top_k")
    yield Option(f"{ROLLOUT}.seed", run.seed, "run.seed; verl 0.8 has no such option: delete this line there")
    yield Option(f"{ROLLOUT}.agent.default_agent_loop", verl_files.AGENT, "the search agent")
    yield Option(
        f"{ROLLOUT}.agent.agent_loop_config_path", verl_files.here(verl_files.AGENT_LOOPS), "protocol, retrieval"
    )
    sampled = config.eval.samples > 1
    yield Option(f"{ROLLOUT}.val_kwargs.n", config.eval.samples, "eval.samples")
    yield Option(f"{ROLLOUT}.val_kwargs.do_sample", sampled, "eval.samples: one is greedy")
    yield Option(f"{ROLLOUT}.val_kwargs.temperature", config.sampling.temperature if sampled else 0, "eval.samples")

    yield Option("trainer.nnodes", machines.nodes, "--nodes")
    yield Option("trainer.n_gpus_per_node", machines.gpus, "--gpus")
    yield Option("trainer.total_training_steps", train.steps, "train.steps")
    yield Option("trainer.total_epochs", train.steps, "train.steps: no epoch has fewer than one")
    yield Option("trainer.val_before_train", config.eval.start, "eval.start")
    yield Option("trainer.test_freq", config.eval.every or train.steps, "eval.every")
    yield Option("trainer.save_freq", config.checkpoint.every or train.steps, "checkpoint.every")
    yield Option("trainer.default_local_dir", verl_files.here(run.dir, run.name), "run.dir, run.name")
    yield Option("trainer.project_name", config.track.wandb or "holdfast", "track.wandb")
    yield Option("trainer.experiment_name", run.name, "run.name")
    yield Option("trainer.logger", ["console", "file", *trackers(config)], "track.wandb, track.tensorboard")


def _critic(config: Config) -> Iterator[Option]:
    """PPO: GAE, the KL in the reward, and verl's critic, which takes mini-batches as the actor does."""
    critic, train, model, kl = config.critic, config.train, config.model, config.reward.kl
    yield Option("algorithm.adv_estimator", "gae", "loss.advantage")
    yield Option("algorithm.gamma", critic.gamma, "critic.gamma")
    yield Option("algorithm.lam", critic.lam, "critic.lam")
    yield Option("algorithm.use_kl_in_reward", kl > 0, "reward.kl")
    yield Option("algorithm.kl_penalty", "kl", "reward.kl: old minus starting log-prob")
    yield Option("algorithm.kl_ctrl.kl_coef", kl, "reward.kl")
    yield Option(f"{CRITIC}.model.path", model_path(config), "model.path: a copy of the start")
    yield Option(f"{CRITIC}.model.trust_remote_code", model.trust_remote_code, "model.trust_remote_code")
    yield Option(f"{CRITIC}.model.enable_gradient_checkpointing", model.gradient_checkpointing,
                 "model.gradient_checkpointing")  # fmt: skip
    if model.lora_rank:
        yield Option(f"{CRITIC}.model.lora_rank", model.lora_rank, "model.lora_rank")
        yield Option(f"{CRITIC}.model.lora_alpha", model.lora_alpha, "model.lora_alpha")
    if model.autocast == "none":
        yield Option(f"+{CRITIC}.fsdp.mixed_precision.param_dtype", "fp32", "model.autocast")
    yield Option(f"{CRITIC}.optim.lr", critic.lr, "critic.lr")
    yield Option(f"{CRITIC}.optim.lr_warmup_steps", critic.warmup, "critic.warmup; rollout batches here too")
    yield Option(f"{CRITIC}.optim.weight_decay", train.weight_decay, "train.weight_decay")
    yield Option(f"{CRITIC}.optim.clip_grad", train.grad_clip, "train.grad_clip")
    yield Option(f"{CRITIC}.cliprange_value", critic.clip or _NO_VALUE_CLIP, "critic.clip")
    yield Option(f"{CRITIC}.loss_agg_mode", "token-mean", "the loss of values is a mean over tokens")
    yield Option(f"{CRITIC}.ppo_max_token_len_per_gpu", train.micro_batch_tokens, "train.micro_batch_tokens")
    yield Option(f"{CRITIC}.data_loader_seed", config.run.seed, "run.seed")


def _policy_loss(config: Config) -> Iterator[Option]:
    """The loss: one of verl, inside one of holdfast."""
    penalty = config.loss.penalty
    prefix = f"{ACTOR}.policy_loss"
    mode = loss_name(penalty)
    assert mode is not None  # `_problems` has refused it
    yield Option(f"{prefix}._target_", "holdfast.adapters.verl.HoldfastPolicyLossConfig", "fields of our own")
    yield Option(f"{prefix}.loss_mode", mode, "loss.penalty.name, loss.penalty.gate")
    yield Option(f"+{prefix}.holdfast_version", __version__, "every machine must have this one")
    base = "gspo" if config.loss.ratio == "sequence" else SURROGATES[config.loss.surrogate].verl
    yield Option(f"+{prefix}.base_loss_mode", base, "loss.ratio, loss.surrogate")
    correction = verl_files.Reference("algorithm.rollout_correction")
    yield Option(f"+{prefix}.rollout_correction", correction, "a loss must know what is done to its mask")
    uses_answer = penalty.term is not None and penalty.term.uses_answer_mask
    if uses_answer:
        yield Option(f"+{prefix}.penalty_answer", ANSWER_SPAN, "the answer, as holdfast's agent loop reports it")
    for key in LOSSES[mode].settings:
        if (value := getattr(penalty, key)) not in (None, {}) and (uses_answer or not key.startswith("answer_")):
            yield Option(f"+{prefix}.penalty_{key}", value, f"loss.penalty.{key}")
