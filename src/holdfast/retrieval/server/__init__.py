"""Serve an index folder over HTTP, and stop without dropping accepted requests."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from holdfast.base.errors import ConfigError, MissingExtra
from holdfast.retrieval import open_index
from holdfast.retrieval.server.batching import Batching, QueryCache


def serve(
    folder: Path,
    *,
    model: str | None = None,
    device: str = "auto",
    host: str = "127.0.0.1",
    port: int = 8000,
    topk: int = 3,
    token: str | None = None,
    batching: Batching | None = None,
    cache_size: int = 100_000,
    on_ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve until SIGTERM or SIGINT. Then refuse new connections, answer accepted requests, and return.

    Args:
        model, device: as in `open_index`.
        port: 0 takes any free port.
        topk: passages per query when a request does not say.
        token: required from callers as `Authorization: Bearer TOKEN`.
        cache_size: most queries whose results are cached.
        on_ready: called with the address.

    Raises:
        DataError: the folder is not an index.
        ConfigError: the address is not available.
    """
    with needs_server():
        from holdfast.retrieval.server.app import make_app
    with listening(host, port) as listener:  # before the index, which may take a while to open
        retriever = open_index(folder, model=model, device=device)
        retriever.rank(["warm up"], topk)
        local, cache = only_local(listener, host, token), QueryCache(cache_size)
        app = make_app(retriever, topk=topk, token=token, local=local, batching=batching, cache=cache)
        run(app, listener, on_ready)


@contextmanager
def needs_server() -> Iterator[None]:
    """Raises `MissingExtra` for what is missing of the extra `server`."""
    try:
        import uvicorn.protocols.http.httptools_impl  # noqa: F401  (what `connections.py` is made of)

        yield
    except ModuleNotFoundError as error:
        raise MissingExtra((error.name or "fastapi").partition(".")[0], "server") from error


def only_local(listener: socket.socket, host: str, token: str | None) -> str | None:
    """`Guard.local`: who has the token may call by any name. Where other machines can call, names are not known."""
    return host if token is None and ip_address(listener.getsockname()[0]).is_loopback else None


def run(app: Any, listener: socket.socket, on_ready: Callable[[str], None]) -> None:
    """Serve an ASGI application on a bound socket until SIGTERM or SIGINT. `on_ready` gets the address."""
    from holdfast.retrieval.server.connections import Server

    def announce() -> None:
        name, bound = listener.getsockname()[:2]
        on_ready(f"http://{f'[{name}]' if ':' in name else name}:{bound}")

    # uvicorn shuts down on these, and then raises them again for the handlers that were set before.
    handlers = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        Server(app, listener, announce).run(sockets=[listener])
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def listening(host: str, port: int) -> socket.socket:
    """A socket bound to an address. Raises `ConfigError` if it is not available."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot listen on {host}:{port} ({reason}); name another --port or --host") from None
    return listener
