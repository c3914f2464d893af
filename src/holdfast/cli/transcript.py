"""A rollout for a person to read: thoughts, searches, results and the answer, streamed or whole."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from holdfast.agent.protocol import CLEAN, SearchProtocol

STYLES = {
    "question": "bold",
    "says": "",
    "thinks": "dim",
    "searches": "cyan",
    "finds": "bright_black",
    "feedback": "yellow",
    "answers": "bold",
    "expected": "",
}
# As `format_hits` writes them. Titles may have parentheses, and bodies several lines.
_PASSAGE = re.compile(
    r"^Doc (\d+)\(Title: ((?:[^()\n]|\([^()\n]*\))*|[^\n]*?)\) ?(.*(?:\n(?!Doc \d+\(Title: ).*)*)", re.M
)
_LABEL_WIDTH = 10
_PASSAGE_CHARS = 240
"""Most characters of a passage that are shown."""


class TagReader:
    """Splits a stream of a model's text at its tags into (kind, text) pairs without the tags.

    >>> reader = TagReader()
    >>> [*reader.feed("<think> hm </think> <sea"), *reader.feed("rch> Orsa"), *reader.end()]
    [('thinks', ' hm '), ('says', ' '), ('searches', ' Orsa')]
    """

    def __init__(self, protocol: SearchProtocol = CLEAN) -> None:
        self._kinds = {
            protocol.think_open: "thinks",
            protocol.search_open: "searches",
            protocol.answer_open: "answers",
            protocol.think_close: "says",
            protocol.search_close: "says",
            protocol.answer_close: "says",
        }
        self._tag = re.compile("|".join(map(re.escape, sorted(self._kinds, key=len, reverse=True))))
        self._kind, self._pending = "says", ""

    def feed(self, text: str) -> Iterator[tuple[str, str]]:
        """The pairs that are complete so far. The beginning of a tag stays pending."""
        self._pending += text
        while match := self._tag.search(self._pending):
            before, self._pending = self._pending[: match.start()], self._pending[match.end() :]
            if before:
                yield self._kind, before
            self._kind = self._kinds[match.group()]
        complete = len(self._pending) - self._partial_tag()
        if complete:
            yield self._kind, self._pending[:complete]
            self._pending = self._pending[complete:]

    def end(self) -> Iterator[tuple[str, str]]:
        """The pending text, at the end of the stream."""
        if self._pending:
            yield self._kind, self._pending
        self._pending = ""

    def _partial_tag(self) -> int:
        """Length of the longest end of the pending text that may become a tag."""
        longest = max(map(len, self._kinds)) - 1
        for length in range(min(longest, len(self._pending)), 0, -1):
            if any(tag.startswith(self._pending[-length:]) for tag in self._kinds):
                return length
        return 0


class Writer:
    """Prints text word by word, wrapped and indented behind a label for its kind."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._width = console.width if console.is_terminal else 10**9
        self._kind: str | None = None
        self._style = ""
        self._column = 0
        self._word = ""
        self._space = False

    def write(self, kind: str, text: str, style: str | None = None) -> None:
        """Print more text of a kind. White space becomes one space; an empty text shows no label."""
        if kind != self._kind:
            if not text.strip():
                return
            self.close()
            self._begin(kind, STYLES[kind] if style is None else style)
            text = text.lstrip()
        for part in re.split(r"(\s+)", text):
            if not part:
                continue
            if part.isspace():
                self._flush()
                self._space = True
            else:
                self._word += part

    def line(self, kind: str, *texts: str, style: str | None = None) -> None:
        """Print whole texts behind one label, each on its own line."""
        self.close()
        for number, text in enumerate(texts):
            self._begin("" if number else kind, STYLES[kind] if style is None else style)
            self.write("" if number else kind, text)
            self.close()

    def passages(self, observation: str, protocol: SearchProtocol = CLEAN) -> None:
        """Print the observation of a turn: its passages, shortened, or the feedback to an invalid turn."""
        text = observation.strip()
        if not text.startswith(protocol.information_open):
            self.line("feedback", text)
            return
        inner = text.removeprefix(protocol.information_open).removesuffix(protocol.information_close).strip()
        passages = [f"{number} {title} · {_shortened(body)}" for number, title, body in _PASSAGE.findall(inner)]
        self.line("finds", *(passages or [inner or protocol.nothing_found or "nothing"]))

    def _begin(self, kind: str, style: str) -> None:
        self._kind, self._style = kind, style
        self._print(f"{kind:<{_LABEL_WIDTH}}", "dim")
        self._column = _LABEL_WIDTH

    def close(self) -> None:
        """End the current line."""
        self._flush()
        if self._kind is not None:
            self._print("\n", "")
        self._kind, self._column, self._space = None, 0, False

    def _flush(self) -> None:
        """Print the word that is complete, on a new line if it does not fit."""
        if not self._word:
            return
        gap = 1 if self._space and self._column > _LABEL_WIDTH else 0
        if self._column + gap + len(self._word) > self._width and self._column > _LABEL_WIDTH:
            self._print("\n" + " " * _LABEL_WIDTH, "")
            self._column, gap = _LABEL_WIDTH, 0
        self._print(" " * gap + self._word, self._style)
        self._column += gap + len(self._word)
        self._word, self._space = "", False

    def _print(self, text: str, style: str) -> None:
        self._console.print(Text(text, style=style), end="", soft_wrap=True)
        self._console.file.flush()


def show_turn(writer: Writer, text: str, protocol: SearchProtocol = CLEAN, answer_style: str | None = None) -> None:
    """Print a finished turn."""
    reader = TagReader(protocol)
    for kind, chunk in [*reader.feed(text), *reader.end()]:
        writer.write(kind, chunk, answer_style if kind == "answers" else None)
    writer.close()


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _PASSAGE_CHARS else text[:_PASSAGE_CHARS].rsplit(" ", 1)[0] + " …"
