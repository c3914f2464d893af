"""The results of gpu.py as tables, and their place in a page.

python benchmarks/gpu_report.py    # docs/reference/gpu.md again, from the results that are kept
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- results of make gpu -->", "<!-- end of the results -->"

ROOT = Path(__file__).resolve().parents[1]
PAGE, KEPT = ROOT / "docs/reference/gpu.md", ROOT / "benchmarks/gpu_kept.json"

Row = dict[str, Any]
Column = tuple[str, Callable[[Row], str]]


def number(key: str, form: str = ",.0f", scale: float = 1.0) -> Callable[[Row], str]:
    """A cell with a number of the row; `–` where it has none."""
    return lambda row: format(row[key] * scale, form) if isinstance(row.get(key), int | float) else "–"


def percent(key: str) -> Callable[[Row], str]:
    return lambda row: f"{row[key]:.1%}" if isinstance(row.get(key), int | float) else "–"


def text(key: str) -> Callable[[Row], str]:
    return lambda row: str(row.get(key, "–"))


PEAK_GB: Column = ("peak GB", number("peak_gb", ".1f"))
DECODE: tuple[Column, ...] = (
    ("parameters", text("size")),
    ("sampler", text("arm")),
    ("tokens/s", number("tokens_per_s")),
    ("ms a step", number("step_s", ".2f", 1e3)),
    ("floor, ms", number("floor_s", ".2f", 1e3)),
    ("share of the floor", percent("share_of_floor")),
    ("kernels a step", number("kernels_per_step")),
    ("waits a step", number("waits_per_step", ".1f")),
    ("device busy, ms a step", number("device_us_per_step", ".2f", 1e-3)),
    PEAK_GB,
)
ROLLOUTS: tuple[Column, ...] = (
    ("parameters", text("size")),
    ("sampler", text("arm")),
    ("rollouts", number("rollouts")),
    ("sampled tokens", number("sampled")),
    ("seconds", number("seconds", ".1f")),
    ("tokens/s", number("tokens_per_s")),
    PEAK_GB,
)
UPDATE: tuple[Column, ...] = (
    ("parameters", text("size")),
    ("rows", text("arm")),
    ("tokens", number("tokens")),
    ("ms an optimizer step", number("step_s", ".1f", 1e3)),
    ("of it AdamW and clipping", number("optimizer_s", ".1f", 1e3)),
    ("old pass, ms", number("old_pass_s", ".1f", 1e3)),
    ("first update, s", number("first_s", ".1f")),
    ("tokens/s", number("tokens_per_s")),
    ("MFU", percent("mfu")),
    ("operations needed, share of peak", percent("needed_share_of_peak")),
    PEAK_GB,
)
STEP: tuple[Column, ...] = (
    ("arm", text("arm")),
    ("step, s", number("step", ".2f")),
    ("rollout", number("rollout", ".2f")),
    ("of it searches", number("search", ".3f")),
    ("old log-probs", number("old log-probs", ".2f")),
    ("optimizer steps", number("optimizer steps", ".2f")),
    ("peak GB", number("gpu_peak_gb", ".1f")),
)
FACTBOOK: tuple[Column, ...] = (
    ("arm", text("arm")),
    ("steps", number("steps")),
    ("s a step", number("step_s", ".2f")),
    ("rollouts, s", number("rollout_s", ".2f")),
    ("old pass and update, s", number("update_s", ".2f")),
    ("sampled tokens/s, whole step", number("step_tokens_per_s")),
    ("in rollouts", number("rollout_tokens_per_s")),
    ("share of the floor", percent("share_of_floor")),
    ("MFU", percent("mfu")),
    ("reward, first 5", number("first_reward", ".2f")),
    ("reward, last 5", number("last_reward", ".2f")),
)


def table(columns: Sequence[Column], rows: Sequence[Row]) -> list[str]:
    """Markdown; a row with an error says so in its last cell."""
    lines = ["| " + " | ".join(name for name, _ in columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        cells = [cell(row) for _, cell in columns]
        if "error" in row:
            cells[-1] = row["error"].replace("|", "/")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def markdown(results: dict[str, Any]) -> str:
    """All tables. What was not measured has none."""
    machine, parts = results["machine"], results["parts"]
    rows = [row for part in parts.values() for row in part["rows"]]
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(row.get("kind", ""), []).append(row)
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    lines = [f"{machine['device']}, {machine['date']}; {versions}, CUDA {machine['cuda']}."]
    if machine["toy"]:
        lines.append("Toy sizes: these numbers mean nothing.")
    for row in kinds.get("limits", []):
        if "error" not in row:
            lines += ["", _limits(row)]
    sections: tuple[tuple[str, str, Sequence[Column]], ...] = (
        ("decode", "Decoding, 64 rows", DECODE),
        ("rollouts", "Rollouts of several turns", ROLLOUTS),
        ("update", "Updates of 4,096 tokens, with LLDS", UPDATE),
    )
    for kind, title, columns in sections:
        if kind in kinds:
            lines += ["", f"#### {title}", "", *table(columns, kinds[kind])]
    for row in kinds.get("step", []):
        arms = [{"arm": arm, **row[arm]} for arm in ("holdfast", "trl") if arm in row]
        lines += ["", "#### A whole step", "", *table(STEP, arms)]
        if "trl_over_holdfast" in row:
            lines += ["", f"TRL / holdfast: {row['trl_over_holdfast']:.2f}"]
        if "error" in row:
            lines += ["", row["error"]]
    if runs := kinds.get("factbook"):
        lines += ["", "#### SmolLM2-135M on the Factbook", "", *table(FACTBOOK, [_named(row) for row in runs])]
    for row in kinds.get("tests", []):
        counts = ", ".join(f"{n} {word}" for word, n in row.get("counts", {}).items()) or row.get("error", "none ran")
        lines += ["", f"Tests marked `gpu`: {counts}. {' '.join(row.get('failed', []))}".rstrip()]
    lines += ["", "| part | seconds | end |", "|---|---|---|"]
    lines += [f"| {name} | {part['seconds']:.0f} | {part['status']} |" for name, part in parts.items()]
    return "\n".join(lines).rstrip() + "\n"


def _named(row: Row) -> Row:
    """With TRL's sampler in its name."""
    if "sampler" in row:
        return row | {"arm": f"{row['arm']}, rollouts by {row['sampler']}"}
    return row


def _limits(row: Row) -> str:
    return (
        f"A copy moves {row['copy_gb_s']:,.0f} GB/s; the floor of a step is its bytes at that speed. A bf16 product "
        f"reaches {row['product_tflop_s']:,.0f} TFLOP/s; the peak is {row['peak_tflop_s']:,.0f} ({row['peak_from']})."
    )


def fill(page: Path, tables: str) -> None:
    """Put the tables between the markers of a page."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page} lacks the lines {BEGIN} and {END}; the tables go between them")
    page.write_text(f"{before}{BEGIN}\n\n{tables}\n{END}{after}", encoding="utf-8")


def kept() -> str:
    """The tables of the newest kept run; those before it measured code that has been replaced."""
    return markdown(json.loads(KEPT.read_text(encoding="utf-8"))[-1])


if __name__ == "__main__":
    fill(PAGE, kept())
