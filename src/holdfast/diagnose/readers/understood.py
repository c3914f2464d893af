"""Which names of a log were understood: the others are said in one sentence, with the way to name them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from holdfast.diagnose.log.glossary import METRICS
from holdfast.diagnose.readers.names import AXES, COMMON, CUMULATIVE, common
from holdfast.diagnose.readers.spelling import key
from holdfast.diagnose.readers.text import clean, listed
from holdfast.hosts import HOSTS
from holdfast.hosts.host import Host, Name

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
    plain = name.removeprefix("train/") if host.prefixed else name
    if plain in METRICS or plain in (*AXES, *CUMULATIVE) or _PASSED_OVER.search(plain) or plain.count("/") >= _DEEP:
        return True
    names = (*(row.host for row in (*host.series, *host.more)), *host.left_alone)
    families = {key(known.rpartition("/")[0]) + "_" for known in names if "/" in known}
    return plain in names or key(plain).startswith(tuple(families))
