"""A diagnosis on the screen: findings, notes, and what could not be checked, in paragraphs of 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from holdfast.cli.terminal import program

if TYPE_CHECKING:
    from holdfast.diagnose.finding import Diagnosis, Finding
    from holdfast.diagnose.log import Log

_WIDTH = 80
_TITLE = 8
_MOST_READING_NOTES = 2
"""Notes on reading that are shown without --verbose."""


def show(console: Console, log: Log, diagnosis: Diagnosis, *, verbose: bool) -> None:
    """Print a diagnosis: the course of the reward, findings, notes, and what could not be checked."""
    from holdfast.diagnose.finding import headline

    console.print(Text.assemble((log.name, "bold"), f"  ({_kind(log)})"), soft_wrap=True)
    paragraph(console, headline(log, diagnosis))
    _reading_notes(console, log, verbose=verbose)
    printed: dict[str, str] = {}
    for finding in diagnosis.findings:
        console.print()
        _finding(console, finding, printed)
    if diagnosis.notes:
        console.print()
    for note in diagnosis.notes:
        _note(console, note)
    _cannot_tell(console, diagnosis, verbose=verbose)
    _count(console, diagnosis)


def _kind(log: Log) -> str:
    return f"{log.format} log" if log.format == log.host or log.host == "unknown" else f"{log.format} log of {log.host}"


def _reading_notes(console: Console, log: Log, *, verbose: bool) -> None:
    shown = log.notes if verbose else log.notes[:_MOST_READING_NOTES]
    for note in shown:
        paragraph(console, f"note: {note}", style="dim")
    if (left := len(log.notes) - len(shown)) > 0:
        paragraph(console, f"{left} more note{'s' * (left > 1)} on reading this log: --verbose", style="dim")


def _finding(console: Console, finding: Finding, printed: dict[str, str]) -> None:
    """`printed`: each remedy -> the code under which it was printed already."""
    from holdfast.diagnose.finding import lead_of
    from holdfast.diagnose.rules import RULES

    head = Text.assemble((finding.code, "bold red"), f"  step {finding.step}  ", (RULES[finding.code].title, "bold"))
    console.print(head, soft_wrap=True)
    paragraph(console, finding.summary, indent=2)
    evidence = ", ".join(f"{name} {value:.3g}" for name, value in finding.evidence.items())
    entry(console, "evidence", evidence)
    if lead := lead_of(finding.lead):
        entry(console, "when", lead)
    before = printed.get(finding.remedy)
    entry(console, "change", f"as for {before}, above" if before else finding.remedy)
    printed.setdefault(finding.remedy, finding.code)


def _note(console: Console, note: Finding) -> None:
    entry(console, "note", f"{note.code} at step {note.step}: {note.summary} {note.remedy}".rstrip())


def _cannot_tell(console: Console, diagnosis: Diagnosis, *, verbose: bool) -> None:
    """What could not be checked. With few rows that is nearly everything, so it is shown only with --verbose."""
    from holdfast.diagnose.finding import too_short

    if not diagnosis.cannot_tell or (too_short(diagnosis) and not verbose):
        return
    console.print()
    if verbose:
        if diagnosis.what_to_log:
            paragraph(console, diagnosis.what_to_log)
        console.print("Could not be checked, because the log lacks series:")
        printed: dict[str, str] = {}
        for undecided in diagnosis.cannot_tell:
            needs = f"needs {', '.join(undecided.missing)}. {undecided.remedy}"
            entry(console, undecided.code, f"as for {printed[needs]}, above" if needs in printed else needs)
            printed.setdefault(needs, undecided.code)
    else:
        codes = ", ".join(undecided.code for undecided in diagnosis.cannot_tell)
        lacking = f"Could not be checked, because the log lacks series: {codes}. How to log them: --verbose"
        paragraph(console, f"{diagnosis.what_to_log} {lacking}".lstrip())


def _count(console: Console, diagnosis: Diagnosis) -> None:
    """The last line. If a log has too few rows, the headline already says so."""
    from holdfast.diagnose.finding import too_short

    if count := len(diagnosis.findings):
        more = f"{program()} diagnose --explain {diagnosis.findings[0].code}"
        console.print()
        console.print(Text(f"{count} finding{'s' * (count > 1)}. To read more: {more}", "bold"), soft_wrap=True)
    elif not too_short(diagnosis):
        console.print()
        console.print(Text("No findings.", "bold green"), soft_wrap=True)


def entry(console: Console, title: str, text: str) -> None:
    """Print a titled paragraph, its lines aligned behind the title. Parts in backticks are coloured."""
    first = Text.assemble("  ", (title.ljust(_TITLE), "dim"), "  ")
    _lines(console, _coded(text), first=first, rest=Text(" " * len(first)))


def paragraph(console: Console, text: str, *, indent: int = 0, style: str = "") -> None:
    """Print a paragraph, wrapped."""
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
