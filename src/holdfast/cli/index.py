"""`holdfast index`: from a corpus to an index, and what a search in it finds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from holdfast.cli.terminal import err, out, program
from holdfast.errors import ConfigError


class _BuildUnlessNamed(TyperGroup):
    """`holdfast index corpus.jsonl …` builds; `holdfast index show …` is a command of its own."""

    default = "build"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, "-h", "--help"}:
            args = [self.default, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_BuildUnlessNamed,
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Make passages searchable.

    [cyan]holdfast index corpus.jsonl --out my-index[/cyan]

    [cyan]holdfast index show my-index "a query"[/cyan]

    Without a command it builds; [cyan]holdfast index build --help[/cyan] lists the options.
    """,
)


@app.command("build")
def build(
    corpus: Annotated[
        Path,
        typer.Argument(
            metavar="CORPUS",
            help="JSONL (also .gz), a .tsv of DPR, or a folder of .md and .txt files.",
            show_default=False,
        ),
    ],
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="The index folder.", show_default=False)
    ] = None,
    stem: Annotated[bool, typer.Option(help="BM25: fold English inflections.")] = True,
    replace: Annotated[
        bool, typer.Option("--replace-invalid", help="Replace what is not UTF-8 instead of skipping the row.")
    ] = False,
) -> None:
    """Index a corpus. Interrupted, the same command goes on where it stopped."""
    if folder is None:
        raise ConfigError("name the folder of the index: --out DIR")
    from holdfast.cli.console import open_console
    from holdfast.cli.extra import train_extra

    with train_extra(err(), "loading"):
        from holdfast.retrieval.bm25_building import build_bm25
    with open_console(out(), folder) as watcher:
        build_bm25(corpus, folder, stem=stem, replace=replace, watcher=watcher)
    out().print(f'Done. Try it: {program()} index show {folder} "a query"')


@app.command("show")
def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="An index folder.", show_default=False)],
    query: Annotated[str, typer.Argument(metavar="QUERY", show_default=False)],
    k: Annotated[int, typer.Option("--topk", min=1, help="Passages.")] = 3,
    protocol: Annotated[str, typer.Option(metavar="PRESET", help="`clean` or `search-r1`.")] = "clean",
) -> None:
    """Print what an agent would see for a query, as it would see it. The scores go to standard error."""
    from holdfast.cli.extra import train_extra

    with train_extra(err(), "loading"):
        from holdfast.retrieval.index import open_index
        from holdfast.search.protocol import PRESETS, format_hits

        if protocol not in PRESETS:
            raise ConfigError(f"--protocol {protocol}: there is no such preset; give {' or '.join(PRESETS)}")
        (hits,) = open_index(folder).search([query], k)
    own = PRESETS[protocol]
    passages = format_hits(hits, title_quotes=own.title_quotes) if hits else [own.nothing_found]
    out().print(f"{own.information_open}{''.join(passages).strip()}{own.information_close}")
    if hits:
        err().print("\n".join(f"{hit.score:9.4f}  {hit.document.id}" for hit in hits), style="dim")
