"""A host's names in the spelling of an export: verl's `critic/score/mean` is often written `critic_score_mean`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from holdfast.hosts import HOSTS
from holdfast.hosts.host import Host

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
        plain = name.removeprefix("train/") if host.prefixed else name
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
