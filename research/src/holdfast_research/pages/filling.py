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
        made = f"<!-- {name} -->\n\n{table.strip()}\n\n<!-- end -->"
        page, n = re.subn(rf"<!-- {name} -->\n.*?<!-- end -->", lambda _, made=made: made, page, flags=re.DOTALL)
        assert n == 1, f"the page has lost the marks of its {name}"
    return page
