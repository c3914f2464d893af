"""Which settings of a recipe name code, and which code they name: one table for all commands.

A recipe may come from somebody else, and a run folder has one. So the command line says which code runs before it does,
and runs what a run folder names only with `TRUST`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.agent.mcp import PREFIX
from holdfast.base.importing import is_import_path
from holdfast.base.section import setting_values
from holdfast.recipe.config import Config

OF_TOOLS = "protocol.tools"
IMPORTED = ("data.train", "loss.penalty.path", "reward.custom", OF_TOOLS)
"""Settings with import paths, `module:name`, of modules that may be in the folder `run.code`."""
OF_MODEL = "model.trust_remote_code"
"""The setting that runs the Python files of a model."""
TRUST = "--trust-code"
"""The option with which a command runs the code that a run folder's own recipe names."""


def import_paths(values: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Setting -> the import paths in its value, of settings by dotted name. Modules of holdfast's own are left out.

    >>> import_paths({"reward.custom": {"my_code:brevity": 0.2, "holdfast.agent.rewards:unicode_em": 1.0}})
    {'reward.custom': ('my_code:brevity',)}
    """
    found = {name: tuple(filter(_is_foreign, _texts(values.get(name)))) for name in IMPORTED}
    return {name: paths for name, paths in found.items() if paths}


def code_of(config: Config) -> dict[str, tuple[str, ...]]:
    """Setting -> the code that it runs: import paths, commands and addresses of MCP servers, or the model that brings
    its own; empty for most recipes."""
    named = import_paths(setting_values(config))
    if servers := tuple(name for name in config.protocol.tools or () if name.startswith(PREFIX)):
        named[OF_TOOLS] = (*named.get(OF_TOOLS, ()), *servers)
    return named | ({OF_MODEL: (config.model.path,)} if config.model.trust_remote_code else {})


def trusting(config: Config) -> str:
    """What a command on the run folder of a recipe needs at its end: `TRUST` after a blank, or nothing."""
    return f" {TRUST}" if code_of(config) else ""


def _texts(value: Any) -> Iterable[str]:
    texts = [value] if isinstance(value, str) else value if isinstance(value, Mapping | list | tuple) else ()
    return (text for text in texts if isinstance(text, str))


def _is_foreign(path: str) -> bool:
    return is_import_path(path) and path.partition(":")[0].partition(".")[0] != "holdfast"
