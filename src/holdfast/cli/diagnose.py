"""`holdfast diagnose` and `report`: the findings in a log, as text, Markdown or JSON, or as a page."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.text import Text

from holdfast.base.errors import ConfigError
from holdfast.cli.findings import entry, paragraph, show, show_differences
from holdfast.cli.sources import LogsArgument, NameOption, check_page, given_names, read_sources
from holdfast.cli.terminal import echo, err, out
from holdfast.diagnose.codes import chosen
from holdfast.diagnose.compare import compare
from holdfast.diagnose.diagnose import diagnose as diagnosis_of
from holdfast.diagnose.finding import Diagnosis, as_json, to_text
from holdfast.diagnose.log import Log
from holdfast.diagnose.markdown import as_markdown, comparison_as_markdown
from holdfast.diagnose.readers.rollouts.files import Rollouts, rollouts_beside
from holdfast.diagnose.rules import RULES
from holdfast.diagnose.texts import text_findings

Form = Literal["text", "markdown", "json"]
FailOn = Literal["finding", "note", "never"]


def diagnose(
    sources: LogsArgument = None,
    form: Annotated[
        Form | None,
        typer.Option(
            "--format",
            help="What to print: text, Markdown for a CI summary or an issue, or JSON. Default: text.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Short for --format json: one object, or a list of them for several runs.")
    ] = False,
    fail_on: Annotated[
        FailOn,
        typer.Option(
            "--fail-on",
            help="When the exit code is 1: on a finding, or a verdict of flat, fell or broken; also on a note; or "
            "never.",
        ),
    ] = "finding",
    diff: Annotated[
        bool, typer.Option("--diff", help="Compare two runs: which settings differ, and which metrics differ first.")
    ] = False,
    page: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write a web page with curves and findings.")
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CODES", help="Report only these codes. LLD,ENT001 means ENT001 and all codes that begin with LLD."
        ),
    ] = None,
    name: NameOption = None,
    explain: Annotated[
        str | None,
        typer.Option(metavar="CODE", help="Explain a code, such as LLD003, without a LOG; `all` lists the codes."),
    ] = None,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Print all findings and notes in full, and how to log what is missing."),
    ] = False,
) -> None:
    """Find out from a log why a run is failing and what to change.

    Reads logs of holdfast, TRL, verl and other trainers, and exports of W&B,
    TensorBoard and other trackers. The format is recognised by content. Without
    LOG, reads standard input. Writes nothing, unless --html names a page.

    [cyan]holdfast diagnose train.log[/cyan]                  the output of a trainer

    [cyan]python train.py 2>&1 | holdfast diagnose[/cyan]     the same, through a pipe

    [cyan]holdfast diagnose -[/cyan]                          paste rows, then press Ctrl-D

    [cyan]holdfast diagnose output/checkpoint-500[/cyan]      TRL: a checkpoint, or its folder

    [cyan]holdfast diagnose runs/quickstart[/cyan]            a run of holdfast train

    [cyan]holdfast diagnose history.csv[/cyan]                an export of W&B

    [cyan]holdfast diagnose train.log --format markdown >> "$GITHUB_STEP_SUMMARY"[/cyan]

    [cyan]holdfast diagnose --diff runs/a runs/b[/cyan]       what differs first

    Begins with a verdict: learns, flat, fell, broken, or cannot tell. If the run
    does not learn, the verdict gives the reasons, the likeliest one first.

    Then prints the findings: the code, the first step at which the problem shows,
    the evidence, and the settings to change. Act on the first finding, which is
    printed in full. Later findings, often its consequences, are only named;
    --verbose prints them too. A note is worth knowing but needs no action.

    Exit codes: 0 the run learns or it is too early to tell, without findings;
    1 the run is flat, fell or is broken, or there are findings; 2 the log cannot
    be read. --fail-on note counts notes too; --fail-on never is for a CI job that
    only reports.
    """
    if explain is not None:
        _explain(explain)
        return
    codes = chosen(",".join(select or []), where="--select")
    form = _form(form, as_json=as_json)
    if page is not None:
        check_page(page, sources, "--html")
    runs = _runs(sources, "diagnose", name, codes)
    printed = _print_differences if diff else _print
    printed([(log, diagnosis) for log, diagnosis, *_ in runs], form, verbose=verbose)
    if page is not None:
        _write_page(page, runs)
        (out() if form == "text" else err()).print(f"Wrote {page}", soft_wrap=True)
    if fail_on != "never" and any(not one.is_ok or (one.notes and fail_on == "note") for _, one, *_ in runs):
        raise typer.Exit(1)


def _form(form: Form | None, *, as_json: bool) -> Form:
    """What --format and --json ask for together."""
    if as_json and form not in (None, "json"):
        raise ConfigError(f"--json and --format {form} contradict each other; give one of them")
    return "json" if as_json else form or "text"


def _print(runs: list[tuple[Log, Diagnosis]], form: Form, *, verbose: bool) -> None:
    if form == "json":
        values = [as_json(log, diagnosis) for log, diagnosis in runs]
        echo(to_text(values[0] if len(values) == 1 else values))
    elif form == "markdown":
        echo("\n".join(as_markdown(log, diagnosis) for log, diagnosis in runs))
    else:
        console = out()
        for number, (log, diagnosis) in enumerate(runs):
            if number:
                console.print()
            show(console, log, diagnosis, verbose=verbose)


def _print_differences(runs: list[tuple[Log, Diagnosis]], form: Form, *, verbose: bool) -> None:
    """What differs between two runs. Raises `ConfigError` for another number of runs."""
    if len(runs) != 2:
        count = "one" if len(runs) == 1 else len(runs)
        raise ConfigError(
            f"--diff compares two runs, but the logs have {count}; name two, such as --diff runs/a runs/b"
        )
    comparison = compare(runs[0][0], runs[1][0])
    if form == "json":
        both = {"runs": [as_json(log, diagnosis) for log, diagnosis in runs]}
        echo(to_text(asdict(comparison) | both))
    elif form == "markdown":
        echo(comparison_as_markdown(runs, comparison))
    else:
        show_differences(out(), runs, comparison, verbose=verbose)


def report(
    sources: LogsArgument = None,
    page: Annotated[Path, typer.Option("--out", metavar="FILE", help="The page to write.")] = Path("report.html"),
    name: NameOption = None,
) -> None:
    """Write a web page with curves, findings and sampled rollouts.

    Reads the same logs as [cyan]holdfast diagnose[/cyan]. The page is one file
    and works without a network. Curves of several runs share one chart. An older
    report of that name is replaced, but no other file.

    [cyan]holdfast report train.log[/cyan]

    [cyan]holdfast report runs/a runs/b --out both.html[/cyan]
    """
    check_page(page, sources, "--out")
    _write_page(page, _runs(sources, "report", name, chosen("", where="")))
    out().print(f"Wrote {page}", soft_wrap=True)


Run = tuple["Log", "Diagnosis", Path | None, "Rollouts"]


def _runs(sources: list[str] | None, command: str, names: list[str] | None, codes: set[str]) -> list[Run]:
    """Each log with its diagnosis, where it is, and the rollouts beside it."""
    runs: list[Run] = []
    beside = rollouts_beside(given_names(names))
    for log, path in read_sources(sources, command, names):
        read = Rollouts() if path is None else beside(path, log.name)
        log = replace(log, notes=tuple(dict.fromkeys((*log.notes, *read.notes))))
        runs.append((log, replace(_diagnose(log, codes), texts=text_findings(read.rollouts)), path, read))
    return runs


def _write_page(page: Path, runs: list[Run]) -> None:
    from holdfast.diagnose.report import reported, write_report  # most diagnoses write no page

    write_report(page, [reported(*run) for run in runs])


def _diagnose(log: Log, codes: set[str]) -> Diagnosis:
    diagnosis = diagnosis_of(log)
    return replace(
        diagnosis,
        findings=tuple(finding for finding in diagnosis.findings if finding.code in codes),
        notes=tuple(note for note in diagnosis.notes if note.code in codes),
        cannot_tell=tuple(undecided for undecided in diagnosis.cannot_tell if undecided.code in codes),
    )


def _explain(code: str) -> None:
    if code.lower() == "all":
        for name, rule in sorted(RULES.items()):
            typer.echo(f"{name}  {rule.title}")
        return
    (first, *more) = sorted(chosen(code, where="--explain"))
    if more:
        raise ConfigError(f"--explain {code}: this matches several codes: {', '.join([first, *more])}; name one")
    rule = RULES[first]
    console = out()
    console.print(Text.assemble((first, "bold"), f"  {rule.title}"))
    for part in (rule.meaning, rule.impact):
        console.print()
        paragraph(console, part)
    console.print()
    console.print("What to change", style="bold")
    for host, change in rule.remedy.items():
        if host != "unknown":
            entry(console, host, change)
    console.print()
    console.print("Metrics it needs", style="bold")
    for names in rule.needs:
        paragraph(console, " + ".join(names), indent=2)
    console.print()
    console.print("Limitations", style="bold")
    paragraph(console, rule.limitations, indent=2)
