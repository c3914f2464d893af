"""Trainers of whose names only the log and some settings are known: ROLL, AReaL, open-instruct, rLLM."""

from holdfast.hosts.host import Host, Name, Span

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
"""Alibaba's ROLL, whose names are in part those of verl."""

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
