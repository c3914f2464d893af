"""tinker-cookbook, and rLLM with tinker as its backend."""

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
    words={
        "learning rate": ("learning_rate",),
        "group size": ("group_size",),
        "optimizer steps per rollout batch": ("num_substeps",),
        "coefficient of the KL": ("kl_penalty_coef",),
        "limits of tokens and turns": ("max_tokens",),
        "limit on staleness": ("async_config.max_steps_off_policy",),
    },
    marks=("env/all/", "optim/kl_sample_train"),
)

RLLM = Host(
    id="rllm",
    title="rLLM",
    series=(
        Name("reward/<agent>/mean", "reward/mean"),
        Name("reward/<agent>/min", "reward/min"),
        Name("reward/<agent>/max", "reward/max"),
        Name("reward/<agent>/std", "reward/std"),
        Name("batch/<agent>/fractions/effective", "rollout/mixed_group_fraction"),
        Name("batch/<agent>/fractions/too_easy", "rollout/all_correct_fraction"),
        Name("batch/<agent>/fractions/too_hard", "rollout/all_wrong_fraction"),
        Name("episode/num_turns", "rollout/turns"),
        Name("episode/response_tokens", "rollout/length"),
        Name("train/entropy", "entropy/mean", differs="estimated from the log-probs of sampled tokens"),
        Name("train/kl_sample_train_v1", "sampler/logprob_abs_gap"),
        Name("async/staleness_mean", "rollout/staleness"),
        Name("async/staleness_max", "rollout/max_staleness"),
        Name("progress/lr", "lr"),
        Name("time/step", "time/step_s"),
        Name("time/buffer_wait", "time/waiting_s"),
    ),
    held_out=(r"val/(.+)/pass@1",),
    agent=r"(?:(?<=^reward/)|(?<=^batch/)(?!steps_per_traj|step_response_length|termination_reason))[^/]+(?=/)",
    spans=(Span("time/buffer_wait", "waiting"), Span("time/weight_sync", "weights")),
    step_seconds="time/step",
    marks=("train/kl_sample_train", "progress/lr"),
)
"""rLLM with tinker as its backend. With verl as its backend it logs verl's names."""
