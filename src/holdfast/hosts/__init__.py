"""What other trainers call our settings and series: a value per host, one fact once. No torch."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.hosts.host import Host
from holdfast.hosts.others import AREAL, ART, NEMO_RL, OPEN_INSTRUCT, OPENRLHF, ROLL, SKYRL, SLIME
from holdfast.hosts.ours import OURS
from holdfast.hosts.prime_rl import PRIME_RL
from holdfast.hosts.tinker import RLLM, TINKER
from holdfast.hosts.trl import TRL, TRL_ASYNC
from holdfast.hosts.verl import VERL, VERL_ASYNC

UNKNOWN = Host(id="unknown", title="the host")
"""Of which no name is known."""

HOSTS: Mapping[str, Host] = {
    host.id: host
    for host in (
        OURS,
        TRL,
        TRL_ASYNC,
        VERL,
        VERL_ASYNC,
        PRIME_RL,
        TINKER,
        SLIME,
        SKYRL,
        OPENRLHF,
        NEMO_RL,
        ART,
        ROLL,
        AREAL,
        OPEN_INSTRUCT,
        RLLM,
        UNKNOWN,
    )
}
"""Every host by its id. A new one has its file and a place here."""

PHRASES = frozenset(OURS.words)
"""What a remedy may call a setting."""
PENALTY = "penalty on lost likelihood"
"""The phrase for it, in every host at the coefficient of `hosts.host.COEF`."""


def words(host: str, phrase: str) -> tuple[str, ...]:
    """What a host calls the settings that a remedy names by a phrase; empty if it has none.

    Without words of its own it is the option that has the value of our setting.

    >>> words("trl", "learning rate"), words("art", "learning rate")
    (('learning_rate',), ())
    """
    known = HOSTS[host]
    if phrase in known.words:
        return known.words[phrase]
    match OURS.words[phrase]:
        case (setting,) if setting in known.settings:
            return (known.settings[setting],)
        case _:
            return ()
