"""A headless Chromium, driven over a pipe by its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str | None:
    """The first of `PROGRAMS` that is installed."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


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

    def open(self, page: Path, *, width: int = 1280, dark: bool = False, fragment: str = "") -> None:
        """Load the page, at `#fragment` if one is given, and wait until it is ready."""
        self.js("document.documentElement.dataset.left = 'yes'")  # the page that is there answers for a moment yet
        self.events.clear()
        phone = width < 500
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=page.resolve().as_uri() + fragment)
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
