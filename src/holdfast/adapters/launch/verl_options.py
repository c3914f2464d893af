"""What a recipe becomes in verl: overrides of `verl.trainer.main_ppo`, and what verl cannot do.

verl counts K, `train.optimizer_steps_per_rollout`, as train_batch_size / ppo_mini_batch_size × ppo_epochs. Every
rollout is used in one of the K steps. A mini-batch is counted in questions: verl multiplies it by rollout.n.
(Search-R1's own fork does not, so that its `ppo_mini_batch_size=256` with 512 × 5 rollouts is 10 steps there and 2
here.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast import __version__
from holdfast.adapters.launch.recipe import (
    ANYWHERE,
    Fates,
    Here,
    Noted,
    Option,
    Recipe,
    Reference,
    Refused,
    Translation,
    absent,
    fate,
    local_notes,
    methods,
    same,
    schedule_problem,
    truncation,
)
from holdfast.adapters.verl_losses import ANSWER_SPAN, LOSSES, loss_name
from holdfast.base.section import Refusal
from holdfast.hosts.verl import ACTOR, AGENT, CORRECTION, LOSS_CONFIG, MODEL, ROLLOUT, VERL
from holdfast.methods.registry import Method, SamplerWeights
from holdfast.recipe import Config

AGENT_LOOPS = "agent_loops.yaml"
"""The file in the folder that holds the settings of the agent loop."""

_K = "train.optimizer_steps_per_rollout"
_WEIGHTS = SamplerWeights.table()
_NO_CLIP = 1e9  # verl always clips values, and ratios twice; they end at e^20, below this
_KL = {"k3": "low_var_kl", "k2": "mse"}
_SURROGATES = {"clip": "vanilla", "cispo": "cispo", "dppo": "dppo_tv"}


def mini_batch(config: Config) -> int:
    """`ppo_mini_batch_size`, in questions."""
    return config.train.questions // config.train.optimizer_steps_per_rollout


def prompt_tokens(total: int) -> int:
    """Tokens of a rollout of `total` that verl reserves for the prompt: an eighth, or 256, but at most half.

    >>> prompt_tokens(4096), prompt_tokens(1024), prompt_tokens(256)
    (512, 256, 128)
    """
    return min(max(total // 8, 256), total // 2)


# ---- options, in the order of the command


def options(recipe: Recipe) -> Iterator[Option]:
    """Overrides of `verl.trainer.main_ppo`."""
    yield from _data(recipe)
    yield from _model(recipe)
    yield from _actor(recipe)
    yield from _policy_loss(recipe.config)
    if recipe.config.model.autocast == "none":
        yield Option("+actor_rollout_ref.ref.fsdp_config.mixed_precision.param_dtype", "fp32", "model.autocast")
    yield from _rollouts(recipe)
    yield from methods(recipe, method).options
    yield from _critic(recipe) if recipe.config.loss.advantage == "gae" else _groups(recipe.config)
    yield from _trainer(recipe)


def _data(recipe: Recipe) -> Iterator[Option]:
    config, total = recipe.config, recipe.config.protocol.max_total_tokens
    prompt = prompt_tokens(total)
    yield Option("data.train_files", Here("train.parquet"), "data.train")
    yield Option("data.val_files", Here("dev.parquet"), "data.dev, eval.questions")
    if config.model.chat_template_kwargs:
        yield from same(VERL, recipe, "model.chat_template_kwargs")
    yield Option("data.max_prompt_length", prompt, "protocol.max_total_tokens: room for the question")
    yield Option("data.max_response_length", total - prompt, "protocol.max_total_tokens: the rest")
    yield Option("data.trust_remote_code", config.model.trust_remote_code, "model.trust_remote_code: of the tokenizer")
    yield from same(VERL, recipe, "run.seed", "train.questions")


def _model(recipe: Recipe) -> Iterator[Option]:
    yield Option(f"{MODEL}.path", recipe.model_path, "model.path")
    if recipe.config.model.lora_rank:
        yield from same(VERL, recipe, "model.lora_rank", "model.lora_alpha")
        yield Option(f"{MODEL}.target_modules", "all-linear", "model.lora_rank")
    yield from same(VERL, recipe, "model.trust_remote_code", "model.gradient_checkpointing")


def _actor(recipe: Recipe) -> Iterator[Option]:
    config, loss, train = recipe.config, recipe.config.loss, recipe.config.train
    yield from same(VERL, recipe, "train.lr", "train.weight_decay", "train.grad_clip")
    yield from same(VERL, recipe, "loss.clip_low", "loss.clip_high", "loss.reduction", "loss.entropy_coef")
    yield Option(f"{ACTOR}.ppo_mini_batch_size", mini_batch(config), f"{_K}: questions in a step, times rollout.n")
    yield Option(f"{ACTOR}.ppo_epochs", 1, "every rollout is used once")
    yield Option(f"{ACTOR}.shuffle", train.minibatches == "shuffled", "train.minibatches")
    yield Option(f"{ACTOR}.use_dynamic_bsz", True, "train.micro_batch_tokens")
    yield from same(VERL, recipe, "train.micro_batch_tokens")
    yield Option(f"{ACTOR}.data_loader_seed", config.run.seed, "run.seed")
    yield Option(f"{ACTOR}.optim.lr_scheduler_type", "constant", "train.warmup")
    yield Option(f"{ACTOR}.optim.lr_warmup_steps", train.warmup, "train.warmup; rollout batches here too")
    if config.model.autocast == "none":
        yield Option(f"+{ACTOR}.fsdp_config.mixed_precision.param_dtype", "fp32", "model.autocast")
    yield Option(f"{ACTOR}.use_kl_loss", loss.kl_coef > 0, "loss.kl_coef")
    yield from same(VERL, recipe, "loss.kl_coef")
    yield Option(f"{ACTOR}.kl_loss_type", _KL[loss.kl_estimator], "loss.kl_estimator")
    dual_clip = _NO_CLIP if loss.dual_clip is None else loss.dual_clip
    yield Option(f"{ACTOR}.clip_ratio_c", dual_clip, "loss.dual_clip, or none")
    if loss.reduction == "seq-mean-token-sum-norm":
        why = "protocol.max_turns, protocol.max_turn_tokens"
        yield Option(f"{ACTOR}.loss_scale_factor", config.protocol.max_sampled_tokens, why)


def _policy_loss(config: Config) -> Iterator[Option]:
    """The loss: one of verl, inside one of holdfast."""
    prefix, loss, penalty = f"{ACTOR}.policy_loss", config.loss, config.loss.penalty
    name = str(loss_name(penalty))
    yield Option(f"{prefix}._target_", LOSS_CONFIG, "fields of our own")
    yield Option(f"{prefix}.loss_mode", name, "loss.penalty.name, loss.penalty.gate")
    yield Option(f"+{prefix}.holdfast_version", __version__, "every machine must have this one")
    base = "gspo" if loss.ratio == "sequence" else _SURROGATES[loss.surrogate]
    yield Option(f"+{prefix}.base_loss_mode", base, "loss.ratio, loss.surrogate")
    yield Option(f"+{prefix}.rollout_correction", Reference(CORRECTION), "a loss must know what is done to its mask")
    uses_answer = penalty.term is not None and penalty.term.uses_answer_mask
    if uses_answer:
        yield Option(f"+{prefix}.penalty_answer", ANSWER_SPAN, "the answer, as holdfast's agent loop reports it")
    for key in LOSSES[name].settings:
        value = getattr(penalty, key)
        if value not in (None, {}) and (uses_answer or not key.startswith("answer_")):
            yield Option(f"+{prefix}.penalty_{key}", value, f"loss.penalty.{key}")


def _rollouts(recipe: Recipe) -> Iterator[Option]:
    config = recipe.config
    samples = config.eval.samples > 1
    if config.model.lora_rank:
        why = "model.lora_rank: the server needs the base weights"
        yield Option(f"{ROLLOUT}.load_format", "safetensors", why)
    yield from same(VERL, recipe, "train.group_size", "sampling.temperature", "sampling.top_p")
    yield Option(f"{ROLLOUT}.name", "vllm", "the rollout server")
    yield Option(f"{ROLLOUT}.tensor_model_parallel_size", 1, "a server on each GPU")
    yield Option(f"{ROLLOUT}.gpu_memory_utilization", 0.6, "as in the published runs")
    yield from same(VERL, recipe, "protocol.max_total_tokens")
    yield Option(f"{ROLLOUT}.top_k", config.sampling.top_k or -1, "sampling.top_k")
    yield Option(f"{ROLLOUT}.seed", config.run.seed, "run.seed; verl 0.8 has no such option: delete this line there")
    yield Option(f"{ROLLOUT}.agent.default_agent_loop", AGENT, "the search agent")
    yield Option(f"{ROLLOUT}.agent.agent_loop_config_path", Here(AGENT_LOOPS), "protocol, retrieval")
    yield from same(VERL, recipe, "eval.samples")
    yield Option(f"{ROLLOUT}.val_kwargs.do_sample", samples, "eval.samples: one is greedy")
    temperature = config.sampling.temperature if samples else 0
    yield Option(f"{ROLLOUT}.val_kwargs.temperature", temperature, "eval.samples")


def _critic(recipe: Recipe) -> Iterator[Option]:
    """PPO: GAE, the KL in the reward, and verl's critic, which takes mini-batches as the actor does."""
    config, model, critic = recipe.config, recipe.config.model, recipe.config.critic
    yield Option("critic.model.path", recipe.model_path, "model.path: a copy of the initial policy")
    yield Option("critic.model.trust_remote_code", model.trust_remote_code, "model.trust_remote_code")
    yield Option(
        "critic.model.enable_gradient_checkpointing", model.gradient_checkpointing, "model.gradient_checkpointing"
    )
    if model.lora_rank:
        yield Option("critic.model.lora_rank", model.lora_rank, "model.lora_rank")
        yield Option("critic.model.lora_alpha", model.lora_alpha, "model.lora_alpha")
    if model.autocast == "none":
        yield Option("+critic.fsdp.mixed_precision.param_dtype", "fp32", "model.autocast")
    yield from same(VERL, recipe, "critic.lr")
    yield Option("critic.optim.lr_warmup_steps", critic.warmup, "critic.warmup; rollout batches here too")
    yield Option("critic.optim.weight_decay", config.train.weight_decay, "train.weight_decay")
    yield Option("critic.optim.clip_grad", config.train.grad_clip, "train.grad_clip")
    yield Option("critic.cliprange_value", critic.clip or _NO_CLIP, "critic.clip")
    yield Option("critic.loss_agg_mode", "token-mean", "the loss of values is a mean over tokens")
    yield Option("critic.ppo_max_token_len_per_gpu", config.train.micro_batch_tokens, "train.micro_batch_tokens")
    yield Option("critic.data_loader_seed", config.run.seed, "run.seed")
    yield Option("algorithm.adv_estimator", "gae", "loss.advantage")
    yield from same(VERL, recipe, "critic.gamma", "critic.lam")
    yield Option("algorithm.use_kl_in_reward", config.reward.kl > 0, "reward.kl")
    yield Option("algorithm.kl_penalty", "kl", "reward.kl: old minus initial log-prob")
    yield from same(VERL, recipe, "reward.kl")


def _groups(config: Config) -> Iterator[Option]:
    """Advantages that compare the rollouts of a question."""
    loss = config.loss
    why = "loss.advantage, loss.baseline; a rollout alone in its group keeps its reward"
    yield Option("algorithm.adv_estimator", "opo" if loss.baseline == "length" else "grpo", why)
    yield Option("algorithm.norm_adv_by_std_in_grpo", loss.advantage == "grpo", "loss.advantage")
    yield Option("algorithm.use_kl_in_reward", False, "the KL is in the loss")


def _trainer(recipe: Recipe) -> Iterator[Option]:
    config, steps = recipe.config, recipe.config.train.steps
    yield from same(VERL, recipe, "checkpoint.keep")
    yield Option("trainer.nnodes", recipe.machines.nodes, "--nodes")
    yield Option("trainer.n_gpus_per_node", recipe.machines.gpus, "--gpus")
    yield from same(VERL, recipe, "train.steps")
    yield Option("trainer.total_epochs", steps, "train.steps: every epoch has at least one")
    yield from same(VERL, recipe, "eval.start")
    yield Option("trainer.test_freq", config.eval.every or steps, "eval.every")
    yield Option("trainer.save_freq", config.checkpoint.every or steps, "checkpoint.every")
    yield Option("trainer.default_local_dir", Here(Path(config.run.dir, config.run.name)), "run.dir, run.name")
    yield Option("trainer.project_name", config.track.wandb or "holdfast", "track.wandb")
    yield from same(VERL, recipe, "run.name")
    yield Option("trainer.logger", ["console", "file", *recipe.trackers], "track.wandb, track.tensorboard")


# ---- methods

_ABSENT: Mapping[str, str] = {
    "off_policy_mask": "verl does not have this mask, but TRL does",
    "score_centering": "a loss function of verl does not see what else the sampler could draw",
    "clip_cov": "in verl this is a separate loss (policy_loss.loss_mode = clip_cov), which would replace holdfast's",
    "ipo": "verl bounds probabilities on the side of the advantage only (loss.surrogate = 'dppo')",
}


def method(method: Method, config: Config) -> Translation:
    """A method in verl."""
    if not isinstance(method, SamplerWeights):
        return absent(method, _ABSENT)
    problems = tuple(_weight_problems(method, getattr(config.loss.penalty, "gate", "")))
    return Translation(options=() if problems else tuple(_importance_weights(method)), problems=problems)


def _importance_weights(method: SamplerWeights) -> Iterator[Option]:
    """verl's `rollout_correction`."""
    yield Option(f"{ROLLOUT}.calculate_log_probs", True, f"{_WEIGHTS}.on: the sampler's log-probs")
    if method.keep == "reject":
        kind = "token" if method.level == "token" else "seq_mean" if method.aggregate == "mean" else "seq_sum"
        why = f"{_WEIGHTS}.level, {_WEIGHTS}.aggregate, {_WEIGHTS}.keep"
        yield Option(f"{CORRECTION}.rollout_rs", f"{kind}_k1", why)
        band = f"{1 / method.high:.6g}_{1 / method.low:.6g}"
        why = f"1 / {_WEIGHTS}.high, 1 / {_WEIGHTS}.low: verl bounds 1 / w"
        yield Option(f"{CORRECTION}.rollout_rs_threshold", band, why)
        return
    yield Option(f"{CORRECTION}.rollout_is", method.level, f"{_WEIGHTS}.level, {_WEIGHTS}.aggregate")
    band = f"{method.low:g}_{method.high:g}" if method.keep == "mask" else f"{method.high:g}"
    yield Option(f"{CORRECTION}.rollout_is_threshold", band, f"{_WEIGHTS}.keep, {_WEIGHTS}.low, {_WEIGHTS}.high")


def _weight_problems(method: SamplerWeights, gate: str) -> Iterator[Refusal]:
    keep, low = {f"{_WEIGHTS}.keep": method.keep}, {f"{_WEIGHTS}.low": method.low}
    if method.level == "action":
        instead = "The nearest are 'token' and 'sequence'"
        yield Refusal({f"{_WEIGHTS}.level": "action"}, "verl's correction does not know actions", instead)
    if method.aggregate == "mean" and method.keep != "reject":
        yield Refusal(
            {f"{_WEIGHTS}.aggregate": "mean", **keep},
            "verl's weight of a sequence is the product of its ratios",
            f"Set {_WEIGHTS}.keep = 'reject', or {_WEIGHTS}.aggregate = 'product'",
        )
    if method.keep == "truncate" and method.low:
        yield Refusal(low | keep, "verl's cut has no lower bound", "Set the first to 0")
    if method.keep != "truncate" and not method.low:
        yield Refusal(low | keep, "verl needs two bounds above 0", f"Set {_WEIGHTS}.low, for example 0.5")
    if method.keep == "reject" and method.level == "token" and gate == "action":
        yield Refusal(
            keep | {f"{_WEIGHTS}.level": "token", "loss.penalty.gate": "action"},
            "verl takes rejected tokens out of the mask, which splits actions before the gate sees them",
            "Set the level to 'sequence', or the gate to 'response' or 'token'",
        )


# ---- what verl does not do, or does differently

_IN_PARQUET = ("data.", "protocol.prompt")

FATES: Fates = {
    "faults": Noted("verl does not inject faults"),
    "loss.old_policy": Noted(
        "verl's synchronous trainer recomputes the old policy, and samples with the weights that it trains"
    ),
    "train.staleness": Noted("verl's synchronous trainer samples with the weights that it trains"),
    "run.threads": Noted("Ray gives every worker its threads"),
    "retrieval.stem": Noted("the server of the index has its own"),
    "retrieval.fields": Noted("the index of the server has its passages"),
    "retrieval.cache_size": Noted("the server has its own cache"),
    "run.max_failed_fraction": Noted(
        "verl continues no matter how many rollouts fail. It leaves them out and logs this"
    ),
    "train.displacement_every": Noted("a loss function of verl cannot see rollouts before and after a whole update"),
    "train.displacement_rows": Noted("displacement is not measured in verl"),
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


def problems(recipe: Recipe) -> Iterator[Refusal | str]:
    """Combinations of settings that verl cannot do."""
    config, loss, train = recipe.config, recipe.config.loss, recipe.config.train
    for name, value in recipe.values.items():
        if "${" in str(value) and not name.startswith(_IN_PARQUET) and not isinstance(fate(FATES, name), Noted):
            yield recipe.refusal(
                name,
                "verl's configuration replaces every ${...}, for example by a variable of the environment, so the "
                "text would not get there as it is",
                "Write it without ${",
            )
    if recipe.tasks.closed:
        yield recipe.refusal(
            "data.train",
            "its passages exist only inside one process, but verl's rollouts need a server",
            "Set data.train to your questions and retrieval.url to a server over your passages, or train on it in TRL",
        )
    elif config.retrieval.url is None and config.retrieval.corpus is None and config.protocol.searches:
        yield "retrieval.url is not set, but verl's rollouts need a retrieval server; set it to the address of one"
    if config.model.is_tiny and not config.warm_start.steps:
        yield recipe.refusal(
            "model.path",
            "verl's rollout servers load a model from a folder or the hub, but the tiny one is made by holdfast",
            "Set model.path, for example to 'Qwen/Qwen2.5-0.5B-Instruct'",
        )
    if config.run.device == "cpu":
        yield recipe.refusal("run.device", "verl's rollout servers need GPUs", "Leave it at 'auto', or use TRL")
    if loss_name(loss.penalty) is None:
        yield recipe.refusal(
            "loss.penalty.name", "verl does not have this penalty", "The nearest is 'sapo'; or use TRL"
        )
    if getattr(loss.penalty.term, "preserve", None) == "correct":
        yield Refusal(
            {"loss.penalty.preserve": "correct"},
            "a loss function of verl sees advantages, not rewards",
            "The nearest is 'positive', which leaves out groups whose rollouts are all correct",
        )
    if loss.advantage == "reinforce" and train.group_size > 1:
        yield recipe.refusal(
            "loss.advantage train.group_size",
            "verl subtracts the mean of a group",
            "Set train.group_size = 1, where there is none, or loss.advantage = 'dr_grpo'",
        )
    if loss.baseline == "length" and loss.advantage != "dr_grpo":
        yield recipe.refusal(
            "loss.baseline loss.advantage",
            "verl supports it only without division by the standard deviation, as in OPO",
            "Set loss.advantage = 'dr_grpo', or loss.baseline = 'mean'",
        )
    if loss.ratio == "action":
        yield recipe.refusal(
            "loss.ratio", "verl's losses do not know actions", "The nearest are 'token' and 'sequence'"
        )
    yield from methods(recipe, method).problems
    if loss.ratio == "sequence" and loss.dual_clip is not None:
        yield recipe.refusal("loss.dual_clip loss.ratio", "verl's GSPO has no dual clip", "Leave it out")
    if train.micro_batch_tokens < config.protocol.max_total_tokens:
        yield recipe.refusal(
            "train.micro_batch_tokens protocol.max_total_tokens",
            "verl fails on a rollout that does not fit into one forward pass",
            "Raise the first to at least the second",
        )
    yield from _schedule_problem(recipe)


def _schedule_problem(recipe: Recipe) -> Iterator[Refusal]:
    train, total = recipe.config.train, recipe.machines.total

    def fits(questions: int, steps: int) -> bool:
        mini, rest = divmod(questions, steps)
        return rest == 0 and mini > 0 and mini * train.group_size % total == 0

    why = (
        "verl needs the same number of questions in every step, and their rollouts must divide evenly over the GPUs; "
        f"{train.questions} questions cannot be divided like that"
    )
    return schedule_problem(recipe, fits, why)


def differences(recipe: Recipe) -> Iterator[str]:
    """What verl does differently."""
    config = recipe.config
    yield from truncation(config, "Set")
    yield from methods(recipe, method).notes
    yield "verl keeps the newest checkpoints, but not the best on dev"
    yield (
        "verl has separate limits for prompt and response, so with a short prompt a rollout ends before "
        "protocol.max_total_tokens"
    )
    yield from local_notes(recipe)
    if config.loss.advantage == "gae":
        yield "the value head of verl's critic starts at random, not at zero"
    penalty = config.loss.penalty.term
    if penalty is not None and penalty.uses_search_count:
        yield "the weight of the answer depends on the searches in the last 256 rollouts of a process"
    if config.train.warmup:
        yield "verl's warm-up begins at a learning rate of 0, so the first rollout batch changes nothing"
