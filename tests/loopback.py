"""HTTP servers on this machine that answer by a function, and stop with the test."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Asked:
    """A request; `body` is the JSON that was posted."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


Reply = tuple[int, Any] | tuple[int, Any, Mapping[str, str]]
"""A status, a body (bytes as they are, anything else as JSON), and headers beside or in place of the usual ones."""


class _Server(ThreadingHTTPServer):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.failed: list[BaseException] = []
        """What an answer raised, such as a failed assertion."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if error is not None and not isinstance(error, ConnectionError):  # clients need not wait
            self.failed.append(error)


@contextmanager
def serving(answer: Callable[[Asked], Reply]) -> Iterator[str]:
    """The address of a server, while it runs. One that says it sends more than it does dies in its answer."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            length = int(self.headers["Content-Length"] or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, content, *more = answer(Asked(self.command, self.path, self.headers, body))
            payload = content if isinstance(content, bytes) else json.dumps(content).encode()
            headers = {"Content-Type": "application/json", "Content-Length": str(len(payload))} | dict(*more)
            self.close_connection |= headers["Content-Length"] != str(len(payload))
            self.send_response(status)
            for header in headers.items():
                self.send_header(*header)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(payload)

        do_POST = do_HEAD = do_GET

        def log_message(self, *_: Any) -> None:
            """Nothing on the console."""

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert not server.failed, server.failed
