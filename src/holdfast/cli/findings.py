"""A diagnosis on the screen: verdict, findings, notes, and what could not be checked, in paragraphs of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from holdfast.cli.terminal import program
from holdfast.diagnose.compare import Comparison, first_difference
from holdfast.diagnose.finding import Diagnosis, Finding, TextFinding, Verdict, headline, skipped, too_short, when_of
from holdfast.diagnose.log import Log
from holdfast.diagnose.outlook import in_words
from holdfast.diagnose.rules import RULES
from holdfast.diagnose.verdict import NOT_LEARNING

_WIDTH = 80
_SCREEN = 24
"""Rows of a terminal."""
_PROMPT = 1
"""Rows of the prompt that follows."""
_TITLE = 8
_MAX_REASONS = 3
_MAX_READING_NOTES = 2
"""Notes on reading that are shown without --verbose, if there is room."""


def show(console: Console, log: Log, diagnosis: Diagnosis, *, verbose: bool) -> None:
    """Print a diagnosis: the verdict, findings, notes, and what could not be checked.

    Without `verbose` it fits a screen. The finding to act on is printed in full, unless the verdict says it already:
    why the run does not learn. What followed from it, and notes, are named with their steps.
    """
    for line in _everything(console, log, diagnosis) if verbose else _screen(console, log, diagnosis):
        console.print(line, soft_wrap=True)


def _screen(console: Console, log: Log, diagnosis: Diagnosis) -> list[Text]:
    """As much as fits. Notes on reading go first, then all that can be read elsewhere."""
    room = max(_SCREEN, console.height if console.is_terminal else 0) - _PROMPT
    findings = diagnosis.findings
    full, title = ((), "found") if diagnosis.verdict.reasons else (findings[:1], "then")
    for reading_notes in (_MAX_READING_NOTES, 0):
        lines = _head(console, log, diagnosis, reading_notes) + _texts(console, diagnosis) + _findings(console, full)
        named = _named(console, title, findings[len(full) :]) + _named(console, "note", diagnosis.notes)
        lines += ([Text()] if findings and named else []) + named + _last(console, diagnosis, is_whole=findings == full)
        if len(lines) <= room:
            return lines
    head, last = _head(console, log, diagnosis, 0), _last(console, diagnosis, is_whole=False)
    head += _texts(console, diagnosis, brief=True)
    last = (
        _named(console, title, findings[len(full) :], brief=True)
        + _named(console, "note", diagnosis.notes, brief=True)
        + last
    )
    body = _findings(console, full, brief=True)
    fitting = max(room - len(head) - len(last), 1)
    if len(body) > fitting:  # a long remedy
        body = [*body[: fitting - 1], body[fitting - 1] + " …"]
    return head + body + last


def _everything(console: Console, log: Log, diagnosis: Diagnosis) -> list[Text]:
    lines = _head(console, log, diagnosis, len(log.notes)) + _findings(console, diagnosis.findings)
    for note in diagnosis.notes:
        told = f"{note.code} at step {note.step}: {note.summary} {note.remedy}".rstrip()
        lines += ([Text()] if note is diagnosis.notes[0] else []) + _entry(console, "note", told)
    lines += [Text()] if diagnosis.texts else []
    for one in diagnosis.texts:
        lines += _entry(console, "rollouts", f"{_seen(one)} {one.advice}")
    return lines + _unchecked(console, diagnosis) + _last(console, diagnosis, is_whole=True)


def _head(console: Console, log: Log, diagnosis: Diagnosis, reading_notes: int) -> list[Text]:
    """The name of the run, the verdict, the course of the reward, and what the reader of the log noticed."""
    left = len(log.notes) - reading_notes
    hidden = (
        f"; {left}{' more' * (reading_notes > 0)} note{'s' * (left > 1)} on reading it: --verbose" if left > 0 else ""
    )
    lines = [Text.assemble((log.name, "bold"), f"  ({kind(log)}{hidden})")]
    said = Text(headline(log, diagnosis))
    said.stylize("bold", 0, len(diagnosis.verdict.word) + 1)
    lines += _wrapped(console, said, first=Text(), rest=Text()) + _why(console, diagnosis.verdict)
    if end := in_words(diagnosis.facts):
        lines += _paragraph(console, end)
    for note in log.notes[:reading_notes]:
        lines += _paragraph(console, f"note: {note}", style="dim")
    return lines


def _why(console: Console, verdict: Verdict) -> list[Text]:
    """Why a run does not learn, what to change first, and what to log where that cannot be told."""
    if verdict.word not in NOT_LEARNING:
        return []
    shown = [f"{reason.code}: {reason.summary}" for reason in verdict.reasons[:_MAX_REASONS]]
    lines = [line for said in shown for line in _entry(console, "why", said)]
    lines += _entry(console, "change", verdict.change) if verdict.reasons else []
    return lines + (_entry(console, "log", verdict.log) if verdict.log else [])


def kind(log: Log) -> str:
    """What kind of log it is, such as `wandb log of trl`."""
    return f"{log.format} log" if log.format == log.host or log.host == "unknown" else f"{log.format} log of {log.host}"


def _findings(console: Console, findings: Sequence[Finding], *, brief: bool = False) -> list[Text]:
    """Each in full, after a blank line. A remedy is printed once. If `brief`, evidence is one line."""
    printed: dict[str, str] = {}
    return [line for finding in findings for line in (Text(), *_finding(console, finding, printed, brief=brief))]


def _finding(console: Console, finding: Finding, printed: dict[str, str], *, brief: bool) -> list[Text]:
    """`printed`: each remedy -> the code under which it was printed already."""
    head = Text.assemble((finding.code, "bold red"), f"  step {finding.step}  ", (_title_of(finding), "bold"))
    evidence = ", ".join(f"{name} {value:.3g}" for name, value in finding.evidence.items())
    shown = _entry(console, "evidence", evidence)
    if brief and len(shown) > 1:
        shown = [shown[0] + " …"]
    lines = [head, *_paragraph(console, finding.summary, indent=2), *shown]
    if when := when_of(finding):
        lines += _entry(console, "when", when)
    before = printed.setdefault(finding.remedy, finding.code)
    change = finding.remedy if before == finding.code else f"as for {before}, above"
    return lines + _entry(console, "change", change)


def _named(console: Console, title: str, findings: Sequence[Finding], *, brief: bool = False) -> list[Text]:
    """Findings in a paragraph: code, step, and unless `brief` the title."""
    named = [f"{f.code} at {f.step}" if brief else f"{f.code} at step {f.step}, {_title_of(f)}" for f in findings]
    return _entry(console, title, (", " if brief else "; ").join(named)) if findings else []


def _texts(console: Console, diagnosis: Diagnosis, *, brief: bool = False) -> list[Text]:
    """What the texts of rollouts show, before the findings: a tool that fails is no matter of the learning rate."""
    said = [one.summary if brief else _seen(one) for one in diagnosis.texts]
    return [line for one in said for line in _entry(console, "rollouts", one)]


def _seen(found: TextFinding) -> str:
    return f"{found.summary} For example, step {found.step}: {found.example}"


def _title_of(finding: Finding) -> str:
    return RULES[finding.code].title


def _unchecked(console: Console, diagnosis: Diagnosis) -> list[Text]:
    """The checks that were skipped, and how to log what they need."""
    if not diagnosis.cannot_tell:
        return []
    lines = [Text(), *(_paragraph(console, diagnosis.what_to_log) if diagnosis.what_to_log else [])]
    lines.append(Text("Skipped checks, with the metrics that the log lacks:"))
    printed: dict[str, str] = {}
    for undecided in diagnosis.cannot_tell:
        needs = f"needs {', '.join(undecided.missing)}. {undecided.remedy}"
        before = printed.setdefault(needs, undecided.code)
        lines += _entry(console, undecided.code, needs if before == undecided.code else f"as for {before}, above")
    return lines


def _last(console: Console, diagnosis: Diagnosis, *, is_whole: bool) -> list[Text]:
    """The last lines: how many findings there are, and how to read more.

    With few rows nearly nothing can be checked, and the headline already says why.
    """
    count, unchecked = len(diagnosis.findings), len(diagnosis.cannot_tell)
    if not count and too_short(diagnosis):
        return []
    said = f"{count} finding{'s' * (count > 1)}." if count else "No findings."
    if not count and diagnosis.verdict.word == "flat":
        said = "No finding explains why the reward is flat."
    if not count and "peak reward" not in diagnosis.facts:
        said = "No findings, but few checks are possible without a reward."
    if unchecked and not too_short(diagnosis):
        said += f" {skipped(unchecked)}"
    more = [] if is_whole and not unchecked and not diagnosis.notes else ["--verbose"]
    if not count:
        color = "green" if diagnosis.verdict.word == "learns" else "yellow"
        last = Text.assemble((said, f"bold {color}"), f" More: {more[0]}" if more else "")
        return _wrapped(console, last, first=Text(), rest=Text())
    more.append(f"{program()} diagnose --explain {diagnosis.findings[0].code}")
    return [Text(), Text(said, "bold"), Text(f"To read more: {', or '.join(more)}", "bold")]


# ---- two runs

_MAX_DIFFERENCES = 12
"""Settings, and series, that are listed without --verbose."""


def show_differences(
    console: Console, runs: Sequence[tuple[Log, Diagnosis]], comparison: Comparison, *, verbose: bool
) -> None:
    """Print what differs between two runs, A and B: settings, series by step, and the findings of each."""
    for letter, (log, diagnosis) in zip("AB", runs, strict=True):
        console.print(Text.assemble(f"{letter}  ", (log.name, "bold"), f"  ({kind(log)})"), soft_wrap=True)
        paragraph(console, headline(log, diagnosis), indent=3)
    console.print()
    paragraph(console, first_difference(comparison), style="bold")
    settings = [(s.name, "–" if s.a is None else s.a, "–" if s.b is None else s.b) for s in comparison.settings]
    series = [(f"step {d.step}  {d.series}", f"{d.a:.3g}", f"{d.b:.3g}") for d in comparison.differences]
    for title, rows in (("Settings that differ", settings), ("Metrics that differ, by step", series)):
        _columns(console, title, rows if verbose else rows[:_MAX_DIFFERENCES], left=len(rows))
    console.print()
    console.print(Text("Findings", "bold"))
    for letter, (_, diagnosis) in zip("AB", runs, strict=True):
        for line in _named(console, letter, diagnosis.findings) or _entry(console, letter, "none"):
            console.print(line, soft_wrap=True)


def _columns(console: Console, title: str, rows: Sequence[tuple[str, str, str]], *, left: int) -> None:
    """A table of what differs, and its values in A and B, under a title. `left` counts all rows, shown or not."""
    if not rows:
        return
    console.print()
    console.print(Text(title, "bold"))
    lines = [("", "A", "B"), *rows]
    widths = [max(len(row[column]) for row in lines) for column in range(2)]
    for name, a, b in lines:
        console.print(Text(f"  {name.ljust(widths[0])}  {a.ljust(widths[1])}  {b}".rstrip()), soft_wrap=True)
    if left > len(rows):
        console.print(Text(f"  {left - len(rows)} more: --verbose", "dim"))


# ---- paragraphs


def entry(console: Console, title: str, text: str) -> None:
    """Print a titled paragraph, its lines aligned behind the title. Parts in backticks are coloured."""
    for line in _entry(console, title, text):
        console.print(line, soft_wrap=True)


def paragraph(console: Console, text: str, *, indent: int = 0, style: str = "") -> None:
    """Print a paragraph, wrapped."""
    for line in _paragraph(console, text, indent=indent, style=style):
        console.print(line, soft_wrap=True)


def _entry(console: Console, title: str, text: str) -> list[Text]:
    first = Text.assemble("  ", (title.ljust(_TITLE), "dim"), "  ")
    return _wrapped(console, _coded(text), first=first, rest=Text(" " * len(first)))


def _paragraph(console: Console, text: str, *, indent: int = 0, style: str = "") -> list[Text]:
    margin = Text(" " * indent)
    return _wrapped(console, Text(text, style), first=margin, rest=margin)


def _wrapped(console: Console, text: Text, *, first: Text, rest: Text) -> list[Text]:
    """Lines of 80 columns or fewer, without trailing blanks."""
    width = max(min(console.width, _WIDTH) - len(first), 20)
    lines = text.wrap(console, width)
    for line in lines:
        line.rstrip()
    return [(rest if number else first) + line for number, line in enumerate(lines)]


def _coded(text: str) -> Text:
    """Text with its parts in backticks coloured, and the backticks removed."""
    result = Text()
    for number, part in enumerate(text.split("`")):
        result.append(part, "cyan" if number % 2 else "")
    return result
