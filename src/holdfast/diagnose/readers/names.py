"""The names of a log as those of holdfast, by the tables of `holdfast.hosts`. Other names are kept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from holdfast.diagnose.log import Series
from holdfast.diagnose.log.glossary import METRICS
from holdfast.diagnose.readers.spelling import respelled_host
from holdfast.diagnose.readers.text import clean
from holdfast.hosts import HOSTS, UNKNOWN
from holdfast.hosts.host import Host, Name
from holdfast.hosts.ours import OURS
from holdfast.hosts.trl import TRL
from holdfast.hosts.verl import VERL

AXES = ("train/global_step", "global_step", "trainer/global_step", "step", "Step", "_step")
"""Columns of a W&B history with steps, best first. `_step` counts calls of wandb.log, not steps of the trainer."""

CUMULATIVE = ("epoch", "num_tokens", "train/epoch", "train/num_tokens", "training/epoch", "progress/total_tokens")
"""Series that only rise within a run."""

SWIFT_STEP = "global_step/max_steps"
"""ms-swift's name for the step: `"5/547"`."""

_FEW = 2
_OLD_REWARD = re.compile("rewards/[^/]+")
_OBSERVED = ("holdfast/", "actor/holdfast/", "train/holdfast/")
_EVALS = ("eval_", "eval/")

_SHARES = {
    *("reward/em", "reward/f1", "eval/em", "eval/em_greedy", "eval/f1", "eval/f1_greedy"),
    *("rollout/repetition", "sampler/mask_mass", *(name for name in METRICS if name.endswith("fraction"))),
}
"""Series between 0 and 1. Larger values can only be percentages."""

_CALLED: Mapping[str, tuple[str, ...]] = {
    "reward/mean": (
        *("reward", "rewards", "reward_total", "total_reward", "rewards_total", "episode_reward", "batch_reward"),
        *("rollout_reward", "rew", "ep_rew", "episode_rew", "r_total", "total_r", "score", "return", "returns"),
    ),
    "reward/std": ("reward_std", "std_reward"),
    "entropy/mean": ("entropy", "policy_entropy"),
    "kl/reference": ("kl", "kl_ref", "kl_div", "kl_divergence", "kl_to_reference", "kl_to_ref", "ref_kl"),
    "grad/norm": ("grad_norm", "gradient_norm"),
    "clip/fraction": ("clip_fraction", "clip_frac"),
    "rollout/length": (
        *("completion_length", "response_length", "response_len", "completion_len", "mean_length", "generation_length"),
        *("gen_length", "gen_len", "resp_length", "resp_len", "length", "len"),
    ),
    "rollout/truncated_fraction": (
        *("clipped_ratio", "truncated_ratio", "truncated_fraction", "truncation_ratio", "truncation_rate"),
        "completions_clipped_ratio",
    ),
    "rollout/turns": ("num_turns", "turns"),
    "rollout/searches": ("tool_calls", "num_tool_calls", "searches", "num_searches"),
    "rollout/staleness": ("staleness",),
    "lr": ("learning_rate", "lr"),
    "eval/searches": ("eval_avg_tool_calls", "eval_tool_calls", "eval_searches"),
    "eval/em": ("eval_em", "eval_exact_match"),
}
COMPLEMENTS = dict.fromkeys(
    ("frac_reward_zero_std", "reward_zero_std_frac", "zero_std_frac", "zero_std_fraction"),
    "rollout/mixed_group_fraction",
)
"""Of these names, 1 − x is ours."""
COMMON: Mapping[str, str] = COMPLEMENTS | {name: ours for ours, names in _CALLED.items() for name in names}
"""What people call a series in scripts of their own, as `common` writes it -> ours. The earlier of two names counts."""

_AROUND = re.compile(
    r"^(?:train(?:ing)?[_/]|rollouts?[_/]|metrics?[_/]|stats[_/]|batch_|mean_|avg_|average_|actor_|policy_)+"
    r"|(?:[_/]stats|[_/]mean|[_/]avg|[_/]average)+$"
)


_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z][a-z])")


def snake(name: str) -> str:
    """A name with `_` between the words that capitals begin.

    >>> snake("MeanReward"), snake("KL_ref"), snake("mean reward")
    ('Mean_Reward', 'KL_ref', 'mean reward')
    """
    return _HUMP.sub("_", name)


def common(name: str) -> str:
    """A name without what people write differently: case, blanks, prefixes, and that it is a mean.

    >>> common("Batch reward stats/mean"), common("train/Avg. Response Len"), common("rewards/total_mean")
    ('reward', 'response_len', 'rewards_total')
    >>> common("AverageReward"), common("ep_rew_mean")
    ('reward', 'ep_rew')
    """
    plain = re.sub(r"[\s.\-]+", "_", snake(name.strip()).lower()).strip("_")
    return re.sub(r"[_/]+", "_", _AROUND.sub("", _AROUND.sub("", plain)))


def by_common_names(names: Iterable[str], taken: Iterable[str]) -> dict[str, str]:
    """Name -> ours, for names that everybody understands; none for a series of ours that is `taken`."""
    order, have = list(COMMON), set(taken)
    ranked = sorted((order.index(key), len(name), name) for name in names if (key := common(name)) in COMMON)
    result: dict[str, str] = {}
    for rank, _, name in ranked:
        if (ours := COMMON[order[rank]]) not in have:
            have.add(ours)
            result[name] = ours
    return result


_REWARD = {"reward": 0, "rewards": 0, "rew": 0, "score": 1, "scores": 1, "return": 2, "returns": 2}
"""Words for a reward, the surest first: returns are often normalised advantages."""
_OF_ANOTHER = {
    *("std", "min", "max", "var", "loss", "model", "time", "count", "weight", "coef", "eval", "val", "test"),
    *("best", "target", "threshold", "scale", "baseline"),
}
_OF_PART = {"format", "length", "len", "penalty", "bonus", "kl", "non", "shown", "ema", "running", "cumulative", "sum"}
"""Words of a part of the reward, or of a sum of it over time."""


def like_a_reward(names: Iterable[str]) -> str | None:
    """The name that a person would take for the reward, by the words in it; None if there is none.

    >>> like_a_reward(["reward_std", "env_step_reward_sum", "env_reward", "loss"])
    'env_reward'
    >>> like_a_reward(["best_reward", "format_reward", "answer_reward"]), like_a_reward(["best_reward"])
    ('answer_reward', None)
    """
    words = {name: common(name).split("_") for name in names}
    ranks = {
        name: min((_REWARD[part] for part in parts if part in _REWARD), default=-1) for name, parts in words.items()
    }
    able = [name for name, parts in words.items() if ranks[name] >= 0 and not _OF_ANOTHER & {*parts}]
    order = {name: (ranks[name], not _OF_PART.isdisjoint(words[name]), len(words[name]), name) for name in able}
    return min(able, key=order.__getitem__, default=None)


_OF_ONE = {"mean", "min", "max", "std", "median", "var", "count", "n", "epoch"}


def mean_alone(names: Iterable[str]) -> str | None:
    """The mean of a log that has the statistics of one thing and nothing else.

    >>> mean_alone(["epoch", "mean", "min", "max"]), mean_alone(["mean", "loss"])
    ('mean', None)
    """
    return "mean" if "mean" in (known := {*names}) and known <= _OF_ONE else None


def host_of(names: Iterable[str]) -> str:
    """The host that logs most of these names, in its spelling or in another; "unknown" if none of them is known."""
    names = list(names)
    host = exact_host_of(names)
    if other := respelled_host(names):
        known = {row.host for row in (*HOSTS[host].series, *HOSTS[host].more)}
        if other[1] > len(known.intersection(name.removeprefix("train/") for name in names)):
            return other[0].id
    return host


def exact_host_of(names: Iterable[str]) -> str:
    """The host that logs most of these names in its own spelling."""
    names = list(names)
    for host in HOSTS.values():
        if host.marks and any(name.startswith(host.marks) for name in names):
            return host.id
    plain = {name.removeprefix("train/") for name in names}
    of_trl = len(plain & {*(row.host for row in TRL.series), *TRL.older})
    if "train/global_step" not in names and (of_trl < _FEW or _calls_its_reward_otherwise(plain)):
        of_trl = 0
    score = {
        VERL.id: sum(name.startswith(VERL.families) for name in plain),
        TRL.id: of_trl + sum("holdfast/" in name for name in plain),
        OURS.id: sum(name.startswith(OURS.families) and name in METRICS for name in plain),
    }
    if score[OURS.id] < len(plain) / 8:  # many trackers' logs have a `reward/mean`
        score[OURS.id] = 0
    best = max(score, key=lambda host: score[host])
    return best if score[best] else UNKNOWN.id


def _calls_its_reward_otherwise(plain: set[str]) -> bool:
    """Whether a script of one's own wrote it: with names of TRL's, but `reward_mean` for `reward`."""
    return "reward" not in plain and any(COMMON.get(common(name)) == "reward/mean" for name in plain)


def trainer_of(names: Iterable[str]) -> str:
    """The host whose rows these are, such as those of a console. Where no name tells, it is TRL or was made from it."""
    host = host_of(names)
    return TRL.id if host == UNKNOWN.id else host


def translation(
    host: str, names: Iterable[str], *, doubtful: Iterable[str] = (), instead: Iterable[Name] = ()
) -> dict[str, Name]:
    """Every name of the host -> its translation. If two names mean one series, only our observer's is translated. The
    other keeps its name, as `doubtful` names do. Rows of `instead` replace those of the table."""
    of = HOSTS[host]
    doubtful = set(doubtful)
    known = {row.host: row for row in (*of.series, *of.more, *instead) if row.host not in doubtful}
    if of.agent:  # a run of one agent need not name it
        known |= {host.replace("<agent>/", ""): row for host, row in known.items()}
    targets = {name: Name(name, clean(name)) if name in doubtful else _translated(of, name, known) for name in names}
    taken: set[str] = set()
    result: dict[str, Name] = {}
    for name in sorted(targets, key=lambda name: (_rank(of, targets[name]), name)):
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
    return ours in _SHARES or ours.removeprefix("eval/") in _SHARES


def _translated(host: Host, name: str, known: Mapping[str, Name]) -> Name:
    plain = name.removeprefix("train/") if host.prefixed else name
    if host.agent and plain not in known:
        plain = re.sub(host.agent, "<agent>", plain)
    for mark in _EVALS if host.family == TRL.id else ():
        if plain.startswith(mark):
            inner = _translated(host, plain.removeprefix(mark), known)
            return Name(name, f"eval/{clean(inner.ours)}", inner.change, inner.differs)
    for prefix in _OBSERVED:
        if plain.startswith(prefix):
            ours = plain.removeprefix(prefix)
            return Name(name, clean(ours.removesuffix("/mean") if host.agent else ours))
    for pattern in host.held_out:
        if found := re.fullmatch(pattern, plain):
            return Name(name, f"eval/{clean(found[1])}/score")
    row = known.get(host.older.get(plain, plain))
    if host.family == TRL.id and _OLD_REWARD.fullmatch(plain):
        return Name(name, f"{clean(plain)}/mean")
    if row:
        return Name(name, row.ours, row.change, row.differs)
    return Name(name, clean(name if host.agent else plain))


def _rank(host: Host, name: Name) -> int:
    """If two names mean one series, the one with the lowest rank is translated."""
    if "holdfast/" in name.host:
        return 0
    if name.ours == name.host:
        return 1
    second = (*host.older, *(row.host for row in host.more))
    plain = name.host.removeprefix("train/").removeprefix("eval_").removeprefix("eval/")
    return 3 if plain.startswith("val-aux/") or plain in second else 2


def ambiguous_names(host: str, series: Mapping[str, Series], settings: Mapping[str, object]) -> dict[str, str]:
    """Name in the table of the host -> why it is not translated in this log; `series` has the names of the host."""
    return HOSTS[host].doubtful(_plain(HOSTS[host], series), settings)


def by_version(host: str, series: Mapping[str, Series]) -> tuple[Name, ...]:
    """Rows of the table that the version of the trainer changes, as far as the log shows the version."""
    return HOSTS[host].by_version(_plain(HOSTS[host], series))


def variant_of(host: str, series: Mapping[str, Series], settings: Mapping[str, object]) -> str:
    """The trainer of the host's family that wrote a log of these series."""
    return HOSTS[host].variant(_plain(HOSTS[host], series), settings) or host


def _plain(host: Host, series: Mapping[str, Series]) -> Mapping[str, Series]:
    return {name.removeprefix("train/"): part for name, part in series.items()} if host.prefixed else series
