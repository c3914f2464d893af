"""`holdfast diagnose` and `report`: the findings in a log, as text, as JSON, or as a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from holdfast.cli.terminal import out, program
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.diagnostics.finding import Diagnosis, Finding
    from holdfast.diagnostics.log import Log

_WIDTH = 80
_TITLE = 8


PathsArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="PATH…",
        help="A run folder, trainer_state.json or a checkpoint of TRL, verl's JSONL or console log, a W&B export.",
    ),
]


def diagnose(
    paths: PathsArgument = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: an object, or a list for several runs.")] = False,
    select: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CODES", help="Report only these codes: codes or their beginnings, with commas: LLD,ENT001."
        ),
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option(metavar="CODE", help="Explain a code, such as LLD003; `all` lists them. Needs no PATH."),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also print how to log the series that are missing.")
    ] = False,
) -> None:
    """Find out from its log why a run is failing, and what to change.

    Reads the logs of holdfast, TRL and verl, and W&B exports. Prints each finding
    with its code, the first step at which it is visible, the evidence, and the
    settings to change. Also lists the codes that could not be checked because the
    log lacks series. Writes nothing.

    [cyan]holdfast diagnose output/checkpoint-500[/cyan]

    [cyan]holdfast diagnose runs/quickstart --json[/cyan]

    Exit codes: 0 no findings, 1 findings, 2 the path cannot be read.
    """
    if explain is not None:
        _explain(explain)
        return
    from holdfast.diagnostics.codes import chosen

    codes = chosen(",".join(select or []), where="--select")
    logs = [log for log, _ in _read(paths, "diagnose")]
    diagnoses = [_diagnose(log, codes) for log in logs]
    if as_json:
        from holdfast.diagnostics import finding

        values = [finding.as_json(log, diagnosis) for log, diagnosis in zip(logs, diagnoses, strict=True)]
        typer.echo(finding.to_text(values[0] if len(values) == 1 else values), nl=False)
    else:
        console = out()
        for number, (log, diagnosis) in enumerate(zip(logs, diagnoses, strict=True)):
            if number:
                console.print()
            _show(console, log, diagnosis, verbose=verbose)
    if any(diagnosis.findings for diagnosis in diagnoses):
        raise typer.Exit(1)


def report(
    paths: PathsArgument = None,
    page: Annotated[Path, typer.Option("--out", metavar="FILE", help="The page to write.")] = Path("report.html"),
) -> None:
    """Write a web page with curves, findings and sampled rollouts of runs.

    Reads the same logs as [cyan]holdfast diagnose[/cyan]. The page is one file that needs no
    network. Several runs are drawn over each other. A page that holdfast wrote is
    replaced; any other file is not.

    [cyan]holdfast report runs/a runs/b --out both.html[/cyan]
    """
    from holdfast.diagnostics.diagnose import diagnose
    from holdfast.diagnostics.report import is_replaceable, reported, write_report

    if any(path.resolve() == page.resolve() for path in paths or ()):
        raise ConfigError(f"--out {page}: the page would replace the log that it reports on; give another name")
    if not is_replaceable(page):
        raise ConfigError(f"--out {page}: this file exists and is not a holdfast report; give another name")
    runs = _read(paths, "report")
    write_report(page, [reported(log, diagnose(log), path) for log, path in runs])
    out().print(f"Wrote {page}", soft_wrap=True)


def _read(paths: list[Path] | None, command: str) -> list[tuple[Log, Path]]:
    """Each log with the path it came from."""
    from holdfast.diagnostics.readers import read_logs

    if not paths:
        raise ConfigError("no path is given", hint=f"{program()} {command} runs/quickstart")
    return [(log, path) for path in paths for log in read_logs(path)]


def _diagnose(log: Log, codes: set[str]) -> Diagnosis:
    from dataclasses import replace

    from holdfast.diagnostics.diagnose import diagnose

    diagnosis = diagnose(log)
    return replace(
        diagnosis,
        findings=tuple(finding for finding in diagnosis.findings if finding.code in codes),
        notes=tuple(note for note in diagnosis.notes if note.code in codes),
        cannot_tell=tuple(open_ for open_ in diagnosis.cannot_tell if open_.code in codes),
    )


# ---- on the screen


def _show(console: Console, log: Log, diagnosis: Diagnosis, *, verbose: bool) -> None:
    from holdfast.diagnostics.finding import headline

    console.print(Text.assemble((log.name, "bold"), f"  ({_kind(log)})"), soft_wrap=True)
    _paragraph(console, headline(log, diagnosis))
    for note in log.notes:
        _paragraph(console, f"note: {note}", style="dim")
    printed: dict[str, str] = {}
    for finding in diagnosis.findings:
        console.print()
        _finding(console, finding, printed)
    for remark in diagnosis.notes:
        console.print()
        _note(console, remark)
    console.print()
    _close(console, diagnosis, verbose=verbose)


def _kind(log: Log) -> str:
    return f"{log.format} log" if log.format == log.host or log.host == "unknown" else f"{log.format} log of {log.host}"


def _finding(console: Console, finding: Finding, printed: dict[str, str]) -> None:
    """`printed`: each remedy -> the code under which it was printed already."""
    from holdfast.diagnostics.finding import lead_of
    from holdfast.diagnostics.rules import RULES

    head = Text.assemble((finding.code, "bold red"), f"  step {finding.step}  ", (RULES[finding.code].title, "bold"))
    console.print(head, soft_wrap=True)
    _paragraph(console, finding.summary, indent=2)
    evidence = ", ".join(f"{name} {value:.3g}" for name, value in finding.evidence.items())
    _entry(console, "evidence", evidence)
    if lead := lead_of(finding.lead):
        _entry(console, "lead", lead)
    before = printed.get(finding.remedy)
    _entry(console, "change", f"as for {before}" if before else finding.remedy)
    printed.setdefault(finding.remedy, finding.code)


def _note(console: Console, note: Finding) -> None:
    _paragraph(console, f"{note.code}  step {note.step}  note: {note.summary} {note.remedy}".rstrip(), style="dim")


def _close(console: Console, diagnosis: Diagnosis, *, verbose: bool) -> None:
    from holdfast.diagnostics.finding import too_short

    if diagnosis.cannot_tell and verbose:
        console.print("Could not be checked, because the log lacks series:")
        for open_ in diagnosis.cannot_tell:
            _entry(console, open_.code, f"needs {', '.join(open_.missing)}. {open_.remedy}")
        console.print()
    elif diagnosis.cannot_tell:
        codes = ", ".join(open_.code for open_ in diagnosis.cannot_tell)
        _paragraph(console, f"Could not be checked, because the log lacks series: {codes}. How to log them: --verbose")
    count = len(diagnosis.findings)
    if count:
        more = f"{program()} diagnose --explain {diagnosis.findings[0].code}"
        text = f"{count} finding{'s' if count > 1 else ''}. To read more: {more}"
    else:
        text = "Too few rows to judge." if too_short(diagnosis) else "No findings."
    console.print(Text(text, "bold" if count or too_short(diagnosis) else "bold green"), soft_wrap=True)


def _entry(console: Console, title: str, text: str) -> None:
    """A titled paragraph, its lines aligned behind the title."""
    first = Text.assemble("  ", (title.ljust(_TITLE), "dim"), "  ")
    _lines(console, _coded(text), first=first, rest=Text(" " * len(first)))


def _paragraph(console: Console, text: str, *, indent: int = 0, style: str = "") -> None:
    margin = Text(" " * indent)
    _lines(console, Text(text, style), first=margin, rest=margin)


def _lines(console: Console, text: Text, *, first: Text, rest: Text) -> None:
    """Wrapped at 80 columns or fewer, without trailing blanks."""
    width = max(min(console.width, _WIDTH) - len(first), 20)
    for number, line in enumerate(text.wrap(console, width)):
        line.rstrip()
        console.print((rest if number else first) + line, soft_wrap=True)


def _coded(text: str) -> Text:
    """Text with its parts in backticks coloured, and the backticks removed."""
    result = Text()
    for number, part in enumerate(text.split("`")):
        result.append(part, "cyan" if number % 2 else "")
    return result


def _explain(code: str) -> None:
    from holdfast.diagnostics.codes import chosen
    from holdfast.diagnostics.rules import RULES

    if code.lower() == "all":
        for name, rule in sorted(RULES.items()):
            typer.echo(f"{name}  {rule.title}")
        return
    (first, *more) = sorted(chosen(code, where="--explain"))
    if more:
        raise ConfigError(f"--explain {code}: several codes begin with it: {', '.join([first, *more])}; give one")
    rule = RULES[first]
    console = out()
    console.print(Text.assemble((first, "bold"), f"  {rule.title}"))
    for part in (rule.meaning, rule.impact):
        console.print()
        _paragraph(console, part)
    console.print()
    console.print("What to change", style="bold")
    for host, change in rule.remedy.items():
        if host != "unknown":
            _entry(console, host, change)
    console.print()
    console.print("Series it needs", style="bold")
    for names in rule.needs:
        _paragraph(console, " + ".join(names), indent=2)
    console.print()
    console.print("Known problems", style="bold")
    _paragraph(console, rule.limitations, indent=2)
