"""Trainers of whose names only the log and some settings are known: slime and miles, SkyRL, OpenRLHF, NeMo-RL, ART,
ROLL, AReaL, open-instruct."""

from holdfast.hosts.host import Host, Name, OldPolicy, Seen, Settings, Span

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
    more=(Name("rollout/entropy", "entropy/mean"),),
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
    words={
        "learning rate": ("--lr",),
        "norm of the gradient": ("--clip-grad",),
        "group size": ("--n-samples-per-prompt",),
        "optimizer steps per rollout batch": ("--num-steps-per-rollout",),
        "importance ratio": ("--eps-clip-c 3",),
        "upper clip": ("--eps-clip-high",),
        "entropy bonus": ("--entropy-coef",),
        "coefficient of the KL": ("--kl-loss-coef",),
        "without top-p and top-k": ("--rollout-top-p 1", "--rollout-top-k -1"),
        "importance weights of the sampler": ("--use-tis",),
        "rollouts": ("--save-debug-rollout-data",),
        "limits of tokens and turns": ("--rollout-max-response-len",),
        "limit on staleness": ("--update-weights-interval",),
    },
    marks=("rollout/raw_reward", "rollout/response_len/", "train/pg_clipfrac", "train/train_rollout_logprob"),
)
"""slime, and miles, which was made from it."""


def _by_staleness(series: Seen, settings: Settings) -> OldPolicy:
    return "sampler" if any(name.startswith("async/") for name in series) else "recomputed"


SKYRL = Host(
    id="skyrl",
    series=(
        Name("reward/avg_raw_reward", "reward/mean"),
        Name("generate/avg_assistant_tokens", "rollout/length"),
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
    more=(
        Name(
            "generate/avg_num_tokens",
            "rollout/length",
            differs="all tokens after the prompt, including observations, not only the sampled tokens",
        ),
        Name("loss/avg_final_rewards", "reward/mean", differs="minus the KL penalty, if that is in the reward"),
    ),
    labels={"avg_final_rewards": "loss/avg_final_rewards", "avg_response_length": "generate/avg_num_tokens"},
    own_labels=frozenset({"avg_final_rewards"}),
    old_policy=_by_staleness,
    trainers={"sampler": "SkyRL"},
    words={
        "learning rate": ("trainer.policy.optimizer_config.lr",),
        "warm-up": ("trainer.policy.optimizer_config.num_warmup_steps",),
        "group size": ("generator.n_samples_per_prompt",),
        "optimizer steps per rollout batch": ("trainer.policy_mini_batch_size", "trainer.update_epochs_per_batch"),
        "upper clip": ("trainer.algorithm.eps_clip_high",),
        "coefficient of the KL": ("trainer.algorithm.kl_loss_coef",),
        "importance weights of the sampler": ("trainer.algorithm.off_policy_correction.tis_ratio_type",),
        "limits of tokens and turns": ("generator.sampling_params.max_generate_length", "generator.max_turns"),
        "limit on staleness": ("trainer.fully_async.max_staleness_steps",),
    },
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
    labels={
        **dict.fromkeys(("pg", "act_loss"), "policy_loss"),
        **dict.fromkeys(("glen", "gen_len"), "response_length"),
        **dict.fromkeys(("tlen", "tot_len"), "total_length"),
        "rm": "reward",
        "ret": "return",
        "act_lr": "actor_lr",
        "grad_norm": "actor_grad_norm",
        "ent_loss": "entropy_loss",
    },
    own_labels=frozenset({"act_lr"}),
    words={
        "learning rate": ("--actor.adam.lr", "--actor_learning_rate before 0.11"),
        "group size": ("--rollout.n_samples_per_prompt",),
        "upper clip": ("--actor.eps_clip_low_high",),
        "coefficient of the KL": ("--algo.kl.init_coef",),
        "importance weights of the sampler": ("--algo.advantage.is_correction_enable",),
        "limits of tokens and turns": ("--rollout.max_new_tokens", "--data.max_len"),
        "limit on staleness": ("--train.async_queue_size",),
    },
    marks=(
        *("actor_grad_norm", "ppo_clip_ratio", "train/actor_grad_norm", "train/ppo_clip_ratio"),
        *("train/actor_lr", "train/total_length"),
    ),
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
        Name("kl_penalty", "kl/reference"),
        Name("avg_turns_per_sample", "rollout/turns"),
        Name("truncation_rate", "rollout/truncated_fraction"),
        Name("sampling_importance_ratio", "sampler/importance_ratio"),
        Name("baseline_reward/pct_mixed", "rollout/mixed_group_fraction", "x / 100"),
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
        Name("loss/grad_norm", "grad/norm"),
        Name("loss/entropy", "entropy/mean"),
        Name("loss/kl_policy_ref", "kl/reference"),
        Name("loss/learning_rate", "lr"),
    ),
    older={f"train/{name}": f"loss/{name}" for name in ("grad_norm", "entropy", "learning_rate")},
    held_out=(r"val/(reward)",),
    marks=("train/steps_off_policy", "queue/actual_stale_fraction"),
)
"""OpenPipe's Agent Reinforcement Trainer."""

_OF_ROLL = (
    Name("critic/score/mean", "reward/mean"),
    Name("critic/score/min", "reward/min"),
    Name("critic/score/max", "reward/max"),
    Name("critic/advantages/mean", "advantage/token_mean"),
    Name("tokens/response_length/mean", "rollout/length"),
    Name("tokens/response_length/min", "rollout/min_length"),
    Name("tokens/response_length/max", "rollout/max_length"),
    Name("critic/entropy/mean", "entropy/mean"),
    Name("actor/kl_loss", "kl/reference"),
    Name("actor_train/grad_norm", "grad/norm"),
    Name("actor/ppo_ratio_clipfrac", "clip/fraction"),
    Name("actor/lr", "lr"),
    Name("time/step_total", "time/step_s"),
)

ROLL = Host(
    id="roll",
    title="ROLL",
    series=_OF_ROLL,
    more=(
        Name("rollout/score/mean", "reward/mean"),
        Name("critic/rewards/mean", "reward/mean", differs="minus the KL penalty, if that is in the reward"),
        Name("actor/entropy", "entropy/mean"),
        Name("actor/grad_norm", "grad/norm"),
    ),
    # Where a metric says how micro-batches are joined, that stays in its name. The pipeline of RLVR says `token/`.
    older={
        **{f"{row.host}@sum": row.host for row in _OF_ROLL if row.host.startswith("actor/")},
        **{row.host.replace("tokens/", "token/"): row.host for row in _OF_ROLL if row.host.startswith("tokens/")},
    },
    left_alone={
        "critic/returns/mean": "the normalised advantages, without a critic",
        "actor/clipfrac": "of the values or of the ratio, by the loss",
        "actor/approxkl": "between the policy and the old policy of this step",
    },
    held_out=(r"val/(score)/mean", r"val_correct/(.+)/mean"),
    spans=(
        Span("time/step_(rollout|generate)", "generation"),
        Span("time/(step_)?(ref|old)_log_probs\\w*", "old"),
        Span("time/step_train", "update"),
        Span("time/step_model_update", "weights"),
        Span("time/step_val", "evaluation"),
    ),
    step_seconds="time/step_total",
    words={
        "learning rate": ("actor_train.training_args.learning_rate",),
        "warm-up": ("actor_train.training_args.warmup_steps",),
        "norm of the gradient": ("max_grad_norm",),
        "group size": ("num_return_sequences_in_group",),
        "optimizer steps per rollout batch": ("ppo_epochs",),
        "importance ratio": ("dual_clip_loss: true",),
        "upper clip": ("pg_clip_high",),
        "entropy bonus": ("entropy_loss_coef",),
        "coefficient of the KL": ("kl_loss_coef",),
        "limits of tokens and turns": ("response_length", "max_actions_per_traj"),
        "limit on staleness": ("async_generation_ratio",),
    },
    marks=("actor_train/", "actor/ppo_ratio_", "actor/approxkl", "tokens/response_length/", "token/response_length/"),
)
"""Alibaba's ROLL, which shares some names with verl."""

_OF_AREAL = (
    Name("ppo_actor/task_reward/avg", "reward/mean"),
    Name("ppo_actor/task_reward/min", "reward/min"),
    Name("ppo_actor/task_reward/max", "reward/max"),
    Name("ppo_actor/seq_len/avg", "rollout/length", differs="with the prompt and all observations"),
    Name("ppo_actor/seq_len/min", "rollout/min_length"),
    Name("ppo_actor/seq_len/max", "rollout/max_length"),
    Name("ppo_actor/update/entropy/avg", "entropy/mean"),
    Name("ppo_actor/update/grad_norm", "grad/norm"),
    Name("ppo_actor/update/clip_ratio/avg", "clip/fraction"),
    Name("ppo_actor/update/lr", "lr"),
    Name("ppo_actor/update/version_stats/sample_staleness_theta_avg", "rollout/staleness"),
    Name("ppo_actor/update/version_stats/sample_staleness_theta_max", "rollout/max_staleness"),
)


def _earlier(name: str) -> tuple[str, ...]:
    """What earlier versions called it: `grpo_actor`, and without the part that an update is in."""
    plain = name.replace("/update/", "/")
    return tuple({plain, *(one.replace("ppo_actor", "grpo_actor") for one in (name, plain))} - {name})


AREAL = Host(
    id="areal",
    title="AReaL",
    trainers={"stale": "AReaL"},
    series=_OF_AREAL,
    older={other: row.host for row in _OF_AREAL for other in _earlier(row.host)},
    left_alone={
        "ppo_actor/final_reward/avg": "scaled, shifted and minus the KL penalty, by token",
        "ppo_actor/no_eos_ratios/avg": "rollouts as long as the longest of the batch, truncated or not",
        "ppo_actor/update/behave_imp_weight/avg": "without the tokens whose weight is above the limit",
    },
    held_out=(r"(eval-rollout)/reward",),
    spans=(
        Span("timeperf/rollout", "generation", waits_with=("ppo_actor/update/version_stats/",)),
        Span("timeperf/(recompute_logp|ref_logp|critic_values)", "old"),
        Span("timeperf/(critic_)?train_step", "update"),
        Span("timeperf/update_weights", "weights"),
        Span("timeperf/(eval|save|checkpoint_for_recover)", "evaluation"),
    ),
    words={
        "learning rate": ("actor.optimizer.lr",),
        "warm-up": ("actor.optimizer.warmup_steps_proportion",),
        "norm of the gradient": ("actor.optimizer.gradient_clipping",),
        "group size": ("gconfig.n_samples",),
        "optimizer steps per rollout batch": ("actor.ppo_n_minibatches",),
        "importance ratio": ("actor.c_clip=3",),
        "upper clip": ("actor.eps_clip_higher",),
        "coefficient of the KL": ("actor.kl_ctl",),
        "importance weights of the sampler": ("actor.use_decoupled_loss=true",),
        "limits of tokens and turns": ("gconfig.max_new_tokens",),
        "limit on staleness": ("rollout.max_head_offpolicyness",),
    },
    marks=("ppo_actor/", "grpo_actor/"),
)

OPEN_INSTRUCT = Host(
    id="open-instruct",
    trainers={"stale": "open-instruct"},
    series=(
        Name("scores", "reward/mean"),
        Name("val/sequence_lengths", "rollout/length", differs="with the observations"),
        Name("val/sequence_lengths_min", "rollout/min_length"),
        Name("val/sequence_lengths_max", "rollout/max_length"),
        Name("val/stop_rate", "rollout/truncated_fraction", "1 − x"),
        Name("policy/entropy_avg", "entropy/mean"),
        Name("objective/kl2_avg", "kl/reference"),
        Name("optim/grad_norm", "grad/norm"),
        Name("policy/clipfrac_avg", "clip/fraction"),
        Name("tools/aggregate/avg_calls_per_rollout", "rollout/searches", differs="calls of any tool"),
        Name("tools/aggregate/failure_rate", "rollout/failed_call_fraction"),
        Name("lr", "lr"),
        Name("time/total", "time/step_s"),
        Name("time/trainer_waiting_for_data", "time/waiting_s"),
    ),
    more=(Name("objective/verifiable_reward", "reward/mean", differs="the verifiable part of the reward"),),
    left_alone={"val/ratio": "the importance ratio", "loss/kl_avg": "the KL times its coefficient"},
    held_out=(r"eval/(scores)",),
    spans=(
        Span("time/trainer_waiting_for_data", "waiting"),
        Span("time/training", "update"),
        Span("time/weight_sync", "weights"),
        Span("time/saving", "evaluation"),
    ),
    step_seconds="time/total",
    words={
        "learning rate": ("--learning_rate",),
        "group size": ("--num_samples_per_prompt_rollout",),
        "optimizer steps per rollout batch": ("--num_epochs", "--num_mini_batches"),
        "upper clip": ("--clip_higher",),
        "coefficient of the KL": ("--beta",),
        "importance weights of the sampler": ("--use_rho_correction true",),
        "limits of tokens and turns": ("--response_length",),
        "limit on staleness": ("--async_steps",),
    },
    marks=("objective/verifiable_", "val/sequence_lengths", "tools/aggregate/"),
)
