"""The site's page of settings lists every setting of a recipe."""

from __future__ import annotations

import re

from tests.contracts.site_modules import site_module

from holdfast.recipe import setting_names

settings = site_module("settings")


def listed(text: str) -> set[str]:
    """The dotted names on the page."""
    names: set[str] = set()
    section = ""
    for line in text.splitlines():
        if match := re.match(r"## `\[(.+)\]`", line):
            section = match[1]
        elif match := re.match(r"\| (?:\*\*)?`(\w+)`", line):
            names.add(f"{section}.{match[1]}")
    return names


def test_every_setting_is_on_the_page() -> None:
    names = listed(settings.page())
    assert names == set(setting_names())
    assert set(settings.USEFUL) <= names
