"""The page in a real browser: plots are there, nothing complains, nothing leaves the file, a phone can show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.diagnostics.finding import Diagnosis, Finding
from holdfast.diagnostics.log import Log
from holdfast.diagnostics.report import ReportedRun, SampledTurn, write_report

OVERLAPS = """(() => {
  const boxes = [...document.querySelectorAll("#chart-reward .annotation")]
    .filter((a) => /[A-Z]{3}\\d/.test(a.textContent)).map((a) => a.getBoundingClientRect());
  let hits = 0;
  boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b) => {
    if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1) hits += 1;
  }));
  return [boxes.length, hits];
})()"""
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def curves(browser: Any, chart: str) -> int:
    """Lines that were really drawn."""
    found = f"#chart-{chart} .scatterlayer .trace path.js-line"
    return int(
        browser.js(f"[...document.querySelectorAll('{found}')].filter(p => p.getAttribute('d').length > 20).length")
    )


@pytest.fixture
def page(collapse: ReportedRun, tmp_path: Path) -> Path:
    return write_report(tmp_path / "report.html", [collapse])


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (380, False), (1280, True), (380, True)])
def test_everything_is_drawn_and_nothing_complains(browser: Any, page: Path, width: int, dark: bool) -> None:
    browser.open(page, width=width, dark=dark)
    assert browser.complaints() == []
    expected = {"reward": 2, "displacement": 6, "samples": 5, "likelihood": 8, "entropy": 6, "ratio": 4, "gradient": 2}
    assert {chart: curves(browser, chart) for chart in expected} == expected
    assert browser.js(WIDER) == 0
    assert browser.js("document.querySelectorAll('.rollout').length") == 6
    shades = "document.querySelectorAll('#chart-reward .shapelayer path').length"
    assert browser.js(shades) >= 3 + 4  # phases, and a line for each step with findings
    background = browser.js("getComputedStyle(document.body).backgroundColor")
    paper = browser.js("document.querySelector('#chart-reward .plot').layout.paper_bgcolor")
    assert (background, paper) == (("rgb(21, 23, 26)", "#15171a") if dark else ("rgb(255, 255, 255)", "#ffffff"))


def test_a_browser_that_complains_is_heard(browser: Any, page: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    text = page.read_text(encoding="utf-8")
    broken.write_text(text.replace("data.charts.forEach(place);", "data.charts.forEach(nobody);"), encoding="utf-8")
    browser.open(broken)
    assert any("nobody" in text for text in browser.complaints())
    assert "could not be drawn" in browser.js("document.querySelector('.problem').textContent")
    outside = tmp_path / "outside.html"
    outside.write_text(text.replace("<footer>", '<img src="https://example.invalid/x.png"><footer>'), encoding="utf-8")
    browser.open(outside)
    assert any("example.invalid" in text for text in browser.complaints())


@pytest.mark.parametrize("width", [380, 1280])
def test_labels_of_findings_do_not_overlap(
    browser: Any, collapse: ReportedRun, make_finding: Callable[..., Finding], tmp_path: Path, width: int
) -> None:
    codes = (
        "LLD001",
        "LLD002",
        "LLD003",
        "LLD004",
        "ENT001",
        "ISD001",
        "GRD001",
        "RWD001",
        "SMP001",
        "TRN001",
        "STP001",
    )
    found = tuple(make_finding(code, 24 + k // 2) for k, code in enumerate(codes))
    run = replace(collapse, diagnosis=Diagnosis(findings=found))
    browser.open(write_report(tmp_path / "r.html", [run]), width=width)
    count, hits = browser.js(OVERLAPS)
    assert count >= 3 and hits == 0
    browser.js("zoom([22, 32])")
    zoomed, hits = browser.js(OVERLAPS)
    assert zoomed >= count and hits == 0 and browser.complaints() == []


def test_zoom_is_shared(browser: Any, page: Path) -> None:
    browser.open(page)
    ranges = "[...drawn].filter(([id]) => id !== 'samples').map(([, p]) => p.layout.xaxis.range.map(Math.round).join())"
    assert set(browser.js(ranges)) == {"0,61"}
    place = "document.querySelector('#chart-entropy .plot')"
    browser.js(f"{place}.scrollIntoView()")
    left, top, width, height = browser.js(
        f"(() => {{ const b = {place}.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; }})()"
    )
    x, y = left + width / 2, top + height / 2

    def mouse(kind: str, at: float) -> None:
        browser.call("Input.dispatchMouseEvent", type=kind, x=at, y=y, button="left", buttons=1, clickCount=1)

    mouse("mousePressed", x)
    for k in range(1, 11):
        mouse("mouseMoved", x + 10 * k)
    mouse("mouseReleased", x + 100)
    wait(browser, "state.range !== null && !document.getElementById('reset').hidden")
    wait(browser, f"new Set({ranges}).size === 1 && {ranges}[0] !== '0,61'")
    browser.js("document.getElementById('reset').click()")
    wait(browser, f"new Set({ranges}).size === 1 && {ranges}[0] === '0,61'")
    assert browser.js("document.getElementById('reset').hidden") and browser.complaints() == []


def wait(browser: Any, condition: str) -> None:
    code = f"new Promise((then) => {{ const ask = (n) => ({condition}) ? then(true) : n ? setTimeout(ask, 50, n - 1) : "
    assert browser.js(code + "then(false); ask(100); })"), condition


def test_a_legend_entry_hides_its_run_everywhere(browser: Any, collapse: ReportedRun, tmp_path: Path) -> None:
    other = replace(collapse, log=replace(collapse.log, name="other"), diagnosis=Diagnosis(findings=()))
    browser.open(write_report(tmp_path / "r.html", [collapse, other]))
    assert browser.complaints() == []
    both = {chart: curves(browser, chart) for chart in ("reward", "displacement", "samples", "entropy")}
    assert both == {"reward": 2, "displacement": 6, "samples": 2, "entropy": 6}
    button = "document.querySelectorAll('#bar button')[1]"
    assert browser.js(f"{button}.textContent") == "other"
    browser.js(f"{button}.click()")
    wait(browser, "[...drawn.values()].every((plot) => plot.data.every((t) => t.name !== 'other'))")
    assert {chart: curves(browser, chart) for chart in both} == {chart: count // 2 for chart, count in both.items()}
    assert browser.js(f"{button}.getAttribute('aria-pressed')") == "false"
    browser.js(f"{button}.click()")
    wait(browser, "[...drawn.values()].every((plot) => plot.data.some((t) => t.name === 'other'))")
    assert {chart: curves(browser, chart) for chart in both} == both


def test_rollouts_can_be_filtered(browser: Any, page: Path) -> None:
    browser.open(page)
    choose = """((name, value) => {
      const menu = document.querySelector(`select[aria-label=${name}]`);
      menu.value = value;
      menu.dispatchEvent(new Event("change"));
    })"""
    heads = "[...document.querySelectorAll('.rollout header')].map((h) => h.textContent)"
    assert browser.js(heads)[0].startswith("step 60")
    browser.js(f"{choose}('step', '7')")
    assert [("step 7" in h, "✓ correct" in h) for h in browser.js(heads)] in (
        [(True, True), (True, False)],
        [(True, False), (True, True)],
    )
    browser.js(f"{choose}('outcome', 'incorrect')")
    (head,) = browser.js(heads)
    assert "✗ incorrect" in head and "reward 0" in head
    browser.js(f"{choose}('step', '')")
    assert len(browser.js(heads)) == 6
    browser.js("[...document.querySelectorAll('#rollouts button')].at(-1).click()")
    assert len(browser.js(heads)) == 18


def test_tokens_wear_their_change(browser: Any, page: Path) -> None:
    browser.open(page)
    spans = "[...document.querySelector('.turn .text').querySelectorAll('span')]"
    assert browser.js(f"{spans}.map((s) => s.textContent)") == ["<search>", " lake", " </search>", "∎"]
    assert browser.js(f"{spans}.map((s) => s.title)") == ["-0.5 nats", "+0.2 nats", "0 nats", "-0.1 nats"]
    colours = browser.js(f"{spans}.map((s) => getComputedStyle(s).backgroundColor)")
    assert colours == [
        "rgba(213, 94, 0, 0.85)",
        "rgba(0, 114, 178, 0.34)",
        "rgba(0, 114, 178, 0)",
        "rgba(213, 94, 0, 0.17)",
    ]
    assert browser.js("document.querySelector('.hits').textContent") == "⌕ lake → 2 passages: doc-1, doc-2"


def test_hostile_texts_are_shown_and_not_run(
    browser: Any,
    collapse: ReportedRun,
    make_log: Callable[..., Log],
    make_finding: Callable[..., Finding],
    tmp_path: Path,
) -> None:
    evil = "</script><img src=x onerror='document.title=1'><b>bold</b> &lt; 🦊 עברית \u202e abc \ud800"
    turns = (
        SampledTurn(text=evil, observation=evil, query=evil, hits=(evil,), tokens=tuple((c, -0.1) for c in evil)),
        SampledTurn(text="long " * 10_000),
        SampledTurn(text="x" * 50_000),
    )
    rollout = replace(collapse.rollouts[0], question=evil, answer=evil, golden_answers=(evil,), turns=turns, step=99)
    log = replace(collapse.log, name=evil, notes=(evil, "y" * 50_000), settings={evil: evil, "z" * 900: "w" * 900})
    found = make_finding("LLD002", 9, "reward/mean", summary=evil, remedy=f"`{evil}`", evidence={evil: 1.0})
    run = replace(collapse, log=log, diagnosis=Diagnosis(findings=(found,)), rollouts=(rollout,))
    for runs, name in (([run], "one"), ([run, run], "two")):
        for width in (380, 1280):
            browser.open(write_report(tmp_path / f"{name}.html", runs), width=width)
            assert browser.complaints() == []
            browser.js("for (const d of document.querySelectorAll('details')) d.open = true")
            assert browser.js(WIDER) == 0
            assert browser.js("document.querySelectorAll('img, b:not(p > b:first-child)').length") == 0
            assert evil.replace("\ud800", "") in browser.js("document.querySelector('.question').textContent")
            assert "44,000 more characters" in browser.js("document.querySelector('.rollout').textContent")


def test_an_odd_log(browser: Any, make_log: Callable[..., Log], tmp_path: Path) -> None:
    """A single step, values that are no numbers, constants, zeros on a logarithmic axis, names nobody knows."""
    nan, inf = float("nan"), float("inf")
    logs = [
        make_log({"reward/mean": [0.5]}),
        make_log({"reward/mean": [nan] * 30, "grad/norm": [inf] * 30}),
        make_log({"grad/norm": [0.0] * 30, "ratio/max": [1e300, 1e-300] * 15, "entropy/mean": [-1e308, 1e308] * 15}),
        make_log({"x <b>": [1.0, 2.0]}, format="wandb", host="unknown"),
        make_log({"reward/mean": [0.1] * 50}, first=10**9, every=10**6),
    ]
    for log in logs:
        run = ReportedRun(log=log, diagnosis=Diagnosis(findings=()))
        for runs in ([run], [run, run]):
            browser.open(write_report(tmp_path / "r.html", runs), width=380)
            assert browser.complaints() == [] and browser.js(WIDER) == 0
            assert browser.js("document.querySelectorAll('.plot .main-svg').length") > 0


def test_a_phone_scrolls_over_plots(browser: Any, page: Path) -> None:
    """A finger on a plot moves the page: only a mouse zooms by dragging."""
    browser.call("Emulation.setTouchEmulationEnabled", enabled=True)
    try:
        browser.open(page, width=380)
        assert browser.js("document.querySelector('#chart-entropy .plot').layout.dragmode") is False
    finally:
        browser.call("Emulation.setTouchEmulationEnabled", enabled=False)
    browser.open(page)
    assert browser.js("document.querySelector('#chart-entropy .plot').layout.dragmode") == "zoom"
    assert browser.picture().startswith(b"\x89PNG")
