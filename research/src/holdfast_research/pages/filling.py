"""Pages whose prose is written by hand and whose tables are made: a table stands between two marks."""

from __future__ import annotations

import re
from collections.abc import Mapping


def filled(page: str, tables: Mapping[str, str]) -> str:
    """The page with each table between its marks, `<!-- NAME -->` and `<!-- end -->`.

    >>> print(filled("Two:\\n<!-- a -->\\nold\\n<!-- end -->\\n", {"a": "new"}), end="")
    Two:
    <!-- a -->
    <BLANKLINE>
    new
    <BLANKLINE>
    <!-- end -->
    """
    for name, table in tables.items():
        found = re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", page, re.DOTALL)
        assert found, f"the page has lost the marks of its {name}"
        page = f"{page[: found.start(1)]}\n{table.strip()}\n\n{page[found.end(1) :]}"
    return page
