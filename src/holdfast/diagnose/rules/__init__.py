"""The rules: a file for each code, and in `_parts` the conditions that several of them share. No rule looks ahead."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

from holdfast.diagnose.codes import CODES
from holdfast.diagnose.rules.rule import Rule


def load_rule(code: str) -> Rule:
    """The rule of a registered code: `RULE` of the file that is named after it, whose docstring explains it."""
    module = import_module(f"{__name__}.{code.lower()}")
    rule: Rule = replace(module.RULE, code=code, doc=module.__doc__)
    return rule


RULES: dict[str, Rule] = {code: load_rule(code) for code in CODES}
"""By code, causes before symptoms."""
