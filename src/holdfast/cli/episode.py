"""An episode for a person to read: who thinks, searches, finds and answers, streamed or whole."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from holdfast.search.protocol import CLEAN, SearchProtocol

STYLES = {
    "question": "bold",
    "says": "",
    "thinks": "dim",
    "searches": "cyan",
    "finds": "bright_black",
    "hears": "yellow",
    "answers": "bold",
    "expected": "",
}
# As `format_hits` writes them; titles may hold parentheses of their own, and bodies several lines.
_PASSAGE = re.compile(
    r"^Doc (\d+)\(Title: ((?:[^()\n]|\([^()\n]*\))*|[^\n]*?)\) ?(.*(?:\n(?!Doc \d+\(Title: ).*)*)", re.M
)
_LABEL = 10  # columns
_LONGEST = 240  # characters of a passage that are shown


class TagReader:
    """Splits a model's text at its tags, as it comes: (kind, text) pairs, tags left out.

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
        self._kind, self._held = "says", ""

    def feed(self, text: str) -> Iterator[tuple[str, str]]:
        """What is certain so far. A tag that has only begun is held back."""
        self._held += text
        while found := self._tag.search(self._held):
            before, self._held = self._held[: found.start()], self._held[found.end() :]
            if before:
                yield self._kind, before
            self._kind = self._kinds[found.group()]
        sure = len(self._held) - self._begun()
        if sure:
            yield self._kind, self._held[:sure]
            self._held = self._held[sure:]

    def end(self) -> Iterator[tuple[str, str]]:
        """What was held back, when the text is over."""
        if self._held:
            yield self._kind, self._held
        self._held = ""

    def _begun(self) -> int:
        """Length of the longest end of the held text that may become a tag."""
        longest = max(map(len, self._kinds)) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(tag.startswith(self._held[-length:]) for tag in self._kinds):
                return length
        return 0


class Writer:
    """Prints labelled text word by word, wrapped behind its label."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._width = console.width if console.is_terminal else 10**9
        self._kind: str | None = None
        self._style = ""
        self._column = 0
        self._word = ""
        self._space = False

    def write(self, kind: str, text: str, style: str | None = None) -> None:
        """Some more text of a kind. White space is one space; an empty text shows no label."""
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
        """Whole texts, each on lines of its own, behind one label."""
        self.close()
        for number, text in enumerate(texts):
            self._begin("" if number else kind, STYLES[kind] if style is None else style)
            self.write("" if number else kind, text)
            self.close()

    def passages(self, observation: str, protocol: SearchProtocol = CLEAN) -> None:
        """What came back after a turn: passages one by one and shortened, or the note that the turn was invalid."""
        text = observation.strip()
        if not text.startswith(protocol.information_open):
            self.line("hears", text)
            return
        inner = text.removeprefix(protocol.information_open).removesuffix(protocol.information_close).strip()
        passages = [f"{number} {title} · {_shortened(body)}" for number, title, body in _PASSAGE.findall(inner)]
        self.line("finds", *(passages or [inner or protocol.nothing_found or "nothing"]))

    def _begin(self, kind: str, style: str) -> None:
        self._kind, self._style = kind, style
        self._print(f"{kind:<{_LABEL}}", "dim")
        self._column = _LABEL

    def close(self) -> None:
        """End the current line."""
        self._flush()
        if self._kind is not None:
            self._print("\n", "")
        self._kind, self._column, self._space = None, 0, False

    def _flush(self) -> None:
        """Print the word that is complete now, on a new line if it does not fit."""
        if not self._word:
            return
        gap = 1 if self._space and self._column > _LABEL else 0
        if self._column + gap + len(self._word) > self._width and self._column > _LABEL:
            self._print("\n" + " " * _LABEL, "")
            self._column, gap = _LABEL, 0
        self._print(" " * gap + self._word, self._style)
        self._column += gap + len(self._word)
        self._word, self._space = "", False

    def _print(self, text: str, style: str) -> None:
        self._console.print(Text(text, style=style), end="", soft_wrap=True)
        self._console.file.flush()


def show_turn(writer: Writer, text: str, protocol: SearchProtocol = CLEAN, answer_style: str | None = None) -> None:
    """A finished turn."""
    reader = TagReader(protocol)
    for kind, chunk in [*reader.feed(text), *reader.end()]:
        writer.write(kind, chunk, answer_style if kind == "answers" else None)
    writer.close()


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[:_LONGEST].rsplit(" ", 1)[0] + " …"
