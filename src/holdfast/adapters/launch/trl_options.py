"""What a recipe becomes in TRL: arguments of `GRPOConfig`, and what TRL cannot do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from holdfast.adapters.launch.recipe import (
    ANYWHERE,
    Code,
    Fates,
    Noted,
    Option,
    Recipe,
    Refused,
    Translation,
    absent,
    local_notes,
    methods,
    same,
    schedule_problem,
    truncation,
)
from holdfast.base.section import Refusal
from holdfast.hosts.trl import TRL
from holdfast.methods.registry import NTHR, Method, OffPolicyMask, SamplerWeights
from holdfast.recipe import Config
from holdfast.recipe.sections import Reward

_START_FIRST = (
    "First make the model with `holdfast warm-start RECIPE`. Then set model.path to the folder that it prints, and "
    "warm_start.steps = 0"
)
_WEIGHTS = SamplerWeights.table()
_K = "train.optimizer_steps_per_rollout"
_SIZE = "train.questions, train.group_size, train.micro_batch_tokens, protocol.max_total_tokens"
_LOSS_TYPES = {
    "token-mean": "dapo",
    "seq-mean-token-mean": "grpo",
    "seq-mean-token-sum-norm": "dr_grpo",
    "seq-mean-token-sum": "luspo",
}
_SURROGATES = {"clip": "", "cispo": "cispo"}
"""`loss.surrogate` -> TRL's `loss_type`; empty: that of the reduction."""


class Division(NamedTuple):
    """How TRL divides a rollout batch: K = steps_per_generation × num_iterations / gradient_accumulation_steps, with
    num_iterations = 1."""

    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    steps_per_generation: int


def division(recipe: Recipe) -> Division:
    """K optimizer steps of equal size, in forward passes that hold `train.micro_batch_tokens` full-length rows.

    >>> from holdfast.adapters.launch import Machines
    >>> from holdfast.tasks.opening import open_tasks
    >>> config = Config.model_validate({"train": {"questions": 512}})
    >>> tuple(division(Recipe(config, Machines(gpus=8), open_tasks(config))))
    (4, 8, 80)
    """
    train = recipe.config.train
    rows = train.questions * train.group_size // (train.optimizer_steps_per_rollout * recipe.machines.total)
    fit = max(1, train.micro_batch_tokens // recipe.config.protocol.max_total_tokens)
    per_device = max(size for size in range(1, min(fit, rows) + 1) if rows % size == 0)
    return Division(per_device, rows // per_device, rows // per_device * train.optimizer_steps_per_rollout)


def correct_above(reward: Reward) -> float | None:
    """The reward above which a rollout is correct: halfway between the best incorrect and the worst correct one.

    None if the two overlap, or may overlap: values of a custom part are not known. A correct answer has an F1 of 1.
    """
    if any(reward.custom.values()):
        return None
    others = [reward.format, reward.retrieval]
    best_incorrect = sum(max(weight, 0.0) for weight in [reward.f1, *others])
    worst_correct = reward.em + reward.f1 + sum(min(weight, 0.0) for weight in [*others, reward.thrift])
    return (best_incorrect + worst_correct) / 2 if worst_correct > best_incorrect else None


# ---- options, in the order of the script


def options(recipe: Recipe) -> Iterator[Option]:
    """Arguments of `GRPOConfig`."""
    yield from _run(recipe)
    yield from _steps(recipe)
    yield from _loss(recipe)
    yield from _rollouts(recipe)
    yield from _records(recipe)


def _run(recipe: Recipe) -> Iterator[Option]:
    config = recipe.config
    yield Option("output_dir", str(Path(config.run.dir) / config.run.name), "run.dir, run.name")
    yield from same(TRL, recipe, "run.name", "run.seed")
    yield Option("data_seed", config.run.seed, "run.seed")
    yield Option("use_cpu", config.run.device == "cpu", "run.device")
    yield Option("bf16", _bf16(config), "model.autocast, run.device")
    yield from same(TRL, recipe, "model.trust_remote_code")
    if config.model.chat_template_kwargs:
        yield from same(TRL, recipe, "model.chat_template_kwargs")
    yield Option("disable_dropout", True, "log-probs before and after a step must differ only because of the step")


def _bf16(config: Config) -> bool | Code:
    autocast, device = config.model.autocast, config.run.device
    if autocast == "auto" and device == "auto":
        return Code("torch.cuda.is_available()")
    return autocast == "bf16" or (autocast == "auto" and device == "cuda")


def _steps(recipe: Recipe) -> Iterator[Option]:
    train, cut = recipe.config.train, division(recipe)
    steps = train.optimizer_steps_per_rollout
    yield from same(TRL, recipe, "train.group_size")
    yield Option("per_device_train_batch_size", cut.per_device_train_batch_size, _SIZE)
    yield Option("gradient_accumulation_steps", cut.gradient_accumulation_steps, f"the rollouts of a step, {_K}")
    yield Option("steps_per_generation", cut.steps_per_generation, f"{_K} times the line above")
    yield Option("num_iterations", 1, "every rollout is used once")
    yield Option("max_steps", train.steps * steps, f"train.steps, {_K}")
    yield from same(TRL, recipe, "train.lr")
    yield Option("lr_scheduler_type", "constant_with_warmup", "train.warmup")
    yield Option("warmup_steps", train.warmup * steps, f"train.warmup, {_K}")
    yield from same(TRL, recipe, "train.weight_decay", "train.grad_clip")


def _loss(recipe: Recipe) -> Iterator[Option]:
    loss = recipe.config.loss
    kind = _SURROGATES[loss.surrogate] or _LOSS_TYPES[loss.reduction]
    yield Option("loss_type", kind, "loss.reduction, loss.surrogate")
    yield Option("scale_rewards", "group" if loss.advantage == "grpo" else "none", "loss.advantage")
    yield from same(TRL, recipe, "loss.ratio", "loss.clip_low")
    high = 1 + loss.clip_high if loss.surrogate == "cispo" else loss.clip_high  # for CISPO the largest weight itself
    yield Option("epsilon_high", high, "loss.clip_high")
    yield from same(TRL, recipe, "loss.dual_clip")
    yield Option("beta", loss.kl_coef, "loss.kl_coef, loss.kl_estimator")
    yield Option("use_bias_correction_kl", False, "the recipe's KL is not multiplied by the ratio")
    yield from same(TRL, recipe, "loss.entropy_coef")


def _rollouts(recipe: Recipe) -> Iterator[Option]:
    config, protocol = recipe.config, recipe.config.protocol
    yield from same(TRL, recipe, "sampling.temperature", "sampling.top_p", "sampling.top_k")
    # The divisor of dr_grpo in TRL; for other losses a bound, which the protocol keeps by itself.
    normed = config.loss.reduction == "seq-mean-token-sum-norm"
    longest = protocol.max_sampled_tokens if normed else protocol.max_total_tokens
    yield Option("max_completion_length", longest, "protocol.max_total_tokens, loss.reduction")
    if not config.loss.methods.sampler_weights.on:
        why = "True: vLLM on the same GPUs does the rollouts (pip install vllm); use it above 1B"
        yield Option("use_vllm", False, why)
        yield Option("vllm_importance_sampling_correction", False, f"{_WEIGHTS}: off")
    yield from methods(recipe, method).options
    yield from same(TRL, recipe, "protocol.max_total_tokens")


def _records(recipe: Recipe) -> Iterator[Option]:
    """What is evaluated, saved and logged, and how often."""
    config, steps = recipe.config, recipe.config.train.optimizer_steps_per_rollout
    yield Option("eval_strategy", "steps", "eval.every")
    yield Option("eval_steps", (config.eval.every or config.train.steps) * steps, f"eval.every, {_K}")
    yield from same(TRL, recipe, "eval.start", "eval.samples")
    rows = config.eval.samples * max(1, 16 // config.eval.samples)
    yield Option("per_device_eval_batch_size", rows, "eval.samples")
    yield Option("save_strategy", "steps", "checkpoint.every")
    yield Option("save_steps", (config.checkpoint.every or config.train.steps) * steps, f"checkpoint.every, {_K}")
    yield from same(TRL, recipe, "checkpoint.keep")
    yield Option("logging_steps", steps, f"a line for each rollout batch, {_K}")
    yield Option("report_to", recipe.trackers or "none", "track.wandb, track.tensorboard")
    yield Option("log_completions", config.track.trajectories > 0, "track.trajectories")
    yield Option("num_completions_to_print", config.track.trajectories or None, "track.trajectories")


# ---- methods

_ABSENT: Mapping[str, str] = {
    "score_centering": "TRL does not have it, but holdfast's sampling mask removes the same drift there: set "
    "sampling.mask_logprobs = true instead",
    "clip_cov": "TRL does not have it",
    "ipo": "TRL bounds ratios, not probabilities",
}


def method(method: Method, config: Config) -> Translation:
    """A method in TRL."""
    match method:
        case OffPolicyMask():
            setting = f"{method.table()}.threshold"
            return Translation(
                options=(Option("off_policy_mask_threshold", method.threshold, setting),),
                notes=(f"TRL measures {setting} from the sampler's log-probs, where it has them",),
            )
        case NTHR():
            return Translation(notes=("TRL computes NTHR's hidden states in a separate forward pass",))
        case SamplerWeights():
            return _importance_weights(method)
        case _:
            return absent(method, _ABSENT)


def _importance_weights(method: SamplerWeights) -> Translation:
    """The correction for rollouts of vLLM."""
    options = (
        Option("use_vllm", True, f"{_WEIGHTS}: TRL computes weights only for rollouts of vLLM (pip install vllm)"),
        Option("vllm_importance_sampling_correction", True, f"{_WEIGHTS}.on"),
        Option("vllm_importance_sampling_mode", f"{method.level}_{method.keep}", f"{_WEIGHTS}.level, {_WEIGHTS}.keep"),
        Option("vllm_importance_sampling_clip_min", method.low or None, f"{_WEIGHTS}.low"),
        Option("vllm_importance_sampling_clip_max", method.high, f"{_WEIGHTS}.high"),
    )
    problems = []
    if method.level == "action":
        instead = "The nearest are 'token' and 'sequence'"
        problems.append(Refusal({f"{_WEIGHTS}.level": "action"}, "TRL's loss does not know actions", instead))
    if method.aggregate == "mean":
        why = "TRL's weight of a sequence is the product of its ratios"
        problems.append(Refusal({f"{_WEIGHTS}.aggregate": "mean"}, why, "Leave it at 'product'"))
    if method.keep == "reject":
        why, instead = "TRL also weights the tokens that it keeps", "The nearest is 'mask', which does so too"
        problems.append(Refusal({f"{_WEIGHTS}.keep": "reject"}, why, instead))
    note = "TRL computes these weights only for rollouts of vLLM, so the script sets use_vllm"
    return Translation(options, tuple(problems), (note,))


# ---- what TRL does not do, or does differently

_OTHER_WEIGHTS = Noted("in TRL rollouts come from the weights that are trained")
_SEPARATE = Noted("a warm start is a separate stage before training")
_TINY = Noted("it sets the size of the tiny model, which is not made here")

FATES: Fates = {
    "faults.sampler_8_bits": _OTHER_WEIGHTS,
    "loss.old_policy": Noted("TRL's GRPOTrainer recomputes the old policy; AsyncGRPOTrainer compares with the sampler"),
    "train.staleness": _OTHER_WEIGHTS,
    "train.minibatches": Noted("TRL draws the rollouts of each optimizer step at random"),
    "world.model": _TINY,
    "world.scripts": _SEPARATE,
    "warm_start": _SEPARATE,
    "warm_start.steps": Refused(f"TRL's trainer has no warm start. {_START_FIRST}"),
    "loss.baseline": Refused("TRL gives every rollout of a group the same weight. Leave it at 'mean', or use verl"),
    **ANYWHERE,
}


def problems(recipe: Recipe) -> Iterator[Refusal | str]:
    """Combinations of settings that TRL cannot do."""
    config, loss, machines = recipe.config, recipe.config.loss, recipe.machines
    yield from methods(recipe, method).problems
    if loss.surrogate not in _SURROGATES:
        yield recipe.refusal("loss.surrogate", "TRL's GRPOTrainer does not have it", "Use verl, or `holdfast train`")
    if loss.surrogate == "cispo" and loss.clip_low != 1:
        yield recipe.refusal(
            "loss.clip_low loss.surrogate",
            "TRL's weights have no lower bound",
            "Set loss.clip_low = 1.0, which switches it off",
        )
    if loss.surrogate == "cispo" and loss.reduction != "token-mean":
        yield recipe.refusal(
            "loss.reduction loss.surrogate", "TRL's mean is over tokens", "Set loss.reduction = 'token-mean'"
        )
    if loss.ratio == "action":
        yield recipe.refusal("loss.ratio", "TRL's loss does not know actions", "The nearest are 'token' and 'sequence'")
    if config.model.is_tiny and not config.warm_start.steps:
        yield recipe.refusal("model.path", "TRL loads a model from a folder or the hub", _START_FIRST)
    if loss.advantage == "gae":
        of_critic = [name for name in recipe.changed if name.startswith("critic.") or name == "reward.kl"]
        yield recipe.refusal(
            " ".join(["loss.advantage", *of_critic]),
            "TRL's GRPOTrainer, which runs agents, has no critic, and the PPOTrainer of older TRL scores completions "
            "without tools by a reward model",
            "Use verl, or `holdfast train`",
        )
    if loss.advantage == "reinforce":
        yield recipe.refusal(
            "loss.advantage",
            "TRL subtracts the group's mean from every reward",
            "The nearest is 'dr_grpo', which does not divide by the standard deviation",
        )
    if loss.reduction == "token-sum":
        yield recipe.refusal("loss.reduction", "TRL has no plain sum over tokens", "The nearest is 'token-mean'")
    if loss.reduction == "seq-mean-token-sum" and loss.ratio != "sequence":
        yield recipe.refusal(
            "loss.reduction loss.ratio",
            "TRL has this mean only for ratios of sequences",
            "Set loss.ratio = 'sequence', or the reduction to 'seq-mean-token-sum-norm', the same divided by a "
            "constant",
        )
    if config.sampling.mask_logprobs and loss.kl_coef and config.train.optimizer_steps_per_rollout == 1:
        yield recipe.refusal(
            "sampling.mask_logprobs loss.kl_coef train.optimizer_steps_per_rollout",
            "TRL computes the log-probs of the reference first, before the mask is known",
            "Take 2 steps or more, or set loss.kl_coef = 0",
        )
    if loss.kl_coef and loss.kl_estimator != "k3":
        yield recipe.refusal("loss.kl_estimator", "TRL estimates the KL with 'k3' only", "Set loss.kl_estimator = 'k3'")
    if loss.dual_clip is not None and loss.dual_clip < 1 + loss.clip_high:
        yield recipe.refusal(
            "loss.dual_clip loss.clip_high",
            "TRL's delta cuts the ratio of positive tokens too when it is below 1 + clip_high",
            f"Set loss.dual_clip to {1 + loss.clip_high:g} or more",
        )
    if getattr(loss.penalty.term, "preserve", None) == "correct" and correct_above(config.reward) is None:
        yield Refusal(
            {"loss.penalty.preserve": "correct"},
            "TRL sees only the total reward of a rollout, and with these reward weights an incorrect rollout can "
            "earn as much as a correct one",
            "Raise reward.em above the sum of the others",
        )
    unequal = list(_schedule_problem(recipe))
    yield from unequal
    if not unequal and loss.methods.nthr.on and config.train.questions % machines.total:
        yield recipe.refusal(
            "loss.methods.nthr.on train.questions",
            f"NTHR compares the rollouts of a question, and on {machines} TRL would give a GPU parts of groups",
            f"Set train.questions to a multiple of {machines.total}",
        )


def _schedule_problem(recipe: Recipe) -> Iterator[Refusal]:
    questions, size = recipe.config.train.questions, recipe.config.train.group_size

    def fits(questions: int, steps: int) -> bool:
        return questions * size % (steps * recipe.machines.total) == 0

    why = (
        f"TRL needs the same number of rollouts in every step and on every GPU, but {questions} × {size} rollouts "
        "cannot be divided like that"
    )
    return schedule_problem(recipe, fits, why)


def differences(recipe: Recipe) -> Iterator[str]:
    """What TRL does differently."""
    config = recipe.config
    yield from truncation(config, "Set sampling.mask_logprobs = true with sampling.top_k = 512, or")
    yield "TRL keeps the newest checkpoints, but not the best on dev"
    yield "TRL evaluates with samples at the training temperature, and does not report greedy scores"
    yield from methods(recipe, method).notes
    if config.loss.reduction == "token-mean":
        yield "TRL divides a step's loss by the mean token count of the rollout batch's steps, not by the step's own"
    elif config.loss.entropy_coef:
        yield "TRL's entropy is a mean over tokens under every loss.reduction"
    if correct_above(config.reward) is None:
        yield "these weights let correct and incorrect rollouts overlap: the log counts rewards above 0.5 as correct"
    yield from local_notes(recipe)
