"""The end of a run: verdict, scores, sampled rollouts, and commands to type next."""

from __future__ import annotations

import shlex

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from holdfast.base.run_folder import REPORT
from holdfast.base.scoring import exact_match
from holdfast.cli.terminal import ABSENT, duration, program
from holdfast.cli.transcript import show_line, show_observation, show_turn
from holdfast.recipe import Config
from holdfast.recipe.code import trusting
from holdfast.train.summary import Sample, Summary, shown_interval

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
