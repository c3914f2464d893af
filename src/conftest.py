"""Which modules have no doctests to run here: pytest imports a module to find its doctests, and these need a host."""

from importlib.util import find_spec

_OF_HOSTS = {
    "verl": ["holdfast/adapters/verl", "holdfast/adapters/verl_agent.py"],
    "openenv": ["holdfast/adapters/openenv"],
    "verifiers": ["holdfast/adapters/verifiers", "holdfast_verifiers.py"],
}
collect_ignore = [path for host, paths in _OF_HOSTS.items() if find_spec(host) is None for path in paths]
