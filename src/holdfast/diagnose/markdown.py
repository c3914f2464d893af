"""A diagnosis as Markdown, for the summary of a CI job or an issue.

What a log says of itself may hold any character. Names stand in code spans, where nothing is markup, and other texts
have their markup escaped. A cell of a table is one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from holdfast.diagnose.compare import Comparison, first_difference
from holdfast.diagnose.finding import Diagnosis, Finding, headline
from holdfast.diagnose.log import Log
from holdfast.diagnose.outlook import in_words
from holdfast.diagnose.rules import RULES
from holdfast.diagnose.verdict import NOT_LEARNING


def as_markdown(log: Log, diagnosis: Diagnosis) -> str:
    """The course of the reward, a table of the findings, and the rest folded: notes, codes that could not be checked,
    and facts."""
    count = len(diagnosis.findings)
    parts = [
        f"### {code(log.name)}: {count or 'no'} finding{'s' * (count != 1)}",
        plain(f"{headline(log, diagnosis)} {in_words(diagnosis.facts)}".rstrip()),
    ]
    verdict = diagnosis.verdict
    if verdict.reasons:
        parts.append("\n".join(f"{k}. {one.code}: {plain(one.summary)}" for k, one in enumerate(verdict.reasons, 1)))
        parts.append(f"Change first: {marked(verdict.change)}")
    if verdict.log and verdict.word in NOT_LEARNING:
        parts.append(marked(verdict.log))
    if diagnosis.findings:
        rows = ([f.code, str(f.step), _what(f), marked(f.remedy)] for f in diagnosis.findings)
        parts.append(table(["code", "step", "what", "change"], rows))
    if diagnosis.notes:
        notes = [f"* {note.code} at step {note.step}: {_what(note)} {marked(note.remedy)}" for note in diagnosis.notes]
        parts.append(folded(f"Notes ({len(notes)})", "\n".join(line.rstrip() for line in notes)))
    if diagnosis.cannot_tell:
        missing = ([u.code, ", ".join(map(code, u.missing)), marked(u.remedy)] for u in diagnosis.cannot_tell)
        text = table(["code", "missing metrics", "how to log them"], missing)
        inside = f"{marked(diagnosis.what_to_log)}\n\n{text}" if diagnosis.what_to_log else text
        parts.append(folded(f"Skipped checks ({len(diagnosis.cannot_tell)})", inside))
    if log.notes:
        parts.append(
            folded(f"Notes on reading the log ({len(log.notes)})", "\n".join(f"* {plain(n)}" for n in log.notes))
        )
    if diagnosis.facts:
        facts = ([plain(name), f"{value:.6g}"] for name, value in diagnosis.facts.items())
        parts.append(folded("Facts", table(["fact", "value"], facts)))
    return "\n\n".join(parts) + "\n"


def comparison_as_markdown(runs: Sequence[tuple[Log, Diagnosis]], comparison: Comparison) -> str:
    """What differs between two runs, A and B: settings, series by step, and findings."""
    names = [
        f"* {letter}: {code(log.name)}. {plain(headline(log, d))}" for letter, (log, d) in zip("AB", runs, strict=True)
    ]
    found = [", ".join(f"{f.code} at {f.step}" for f in diagnosis.findings) or "none" for _, diagnosis in runs]
    parts = [
        f"### {' and '.join(code(log.name) for log, _ in runs)}",
        "\n".join(names),
        plain(first_difference(comparison)),
    ]
    if comparison.settings:
        settings = (
            [code(s.name), *("–" if value is None else code(value) for value in (s.a, s.b))]
            for s in comparison.settings
        )
        parts.append(
            folded(f"Settings that differ ({len(comparison.settings)})", table(["setting", "A", "B"], settings))
        )
    if comparison.differences:
        rows = ([str(d.step), code(d.series), f"{d.a:.3g}", f"{d.b:.3g}"] for d in comparison.differences)
        parts.append(table(["step", "series", "A", "B"], rows))
    parts.append(table(["", "A", "B"], [["findings", *found]]))
    return "\n\n".join(parts) + "\n"


def _what(finding: Finding) -> str:
    evidence = ", ".join(f"{code(name)} {value:.3g}" for name, value in finding.evidence.items())
    return f"**{RULES[finding.code].title}.** {plain(finding.summary)}" + (f" ({evidence})" if evidence else "")


# ---- Markdown


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown already. Pipes in a cell are escaped here, in code spans too."""
    escaped = ([re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in (columns, ["---"] * len(columns), *escaped))


def folded(title: str, inside: str) -> str:
    """Markdown under a title that folds it out."""
    return f"<details><summary>{title}</summary>\n\n{inside}\n\n</details>"


def plain(text: str) -> str:
    """The text on one line, without any markup, HTML, link, or mention of a user or an issue.

    >>> print(plain("a_b *c* <b>\\nd | `e` @f #1 http://g www.h"))
    a\\_b \\*c\\* \\<b\\> d \\| \\`e\\` @\u200bf #\u200b1 http\u200b://g www\u200b.h
    """
    escaped = re.sub(r"([\\`*_\[\]<>|~&$])", r"\\\1", _one_line(text))
    return re.sub(r"(?<=[@#])(?=\w)|(?=://)|(?<=www)(?=\.)|(?<=GH-)(?=\d)", "\u200b", escaped)


def code(text: str) -> str:
    """The text as a code span, whatever it holds.

    >>> print(code("a|b"), code("`"), code(""))
    `a|b` `` ` `` ` `
    """
    line = _one_line(text).strip() or " "
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{space}{line}{space}{fence}"


def marked(text: str) -> str:
    """A text of ours, whose parts in backticks are code.

    >>> print(marked("Lower `lr_1`, or a_b."))
    Lower `lr_1`, or a\\_b.
    """
    return "".join(code(part) if k % 2 else plain(part) for k, part in enumerate(text.split("`")))


def _one_line(text: str) -> str:
    return re.sub(" +", " ", "".join(c if c.isprintable() else " " for c in text))
