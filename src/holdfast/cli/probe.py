"""`holdfast probe`: what one update would do to a policy, or how likely its rollouts are."""

from __future__ import annotations

import itertools
import json
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.base.errors import ConfigError, MissingExtra
from holdfast.base.run_folder import is_run
from holdfast.cli.recipes import read_recipe
from holdfast.cli.runs import ROOT, find_run
from holdfast.cli.terminal import err, out, program, train_extra

if TYPE_CHECKING:
    from holdfast.evaluate.probes import Result, Rollouts, Subject
    from holdfast.train.listener import Listener


class What(StrEnum):
    """What is measured; the help of the command explains each."""

    PER_SAMPLE = "per-sample"
    FIRST_ACTION = "first-action"
    BY_SEARCHES = "by-searches"
    RATIO_TAIL = "ratio-tail"
    TAIL_LEAK = "tail-leak"
    INFLUENCE = "influence"
    CASES = "cases"


_UPDATES = (What.PER_SAMPLE, What.RATIO_TAIL)
"""They update by the recipe's loss, and under other penalties."""
_PLAIN = (What.INFLUENCE, What.CASES)
"""Their step is plain GRPO, whatever the recipe's loss is."""


def probe(
    ctx: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_MODEL",
            help="A run folder, or the name of a run in runs/. With --recipe: a model folder, or a name on the hub.",
        ),
    ],
    what: Annotated[What, typer.Option(metavar="WHAT", help="What to measure, from the list above.")],
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="WHICH", help="Checkpoint of the run: last (default), best (on dev), or a step."),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(metavar="RECIPE", help="For a model: recipe with its questions, retrieval and loss.")
    ] = None,
    questions: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of training questions. Default: train.questions.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Seed of questions and rollouts. Default: run.seed.")
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="For per-sample and ratio-tail: penalties to compare on the same rollouts.",
        ),
    ] = None,
    optimizer_state: Annotated[
        bool,
        typer.Option(
            "--optimizer-state",
            help="For per-sample, ratio-tail, influence and cases: start from the saved AdamW state.",
        ),
    ] = False,
    top: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="For cases: number of questions to show. Default: 3.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Output folder. Default: RUN/probes, or probes.")
    ] = None,
) -> None:
    """Measure a checkpoint or a model on fresh rollouts.

    WHAT is one of these:

      per-sample    one update per question: do the correct rollouts of that
                    question become less likely?
      ratio-tail    one update on all questions: the share of rollouts whose
                    likelihood ratio falls below ε, for each ε
      first-action  the share of incorrect rollouts that begin with the same
                    search as a correct one, and the likelihood of each action
      by-searches   the likelihood of rollouts, by number of searches
      tail-leak     for each turn, how much probability the loss moves to
                    tokens outside top-p/top-k
      influence     one GRPO step per question: the change of correct rollouts
                    as the theory predicts it (GWHES), and as measured
      cases         the questions whose correct rollouts such a step hurts most:
                    a correct rollout and the incorrect one that hurts it most,
                    token by token, also as Markdown

    Writes JSON and a figure. Updates are undone, so the checkpoint does not
    change. Settings on the command line replace those of the recipe.

    [cyan]holdfast probe runs/flaky --what per-sample --compare none,llds[/cyan]

    [cyan]holdfast probe Qwen/Qwen2.5-3B --recipe my.toml --what tail-leak[/cyan]
    """
    if compare is not None and what in _PLAIN:
        raise ConfigError(
            f"--compare with --what {what.value}: this update is plain GRPO, without a penalty; leave it out"
        )
    if top is not None and what is not What.CASES:
        raise ConfigError(f"--top with --what {what.value}: only --what cases shows individual questions; leave it out")
    for option in ["--compare"] * (compare is not None) + ["--optimizer-state"] * optimizer_state:
        if what not in (*_UPDATES, *_PLAIN):
            raise ConfigError(f"{option} with --what {what.value}: this probe makes no update; leave it out")
    from holdfast.cli.console import open_console

    with train_extra(err(), "loading PyTorch and transformers"):
        import holdfast.evaluate.probes as probes

    console = out()
    source = _source(target, checkpoint, recipe, ctx.meta["settings"], optimizer_state)
    with open_console(console, Path(target)) as listener:
        subject = source.open(listener, what in _UPDATES)
        tag = source.tag or Path(subject.name).parent.name
        config = subject.config
        seed = config.run.seed if seed is None else seed
        count = questions or min(config.train.questions, len(subject.questions))
        penalties = [name.strip() for name in compare.split(",")] if compare else []
        probes.arms_of(config, penalties)  # refuses what the update would refuse, before the rollouts take their time
        folder = _make(folder or source.folder)
        rollouts = probes.roll_out_questions(subject, count, seed, listener)
        result = _measure(subject, rollouts, what, seed, penalties, top or 3, listener)
    title = f"{what.value} · {source.name if source.tag else f'{source.name} {tag}'}"
    title += f" · {count} questions × {config.train.group_size} rollouts, seed {seed}"
    title += ", the run's optimizer" * optimizer_state
    console.print(f"\n{title}", style="bold", soft_wrap=True)
    for line in probes.lines(result):
        console.print(line, soft_wrap=True)
    command = shlex.join([program(), *sys.argv[1:]])
    document = probes.document(result, subject, what=what.value, questions=count, seed=seed, command=command)
    stem = _free(folder, f"{what.value}-{tag}{'-optimizer-state' * optimizer_state}-seed-{seed}", document)
    written = [folder / f"{stem}.json", folder / f"{stem}.svg"]
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    written[0].write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
    if isinstance(result, probes.Cases):
        written.append(folder / f"{stem}.md")
        written[-1].write_text(probes.case_pages(result, title), encoding="utf-8", errors="backslashreplace")
    try:
        probes.draw(result, title, written[1])
    except MissingExtra as missing:
        console.print(f"\nNo figure is drawn: {missing}", soft_wrap=True)
        del written[1]
    console.print("\nWrote " + " and ".join(map(str, written)), soft_wrap=True)


def _free(folder: Path, stem: str, document: Mapping[str, object]) -> str:
    """The name of the result's files, with a number when files of another measurement have that name."""
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    return next(name for name in names if _read_setup(folder / f"{name}.json") in (None, _setup(document)))


def _read_setup(path: Path) -> str | None:
    try:
        return _setup(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def _setup(document: Mapping[str, object]) -> str:
    return json.dumps({key: value for key, value in document.items() if key != "result"}, sort_keys=True)


def _measure(
    subject: Subject, rollouts: Rollouts, what: What, seed: int, compare: list[str], top: int, listener: Listener
) -> Result:
    import holdfast.evaluate.probes as probes

    match what:
        case What.PER_SAMPLE:
            return probes.per_sample(subject, rollouts, seed=seed, compare=compare, listener=listener)
        case What.RATIO_TAIL:
            return probes.ratio_tail(subject, rollouts, seed=seed, compare=compare, listener=listener)
        case What.FIRST_ACTION:
            return probes.first_action(subject, rollouts, listener=listener)
        case What.BY_SEARCHES:
            return probes.by_searches(subject, rollouts, listener=listener)
        case What.TAIL_LEAK:
            return probes.tail_leak(subject, rollouts)
        case What.INFLUENCE:
            return probes.influence(subject, rollouts, listener=listener)
        case What.CASES:
            return probes.cases(subject, rollouts, top=top, listener=listener)


@dataclass(frozen=True)
class _Source:
    """A checkpoint of a run, or a model with a recipe."""

    name: str
    folder: Path
    """The default place of results."""
    open: Callable[[Listener, bool], Subject]
    """The second argument says whether updates will be made."""
    tag: str = ""
    """Its name in file names; empty for a run, whose checkpoint gives it: `step-000040`, or `best`."""


def _source(
    target: str, checkpoint: str | None, recipe: str | None, settings: list[str], optimizer_state: bool
) -> _Source:
    """The run, or the model, that a name means. Raises `ConfigError`."""
    from holdfast.evaluate.probes import open_model, open_run
    from holdfast.recipe import Config
    from holdfast.recipe.settings import parse_overrides

    if "model.path" in parse_overrides(settings, Config):
        raise ConfigError(f"--model.path: the probe uses the model of {target}; leave --model.path out")
    if recipe is None:
        try:
            run = find_run(target)
        except ConfigError as error:
            raise ConfigError(
                f"{error}. To probe a model, give the recipe of its questions with --recipe", hint=error.hint
            ) from None
        which = checkpoint or "last"
        return _Source(
            str(run),
            run / "probes",
            lambda listener, updates: open_run(
                run, which, settings, listener, with_reference=updates, optimizer_state=optimizer_state
            ),
        )
    if is_run(Path(target)) or is_run(ROOT / target):
        raise ConfigError(f"--recipe {recipe}: {target} is a run and has a recipe; leave --recipe out")
    if checkpoint is not None:
        raise ConfigError(f"--checkpoint {checkpoint} with --recipe: {target} is read as a model; leave it out")
    if optimizer_state:
        raise ConfigError(
            f"--optimizer-state with --recipe: {target} is read as a model, without an optimizer; leave it out"
        )
    as_it_is = ["--model.path", target, "--warm_start.steps", "0", "--world.scripts.plain_steps", "0"]
    config, _ = read_recipe(recipe, [*settings, *as_it_is])
    return _Source(
        target,
        Path("probes"),
        lambda listener, updates: open_model(config, listener, with_reference=updates),
        tag=Path(target).name,
    )


def _make(folder: Path) -> Path:
    """The folder, made before anything takes long. Raises `ConfigError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made ({error.strerror}); give another --out") from None
    return folder
