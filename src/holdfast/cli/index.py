"""`holdfast index`: from a corpus to an index, and what a search in it finds."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from holdfast.cli.terminal import duration, err, out, program
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
        Path | None,
        typer.Argument(
            metavar="CORPUS",
            help="JSONL (also .gz), a .tsv of DPR, or a folder of .md and .txt files.",
            show_default=False,
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="The index folder.", show_default=False)
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace-invalid", help="Replace what is not UTF-8 instead of skipping the row.")
    ] = False,
    stem: Annotated[bool, typer.Option(help="BM25: fold English inflections.")] = True,
    dense: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Dense instead: an encoder, folder or hub id.", show_default=False),
    ] = None,
    sq8: Annotated[bool, typer.Option("--sq8", help="Dense: a byte a dimension instead of two (faiss).")] = False,
    vectors: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Dense: vectors of the passages, already there (.npy, e5_Flat.index, .memmap).",
            show_default=False,
        ),
    ] = None,
    query_prefix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Dense: before queries, if not the model's.", show_default=False)
    ] = None,
    passage_prefix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Dense: before passages, likewise.", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(help="Dense: auto, cpu or cuda.")] = "auto",
    batch: Annotated[int, typer.Option(min=1, help="Dense: passages encoded at once.")] = 64,
    plan: Annotated[bool, typer.Option("--plan", help="Print disk, memory and time, and do nothing.")] = False,
    passages: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="--plan: of so many; without a corpus, wiki-18.", show_default=False),
    ] = None,
    dimensions: Annotated[
        int, typer.Option("--dimensions", min=1, help="--plan: of the vectors, if no model is named.")
    ] = 768,
) -> None:
    """Index a corpus. Interrupted, the same command goes on where it stopped."""
    if plan:
        _print_plan(corpus, passages, dense, dimensions, device)
        return
    if corpus is None:
        raise ConfigError("name a corpus: holdfast index CORPUS --out DIR")
    if folder is None:
        raise ConfigError("name the folder of the index: --out DIR")
    _refuse_misfits(stem=stem, dense=dense, sq8=sq8, vectors=vectors, prefixes=(query_prefix, passage_prefix))
    from holdfast.cli.console import open_console
    from holdfast.cli.extra import train_extra

    with train_extra(err(), "loading"):
        from holdfast.retrieval.bm25_building import build_bm25
        from holdfast.retrieval.dense_building import build_dense
        from holdfast.retrieval.encoder import spec_of

        spec = spec_of(dense, query_prefix=query_prefix, passage_prefix=passage_prefix) if dense else None
    with open_console(out(), folder) as listener:
        if spec is None:
            build_bm25(corpus, folder, stem=stem, replace=replace, listener=listener)
        else:
            build_dense(
                corpus,
                folder,
                spec,
                sq8=sq8,
                vectors=vectors,
                device=device,
                batch=batch,
                replace=replace,
                listener=listener,
            )
    out().print(f'Done. Try it: {program()} index show {quote(str(folder))} "a query"')


def _refuse_misfits(
    *, stem: bool, dense: str | None, sq8: bool, vectors: Path | None, prefixes: tuple[str | None, str | None]
) -> None:
    if dense is None and (sq8 or vectors is not None or any(prefix is not None for prefix in prefixes)):
        raise ConfigError("--sq8, --vectors and the prefixes are of a dense index: name its model with --dense MODEL")
    if dense is not None and not stem:
        raise ConfigError("--no-stem is of BM25; an encoder reads whole texts. Leave it out, or leave --dense out")


def _print_plan(corpus: Path | None, passages: int | None, dense: str | None, dimensions: int, device: str) -> None:
    from holdfast.cli.extra import train_extra

    with train_extra(err(), "measuring"):
        from holdfast.retrieval import plan

        sample, count = plan.sample_of(corpus, passages)
        size = plan.size_of(sample, count)
        rate = None
        if dense is not None:
            rate, dimensions = plan.encoding_rate(dense, sample, device)
        row = plan.row_seconds(dimensions, device)
        rows = [plan.bm25_needs(size, plan.bm25_rate(sample))]
        rows += [plan.dense_needs(size, dimensions, rate, row, sq8=sq8) for sq8 in (False, True)]

    lines: list[tuple[str, ...]] = [
        ("", "disk", "at most,", "memory,", "memory,", "time to", f"{plan.QUERIES}"),
        ("index", "", "building", "building", "searching", "build", "queries"),
    ]
    for needs in rows:
        sizes = (needs.disk, needs.building_disk, needs.building_memory, needs.memory)
        times = (needs.build_seconds, needs.batch_seconds)
        lines.append((needs.kind, *map(_bytes, sizes), *("–" if t is None else duration(t) for t in times)))
    console = out()
    console.print(f"{size.passages:,} passages of {size.text:.0f} bytes and {size.pairs:.0f} different words")
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for name, *cells in lines:
        numbers = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        console.print("  ".join([name.ljust(widths[0]), *numbers]), soft_wrap=True)
    console.print(
        "Memory: with less, it works from disk, slower. Times: measured here on a little and scaled"
        + (". To learn how long encoding takes, name the model: --dense MODEL." if dense is None else ".")
    )


def _bytes(count: float) -> str:
    """In units of 1024.

    >>> [_bytes(n) for n in (2_000, 5e6, 34e9)]
    ['0.0 GiB', '0.0 GiB', '31.7 GiB']
    """
    return f"{count / 2**30:.1f} GiB"


@app.command("show")
def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="An index folder.", show_default=False)],
    query: Annotated[str, typer.Argument(metavar="QUERY", show_default=False)],
    k: Annotated[int, typer.Option("--topk", min=1, help="Passages.")] = 3,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Dense: the encoder, if it has moved.", show_default=False),
    ] = None,
    protocol: Annotated[str, typer.Option(metavar="PRESET", help="`clean` or `search-r1`.")] = "clean",
) -> None:
    """Print what an agent would see for a query, as it would see it. The scores go to standard error."""
    from holdfast.cli.extra import train_extra

    with train_extra(err(), "loading"):
        from holdfast.retrieval.index import open_index
        from holdfast.search.protocol import PRESETS, format_hits

        if protocol not in PRESETS:
            raise ConfigError(f"--protocol {protocol}: there is no such preset; give {' or '.join(PRESETS)}")
        (hits,) = open_index(folder, model=model).search([query], k)
    own = PRESETS[protocol]
    passages = format_hits(hits, title_quotes=own.title_quotes) if hits else [own.nothing_found]
    out().print(f"{own.information_open}{''.join(passages).strip()}{own.information_close}")
    if hits:
        err().print("\n".join(f"{hit.score:9.4f}  {hit.document.id}" for hit in hits), style="dim")
