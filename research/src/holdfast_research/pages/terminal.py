"""docs/figures/terminal-diagnose.svg: what `holdfast diagnose` prints about the failing run of `holdfast demo`.

    python -m holdfast_research.pages.terminal

The picture holds its text as text. It has a dark background of its own, so it reads the same on any page.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from html import escape, unescape
from re import S, findall, sub

from rich.color import ColorType
from rich.console import Console
from rich.segment import Segment
from rich.text import Text

from holdfast_research.paths import REPOSITORY

PICTURE = REPOSITORY / "docs" / "figures" / "terminal-diagnose.svg"
COMMAND = ("holdfast", "diagnose", "holdfast-demo/failing")
COLUMNS = 100
_SIZE, _ADVANCE, _LEADING, _MARGIN, _BAR = 14, 8.43, 19, 18, 34
_INK, _PAPER, _DIM = "#d8dee6", "#16191d", "#98a2ae"
_COLORS = {1: "#ff8b81", 2: "#7ddb8f", 3: "#e8c46a", 4: "#84b6ff", 5: "#d9a2f0", 6: "#6fd3dd"}
"""The standard colours of a terminal, by number, each with a contrast of 7 and more on the background."""


def printed() -> str:
    """What the command prints on a terminal, with the codes that colour it."""
    with tempfile.TemporaryDirectory() as folder:
        for arguments in (["demo", "--no-open"], COMMAND[1:]):
            done = subprocess.run(
                [sys.executable, "-m", "holdfast", *arguments],
                capture_output=True,
                text=True,
                cwd=folder,
                check=False,
                env=os.environ | {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": "25"},
            )
            if done.returncode > 1:
                raise RuntimeError(done.stderr)
    return done.stdout.rstrip()


def drawn(output: str) -> str:
    """The SVG of a terminal in which the command has printed `output`."""
    prompt = Text.assemble(("$ ", "bright_black"), (" ".join(COMMAND), "bold"))
    lines = [prompt, Text(), *(Text.from_ansi(line) for line in output.splitlines())]
    width = round(2 * _MARGIN + max(line.cell_len for line in lines) * _ADVANCE)
    height = _BAR + len(lines) * _LEADING + _MARGIN
    console = Console(width=1000, color_system="truecolor")
    rows = "\n".join(_row(console, line, _BAR + _LEADING * (k + 0.75)) for k, line in enumerate(lines) if line)
    dots = "".join(f'<circle cx="{_MARGIN + 4 + 18 * k}" cy="17" r="5" fill="#3b424b"/>' for k in range(3))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, \'DejaVu Sans Mono\', monospace" '
        f'font-size="{_SIZE}" fill="{_INK}">\n<title>{escape(" ".join(COMMAND))}</title>\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="{_PAPER}"/>{dots}\n{rows}\n</svg>\n'
    )


def text_of(svg: str) -> str:
    """The text in the picture, without the command; blank lines are not drawn, so they are left out."""
    lines = [unescape(sub(r"<[^>]+>", "", line)) for line in findall(r"<text[^>]*>(.*?)</text>", svg, S)]
    return "\n".join(lines[1:])


def _row(console: Console, line: Text, y: float) -> str:
    # The length is given, so that columns stay in line with whatever font there is.
    length = f'textLength="{line.cell_len * _ADVANCE:.0f}" lengthAdjust="spacing"'
    spans = "".join(_span(segment) for segment in line.render(console))
    return f'<text x="{_MARGIN}" y="{y:g}" {length} xml:space="preserve">{spans}</text>'


def _span(segment: Segment) -> str:
    style, text = segment.style, escape(segment.text, quote=False)
    attributes = []
    if style and style.bold:
        attributes.append('font-weight="bold"')
    if style and (style.dim or (style.color and style.color.name == "bright_black")):
        attributes.append(f'fill="{_DIM}"')
    elif style and style.color and style.color.type is not ColorType.DEFAULT:
        attributes.append(f'fill="{_COLORS[style.color.number or 0]}"')
    return f"<tspan {' '.join(attributes)}>{text}</tspan>" if attributes else text


def main() -> None:
    """The command line."""
    PICTURE.write_text(drawn(printed()), encoding="utf-8")
    print(f"Wrote {PICTURE}")


if __name__ == "__main__":
    main()
