"""`holdfast diagnose`: findings about anybody's log, like a linter's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from holdfast.cli.terminal import err, out, program
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.diagnostics.finding import Diagnosis, Finding
    from holdfast.diagnostics.log import Log

_WIDTH = 80
_TITLE = 8


def diagnose(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH…",
            help="A run folder, trainer_state.json or a checkpoint, verl's JSONL or console log, a W&B export.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object; a list of them for several runs.")] = False,
    select: Annotated[
        list[str] | None,
        typer.Option(metavar="CODES", help="Only these codes or beginnings of codes: LLD,ENT001. May be repeated."),
    ] = None,
    explain: Annotated[
        str | None, typer.Option(metavar="CODE", help="What a code means, and what to change.", show_default=False)
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Also write a page of plots, all runs on one.", show_default=False),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also what would log the series that are missing.")
    ] = False,
) -> None:
    """Tell from a log why a run is dying.

    Reads logs of holdfast, TRL and verl, and W&B exports of them. Prints what
    was found, when it began, what to change, and what the log cannot tell.

    Exit code 0: nothing found. 1: findings. 2: the path cannot be read.
    """
    if explain is not None:
        _explain(explain)
        return
    if not paths:
        raise ConfigError(f"what should be diagnosed? Give a path: {program()} diagnose runs/quickstart")
    from holdfast.diagnostics.codes import chosen

    codes = chosen(",".join(select or []), where="--select")
    if html is not None:
        _refuse_to_replace(html, paths)
    found = [(log, path) for path in paths for log in _read(path)]
    logs = [log for log, _ in found]
    diagnoses = [_diagnose(log, codes) for log in logs]
    if html is not None:
        _write_page(html, [(log, told, path) for (log, path), told in zip(found, diagnoses, strict=True)])
    if as_json:
        from holdfast.diagnostics import finding

        values = [finding.as_json(log, told) for log, told in zip(logs, diagnoses, strict=True)]
        typer.echo(finding.to_text(values[0] if len(values) == 1 else values), nl=False)
    else:
        console = out()
        for number, (log, told) in enumerate(zip(logs, diagnoses, strict=True)):
            if number:
                console.print()
            _show(console, log, told, verbose=verbose)
    if any(told.findings for told in diagnoses):
        raise typer.Exit(1)


def _refuse_to_replace(page: Path, paths: list[Path]) -> None:
    """Raise `ConfigError` where `--html` would destroy a file: often somebody takes it for a switch."""
    from holdfast.diagnostics.report import is_replaceable

    usage = "Name a page to write, before the paths to read: --html report.html PATH…"
    if any(path.resolve() == page.resolve() for path in paths):
        raise ConfigError(f"--html {page}: the page would take the place of what it is about. {usage}")
    if not is_replaceable(page):
        raise ConfigError(f"--html {page}: this exists and is not a report of holdfast, so it stays. {usage}")


def _read(path: Path) -> tuple[Log, ...]:
    from holdfast.diagnostics.readers import read_logs

    return read_logs(path)


def _diagnose(log: Log, codes: set[str]) -> Diagnosis:
    from dataclasses import replace

    from holdfast.diagnostics.diagnose import diagnose

    told = diagnose(log)
    return replace(
        told,
        findings=tuple(one for one in told.findings if one.code in codes),
        cannot_tell=tuple(one for one in told.cannot_tell if one.code in codes),
    )


def _write_page(page: Path, runs: list[tuple[Log, Diagnosis, Path]]) -> None:
    from holdfast.diagnostics.report import reported, write_report

    write_report(page, [reported(log, told, path) for log, told, path in runs])
    err().print(f"wrote {page}", soft_wrap=True)


# ---- on the screen


def _show(console: Console, log: Log, told: Diagnosis, *, verbose: bool) -> None:
    from holdfast.diagnostics.finding import headline

    console.print(Text.assemble((log.name, "bold"), f"  ({_kind(log)})"), soft_wrap=True)
    _paragraph(console, headline(log, told))
    for note in log.notes:
        _paragraph(console, f"note: {note}", style="dim")
    said: dict[str, str] = {}
    for finding in told.findings:
        console.print()
        _finding(console, finding, said)
    console.print()
    _close(console, log, told, verbose=verbose)


def _kind(log: Log) -> str:
    return f"{log.format} log" if log.format == log.host or log.host == "unknown" else f"{log.format} log of {log.host}"


def _finding(console: Console, finding: Finding, said: dict[str, str]) -> None:
    from holdfast.diagnostics.finding import lead_of
    from holdfast.diagnostics.rules import RULES

    head = Text.assemble((finding.code, "bold red"), f"  step {finding.step}  ", (RULES[finding.code].title, "bold"))
    console.print(head, soft_wrap=True)
    _paragraph(console, finding.summary, indent=2)
    evidence = ", ".join(f"{name} {value:.3g}" for name, value in finding.evidence.items())
    _entry(console, "evidence", evidence)
    if lead := lead_of(finding.lead):
        _entry(console, "lead", lead)
    before = said.get(finding.remedy)
    _entry(console, "change", f"as for {before}" if before else finding.remedy)
    said.setdefault(finding.remedy, finding.code)


def _close(console: Console, log: Log, told: Diagnosis, *, verbose: bool) -> None:
    from holdfast.diagnostics.finding import too_short

    found = len(told.findings)
    nothing = "Too few rows to judge." if too_short(told) else "No findings."
    count = nothing if not found else f"{found} finding{'s' if found > 1 else ''}."
    if told.findings:
        count += f" More about one: {program()} diagnose --explain {told.findings[0].code}"
    if told.cannot_tell and verbose:
        console.print("Cannot tell from this log:")
        for one in told.cannot_tell:
            _entry(console, one.code, f"it has no {', '.join(one.missing)}. {one.remedy}")
        console.print()
    elif told.cannot_tell:
        codes = ", ".join(one.code for one in told.cannot_tell)
        _paragraph(console, f"Cannot tell from this log: {codes}. What would log the missing series: --verbose")
    console.print(Text(count, "bold" if found or too_short(told) else "bold green"), soft_wrap=True)


def _entry(console: Console, title: str, text: str) -> None:
    """A titled paragraph, its lines under each other."""
    first = Text.assemble("  ", (title.ljust(_TITLE), "dim"), "  ")
    _lines(console, _coded(text), first=first, rest=Text(" " * len(first)))


def _paragraph(console: Console, text: str, *, indent: int = 0, style: str = "") -> None:
    margin = Text(" " * indent)
    _lines(console, Text(text, style), first=margin, rest=margin)


def _lines(console: Console, text: Text, *, first: Text, rest: Text) -> None:
    """Wrapped at 80 columns or fewer, without the blanks at line ends that a table would leave in a pipe."""
    width = max(min(console.width, _WIDTH) - len(first), 20)
    for number, line in enumerate(text.wrap(console, width)):
        line.rstrip()
        console.print((rest if number else first) + line, soft_wrap=True)


def _coded(text: str) -> Text:
    """Text whose parts in backticks are settings: coloured, the backticks gone."""
    result = Text()
    for number, part in enumerate(text.split("`")):
        result.append(part, "cyan" if number % 2 else "")
    return result


def _explain(code: str) -> None:
    from holdfast.diagnostics.codes import chosen
    from holdfast.diagnostics.rules import RULES

    (found, *more) = sorted(chosen(code, where="--explain"))
    if more:
        raise ConfigError(f"--explain {code}: several codes begin so: {', '.join([found, *more])}; give one")
    rule = RULES[found]
    console = out()
    console.print(Text.assemble((found, "bold"), f"  {rule.title}"))
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
