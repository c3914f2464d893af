"""`holdfast serve`: an index over HTTP, with the protocol of Search-R1's `/retrieve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.terminal import err, out, train_extra
from holdfast.retrieval.wire import TOKEN, environment_token


def serve(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="An index folder.")],
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; 0.0.0.0 accepts other machines.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Port to listen on; 0 chooses a free one.")
    ] = 8000,
    topk: Annotated[
        int, typer.Option(metavar="N", min=1, help="Passages to return if the request does not set topk.")
    ] = 3,
    batch: Annotated[int, typer.Option(metavar="N", min=1, help="Largest number of queries in a batch.")] = 64,
    wait_ms: Annotated[
        float, typer.Option(metavar="N", min=0, help="Longest time in ms that a query waits for its batch to fill.")
    ] = 2.0,
    waiting: Annotated[
        int, typer.Option(metavar="N", min=1, help="Queue length. Further queries get status 429.")
    ] = 20_000,
    cache_size: Annotated[
        int, typer.Option(metavar="N", min=0, help="Number of queries to cache; 0: no cache.")
    ] = 100_000,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Dense index: new path of the encoder, if it was moved.")
    ] = None,
    device: Annotated[
        str, typer.Option(metavar="DEVICE", help="Dense index: device of the encoder: auto, cpu or cuda.")
    ] = "auto",
) -> None:
    """Serve an index over HTTP to Search-R1, verl, SkyRL or ReCall.

    Answers POST /retrieve like the server of Search-R1, until Ctrl-C. To use it
    in a recipe, set retrieval.url = "http://127.0.0.1:8000". To require a token,
    set the environment variable HOLDFAST_TOKEN here and where holdfast trains;
    other clients send the header Authorization: Bearer TOKEN.

    [cyan]holdfast serve my-index --port 8000[/cyan]
    """
    token = environment_token()
    with train_extra("opening the index"):
        from holdfast.retrieval.server import serve as run
        from holdfast.retrieval.server.batching import Batching

    if host not in ("127.0.0.1", "localhost", "::1") and token is None:
        err().print(f"note: anyone who reaches {host} can search; set {TOKEN} to require a token", style="yellow")
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
        on_ready=on_ready,
    )
    console.print("Stopped, after answering every request that was received.")
