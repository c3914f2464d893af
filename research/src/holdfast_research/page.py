"""The report of an experiment: results.json, and one self-contained HTML page with the curves."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from holdfast.base.files import write_whole
from holdfast_research import results as r
from holdfast_research.figures import draw
from holdfast_research.values import Experiment, Figure, Runs

_STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #ffffff; --soft: #5c5c5c; --line: #d4d4d4; --box: #f5f5f5; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #16181b; --soft: #a8a8a8; --line: #3a3d42; --box: #202327; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 76rem; background: var(--paper); color: var(--ink);
       font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; } h2 { margin-top: 2.5rem; font-size: 1.25rem; }
p, li { max-width: 48rem; } .soft { color: var(--soft); }
.note { padding: .6rem .9rem; border-left: .25rem solid currentColor; background: var(--box); }
.figures { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 23rem), 1fr)); }
figure { margin: 0; } figure svg { width: 100%; height: auto; } figcaption { font-size: .85rem; color: var(--soft); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; } caption { text-align: left; color: var(--soft); }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
td.number { white-space: nowrap; font-variant-numeric: tabular-nums; }
.claims { display: grid; gap: .8rem; padding: 0; list-style: none; }
.claims > li { max-width: none; padding: .7rem .9rem; background: var(--box); }
.claims p { margin: .2rem 0; } .verdict { font-weight: 700; }
details { font-size: .85rem; } pre { overflow-x: auto; padding: .7rem; background: var(--box); }
"""
_MARKS = {"shown": "●", "partly": "◐", "not shown": "○", "cannot tell": "?"}


def write_report(experiment: Experiment, results: Mapping[str, Any], runs: Runs, out: Path) -> Path:
    """The two files, numbers first; returns the HTML page. Raises `MissingExtra` without matplotlib."""
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "results.json", json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    shown = [figure for figure in experiment.figures if any(arm in runs for arm in figure.arms)]
    drawings = [(figure, draw(figure, runs, key=f"f{i}")) for i, figure in enumerate(shown)]
    write_whole(out / "index.html", html(results, drawings))
    return out / "index.html"


def html(results: Mapping[str, Any], drawings: Sequence[tuple[Figure, str | None]]) -> str:
    """The page; `drawings` are the experiment's figures as SVG, None where no run has the metric."""
    warnings = r.warning_rows(results)
    parts = [
        f"<h1>{escape(results['title'])}</h1>",
        f"<p>{escape(results['shows'])}</p>",
        f'<p class="note">{escape(r.SHORT_NOTE)}</p>' if results["short"] else "",
        *(f'<p class="note">{escape(line)}</p>' for line in r.start_lines(results)),
        _list(results["notes"]),
        *(_tally(title, claims) for title, claims in r.claim_groups(results)),
        "<h2>Curves</h2>",
        '<p class="soft">Means of five steps. Thick: the mean over seeds; thin: every seed.</p>',
        f'<div class="figures">{"".join(_figure(f, svg) for f, svg in drawings)}</div>',
        "<h2>Claims</h2>",
        f'<p class="soft">{escape(r.VERDICTS)}</p>',
        *(_claims(title, claims) for title, claims in r.claim_groups(results)),
        f"<p>{escape(r.left_out_line(left_out))}</p>" if (left_out := results["claims_left_out"]) else "",
        "<h2>Arms</h2>",
        _table(r.ARM_COLUMNS, map(r.arm_row, results["arms"]), r.ARMS_NOTE),
        "<h2>Early warnings</h2>" + _table(r.WARNING_COLUMNS, warnings, r.WARNINGS_NOTE) if warnings else "",
        "<h2>Coefficients</h2>",
        _list(r.sweep_lines(results)),
        "<h2>Every run</h2>",
        _table(r.RUN_COLUMNS, r.run_rows(results), "Reward, and test EM before → after."),
        _titled("What was not run", results["not_run"]),
        _titled("Not finished", r.missing_lines(results)),
        "<h2>How this was made</h2>",
        f"<pre><code>{escape(results['command'])}</code></pre>",
        _list(r.origin_lines(results)),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(results['title'])} · holdfast</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body>\n</html>\n"
    )


def _tally(title: str, claims: Sequence[Mapping[str, Any]]) -> str:
    counts = {word: sum(claim["verdict"] == word for claim in claims) for word in _MARKS}
    text = " · ".join(f"{_MARKS[word]} {word} {count}" for word, count in counts.items())
    return f"<p>{escape(title)}: {text}</p>"


def _claims(title: str, claims: Sequence[Mapping[str, Any]]) -> str:
    return f'<h3>{escape(title)}</h3><ul class="claims">{"".join(map(_claim, claims))}</ul>'


def _claim(claim: Mapping[str, Any]) -> str:
    seeds = claim["numbers"]
    names = list(dict.fromkeys(name for numbers in seeds.values() for name in numbers))
    rows = [(seed, *(_value(numbers.get(name)) for name in names)) for seed, numbers in seeds.items()]
    details = f"<details><summary>Seed by seed</summary>{_table(('seed', *names), rows)}</details>" if names else ""
    return (
        f'<li><p><span class="verdict">{_MARKS[claim["verdict"]]} {escape(claim["verdict"])}</span> '
        f"{escape(claim['says'])}</p>"
        f"<p>{escape(r.sentence(claim['because']))}</p>"
        f'<p class="soft">{escape(r.source(claim))}. Test: {escape(claim["asks"])}.</p>'
        f"{details}</li>"
    )


def _figure(figure: Figure, svg: str | None) -> str:
    paper = f" Compare {figure.after}." if figure.after else ""
    drawing = svg or '<p class="soft">No run has this series.</p>'
    caption = f"{escape(figure.title)} ({escape(figure.metric)}).{escape(paper)}"
    return f"<figure>{drawing}<figcaption>{caption}</figcaption></figure>"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td{'' if i == 0 else _NUMBER}>{escape(cell)}</td>" for i, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    under = f'<p class="soft">{escape(note)}</p>' if note else ""
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{under}'


_NUMBER = ' class="number"'


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>" if lines else ""


def _titled(title: str, lines: Sequence[str]) -> str:
    return f"<h2>{title}</h2>{_list(lines)}" if lines else ""


def _value(value: float | None) -> str:
    return "–" if value is None else f"{value:g}" if float(value).is_integer() else f"{value:.4g}"
