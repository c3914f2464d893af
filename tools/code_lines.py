"""Files of Python and their lines of code, by folder: `python tools/code_lines.py FOLDER...` (`make sizes`).

A line of code is neither blank nor a comment, and not part of a string that stands alone, as a docstring does.
"""

from __future__ import annotations

import io
import sys
import tokenize
from pathlib import Path

NOT_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> int:
    """How many lines of a module are code.

    >>> code_lines("'''What\\nit does.'''\\n\\nx = [  # why\\n    1,\\n]\\n")
    3
    """
    lines: set[int] = set()
    statement: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NEWLINE:
            if any(part.type != tokenize.STRING for part in statement):
                lines.update(line for part in statement for line in range(part.start[0], part.end[0] + 1))
            statement = []
        elif token.type not in NOT_CODE:
            statement.append(token)
    return len(lines)


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        sources = [path.read_text(encoding="utf-8") for path in Path(folder).rglob("*.py")]
        print(f"{folder:28} {len(sources):4} files {sum(map(code_lines, sources)):6} lines of code")
