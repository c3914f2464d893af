"""`holdfast index`: build an index from a corpus, and show what a search in it returns."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from holdfast.agent.observations import format_hits
from holdfast.agent.tools import PRESETS
from holdfast.base.errors import ConfigError
from holdfast.base.jsonl import Skipped
from holdfast.cli.console import open_console
from holdfast.cli.terminal import HELP_OPTIONS, err, out, program, train_extra, waiting
from holdfast.retrieval import open_index
from holdfast.retrieval.bm25_building import build_bm25
from holdfast.retrieval.corpus import Reading, fields_of, passages
from holdfast.retrieval.survey import Survey

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", context_settings=HELP_OPTIONS)

_SKIPPED_SHOWN, _TEXT_SHOWN = 20, 100
"""Skipped rows or files, and characters of a passage."""

Dense = Annotated[
    str | None,
    typer.Option(metavar="MODEL", help="Dense index with this encoder: a folder or a hub id. Default: BM25."),
]
Field = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=FIELD", help="Field of CORPUS that holds id, title or text, such as text=body. Repeatable."
    ),
]
Device = Annotated[str, typer.Option(metavar="DEVICE", help="Device of the encoder: auto, cpu or cuda.")]


@app.callback()
def index() -> None:
    """Check a corpus, build a search index of it, or search it.

    [cyan]holdfast index check docs[/cyan]

    [cyan]holdfast index build corpus.jsonl --out my-index[/cyan]

    [cyan]holdfast index show my-index "a query"[/cyan]
    """


@app.command("build")
def build(
    corpus: Annotated[
        Path,
        typer.Argument(
            metavar="CORPUS",
            help="A file of passages: JSON lines, a JSON array, parquet, .csv or .tsv. Or a folder of .md, .txt, .rst, "
            ".html and .pdf files.",
        ),
    ],
    folder: Annotated[Path, typer.Option("--out", metavar="DIR", help="The index folder.")],
    replace: Annotated[
        bool, typer.Option("--replace-invalid", help="Replace bytes that are not UTF-8, instead of skipping the row.")
    ] = False,
    field: Field = None,
    stem: Annotated[bool, typer.Option(help="BM25: index word stems, so that `towns` finds `town`.")] = True,
    dense: Dense = None,
    sq8: Annotated[
        bool, typer.Option("--sq8", help="Dense: store one byte per dimension instead of two. Needs faiss.")
    ] = False,
    vectors: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Dense: file of precomputed passage vectors (.npy, e5_Flat.index, .memmap)."),
    ] = None,
    query_prefix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Dense: prefix of each query. Default: the encoder's own.")
    ] = None,
    passage_prefix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Dense: prefix of each passage. Default: the encoder's own.")
    ] = None,
    device: Device = "auto",
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Dense: passages per encoder batch.")] = 64,
) -> None:
    """Build an index of a corpus.

    Reads the passages and writes the index folder, which recipes name as
    retrieval.index and [cyan]holdfast serve[/cyan] serves. With --dense, the same command
    continues after a stop.

    [cyan]holdfast index build corpus.jsonl --out my-index[/cyan]

    [cyan]holdfast index build corpus.jsonl --out e5 --dense intfloat/e5-base-v2[/cyan]
    """
    if dense is None and (sq8 or vectors is not None or query_prefix is not None or passage_prefix is not None):
        raise ConfigError("--sq8, --vectors and the prefixes need a dense index: name its encoder with --dense MODEL")
    if dense is not None and not stem:
        raise ConfigError("--no-stem is for BM25; an encoder reads whole texts. Leave out --no-stem or --dense")
    if dense is None:
        write_index = partial(build_bm25, corpus, folder, stem=stem)
    else:
        with train_extra("loading"):
            from holdfast.retrieval.dense_building import build_dense
            from holdfast.retrieval.encoder import spec_of

            spec = spec_of(dense, query_prefix=query_prefix, passage_prefix=passage_prefix)
            write_index = partial(
                build_dense, corpus, folder, spec, sq8=sq8, vectors=vectors, device=device, batch=batch
            )
    with open_console(out(), folder) as listener:
        reading = write_index(replace=replace, fields=fields_of(field or ()), progress=listener)
    for sentence in reading.sentences():
        out().print(sentence, soft_wrap=True)
    out().print(f'Done. Try it: {program()} index show {quote(str(folder))} "a query"')


@app.command("check")
def check(
    corpus: Annotated[Path, typer.Argument(metavar="CORPUS", help="What `index build` takes: a folder, or a file.")],
    observation: Annotated[
        int, typer.Option(min=16, metavar="TOKENS", help="Tokens of an observation: protocol.max_observation_tokens.")
    ] = 500,
    k: Annotated[int, typer.Option("--topk", min=1, metavar="N", help="Passages in it: protocol.topk.")] = 3,
    field: Field = None,
) -> None:
    """Read a corpus as `index build` does, and show what an agent could not read.

    Prints the files that were read or skipped, and the lengths of passages compared
    with an observation. Then prints the ten worst passages: garbled, empty,
    repeated, or longer than an observation can show. Lengths are estimates that suit any
    model; the dry run of a recipe counts with its tokenizer.

    [cyan]holdfast index check docs[/cyan]
    """
    console, reading, survey = out(), Reading(corpus), Survey(observation // k)
    skipped: list[Skipped] = []

    def on_skip(skip: Skipped) -> None:
        reading.skips(skip)
        if len(skipped) < _SKIPPED_SHOWN:
            skipped.append(skip)

    try:
        with waiting(f"Reading {corpus}"):
            for _ in survey.watched(reading.counted(passages(corpus, on_skip=on_skip, fields=fields_of(field or ())))):
                pass
    finally:  # also before the refusal of a corpus that is mostly bad
        head, *_ = reading.sentences()
        of = [f"{count:,} of {kind}" for kind, count in survey.kinds.most_common()] if corpus.is_dir() else []
        console.print(head + f" ({', '.join(of)})" * bool(of), soft_wrap=True)
        for skip in skipped:
            console.print(f"  skipped: {skip}", soft_wrap=True)
        if (more := reading.skips.total - len(skipped)) > 0:
            console.print(f"  and {more:,} more", soft_wrap=True)
    console.print(
        f"Passage length in tokens, about: median {survey.fits(0.5)}, 95th percentile {survey.fits()}, longest "
        f"{survey.fits(1)}. An observation of {observation} tokens shows {survey.room} tokens of each of {k} passages.",
        soft_wrap=True,
    )
    if not survey.worst:
        console.print("No passage is garbled, empty, repeated or too long.")
        return
    counts = ", ".join(f"{count:,} {kind}" for kind, count in survey.flawed.most_common())
    console.print(f"{sum(survey.flawed.values()):,} of {reading.passages:,} passages: {counts}. The worst:")
    for flaw in survey.flaws():
        console.print(f"  {flaw.document.id}  {flaw.why}", soft_wrap=True)
        console.print(f"    {' '.join(flaw.document.contents.split())[:_TEXT_SHOWN]}", style="dim", soft_wrap=True)


@app.command("show")
def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="An index folder.")],
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What to search for.")],
    k: Annotated[int, typer.Option("--topk", min=1, metavar="N", help="Passages to return.")] = 3,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Dense: new path of the encoder, if it was moved.")
    ] = None,
    protocol: Annotated[
        str, typer.Option(metavar="PRESET", help="How passages are printed: `clean`, `search-r1` or `sapo`.")
    ] = "clean",
) -> None:
    """Print what an agent would read for a query.

    Ids and scores of the passages go to standard error.

    [cyan]holdfast index show my-index "Which river flows through Orsa?"[/cyan]
    """
    with train_extra("loading"):
        if protocol not in PRESETS:
            raise ConfigError(f"--protocol {protocol}: there is no such preset; give {' or '.join(PRESETS)}")
        (hits,) = open_index(folder, model=model).search([query], k)
    preset = PRESETS[protocol]
    passages = format_hits(hits, title_quotes=preset.title_quotes) if hits else [preset.nothing_found]
    opened, closed = preset.information_tags
    out().print(f"{opened}{''.join(passages).strip()}{closed}")
    if hits:
        err().print("\n".join(f"{hit.score:9.4f}  {hit.document.id}" for hit in hits), style="dim")
