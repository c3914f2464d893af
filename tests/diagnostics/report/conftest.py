"""Logs made by hand, and a real browser, driven over a pipe by its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.collapse import Fall
from holdfast.diagnostics.finding import CannotTell, Diagnosis, Finding
from holdfast.diagnostics.log import Log, Series
from holdfast.diagnostics.report import ReportedRun, SampleChanges, SampledRollout, SampledTurn

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture
def make_log() -> Callable[..., Log]:
    """make_log({"reward/mean": [0.1, ...]}, first=1, every=1): every series at the same steps."""

    def make(
        series: Mapping[str, Sequence[float]], *, name: str = "a run", first: int = 1, every: int = 1, **more: Any
    ) -> Log:
        made = {
            key: Series(first + every * np.arange(len(values)), np.asarray(values, dtype=np.float64))
            for key, values in series.items()
        }
        steps = np.array(sorted({int(step) for one in made.values() for step in one.steps}), dtype=np.int64)
        return Log(**{"format": "holdfast", "host": "holdfast", "name": name, "series": made, "steps": steps} | more)

    return make


@pytest.fixture
def make_finding() -> Callable[..., Finding]:
    def make(code: str, step: int, *series: str, **more: Any) -> Finding:
        told = {"summary": f"What {code} says.", "evidence": {}, "remedy": f"What {code} asks for."}
        return Finding(**{"code": code, "step": step, "series": series} | told | more)

    return make


@pytest.fixture
def collapse(make_log: Callable[..., Log], make_finding: Callable[..., Finding]) -> ReportedRun:
    """A run of 60 steps with everything a report can show: it rises, decays and collapses."""
    t = np.arange(60)
    reward = np.where(t < 20, 0.3 + 0.025 * t, 0.8) * np.where(t < 40, 1.0, np.maximum(0.05, 1 - (t - 40) / 10))
    series = {
        "reward/mean": reward,
        "reward/em": reward,
        "displacement/correct": 0.01 - 0.0005 * t,
        "displacement/incorrect": -0.001 * t,
        "displacement/fraction": t / 60,
        "likelihood/correct": -1 + 0.01 * np.minimum(t, 20) - 0.02 * np.maximum(0, t - 25),
        "likelihood/incorrect": -1.2 - 0.01 * t,
        "likelihood/correct/action_1": -1 - 0.001 * t,
        "likelihood/correct/action_2": -1.1 - 0.001 * t,
        "entropy/mean": 1 + 0.05 * np.maximum(0, t - 35),
        "rollout/length": np.full(60, 70.0),
        "rollout/searches": np.full(60, 1.5),
        "ratio/max": np.exp(t / 10),
        "clip/fraction": t / 1000,
        "grad/norm": np.where(t == 50, np.nan, np.exp(t / 12)),
        "retrieval/error_fraction": np.zeros(60),
        "rollout/truncated_fraction": t / 100,
    }
    found = (
        make_finding("LLD002", 24, "displacement/correct", lead=21, evidence={"displacement/correct": -0.002}),
        make_finding("LLD003", 39, "displacement/correct", "grad/norm", lead=6),
        make_finding("ISD001", 39, "ratio/max", lead=6),
        make_finding("ENT001", 40, "entropy/mean", lead=5),
        make_finding("RWD001", 41, "reward/mean", lead=4),
    )
    diagnosis = Diagnosis(
        findings=found,
        cannot_tell=(CannotTell(code="SMP001", missing=("sampler/logprob_gap",), remedy="Log it."),),
        halved=Fall(peak_step=24, step=45, peak=0.8, level=0.4, lost=0.5, measure="peak"),
        facts={
            "rows": 60,
            "rewards": 60,
            "first step": 1,
            "last step": 60,
            "first reward": 0.3,
            "peak reward": 0.8,
            "last reward": 0.04,
        },
    )
    rollouts = tuple(
        SampledRollout(
            step=step,
            question=f"Question {step}-{k}?",
            golden_answers=("Mora",),
            turns=(
                SampledTurn(
                    text="<search> lake </search>",
                    observation="Doc 1: a lake",
                    query="lake",
                    hits=("doc-1", "doc-2"),
                    tokens=(("<search>", -0.5), (" lake", 0.2), (" </search>", 0.0), ("", -0.1)),
                ),
                SampledTurn(text="<answer> Mora </answer>"),
            ),
            answer="Mora",
            correct=k == 0,
            reward=float(k == 0),
        )
        for step in range(1, 61)
        for k in range(2)
    )
    changes = tuple(
        SampleChanges(step=step, correct=tuple(0.01 * i - 0.001 * step for i in range(-8, 8)), incorrect=(-0.1,))
        for step in range(1, 61)
    )
    log = make_log(series, name="collapse", settings={"train": {"lr": 6e-4}, "loss.penalty.name": "none"})
    return ReportedRun(log=log, diagnosis=diagnosis, rollouts=rollouts, changes=changes)


class Browser:
    """One page of a headless Chromium."""

    def __init__(self, program: str, profile: Path) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()

        def pipes() -> None:  # the protocol is spoken on descriptors 3 and 4
            high = [os.dup2(to_browser, 100), os.dup2(from_browser, 101)]
            for place, pipe in zip((3, 4), high, strict=True):
                os.dup2(pipe, place)

        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe"]
        self._process = subprocess.Popen(
            [program, *flags, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=pipes,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._count, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._count:
            self.events.append(answer)
        assert "error" not in answer, answer
        return dict(answer["result"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select.select([self._read], [], [], 60)[0], "the browser says nothing"
            got = os.read(self._read, 1 << 20)
            assert got, "the browser is gone"
            self._buffer += got
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def open(self, page: Path, *, width: int = 1280, dark: bool = False) -> None:
        """Load the page and wait until its plots are drawn."""
        self.js("document.documentElement.dataset.left = 'yes'")  # the page that is there answers for a moment yet
        self.events.clear()
        phone = width < 500
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=page.resolve().as_uri())
        ends = time.monotonic() + 60
        done = "((d) => d && !d.left && (d.ready || d.error))(document.documentElement?.dataset)"
        while not self.js(done):
            assert time.monotonic() < ends, f"the page never finished: {self.complaints()}"
            time.sleep(0.05)

    def js(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """Errors of scripts and of the page's own policy, and every request that left the file."""
        found = [self.js("document.documentElement.dataset.error || ''")]
        for event in self.events:
            method, params = event["method"], event.get("params", {})
            if method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
                found.append(json.dumps(params)[:500])
            elif method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(
                ("file:", "blob:", "data:")
            ):
                found.append(params["request"]["url"])
        return [text for text in found if text]

    def picture(self) -> bytes:
        """A PNG of the window."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(20)
        os.close(self._write)
        os.close(self._read)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("no Chromium is installed")
    started = Browser(program, tmp_path_factory.mktemp("profile"))
    yield started
    started.close()
