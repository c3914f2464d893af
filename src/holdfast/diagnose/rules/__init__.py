"""The rules: one file per family of codes. No rule looks ahead."""

from __future__ import annotations

from importlib import import_module

from holdfast.diagnose.codes import CODES
from holdfast.diagnose.rules.rule import Rule


def load_rule(code: str) -> Rule:
    """The rule of a registered code: the constant of that name in its family's file."""
    rule = getattr(import_module(f"{__name__}.{CODES[code]}"), code)
    assert isinstance(rule, Rule) and rule.code == code
    return rule


RULES: dict[str, Rule] = {code: load_rule(code) for code in CODES}
"""By code, causes before symptoms."""
