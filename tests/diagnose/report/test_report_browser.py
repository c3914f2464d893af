"""The page in a real browser: plots are there, nothing complains, nothing leaves the file, a phone can show it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.diagnose.finding import Diagnosis, Finding
from holdfast.diagnose.log import Log
from holdfast.diagnose.report import ReportedRun, SampledRollout, SampledTurn, write_report

OVERLAPS = """(() => {
  const boxes = [...document.querySelectorAll("#chart-reward .pin-label")].map((a) => a.getBoundingClientRect());
  let hits = 0;
  boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b) => {
    if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1) hits += 1;
  }));
  return [boxes.length, hits];
})()"""
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def curves(browser: Any, chart: str) -> int:
    """Lines that were really drawn."""
    browser.js("drawAll(true)")
    found = f"[...document.querySelectorAll('#chart-{chart} path.line')]"
    return int(browser.js(f"{found}.filter(p => p.getAttribute('d').length > 20).length"))


@pytest.fixture
def page(collapse: ReportedRun, tmp_path: Path) -> Path:
    return write_report(tmp_path / "report.html", [collapse])


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (380, True)])
def test_everything_is_drawn_and_nothing_complains(browser: Any, page: Path, width: int, dark: bool) -> None:
    browser.open(page, width=width, dark=dark)
    assert browser.complaints() == []
    expected = {"reward": 2, "displacement": 6, "samples": 5, "likelihood": 8, "entropy": 6, "ratio": 4, "gradient": 2}
    assert {chart: curves(browser, chart) for chart in expected} == expected
    assert browser.js(WIDER) == 0
    assert browser.js("document.querySelectorAll('.rollout').length") == 6
    assert browser.js("document.querySelectorAll('#chart-reward .phase').length") == 3
    assert browser.js("document.querySelectorAll('#chart-reward .pin').length") == 4  # steps with findings
    background = browser.js("getComputedStyle(document.body).backgroundColor")
    words = browser.js("getComputedStyle(document.querySelector('#chart-reward .tick')).fill")
    expected = ("rgb(21, 23, 26)", "rgb(162, 169, 178)") if dark else ("rgb(255, 255, 255)", "rgb(93, 99, 107)")
    assert (background, words) == expected


@pytest.mark.parametrize("width", [380, 1280])
def test_labels_of_findings_do_not_overlap(
    browser: Any, collapse: ReportedRun, make_finding: Callable[..., Finding], tmp_path: Path, width: int
) -> None:
    codes = [*(f"LLD00{k}" for k in range(1, 5)), "ENT001", "ISD001", "GRD001", "RWD001", "SMP001", "TRN001", "STP001"]
    found = tuple(make_finding(code, 24 + k // 2) for k, code in enumerate(codes))
    run = replace(collapse, diagnosis=Diagnosis(findings=found))
    browser.open(write_report(tmp_path / "r.html", [run]), width=width)
    count, hits = browser.js(OVERLAPS)
    assert count >= 3 and hits == 0
    browser.js("zoom([22, 32])")
    zoomed, hits = browser.js(OVERLAPS)
    assert zoomed >= count and hits == 0 and browser.complaints() == []


def test_curves_are_drawn_over_time_and_smoothed_as_the_reader_chose(
    browser: Any, collapse: ReportedRun, make_log: Callable[..., Log], tmp_path: Path
) -> None:
    series = {name: part.values.tolist() for name, part in collapse.log.series.items()}
    slower = replace(collapse, log=make_log(series | {"time/step_s": [60.0] * 59 + [60.0 * 31]}, name="slower"))
    browser.open(write_report(tmp_path / "r.html", [slower]))
    menus = "[...document.querySelectorAll('#choices select')].map((s) => [...s.options].map((o) => o.value).join())"
    assert browser.js(menus) == ["step,seconds", "0,1,4"]
    choose = """((k, value) => {
      const select = document.querySelectorAll('#choices select')[k];
      select.value = value;
      select.dispatchEvent(new Event('change'));
    })"""
    reward = "views.get('reward').shown.rows[0].traces[0]"
    assert browser.js(f"{reward}.raw.x.slice(-2)") == [59, 60]
    browser.js(f"{choose}(0, 'seconds')")
    assert browser.js(f"{reward}.raw.x.slice(-2)") == [59, 90]  # minutes: the last step took half an hour
    assert browser.js("views.get('reward').shown.pins.map((pin) => pin.x)") == [24, 39, 39, 40, 41]
    assert "time, min" in browser.js("document.querySelector('#chart-entropy svg').textContent")
    browser.js(f"{choose}(1, '4')")
    assert browser.js("location.hash") == "#x=seconds&mean=4"
    last = sum(slower.log.series["reward/mean"].values[-20:]) / 20
    assert browser.js(f"{reward}.mean.y.at(-1)") == pytest.approx(last, abs=1e-4)
    browser.js(f"{choose}(1, '0')")
    assert curves(browser, "reward") == 1 and browser.complaints() == []
    steps_alone = write_report(tmp_path / "steps.html", [collapse])
    browser.open(steps_alone, fragment="#x=seconds")  # an address of another log
    assert browser.js("state.axis") == "step" and browser.js(menus) == ["0,1,4"]


def test_a_chart_is_saved_as_a_table(
    browser: Any, collapse: ReportedRun, make_log: Callable[..., Log], tmp_path: Path
) -> None:
    other = ReportedRun(log=make_log({"reward/mean": [0.5, 0.25]}, name="=cmd(),x"), diagnosis=Diagnosis(findings=()))
    browser.open(write_report(tmp_path / "r.html", [collapse, other]))
    head, first, *_, last = browser.js("csvOf(data.charts[0])").splitlines()
    assert head == 'step,collapse: reward/mean,"\'=cmd(),x: reward/mean"' and first == "1,0.3,0.5"
    assert last.startswith("60,0.04") and last.endswith(",")
    browser.js("document.querySelector('#chart-reward .head button:last-child').click()")
    assert browser.complaints() == []


def test_lonely_evaluations_are_points_and_every_axis_has_numbers(
    browser: Any, make_log: Callable[..., Log], tmp_path: Path
) -> None:
    for low, high in ((1.1, 5.6), (0.3, 0.9), (2.0, 2.0), (1e-9, 1e9), (6.0, 42.0)):
        log = make_log({"reward/mean": [0.5] * 20, "ratio/max": [low, high] * 10})
        few = make_log({"eval/em": [0.2, 0.4]}, every=19).series["eval/em"]
        run = ReportedRun(log=replace(log, series={**log.series, "eval/em": few}), diagnosis=Diagnosis(findings=()))
        browser.open(write_report(tmp_path / "r.html", [run, run]))
        assert curves(browser, "ratio") == 2
        plots = "views.get('ratio').plot.querySelectorAll('.row')"
        assert min(browser.js(f"[...{plots}].map((row) => row.querySelectorAll('.tick').length)")) >= (
            1 if low == high else 2
        )
        assert curves(browser, "reward") == 2  # of training
        assert browser.js("document.querySelectorAll('#chart-reward circle').length") == 4


def test_a_phone_shows_each_run_whole_and_paper_every_plot(browser: Any, collapse: ReportedRun, tmp_path: Path) -> None:
    browser.open(write_report(tmp_path / "r.html", [collapse, collapse]), width=360)
    cells = "[...document.querySelectorAll('.runs td')].map((cell) => cell.getBoundingClientRect())"
    assert browser.js(f"{cells}.every((box) => box.width > 0 && box.right <= innerWidth)")
    shown = "[...document.querySelectorAll('.runs td')].map((c) => getComputedStyle(c, '::before').content)"
    assert browser.js(shown)[1:3] == ['"verdict"', '"last reward"']
    browser.open(write_report(tmp_path / "one.html", [collapse]))
    browser.js("drawAll(true)")
    browser.call("Emulation.setEmulatedMedia", media="print")
    browser.call("Emulation.setDeviceMetricsOverride", width=700, height=900, deviceScaleFactor=1, mobile=False)
    wide = (
        "[...document.querySelectorAll('figure:not([hidden]) .plot svg')].map((s) => s.getBoundingClientRect().right)"
    )
    assert 0 < max(browser.js(wide)) <= 700


def test_zoom_is_shared(browser: Any, page: Path) -> None:
    browser.open(page)
    steps = "[...views.values()].filter((v) => v.chart.x === 'step' && !v.dirty)"
    ranges = f"{steps}.map((v) => v.geometry.range.map(Math.round).join())"
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
    assert {chart: curves(browser, chart) for chart in both} == {chart: count // 2 for chart, count in both.items()}
    assert browser.js(f"{button}.getAttribute('aria-pressed')") == "false"
    browser.js(f"{button}.click()")
    assert {chart: curves(browser, chart) for chart in both} == both


HEADS = "[...document.querySelectorAll('.rollout header')].map((h) => h.textContent)"
CHOOSE = """((name, value) => {
  const control = document.querySelector(`#rollouts [aria-label="${name}"]`);
  control.value = value;
  control.dispatchEvent(new Event(control.tagName === "SELECT" ? "change" : "input"));
})"""


def test_rollouts_can_be_filtered(browser: Any, page: Path) -> None:
    browser.open(page)
    assert browser.js(HEADS)[0].startswith("step 60")
    browser.js(f"{CHOOSE}('steps', '7')")
    assert [("step 7" in h, "✓ correct" in h) for h in browser.js(HEADS)] == [(True, False), (True, True)]
    browser.js(f"{CHOOSE}('outcome', 'incorrect')")
    (head,) = browser.js(HEADS)
    assert "✗ incorrect" in head and "reward 0" in head
    assert browser.js("location.hash") == "#step=7&outcome=incorrect"
    browser.js(f"{CHOOSE}('steps', '10-12')")
    assert len(browser.js(HEADS)) == 3
    browser.js(f"{CHOOSE}('steps', '')")
    assert len(browser.js(HEADS)) == 6
    browser.js("[...document.querySelectorAll('#rollouts button')].at(-1).click()")
    assert len(browser.js(HEADS)) == 18
    browser.js(f"{CHOOSE}('search in rollouts', 'QUESTION 33-')")
    assert [h.split(" ")[1][:2] for h in browser.js(HEADS)] == ["33"]
    assert browser.js("CSS.highlights.get('found').size") == 1
    browser.js(f"{CHOOSE}('steps', 'nonsense')")
    assert "such as 40 or 35-45" in browser.js("document.querySelector('#rollouts [role=status]').textContent")


def test_a_finding_leads_to_its_rollouts_and_the_address_can_be_shared(
    browser: Any, page: Path, tmp_path: Path
) -> None:
    browser.open(page)
    link = "document.querySelector('#finding-LLD002 a[href*=step]')"
    assert browser.js(f"{link}.textContent") == "Correct rollouts of steps 19 to 29"
    browser.js(f"{link}.click()")
    wait(browser, "state.rollouts.step === '19-29'")
    assert browser.js("document.querySelector('select[aria-label=outcome]').value") == "correct"
    assert browser.js("document.querySelectorAll('.rollout .ok').length") == 6
    assert abs(browser.js("document.getElementById('rollouts').getBoundingClientRect().top")) < 60
    browser.js("zoom([10, 20])")
    address = browser.js("location.hash")
    assert address == "#step=19-29&outcome=correct&zoom=10-20"
    again = tmp_path / "again.html"
    again.write_bytes(page.read_bytes())
    browser.open(again, fragment=address)
    assert browser.js("[state.rollouts.step, state.rollouts.outcome, ...state.range]") == ["19-29", "correct", 10, 20]
    assert abs(browser.js("document.getElementById('rollouts').getBoundingClientRect().top")) < 60
    browser.js("document.querySelector('.rollout header a').click()")  # the link of a card
    wait(browser, "document.querySelectorAll('.rollout').length === 1")


def test_a_live_page_shows_new_rows_and_keeps_what_the_reader_chose(
    browser: Any, collapse: ReportedRun, make_log: Callable[..., Log], tmp_path: Path
) -> None:
    path = write_report(tmp_path / "r.html", [collapse], live=True)
    browser.open(path)
    browser.js("zoom([10, 20])")
    browser.js(f"{CHOOSE}('outcome', 'incorrect')")
    browser.js("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    browser.js("window.scrollTo(0, 900)")
    series = {name: [*one.values, 0.5, 0.5] for name, one in collapse.log.series.items()}
    longer = replace(collapse, log=make_log(series, name="longer"))
    write_report(path, [longer], live=True)
    browser.js("look()")
    wait(browser, "document.querySelector('h1').textContent === 'longer'")
    assert browser.js("data.charts[0].rows[0].traces[0].raw.x.at(-1)") == 62
    assert browser.js("[state.range.join(), state.rollouts.outcome, scrollY]") == ["10,20", "incorrect", 900]
    assert browser.js("[...document.querySelectorAll('[data-part] details')].every((d) => d.open)")
    assert "Last written" in browser.js("document.getElementById('age').textContent")
    assert browser.js("document.querySelectorAll('th button').length === document.querySelectorAll('th').length")
    write_report(path, [longer])
    browser.js("look()")
    wait(browser, "data.live === null")
    assert "This page is final" in browser.js("document.querySelector('footer').textContent")
    browser.js("look()")
    assert browser.js("document.querySelectorAll('iframe').length") == 0 and browser.complaints() == []


def data_text(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition('id="data">')[2].partition("</script>")[0]


def key_of(page: Path) -> str:
    return str(json.loads(data_text(page))["key"])


FRAMING = """<iframe src="r.html?refresh=1"></iframe>
<script>
window.told = 0;
addEventListener("message", () => { told += 1 });
document.documentElement.dataset.ready = "yes";
</script>"""


def test_another_page_that_frames_a_report_is_told_nothing(browser: Any, collapse: ReportedRun, tmp_path: Path) -> None:
    page = write_report(tmp_path / "r.html", [collapse], live=True)
    other = tmp_path / "other.html"
    other.write_text(FRAMING)
    browser.open(other)
    browser.js("new Promise((then) => setTimeout(then, 1000))")
    assert browser.js("told") == 0
    other.write_text(FRAMING.replace("=1", f"={key_of(page)}"))  # what it cannot know
    browser.open(other)
    wait(browser, "told === 1")


def test_a_live_page_takes_nothing_from_another_page_in_its_frame(
    browser: Any, collapse: ReportedRun, tmp_path: Path
) -> None:
    page = write_report(tmp_path / "r.html", [collapse], live=True)
    key = key_of(page)
    for given, title in (("a guess", "collapse"), (key, "another")):
        said = {"holdfast": data_text(page).replace(key, given), "html": {}, "title": "another"}
        (tmp_path / "other.html").write_text(f"<script>parent.postMessage({json.dumps(said)}, '*')</script>")
        browser.open(page)
        browser.js("window.told = 0; addEventListener('message', () => { told += 1 })")
        browser.js("data.written = 0; refresh.frame = element('iframe'); refresh.frame.src = 'other.html'")
        browser.js("document.body.append(refresh.frame)")
        wait(browser, "told === 1")
        assert browser.js("document.title").startswith(title)


def test_arrow_keys_read_values_and_zoom(browser: Any, page: Path) -> None:
    browser.open(page)
    browser.js("document.querySelector('#chart-reward .plot').focus()")

    def press(key: str) -> str:
        for kind in ("keyDown", "keyUp"):
            browser.call("Input.dispatchKeyEvent", type=kind, key=key)
        return str(browser.js("tip.hidden ? '' : tip.textContent"))

    assert press("ArrowRight").startswith("step 60")
    assert press("ArrowLeft").startswith("step 59")
    assert press("Home").startswith("step 1training0.3")
    assert press("Escape") == ""
    press("+")
    assert browser.js("state.range[1] - state.range[0]") < 32
    press("Escape")
    assert browser.js("state.range") is None


def test_tables_sort(browser: Any, collapse: ReportedRun, make_log: Callable[..., Log], tmp_path: Path) -> None:
    facts = [{"rows": 20, "last reward": value} for value in (0.5, 1e-3, 0.09)]
    logs = [make_log({"reward/mean": [0.5] * 20}, name=f"run {k}") for k in range(3)]
    runs = [ReportedRun(log=log, diagnosis=Diagnosis(findings=(), facts=f)) for log, f in zip(logs, facts, strict=True)]
    browser.open(write_report(tmp_path / "r.html", runs))
    head = "[...document.querySelectorAll('th button')].find((b) => b.textContent === 'last reward')"
    order = "[...document.querySelectorAll('td[data-run]')].map((cell) => cell.dataset.run).join('')"
    assert browser.js(order) == "012"
    browser.js(f"{head}.click()")
    assert browser.js(order) == "120"
    browser.js(f"{head}.click()")
    assert browser.js(order) == "021" and browser.complaints() == []
    browser.js("document.querySelectorAll('td[data-run] button')[0].click()")
    pressed = "[...document.querySelectorAll('button[data-run=\"0\"]')].map((b) => b.getAttribute('aria-pressed'))"
    assert browser.js(pressed) == ["false", "false"]


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
            assert "30,000 more characters" in browser.js("document.querySelector('.rollout').textContent")


def test_an_odd_log(browser: Any, make_log: Callable[..., Log], tmp_path: Path) -> None:
    """A single step, values that are no numbers, constants, zeros on a logarithmic axis, names nobody knows."""
    nan, inf = float("nan"), float("inf")
    logs = [
        make_log({"reward/mean": [0.5]}),
        make_log({"reward/mean": [nan] * 30, "grad/norm": [inf] * 30}),
        make_log({"grad/norm": [0.0] * 30, "ratio/max": [1e300, 1e-300] * 15, "entropy/mean": [-1e308, 1e308] * 15}),
        make_log({"reward/mean": [0.1] * 50}, first=10**9, every=10**6),
    ]
    for log in logs:
        run = ReportedRun(log=log, diagnosis=Diagnosis(findings=()))
        for runs in ([run], [run, run]):
            browser.open(write_report(tmp_path / "r.html", runs), width=380)
            assert browser.complaints() == [] and browser.js(WIDER) == 0
            assert browser.js("document.querySelectorAll('.plot svg').length") > 0


def test_a_finger_scrolls_over_plots_and_reads_them(browser: Any, page: Path) -> None:
    """A finger on a plot moves the page: only a mouse zooms by dragging."""
    browser.open(page, width=380)
    plot = "document.querySelector('#chart-reward .plot')"
    assert browser.js(f"getComputedStyle({plot}).touchAction") == "pan-y"
    send = "new PointerEvent('pointer%s', {pointerType: 'touch', clientX: %d, clientY: 300, bubbles: true})"
    for kind, x in (("down", 100), ("move", 200), ("up", 200)):
        browser.js(f"{plot}.dispatchEvent({send % (kind, x)})")
    assert browser.js("state.range") is None and browser.js("tip.textContent").startswith("step ")
    assert browser.picture().startswith(b"\x89PNG")


def test_packed_rollouts_are_found_compared_and_plotted(browser: Any, collapse: ReportedRun, tmp_path: Path) -> None:
    def made(step: int, k: int) -> SampledRollout:
        text = f"<img src=x onerror='document.title=1'> word-{step}-{k} \ud800"
        turns = (SampledTurn(text=text, observation="<b>seen</b>", query="x", hits=None),)
        return SampledRollout(
            step=step, question=f"q{step}", turns=turns, reward=k / 8, advantage=k - 2.0, prompt="<i>asked</i>"
        )

    run = replace(collapse, rollouts=tuple(made(step, k) for step in range(1, 101) for k in range(4)))
    path = write_report(tmp_path / "r.html", [run])
    assert '"pack":[0,0]' in path.read_text(encoding="utf-8")
    assert '"packs":[]' in write_report(tmp_path / "live.html", [run], live=True).read_text(encoding="utf-8")
    browser.open(path)

    def until(expression: str) -> None:
        waiting = (
            f"(async () => {{ while (!({expression})) await new Promise((r) => setTimeout(r, 20)); return 1; }})()"
        )
        browser.call("Runtime.evaluate", expression=waiting, awaitPromise=True, timeout=10_000)
        assert browser.js(expression)

    packed = browser.js("data.rollouts.find((e) => e.pack && e.reward === 0.125).step")
    browser.js(f"location.hash = '#find=word-{packed}-1'")
    cards = "document.querySelectorAll('.rollout .text').length"
    until(f"{cards} === 1")
    assert "advantage -1" in browser.js("document.querySelector('.rollout').textContent")
    browser.js("document.querySelector('.rollout header button').click()")
    until(f"{cards} === 2")
    assert browser.js("document.querySelector('.rollout:nth-child(2) .text').textContent").startswith("<img")
    browser.js(f"location.hash = '#step={packed}&reward=0.1-0.3'; reader.plot.open = true")
    until(f"{cards} === 2 && document.querySelectorAll('.dot').length === 2")
    assert browser.js("document.querySelectorAll('.rollout img, .rollout b, .rollout i').length") == 0
    assert browser.complaints() == []
