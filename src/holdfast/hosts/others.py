"""Trainers of whose names only the log is known: tinker-cookbook, slime and miles, SkyRL, OpenRLHF, NeMo-RL, ART."""

from holdfast.hosts.host import Host, Name, OldPolicy, Seen, Settings, Span

TINKER = Host(
    id="tinker",
    series=(
        Name("env/all/reward/total", "reward/mean"),
        Name("env/all/by_group/frac_mixed", "rollout/mixed_group_fraction"),
        Name("env/all/by_group/frac_all_good", "rollout/all_correct_fraction"),
        Name("env/all/by_group/frac_all_bad", "rollout/all_wrong_fraction"),
        Name("optim/entropy", "entropy/mean", differs="estimated from the log-probs of sampled tokens"),
        Name("optim/kl_sample_train_v1", "sampler/logprob_gap"),
        Name("kl_policy_base", "kl/reference"),
        Name("env/all/turns_per_episode", "rollout/turns"),
        Name("async/staleness_mean", "rollout/staleness"),
        Name("async/staleness_max", "rollout/max_staleness"),
        Name("optim/lr", "lr"),
    ),
    held_out=(r"(test)/env/all/reward/total",),
    spans=(  # `policy_sample:*` and `env_step:*` are sums over concurrent tasks
        Span("time/sampling", "generation"),
        Span("time/kl_vs_base", "old"),
        Span("time/train", "update"),
        Span("time/train_step", "update", inside="time/train"),
        Span("time/save_checkpoint", "weights"),
        Span("time/run_evals", "evaluation"),
    ),
    step_seconds="time/total",
    marks=("env/all/", "optim/kl_sample_train"),
)

SLIME = Host(
    id="slime",
    trainers={"stale": "slime and miles"},
    series=(
        Name("rollout/raw_reward", "reward/mean"),
        Name("rollout/response_len/mean", "rollout/length"),
        Name("rollout/response_len/min", "rollout/min_length"),
        Name("rollout/response_len/max", "rollout/max_length"),
        Name("rollout/truncated_ratio", "rollout/truncated_fraction"),
        Name("rollout/repetition_frac", "rollout/looping_fraction"),
        Name("train/entropy_loss", "entropy/mean"),
        Name("train/kl_loss", "kl/reference"),
        Name("train/grad_norm", "grad/norm"),
        Name("train/pg_clipfrac", "clip/fraction"),
        Name("train/train_rollout_logprob_abs_diff", "sampler/logprob_abs_gap"),
        Name("train/lr-pg_0", "lr"),
        Name("perf/rollout_time", "time/rollout_s"),
        Name("perf/train_wait_time", "time/waiting_s"),
        Name("perf/fully_async/stale_dropped", "rollout/dropped_stale"),
    ),
    held_out=(r"eval/(?!step$)(?!.*-(?:truncated_ratio|pass@\d+)$)([^/]+)",),
    spans=(
        Span("perf/train_wait_time", "waiting"),
        Span("perf/rollout_time", "generation", inside="perf/train_wait_time"),
        Span("perf/update_weights_time", "weights", inside="perf/train_wait_time"),
        Span("perf/log_probs_time", "old"),
        Span("perf/ref_log_probs_time", "old"),
        Span("perf/actor_train_time", "update"),
    ),
    step_seconds="perf/step_time",
    marks=("rollout/raw_reward", "rollout/response_len/", "train/pg_clipfrac", "train/train_rollout_logprob"),
)
"""slime, and miles, which was made from it."""


def _by_staleness(series: Seen, settings: Settings) -> OldPolicy:
    return "sampler" if any(name.startswith("async/") for name in series) else "recomputed"


SKYRL = Host(
    id="skyrl",
    series=(
        Name("reward/avg_raw_reward", "reward/mean"),
        Name("generate/avg_num_tokens", "rollout/length"),
        Name("generate/min_num_tokens", "rollout/min_length"),
        Name("generate/max_num_tokens", "rollout/max_length"),
        Name("policy/policy_entropy", "entropy/mean"),
        Name("policy/policy_kl", "kl/reference"),
        Name("policy/grad_norm", "grad/norm"),
        Name("policy/loss_metrics/clip_ratio", "clip/fraction"),
        Name("policy/rollout_train_logprobs_abs_diff_mean", "sampler/logprob_abs_gap"),
        Name("policy/policy_lr", "lr"),
        Name("async/staleness_mean", "rollout/staleness"),
        Name("async/staleness_max", "rollout/max_staleness"),
        Name("timing/wait_for_generation_buffer", "time/waiting_s"),
    ),
    old_policy=_by_staleness,
    trainers={"sampler": "SkyRL"},
    words={"limit on staleness": ("max_staleness_steps",)},
    older={"policy/ppo_clip_ratio": "policy/loss_metrics/clip_ratio"},
    held_out=(r"eval/(.+)/avg_score",),
    spans=(
        Span("timing/generate", "generation"),
        Span("timing/fwd_logprobs_values_reward", "old"),
        Span("timing/policy_train", "update"),
        Span("timing/sync_weights", "weights"),
        Span("timing/wait_for_generation_buffer", "waiting"),
    ),
    step_seconds="timing/step",
    marks=("reward/avg_raw_reward", "policy/policy_", "policy/rollout_train_logprobs"),
)

OPENRLHF = Host(
    id="openrlhf",
    series=(
        Name("reward", "reward/mean"),
        Name("response_length", "rollout/length"),
        Name("truncated", "rollout/truncated_fraction"),
        Name("entropy_loss", "entropy/mean"),
        Name("kl", "kl/reference"),
        Name("actor_grad_norm", "grad/norm"),
        Name("ppo_clip_ratio", "clip/fraction"),
        Name("vllm_kl", "sampler/logprob_gap"),
        Name("actor_lr", "lr"),
        Name("timing/generation", "time/rollout_s"),
    ),
    held_out=(r"(?:eval/)?eval_(.+)_pass1",),
    spans=(
        Span("timing/generation", "generation"),
        Span("timing/ppo_train", "update"),
        Span("timing/broadcast", "weights"),
    ),
    step_seconds="timing/step_total",
    marks=("actor_grad_norm", "ppo_clip_ratio", "train/actor_grad_norm", "train/ppo_clip_ratio"),
    prefixed=True,
)
"""OpenRLHF's PPO trainer."""

NEMO_RL = Host(
    id="nemo-rl",
    title="NeMo-RL",
    trainers={"stale": "NeMo-RL"},
    series=(
        Name("reward", "reward/mean"),
        Name("mean_gen_tokens_per_sample", "rollout/length"),
        Name("approx_entropy", "entropy/mean", differs="estimated from the log-probs of sampled tokens"),
        Name("grad_norm", "grad/norm"),
        Name("gen_kl_error", "sampler/mismatch_kl"),
        Name("avg_trajectory_age", "rollout/staleness"),
        Name("lr", "lr"),
        Name("timing/train/total_step_time", "time/step_s"),
    ),
    labels={
        "generation_kl_error": "gen_kl_error",
        "mean_generation_length": "mean_gen_tokens_per_sample",
        "total_step_time": "timing/train/total_step_time",
    },
    own_labels=frozenset({"generation_kl_error", "mean_generation_length"}),
    held_out=(r"validation/(accuracy)",),
    prefixed=True,
    spans=(
        Span("timing/train/generation", "generation"),
        Span("timing/train/policy_training", "update"),
        Span("timing/train/policy_and_reference_logprobs", "old"),
    ),
    step_seconds="timing/train/total_step_time",
    words={
        "learning rate": ("policy.optimizer.kwargs.lr",),
        "group size": ("grpo.num_generations_per_prompt",),
        "upper clip": ("loss_fn.ratio_clip_max",),
        "coefficient of the KL": ("loss_fn.reference_policy_kl_penalty",),
        "importance weights of the sampler": ("loss_fn.use_importance_sampling_correction=True",),
        "limits of tokens and turns": ("policy.max_total_sequence_length",),
        "limit on staleness": ("grpo.async_grpo.max_trajectory_age_steps",),
    },
    marks=("train/gen_kl_error", "gen_kl_error", "train/token_mult_prob_error", "token_mult_prob_error"),
)

ART = Host(
    id="art",
    title="ART",
    series=(
        Name("train/reward", "reward/mean"),
        Name("train/steps_off_policy", "rollout/staleness"),
    ),
    marks=("train/steps_off_policy", "queue/actual_stale_fraction"),
)
"""OpenPipe's Agent Reinforcement Trainer."""
