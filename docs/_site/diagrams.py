"""docs/figures/loop.svg and docs/figures/diagnose.svg: `make docs` draws them from the tables below.

A picture has a background of its own, so that it reads the same on light and dark pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

FIGURES = Path(__file__).parents[1] / "figures"
FILLS = {"plain": "#f4f6f8", "acts": "#d7f0ea", "idle": "#eceff2", "frame": "none"}
INK, LINE, LEADING = "#1c2733", "#51606f", 17
FONTS = "system-ui, Segoe UI, Helvetica, Arial, DejaVu Sans, sans-serif"


class Box(NamedTuple):
    """Left, top, width and height in pixels; lines, the first of which is bold."""

    x: int
    y: int
    width: int
    height: int
    text: str
    kind: str = "plain"


class Diagram(NamedTuple):
    """`title` is for those who do not see the picture. An arrow is the points of its line."""

    title: str
    width: int
    height: int
    boxes: Sequence[Box]
    arrows: Sequence[Sequence[tuple[int, int]]]


LOOP = Diagram(
    "The loop of training. The sampler makes a batch of rollouts; rewards become advantages; the old policy gives its "
    "log-probs; K optimizer steps follow. A penalty is 0 in the first step and acts in the others. The new weights go "
    "back to the sampler.",
    960,
    308,
    [
        Box(
            *(24, 20, 210, 82),
            "Sampler\ndraws one batch of rollouts;\nstale: its weights are older\nby n optimizer steps",
        ),
        Box(
            *(262, 20, 210, 82),
            "Rollouts\nthe model thinks, searches,\nreads observations, answers;\nG for each question",
        ),
        Box(
            *(500, 20, 210, 82),
            "Rewards\nbecome advantages: A > 0\npositive, A < 0 negative,\nall 0 without contrast",
        ),
        Box(*(738, 20, 202, 82), "Old policy\nits log-probs l_old:\nrecomputed before the\nupdate, or the sampler's"),
        Box(*(24, 152, 916, 132), "K optimizer steps on this rollout batch, then new weights for the sampler", "frame"),
        Box(
            *(680, 186, 240, 82),
            "Step 1\nold policy recomputed: Δ = 0,\nso a penalty is 0;\nwith K = 1 it never acts",
            "idle",
        ),
        Box(
            *(44, 186, 600, 82),
            "Steps 2 to K: a penalty acts here\n"
            "Δ = l_old − l of a token, above 0 where the update made it less likely;\n"
            "LLDS adds coef · max(0, Δ) in actions that became less likely, where A ≥ 0;\n"
            "SAPO adds it where A > 0. GRPO's own loss goes on beside it",
            "acts",
        ),
    ],
    [
        [(234, 61), (262, 61)],
        [(472, 61), (500, 61)],
        [(710, 61), (738, 61)],
        [(839, 102), (839, 186)],
        [(680, 227), (644, 227)],
        [(24, 227), (10, 227), (10, 61), (24, 61)],
    ],
)

DIAGNOSE = Diagram(
    "The flow of diagnose: a log is read, its names become series, rows become rollout batches, each rule judges the "
    "series that it needs, findings are ordered with causes first, and the verdict says what to change.",
    960,
    262,
    [
        Box(
            *(20, 20, 210, 98),
            "1. Your log\na console, JSON lines, CSV,\nan output folder, W&B,\nTensorBoard, MLflow, …;\nor rollouts",
        ),
        Box(
            *(258, 20, 210, 98),
            "2. Read\nby content, never by name;\nthe trainer's names become\nours; damage is skipped,\nand counted",
        ),
        Box(
            *(496, 20, 210, 98),
            "3. Series\na row is a rollout batch;\nsettings, if the log has them;\n"
            "--name maps what was not\nrecognised",
        ),
        Box(
            *(734, 20, 206, 98),
            "4. Rules, one for a code\neach reads its own series,\nup to one step at a time;\n"
            "where they are missing, the\ncheck is skipped, and said",
        ),
        Box(
            *(734, 152, 206, 90),
            "5. Findings\nin the order in which they\nbecame certain, causes first;\na note needs no action",
        ),
        Box(
            *(386, 152, 320, 90),
            "6. Verdict\nlearns, flat, fell, broken or cannot tell;\nthe first finding, and what to change\n"
            "in the settings of your trainer",
            "acts",
        ),
        Box(
            *(20, 152, 338, 90),
            "7. You get\ntext, JSON, Markdown or a page of plots; exit\ncode 0, 1 with findings, 2 for an error. "
            "While it\ntrains: watch, TRL's Monitoring, the guard",
        ),
    ],
    [
        [(230, 69), (258, 69)],
        [(468, 69), (496, 69)],
        [(706, 69), (734, 69)],
        [(837, 118), (837, 152)],
        [(734, 197), (706, 197)],
        [(386, 197), (358, 197)],
    ],
)

DIAGRAMS = {"loop.svg": LOOP, "diagnose.svg": DIAGNOSE}


def drawn(diagram: Diagram) -> str:
    """The picture as SVG."""
    size = f'viewBox="0 0 {diagram.width} {diagram.height}" width="{diagram.width}" height="{diagram.height}"'
    head = f'<path d="M0 0L8 4L0 8z" fill="{LINE}"/>'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-size="12.5" fill="{INK}" '
        f'font-family="{FONTS}">',
        f"<title>{escape(diagram.title)}</title>",
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f"{head}</marker>",
        f'<rect width="{diagram.width}" height="{diagram.height}" rx="8" fill="#ffffff"/>',
        *(line for box in diagram.boxes for line in _box(box)),
        *map(_arrow, diagram.arrows),
        "</svg>\n",
    ]
    return "\n".join(lines)


def _box(box: Box) -> Iterator[str]:
    dashes = ' stroke-dasharray="5 4"' if box.kind == "frame" else ""
    yield (
        f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="6" fill="{FILLS[box.kind]}" '
        f'stroke="{LINE}"{dashes}/>'
    )
    for k, line in enumerate(box.text.splitlines()):
        weight = ' font-weight="bold"' if k == 0 else ""
        yield f'<text x="{box.x + 12}" y="{box.y + 22 + k * LEADING}"{weight}>{escape(line)}</text>'


def _arrow(points: Sequence[tuple[int, int]]) -> str:
    path = "L".join(f"{x} {y}" for x, y in points)
    return f'<path d="M{path}" fill="none" stroke="{LINE}" stroke-width="1.5" marker-end="url(#head)"/>'


if __name__ == "__main__":
    for name, diagram in DIAGRAMS.items():
        (FIGURES / name).write_text(drawn(diagram), encoding="utf-8")
