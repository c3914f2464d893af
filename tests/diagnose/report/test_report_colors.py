"""Colours that stand in one plot are told apart by colour-blind eyes too, and by any eyes from the page behind them."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest

CSS = (files("holdfast.diagnose.report") / "web" / "page.css").read_text(encoding="utf-8")
# Machado, Oliveira and Fernandes 2009, full severity, on linear RGB.
EYES = {
    "usual": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
TOGETHER = (
    ("correct", "incorrect", "ink"),
    ("correct", "incorrect", "third"),
    tuple(f"run-{k}" for k in range(1, 7)),
    tuple(f"time-{k}" for k in range(1, 6)),
    tuple(f"action-{k}" for k in range(1, 6)),
)


def palette(theme: str) -> dict[str, str]:
    light, dark = CSS.split("@media (prefers-color-scheme: dark)", 1)
    part = light if theme == "light" else dark.split("* { box-sizing", 1)[0]
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part))


def linear(color: str) -> np.ndarray:
    values = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of linear sRGB, white D65."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ rgb.clip(0, 1)
    t = xyz / np.array([0.9505, 1.0, 1.089])
    f = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distance(one: str, other: str, eye: str) -> float:
    """ΔE of 1976; 2.3 is what an eye just notices side by side."""
    return float(np.linalg.norm(lab(EYES[eye] @ linear(one)) - lab(EYES[eye] @ linear(other))))


def contrast(one: str, other: str) -> float:
    high, low = sorted((float(np.dot([0.2126, 0.7152, 0.0722], linear(c))) for c in (one, other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_lines_of_one_plot_differ_and_lines_and_words_stand_out(theme: str) -> None:
    colors = palette(theme)
    pairs = [pair for names in TOGETHER for pair in combinations(names, 2)]
    least = min((distance(colors[a], colors[b], eye), a, b, eye) for a, b in pairs for eye in EYES)
    assert least[0] > 10, least
    assert colors.keys() >= {name for names in TOGETHER for name in names} | {"paper", "soft", "pin", "link", "box"}
    for names in TOGETHER:
        for name in names:
            if name not in ("time-1", "time-2"):  # the start of a run, meant to be faint
                assert contrast(colors[name], colors["paper"]) >= 3, name
    for name in ("ink", "soft", "pin", "link"):
        assert contrast(colors[name], colors["paper"]) >= 4.5, name
        assert contrast(colors[name], colors["box"]) >= 4.5, name
