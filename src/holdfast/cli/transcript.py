"""A rollout for a person to read: thoughts, searches, results and the answer."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from holdfast.agent.protocol import CLEAN, SearchProtocol

STYLES = {
    "question": "bold",
    "note": "yellow",
    "says": "",
    "thinks": "dim",
    "searches": "cyan",
    "reads": "cyan",
    "calls": "cyan",
    "returns": "bright_black",
    "finds": "bright_black",
    "feedback": "yellow",
    "answers": "bold",
    "expected": "",
}
# As `format_hits` writes them. Titles may have parentheses, and bodies several lines.
_PASSAGE = re.compile(
    r"^Doc (\S+?)\(Title: ((?:[^()\n]|\([^()\n]*\))*|[^\n]*?)\) ?(.*(?:\n(?!Doc \S+?\(Title: ).*)*)", re.M
)
_LABEL_WIDTH = 10
_PASSAGE_CHARS = 240
"""Most characters of a passage that are shown."""


def show_line(console: Console, kind: str, *texts: str, style: str | None = None) -> None:
    """Print texts behind one label, each on its own line, wrapped and indented. White space becomes one space."""
    width = max(console.width - _LABEL_WIDTH, 1) if console.is_terminal else 10**9
    for number, text in enumerate(texts):
        lines = textwrap.wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)
        label = "" if number else kind
        body = ("\n" + " " * _LABEL_WIDTH).join(lines)
        line = Text.assemble((f"{label:<{_LABEL_WIDTH}}", "dim"), (body, STYLES[kind] if style is None else style))
        console.print(line, soft_wrap=True)


def show_turn(console: Console, parts: Iterable[tuple[str, str]], *, answer_style: str | None = None) -> None:
    """Print a turn of the model, in the parts of `parts_of_turn`."""
    for kind, part in parts:
        show_line(console, kind, part, style=answer_style if kind == "answers" else None)


def show_observation(
    console: Console, observation: str, protocol: SearchProtocol = CLEAN, *, is_result: bool = False
) -> None:
    """Print the observation of a turn: its passages, shortened, what a function returned (`is_result`), or the feedback
    to an invalid turn."""
    text = observation.strip()
    if is_result:
        show_line(console, "returns", _shortened(text))
        return
    opened, closed = protocol.information_tags
    if not text.startswith(opened) and not _PASSAGE.match(text) and text != protocol.nothing_found:
        show_line(console, "feedback", text)
        return
    inner = text.removeprefix(opened).removesuffix(closed).strip()
    passages = [f"{number} {title} · {_shortened(body)}" for number, title, body in _PASSAGE.findall(inner)]
    show_line(console, "finds", *(passages or [inner or protocol.nothing_found or "nothing"]))


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _PASSAGE_CHARS else text[:_PASSAGE_CHARS].rsplit(" ", 1)[0] + " …"
