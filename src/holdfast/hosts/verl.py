"""verl's PPO trainer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from holdfast import __version__
from holdfast.hosts.host import (
    ANYWHERE,
    Elsewhere,
    Here,
    Host,
    Launch,
    Logged,
    Name,
    Noted,
    Option,
    Reference,
    Refused,
    Setting,
    Translation,
)

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
AGENT_LOOPS = "agent_loops.yaml"
AGENT = "holdfast_search"
"""Name of the agent loop, in every row of the questions."""
ANSWER_SPAN = "answer-span"
"""The value of `penalty_answer` for the `answer_span` of a rollout's `extra_fields`, as holdfast's agent loop fills
them."""

CONFIGS = {
    "one_step_off_": "experimental/one_step_off_policy/config",
    "fully_async_": "experimental/fully_async_policy/config",
    "": "trainer/config",
}
"""How the name of a configuration begins -> its folder in the package."""

_OBSERVER = f"`{ACTOR}.policy_loss.loss_mode=holdfast_observe`, which leaves the loss as it is"
_PENALTY = (
    f"{ACTOR}.policy_loss.loss_mode=holdfast_llds",
    f"{ACTOR}.policy_loss._target_=holdfast.adapters.verl.HoldfastPolicyLossConfig",
    f"+{ACTOR}.policy_loss.penalty_coef=1.0",
)
_AGGREGATION = f"{ACTOR}.loss_agg_mode"
_SUMS = ("seq-mean-token-sum", "token-sum")


def _doubtful(series: Mapping[str, Logged], settings: Mapping[str, object]) -> dict[str, str]:
    reasons: dict[str, str] = {}
    if str(settings.get(_AGGREGATION, "")).startswith(_SUMS):
        summed = f"under loss_agg_mode={settings[_AGGREGATION]} verl sums it over tokens"
        reasons |= {name: summed for name in ("actor/entropy", "actor/kl_loss") if name in series}
    clipped = series.get("response_length/clip_ratio")
    if clipped is not None and (clipped.values > 0).all():
        # verl before 0.9 pads responses to the longest allowed; later versions to the longest of the batch, which is
        # always as long as itself. So a 0 anywhere shows that the name means truncation.
        reasons["response_length/clip_ratio"] = (
            "it is never 0 here, and since verl 0.9 it counts the rollouts as long as the longest of the batch, "
            "truncated or not"
        )
    return reasons


# ---- a recipe for it

_K = "train.optimizer_steps_per_rollout"
_WEIGHTS = "loss.methods.sampler_weights"
_CORRECTION = "algorithm.rollout_correction"
_NO_VALUE_CLIP = 1e9  # verl always clips values
_NO_DUAL_CLIP = 1e9  # verl always clips twice; ratios end at e^20, below this
_KL = {"k3": "low_var_kl", "k2": "mse"}
_SURROGATES = {"clip": "vanilla", "cispo": "cispo", "dppo": "dppo_tv"}


def _gae(recipe: Any) -> bool:
    """PPO: GAE, the KL in the reward, and verl's critic, which takes mini-batches as the actor does."""
    return bool(recipe.loss.advantage == "gae")


def _lora(recipe: Any) -> bool:
    return bool(recipe.model.lora_rank)


def _full(recipe: Any) -> bool:
    return bool(recipe.model.autocast == "none")


def _groups(recipe: Any) -> bool:
    return not _gae(recipe)


def _samples(recipe: Any) -> bool:
    return bool(recipe.eval.samples > 1)


def _response(recipe: Any) -> int:
    total: int = recipe.protocol.max_total_tokens
    return total - prompt_tokens(total)


def prompt_tokens(total: int) -> int:
    """Tokens of a rollout of `total` that verl reserves for the prompt: an eighth, or 256, but at most half.

    >>> prompt_tokens(4096), prompt_tokens(1024), prompt_tokens(256)
    (512, 256, 128)
    """
    return min(max(total // 8, 256), total // 2)


def _dual_clip(recipe: Any) -> Iterator[Option]:
    bound, why = recipe.loss.dual_clip, "loss.dual_clip"
    yield Option(f"{ACTOR}.clip_ratio_c", _NO_DUAL_CLIP if bound is None else bound, why if bound else f"{why}: none")


def _policy_loss(recipe: Any) -> Iterator[Option]:
    """The loss: one of verl, inside one of holdfast."""
    prefix, loss = f"{ACTOR}.policy_loss", recipe.loss
    yield Option(f"{prefix}._target_", "holdfast.adapters.verl.HoldfastPolicyLossConfig", "fields of our own")
    yield Option(f"{prefix}.loss_mode", recipe.verl_loss, "loss.penalty.name, loss.penalty.gate")
    yield Option(f"+{prefix}.holdfast_version", __version__, "every machine must have this one")
    base = "gspo" if loss.ratio == "sequence" else _SURROGATES[loss.surrogate]
    yield Option(f"+{prefix}.base_loss_mode", base, "loss.ratio, loss.surrogate")
    yield Option(f"+{prefix}.rollout_correction", Reference(_CORRECTION), "a loss must know what is done to its mask")
    uses_answer = loss.penalty.term is not None and loss.penalty.term.uses_answer_mask
    if uses_answer:
        yield Option(f"+{prefix}.penalty_answer", ANSWER_SPAN, "the answer, as holdfast's agent loop reports it")
    for key in recipe.verl_penalty_settings:
        value = getattr(loss.penalty, key)
        if value not in (None, {}) and (uses_answer or not key.startswith("answer_")):
            yield Option(f"+{prefix}.penalty_{key}", value, f"loss.penalty.{key}")


def _of_methods(prefix: str, recipe: Any) -> list[Option]:
    return [option for option in recipe.method_options if option.name.startswith(prefix)]


SETTINGS = (
    Setting("data.train_files", "data.train", Here("train.parquet")),
    Setting("data.val_files", "data.dev, eval.questions", Here("dev.parquet")),
    Setting("data.max_prompt_length", "protocol.max_total_tokens: room for the question",
            lambda r: prompt_tokens(r.protocol.max_total_tokens)),
    Setting("data.max_response_length", "protocol.max_total_tokens: the rest", _response),
    Setting("data.trust_remote_code", "model.trust_remote_code: of the tokenizer",
            lambda r: r.model.trust_remote_code),
    Setting("data.seed", "run.seed"),
    Setting("data.train_batch_size", "train.questions"),
    Setting(f"{MODEL}.path", "model.path", lambda r: r.model_path),
    Setting(f"{MODEL}.lora_rank", "model.lora_rank", when=_lora),
    Setting(f"{MODEL}.lora_alpha", "model.lora_alpha", when=_lora),
    Setting(f"{MODEL}.target_modules", "model.lora_rank", "all-linear", _lora),
    Setting(f"{MODEL}.trust_remote_code", "model.trust_remote_code"),
    Setting(f"{MODEL}.enable_gradient_checkpointing", "model.gradient_checkpointing"),
    Setting(f"{ACTOR}.optim.lr", "train.lr"),
    Setting(f"{ACTOR}.optim.weight_decay", "train.weight_decay"),
    Setting(f"{ACTOR}.optim.clip_grad", "train.grad_clip"),
    Setting(f"{ACTOR}.clip_ratio_low", "loss.clip_low"),
    Setting(f"{ACTOR}.clip_ratio_high", "loss.clip_high"),
    Setting(_AGGREGATION, "loss.reduction"),
    Setting(f"{ACTOR}.entropy_coeff", "loss.entropy_coef"),
    Setting(f"{ACTOR}.ppo_mini_batch_size", f"{_K}: questions in a step, times rollout.n", lambda r: r.mini_batch),
    Setting(f"{ACTOR}.ppo_epochs", "every rollout is used once", 1),
    Setting(f"{ACTOR}.shuffle", "train.minibatches", lambda r: r.train.minibatches == "shuffled"),
    Setting(f"{ACTOR}.use_dynamic_bsz", "train.micro_batch_tokens", True),
    Setting(f"{ACTOR}.ppo_max_token_len_per_gpu", "train.micro_batch_tokens"),
    Setting(f"{ACTOR}.data_loader_seed", "run.seed"),
    Setting(f"{ACTOR}.optim.lr_scheduler_type", "train.warmup", "constant"),
    Setting(f"{ACTOR}.optim.lr_warmup_steps", "train.warmup; rollout batches here too", lambda r: r.train.warmup),
    Setting(f"+{ACTOR}.fsdp_config.mixed_precision.param_dtype", "model.autocast", "fp32", _full),
    Setting(f"{ACTOR}.use_kl_loss", "loss.kl_coef", lambda r: r.loss.kl_coef > 0),
    Setting(f"{ACTOR}.kl_loss_coef", "loss.kl_coef"),
    Setting(f"{ACTOR}.kl_loss_type", "loss.kl_estimator", lambda r: _KL[r.loss.kl_estimator]),
    _dual_clip,
    Setting(f"{ACTOR}.loss_scale_factor", "protocol.max_turns, protocol.max_turn_tokens",
            lambda r: r.protocol.max_sampled_tokens, lambda r: r.loss.reduction == "seq-mean-token-sum-norm"),
    _policy_loss,
    Setting("+actor_rollout_ref.ref.fsdp_config.mixed_precision.param_dtype", "model.autocast", "fp32", _full),
    Setting(f"{ROLLOUT}.load_format", "model.lora_rank: the server needs the base weights", "safetensors", _lora),
    Setting(f"{ROLLOUT}.n", "train.group_size"),
    Setting(f"{ROLLOUT}.temperature", "sampling.temperature"),
    Setting(f"{ROLLOUT}.top_p", "sampling.top_p"),
    partial(_of_methods, f"{ROLLOUT}."),
    Setting(f"{ROLLOUT}.name", "the rollout server", "vllm"),
    Setting(f"{ROLLOUT}.tensor_model_parallel_size", "a server on each GPU", 1),
    Setting(f"{ROLLOUT}.gpu_memory_utilization", "as in the published runs", 0.6),
    Setting(f"{ROLLOUT}.max_model_len", "protocol.max_total_tokens"),
    Setting(f"{ROLLOUT}.top_k", "sampling.top_k", lambda r: r.sampling.top_k or -1),
    Setting(f"{ROLLOUT}.seed", "run.seed; verl 0.8 has no such option: delete this line there", lambda r: r.run.seed),
    Setting(f"{ROLLOUT}.agent.default_agent_loop", "the search agent", AGENT),
    Setting(f"{ROLLOUT}.agent.agent_loop_config_path", "protocol, retrieval", Here(AGENT_LOOPS)),
    Setting(f"{ROLLOUT}.val_kwargs.n", "eval.samples"),
    Setting(f"{ROLLOUT}.val_kwargs.do_sample", "eval.samples: one is greedy", _samples),
    Setting(f"{ROLLOUT}.val_kwargs.temperature", "eval.samples",
            lambda r: r.sampling.temperature if _samples(r) else 0),
    Setting("critic.model.path", "model.path: a copy of the start", lambda r: r.model_path, _gae),
    Setting("critic.model.trust_remote_code", "model.trust_remote_code", when=_gae),
    Setting("critic.model.enable_gradient_checkpointing", "model.gradient_checkpointing", when=_gae),
    Setting("critic.model.lora_rank", "model.lora_rank", when=lambda r: _gae(r) and _lora(r)),
    Setting("critic.model.lora_alpha", "model.lora_alpha", when=lambda r: _gae(r) and _lora(r)),
    Setting("+critic.fsdp.mixed_precision.param_dtype", "model.autocast", "fp32", lambda r: _gae(r) and _full(r)),
    Setting("critic.optim.lr", "critic.lr", when=_gae),
    Setting("critic.optim.lr_warmup_steps", "critic.warmup; rollout batches here too", lambda r: r.critic.warmup, _gae),
    Setting("critic.optim.weight_decay", "train.weight_decay", when=_gae),
    Setting("critic.optim.clip_grad", "train.grad_clip", when=_gae),
    Setting("critic.cliprange_value", "critic.clip", lambda r: r.critic.clip or _NO_VALUE_CLIP, _gae),
    Setting("critic.loss_agg_mode", "the loss of values is a mean over tokens", "token-mean", _gae),
    Setting("critic.ppo_max_token_len_per_gpu", "train.micro_batch_tokens", when=_gae),
    Setting("critic.data_loader_seed", "run.seed", when=_gae),
    Setting("algorithm.adv_estimator", "loss.advantage", "gae", _gae),
    Setting("algorithm.gamma", "critic.gamma", when=_gae),
    Setting("algorithm.lam", "critic.lam", when=_gae),
    Setting("algorithm.use_kl_in_reward", "reward.kl", lambda r: r.reward.kl > 0, _gae),
    Setting("algorithm.kl_penalty", "reward.kl: old minus starting log-prob", "kl", _gae),
    Setting("algorithm.kl_ctrl.kl_coef", "reward.kl", when=_gae),
    Setting("algorithm.adv_estimator",
            "loss.advantage, loss.baseline; a rollout alone in its group keeps its reward",
            lambda r: "opo" if r.loss.baseline == "length" else "grpo", _groups),
    Setting("algorithm.norm_adv_by_std_in_grpo", "loss.advantage", lambda r: r.loss.advantage == "grpo", _groups),
    Setting("algorithm.use_kl_in_reward", "the KL is in the loss", False, _groups),
    partial(_of_methods, "algorithm."),
    Setting("trainer.max_actor_ckpt_to_keep", "checkpoint.keep"),
    Setting("trainer.nnodes", "--nodes", lambda r: r.machines.nodes),
    Setting("trainer.n_gpus_per_node", "--gpus", lambda r: r.machines.gpus),
    Setting("trainer.total_training_steps", "train.steps"),
    Setting("trainer.total_epochs", "train.steps: no epoch has fewer than one", lambda r: r.train.steps),
    Setting("trainer.val_before_train", "eval.start"),
    Setting("trainer.test_freq", "eval.every", lambda r: r.eval.every or r.train.steps),
    Setting("trainer.save_freq", "checkpoint.every", lambda r: r.checkpoint.every or r.train.steps),
    Setting("trainer.default_local_dir", "run.dir, run.name", lambda r: Here(Path(r.run.dir, r.run.name))),
    Setting("trainer.project_name", "track.wandb", lambda r: r.track.wandb or "holdfast"),
    Setting("trainer.experiment_name", "run.name"),
    Setting("trainer.logger", "track.wandb, track.tensorboard", lambda r: ["console", "file", *r.trackers]),
)  # fmt: skip
"""Overrides of `verl.trainer.main_ppo`."""

_LOOP, _DATA = Elsewhere(AGENT_LOOPS), Elsewhere("the parquet files")
_ABSENT = Elsewhere("the bundled world, which verl cannot train on: a recipe that verl can run has none of it")
_UNMEASURED = Noted("displacement is not measured in verl")

OTHERS: Mapping[str, Elsewhere | Noted | Refused] = {
    "run.code": Elsewhere("PYTHONPATH in run.sh"),
    "run.device": Elsewhere("refused if it is 'cpu'"),
    "retrieval.url": _LOOP,
    "protocol": _LOOP,
    "protocol.prompt": _DATA,
    "model.chat_template": _LOOP,
    "reward": _LOOP,
    "data": _DATA,
    "eval.questions": _DATA,
    "loss.penalty": Elsewhere("policy_loss"),
    **dict.fromkeys(("world", "world.model", "world.scripts"), _ABSENT),
    "faults": Noted("verl's rollouts have no faults on purpose"),
    "run.threads": Noted("Ray gives every worker its threads"),
    "retrieval.stem": Noted("the server of the index has its own"),
    "retrieval.fields": Noted("the index of the server has its passages"),
    "retrieval.cache_size": Noted("the server has its own cache"),
    "run.max_failed_fraction": Noted("verl continues however many rollouts fail. It leaves them out and logs that"),
    "train.displacement_every": Noted("a loss function of verl cannot see rollouts before and after a whole update"),
    "train.displacement_rows": _UNMEASURED,
    "train.per_sample_every": _UNMEASURED,
    "train.per_sample_questions": _UNMEASURED,
    "track.trajectories": Noted(
        "verl writes all rollouts of a step or none; for all, add trainer.rollout_data_dir=rollouts"
    ),
    "guard": Noted("verl has no callbacks while it trains; run `holdfast diagnose` on its log instead"),
    "warm_start": Noted("a warm start is a separate stage before training"),
    "retrieval.corpus": Refused(
        "verl's rollouts run on many machines, so they need a retrieval server. Serve these passages (`holdfast "
        "index build`, then `holdfast serve`), and set retrieval.url to its address"
    ),
    "retrieval.index": Refused(
        "verl's rollouts run on many machines, so they need a retrieval server. Start `holdfast serve` with this "
        "folder, and set retrieval.url to its address"
    ),
    "sampling.mask_logprobs": Refused(
        "the log-probs of verl's loss are over the whole vocabulary. Set sampling.top_p = 1 and sampling.top_k = 0, or "
        "use TRL"
    ),
    "warm_start.steps": Refused(
        "verl's trainer has no warm start. Make the model with `holdfast warm-start RECIPE`, set "
        "model.path to the folder it names, and warm_start.steps = 0"
    ),
    **ANYWHERE,
    "critic.path": Refused("verl's critic starts from a model, but this is a checkpoint of holdfast. Leave it out"),
    "critic.whiten": Refused("verl whitens every advantage of a critic. Leave it at true, or use `holdfast train`"),
}


def _sampler_weights(method: Any, recipe: Any) -> Translation:
    """verl's `rollout_correction`."""
    problems = tuple(_weight_problems(method, getattr(recipe.loss.penalty, "gate", "")))
    return Translation(options=() if problems else tuple(_weights(method)), problems=problems)


def _weights(method: Any) -> Iterator[Option]:
    yield Option(f"{ROLLOUT}.calculate_log_probs", True, f"{_WEIGHTS}.on: the sampler's log-probs")
    if method.keep == "reject":
        kind = "token" if method.level == "token" else "seq_mean" if method.aggregate == "mean" else "seq_sum"
        why = f"{_WEIGHTS}.level, {_WEIGHTS}.aggregate, {_WEIGHTS}.keep"
        yield Option(f"{_CORRECTION}.rollout_rs", f"{kind}_k1", why)
        band = f"{1 / method.high:.6g}_{1 / method.low:.6g}"
        why = f"1 / {_WEIGHTS}.high, 1 / {_WEIGHTS}.low: verl's are of 1 / w"
        yield Option(f"{_CORRECTION}.rollout_rs_threshold", band, why)
        return
    yield Option(f"{_CORRECTION}.rollout_is", method.level, f"{_WEIGHTS}.level, {_WEIGHTS}.aggregate")
    band = f"{method.low:g}_{method.high:g}" if method.keep == "mask" else f"{method.high:g}"
    yield Option(f"{_CORRECTION}.rollout_is_threshold", band, f"{_WEIGHTS}.keep, {_WEIGHTS}.low, {_WEIGHTS}.high")


def _weight_problems(method: Any, gate: str) -> Iterator[str]:
    if method.level == "action":
        yield (
            f"{_WEIGHTS}.level = 'action': verl's correction does not know actions. The nearest are 'token' and "
            "'sequence'"
        )
    if method.aggregate == "mean" and method.keep != "reject":
        yield (
            f"{_WEIGHTS}.aggregate = 'mean' with {_WEIGHTS}.keep = {method.keep!r}: verl's weight of a sequence is the "
            f"product of its ratios. Set {_WEIGHTS}.keep = 'reject', or {_WEIGHTS}.aggregate = 'product'"
        )
    if method.keep == "truncate" and method.low:
        yield (
            f"{_WEIGHTS}.low = {method.low:g} with {_WEIGHTS}.keep = 'truncate': verl's cut has no lower bound. Set it "
            "to 0"
        )
    if method.keep != "truncate" and not method.low:
        yield (
            f"{_WEIGHTS}.low = 0 with {_WEIGHTS}.keep = {method.keep!r}: verl needs two bounds above 0. Set "
            f"{_WEIGHTS}.low, for example 0.5"
        )
    if method.keep == "reject" and method.level == "token" and gate == "action":
        yield (
            f"{_WEIGHTS}.keep = 'reject' with {_WEIGHTS}.level = 'token' and loss.penalty.gate = 'action': verl takes "
            "rejected tokens out of the mask, which splits actions before the gate sees them. Set the level to "
            "'sequence', or the gate to 'response' or 'token'"
        )


def _problems(recipe: Any) -> Iterator[str]:
    loss, train = recipe.loss, recipe.train
    for name, value in recipe.values.items():
        fate = OTHERS.get(name) or OTHERS.get(name.rpartition(".")[0])
        if "${" in str(value) and fate is not _DATA and not isinstance(fate, Noted):
            yield (
                f"{name} = {recipe.as_toml(value)}: verl's configuration replaces every ${{...}}, for example by a "
                "variable of the environment, so the text would not get there as it is. Write it without ${"
            )
    if recipe.data.train == "world":
        yield (
            "data.train = 'world': the bundled world exists only inside one process, but verl's rollouts need a "
            "server. Set data.train to your questions and retrieval.url to a server over your passages, or train on "
            "it in TRL"
        )
    elif recipe.retrieval.url is None and recipe.retrieval.corpus == "world" and recipe.protocol.searches:
        yield "retrieval.url is not set, but verl's rollouts need a retrieval server; set it to the address of one"
    if recipe.model.path == "tiny" and not recipe.warm_start.steps:
        yield (
            "model.path = 'tiny': verl's rollout servers load a model from a folder or the hub, but the tiny one is "
            "made by holdfast. Set model.path, for example to 'Qwen/Qwen2.5-0.5B-Instruct'"
        )
    if recipe.run.device == "cpu":
        yield "run.device = 'cpu': verl's rollout servers need GPUs. Leave it at 'auto', or use TRL"
    if recipe.verl_loss is None:
        yield (
            f"loss.penalty.name = {loss.penalty.name!r}: verl does not have this penalty; the nearest is 'sapo', or "
            "use TRL"
        )
    if getattr(loss.penalty.term, "preserve", None) == "correct":
        yield (
            "loss.penalty.preserve = 'correct': a loss function of verl sees advantages, not rewards. The nearest is "
            "'positive', which leaves out groups whose rollouts are all correct"
        )
    if loss.advantage == "reinforce" and train.group_size > 1:
        yield (
            f"loss.advantage = 'reinforce' with train.group_size = {train.group_size}: verl subtracts the mean of a "
            "group. Set train.group_size = 1, where there is none, or loss.advantage = 'dr_grpo'"
        )
    if loss.baseline == "length" and loss.advantage != "dr_grpo":
        yield (
            f"loss.baseline = 'length' with loss.advantage = {loss.advantage!r}: verl supports it only without "
            "division by the standard deviation, as in OPO. Set loss.advantage = 'dr_grpo', or loss.baseline = 'mean'"
        )
    if loss.ratio == "action":
        yield "loss.ratio = 'action': verl's losses do not know actions. The nearest are 'token' and 'sequence'"
    yield from recipe.method_problems
    if loss.ratio == "sequence" and loss.dual_clip is not None:
        yield (
            f"loss.dual_clip = {loss.dual_clip} with loss.ratio = 'sequence': verl's GSPO has no dual clip; leave "
            "it out"
        )
    if train.micro_batch_tokens < recipe.protocol.max_total_tokens:
        yield (
            f"train.micro_batch_tokens = {train.micro_batch_tokens} with protocol.max_total_tokens = "
            f"{recipe.protocol.max_total_tokens}: verl fails on a rollout that does not fit into one forward pass. "
            "Raise the first to at least the second"
        )
    if problem := recipe.verl_schedule_problem:
        yield problem


def _differences(recipe: Any) -> Iterator[str]:
    yield from recipe.truncation("Set")
    yield from recipe.method_notes
    yield "verl keeps the newest checkpoints, but not the best on dev"
    yield (
        "verl has separate limits for prompt and response, so with a short prompt a rollout ends before "
        "protocol.max_total_tokens"
    )
    yield from recipe.local_notes
    if recipe.loss.advantage == "gae":
        yield "the value head of verl's critic begins at random, not at zero"
    penalty = recipe.loss.penalty.term
    if penalty is not None and penalty.uses_search_count:
        yield "the weight of the answer depends on the searches in the last 256 rollouts of a process"
    if recipe.train.warmup:
        yield "verl's warm-up begins at a learning rate of 0, so the first rollout batch changes nothing"


VERL = Host(
    id="verl",
    versions=((0, 8), (0, 11)),
    versions_text="0.8, 0.9 or 0.10",
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
            differs="all tokens after the prompt, observations included, not the sampled ones alone",
        ),
        Name("response_length/min", "rollout/min_length"),
        Name("response_length/max", "rollout/max_length"),
        Name("response_length/clip_ratio", "rollout/truncated_fraction"),
        Name("response/aborted_ratio", "rollout/failed_fraction"),
        Name("tool_call_counts/mean", "rollout/searches", differs="calls of any tool"),
        Name("num_turns/mean", "rollout/turns", differs="the question counts as one, and so does every tool's answer"),
        Name("rollout_corr/kl", "sampler/logprob_gap"),
        Name("training/rollout_probs_diff_mean", "sampler/prob_abs_gap"),
        Name("timing_s/gen", "time/rollout_s"),
    ),
    more=(Name("rollout_corr/rollout_is_mean", "sampler/importance_ratio"),),
    older={
        "actor/entropy_loss": "actor/entropy",
        "actor/reward_kl_penalty": "actor/kl_loss",
        "critic/kl": "actor/kl_loss",
    },
    left_alone={
        "critic/rewards/mean": "minus the KL penalty, if that is in the reward",
        "critic/returns/mean": "without a critic verl logs the advantages here",
        "critic/vpred_mean": "values while the critic is updated; ours are from before",
        "actor/pg_loss": "includes the penalty if our loss function is used",
        "actor/ppo_kl": "per token; ours is a sum over a rollout",
        "timing_s/step": "includes evaluation",
    },
    held_out=(r"val-(?:core|aux)/(.+)/(?:acc|reward|score)/mean(?:@|_at_)\d+", r"val/test_score/(.+)"),
    families=("actor/", "critic/", "response_length/", "rollout_corr/", "val-core/", "val-aux/", "timing_s/"),
    doubtful=_doubtful,
    words={
        "schedule": (f"{ACTOR}.optim.total_training_steps",),
        "warm-up": (f"{ACTOR}.optim.lr_warmup_steps",),
        "optimizer steps per rollout batch": (f"{ACTOR}.ppo_epochs", f"{ACTOR}.ppo_mini_batch_size"),
        "importance ratio": (f"{ACTOR}.clip_ratio_c=3",),
        "coefficient of the KL": (f"{ACTOR}.kl_loss_coef",),
        "penalty on lost likelihood": _PENALTY,
        "threshold": (f"{ACTOR}.policy_loss.penalty_threshold",),
        "tau": (f"{ACTOR}.policy_loss.penalty_tau",),
        "preserve more rollouts": (f"{ACTOR}.policy_loss.penalty_preserve",),
        "without top-p and top-k": (f"{ROLLOUT}.top_p=1", f"{ROLLOUT}.top_k=-1"),
        "importance weights of the sampler": (_CORRECTION,),
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
        "sampler/importance_ratio": f"`{_CORRECTION}` with importance weights",
        "sampler/logprob_gap": f"`{ROLLOUT}.calculate_log_probs=True` (`rollout_corr/kl`)",
        "sampler/prob_abs_gap": f"`{ROLLOUT}.calculate_log_probs=True` (`training/rollout_probs_diff_mean`)",
        "kl/": f"`{ACTOR}.use_kl_loss=True` (`actor/kl_loss`)",
    },
    saved_every="trainer.save_freq",
    launch=Launch(
        settings=SETTINGS,
        others=OTHERS,
        methods={
            "off_policy_mask": "verl does not have this mask, but TRL has it",
            "sampler_weights": _sampler_weights,
            "score_centering": "a loss function of verl does not see what else the sampler could draw",
            "clip_cov": "verl's is a loss of its own (policy_loss.loss_mode = clip_cov), in the place of holdfast's",
            "ipo": "verl bounds probabilities on the side of the advantage only (loss.surrogate = 'dppo')",
        },
        problems=_problems,
        differences=_differences,
    ),
)
