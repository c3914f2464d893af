"""What a server answers, read within limits, against a server on loopback that sends any bytes."""

from __future__ import annotations

import gzip
import json
import resource
import socketserver
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.base.answers import MAX_BYTES, Answer, HTTPClient, address_parts, read_json, secret_in
from holdfast.base.errors import ConfigError
from holdfast.base.workers import LoopThread

SECRET = "sk-a/b+<c>"
OK = b"HTTP/1.1 200 OK\r\n"
BOMB = gzip.compress(bytes(8 * MAX_BYTES))


class Sender(socketserver.ThreadingTCPServer):
    daemon_threads = True
    parts: tuple[bytes, ...] = ()
    """Sent one after another; the last one again and again, with pauses, until the client goes."""
    pause = 0.0
    connections = 0


class Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Sender)
        self.server.connections += 1
        list(iter(self.rfile.readline, b"\r\n"))
        try:
            for part in self.server.parts:
                self.wfile.write(part)
            while self.server.pause and not self.server.stopped.wait(self.server.pause):  # type: ignore[attr-defined]
                self.wfile.write(self.server.parts[-1])
        except OSError:
            pass


@pytest.fixture
def sender() -> Iterator[Sender]:
    with Sender(("127.0.0.1", 0), Handler) as server:
        server.stopped = threading.Event()  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.stopped.set()  # type: ignore[attr-defined]
        server.shutdown()


def call(sender: Sender, *, seconds: float = 20.0, max_bytes: int = MAX_BYTES) -> Answer:
    url = f"http://127.0.0.1:{sender.server_address[1]}/x?key=hidden"
    loop = LoopThread("test")
    try:
        return loop.run(HTTPClient(url, secret=SECRET).exchange("GET", url, seconds=seconds, max_bytes=max_bytes))
    finally:
        loop.close()


@pytest.mark.parametrize(
    ("parts", "pause"),
    [
        ([OK + b"Content-Encoding: gzip\r\n\r\n" + BOMB], 0),
        ([OK + b"\r\n", b"x" * 2**20], 1e-6),
        # What follows the end of the compressed data counts too.
        ([OK + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b"{}"), b"x" * 2**20], 1e-6),
    ],
    ids=["gzip bomb", "endless", "endless after gzip"],
)
def test_a_body_without_end_is_cut(sender: Sender, parts: list[bytes], pause: float) -> None:
    sender.parts, sender.pause = tuple(parts), pause
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"http://127.0.0.1:\d+/x sent more than 16 MiB$"):
        call(sender)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\nX: ", OK + b"\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b""])
def test_nothing_outlasts_the_timeout(sender: Sender, start: bytes) -> None:
    sender.parts, sender.pause = (start,) if b"100" in start or not start else (start, b"y"), 0.02
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"/x did not answer within 0\.3 seconds$"):
        call(sender, seconds=0.3)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        OK + b"Content-Length: 9\r\n\r\nhalf",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nha",
        OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
        OK + b"X\xff\x00: \xfe\r\n\r\n",
        OK + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nxxxx",
        b"SSH-2.0 " + SECRET.encode() + b"\r\n\r\n",
    ],
)
def test_what_is_no_answer(sender: Sender, answer: bytes) -> None:
    sender.parts = (answer,)
    with pytest.raises(ConnectionError, match=r"/x cannot be reached \(.+\)$") as caught:
        call(sender)
    assert "hidden" not in str(caught.value) and SECRET not in str(caught.value)


@pytest.mark.parametrize("surplus", [b"x", OK + b"Content-Length: 3\r\n\r\n500"])
def test_what_follows_an_answer_is_no_part_of_the_next(sender: Sender, surplus: bytes) -> None:
    """The server keeps its connection open, and each request has one of its own."""
    sender.parts, sender.pause = (OK + b"Content-Length: 2\r\n\r\n{}" + surplus, b""), 0.01
    assert [call(sender).json(), call(sender).json()] == [{}, {}]
    assert sender.connections == 2


def test_what_is_an_answer(sender: Sender) -> None:
    chunks = b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    for answer in (OK + chunks, b"HTTP/1.0 200 OK\r\n\r\n{}", b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"\r\n{}"):
        sender.parts = (answer,)
        assert call(sender).json() == {}
    sender.parts = (OK + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b'{"a": 1}'),)
    assert call(sender).json() == {"a": 1}
    sender.parts = (b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\n\r\n" + b"x" * 100,)
    answer = call(sender, max_bytes=9)
    assert (answer.status, answer.retry_after, answer.body) == (503, 7.0, b"x" * 9)  # only quoted, so it may be cut
    sender.parts = (b"HTTP/1.1 302 Found\r\nLocation: http://h/\r\n\r\n",)
    assert call(sender).quoted() == "a redirect to http://h/"


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'\xef\xbb\xbf[1, -2.5e3, "\\"[", {"a": null}]', [1, -2500.0, '"[', {"a": None}]),
        (b"[" * 64 + b"]" * 64, ...),
        (b'["' + b"[{,\\\\" * 10**6 + b'"]', ...),
        (b"[" + b"1" * 300 + b"]", ...),
        (b"[" * 65 + b"]" * 65, "JSON that is nested too deeply"),
        (b"[" * 200_000, "JSON that is nested too deeply"),
        (b"[" + b"[]," * 10**6 + b"[]]", "JSON of too many values"),
        (b'"' * 10**7, "JSON of too many values"),
        *((b"[%b]" % n, "JSON with a number that is not finite") for n in (b"NaN", b"-Infinity", b"1e999")),
        *((b"[-%b]" % (b"1" * n), "JSON with a number that is not finite") for n in (310, 5000, 10**6)),
        *((body, "something that is not JSON") for body in (b"", b"<html>", b'{"a"', b"\xff\xfe", b'["\xed\xa0\x80"]')),
    ],
)
def test_json_is_bounded(body: bytes, value: Any) -> None:
    if not isinstance(value, str):
        assert read_json(body) == (json.loads(body) if value is ... else value)
        return
    with pytest.raises(ValueError, match=f"^{value}$"):
        read_json(body)


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        *((text, 0, 0) for text in ("", "-1", "nan", "inf", "soon", "x x x x x x", "1e400", "\udcff", ",")),
        *((f"Wed, 21 Oct {year} 07:28:00 GMT", 0, 0) for year in (1, 10**30)),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("2.5", 2.5, 2.5),
        *((text, 86_400, 366 * 86_400) for text in ("1e300", "9" * 300, "Wed, 21 Oct 9999 07:28:00 GMT")),
    ],
)
def test_a_wait_is_bounded(header: str, least: float, most: float) -> None:
    assert least <= Answer("http://h", 503, b"", {"retry-after": header}).retry_after <= most


@pytest.mark.parametrize(
    "said", [SECRET, SECRET.replace("/", "\\/"), "sk-a/b+\\u003cc\\u003E", "sk-a%2Fb%2B%3Cc%3e", "x\n" * 99 + SECRET]
)
def test_a_key_that_the_server_repeats_is_not_shown(said: str) -> None:
    answer = Answer("http://h", 401, f"\x1b[31mwrong key {said}!".encode(), secrets=[SECRET])
    assert answer.quoted() == "?[31mwrong key ***!" or said.startswith("x")
    assert SECRET not in answer.quoted(said, max_chars=10**6) + repr(answer)


@pytest.mark.parametrize(
    "address",
    [
        *("", "localhost:8000", "ftp://h", "http://", "http://h:port", "http://h:99999", "http://h/a b", "http://h\n"),
        *("http://[::1", "http://a..b", f"http://{'h' * 300}", "http://h\x00"),
    ],
)
def test_what_is_not_an_address(address: str) -> None:
    with pytest.raises(ConfigError, match="is not the address of a server; write one like http://example") as caught:
        address_parts(address, of="a server", example="http://example", key="KEY")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "address", ["http://me:hidden@h", "http://me:hi/dden@h:port", "ftp://me:hidden@h", "h?k=hidden"]
)
def test_no_secret_of_an_address_is_repeated(address: str) -> None:
    with pytest.raises(ConfigError, match=r"KEY|write one like http://example") as caught:
        address_parts(address, of="a server", example="http://example", key="KEY")
    assert "hi" not in str(caught.value).replace("which", "").replace("this", "")


@pytest.mark.parametrize(
    ("value", "secret"),
    [("", None), (" ", None), ("a-Z09._~+/=!\n", "a-Z09._~+/=!"), ("hushé", ...), ("hush\nhush", ...)],
)
def test_a_secret_is_what_a_header_can_carry(monkeypatch: pytest.MonkeyPatch, value: str, secret: Any) -> None:
    monkeypatch.delenv("TOKEN", raising=False)
    assert secret_in("TOKEN") is None
    monkeypatch.setenv("TOKEN", value)
    if secret is not ...:
        assert secret_in("TOKEN") == secret
        return
    with pytest.raises(ConfigError, match="TOKEN has a blank, a line break or a character") as caught:
        secret_in("TOKEN")
    assert "hush" not in str(caught.value)
