"""A judge for the tests: a chat endpoint that answers by a function of the prompt, or with what it is told to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class JudgeServer:
    """`saying` gives the content of an answer to a prompt; `replies`, first to last, come before it."""

    url: str
    saying: Callable[[str], str] = lambda prompt: "grade: 1"
    replies: list[tuple[int, Any]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    always: tuple[int, Any] | None = None

    @property
    def prompts(self) -> list[str]:
        return [body["messages"][0]["content"] for body in self.bodies]


@contextmanager
def a_judge() -> Iterator[JudgeServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                state.bodies.append(body)
                state.keys.append(self.headers.get("Authorization"))
                status, content = state.replies.pop(0) if state.replies else state.always or (200, None)
            if content is None:
                content = state.saying(body["messages"][0]["content"])
            message = {"role": "assistant", "content": content}
            answer = json.dumps(
                {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"total_tokens": 7}}
            )
            payload = (answer if status == 200 else json.dumps({"error": content})).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *_: Any) -> None:
            """Nothing on the console."""

    lock = threading.Lock()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state = JudgeServer(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
