"""prime-rl's trainer and orchestrator."""

import re

from holdfast.hosts.host import Host, Name, Seen, Settings, Span, of_sampler

_EFFECTIVE = "train/agg/effective/<agent>"
_AGENT = re.compile(r"train/agg/effective/([^/]+)/(?:[^/]+/)*(?:mean|min|max|std)")
_OF_REWARD = re.compile(r"train/agg/effective/([^/]+)/reward/mean")


def _doubtful(series: Seen, settings: Settings) -> dict[str, str]:
    """Of several agents, the series of all but one: the one that is trained, if the log says which."""
    agents = sorted({found[1] for name in series if (found := _OF_REWARD.fullmatch(name))})
    if len(agents) < 2:
        return {}
    share = {name: series.get(f"train/agg/effective/{name}/is_trainable/mean") for name in agents}
    trained = [name for name, one in share.items() if one is not None and (one.values > 0).any()]
    chosen = (trained or agents)[0]
    why = f"the metrics are from the agent {chosen}, " + (
        "which is trained"
        if len(trained) == 1
        else "the first of several; to choose another, give `--name reward=METRIC`"
    )
    others = [
        name for name in series if (found := _AGENT.fullmatch(name)) and found[1] in agents and found[1] != chosen
    ]
    return dict.fromkeys(others, why)


PRIME_RL = Host(
    id="prime-rl",
    series=(
        Name(f"{_EFFECTIVE}/reward/mean", "reward/mean"),
        Name(f"{_EFFECTIVE}/reward/min", "reward/min"),
        Name(f"{_EFFECTIVE}/reward/max", "reward/max"),
        Name(f"{_EFFECTIVE}/num_output_tokens/mean", "rollout/length"),
        Name(f"{_EFFECTIVE}/num_output_tokens/min", "rollout/min_length"),
        Name(f"{_EFFECTIVE}/num_output_tokens/max", "rollout/max_length"),
        Name(f"{_EFFECTIVE}/is_truncated/mean", "rollout/truncated_fraction"),
        Name(f"{_EFFECTIVE}/num_turns/mean", "rollout/turns"),
        Name("off_policy/mean", "rollout/staleness"),
        Name("batch/solve_all", "rollout/all_correct_fraction"),
        Name("batch/solve_none", "rollout/all_wrong_fraction"),
        Name("entropy/all/mean", "entropy/mean"),
        Name("mismatch_kl/all/mean", "sampler/mismatch_kl"),
        Name("optim/grad_norm", "grad/norm"),
        Name("optim/lr", "lr"),
        Name("time/step", "time/step_s"),
        Name("time/wait_for_batch", "time/waiting_s"),
    ),
    old_policy=of_sampler,
    trainers={"sampler": "prime-rl"},
    older={"off_policy_level/all/mean": "off_policy/mean", "batch/off_policy_level/mean": "off_policy/mean"},
    labels={
        "reward": "train/agg/effective/reward/mean",
        "seq._length": "train/agg/effective/num_total_tokens/mean",
        "turns": "train/agg/effective/num_turns/mean",
        "truncation": "train/agg/effective/is_truncated/mean",
        "entropy": "entropy/all/mean",
        "mismatch_kl": "mismatch_kl/all/mean",
        "grad._norm": "optim/grad_norm",
        "lr": "optim/lr",
        "loss": "loss/mean",
    },
    own_labels=frozenset({"mismatch_kl", "max_off-policy", "max._off-policy_level", "async_level"}),
    held_out=(r"eval/([^/]+)/(?:effective/[^/]+/)?avg@\d+",),
    agent=r"(?<=^train/agg/effective/)[^/]+(?=/)",
    doubtful=_doubtful,
    spans=(  # of the trainer: the orchestrator's `wait_for_policy` is time of another process
        Span("time/forward_backward", "update"),
        Span("time/broadcast_weights", "weights"),
        Span("time/wait_for_batch", "waiting"),
        Span("time/save_ckpt", "evaluation"),
    ),
    step_seconds="time/step",
    words={
        "learning rate": ("trainer.optim.lr",),
        "norm of the gradient": ("trainer.optim.max_norm",),
        "group size": ("orchestrator.group_size",),
        "limits of tokens and turns": ("orchestrator.train.sampling.max_completion_tokens", "seq_len"),
        "limit on staleness": ("max_off_policy_steps",),
    },
    marks=("train/agg/", "mismatch_kl/", "entropy/all/"),
)
