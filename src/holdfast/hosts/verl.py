"""verl's PPO trainer, and the asynchronous trainers of its V1."""

from __future__ import annotations

from dataclasses import replace

from holdfast.hosts.host import COEF, Host, Name, OldPolicy, Seen, Settings, Span

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
AGGREGATION = f"{ACTOR}.loss_agg_mode"
CORRECTION = "algorithm.rollout_correction"
LOSS_CONFIG = "holdfast.adapters.verl.HoldfastPolicyLossConfig"
AGENT = "holdfast_search"
"""Name of the agent loop, in every row of the questions."""

CONFIGS = {
    "one_step_off_": "experimental/one_step_off_policy/config",
    "fully_async_": "experimental/fully_async_policy/config",
    "": "trainer/config",
}
"""How the name of a configuration begins -> its folder in the package."""

_OBSERVER = f"`{ACTOR}.policy_loss.loss_mode=holdfast_observe`, which leaves the loss as it is"
_PENALTY = (
    f"{ACTOR}.policy_loss.loss_mode=holdfast_llds",
    f"{ACTOR}.policy_loss._target_={LOSS_CONFIG}",
    f"+{ACTOR}.policy_loss.penalty_coef={COEF}",
)
_SUMS = ("seq-mean-token-sum", "token-sum")


def _doubtful(series: Seen, settings: Settings) -> dict[str, str]:
    reasons: dict[str, str] = {}
    if str(settings.get(AGGREGATION, "")).startswith(_SUMS):
        summed = f"under loss_agg_mode={settings[AGGREGATION]} verl sums it over tokens"
        reasons |= {name: summed for name in ("actor/entropy", "actor/kl_loss") if name in series}
    clipped = series.get("response_length/clip_ratio")
    if clipped is not None and (clipped.values > 0).all():
        # verl before 0.9 pads responses to the longest allowed; later versions to the longest of the batch, which is
        # always as long as itself. So a 0 anywhere shows that the name means truncation.
        reasons["response_length/clip_ratio"] = (
            "it is never 0 here. Since verl 0.9, it counts rollouts that are as long as the longest of the batch, "
            "truncated or not"
        )
    return reasons


V1 = "training/off_policy/trajectory_staleness"
"""What the trainers of V1 log of the age of rollouts, in versions of the weights; 0 in the synchronous one."""
_BYPASS = f"{CORRECTION}.bypass_mode"
_MODE = "trainer.v1.trainer_mode"


def _variant(series: Seen, settings: Settings) -> str:
    """Whether one of V1's asynchronous trainers wrote the log: by the settings, or because rollouts are old."""
    if _MODE in settings:
        return "verl-async" if str(settings[_MODE]).endswith("_async") else ""
    age = series.get(f"{V1}/max") or series.get(f"{V1}/mean")
    is_old = age is not None and bool((age.values > 0).any())
    return "verl-async" if is_old or any(name.startswith("separate_async/") for name in series) else ""


_ONE_STEP_OFF = "timing_s/generate_async"
"""What the one-step-off trainer alone logs: the time of the rollouts that it made meanwhile."""


def _old_policy(series: Seen, settings: Settings) -> OldPolicy:
    """The sampler in bypass mode: by the settings, else by what a step spends its time on. That mode is the default of
    the one-step-off and the fully asynchronous trainer, and computes no old log-probs."""
    bypass = settings.get(_BYPASS)
    if bypass is None:
        is_async = _ONE_STEP_OFF in series or any(name.startswith("fully_async/") for name in series)
        bypass = is_async and "timing_s/old_log_prob" not in series
    return "sampler" if bypass is True else "recomputed"


VERL = Host(
    id="verl",
    variant=_variant,
    old_policy=_old_policy,
    trainers={
        "fresh": "verl's synchronous trainers",
        "sampler": "verl's `one_step_off` and `fully_async` (`bypass_mode`)",
    },
    series=(
        Name("critic/score/mean", "reward/mean"),
        Name("critic/score/min", "reward/min"),
        Name("critic/score/max", "reward/max"),
        Name("critic/advantages/mean", "advantage/token_mean"),
        Name("critic/values/mean", "critic/value_mean"),
        Name("critic/vf_explained_var", "critic/explained_variance"),
        Name("critic/vf_loss", "critic/value_loss"),
        Name("critic/vf_clipfrac", "critic/clip_fraction"),
        Name("actor/entropy", "entropy/mean"),
        Name("actor/kl_loss", "kl/reference"),
        Name("actor/grad_norm", "grad/norm"),
        Name("actor/pg_clipfrac", "clip/fraction"),
        Name("actor/lr", "lr"),
        Name(
            "response_length/mean",
            "rollout/length",
            differs="all tokens after the prompt, including observations, not only the sampled tokens",
        ),
        Name("response_length/min", "rollout/min_length"),
        Name("response_length/max", "rollout/max_length"),
        Name("response_length/clip_ratio", "rollout/truncated_fraction"),
        Name("response/aborted_ratio", "rollout/failed_fraction"),
        Name("tool_call_counts/mean", "rollout/searches", differs="calls of any tool"),
        Name("num_turns/mean", "rollout/turns", differs="the question and every tool result count as turns too"),
        Name("rollout_corr/kl", "sampler/logprob_gap"),
        Name("training/rollout_probs_diff_mean", "sampler/prob_abs_gap"),
        Name("timing_s/gen", "time/rollout_s"),
    ),
    more=(
        Name("rollout_corr/rollout_is_mean", "sampler/importance_ratio"),
        Name("rollout_corr/rollout_is_eff_sample_size", "sampler/ess"),
        Name(
            "actor/rollout_corr/rollout_is_eff_sample_size",  # of the loss for bypass mode
            "sampler/ess",
            differs="weights of the policy that learns, not of the old one",
        ),
        Name("training/rollout_actor_probs_pearson_corr", "sampler/prob_correlation"),
        Name("fully_async/count/dropped_stale_samples", "rollout/dropped_stale"),
        Name("critic/rewards/mean", "reward/mean", differs="minus the KL penalty, if that is in the reward"),
        # of Search-R1
        Name("env/number_of_valid_search", "rollout/searches"),
        Name("env/number_of_actions/mean", "rollout/turns"),
        Name("env/ratio_of_valid_action", "rollout/invalid_fraction", "1 − x"),
        Name("env/finish_ratio", "rollout/answered_fraction"),
        # of verl-agent
        Name("episode/length/mean", "rollout/turns"),
        Name("episode/valid_action_ratio", "rollout/invalid_fraction", "1 − x"),
        Name("critic/task_round/mean", "rollout/turns"),  # of AgentGym-RL
        # of rLLM
        Name("batch/solve_all", "rollout/all_correct_fraction"),
        Name("batch/solve_none", "rollout/all_wrong_fraction"),
        Name("batch/solve_partial", "rollout/mixed_group_fraction"),
        Name("batch/default/fractions/effective", "rollout/mixed_group_fraction"),
    ),
    older={
        "actor/entropy_loss": "actor/entropy",
        "actor/reward_kl_penalty": "actor/kl_loss",
        "critic/kl": "actor/kl_loss",
        "episode/tool_call_count/mean": "tool_call_counts/mean",  # of verl-agent
    },
    left_alone={
        "critic/returns/mean": "without a critic verl logs the advantages here",
        "critic/vpred_mean": "measured during the critic's update; holdfast measures before it",
        "actor/pg_loss": "includes the penalty if our loss function is used",
        "actor/ppo_kl": "per token; ours is a sum over a rollout",
        "timing_s/step": "includes evaluation",
    },
    held_out=(
        r"val-(?:core|aux)/(.+)/(?:acc|reward|score)/mean(?:@|_at_)\d+",
        r"val/test_score/(.+)",  # of Search-R1, as the next ones are of verl-agent, rLLM and Agent Lightning
        r"val/(.+)/(?:test_score|pass@1)",
        r"val/(success_rate|reward)",
        r"val[-_](?:core|aux)_(.+)_(?:acc|reward|score)_mean(?:_at)?[@_]\d+",  # in an export without slashes
    ),
    spans=(
        Span("timing_s/gen", "generation", waits_with=("fully_async/", _ONE_STEP_OFF)),
        # Of the rollout that took longest, so it is part of the wall time, unlike the means over rollouts.
        Span("timing_s/agent_loop/slowest/tool_calls", "tool", inside="timing_s/gen"),
        Span("timing_s/reward", "tool"),
        Span("timing_s/(old_log_prob|ref|values|adv)", "old"),
        Span("timing_s/update_(actor|critic)", "update"),
        Span("timing_s/(update_weights|param_sync|sync_rollout_weights)", "weights"),
        Span("timing_s/(testing|save_checkpoint)", "evaluation"),
    ),
    step_seconds="timing_s/step",
    families=("actor/", "critic/", "response_length/", "rollout_corr/", "val-core/", "val-aux/", "timing_s/"),
    doubtful=_doubtful,
    settings={
        "run.name": "trainer.experiment_name",
        "run.seed": "data.seed",
        "model.lora_rank": f"{MODEL}.lora_rank",
        "model.lora_alpha": f"{MODEL}.lora_alpha",
        "model.trust_remote_code": f"{MODEL}.trust_remote_code",
        "model.gradient_checkpointing": f"{MODEL}.enable_gradient_checkpointing",
        "model.chat_template_kwargs": "+data.apply_chat_template_kwargs",
        "train.questions": "data.train_batch_size",
        "train.group_size": f"{ROLLOUT}.n",
        "train.steps": "trainer.total_training_steps",
        "train.lr": f"{ACTOR}.optim.lr",
        "train.weight_decay": f"{ACTOR}.optim.weight_decay",
        "train.grad_clip": f"{ACTOR}.optim.clip_grad",
        "train.micro_batch_tokens": f"{ACTOR}.ppo_max_token_len_per_gpu",
        "loss.clip_low": f"{ACTOR}.clip_ratio_low",
        "loss.clip_high": f"{ACTOR}.clip_ratio_high",
        "loss.reduction": AGGREGATION,
        "loss.entropy_coef": f"{ACTOR}.entropy_coeff",
        "loss.kl_coef": f"{ACTOR}.kl_loss_coef",
        "sampling.temperature": f"{ROLLOUT}.temperature",
        "sampling.top_p": f"{ROLLOUT}.top_p",
        "protocol.max_total_tokens": f"{ROLLOUT}.max_model_len",
        "eval.samples": f"{ROLLOUT}.val_kwargs.n",
        "eval.start": "trainer.val_before_train",
        "checkpoint.keep": "trainer.max_actor_ckpt_to_keep",
        "critic.lr": "critic.optim.lr",
        "critic.gamma": "algorithm.gamma",
        "critic.lam": "algorithm.lam",
        "reward.kl": "algorithm.kl_ctrl.kl_coef",
    },
    words={
        "schedule": (f"{ACTOR}.optim.total_training_steps",),
        "warm-up": (f"{ACTOR}.optim.lr_warmup_steps",),
        "optimizer steps per rollout batch": (f"{ACTOR}.ppo_epochs", f"{ACTOR}.ppo_mini_batch_size"),
        "importance ratio": (f"{ACTOR}.clip_ratio_c=3",),
        "penalty on lost likelihood": _PENALTY,
        "limit on staleness": ("async_training.staleness_threshold",),
        "threshold": (f"{ACTOR}.policy_loss.penalty_threshold",),
        "tau": (f"{ACTOR}.policy_loss.penalty_tau",),
        "preserve more rollouts": (f"{ACTOR}.policy_loss.penalty_preserve",),
        "without top-p and top-k": (f"{ROLLOUT}.top_p=1", f"{ROLLOUT}.top_k=-1"),
        "importance weights of the sampler": (CORRECTION,),
        "rollouts": ("trainer.rollout_data_dir",),
        "limits of tokens and turns": ("data.max_response_length", f"{ROLLOUT}.multi_turn.max_assistant_turns"),
        "retriever": (f"{ROLLOUT}.agent.agent_loop_config_path",),
    },
    logged_by={
        "drift/": _OBSERVER,
        "likelihood/positive": _OBSERVER,
        "likelihood/negative": _OBSERVER,
        "ratio/": _OBSERVER,
        "penalty/": f"`{_PENALTY[0]}`",
        "clip/": "every actor of verl (`actor/pg_clipfrac`)",
        "grad/norm": "every actor of verl (`actor/grad_norm`)",
        "entropy/mean": "verl's trainer (`actor/entropy`)",
        "rollout/length": "verl's trainer (`response_length/mean`)",
        "reward/mean": "verl's trainer (`critic/score/mean`)",
        "lr": "verl's trainer (`actor/lr`)",
        "rollout/turns": "verl's trainer, with an agent loop",
        "sampler/importance_ratio": f"`{CORRECTION}` with importance weights",
        "sampler/ess": f"`{CORRECTION}` with importance weights",
        "sampler/logprob_gap": f"`{ROLLOUT}.calculate_log_probs=True` (`rollout_corr/kl`)",
        "sampler/prob_abs_gap": f"`{ROLLOUT}.calculate_log_probs=True` (`training/rollout_probs_diff_mean`)",
        "kl/": f"`{ACTOR}.use_kl_loss=True` (`actor/kl_loss`)",
    },
    saved_every="trainer.save_freq",
)


VERL_ASYNC = replace(
    VERL,
    id="verl-async",
    title="verl's asynchronous V1 trainer",
    kin="verl",
    trainers={"stale": "verl's V1 `separate_async` and `colocate_async`"},
    more=(
        *VERL.more,
        Name("training/off_policy/trajectory_staleness/mean", "rollout/staleness"),
        Name("training/off_policy/trajectory_staleness/max", "rollout/max_staleness"),
        Name("training/off_policy/evicted_samples", "rollout/dropped_stale"),
        Name("timing_s/switch_wait", "time/waiting_s"),
    ),
    variant=lambda series, settings: "",
    spans=(
        *VERL.spans,
        Span("timing_s/switch_wait", "waiting"),
        Span("timing_s/switch_to_(trainer|rollout)", "weights"),
    ),
    words={
        **VERL.words,
        "limit on staleness": (
            "trainer.v1.sampler.max_off_policy_threshold",
            "trainer.v1.separate_async.parameter_sync_step",
        ),
    },
    logged_by={**VERL.logged_by, "rollout/staleness": f"every trainer of V1 (`{V1}/mean`)"},
)
"""verl's V1 trainers `separate_async` and `colocate_async` (0.9), whose rollouts may be versions old.

Both recompute the old policy unless `algorithm.rollout_correction.bypass_mode` is set: from the weights of the last
synchronisation, or of the start of the batch. They correct nothing by default.
"""
