"""holdfast's own trainer."""

from holdfast.hosts.host import COEF, Host, OldPolicy, Seen, Settings, Span


def _old_policy(series: Seen, settings: Settings) -> OldPolicy:
    return "sampler" if settings.get("loss.old_policy") == "sampler" else "recomputed"


OURS = Host(
    id="holdfast",
    old_policy=_old_policy,
    trainers={"fresh": "`holdfast train`"},
    families=("reward/", "rollout/", "likelihood/", "displacement/", "penalty/", "entropy/", "grad/", "ratio/"),
    spans=(
        Span("time/rollout_s", "generation"),
        Span("time/update_s", "update"),
        Span("time/displacement_s", "evaluation"),
    ),
    step_seconds="time/step_s",
    words={
        "learning rate": ("train.lr",),
        "schedule": ("train.warmup", "train.steps"),
        "warm-up": ("train.warmup",),
        "optimizer steps per rollout batch": ("train.optimizer_steps_per_rollout",),
        "norm of the gradient": ("train.grad_clip",),
        "group size": ("train.group_size",),
        "limit on staleness": ("train.staleness",),
        "importance ratio": ("loss.dual_clip = 3.0",),
        "upper clip": ("loss.clip_high",),
        "entropy bonus": ("loss.entropy_coef",),
        "coefficient of the KL": ("loss.kl_coef",),
        "penalty on lost likelihood": ('loss.penalty.name = "llds"', f"loss.penalty.coef = {COEF}"),
        "threshold": ("loss.penalty.threshold",),
        "tau": ("loss.penalty.tau",),
        "preserve more rollouts": ("loss.penalty.preserve",),
        "bounds on the importance weights": ("loss.methods.sampler_weights.low", "loss.methods.sampler_weights.high"),
        "without top-p and top-k": ("sampling.top_p = 1.0", "sampling.top_k = 0"),
        "tokens that the sampler can draw": ("sampling.top_k = 512", "sampling.mask_logprobs = true"),
        "score centering": ("loss.methods.score_centering.on",),
        "importance weights of the sampler": ("loss.methods.sampler_weights.on",),
        "full precision": ('model.autocast = "none"',),
        "rollouts": ("trajectories.jsonl",),
        "limits of tokens and turns": ("protocol.max_total_tokens", "protocol.max_turn_tokens", "protocol.max_turns"),
        "weights of the reward": ("reward.em", "reward.f1", "reward.format", "reward.retrieval"),
        "reference": (),
        "denser reward": ("reward.f1 = 1.0",),
        "better policy": ("warm_start.steps",),
        "retriever": ("retrieval.url",),
        "index": ("retrieval.corpus", "retrieval.index"),
    },
    logged_by={
        "displacement/": "`train.displacement_every = 1`",
        "eval/": "`eval.every`",
        "penalty/": '`loss.penalty.name` other than "none"',
        "": "every run of `holdfast train`, so this log is incomplete or from another version",
    },
    saved_every="checkpoint.every",
)
