"""Trainers of whose names only the log is known: tinker-cookbook, slime and miles, SkyRL, OpenRLHF."""

from holdfast.hosts.host import Host, Name, Span

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
    ),
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
