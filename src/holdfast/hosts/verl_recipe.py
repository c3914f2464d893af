"""A recipe for verl: its options for `verl.trainer.main_ppo`, and what verl cannot do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast import __version__
from holdfast.hosts.host import (
    ANYWHERE,
    Here,
    Launch,
    Noted,
    Option,
    Reference,
    Refused,
    Setting,
    Translation,
)

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
AGGREGATION = f"{ACTOR}.loss_agg_mode"
CORRECTION = "algorithm.rollout_correction"
LOSS_CONFIG = "holdfast.adapters.verl.HoldfastPolicyLossConfig"
AGENT_LOOPS = "agent_loops.yaml"
AGENT = "holdfast_search"
"""Name of the agent loop, in every row of the questions."""
ANSWER_SPAN = "answer-span"
"""The value of `penalty_answer` for the `answer_span` of a rollout's `extra_fields`, as holdfast's agent loop fills
them."""

_K = "train.optimizer_steps_per_rollout"
_WEIGHTS = "loss.methods.sampler_weights"
_NO_CLIP = 1e9  # verl always clips values, and ratios twice; they end at e^20, below this
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


def prompt_tokens(total: int) -> int:
    """Tokens of a rollout of `total` that verl reserves for the prompt: an eighth, or 256, but at most half.

    >>> prompt_tokens(4096), prompt_tokens(1024), prompt_tokens(256)
    (512, 256, 128)
    """
    return min(max(total // 8, 256), total // 2)


def _policy_loss(recipe: Any) -> Iterator[Option]:
    """The loss: one of verl, inside one of holdfast."""
    prefix, loss = f"{ACTOR}.policy_loss", recipe.loss
    yield Option(f"{prefix}._target_", LOSS_CONFIG, "fields of our own")
    yield Option(f"{prefix}.loss_mode", recipe.verl_loss, "loss.penalty.name, loss.penalty.gate")
    yield Option(f"+{prefix}.holdfast_version", __version__, "every machine must have this one")
    base = "gspo" if loss.ratio == "sequence" else _SURROGATES[loss.surrogate]
    yield Option(f"+{prefix}.base_loss_mode", base, "loss.ratio, loss.surrogate")
    yield Option(f"+{prefix}.rollout_correction", Reference(CORRECTION), "a loss must know what is done to its mask")
    uses_answer = loss.penalty.term is not None and loss.penalty.term.uses_answer_mask
    if uses_answer:
        yield Option(f"+{prefix}.penalty_answer", ANSWER_SPAN, "the answer, as holdfast's agent loop reports it")
    for key in recipe.verl_penalty_settings:
        value = getattr(loss.penalty, key)
        if value not in (None, {}) and (uses_answer or not key.startswith("answer_")):
            yield Option(f"+{prefix}.penalty_{key}", value, f"loss.penalty.{key}")


SETTINGS = (
    Setting("data.train_files", "data.train", Here("train.parquet")),
    Setting("data.val_files", "data.dev, eval.questions", Here("dev.parquet")),
    Setting("+data.apply_chat_template_kwargs", "model.chat_template_kwargs",
            when=lambda r: r.model.chat_template_kwargs),
    Setting("data.max_prompt_length", "protocol.max_total_tokens: room for the question",
            lambda r: prompt_tokens(r.protocol.max_total_tokens)),
    Setting("data.max_response_length", "protocol.max_total_tokens: the rest",
            lambda r: r.protocol.max_total_tokens - prompt_tokens(r.protocol.max_total_tokens)),
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
    Setting(AGGREGATION, "loss.reduction"),
    Setting(f"{ACTOR}.entropy_coeff", "loss.entropy_coef"),
    Setting(f"{ACTOR}.ppo_mini_batch_size", f"{_K}: questions in a step, times rollout.n", lambda r: r.verl_mini_batch),
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
    Setting(f"{ACTOR}.clip_ratio_c", "loss.dual_clip, or none",
            lambda r: _NO_CLIP if r.loss.dual_clip is None else r.loss.dual_clip),
    Setting(f"{ACTOR}.loss_scale_factor", "protocol.max_turns, protocol.max_turn_tokens",
            lambda r: r.protocol.max_sampled_tokens, lambda r: r.loss.reduction == "seq-mean-token-sum-norm"),
    _policy_loss,
    Setting("+actor_rollout_ref.ref.fsdp_config.mixed_precision.param_dtype", "model.autocast", "fp32", _full),
    Setting(f"{ROLLOUT}.load_format", "model.lora_rank: the server needs the base weights", "safetensors", _lora),
    Setting(f"{ROLLOUT}.n", "train.group_size"),
    Setting(f"{ROLLOUT}.temperature", "sampling.temperature"),
    Setting(f"{ROLLOUT}.top_p", "sampling.top_p"),
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
    lambda r: r.method_options,
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
    Setting("critic.cliprange_value", "critic.clip", lambda r: r.critic.clip or _NO_CLIP, _gae),
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

_IN_PARQUET = ("data.", "protocol.prompt")
_UNMEASURED = Noted("displacement is not measured in verl")

OTHERS: Mapping[str, Noted | Refused] = {
    "faults": Noted("verl's rollouts have no faults on purpose"),
    "loss.old_policy": Noted(
        "verl's synchronous trainer recomputes the old policy, and samples with the weights that it trains"
    ),
    "train.staleness": Noted("verl's synchronous trainer samples with the weights that it trains"),
    "run.threads": Noted("Ray gives every worker its threads"),
    "retrieval.stem": Noted("the server of the index has its own"),
    "retrieval.fields": Noted("the index of the server has its passages"),
    "retrieval.cache_size": Noted("the server has its own cache"),
    "run.max_failed_fraction": Noted("verl continues however many rollouts fail. It leaves them out and logs that"),
    "train.displacement_every": Noted("a loss function of verl cannot see rollouts before and after a whole update"),
    "train.displacement_rows": _UNMEASURED,
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
        yield Option(f"{CORRECTION}.rollout_rs", f"{kind}_k1", why)
        band = f"{1 / method.high:.6g}_{1 / method.low:.6g}"
        why = f"1 / {_WEIGHTS}.high, 1 / {_WEIGHTS}.low: verl's are of 1 / w"
        yield Option(f"{CORRECTION}.rollout_rs_threshold", band, why)
        return
    yield Option(f"{CORRECTION}.rollout_is", method.level, f"{_WEIGHTS}.level, {_WEIGHTS}.aggregate")
    band = f"{method.low:g}_{method.high:g}" if method.keep == "mask" else f"{method.high:g}"
    yield Option(f"{CORRECTION}.rollout_is_threshold", band, f"{_WEIGHTS}.keep, {_WEIGHTS}.low, {_WEIGHTS}.high")


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
        if "${" in str(value) and not name.startswith(_IN_PARQUET) and not isinstance(LAUNCH.fate(name), Noted):
            yield (
                f"{name} = {recipe.as_toml(value)}: verl's configuration replaces every ${{...}}, for example by a "
                "variable of the environment, so the text would not get there as it is. Write it without ${"
            )
    if recipe.tasks.closed:
        yield (
            f"data.train = {recipe.data.train!r}: its passages exist only inside one process, but verl's rollouts need "
            "a server. Set data.train to your questions and retrieval.url to a server over your passages, or train on "
            "it in TRL"
        )
    elif recipe.retrieval.url is None and recipe.retrieval.corpus is None and recipe.protocol.searches:
        yield "retrieval.url is not set, but verl's rollouts need a retrieval server; set it to the address of one"
    if recipe.model.is_tiny and not recipe.warm_start.steps:
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


LAUNCH = Launch(
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
)
