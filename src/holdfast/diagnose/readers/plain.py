"""A printed line without what Python, a terminal and a table write around its names and numbers."""

from __future__ import annotations

import ast
import json
import re
import warnings
from contextlib import suppress
from typing import Any

from holdfast.diagnose.readers.text import COLOUR, without_process

_CALLS = re.compile(r"(?<![\w.])(?:tensor|array|\w+(?:\.\w+)+)\(\[?([-+.\w]++)[^()]*\)")
"""A number of torch or numpy: `tensor(0.5, device='cuda:0')`, `np.float64(0.5)`."""
_QUOTED = re.compile(r"(['\"])([A-Za-z][\w./@-]*)\1(?=\s*:)")
_QUOTED_NUMBER = re.compile(r"(?<=[:=] )(['\"])([-+]?[\d.]+(?:e[-+]?\d+)?%?)\1", re.IGNORECASE)
_THOUSANDS = re.compile(r"(?<=[=\s])[-+]?[1-9]\d{0,2}(?:,\d{3})+(?![\d,])")
_WIDE = str.maketrans({"：": ": ", "，": ", ", "；": "; ", "（": " (", "）": ") ", "＝": "=", "％": "%", "　": " "})
_WALLS = str.maketrans("│┃║¦", "||||")
_LETTER = re.compile(r"[A-Za-z]")
_NUMBER = re.compile(r"[-+]?[\d.]+(?:e[-+]?\d+)?%?|[-+]?(?:nan|inf)", re.IGNORECASE)


def plain(line: str) -> str:
    """A line as names and numbers: without colours and the process that printed it, full-width marks, the walls of a
    table, the quotes of a dict, the types of torch and numpy, and commas between thousands.

    >>> plain("│ grpo/reward │ 5.0e-01 │"), plain("{'reward': tensor([0.5], device='cuda:0')}"), plain("loss：0.5")
    ('grpo/reward: 5.0e-01', '{reward: 0.5}', 'loss: 0.5')
    >>> plain("reward: 1,234.5 of [1,200,300] at 10:11:12,123"), plain("| 1 | 0.5 |")
    ('reward: 1234.5 of [1,200,300] at 10:11:12,123', '| 1 | 0.5 |')
    """
    line = without_process(COLOUR.sub("", line) if "\x1b" in line else line)
    if not line.isascii():
        line = line.translate(_WIDE).translate(_WALLS)
    if "(" in line and ("tensor(" in line or "array(" in line or "np." in line or "numpy." in line):
        line = _CALLS.sub(r"\1", line)
    if "': " in line or '":' in line:
        line = _QUOTED_NUMBER.sub(r"\2", _QUOTED.sub(r"\2", line))
    if "," in line:
        line = _THOUSANDS.sub(lambda found: found[0].replace(",", ""), line)
    return _without_walls(line) if line.lstrip().startswith("|") else line


def _without_walls(line: str) -> str:
    """The names and numbers of a row between bars; any other row as it is."""
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    names, numbers = cells[::2], cells[1::2]
    if len(names) != len(numbers) or not all(map(_LETTER.match, names)) or not all(map(_NUMBER.fullmatch, numbers)):
        return line if len(cells) > 1 else cells[0]
    return " | ".join(f"{name}: {number}" for name, number in zip(names, numbers, strict=True))


# ---- dicts

_WORDS = re.compile(r"(?<=: )(-?)(nan|inf|None|True|False)(?=[,}\s])")
_JSON = {"nan": "NaN", "inf": "Infinity", "None": "null", "True": "true", "False": "false"}

_decode = json.JSONDecoder().raw_decode


def parsed(text: str) -> dict[str, Any] | None:
    """A dict as Python or JSON writes it, `nan` and numpy's numbers included; None for anything else.

    >>> parsed("{'loss': nan, 'reward': '0.5', 'kl': np.float64(0.1)}")
    {'loss': nan, 'reward': '0.5', 'kl': 0.1}
    """
    with suppress(ValueError, RecursionError):
        value: Any = _decode(text.replace("'", '"'))[0]  # the names of a JSON object are texts
        return value if type(value) is dict else None
    value = _carefully(text)
    return value if isinstance(value, dict) and all(type(name) is str for name in value) else None


def _carefully(text: str) -> Any:
    text = _CALLS.sub(r"\1", text)
    with suppress(ValueError, RecursionError):
        return _decode(_WORDS.sub(lambda m: m[1] + _JSON[m[2]], text.replace("'", '"')))[0]
    with suppress(ValueError, SyntaxError, RecursionError, MemoryError, TypeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in the texts of a dict
        words = {"nan": "'nan'", "inf": "1e999", "-inf": "-1e999"}
        return ast.literal_eval(_WORDS.sub(lambda m: words.get(m[0], words.get(m[2], m[2])), text))
    return None
