"""An agent behind an OpenAI-compatible endpoint: it searches by itself, and answers in one message."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.evaluate.endpoint.line import Desk
from holdfast.retrieval.server import listening, needs_server, only_local, run


def serve_agent(
    desk: Desk, *, host: str, port: int, token: str | None, on_ready: Callable[[str], None] = lambda address: None
) -> None:
    """Serve until SIGTERM or SIGINT, as `retrieval.server.serve` does. Raises `ConfigError` for the address."""
    with needs_server():
        from holdfast.evaluate.endpoint.app import make_app
    with listening(host, port) as listener:
        run(make_app(desk, token=token, local=only_local(listener, host, token)), listener, on_ready)
