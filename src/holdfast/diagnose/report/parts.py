"""The text of a report: findings, tables, and what is folded at its end. Everything that a run says is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import urlencode

from holdfast.base.intervals import half_width
from holdfast.diagnose.compare import compare, differing_settings, first_difference, settings_of, with_what_came
from holdfast.diagnose.finding import Diagnosis, Finding, judged, numbers_of, skipped, too_short, when_of
from holdfast.diagnose.log import Log, finite, has
from holdfast.diagnose.log.batches import joined
from holdfast.diagnose.log.smoothed import WINDOW
from holdfast.diagnose.outlook import in_words
from holdfast.diagnose.report.samples import ReportedRun
from holdfast.diagnose.rules import RULES
from holdfast.diagnose.texts import KINDS
from holdfast.diagnose.verdict import NOT_LEARNING

_MAX_SETTINGS = 600
_OPEN_SETTINGS = 12
"""Settings that differ are shown at once if there are at most this many, else behind a click."""
_MAX_TEXT = 1600
_MAX_CHANGES = 3


def legend(runs: Sequence[ReportedRun]) -> str:
    """What bold and faint lines are, and how to zoom."""
    curves = "Lines: running means." if len(runs) > 1 else "Bold: a running mean. Faint: every value."
    mouse = '<span class="mouse"> Drag to zoom in all plots, double-click to reset.</span>'
    return f'<noscript><p class="problem">The plots need JavaScript.</p></noscript><p class="soft">{curves}{mouse}</p>'


# ---- one run


def findings(run: ReportedRun, data: Mapping[str, Any]) -> str:
    """The finding to act on, and what followed from it, folded. Each has links to its chart and to the rollouts that
    show it."""
    items = run.diagnosis.findings
    count = f"{len(items)} finding{'s' * (len(items) != 1)}" if items else "No findings"
    chart_of = {t["series"]: chart["id"] for chart in data["charts"] for row in chart["rows"] for t in row["traces"]}
    code_of = {run.diagnosis.verdict.change: ""}  # which stands at the top
    first, *rest = [_finding(f, chart_of, code_of, data["rollouts"], run.log.last_step) for f in items] or [
        _nothing(run.diagnosis)
    ]
    shown = f'<h2>{count}</h2>\n<ul class="findings">{first}</ul>'
    if not rest:
        return shown
    then = ", ".join(f"{f.code} at step {f.step:,}" for f in items[1:])
    inside = f'<ul class="findings">{"".join(rest)}</ul>'
    return f"{shown}\n{folded(f'What followed: {then}', inside)}"


def course(run: ReportedRun) -> str:
    """The verdict with its reasons and the one thing to change; then the reward in numbers, and what the end of the run
    was worth."""
    verdict, facts = run.diagnosis.verdict, run.diagnosis.facts
    parts = [f'<p class="headline"><b>{verdict.word.capitalize()}.</b> {text(verdict.text)}</p>']
    if verdict.reasons:
        why = "".join(f"<li><b>{text(one.code)}</b> {text(one.summary)}</li>" for one in verdict.reasons)
        parts.append(f"<ol>{why}</ol>")
    if verdict.change:
        parts.append(f'<p class="change"><b>Change first:</b> {_marked(verdict.change)}</p>')
    if verdict.log and verdict.word in (*NOT_LEARNING, "cannot tell"):
        parts.append(f'<p class="change">{_marked(verdict.log)}</p>')
    said = f"{numbers_of(facts, _interval(run.log))} {in_words(facts)}".strip()
    return "".join([*parts, f'<p class="soft">{text(said)}</p>' if said else ""])


def _interval(log: Log) -> str:
    """Half of the 95 % interval of the last rewards, as it stands behind their mean; empty if they are too few."""
    batches = joined(log)
    if not has(batches, "reward/mean"):
        return ""
    half = half_width(finite(batches.series["reward/mean"]).values[-WINDOW:].tolist())
    return "" if half is None else f" ± {half:.2g}"


def _finding(
    finding: Finding,
    chart_of: Mapping[str, str],
    code_of: dict[str, str],
    rollouts: Sequence[Mapping[str, Any]],
    last_step: int,
) -> str:
    """An item of the list; `code_of` has the remedies so far, and the code each was first given for."""
    chart = next((chart_of[name] for name in finding.series if name in chart_of), "reward")
    evidence = ", ".join(f"{name} {value:.3g}" for name, value in finding.evidence.items())
    when = when_of(finding)
    seen = "; ".join(part for part in (when[:1].upper() + when[1:], evidence) if part)
    link = link_of(finding, rollouts, None, last_step)
    shown = [f'<a href="#chart-{escape(chart)}">Its chart</a>']
    shown += [f'<a href="{escape(link[0])}">{text(link[1])}</a>'] if link else []
    return (
        f'<li id="finding-{escape(finding.code)}"><div><span class="code">{text(finding.code)}</span> '
        f'<span class="when">step {finding.step:,}</span></div>\n'
        f"<div>{_name(finding.code)}<p>{text(finding.summary)}</p>"
        + _change(finding, code_of)
        + (f'<p class="soft">{text(seen)}</p>' if seen else "")
        + f'<p class="soft">{" · ".join(shown)}</p></div></li>\n'
    )


def _nothing(diagnosis: Diagnosis) -> str:
    if too_short(diagnosis):
        return '<li class="none"><div class="code">–</div><div>The log is too short to judge.</div></li>'
    flat = diagnosis.verdict.word == "flat"
    sentences = "No finding explains why the reward is flat." if flat else "The rules find no problem in this log."
    if count := len(diagnosis.cannot_tell):
        sentences += f" {skipped(count)} They are listed at the end of the page."
    return f'<li class="none"><div class="code">{"–" if flat else "✓"}</div><div>{sentences}</div></li>'


def remarks(runs: Sequence[ReportedRun]) -> str:
    """The notes of the rules: worth knowing, and no reason to act."""
    items = "".join(
        f"<li><b>{text(run.log.name + ', ' if len(runs) > 1 else '')}{text(note.code)}</b> "
        f'<span class="when">step {note.step:,}</span> {text(note.summary)} {_marked(note.remedy)}</li>'
        for run in runs
        for note in run.diagnosis.notes
    )
    head = '<h2>Notes</h2>\n<p class="soft">Worth knowing, but no action needed.</p>\n'
    return f"{head}<ul>{items}</ul>" if items else ""


def _name(code: str) -> str:
    return f"<h3>{text(RULES[code].title)}</h3>" if code in RULES else ""


def _change(finding: Finding, code_of: dict[str, str]) -> str:
    if not finding.remedy:
        return ""
    before = code_of.setdefault(finding.remedy, finding.code)
    change = _marked(finding.remedy) if before == finding.code else f"as for {text(before)}" if before else "as above"
    return f"<p><b>Change:</b> {change}</p>"


def _marked(plain: str) -> str:
    """The text, with the parts in backticks as code."""
    parts = text(plain).split("`")
    return "".join(f"<code>{part}</code>" if k % 2 else part for k, part in enumerate(parts))


# ---- several runs


def comparison(runs: Sequence[ReportedRun], rollouts: Sequence[Mapping[str, Any]]) -> str:
    """A row for each run, with links from its findings to its rollouts; then what the codes mean."""
    rows = []
    for i, run in enumerate(runs):
        facts = run.diagnosis.facts
        last, *rewards = [_cell(facts.get(name)) for name in ("last reward", "peak reward", "first reward")]
        last = last.replace("</td>", f"{_interval(run.log)}</td>") if "last reward" in facts else last
        codes = "; ".join(_code_at(finding, i, run, rollouts) for finding in run.diagnosis.findings) or "none"
        step, word = verdict(run)
        shown = f'<td data-value="{-1 if step is None else step}">{word}</td>'
        steps = f'<td data-value="{run.log.last_step}">{run.log.last_step:,}</td>'
        name = f'<td data-run="{i}" data-value="{escape(run.log.name)}">{text(run.log.name)}</td>'
        rows.append([name, shown, last, *rewards, steps, f"<td>{codes}</td>"])
    columns = ["run", "verdict", "last reward", "peak reward", "first reward", "steps", "findings"]
    explained: dict[str, Finding] = {f.code: f for run in runs for f in run.diagnosis.findings}
    code_of: dict[str, str] = {}
    items = "".join(
        f'<li><div><span class="code">{text(code)}</span></div><div>{_name(code)}'
        + (f"<p>{text(RULES[code].meaning)}</p>" if code in RULES else "")
        + f"{_change(finding, code_of)}</div></li>"
        for code, finding in sorted(explained.items())
    )
    meaning = folded("What the codes mean", f'<ul class="findings">{items}</ul>') if items else ""
    return f"{_table(columns, rows, kind='runs')}\n{_changes(runs)}\n{meaning}\n{_differing(runs)}\n{_parting(runs)}"


def verdict(run: ReportedRun) -> tuple[int | None, str]:
    """(step, words): the verdict; and the step at which the reward fell, None if it did not fall."""
    course = run.diagnosis.course
    began = None if course.fall is None else course.fall.began
    return began, judged(run.diagnosis.verdict.word, began, course.back_step)


def _changes(runs: Sequence[ReportedRun]) -> str:
    """What to change first in the runs that need it, once for all that need the same."""
    needing: dict[str, list[str]] = {}
    for run in runs:
        if run.diagnosis.verdict.change:
            needing.setdefault(run.diagnosis.verdict.change, []).append(run.log.name)
    return "".join(
        f'<p class="change"><b>{text(", ".join(names))}, change first:</b> {_marked(change)}</p>'
        for change, names in list(needing.items())[:_MAX_CHANGES]
    )


def _code_at(finding: Finding, i: int, run: ReportedRun, rollouts: Sequence[Mapping[str, Any]]) -> str:
    label = text(f"{finding.code} at {finding.step:,}")
    link = link_of(finding, rollouts, i, run.log.last_step)
    return f'<a href="{escape(link[0])}" title="{escape(link[1])}">{label}</a>' if link else label


def _cell(value: float | None) -> str:
    return "<td>–</td>" if value is None else f'<td data-value="{value!r}">{value:.3g}</td>'


def _differing(runs: Sequence[ReportedRun]) -> str:
    differing = differing_settings([run.log for run in runs])
    if not differing:
        return ""
    changed = with_what_came(differing)

    def shown(names: Iterable[str]) -> str:
        rows = [[name, *("–" if value is None else value for value in differing[name])] for name in names]
        return table(["setting", *(run.log.name for run in runs)], rows[:_MAX_SETTINGS])

    with_it = [folded(f"{len(came)} that came with {name}", shown(came)) for name, came in changed.items() if came]
    inside = "\n".join([shown(changed), *with_it])
    return folded(f"Settings that differ ({len(changed)})", inside, is_open=len(changed) <= _OPEN_SETTINGS)


def _parting(runs: Sequence[ReportedRun]) -> str:
    """Of two runs: the series that differ, by the step where they part."""
    if len(runs) != 2:
        return ""
    comparison = compare(runs[0].log, runs[1].log)
    said = first_difference(comparison, *(run.log.name for run in runs))
    rows = [[f"{d.step:,}", d.series, f"{d.a:.3g}", f"{d.b:.3g}"] for d in comparison.differences]
    inside = table(["step", "series", *(run.log.name for run in runs)], rows) if rows else ""
    return folded("What differs first", f"<p>{text(said)}</p>{inside}")


# ---- what follows the curves


def rollouts_head(rollouts: Sequence[Mapping[str, Any]], runs: Sequence[ReportedRun]) -> str:
    """What the texts show, with links that set the filters, and what the colours of tokens mean."""
    measured = any("changes" in turn for rollout in rollouts for turn in rollout.get("turns", ()))
    found = [(i, run, one) for i, run in enumerate(runs) for one in run.diagnosis.texts]
    items = "".join(
        f"<li><b>{text(run.log.name + ', ' if len(runs) > 1 else '')}step {one.step:,}.</b> {text(one.summary)} "
        f'<a href="{escape(of_kind(one.kind, one.step, i if len(runs) > 1 else None))}">Show them</a><br>'
        f'<span class="soft code">{text(one.example)}</span><br>{text(one.advice)}</li>'
        for i, run, one in found
    )
    shown = f"<ul>{items}</ul>" if items else ""
    colours = (
        "The colour of a token shows how much more or less likely the update made it. Observations are grey."
        if measured
        else "The file has no log-probs of single tokens, so tokens are not coloured. Observations are grey."
    )
    return f'<h2>Rollouts</h2>\n{shown}<p class="soft">{colours}</p>'


def open_questions(runs: Sequence[ReportedRun]) -> str:
    """A row for each set of missing metrics, with the codes that need it and the runs that lack it."""
    groups: dict[tuple[str, str], tuple[dict[str, None], dict[str, None]]] = {}
    for run in runs:
        for undecided in run.diagnosis.cannot_tell:
            key = ", ".join(undecided.missing), undecided.remedy.replace("`", "")
            codes, names = groups.setdefault(key, ({}, {}))
            codes[undecided.code] = names[run.log.name] = None
    if not groups:
        return ""
    several = len(runs) > 1
    columns = ["codes", "missing metrics", "how to log them", *(["runs"] if several else [])]
    rows = []
    for (series, remedy), (codes, names) in groups.items():
        where = "all" if len(names) == len(runs) else ", ".join(names)
        rows.append([", ".join(codes), series, remedy, *([where] if several else [])])
    count = len({code for codes, _ in groups.values() for code in codes})
    advice = dict.fromkeys(run.diagnosis.what_to_log for run in runs if run.diagnosis.what_to_log)
    first = "".join(f"<p>{_marked(sentence)}</p>\n" for sentence in advice)
    title = f"Skipped checks: the log lacks the metrics they need ({count})"
    return folded(title, first + table(columns, rows))


def notes(runs: Sequence[ReportedRun]) -> str:
    """What the reader of a log noticed."""
    lines = [f"{run.log.name}: {note}" if len(runs) > 1 else note for run in runs for note in run.log.notes]
    if not lines:
        return ""
    return "<h2>Notes on reading the log</h2>\n<ul>" + "".join(f"<li>{text(note)}</li>" for note in lines) + "</ul>"


def settings(run: ReportedRun) -> str:
    """All settings of a run, folded."""
    rows = [[name, value] for name, value in sorted(settings_of(run.log).items())]
    if not rows:
        return ""
    return folded(f"Settings ({len(rows)})", table(["setting", run.log.name], rows[:_MAX_SETTINGS]))


# ---- links to rollouts


WORDS = {
    "correct": "correct rollouts",
    "incorrect": "incorrect rollouts",
    "failed": "failed rollouts",
    "empty": "rollouts with a search that found nothing",
    "unanswered": "rollouts without an answer",
    "truncated": "truncated rollouts",
    "": "rollouts",
}
_SHARE = 0.1
"""Rollouts that are further from a finding than this share of the run do not show it."""


def link_of(
    finding: Finding, shown: Sequence[Mapping[str, Any]], run: int | None, last_step: int
) -> tuple[str, str] | None:
    """(address, text) of a link to the rollouts among `shown` (rows of `rollouts_json`) nearest to the finding, with
    the outcome it is about. The address is what the page's filters are set to, such as `#step=35-45&outcome=correct`.

    They are at most 5 steps away, or a hundredth of the run; if there are none, at the nearest sampled step. Without
    any of the outcome, rollouts of every outcome are meant. None if none is near. With `run`, only that run's.
    """
    about = RULES[finding.code].rollouts if finding.code in RULES else None
    for outcome in dict.fromkeys((about or "", "")):
        steps = {
            row["step"]
            for row in shown
            if (run is None or row["run"] == run) and (not outcome or outcome in row["outcomes"])
        }
        reach = max(WINDOW, last_step // 100)
        near = {step for step in steps if abs(step - finding.step) <= reach}
        if not near and steps:
            nearest = min(steps, key=lambda step: abs(step - finding.step))
            near = {nearest} if abs(nearest - finding.step) <= max(reach, _SHARE * last_step) else set()
        if near:
            first, last = min(near), max(near)
            step, span = f"{first}-{last}", f"steps {first:,} to {last:,}"
            if first == last:
                step, span = str(first), f"step {first:,}"
            return _address(run=run, step=step, outcome=outcome or None), f"{WORDS[outcome].capitalize()} of {span}"
    return None


def of_kind(kind: str, step: int, run: int | None) -> str:
    """What the filters are set to for something that texts show: its kind, or the step where it begins."""
    return _address(run=run, outcome=kind) if kind in KINDS else _address(run=run, step=step)


def _address(**filters: int | str | None) -> str:
    return f"#{urlencode({name: value for name, value in filters.items() if value is not None})}"


# ---- HTML


def folded(title: str, inside: str, *, is_open: bool = False) -> str:
    """`inside`, HTML, under a title that folds it out."""
    return f"<details{' open' * is_open}><summary>{text(title)}</summary>\n{inside}</details>"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts."""
    return _table(columns, ([f"<td>{text(cell)}</td>" for cell in row] for row in rows))


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str = "") -> str:
    """A table of cells that are HTML. A click on a head sorts it: by `data-value` where a cell has one."""
    head = "".join(f'<th scope="col">{text(column)}</th>' for column in columns)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return (
        '<div class="wide" tabindex="0" role="region" aria-label="table">'
        f'<table class="{f"sorted {kind}".rstrip()}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def text(plain: str) -> str:
    """Escaped, cut if it is very long, and isolated if it may run from right to left."""
    cut = plain if len(plain) <= _MAX_TEXT else f"{plain[:_MAX_TEXT]} …"
    escaped = escape(cut)
    return escaped if plain.isascii() else f"<bdi>{escaped}</bdi>"
