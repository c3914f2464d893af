"""From an index folder to a server that answers, and stops without dropping what it accepted."""

from __future__ import annotations

import hashlib
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from holdfast.errors import ConfigError, MissingExtra
from holdfast.retrieval.index import open_index
from holdfast.retrieval.manifest import KEPT_BY_SERVER, MANIFEST
from holdfast.retrieval.server.batching import Batching
from holdfast.retrieval.server.kept import KeptQueries


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
    keep_cache: bool = True,
    grace: float = 60.0,
    on_ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve until SIGTERM or SIGINT; then refuse new connections, answer what was accepted (for at most `grace`
    seconds) and return. `model` and `device` as in `open_index`; `port` 0 takes any that is free; `on_ready` is told
    the address.

    Raises `DataError` for a folder that holds no index, `ConfigError` for an address that cannot be had.
    """
    try:
        import uvicorn

        from holdfast.retrieval.server.app import make_app
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "fastapi", "server") from error
    listener = _bind(host, port)  # before the index, which may take a while to open
    with listener:
        retriever = open_index(folder, model=model, device=device)
        retriever.rank(["warm up"], topk)
        fingerprint = hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
        path = folder / KEPT_BY_SERVER if keep_cache else None
        kept = KeptQueries(cache_size, path, fingerprint, len(retriever.documents))
        app = make_app(retriever, topk=topk, token=token, batching=batching, kept=kept)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            backlog=2048,
            timeout_keep_alive=75,  # longer than clients keep a connection they do not use
            timeout_graceful_shutdown=int(grace),
        )

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                name, bound = listener.getsockname()[:2]
                on_ready(f"http://{f'[{name}]' if ':' in name else name}:{bound}")

        # uvicorn stops in good order on these, and then raises them again for whoever listened before.
        before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            Server(config).run(sockets=[listener])
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _bind(host: str, port: int) -> socket.socket:
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
