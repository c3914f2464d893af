"""The site's page of settings lists every setting of a recipe."""

from __future__ import annotations

import re
from typing import Annotated

import pytest
from pydantic import BaseModel, Field
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


def test_a_setting_that_is_missing_is_seen() -> None:
    text = settings.page()
    assert set(setting_names()) - listed(text.replace("| **`steps`**", "| **steps**")) == {
        "train.steps",
        "warm_start.steps",
    }


class Toy(BaseModel):
    share: Annotated[float, Field(ge=0, lt=1)] = 0.5
    either: Annotated[int, Field(gt=2)] | None = None


@pytest.mark.parametrize(
    ("key", "text"), [("share", "a number ≥ 0 and < 1"), ("either", "a whole number > 2 or unset")]
)
def test_bounds_are_shown(key: str, text: str) -> None:
    info = Toy.model_fields[key]
    assert settings.values(info.annotation, info.metadata) == text
