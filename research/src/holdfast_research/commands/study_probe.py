"""`holdfast study-probe`: probes that redo figures of the papers, with the options and files of `holdfast probe`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.base.errors import ConfigError
from holdfast.cli.code import TrustCode
from holdfast.cli.command import SettingsCommand
from holdfast.cli.probe import Asked, Checkpoint, Out, Questions, Recipe, Seed, Target, measure
from holdfast.cli.terminal import out

if TYPE_CHECKING:
    from holdfast.evaluate.probes import Result, Rollouts, Subject
    from holdfast.train.listener import Listener

app = typer.Typer(add_completion=False)


class What(StrEnum):
    """What is measured; the help of the command explains each."""

    RATIO_TAIL = "ratio-tail"
    FIRST_ACTION = "first-action"
    BY_SEARCHES = "by-searches"
    INFLUENCE = "influence"
    CASES = "cases"


_PLAIN = (What.INFLUENCE, What.CASES)
"""Their step is plain GRPO, whatever the recipe's loss is."""


@app.command("study-probe", cls=SettingsCommand)
def study_probe(
    ctx: typer.Context,
    target: Target,
    what: Annotated[What, typer.Option(metavar="WHAT", help="What to measure, from the list above.")],
    checkpoint: Checkpoint = None,
    recipe: Recipe = None,
    questions: Questions = None,
    seed: Seed = None,
    compare: Annotated[
        str | None, typer.Option(metavar="A,B", help="For ratio-tail: penalties to compare on the same rollouts.")
    ] = None,
    optimizer_state: Annotated[
        bool,
        typer.Option(
            "--optimizer-state", help="For ratio-tail, influence and cases: start from the saved AdamW state."
        ),
    ] = False,
    top: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="For cases: number of questions to show. Default: 3.")
    ] = None,
    folder: Out = None,
    trust_code: TrustCode = False,
) -> None:
    """Redo a figure of a paper for a checkpoint or a model.

    WHAT is one of these:

      ratio-tail    one update on all questions: the share of rollouts whose
                    likelihood ratio falls below ε, for each ε
      first-action  the share of incorrect rollouts that begin with the same
                    search as a correct one, and the likelihood of each action
      by-searches   the likelihood of rollouts, by number of searches
      influence     one GRPO step per question: the change of correct rollouts
                    as the theory predicts it (GWHES), and as measured
      cases         the questions whose correct rollouts such a step hurts most:
                    a correct rollout and the incorrect one that hurts it most,
                    token by token, also as Markdown

    Rollouts, files and settings are those of [cyan]holdfast probe[/cyan].

    [cyan]holdfast study-probe runs/flaky --what ratio-tail --compare none,llds[/cyan]

    [cyan]holdfast study-probe runs/flaky --what cases --questions 100[/cyan]
    """
    penalties = [name.strip() for name in compare.split(",")] if compare else []
    updates = what is What.RATIO_TAIL
    if penalties and what in _PLAIN:
        raise ConfigError(
            f"--compare with --what {what.value}: this update is plain GRPO, without a penalty; leave it out"
        )
    if top is not None and what is not What.CASES:
        raise ConfigError(f"--top with --what {what.value}: only --what cases shows individual questions; leave it out")
    for option in ["--compare"] * bool(penalties) + ["--optimizer-state"] * optimizer_state:
        if not updates and what not in _PLAIN:
            raise ConfigError(f"{option} with --what {what.value}: this probe makes no update; leave it out")

    def run(subject: Subject, rollouts: Rollouts, seed: int, listener: Listener) -> Result:
        from holdfast_research import probes

        match what:
            case What.RATIO_TAIL:
                return probes.ratio_tail(subject, rollouts, seed=seed, compare=penalties, listener=listener)
            case What.FIRST_ACTION:
                return probes.first_action(subject, rollouts, listener=listener)
            case What.BY_SEARCHES:
                return probes.by_searches(subject, rollouts, listener=listener)
            case What.INFLUENCE:
                return probes.influence(subject, rollouts, listener=listener)
            case What.CASES:
                return probes.cases(subject, rollouts, top=top or 3, listener=listener)

    asked = Asked(
        target, checkpoint, recipe, ctx.meta["settings"], questions, seed, optimizer_state, folder, trust_code
    )
    result, title, path = measure(what.value, run, asked, penalties, with_reference=updates)
    if what is What.CASES:
        from holdfast_research.probes import Cases, case_pages

        assert isinstance(result, Cases)
        page = path.with_suffix(".md")
        page.write_text(case_pages(result, title), encoding="utf-8", errors="backslashreplace")
        out().print(f"Wrote {page}", soft_wrap=True)
