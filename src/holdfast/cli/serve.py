"""`holdfast serve`: an index behind Search-R1's `/retrieve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.terminal import err, out
from holdfast.retrieval.wire import TOKEN, environment_token


def serve(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="An index folder.", show_default=False)],
    host: Annotated[str, typer.Option(help="0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    topk: Annotated[int, typer.Option(min=1, help="Passages when a request does not say.")] = 3,
    batch: Annotated[int, typer.Option(min=1, help="Queries searched together.")] = 64,
    wait_ms: Annotated[float, typer.Option(min=0, help="What the first of them waits for others.")] = 2.0,
    waiting: Annotated[int, typer.Option(min=1, help="Queries that may wait; more are refused (429).")] = 20_000,
    cache_size: Annotated[int, typer.Option(min=0, help="Queries remembered; 0: none.")] = 100_000,
    keep_cache: Annotated[bool, typer.Option(help="Remember them over restarts, in DIR.")] = True,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Of a dense index: the encoder, if it has moved.", show_default=False),
    ] = None,
    device: Annotated[str, typer.Option(help="Of a dense index: auto, cpu or cuda.")] = "auto",
) -> None:
    """Answer searches over HTTP, as Search-R1, verl, SkyRL and ReCall ask.

    [cyan]holdfast serve my-index --port 8000[/cyan]

    A recipe uses it with [cyan]retrieval.url = "http://127.0.0.1:8000"[/cyan]. If the
    environment has HOLDFAST_TOKEN, callers must send it; holdfast's own do.
    """
    from holdfast.cli.extra import train_extra

    token = environment_token()
    with train_extra(err(), "opening the index"):
        from holdfast.retrieval.server import serve as run
        from holdfast.retrieval.server.batching import Batching

    if host not in ("127.0.0.1", "localhost", "::1") and token is None:
        err().print(f"note: whoever reaches {host} can search; set {TOKEN} to ask for a token", style="yellow")
    console = out()

    def on_ready(address: str) -> None:
        console.print(f"holdfast · {folder} at {address} (POST /retrieve; /docs, /health, /ready, /metrics)")
        console.file.flush()

    run(
        folder,
        model=model,
        device=device,
        host=host,
        port=port,
        topk=topk,
        token=token,
        batching=Batching(most=batch, wait=wait_ms / 1000, waiting=waiting),
        cache_size=cache_size,
        keep_cache=keep_cache,
        on_ready=on_ready,
    )
    console.print("Stopped; every request it had read is answered.")
