"""Each page of the guide begins with what to type."""

from __future__ import annotations

from pathlib import Path

import pytest

GUIDE = sorted((Path(__file__).parents[2] / "docs" / "guide").glob("*.md"))


@pytest.mark.parametrize("page", GUIDE, ids=[page.stem for page in GUIDE])
def test_a_page_begins_with_what_to_type(page: Path) -> None:
    head = page.read_text(encoding="utf-8").splitlines()[:25]
    assert "```bash" in head
