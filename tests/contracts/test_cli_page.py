"""The site's page of commands has every command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tests.contracts.site_modules import site_module

from holdfast_research.__main__ import program

commands = site_module("commands")


def names_of(command: Any, name: str = "holdfast") -> Iterator[str]:
    for child, inner in getattr(command, "commands", {}).items():
        yield f"{name} {child}"
        yield from names_of(inner, f"{name} {child}")


def test_every_command_has_a_section() -> None:
    headings = set(re.findall(r"^###+ (holdfast .*)$", commands.page(), re.M))
    assert headings == set(names_of(program()))
    assert {"holdfast train", "holdfast eval compare", "holdfast reproduce run"} <= headings
