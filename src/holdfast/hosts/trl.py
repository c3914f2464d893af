"""TRL's GRPOTrainer, and what is built on it: Unsloth, ms-swift."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.hosts.advice import COEF
from holdfast.hosts.host import (
    ANYWHERE,
    Code,
    Host,
    Launch,
    Logged,
    Name,
    Noted,
    Option,
    Refused,
    Setting,
    Span,
    Translation,
)

SERIES = (
    Name("reward", "reward/mean"),
    Name("reward_std", "reward/std"),
    Name("frac_reward_zero_std", "rollout/mixed_group_fraction", "1 − x"),
    Name("entropy", "entropy/mean"),
    Name("kl", "kl/reference"),
    Name("grad_norm", "grad/norm"),
    Name("clip_ratio/region_mean", "clip/fraction"),
    Name("sampling/sampling_logp_difference/mean", "sampler/logprob_abs_gap"),
    Name("sampling/importance_sampling_ratio/mean", "sampler/importance_ratio"),
    Name("completions/mean_length", "rollout/length"),
    Name("completions/min_length", "rollout/min_length"),
    Name("completions/max_length", "rollout/max_length"),
    Name("completions/clipped_ratio", "rollout/truncated_fraction"),
    Name("tools/call_frequency", "rollout/searches", differs="calls of any tool"),
    Name("tools/failure_frequency", "rollout/failed_call_fraction", differs="malformed calls too"),
    Name("learning_rate", "lr"),
    Name("step_time", "time/step_s"),
)
"""`holdfast/x`, from our adapter, is x; `eval_x` is read as `eval/` and the name of x."""

GROUP_STD = Name("reward_std", "reward/group_std")
"""TRL before 0.27 logs the mean of the groups' standard deviations; later versions log that of the rollout batch."""
ASYNC_LOGGED = ("clip_ratio/region_mean", "entropy", "reward", "sample/staleness_mean")
"""What AsyncGRPOTrainer (1.16) has for its log by the end of a step, and rules read."""


def _variant(series: Mapping[str, Logged], settings: Mapping[str, object]) -> str:
    """Whether AsyncGRPOTrainer wrote the log: it samples from a queue, and says how old that is."""
    is_async = any(
        name.startswith(("sample/staleness", "sample/rollout_queue", "perf/rollout_wait")) for name in series
    )
    return "trl-async" if is_async else ""


def _doubtful(series: Mapping[str, Logged], settings: Mapping[str, object]) -> dict[str, str]:
    if not _are_not_cut(series):
        return {}
    why = "it is 1 although these rollouts did not reach a limit, because they do not end with an end-of-text token"
    return {"completions/clipped_ratio": why}


def _are_not_cut(series: Mapping[str, Logged]) -> bool:
    """Whether rollouts that all count as cut differ in length; without logged lengths, whether all always count."""
    clipped = series.get("completions/clipped_ratio")
    shortest, longest = series.get("completions/min_length"), series.get("completions/max_length")
    if clipped is None:
        return False
    if shortest is None or longest is None:
        return bool((clipped.values == 1).all())
    steps = reduce(np.intersect1d, (clipped.steps, shortest.steps, longest.steps))
    share, low, high = (part.values[np.searchsorted(part.steps, steps)] for part in (clipped, shortest, longest))
    return bool(((share == 1) & (low < high)).any())


def _by_version(series: Mapping[str, Logged]) -> tuple[Name, ...]:
    """`GROUP_STD` if `reward_std` is a mean over groups. Either no function has an `/std` (TRL before 0.17), or the
    `/std` of the only function, which is over the rollout batch, differs from it."""
    total = series.get("reward_std")
    functions = [part for name, part in series.items() if name.startswith("rewards/") and name.endswith("/std")]
    if total is None or len(functions) > 1:
        return ()
    if not functions:
        return (GROUP_STD,)
    steps = np.intersect1d(total.steps, functions[0].steps)
    a, b = (part.values[np.searchsorted(part.steps, steps)] for part in (total, functions[0]))
    both = np.isfinite(a) & np.isfinite(b)
    return (GROUP_STD,) if (np.abs(a[both] - b[both]) > 1e-3 * np.abs(b[both])).any() else ()


CORRECTS = (1, 17)
"""The first version whose importance weights are unbiased under top-k, top-p and min-p, by its release notes."""
TWICE = (
    "TRL 1.17 and newer correct vLLM's importance weights for top_k, top_p and min_p by themselves. With "
    "mask_logprobs=True they may be corrected twice: set vllm_importance_sampling_correction=False with it"
)

_LOSS = "`with_penalties(GRPOTrainer)`, which leaves the loss as it is"
_ROLLOUTS = "`SearchRollouts` with the functions of `reward_functions` (docs/guide/trl.md)"
_PENALTY = f"with_penalties(GRPOTrainer, LLDS(coef={COEF}))"

# ---- a recipe for it

_START_FIRST = (
    "first make the model with `holdfast warm-start RECIPE`. Then set model.path to the folder that it prints, and "
    "warm_start.steps = 0"
)
_WEIGHTS = "loss.methods.sampler_weights"
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


def _steps(batches: int, recipe: Any) -> int:
    """Optimizer steps of so many rollout batches."""
    return batches * int(recipe.train.optimizer_steps_per_rollout)


def _bf16(recipe: Any) -> Any:
    if recipe.model.autocast == "auto" and recipe.run.device == "auto":
        return Code("torch.cuda.is_available()")
    return recipe.model.autocast == "bf16" or (recipe.model.autocast == "auto" and recipe.run.device == "cuda")


def _longest(recipe: Any) -> Any:
    """The divisor of dr_grpo in TRL; for other losses a bound, which the protocol keeps by itself."""
    normed = recipe.loss.reduction == "seq-mean-token-sum-norm"
    return recipe.protocol.max_sampled_tokens if normed else recipe.protocol.max_total_tokens


def _clip_high(recipe: Any) -> Any:
    """For CISPO the largest weight itself."""
    return 1 + recipe.loss.clip_high if recipe.loss.surrogate == "cispo" else recipe.loss.clip_high


def _without_weights(recipe: Any) -> bool:
    return not recipe.loss.methods.sampler_weights.on


SETTINGS = (
    Setting("output_dir", "run.dir, run.name", lambda r: str(Path(r.run.dir) / r.run.name)),
    Setting("run_name", "run.name"),
    Setting("seed", "run.seed"),
    Setting("data_seed", "run.seed"),
    Setting("use_cpu", "run.device", lambda r: r.run.device == "cpu"),
    Setting("bf16", "model.autocast, run.device", _bf16),
    Setting("trust_remote_code", "model.trust_remote_code"),
    Setting("chat_template_kwargs", "model.chat_template_kwargs", when=lambda r: r.model.chat_template_kwargs),
    Setting("disable_dropout", "log-probs before and after a step must differ by the step alone", True),
    Setting("num_generations", "train.group_size"),
    Setting("per_device_train_batch_size", _SIZE, lambda r: r.trl_cut["per_device_train_batch_size"]),
    Setting("gradient_accumulation_steps", f"the rollouts of a step, {_K}",
            lambda r: r.trl_cut["gradient_accumulation_steps"]),
    Setting("steps_per_generation", f"{_K} times the line above", lambda r: r.trl_cut["steps_per_generation"]),
    Setting("num_iterations", "every rollout is used once", 1),
    Setting("max_steps", f"train.steps, {_K}", lambda r: _steps(r.train.steps, r)),
    Setting("learning_rate", "train.lr"),
    Setting("lr_scheduler_type", "train.warmup", "constant_with_warmup"),
    Setting("warmup_steps", f"train.warmup, {_K}", lambda r: _steps(r.train.warmup, r)),
    Setting("weight_decay", "train.weight_decay"),
    Setting("max_grad_norm", "train.grad_clip"),
    Setting("loss_type", "loss.reduction, loss.surrogate",
            lambda r: _SURROGATES[r.loss.surrogate] or _LOSS_TYPES[r.loss.reduction]),
    Setting("scale_rewards", "loss.advantage", lambda r: "group" if r.loss.advantage == "grpo" else "none"),
    Setting("importance_sampling_level", "loss.ratio"),
    Setting("epsilon", "loss.clip_low"),
    Setting("epsilon_high", "loss.clip_high", _clip_high),
    Setting("delta", "loss.dual_clip"),
    Setting("beta", "loss.kl_coef, loss.kl_estimator", lambda r: r.loss.kl_coef),
    Setting("use_bias_correction_kl", "the recipe's KL is not multiplied by the ratio", False),
    Setting("entropy_coef", "loss.entropy_coef"),
    Setting("temperature", "sampling.temperature"),
    Setting("top_p", "sampling.top_p"),
    Setting("top_k", "sampling.top_k"),
    Setting("max_completion_length", "protocol.max_total_tokens, loss.reduction", _longest),
    Setting("use_vllm", "True: vLLM on the same GPUs does the rollouts (pip install vllm); use it above 1B", False,
            _without_weights),
    Setting("vllm_importance_sampling_correction", f"{_WEIGHTS}: off", False, _without_weights),
    lambda r: r.method_options,
    Setting("vllm_max_model_length", "protocol.max_total_tokens"),
    Setting("eval_strategy", "eval.every", "steps"),
    Setting("eval_steps", f"eval.every, {_K}", lambda r: _steps(r.eval.every or r.train.steps, r)),
    Setting("eval_on_start", "eval.start"),
    Setting("num_generations_eval", "eval.samples"),
    Setting("per_device_eval_batch_size", "eval.samples", lambda r: r.eval.samples * max(1, 16 // r.eval.samples)),
    Setting("save_strategy", "checkpoint.every", "steps"),
    Setting("save_steps", f"checkpoint.every, {_K}", lambda r: _steps(r.checkpoint.every or r.train.steps, r)),
    Setting("save_total_limit", "checkpoint.keep"),
    Setting("logging_steps", f"a line for each rollout batch, {_K}", lambda r: _steps(1, r)),
    Setting("report_to", "track.wandb, track.tensorboard", lambda r: r.trackers or "none"),
    Setting("log_completions", "track.trajectories", lambda r: r.track.trajectories > 0),
    Setting("num_completions_to_print", "track.trajectories", lambda r: r.track.trajectories or None),
)  # fmt: skip
"""Arguments of `GRPOConfig`."""

_OTHER_WEIGHTS = Noted("in TRL rollouts come from the weights that are trained")
_SEPARATE = Noted("a warm start is a separate stage before training")
_TINY = Noted("it sets the size of the tiny model, which is not made here")

OTHERS: Mapping[str, Noted | Refused] = {
    "faults.sampler_8_bits": _OTHER_WEIGHTS,
    "loss.old_policy": Noted("TRL's GRPOTrainer recomputes the old policy; AsyncGRPOTrainer compares with the sampler"),
    "train.staleness": _OTHER_WEIGHTS,
    "train.minibatches": Noted("TRL draws the rollouts of each optimizer step at random"),
    "world.model": _TINY,
    "world.scripts": _SEPARATE,
    "warm_start": _SEPARATE,
    "warm_start.steps": Refused(f"TRL's trainer has no warm start: {_START_FIRST}"),
    "loss.baseline": Refused("TRL gives every rollout of a group the same weight. Leave it at 'mean', or use verl"),
    **ANYWHERE,
}


def _sampler_weights(method: Any, recipe: Any) -> Translation:
    """The correction for rollouts of vLLM."""
    options = (
        Option("use_vllm", True, f"{_WEIGHTS}: TRL has weights for rollouts of vLLM only (pip install vllm)"),
        Option("vllm_importance_sampling_correction", True, f"{_WEIGHTS}.on"),
        Option("vllm_importance_sampling_mode", f"{method.level}_{method.keep}", f"{_WEIGHTS}.level, {_WEIGHTS}.keep"),
        Option("vllm_importance_sampling_clip_min", method.low or None, f"{_WEIGHTS}.low"),
        Option("vllm_importance_sampling_clip_max", method.high, f"{_WEIGHTS}.high"),
    )
    problems = []
    if method.level == "action":
        problems.append(
            f"{_WEIGHTS}.level = 'action': TRL's loss does not know actions. The nearest are 'token' and 'sequence'"
        )
    if method.aggregate == "mean":
        problems.append(
            f"{_WEIGHTS}.aggregate = 'mean': TRL's weight of a sequence is the product of its ratios. Leave it at "
            "'product'"
        )
    if method.keep == "reject":
        problems.append(
            f"{_WEIGHTS}.keep = 'reject': TRL also weights the tokens that it keeps. The nearest is 'mask', which does "
            "so too"
        )
    note = "TRL computes these weights only for rollouts of vLLM, so the script sets use_vllm"
    return Translation(options, tuple(problems), (note,))


def _off_policy_mask(method: Any, recipe: Any) -> Translation:
    setting = "loss.methods.off_policy_mask.threshold"
    return Translation(
        options=(Option("off_policy_mask_threshold", method.threshold, setting),),
        notes=(f"TRL measures {setting} from the sampler's log-probs, where it has them",),
    )


def _problems(recipe: Any) -> Iterator[str]:
    loss = recipe.loss
    yield from recipe.method_problems
    if loss.surrogate not in _SURROGATES:
        yield f"loss.surrogate = {loss.surrogate!r}: TRL's GRPOTrainer does not have it. Use verl, or `holdfast train`"
    if loss.surrogate == "cispo" and loss.clip_low != 1:
        yield (
            f"loss.clip_low = {loss.clip_low:g} with loss.surrogate = 'cispo': TRL's weights have no lower bound. Set "
            "loss.clip_low = 1.0, which switches it off"
        )
    if loss.surrogate == "cispo" and loss.reduction != "token-mean":
        yield (
            f"loss.reduction = {loss.reduction!r} with loss.surrogate = 'cispo': TRL's mean is over tokens. Set "
            "loss.reduction = 'token-mean'"
        )
    if loss.ratio == "action":
        yield "loss.ratio = 'action': TRL's loss does not know actions. The nearest are 'token' and 'sequence'"
    if recipe.model.is_tiny and not recipe.warm_start.steps:
        yield f"model.path = 'tiny': TRL loads a model from a folder or the hub; {_START_FIRST}"
    if loss.advantage == "gae":
        with_it = ", ".join(name for name in recipe.changed if name.startswith("critic.") or name == "reward.kl")
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
    if recipe.sampling.mask_logprobs and loss.kl_coef and recipe.train.optimizer_steps_per_rollout == 1:
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
    if getattr(loss.penalty.term, "preserve", None) == "correct" and recipe.correct_above is None:
        yield (
            "loss.penalty.preserve = 'correct' with these reward weights: TRL sees only the total reward of a "
            "rollout, and with these weights an incorrect one can have as much as a correct one. Raise reward.em "
            "above the sum of the others"
        )
    if problem := recipe.trl_schedule_problem:
        yield problem
    elif loss.methods.nthr.on and recipe.train.questions % recipe.machines.total:
        yield (
            f"loss.methods.nthr.on = true with train.questions = {recipe.train.questions} on {recipe.machines}: NTHR "
            "compares the rollouts of a question, and TRL would give a GPU parts of groups. Set train.questions to a "
            f"multiple of {recipe.machines.total}"
        )


def _differences(recipe: Any) -> Iterator[str]:
    yield from recipe.truncation("Set sampling.mask_logprobs = true with sampling.top_k = 512, or")
    yield "TRL keeps the newest checkpoints, but not the best on dev"
    yield "TRL evaluates with samples at the training temperature, and does not report greedy scores"
    yield from recipe.method_notes
    if recipe.loss.reduction == "token-mean":
        yield "TRL divides a step's loss by the mean token count of the rollout batch's steps, not by the step's own"
    elif recipe.loss.entropy_coef:
        yield "TRL's entropy is a mean over tokens under every loss.reduction"
    if recipe.correct_above is None:
        yield "these weights let correct and incorrect rollouts overlap: the log counts rewards above 0.5 as correct"
    yield from recipe.local_notes


TRL = Host(
    id="trl",
    title="TRL",
    series=SERIES,
    more=(
        Name("num_turns", "rollout/turns"),
        Name("rollout_correction/kl", "sampler/logprob_gap"),
        Name("rollout_correction/ess", "sampler/ess"),
        Name("rollout_correction/is_weight_mean", "sampler/importance_ratio"),
    ),
    older={
        "completion_length": "completions/mean_length",
        "clip_ratio": "clip_ratio/region_mean",
        # as tables that people write leave out what stands before a name
        **{name: f"completions/{name}" for name in ("mean_length", "min_length", "max_length", "clipped_ratio")},
    },
    left_alone={
        "loss": "the whole loss: with KL, entropy bonus and penalty",
        "rewards/<function>/mean": "a function called `em` or `f1` need not measure that",
    },
    prefixed=True,
    variant=_variant,
    doubtful=_doubtful,
    by_version=_by_version,
    # Of what is called several times a step, such as compute_loss, each call is logged by itself.
    spans=(
        Span(r"profiling/Time taken: \w+\.(vLLM|transformers)\.generate(_batch)?", "generation"),
        Span(r"profiling/Time taken: \w+\._calculate_rewards", "tool"),
        Span(r"profiling/Time taken: \w+\.sync_weights", "weights"),
    ),
    step_seconds="step_time",
    words={
        "schedule": ("lr_scheduler_type", "max_steps"),
        "warm-up": ("warmup_steps",),
        "optimizer steps per rollout batch": ("num_iterations", "steps_per_generation"),
        "importance ratio": ("delta=3.0",),
        "coefficient of the KL": ("beta",),
        "penalty on lost likelihood": (_PENALTY,),
        "threshold": ("threshold",),
        "tau": ("tau",),
        "preserve more rollouts": ("preserve",),
        "without top-p and top-k": ("top_p=1.0", "top_k=0", "min_p=None"),
        "tokens that the sampler can draw": ("top_k=512", "with_penalties(GRPOTrainer, mask_logprobs=True)"),
        "importance weights of the sampler": ("vllm_importance_sampling_correction=True",),
        "full precision": ("bf16=False",),
        "rollouts": ("log_completions=True",),
        "limits of tokens and turns": ("max_completion_length",),
        "weights of the reward": ("reward_weights",),
        "reference": ("sync_ref_model=True", "ref_model_sync_steps"),
    },
    logged_by={
        "displacement/": _LOSS,
        "likelihood/correct": _LOSS,
        "likelihood/incorrect": _LOSS,
        "ratio/": _LOSS,
        "optimizer_steps_per_rollout": _LOSS,
        "loss/tokens": "`with_penalties(GRPOTrainer)` with `SearchRollouts`",
        "penalty/": f"`{_PENALTY}`",
        "rollout/length": "every GRPOTrainer (`completions/mean_length`)",
        "clip/": "every GRPOTrainer (`clip_ratio/region_mean`)",
        "grad/norm": "every trainer, with `max_grad_norm` set",
        "entropy/mean": "every GRPOTrainer (`entropy`)",
        "rollout/mixed_group_fraction": "every GRPOTrainer (`frac_reward_zero_std`)",
        "sampler/logprob_gap": "`with_penalties(GRPOTrainer)` with `use_vllm=True` or `SearchRollouts`",
        "sampler/ess": "ms-swift, with its metrics of off-policy rollouts",
        "sampler/mask_mass": _LOSS,
        "sampler/logprob_abs_gap": "every GRPOTrainer with `use_vllm=True` (`sampling/sampling_logp_difference/mean`)",
        "kl/": "every GRPOTrainer with `beta` above 0 (`kl`)",
        "advantage/tail_mean": "`with_penalties(GRPOTrainer)` with `SearchRollouts`, which samples from the trainer's "
        "model",
        "lr": "every trainer (`learning_rate`)",
        "rollout/failed_call_fraction": "every GRPOTrainer with tools",
        "retrieval/": _ROLLOUTS,
        "rollout/": _ROLLOUTS,
        "reward/mean": "every GRPOTrainer (`reward`)",
        "reward/": _ROLLOUTS,
    },
    saved_every="save_steps",
    launch=Launch(
        settings=SETTINGS,
        others=OTHERS,
        methods={
            "off_policy_mask": _off_policy_mask,
            "nthr": lambda method, recipe: Translation(
                notes=("TRL takes NTHR's hidden states from a forward pass of their own",)
            ),
            "sampler_weights": _sampler_weights,
            "score_centering": "TRL does not have it, but holdfast's sampling mask removes the same drift there: set "
            "sampling.mask_logprobs = true instead",
            "clip_cov": "TRL does not have it",
            "ipo": "TRL bounds ratios, not probabilities",
        },
        problems=_problems,
        differences=_differences,
    ),
)
