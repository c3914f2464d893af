"""TRL's GRPOTrainer, and what is built on it: Unsloth, ms-swift; and its AsyncGRPOTrainer."""

from __future__ import annotations

from functools import reduce

import numpy as np

from holdfast.hosts.host import COEF, Host, Name, Seen, Settings, Span, of_sampler

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
    Name("tools/failure_frequency", "rollout/failed_call_fraction", differs="includes malformed calls"),
    Name("learning_rate", "lr"),
    Name("step_time", "time/step_s"),
)
"""`holdfast/x`, from our adapter, is x; `eval_x` is read as `eval/` and the name of x."""

GROUP_STD = Name("reward_std", "reward/group_std")
"""TRL before 0.27 logs the mean of the groups' standard deviations; later versions log that of the rollout batch."""
ASYNC_LOGGED = ("clip_ratio/region_mean", "entropy", "reward", "sample/staleness_mean")
"""What AsyncGRPOTrainer (1.16) has for its log by the end of a step, and rules read."""


def _variant(series: Seen, settings: Settings) -> str:
    """Whether AsyncGRPOTrainer wrote the log: it samples from a queue, and says how old that is."""
    is_async = any(
        name.startswith(("sample/staleness", "sample/rollout_queue", "perf/rollout_wait")) for name in series
    )
    return "trl-async" if is_async else ""


def _doubtful(series: Seen, settings: Settings) -> dict[str, str]:
    if not _are_not_cut(series):
        return {}
    why = "it is 1 although these rollouts did not reach a limit, because they do not end with an end-of-text token"
    return {"completions/clipped_ratio": why}


def _are_not_cut(series: Seen) -> bool:
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


def _by_version(series: Seen) -> tuple[Name, ...]:
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


TRL = Host(
    id="trl",
    title="TRL",
    trainers={"fresh": "TRL's `GRPOTrainer`"},
    series=SERIES,
    more=(
        Name("num_turns", "rollout/turns"),
        Name("rollout_correction/kl", "sampler/logprob_gap"),
        Name("rollout_correction/ess", "sampler/ess"),
        Name("rollout_correction/is_weight_mean", "sampler/importance_ratio"),
        Name("mismatch_kl", "sampler/mismatch_kl"),  # of verifiers
    ),
    older={
        "completion_length": "completions/mean_length",
        "clip_ratio": "clip_ratio/region_mean",
        # as tables that people write leave out what stands before a name
        **{name: f"completions/{name}" for name in ("mean_length", "min_length", "max_length", "clipped_ratio")},
        # of PPOTrainer and the earlier RLOOTrainer
        "objective/scores": "reward",
        "policy/entropy_avg": "entropy",
        "policy/clipfrac_avg": "clip_ratio/region_mean",
    },
    left_alone={
        "loss": "the whole loss: with KL, entropy bonus and penalty",
        "objective/rlhf_reward": "the score of PPOTrainer, minus its KL penalty",
        "objective/kl": "summed over the tokens of a rollout",
        "rewards/<function>/mean": "a function called `em` or `f1` may measure something else",
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
    settings={
        "run.name": "run_name",
        "run.seed": "seed",
        "model.trust_remote_code": "trust_remote_code",
        "model.chat_template_kwargs": "chat_template_kwargs",
        "train.group_size": "num_generations",
        "train.lr": "learning_rate",
        "train.weight_decay": "weight_decay",
        "train.grad_clip": "max_grad_norm",
        "loss.ratio": "importance_sampling_level",
        "loss.clip_low": "epsilon",
        "loss.dual_clip": "delta",
        "loss.entropy_coef": "entropy_coef",
        "sampling.temperature": "temperature",
        "sampling.top_p": "top_p",
        "sampling.top_k": "top_k",
        "protocol.max_total_tokens": "vllm_max_model_length",
        "eval.start": "eval_on_start",
        "eval.samples": "num_generations_eval",
        "checkpoint.keep": "save_total_limit",
    },
    words={
        "schedule": ("lr_scheduler_type", "max_steps"),
        "warm-up": ("warmup_steps",),
        "optimizer steps per rollout batch": ("num_iterations", "steps_per_generation"),
        "importance ratio": ("delta=3.0",),
        "upper clip": ("epsilon_high",),
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
        "sampler/ess": "`with_penalties(GRPOTrainer)` with `use_vllm=True` or `SearchRollouts`",
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
)


_AS_IN_TRL = (
    *("reward", "entropy", "grad_norm", "clip_ratio/region_mean", "learning_rate"),
    *("completions/mean_length", "completions/min_length", "completions/max_length", "completions/clipped_ratio"),
    *("tools/call_frequency", "tools/failure_frequency"),
)

TRL_ASYNC = Host(
    id="trl-async",
    title="TRL's AsyncGRPOTrainer",
    kin="trl",
    trainers={"sampler": "TRL's `AsyncGRPOTrainer`"},
    series=(
        *(row for row in SERIES if row.host in _AS_IN_TRL),
        Name("reward_std", "reward/group_std"),
        Name("kl", "sampler/mismatch_kl"),
        Name("ratio", "sampler/importance_ratio"),
        Name("rollout/turns_mean", "rollout/turns"),
        Name("sample/staleness_mean", "rollout/staleness"),
        Name("sample/staleness_max", "rollout/max_staleness"),
        Name("sample/dropped_stale_total", "rollout/dropped_stale"),
        Name("perf/rollout_wait_s", "time/waiting_s"),
        Name("perf/step_s", "time/step_s"),
    ),
    left_alone=TRL.left_alone,
    prefixed=True,
    old_policy=of_sampler,
    spans=(
        Span("perf/rollout_wait_s", "waiting"),
        Span("perf/fwd_bwd_s", "update"),
        Span("perf/optimizer_s", "update"),
        Span("perf/weight_sync_s", "weights"),
    ),
    step_seconds="perf/step_s",
    settings={name: TRL.settings[name] for name in ("train.lr", "train.grad_clip", "train.group_size")},
    words={
        **{phrase: TRL.words[phrase] for phrase in ("schedule", "warm-up", "upper clip", "rollouts")},
        **{phrase: TRL.words[phrase] for phrase in ("threshold", "tau", "preserve more rollouts")},
        "without top-p and top-k": TRL.words["without top-p and top-k"],
        "limit on staleness": ("max_staleness", "weight_sync_steps"),
        "penalty on lost likelihood": (f"with_penalties(AsyncGRPOTrainer, LLDS(coef={COEF}, threshold=0.01))",),
        "full precision": ('dtype="float32"',),
        "limits of tokens and turns": ("max_completion_length", "max_tool_calling_iterations"),
    },
    logged_by={
        "drift/": "`with_penalties(AsyncGRPOTrainer)`, which leaves the loss as it is",
        "likelihood/positive": "`with_penalties(AsyncGRPOTrainer)`, which leaves the loss as it is",
        "penalty/": f"`with_penalties(AsyncGRPOTrainer, LLDS(coef={COEF}))`",
        "rollout/length": "every AsyncGRPOTrainer (`completions/mean_length`)",
        "rollout/staleness": "every AsyncGRPOTrainer (`sample/staleness_mean`)",
        "clip/": "every AsyncGRPOTrainer (`clip_ratio/region_mean`)",
        "grad/norm": "every trainer, with `max_grad_norm` set",
        "entropy/mean": "every AsyncGRPOTrainer (`entropy`)",
        "sampler/mismatch_kl": "every AsyncGRPOTrainer (`kl`)",
        "sampler/importance_ratio": "every AsyncGRPOTrainer (`ratio`)",
        "reward/mean": "every AsyncGRPOTrainer (`reward`)",
        "lr": "every trainer (`learning_rate`)",
    },
    saved_every="save_steps",
)
"""TRL's AsyncGRPOTrainer (1.16 experimental, stable since 1.18), whose names and settings are not those of GRPOTrainer.

Its ratio compares with the sampler: old log-probs are vLLM's, of the weights that drew a rollout. So its `kl` is the KL
to the sampler (`async_grpo_trainer.py`, `compute_loss`), and it has no reference model and no `beta`.
"""
