"""TRL's AsyncGRPOTrainer (1.16 experimental, stable since 1.18), whose names and settings are not those of GRPOTrainer.

Its ratio compares with the sampler: old log-probs are vLLM's, of the weights that drew a rollout. So its `kl` is the KL
to the sampler (`async_grpo_trainer.py`, `compute_loss`), and it has no reference model and no `beta`.
"""

from holdfast.hosts.host import COEF, Host, Name, Span, of_sampler
from holdfast.hosts.trl import TRL

TRL_ASYNC = Host(
    id="trl-async",
    title="TRL's AsyncGRPOTrainer",
    kin="trl",
    trainers={"sampler": "TRL's `AsyncGRPOTrainer`"},
    series=(
        Name("reward", "reward/mean"),
        Name("reward_std", "reward/group_std"),
        Name("entropy", "entropy/mean"),
        Name("grad_norm", "grad/norm"),
        Name("clip_ratio/region_mean", "clip/fraction"),
        Name("kl", "sampler/mismatch_kl"),
        Name("ratio", "sampler/importance_ratio"),
        Name("completions/mean_length", "rollout/length"),
        Name("completions/min_length", "rollout/min_length"),
        Name("completions/max_length", "rollout/max_length"),
        Name("completions/clipped_ratio", "rollout/truncated_fraction"),
        Name("rollout/turns_mean", "rollout/turns"),
        Name("tools/call_frequency", "rollout/searches", differs="calls of any tool"),
        Name("tools/failure_frequency", "rollout/failed_call_fraction", differs="includes malformed calls"),
        Name("sample/staleness_mean", "rollout/staleness"),
        Name("sample/staleness_max", "rollout/max_staleness"),
        Name("sample/dropped_stale_total", "rollout/dropped_stale"),
        Name("perf/rollout_wait_s", "time/waiting_s"),
        Name("perf/step_s", "time/step_s"),
        Name("learning_rate", "lr"),
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
