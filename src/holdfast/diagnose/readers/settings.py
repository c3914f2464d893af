"""Settings of a run as trackers write them: texts, and the YAML of W&B, SwanLab and MLflow."""

from __future__ import annotations

import ast
import re
from pathlib import Path

_PAIR = re.compile(r"( *)('[^']*'|[^\s:#'\"][^:]*):(?:\s+(.*))?")
_LARGEST = 1 << 20  # bytes
_WORDS = {"true": True, "false": False, "null": None, "none": None, "~": None, "": None}


def setting(text: str) -> object:
    """The value that a text represents, or the text itself.

    >>> setting("1e-06"), setting("True"), setting("null"), setting("'a b'"), setting("grpo")
    (1e-06, True, None, 'a b', 'grpo')
    """
    text = text.strip()
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return float(text) if re.fullmatch(r"[+-]?[\d.]+e[+-]?\d+", text, re.IGNORECASE) else ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text


def read_yaml(path: Path) -> dict[str, object]:
    """The scalar values of a YAML file by dotted names, without lists; {} if there is no regular file.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "a.yaml").write_text("beta:\\n  desc: ''\\n  value: 0.04\\nname: 'x'\\nmany:\\n- 1\\n")
    ...     read_yaml(Path(folder) / "a.yaml")
    {'beta.desc': '', 'beta.value': 0.04, 'name': 'x'}
    """
    if not path.is_file():  # a pipe would be waited for
        return {}
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            lines = file.read(_LARGEST).splitlines()
    except OSError:
        return {}
    result: dict[str, object] = {}
    above: list[tuple[int, str]] = []
    for line in lines:
        match = _PAIR.fullmatch(line.rstrip())
        if match is None:
            continue
        indent, name = len(match[1]), match[2].strip("'").strip()
        while above and above[-1][0] >= indent:
            above.pop()
        if match[3] is None:
            above.append((indent, name))
        else:
            result[".".join([*(outer for _, outer in above), name])] = setting(match[3])
    return result
