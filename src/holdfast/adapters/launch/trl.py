"""A recipe for TRL's GRPOTrainer, 1.15 and newer, below 2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.adapters.launch import trl_files
from holdfast.adapters.launch.plan import (
    CRITIC,
    LOCAL_ONLY,
    Machines,
    Plan,
    changed,
    local_notes,
    methods_in,
    noted,
    refuse,
    section,
    trackers,
    truncation,
)
from holdfast.adapters.launch.schedule import trl_schedule, trl_schedule_problem
from holdfast.methods.method import Option
from holdfast.methods.surrogates import SURROGATES
from holdfast.recipe import Config

_START_FIRST = (
    "first make the model with `holdfast warm-start RECIPE`. Then set model.path to the folder that it prints, and "
    "warm_start.steps = 0"
)

# The generated script reads these from the recipe in its folder.
RECIPE = frozenset([*section("data"), *section("retrieval"), *section("protocol"), *section("world")])

# These are other arguments in the script.
SCRIPT: Mapping[str, str] = {
    "run.threads": "OMP_NUM_THREADS in run.sh",
    "run.code": "PYTHONPATH in run.sh",
    "model.path": "model",
    "model.lora_rank": "peft_config",
    "model.lora_alpha": "peft_config",
    "model.chat_template": "SearchRollouts",
    "run.max_failed_fraction": "SearchRollouts",
    "faults.search_failure_rate": "SearchRollouts",
    **dict.fromkeys(section("reward", but=("kl",)), "reward_functions"),
    **dict.fromkeys(section("loss.penalty"), "with_penalties"),
    "train.displacement_every": "with_penalties",
    "train.displacement_rows": "with_penalties",
    "sampling.mask_logprobs": "with_penalties",
    "eval.questions": "eval_dataset",
    "track.wandb": "WANDB_PROJECT in run.sh",
    "guard.codes": "Monitoring",
    "guard.action": "Monitoring",
}

NOTED: Mapping[str, str] = {
    **dict.fromkeys(
        ("faults.stale_batches", "faults.sampler_8_bits"), "in TRL rollouts come from the weights that are trained"
    ),
    **dict.fromkeys(
        ("train.per_sample_every", "train.per_sample_questions"),
        "the displacement of each sample by itself is measured by `holdfast train` only",
    ),
    "train.minibatches": "TRL draws the rollouts of each optimizer step at random",
    **dict.fromkeys(section("world.model"), "it sets the size of the tiny model, which is not made here"),
    **dict.fromkeys(
        [*section("world.scripts"), *section("warm_start", but=("steps",))],
        "a warm start is a separate stage before training",
    ),
}

REFUSED: Mapping[str, str] = {
    "warm_start.steps": f"TRL's trainer has no warm start: {_START_FIRST}",
    "loss.baseline": "TRL gives every rollout of a group the same weight. Leave it at 'mean', or use verl",
    **LOCAL_ONLY,
}

_LOSS_TYPES = {
    "token-mean": "dapo",
    "seq-mean-token-mean": "grpo",
    "seq-mean-token-sum-norm": "dr_grpo",
    "seq-mean-token-sum": "luspo",
}


def translate(config: Config, machines: Machines) -> Plan:
    """The plan for TRL. Raises one `ConfigError` for all that cannot be carried over."""
    refuse("TRL", _problems(config, machines))
    options = tuple(_options(config, machines))
    return Plan(
        host="trl",
        options=options,
        files=trl_files.files(config, options, machines),
        data=trl_files.data_files(config),
        write_data=partial(trl_files.write_data, config),
        schedule=_schedule(config, machines),
        first=(f"pip install 'holdfast-rl[{','.join(_extras(config))}]'", "holdfast doctor trl"),
        notes=(*noted(config, NOTED), *_differences(config)),
    )


def _extras(config: Config) -> Iterator[str]:
    yield from ("train", "trl")
    if config.model.lora_rank:
        yield "peft"
    if config.track.wandb or config.track.tensorboard:
        yield "track"


def _differences(config: Config) -> Iterator[str]:
    yield from truncation(config, "Set sampling.mask_logprobs = true with sampling.top_k = 512, or")
    yield "TRL keeps the newest checkpoints, but not the best on dev"
    yield "TRL evaluates with samples at the training temperature, and does not report greedy scores"
    yield from methods_in("trl", config).notes
    if config.loss.reduction == "token-mean":
        yield "TRL divides a step's loss by the mean token count of the rollout batch's steps, not by the step's own"
    elif config.loss.entropy_coef:
        yield "TRL's entropy is a mean over tokens under every loss.reduction"
    if trl_files.correct_above(config.reward) is None:
        yield "these weights let correct and incorrect rollouts overlap: the log counts rewards above 0.5 as correct"
    yield from local_notes(config)


def _schedule(config: Config, machines: Machines) -> str:
    cut = trl_schedule(config, machines)
    return (
        f"{config.train.optimizer_steps_per_rollout} = steps_per_generation {cut.steps_per_generation} × "
        f"num_iterations 1 / gradient_accumulation_steps {cut.gradient_accumulation_steps}"
    )


def _problems(config: Config, machines: Machines) -> Iterator[str]:
    loss = config.loss
    yield from noted(config, REFUSED)
    yield from methods_in("trl", config).problems
    surrogate = SURROGATES[loss.surrogate]
    if surrogate.trl is None:
        yield f"loss.surrogate = {loss.surrogate!r}: TRL's GRPOTrainer does not have it. Use verl, or `holdfast train`"
    yield from surrogate.trl_problems(loss)
    if loss.ratio == "action":
        yield "loss.ratio = 'action': TRL's loss does not know actions. The nearest are 'token' and 'sequence'"
    if config.model.path == "tiny" and not config.warm_start.steps:
        yield f"model.path = 'tiny': TRL loads a model from a folder or the hub; {_START_FIRST}"
    if loss.advantage == "gae":
        with_it = ", ".join(name for name in changed(config) if name in CRITIC)
        yield (
            f"loss.advantage = 'gae'{with_it and f' (with {with_it})'}: TRL's GRPOTrainer, which runs agents, has no "
            "critic, and the PPOTrainer of older TRL scores completions without tools by a reward model. Use verl, or "
            "`holdfast train`"
        )
    if loss.advantage == "reinforce":
        yield (
            "loss.advantage = 'reinforce': TRL subtracts the group's mean from every reward. The nearest is 'dr_grpo', "
            "which does not divide by the deviation"
        )
    if loss.reduction == "token-sum":
        yield "loss.reduction = 'token-sum': TRL has no plain sum over tokens; the nearest is 'token-mean'"
    if loss.reduction == "seq-mean-token-sum" and loss.ratio != "sequence":
        yield (
            "loss.reduction = 'seq-mean-token-sum' with loss.ratio = 'token': TRL has this mean only for ratios of "
            "sequences. Set loss.ratio = 'sequence', or the reduction to 'seq-mean-token-sum-norm', the same divided "
            "by a constant"
        )
    if config.sampling.mask_logprobs and loss.kl_coef and config.train.optimizer_steps_per_rollout == 1:
        yield (
            "sampling.mask_logprobs = true with loss.kl_coef above 0 and train.optimizer_steps_per_rollout = 1: TRL "
            "computes the log-probs of the reference first, before the mask is known. Take 2 steps or more, or set "
            "loss.kl_coef = 0"
        )
    if loss.kl_coef and loss.kl_estimator != "k3":
        yield f"loss.kl_estimator = {loss.kl_estimator!r}: TRL estimates the KL with 'k3' only"
    if loss.dual_clip is not None and loss.dual_clip < 1 + loss.clip_high:
        yield (
            f"loss.dual_clip = {loss.dual_clip} with loss.clip_high = {loss.clip_high}: TRL's delta cuts the ratio of "
            f"positive tokens too when it is below 1 + clip_high. Set loss.dual_clip to {1 + loss.clip_high:g} or more"
        )
    if getattr(loss.penalty.term, "preserve", None) == "correct" and trl_files.correct_above(config.reward) is None:
        yield (
            "loss.penalty.preserve = 'correct' with these reward weights: TRL sees only the total reward of a "
            "rollout, and with these weights an incorrect one can have as much as a correct one. Raise reward.em "
            "above the sum of the others"
        )
    if problem := trl_schedule_problem(config.train, machines):
        yield problem
    elif loss.methods.nthr.on and config.train.questions % machines.total:
        yield (
            f"loss.methods.nthr.on = true with train.questions = {config.train.questions} on {machines}: NTHR compares "
            "the rollouts of a question, and TRL would give a GPU parts of groups. Set train.questions to a multiple "
            f"of {machines.total}"
        )


def _options(config: Config, machines: Machines) -> Iterator[Option]:
    """Arguments of `GRPOConfig`, in the order of the script."""
    run, model, train, loss = config.run, config.model, config.train, config.loss
    steps = train.optimizer_steps_per_rollout
    cut = trl_schedule(config, machines)
    last = train.steps * steps
    k = "train.optimizer_steps_per_rollout"
    yield Option("output_dir", str(Path(run.dir) / run.name), "run.dir, run.name")
    yield Option("run_name", run.name, "run.name")
    yield Option("seed", run.seed, "run.seed")
    yield Option("data_seed", run.seed, "run.seed")
    yield Option("use_cpu", run.device == "cpu", "run.device")
    yield Option("bf16", _bf16(config), "model.autocast, run.device")
    yield Option("gradient_checkpointing", model.gradient_checkpointing, "model.gradient_checkpointing")
    yield Option("trust_remote_code", model.trust_remote_code, "model.trust_remote_code")
    yield Option("disable_dropout", True, "log-probs before and after a step must differ by the step alone")

    yield Option("num_generations", train.group_size, "train.group_size")
    size = "train.questions, train.group_size, train.micro_batch_tokens, protocol.max_total_tokens"
    yield Option("per_device_train_batch_size", cut.per_device_train_batch_size, size)
    yield Option("gradient_accumulation_steps", cut.gradient_accumulation_steps, f"the rollouts of a step, {k}")
    yield Option("steps_per_generation", cut.steps_per_generation, f"{k} times the line above")
    yield Option("num_iterations", 1, "every rollout is used once")
    yield Option("max_steps", last, f"train.steps, {k}")

    yield Option("learning_rate", train.lr, "train.lr")
    yield Option("lr_scheduler_type", "constant_with_warmup", "train.warmup")
    yield Option("warmup_steps", train.warmup * steps, f"train.warmup, {k}")
    yield Option("weight_decay", train.weight_decay, "train.weight_decay")
    yield Option("max_grad_norm", train.grad_clip, "train.grad_clip")

    kind = SURROGATES[loss.surrogate].trl or _LOSS_TYPES[loss.reduction]
    yield Option("loss_type", kind, "loss.reduction, loss.surrogate")
    yield Option("scale_rewards", "group" if loss.advantage == "grpo" else "none", "loss.advantage")
    yield Option("importance_sampling_level", loss.ratio, "loss.ratio")
    yield Option("epsilon", loss.clip_low, "loss.clip_low")
    high = 1 + loss.clip_high if loss.surrogate == "cispo" else loss.clip_high  # there the largest weight itself
    yield Option("epsilon_high", high, "loss.clip_high")
    yield Option("delta", loss.dual_clip, "loss.dual_clip")
    yield Option("beta", loss.kl_coef, "loss.kl_coef, loss.kl_estimator")
    yield Option("use_bias_correction_kl", False, "the recipe's KL is not multiplied by the ratio")
    yield Option("entropy_coef", loss.entropy_coef, "loss.entropy_coef")

    yield Option("temperature", config.sampling.temperature, "sampling.temperature")
    yield Option("top_p", config.sampling.top_p, "sampling.top_p")
    yield Option("top_k", config.sampling.top_k, "sampling.top_k")
    yield Option("max_completion_length", _longest(config), "protocol.max_total_tokens, loss.reduction")

    of_methods = methods_in("trl", config).options
    if not any(option.name == "use_vllm" for option in of_methods):
        why = "True: vLLM on the same GPUs does the rollouts (pip install vllm); use it above 1B"
        yield Option("use_vllm", False, why)
        yield Option("vllm_importance_sampling_correction", False, "loss.methods.sampler_weights: off")
    yield from of_methods
    yield Option("vllm_max_model_length", config.protocol.max_total_tokens, "protocol.max_total_tokens")

    every = config.eval.every * steps or last
    yield Option("eval_strategy", "steps", "eval.every")
    yield Option("eval_steps", every, f"eval.every, {k}")
    yield Option("eval_on_start", config.eval.start, "eval.start")
    yield Option("num_generations_eval", config.eval.samples, "eval.samples")
    rows = config.eval.samples * max(1, 16 // config.eval.samples)
    yield Option("per_device_eval_batch_size", rows, "eval.samples")

    yield Option("save_strategy", "steps", "checkpoint.every")
    yield Option("save_steps", config.checkpoint.every * steps or last, f"checkpoint.every, {k}")
    yield Option("save_total_limit", config.checkpoint.keep, "checkpoint.keep")

    track = config.track
    yield Option("logging_steps", steps, f"a line for each rollout batch, {k}")
    yield Option("report_to", trackers(config) or "none", "track.wandb, track.tensorboard")
    yield Option("log_completions", track.trajectories > 0, "track.trajectories")
    yield Option("num_completions_to_print", track.trajectories or None, "track.trajectories")


def _bf16(config: Config) -> Any:
    if config.model.autocast == "auto" and config.run.device == "auto":
        return trl_files.Code("torch.cuda.is_available()")
    return config.model.autocast == "bf16" or (config.model.autocast == "auto" and config.run.device == "cuda")


def _longest(config: Config) -> int:
    """The divisor of dr_grpo in TRL; for other losses a bound, which the protocol keeps by itself."""
    limits = config.protocol
    normed = config.loss.reduction == "seq-mean-token-sum-norm"
    return limits.max_sampled_tokens if normed else limits.max_total_tokens
