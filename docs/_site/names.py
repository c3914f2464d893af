"""The site's page of names: what each trainer calls our metrics, from its file of `holdfast.hosts`."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.hosts import HOSTS, UNKNOWN

HEAD = """\
# Names by trainer

Which of a trainer's names [`holdfast diagnose`](../guide/diagnose.md) reads, and which of our [metrics](metrics.md)
each becomes. Any other name stays as it is. [Logs](logs.md#names) says how names are matched, and where a name has
more than one meaning.
"""
TITLES = {
    "trl": "TRL",
    "tinker": "tinker-cookbook",
    "slime": "slime and miles",
    "skyrl": "SkyRL",
    "openrlhf": "OpenRLHF",
    "nemo-rl": "NeMo-RL",
    "art": "ART",
}


def part(host: str) -> Iterator[str]:
    """The names of a host, and those that look alike and are not read: without what the host it is built on has."""
    known, base = HOSTS[host], HOSTS.get(HOSTS[host].kin, UNKNOWN)
    yield from (f"## {TITLES.get(host) or known.title or host}", "")
    if base is not UNKNOWN:
        yield from (f"Beside the names of {TITLES.get(base.id, base.id)}:", "")
    yield from ("| its name | ours |", "|---|---|")
    for name in known.series + known.more:
        if name not in base.series + base.more:
            ours = f"`{name.ours}`" + (f" = {name.change}" if name.change != "x" else "")
            yield f"| `{name.host}` | {ours}{f' ({name.differs})' if name.differs else ''} |"
    yield ""
    if known.left_alone and known.left_alone != base.left_alone:
        yield from ("These look alike and keep their names:", "", "| name | what it is |", "|---|---|")
        yield from (f"| `{name}` | {why} |" for name, why in known.left_alone.items())
        yield ""


def page() -> str:
    """The text of the page."""
    return "\n".join([HEAD, *(line for host in HOSTS if HOSTS[host].series for line in part(host))]).rstrip("\n") + "\n"
