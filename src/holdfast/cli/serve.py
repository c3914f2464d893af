"""`holdfast serve`: an index over HTTP, with the protocol of Search-R1's `/retrieve`, or a trained agent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.base.errors import ConfigError
from holdfast.base.run_folder import is_run
from holdfast.cli.recipes import allow
from holdfast.cli.runs import WHICH_CHECKPOINT, TrustCode, complete_run, find_run, in_runs
from holdfast.cli.terminal import err, out, train_extra
from holdfast.evaluate.questions import answerable, new_words
from holdfast.retrieval.wire import TOKEN, environment_token

_INDEX, _RUN = "Options for an index", "Options for a run"
_OF_INDEX = {"topk": "--topk", "batch": "--batch", "wait_ms": "--wait-ms", "cache_size": "--cache-size"}
_OF_INDEX |= {"model": "--model", "device": "--device"}
_OF_RUN = {"checkpoint": "--checkpoint", "greedy": "--greedy/--sample", "trust_code": "--trust-code"}


def serve(
    ctx: typer.Context,
    folder: Annotated[
        str,
        typer.Argument(
            metavar="DIR|RUN",
            help="An index folder; or a run folder, or the name of a run in runs/.",
            autocompletion=complete_run,
        ),
    ],
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; 0.0.0.0 accepts other machines.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Port to listen on; 0 chooses a free one.")
    ] = 8000,
    waiting: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Queue length. Further queries or requests get status 429. Default: 20000 queries; 16 requests.",
        ),
    ] = None,
    topk: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Passages to return if the request does not set topk.", rich_help_panel=_INDEX
        ),
    ] = 3,
    batch: Annotated[
        int, typer.Option(metavar="N", min=1, help="Largest number of queries in a batch.", rich_help_panel=_INDEX)
    ] = 64,
    wait_ms: Annotated[
        float,
        typer.Option(
            metavar="N",
            min=0,
            help="Longest time in ms that a query waits for its batch to fill.",
            rich_help_panel=_INDEX,
        ),
    ] = 2.0,
    cache_size: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Number of queries to cache; 0: no cache.", rich_help_panel=_INDEX),
    ] = 100_000,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="Dense index: new path of the encoder, if it was moved.", rich_help_panel=_INDEX
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            metavar="DEVICE", help="Dense index: device of the encoder: auto, cpu or cuda.", rich_help_panel=_INDEX
        ),
    ] = "auto",
    checkpoint: Annotated[
        str, typer.Option(metavar="WHICH", help=f"{WHICH_CHECKPOINT}.", rich_help_panel=_RUN)
    ] = "last",
    greedy: Annotated[
        bool,
        typer.Option(
            "--greedy/--sample",
            help="Decode greedily or sample, if the request sets no temperature.",
            rich_help_panel=_RUN,
        ),
    ] = True,
    trust_code: TrustCode = False,
) -> None:
    """Serve an index to trainers, or a trained agent to any OpenAI client.

    An index answers POST /retrieve like the server of Search-R1, for Search-R1,
    verl, SkyRL or ReCall. In a recipe, set retrieval.url = "http://127.0.0.1:8000".

    [cyan]holdfast serve my-index --port 8000[/cyan]

    A run answers POST /v1/chat/completions and GET /v1/models: the agent searches
    by itself, and the answer comes with its searches (reasoning_content) and its
    passages (search_results, annotations). It reads only the last user message,
    because agents are trained on single questions. Open http://127.0.0.1:8000 for a
    page on which you can ask and watch it search. Settings on the command line
    override the recipe.

    [cyan]holdfast serve runs/quickstart[/cyan]

    [cyan]holdfast serve my-run --checkpoint best --port 8001[/cyan]

    Both serve until Ctrl-C. To require a token, set the environment variable
    HOLDFAST_TOKEN here and where holdfast trains; other clients send the header
    Authorization: Bearer TOKEN, with OpenAI's clients as their API key.
    """
    token, path = environment_token(), Path(folder)
    run = Path(in_runs(folder))
    if not is_run(run) and not path.exists():
        find_run(folder, "; there is no index folder of that name either")
    _refuse_other(ctx, is_run(run))
    if host not in ("127.0.0.1", "localhost", "::1") and token is None:
        what = "ask" if is_run(run) else "search"
        err().print(f"note: anyone who reaches {host} can {what}; set {TOKEN} to require a token", style="yellow")
    if is_run(run):
        _serve_run(
            run,
            ctx.meta["settings"],
            checkpoint=checkpoint,
            greedy=greedy,
            trusted=trust_code,
            waiting=waiting or 16,
            host=host,
            port=port,
            token=token,
        )
        return
    with train_extra("opening the index"):
        from holdfast.retrieval.server import serve as run_server
        from holdfast.retrieval.server.batching import Batching

    run_server(
        path,
        model=model,
        device=device,
        host=host,
        port=port,
        topk=topk,
        token=token,
        batching=Batching(most=batch, wait=wait_ms / 1000, waiting=waiting or 20_000),
        cache_size=cache_size,
        on_ready=lambda address: _say(f"{path} at {address} (POST /retrieve; /docs, /health, /ready, /metrics)"),
    )
    out().print("Stopped, after answering every request that was received.")


def _serve_run(
    run: Path, settings: list[str], *, checkpoint: str, greedy: bool, trusted: bool, waiting: int, **where: Any
) -> None:
    with train_extra("loading the agent"):
        from holdfast.evaluate.endpoint import serve_agent
        from holdfast.evaluate.endpoint.line import Desk
        from holdfast.evaluate.model import open_agent, settings_of

        config, _ = settings_of(str(run), settings, [])
        allow(config, run, settings, trusted=trusted)
        agent = open_agent(str(run), config, run, greedy=greedy, checkpoint=checkpoint, server=None, given=settings)
    about, examples = answerable(run, config)
    desk = Desk(
        agent=agent,
        name=run.resolve().name,
        examples=examples,
        about=about,
        notes=lambda question: new_words(question, agent, config),
        waiting=waiting,
    )
    api = f"base URL of OpenAI clients: /v1; model: {desk.name}"
    serve_agent(desk, **where, on_ready=lambda address: _say(f"{run} at {address} (open it to ask; {api})"))
    out().print("Stopped.")


def _refuse_other(ctx: typer.Context, of_run: bool) -> None:
    """Raise `ConfigError` for options and settings that the folder has no use for."""
    names = _OF_INDEX if of_run else _OF_RUN
    given = [names[name] for name in names if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"]
    given += [] if of_run else [word for word in ctx.meta["settings"] if word.startswith("--")]
    if given:
        here, there = ("a run", "an index") if of_run else ("an index", "a run")
        raise ConfigError(f"{given[0]} is for serving {there}, and this is {here}; leave it out")


def _say(what: str) -> None:
    console = out()
    console.print(f"holdfast · {what}")
    console.file.flush()
