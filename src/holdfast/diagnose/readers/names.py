"""What other trainers call the metrics of holdfast; docs/reference/logs.md shows the tables. Other names are kept.

A name is here only if the host measures the same thing. If the host measures it on other tokens or calls, `differs`
says so, and reading adds a note. If the log itself shows that a name means something else, see `ambiguous_names`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnose.log import Host, Series
from holdfast.diagnose.readers.text import clean

Values = NDArray[np.float64]

CHANGES: Mapping[str, Callable[[Values], Values]] = {"x": lambda x: x, "1 − x": lambda x: 1 - x}
"""From a number of the host to ours."""


@dataclass(frozen=True, slots=True)
class Name:
    """One row of a table."""

    host: str
    """As the host logs it, without the prefix `train/` that the W&B callback of transformers adds."""
    ours: str
    """The name in docs/reference/metrics.md."""
    change: str = "x"
    """A key of `CHANGES`."""
    differs: str = ""
    """What the host counts and holdfast does not, or the other way round."""


TRL = (
    Name("reward", "reward/mean"),
    Name("reward_std", "reward/std"),
    Name("frac_reward_zero_std", "rollout/mixed_group_fraction", "1 − x"),
    Name("entropy", "entropy/mean"),
    Name("kl", "kl/reference"),
    Name("grad_norm", "grad/norm"),
    Name("clip_ratio/region_mean", "clip/fraction"),
    Name("sampling/sampling_logp_difference/mean", "sampler/logprob_abs_gap"),
    Name("sampling/importance_sampling_ratio/mean", "sampler/importance_ratio"),
    Name("completions/mean_length", "rollout/length"),
    Name("completions/min_length", "rollout/min_length"),
    Name("completions/max_length", "rollout/max_length"),
    Name("completions/clipped_ratio", "rollout/truncated_fraction"),
    Name("tools/call_frequency", "rollout/searches", differs="calls of any tool"),
    Name("tools/failure_frequency", "rollout/failed_call_fraction", differs="malformed calls too"),
    Name("learning_rate", "lr"),
    Name("step_time", "time/step_s"),
)
"""TRL's GRPOTrainer. `holdfast/x`, from our adapter, is x; `eval_x` is read as `eval/` and the name of x."""

VERL = (
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
)
"""verl's PPO trainer. `actor/holdfast/x`, from our loss functions, is x."""

_EFFECTIVE = "train/agg/effective/<agent>"

PRIME_RL = (
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
)
"""prime-rl's trainer and orchestrator. Of several agents, the first by name is translated."""

TINKER = (
    Name("env/all/reward/total", "reward/mean"),
    Name("env/all/by_group/frac_mixed", "rollout/mixed_group_fraction"),
    Name("env/all/by_group/frac_all_good", "rollout/all_correct_fraction"),
    Name("env/all/by_group/frac_all_bad", "rollout/all_wrong_fraction"),
    Name("optim/entropy", "entropy/mean", differs="estimated from the log-probs of sampled tokens"),
    Name("optim/kl_sample_train_v1", "sampler/logprob_gap"),
    Name("kl_policy_base", "kl/reference"),
    Name("optim/lr", "lr"),
)
"""tinker-cookbook's RL training."""

SLIME = (
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
)
"""slime, and miles, which was made from it."""

SKYRL = (
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
)
"""SkyRL's trainer."""

OPENRLHF = (
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
)
"""OpenRLHF's PPO trainer."""

TABLES: Mapping[Host, tuple[Name, ...]] = {
    "trl": TRL,
    "verl": VERL,
    "prime-rl": PRIME_RL,
    "tinker": TINKER,
    "slime": SLIME,
    "skyrl": SKYRL,
    "openrlhf": OPENRLHF,
}

MORE: Mapping[Host, tuple[Name, ...]] = {
    "trl": (
        Name("sample/staleness_mean", "rollout/staleness"),
        Name("num_turns", "rollout/turns"),
        Name("rollout_correction/kl", "sampler/logprob_gap"),
        Name("rollout_correction/is_weight_mean", "sampler/importance_ratio"),
    ),
    "verl": (Name("rollout_corr/rollout_is_mean", "sampler/importance_ratio"),),
}
"""Names of what is built on these trainers, or of parts that few runs use: AsyncGRPOTrainer and ms-swift; verl's
rollout correction."""

HELD_OUT: Mapping[Host, tuple[str, ...]] = {
    "verl": (
        r"val-(?:core|aux)/(.+)/(?:acc|reward|score)/mean(?:@|_at_)\d+",
        r"val/test_score/(.+)",
    ),
    "prime-rl": (r"eval/([^/]+)/(?:effective/[^/]+/)?avg@\d+",),
    "tinker": (r"(test)/env/all/reward/total",),
    "slime": (r"eval/(?!step$)(?!.*-(?:truncated_ratio|pass@\d+)$)([^/]+)",),
    "skyrl": (r"eval/(.+)/avg_score",),
    "openrlhf": (r"(?:eval/)?eval_(.+)_pass1",),
}
"""The mean scores of held-out datasets, the best first: `eval/<dataset>/score`. TRL's `eval_reward` is read as any
other name."""

GROUP_STD = Name("reward_std", "reward/group_std")
"""TRL before 0.27 logs the mean of the groups' standard deviations; later versions log that of the rollout batch."""

OLDER: Mapping[Host, Mapping[str, str]] = {
    "trl": {"completion_length": "completions/mean_length", "clip_ratio": "clip_ratio/region_mean"},
    "prime-rl": {"off_policy_level/all/mean": "off_policy/mean", "batch/off_policy_level/mean": "off_policy/mean"},
    "skyrl": {"policy/ppo_clip_ratio": "policy/loss_metrics/clip_ratio"},
    "verl": {
        "actor/entropy_loss": "actor/entropy",
        "actor/reward_kl_penalty": "actor/kl_loss",
        "critic/kl": "actor/kl_loss",
    },
}
"""Other names, most of earlier versions, for names of the tables. In a log that has both, these are kept."""

LEFT_ALONE: Mapping[Host, Mapping[str, str]] = {
    "trl": {
        "loss": "the whole loss: with KL, entropy bonus and penalty",
        "rewards/<function>/mean": "a function called `em` or `f1` need not measure that",
    },
    "verl": {
        "critic/rewards/mean": "minus the KL penalty, if that is in the reward",
        "critic/returns/mean": "without a critic verl logs the advantages here",
        "critic/vpred_mean": "values while the critic is updated; ours are from before",
        "actor/pg_loss": "includes the penalty if our loss function is used",
        "actor/ppo_kl": "per token; ours is a sum over a rollout",
        "timing_s/step": "includes evaluation",
    },
}
"""Names that look alike and mean something else; they keep their own names."""

FORMER: Mapping[str, str] = {
    "advantage/cut_mean": "advantage/tail_mean",
    "displacement/rows": "displacement/rollouts",
    "grad/skipped": "grad/skipped_steps",
    "penalty/drop": "penalty/mean_decrease",
    "penalty/preserved_share": "penalty/preserved_fraction",
    "retrieval/cache_hit": "retrieval/duplicate_fraction",
    "rollout/cut_fraction": "rollout/truncated_observation_fraction",
    "rollout/first_action_match": "rollout/first_action_match_fraction",
    "rollout/mixed_groups": "rollout/mixed_group_fraction",
    "sampler/keeps_mask": "sampler/mask_in_loss",
    "sampler/mass_kept": "sampler/mask_mass",
}
"""Former names of holdfast's own metrics -> their names now. Logs of earlier runs, ours or a host's, have them."""

AXES = ("train/global_step", "global_step", "trainer/global_step", "step", "Step", "_step")
"""Columns of a W&B history with steps, best first. `_step` counts calls of wandb.log, not steps of the trainer."""

CUMULATIVE = ("epoch", "num_tokens", "train/epoch", "train/num_tokens", "training/epoch", "progress/total_tokens")
"""Series that only rise within a run."""

SWIFT_STEP = "global_step/max_steps"
"""ms-swift's name for the step: `"5/547"`."""

_OLD_REWARD = re.compile("rewards/[^/]+")
_OBSERVED = ("holdfast/", "actor/holdfast/", "train/holdfast/")
_EVALS = ("eval_", "eval/")
_PREFIXED = ("trl", "openrlhf")
"""Hosts whose names have `train/` before them in W&B."""

_VERL_FAMILIES = ("actor/", "critic/", "response_length/", "rollout_corr/", "val-core/", "val-aux/", "timing_s/")
_OUR_FAMILIES = ("reward/", "rollout/", "likelihood/", "displacement/", "penalty/", "entropy/", "grad/", "ratio/")

SHARES = (
    "reward/em",
    "reward/f1",
    "clip/fraction",
    "retrieval/duplicate_fraction",
    "retrieval/error_fraction",
    "rollout/first_action_match_fraction",
    "rollout/mixed_group_fraction",
    "rollout/truncated_observation_fraction",
    "rollout/failed_fraction",
    "rollout/failed_call_fraction",
    "rollout/invalid_fraction",
    "rollout/repetition",
    "rollout/looping_fraction",
    "rollout/truncated_fraction",
    "displacement/fraction",
    "penalty/active_fraction",
    "penalty/preserved_fraction",
    "sampler/mask_mass",
    "eval/em",
    "eval/em_greedy",
    "eval/f1",
    "eval/f1_greedy",
    "eval/failed_fraction",
)
"""Series between 0 and 1. Larger values can only be percentages."""


_AGENT = re.compile(r"(?<=^train/agg/effective/)[^/]+(?=/)")
_MARKS: Mapping[Host, tuple[str, ...]] = {
    "prime-rl": ("train/agg/", "mismatch_kl/", "entropy/all/"),
    "tinker": ("env/all/", "optim/kl_sample_train"),
    "slime": ("rollout/raw_reward", "rollout/response_len/", "train/pg_clipfrac", "train/train_rollout_logprob"),
    "skyrl": ("reward/avg_raw_reward", "policy/policy_", "policy/rollout_train_logprobs"),
    "openrlhf": ("actor_grad_norm", "ppo_clip_ratio", "train/actor_grad_norm", "train/ppo_clip_ratio"),
}
"""Beginnings of names that only this host logs."""


def host_of(names: Iterable[str]) -> Host:
    """The host that logs most of these names; "unknown" if none of them is known."""
    names = list(names)
    for host, marks in _MARKS.items():
        if any(name.startswith(marks) for name in names):
            return host
    plain = {name.removeprefix("train/") for name in names}
    score: dict[Host, int] = {
        "verl": sum(name.startswith(_VERL_FAMILIES) for name in plain),
        "trl": len(plain & {*(name.host for name in TRL), *OLDER["trl"]}) + sum("holdfast/" in name for name in plain),
        "holdfast": sum(name.startswith(_OUR_FAMILIES) for name in plain),
    }
    best = max(score, key=lambda host: score[host])
    return best if score[best] else "unknown"


def trainer_of(names: Iterable[str]) -> Host:
    """The host whose rows these are, such as those of a console. Where no name tells, it is TRL or was made from it."""
    host = host_of(names)
    return "trl" if host == "unknown" else host


def translation(
    host: Host, names: Iterable[str], *, doubtful: Iterable[str] = (), instead: Iterable[Name] = ()
) -> dict[str, Name]:
    """Every name of the host -> its translation. If two names mean one series, only our observer's is translated. The
    other keeps its name, as `doubtful` names do. Rows of `instead` replace those of the table."""
    known = {
        name.host: name
        for name in (*TABLES.get(host, ()), *MORE.get(host, ()), *instead)
        if name.host not in set(doubtful)
    }
    targets = {name: _translated(host, name, known) for name in names}
    taken: set[str] = set()
    result: dict[str, Name] = {}
    for name in sorted(targets, key=lambda name: (_rank(targets[name]), name)):
        target = targets[name]
        if target.ours in taken:
            target = Name(name, name)
        while target.ours in taken:
            target = Name(name, target.ours + "'")
        taken.add(target.ours)
        result[name] = target
    return result


def is_share(ours: str) -> bool:
    """Whether a series is between 0 and 1, on the training questions or in an evaluation."""
    return ours in SHARES or ours.removeprefix("eval/") in SHARES


def _translated(host: Host, name: str, known: Mapping[str, Name]) -> Name:
    plain = name.removeprefix("train/") if host in _PREFIXED else name
    if host == "prime-rl":
        plain = _AGENT.sub("<agent>", plain)
    for mark in _EVALS if host == "trl" else ():
        if plain.startswith(mark):
            inner = _translated(host, plain.removeprefix(mark), known)
            return Name(name, f"eval/{clean(inner.ours)}", inner.change, inner.differs)
    for prefix in _OBSERVED:
        if plain.startswith(prefix):
            ours = plain.removeprefix(prefix)
            return Name(name, _present(ours.removesuffix("/mean") if host == "prime-rl" else ours))
    for pattern in HELD_OUT.get(host, ()):
        if found := re.fullmatch(pattern, plain):
            return Name(name, f"eval/{clean(found[1])}/score")
    row = known.get(OLDER.get(host, {}).get(plain, plain))
    if host == "trl" and _OLD_REWARD.fullmatch(plain):
        return Name(name, f"{clean(plain)}/mean")
    if row:
        return Name(name, row.ours, row.change, row.differs)
    return Name(name, _present(plain) if host == "holdfast" else clean(name if host == "prime-rl" else plain))


def _present(ours: str) -> str:
    """The present name of a metric of ours."""
    return FORMER.get(ours) or clean(ours)


def _rank(name: Name) -> int:
    """If two names mean one series, the one with the lowest rank is translated."""
    if "holdfast/" in name.host:
        return 0
    if name.ours == name.host:
        return 1
    if name.host.startswith("val-aux/"):
        return 3
    return 3 if any(name.host.endswith(older) for names in OLDER.values() for older in names) else 2


_SUMS = ("seq-mean-token-sum", "token-sum")
_AGGREGATION = "actor_rollout_ref.actor.loss_agg_mode"


def ambiguous_names(host: Host, series: Mapping[str, Series], settings: Mapping[str, object]) -> dict[str, str]:
    """Name in the table of the host -> why it is not translated in this log; `series` has the names of the host."""
    plain = {name.removeprefix("train/"): part for name, part in series.items()}
    reasons: dict[str, str] = {}
    if host == "trl" and _are_not_cut(plain):
        reasons["completions/clipped_ratio"] = (
            "it is 1 although these rollouts did not reach a limit, because they do not end with an end-of-text token"
        )
    if host == "verl" and str(settings.get(_AGGREGATION, "")).startswith(_SUMS):
        summed = f"under loss_agg_mode={settings[_AGGREGATION]} verl sums it over tokens"
        reasons |= {name: summed for name in ("actor/entropy", "actor/kl_loss") if name in plain}
    clipped = plain.get("response_length/clip_ratio")
    if host == "verl" and clipped is not None and (clipped.values > 0).all():
        # verl before 0.9 pads responses to the longest allowed; later versions to the longest of the batch, which is
        # always as long as itself. So a 0 anywhere shows that the name means truncation.
        reasons["response_length/clip_ratio"] = (
            "it is never 0 here, and since verl 0.9 it counts the rollouts as long as the longest of the batch, "
            "truncated or not"
        )
    return reasons


def by_version(host: Host, series: Mapping[str, Series]) -> tuple[Name, ...]:
    """Rows of the table that the version of the trainer changes, as far as the log shows the version."""
    plain = {name.removeprefix("train/"): part for name, part in series.items()}
    return (GROUP_STD,) if host == "trl" and _is_of_groups(plain) else ()


def _is_of_groups(plain: Mapping[str, Series]) -> bool:
    """Whether `reward_std` is a mean over groups. Either no function has an `/std` (TRL before 0.17), or the `/std` of
    the only function, which is over the rollout batch, differs from it."""
    total = plain.get("reward_std")
    functions = [part for name, part in plain.items() if name.startswith("rewards/") and name.endswith("/std")]
    if total is None or not functions:
        return total is not None
    if len(functions) > 1:
        return False
    steps = np.intersect1d(total.steps, functions[0].steps)
    a, b = (part.values[np.searchsorted(part.steps, steps)] for part in (total, functions[0]))
    both = np.isfinite(a) & np.isfinite(b)
    return bool((np.abs(a[both] - b[both]) > 1e-3 * np.abs(b[both])).any())


def _are_not_cut(plain: Mapping[str, Series]) -> bool:
    """Whether rollouts that all count as cut differ in length; without logged lengths, whether all always count."""
    clipped = plain.get("completions/clipped_ratio")
    shortest, longest = plain.get("completions/min_length"), plain.get("completions/max_length")
    if clipped is None:
        return False
    if shortest is None or longest is None:
        return bool((clipped.values == 1).all())
    steps = reduce(np.intersect1d, (clipped.steps, shortest.steps, longest.steps))
    share, low, high = (part.values[np.searchsorted(part.steps, steps)] for part in (clipped, shortest, longest))
    return bool(((share == 1) & (low < high)).any())
