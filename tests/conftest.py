"""A `/retrieve` server on loopback, for whatever speaks to one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from holdfast.retrieval.types import Retriever

Reply = tuple[int, bytes]


@dataclass
class RetrieveServer:
    """Answers from a retriever, or with what stands in `replies`, first to last, before that."""

    url: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    """Sent with every answer."""
    authorizations: list[str | None] = field(default_factory=list)
    """What each request had as `Authorization`."""
    hold: threading.Event | None = None
    """When set to an event, requests wait for it."""


def answer(retriever: Retriever, request: dict[str, Any]) -> Reply:
    """As Search-R1's server writes it."""
    result = [
        [{"document": {"id": h.document.id, "contents": h.document.contents}, "score": h.score} for h in hits]
        for hits in retriever.search(request["queries"], request["topk"])
    ]
    return 200, json.dumps({"result": result}).encode()


@pytest.fixture
def retrieve_server() -> Iterator[Callable[[Retriever | None], RetrieveServer]]:
    """retrieve_server(retriever): a running server; it stops with the test."""
    running: list[ThreadingHTTPServer] = []

    def start(retriever: Retriever | None = None) -> RetrieveServer:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                state.requests.append({"path": self.path, **request})
                state.authorizations.append(self.headers["Authorization"])
                if state.hold is not None:
                    state.hold.wait(10)
                if state.replies:
                    status, body = state.replies.pop(0)
                else:
                    assert retriever is not None, "the server has no retriever and no reply left"
                    status, body = answer(retriever, request)
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(body)))
                    for name, value in state.headers.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(body)
                except BrokenPipeError:  # a client that timed out does not wait for its answer
                    pass

            def log_message(self, *_: Any) -> None:
                """Nothing on the console."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        state = RetrieveServer(f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        running.append(server)
        return state

    yield start
    for server in running:
        server.shutdown()
        server.server_close()
