"""The names of a log as those of holdfast, by the tables of `holdfast.hosts`. Other names are kept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from holdfast.diagnose.log import METRICS
from holdfast.diagnose.readers.text import clean, listed
from holdfast.hosts import HOSTS, UNKNOWN
from holdfast.hosts.host import Host, Name
from holdfast.hosts.ours import OURS
from holdfast.hosts.trl import TRL
from holdfast.hosts.verl import VERL

AXES = (
    *("train/global_step", "global_step", "trainer/global_step", "step", "Step"),
    *("system/step", "system/global_step", "_step"),  # of ROLL; and of W&B, which counts calls of wandb.log
)
"""Columns with steps, best first."""

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
    plain = host.plain(name)
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


# ---- other spellings: verl's `critic/score/mean` is often written `critic_score_mean` in an export

_BETWEEN = re.compile(r"[^0-9a-z]+")
_MIN_NAMES = 3
"""Names in another spelling by which a host is known. One or two may be a script's own."""


@lru_cache(maxsize=1 << 14)
def key(name: str) -> str:
    """What a name has in common with its other spellings.

    >>> key("critic/score/mean"), key("Critic score.mean"), key("train/lr-pg_0")
    ('critic_score_mean', 'critic_score_mean', 'train_lr_pg_0')
    """
    return _BETWEEN.sub("_", name.lower()).strip("_")


@lru_cache(maxsize=64)
def _table(host: Host) -> Mapping[str, str]:
    """Key -> the host's own spelling."""
    rows = (row.host for row in (*host.more, *host.series))
    return {key(name): name for name in (*host.left_alone, host.step_seconds, *host.older, *rows) if name}


def spelled(of: str, names: Iterable[str]) -> dict[str, str]:
    """Name of the log -> the spelling of the host `of`, for names in another one. No two names become one."""
    names = list(names)
    host = HOSTS[of]
    table, taken = _table(host), set(names)
    result: dict[str, str] = {}
    for name in names:
        written = table.get(key(name))
        if written is None and host.prefixed:
            written = table.get(key(name).removeprefix("train_"))
        plain = host.plain(name)
        if written is not None and plain != written and written not in taken:
            taken.add(written)
            result[name] = written
    return result


def respelled_host(names: Iterable[str]) -> tuple[Host, int] | None:
    """The host of which a log has most names in another spelling, and how many; None if no host has enough of them.

    A name without a mark between its parts looks the same in every spelling, so only hosts whose names have one count.
    """
    names = list(names)
    best = max(HOSTS.values(), key=lambda host: _respelled(host, names))
    count = _respelled(best, names)
    return (best, count) if count >= _MIN_NAMES else None


def _respelled(host: Host, names: list[str]) -> int:
    telling = (*host.marks, *host.families)
    return sum(written.startswith(telling) for written in spelled(host.id, names).values()) if telling else 0


# ---- what was not understood: said in one sentence, with the way to name it

_TELLING = re.compile(
    r"reward|score|kl\b|kl_|_kl|entrop|clip|ratio|len(?:gth)?\b|trunc|stale|off_?policy|grad|norm|turn|tool|prob|logp|"
    r"drop|accura|success|frac|rate\b",
    re.IGNORECASE,
)
"""What the names of measurements contain that a rule might need."""
_PASSED_OVER = re.compile(
    r"^(?:rewards?/|eval|val|test|valid(?:ation)?|time|timing|perf|profil|system|memory|gpu|progress|prompt|global_seqlen)|"
    r"[_/](?:min|max|std|var|median|count|sum)$",
    re.IGNORECASE,
)
"""What measures something else: a part of the reward, an evaluation, the machine, the prompts; and what stands beside a
mean."""
_DEEP = 3
"""Parts of a name from which on it is one of many below a table."""


def not_understood(host: str, targets: Mapping[str, Name]) -> str:
    """A sentence on the names that were kept and could measure what a rule needs, and on those that look like a series
    that another name has; "" if there are none."""
    of = HOSTS[host]
    taken = {target.ours for target in targets.values()}
    kept = [name for name, target in targets.items() if target.ours in (clean(name), clean(name) + "'")]
    unknown = [name for name in kept if not _is_known(of, name)]
    alike = [name for name in unknown if COMMON.get(common(name)) in taken]
    rest = [name for name in unknown if name not in alike and _TELLING.search(name)]
    said = [f"Not recognised: {listed(sorted(rest))}."] if rest else []
    if alike:
        said.append(f"Named like a metric that was already read under another name: {listed(sorted(alike))}.")
    return " ".join([*said, "To say what a metric is, give `--name OURS=THEIRS`."]) if said else ""


def _is_known(host: Host, name: str) -> bool:
    """Whether the glossary has a name, or the tables of its host know what is beside it."""
    plain = host.plain(name)
    if plain in METRICS or plain in (*AXES, *CUMULATIVE) or _PASSED_OVER.search(plain) or plain.count("/") >= _DEEP:
        return True
    names = (*(row.host for row in (*host.series, *host.more)), *host.left_alone)
    families = {key(known.rpartition("/")[0]) + "_" for known in names if "/" in known}
    return plain in names or key(plain).startswith(tuple(families))
