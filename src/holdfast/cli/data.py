"""`holdfast data`: list, prepare, check and convert question sets; write demonstrations."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from holdfast.base.errors import ConfigError
from holdfast.base.importing import place_of
from holdfast.base.jsonl import Skips
from holdfast.cli.command import SettingsCommand
from holdfast.cli.recipes import read_recipe
from holdfast.cli.terminal import HELP_OPTIONS, err, out
from holdfast.tasks.catalogue import FACTBOOK_SET, HUB, SAMPLE, SETS, TEST_SIZE, Form
from holdfast.tasks.demonstrate import demonstrate as ask
from holdfast.tasks.demonstrate_tools import demonstrate_by, demonstrations_in, script_named
from holdfast.tasks.demonstrations import write_demonstrations
from holdfast.tasks.files import check_files, file_type_of, iter_examples, size_lines, skipped_rows, write_examples
from holdfast.tasks.opening import load_protocol, open_retrievers, open_tasks
from holdfast.tasks.prepare import prepare as write
from holdfast.tasks.prepare import sample_questions

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", context_settings=HELP_OPTIONS)


@app.callback()
def data() -> None:
    """List, prepare, check and convert question sets; write demonstrations.

    [cyan]holdfast data prepare nq+hotpotqa --out data/train[/cyan]
    """


@app.command("list")
def list_sets() -> None:
    """Print the published question sets: sizes, licences, sources. Needs no network."""
    console = out()
    if not console.is_terminal:
        console.width = 120
    wide = console.width >= 110
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("set", "train", "test", "kind", "licence", *["home"] * wide):
        table.add_column(title, justify="right" if title in ("train", "test") else "left", no_wrap=True)

    def row(*cells: str) -> None:
        table.add_row(*(Text(cell, style="dim" * (i == 5)) for i, cell in enumerate(cells[: 5 + wide])))

    for qa in SETS.values():
        train = f"{qa.train_size:,}" if qa.train_size else "–"
        test = f"{qa.test_size:,}" + ("*" if qa.tested_on == "dev" else " ")
        kind = "multi-hop" if qa.multi_hop else "general"
        row(qa.name, train, test, kind, qa.licence, qa.home.removeprefix("https://"))
    mix = sum(SETS[name].sizes["train"] for name in ("nq", "hotpotqa"))
    row("nq+hotpotqa", f"{mix:,}", "– ", "a mix", "", "")
    row("seven", "–", f"{TEST_SIZE:,} ", "all tests", "", "")
    row("sample", "–", f"{len(sample_questions()):,} ", "ships", "Apache-2.0", "with passages, no download")
    row("factbook", "2,400 ", "400 ", "multi-hop", "public domain", "with passages, from a package")
    console.print(table, soft_wrap=False)
    for line in (
        "* The published dev set: its test answers are not public. Published results use it.",
        f"Files come from {HUB} on the hub, or from a folder of yours (--from).",
        "Licences as the authors of each set state them; read them before you pass questions on.",
        "holdfast data prepare NAME --out DIR writes training and test questions. Names joined with + make a mix.",
    ):
        console.print(line, style="dim")


@app.command("prepare")
def prepare(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="A set of `holdfast data list`, several joined with +, `seven` (the test questions of all seven), "
            "`sample`, or `factbook`.",
        ),
    ],
    folder: Annotated[Path, typer.Option("--out", metavar="DIR", help="Output folder.")],
    origin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FOLDER_OR_HUB_ID",
            help="Source of the published files: a folder with SET/SPLIT.jsonl, or a hub id. Default: the FlashRAG "
            "collection on the hub.",
        ),
    ] = None,
    form: Annotated[Form, typer.Option("--format", help="File format.")] = "jsonl",
) -> None:
    """Download published question sets, and write their training and test questions.

    The command compares the sizes with the published ones. Ids are unique across sets.

    [cyan]holdfast data prepare nq+hotpotqa --out data/train[/cyan]
        the training mix of the papers

    [cyan]holdfast data prepare seven --out data/test[/cyan]
        the 51,713 test questions

    [cyan]holdfast data prepare sample --out data/sample[/cyan]
        a few questions and passages that need no download

    [cyan]holdfast data prepare factbook --out data/factbook[/cyan]
        questions over the CIA World Factbook, and its passages
    """
    if what in (SAMPLE, FACTBOOK_SET) and origin is not None:
        raise ConfigError(f"--from {origin} with {what}: {what} needs no download; leave out --from")
    written = write(what, folder, origin=origin, form=form)
    for path, count in written.items():
        out().print(f"{path}: {count:,} {'passages' if path.name == 'corpus.jsonl' else 'questions'}")


@app.command("demonstrate", cls=SettingsCommand)
def demonstrate(
    ctx: typer.Context,
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A TOML file that names your questions and your passages.")
    ],
    file: Annotated[Path, typer.Option("--out", metavar="FILE", help="JSONL file to write.")],
    most: Annotated[
        int, typer.Option("--most", min=1, metavar="N", help="Stop after this many demonstrations.")
    ] = 2000,
    script: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="A generator function of yours that answers a question with the recipe's tools.",
        ),
    ] = None,
    rollouts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Take the correct rollouts of another model from this file instead."),
    ] = None,
    per_question: Annotated[
        int, typer.Option(min=1, metavar="N", help="With --rollouts: use at most this many rollouts per question.")
    ] = 1,
) -> None:
    """Write demonstrations of how to search your passages and call your tools.

    A model that does not search by itself learns it from these, in a warm start.
    A script asks the training questions of a recipe. It answers once a retrieved
    passage contains a golden answer, searching a second time if necessary. It
    leaves out the other questions, and says why.

    [cyan]holdfast data demonstrate my.toml --out demonstrations.jsonl[/cyan]

    With tools of your own, only you know when to call them. A script of yours
    yields calls and gets their results (docs/guide/own-tools.md). Rollouts that
    end with a golden answer are kept. You can also give rollouts of a larger
    model, as rows with messages in the format of OpenAI's API:

    [cyan]holdfast data demonstrate my.toml --script my_script:solve --out calls.jsonl[/cyan]

    [cyan]holdfast data demonstrate my.toml --rollouts large.jsonl --out calls.jsonl[/cyan]

    Then set warm_start.data to the file, and warm_start.steps.
    """
    if script and rollouts:
        raise ConfigError("--script and --rollouts cannot be combined; give one of them")
    config, _ = read_recipe(recipe, ctx.meta["settings"])
    tasks, protocol = open_tasks(config), load_protocol(config)
    train, seed = tasks.questions().train, config.warm_start.seed
    if rollouts is not None:
        with skipped_rows(str(rollouts), "--rollouts", lambda note: err().print(f"note: {note}")) as on_skip:
            made = demonstrations_in(rollouts, train, protocol, per_question=per_question, most=most, on_skip=on_skip)
    else:
        retriever = open_retrievers(config, tasks).train
        if script is None:
            made = ask(train, retriever, protocol, seed=seed, most=most)
        else:
            err().print(f"this command runs code: {place_of(script)} (--script)", soft_wrap=True)
            made = demonstrate_by(script_named(script), train, retriever, protocol, seed=seed, most=most)
    write_demonstrations(file, made.some())
    twice = sum(len(turns) > 2 for _, turns in made.rows)
    of = f"of {made.asked:,} questions, {twice:,} of them with a second search or call"
    out().print(f"{file}: {len(made.rows):,} demonstrations {of}", soft_wrap=True)
    for gap in made.gaps:
        out().print(gap, soft_wrap=True)


@app.command("validate")
def validate(paths: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Question files.")]) -> None:
    """Check question files of any format: fields, ids, sizes.

    Give all files of a data set at once, because ids must be unique across them.

    [cyan]holdfast data validate train.jsonl test.jsonl[/cyan]

    Exit codes: 0 all rows are valid, 1 some are not, 2 a file cannot be read.
    """
    reports = check_files(paths)
    console = out()
    for report in reports:
        console.print(f"{report.path}: {sum(report.counts.values()):,} questions", style="bold")
        for part, count, verdict in size_lines(report):
            console.print(f"  {part:<24} {count:>9,}  {verdict}".rstrip())
        for problem in report.problems:
            console.print(f"  {problem}", style="red")
        if report.bad > len(report.problems):
            console.print(f"  and {report.bad - len(report.problems):,} more", style="red")
        for note in report.notes:
            console.print(f"  note: {note}", style="dim")
    if any(report.bad for report in reports):
        raise typer.Exit(1)


@app.command("convert")
def convert(
    source_file: Annotated[Path, typer.Argument(metavar="IN", help="A .jsonl, .json, .parquet, .csv or .tsv file.")],
    target_file: Annotated[Path, typer.Argument(metavar="OUT", help="A .jsonl or .parquet file to write.")],
    form: Annotated[
        Form | None, typer.Option("--format", help="File format. Default: jsonl, or searchr1 for .parquet.")
    ] = None,
    source: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the question set, for rows without one.")
    ] = None,
    split: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the split, for rows without one.")] = None,
    reword: Annotated[
        bool, typer.Option("--reword", help="Rewrite existing prompts with holdfast's template.")
    ] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Skip rows that cannot be used, instead of stopping at the first.")
    ] = False,
) -> None:
    """Convert a question file to another format.

    Reads the seven sets as they are published, and says which fields it took
    the golden answers from.

    [cyan]holdfast data convert train.parquet train.jsonl[/cyan]
        parquet of Search-R1, verl or SkyRL, for [cyan]holdfast train[/cyan]

    [cyan]holdfast data convert mine.csv mine.parquet --format verl[/cyan]
        a spreadsheet with the columns question and answer, for verl
    """
    skips = Skips()
    target_form = form or ("jsonl" if file_type_of(target_file) == "jsonl" else "searchr1")
    if target_file.exists() and source_file.exists() and target_file.samefile(source_file):
        raise ConfigError(f"{target_file} would overwrite itself; name another file")
    taken: Counter[str] = Counter()

    def take(place: str) -> None:
        taken[place] += 1

    examples = iter_examples(source_file, source=source, split=split, on_bad=skips if skip_bad else None, on_taken=take)
    count = write_examples(target_file, examples, target_form, reword=reword)
    for sentence in skips.sentences():
        err().print(sentence)
    places = ", ".join(f"{place} of {rows:,}" if len(taken) > 1 else place for place, rows in taken.most_common())
    out().print(f"{target_file}: {count:,} questions, golden answers from {places}", soft_wrap=True)
