"""A rollout for a person to read: thoughts, searches, results and the answer; and the end of a run."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterable

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from holdfast.agent.protocol import CLEAN, SearchProtocol
from holdfast.base.run_folder import REPORT
from holdfast.base.scoring import exact_match
from holdfast.cli.terminal import ABSENT, duration, program
from holdfast.recipe import Config
from holdfast.recipe.code import trusting
from holdfast.train.summary import Sample, Summary, shown_interval

STYLES = {
    "question": "bold",
    "note": "yellow",
    "says": "",
    "thinks": "dim",
    "searches": "cyan",
    "reads": "cyan",
    "calls": "cyan",
    "returns": "bright_black",
    "finds": "bright_black",
    "feedback": "yellow",
    "answers": "bold",
    "expected": "",
}
# As `format_hits` writes them. Titles may have parentheses, and bodies several lines.
_PASSAGE = re.compile(
    r"^Doc (\S+?)\(Title: ((?:[^()\n]|\([^()\n]*\))*|[^\n]*?)\) ?(.*(?:\n(?!Doc \S+?\(Title: ).*)*)", re.M
)
_LABEL_WIDTH = 10
_PASSAGE_CHARS = 240
"""Most characters of a passage that are shown."""


def show_line(console: Console, kind: str, *texts: str, style: str | None = None) -> None:
    """Print texts behind one label, each on its own line, wrapped and indented. White space becomes one space."""
    width = max(console.width - _LABEL_WIDTH, 1) if console.is_terminal else 10**9
    for number, text in enumerate(texts):
        lines = textwrap.wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)
        label = "" if number else kind
        body = ("\n" + " " * _LABEL_WIDTH).join(lines)
        line = Text.assemble((f"{label:<{_LABEL_WIDTH}}", "dim"), (body, STYLES[kind] if style is None else style))
        console.print(line, soft_wrap=True)


def show_turn(console: Console, parts: Iterable[tuple[str, str]], *, answer_style: str | None = None) -> None:
    """Print a turn of the model, in the parts of `parts_of_turn`."""
    for kind, part in parts:
        show_line(console, kind, part, style=answer_style if kind == "answers" else None)


def show_observation(
    console: Console, observation: str, protocol: SearchProtocol = CLEAN, *, is_result: bool = False
) -> None:
    """Print the observation of a turn: its passages, shortened, what a function returned (`is_result`), or the feedback
    to an invalid turn."""
    text = observation.strip()
    if is_result:
        show_line(console, "returns", _shortened(text))
        return
    opened, closed = protocol.information_tags
    if not text.startswith(opened) and not _PASSAGE.match(text) and text != protocol.nothing_found:
        show_line(console, "feedback", text)
        return
    inner = text.removeprefix(opened).removesuffix(closed).strip()
    passages = [f"{number} {title} · {_shortened(body)}" for number, title, body in _PASSAGE.findall(inner)]
    show_line(console, "finds", *(passages or [inner or protocol.nothing_found or "nothing"]))


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _PASSAGE_CHARS else text[:_PASSAGE_CHARS].rsplit(" ", 1)[0] + " …"


# ---- the end of a run: verdict, scores, sampled rollouts, and commands to type next

_SCORES = {
    "em": "exact match, sampled",
    "em_greedy": "exact match, greedy",
    "f1": "F1, sampled",
    "f1_greedy": "F1, greedy",
    "searches": "searches per question",
}


def close(summary: Summary, config: Config, console: Console) -> None:
    """Print verdict, scores and sampled rollouts of a run, and the next commands."""
    console.print()
    title = Text(f"{summary.steps} step{'s' * (summary.steps != 1)} in {duration(summary.seconds)}")
    console.print(Rule(title, align="left", style="dim") if console.is_terminal else title)
    console.print()
    console.print(Text(summary.verdict))
    console.print()
    console.print(_scores(summary))
    for number, sample in enumerate(summary.samples, start=1):
        console.print()
        console.print(Text(f"Rollout {number} of {len(summary.samples)}, on {summary.split} questions", style="dim"))
        show_sample(sample, console)
    console.print()
    _next(summary, trusting(config), console)


def show_sample(sample: Sample, console: Console) -> None:
    """Print a rollout, with a correct answer in green and an incorrect one in red."""
    correct = exact_match(sample.answer, sample.golden_answers) == 1.0
    show_line(console, "question", sample.question)
    for turn in sample.turns:
        show_turn(console, turn.parts, answer_style="bold green" if correct else "bold red")
        if turn.observation.strip():
            show_observation(console, turn.observation, is_result=turn.is_result)
    expected = " or ".join(sample.golden_answers)
    if correct:
        show_line(console, "expected", f"{expected} ✓", style="green")
    else:
        show_line(console, "expected", f"{expected} ✗" + ("" if sample.answer else " (no answer)"), style="red")


def _scores(summary: Summary) -> Table:
    table = Table(box=None, padding=(0, 2), pad_edge=False, header_style="bold")
    asked = f", {summary.questions} questions" if summary.questions else ""
    table.add_column(f"on {summary.split}{asked}", style="dim")
    for title in ("before", "after", "change"):
        table.add_column(title, justify="right")
    for name in dict.fromkeys([*summary.before, *summary.after]):
        before, after = summary.before.get(name), summary.after.get(name)
        change = Text(ABSENT)
        if before is not None and after is not None:
            gain = 0 if name == "searches" else round(after - before, 3)  # more searches are neither good nor bad
            shown = f"{after - before:+.3f}{shown_interval(f'{name}_change', summary.intervals, '+.3f')}"
            change = Text(shown, style="green" if gain > 0 else "red" if gain < 0 else "")
        ended = ABSENT if after is None else f"{after:.3f}{shown_interval(name, summary.intervals)}"
        table.add_row(_SCORES.get(name, name), ABSENT if before is None else f"{before:.3f}", ended, change)
    if summary.intervals:
        table.caption, table.caption_justify = "in parentheses: 95 % intervals over questions", "left"
    return table


def _next(summary: Summary, trust: str, console: Console) -> None:
    run = shlex.quote(str(summary.run_dir))
    question = shlex.quote(summary.samples[0].question) if summary.samples else '"your question"'
    console.print(Text.assemble(("The run is in ", "dim"), str(summary.run_dir)))
    if (report := summary.run_dir / REPORT).is_file():
        console.print(Text.assemble(("Curves, findings and sampled rollouts: ", "dim"), str(report)))
    console.print(Text("Ask the agent a question:", style="dim"))
    # Never wrapped, because people copy it.
    console.print(Text(f"  {program()} ask {run} {question}{trust}", style="cyan"), soft_wrap=True)
