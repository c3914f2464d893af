"""`holdfast study-probe`: what one update would do to a policy, and figures of the papers for one checkpoint."""

from __future__ import annotations

import itertools
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.base.errors import ConfigError, DataError, MissingExtra
from holdfast.base.run_folder import is_run
from holdfast.base.stored import read_object
from holdfast.cli.command import SettingsCommand
from holdfast.cli.runs import ROOT, WHICH_CHECKPOINT, TrustCode, complete_run, find_run
from holdfast.cli.terminal import out, program, train_extra

if TYPE_CHECKING:
    from holdfast.train.listener import Listener
    from holdfast_research.probes import Result, Rollouts, Subject

app = typer.Typer(add_completion=False)


class What(StrEnum):
    """What is measured; the help of the command explains each."""

    PER_SAMPLE = "per-sample"
    TAIL_LEAK = "tail-leak"
    RATIO_TAIL = "ratio-tail"
    FIRST_ACTION = "first-action"
    BY_SEARCHES = "by-searches"
    INFLUENCE = "influence"
    CASES = "cases"


_COMPARING = (What.PER_SAMPLE, What.RATIO_TAIL)
"""Their update has the loss of the recipe."""

_PLAIN = (What.INFLUENCE, What.CASES)
"""Their step is plain GRPO, whatever the recipe's loss is."""


@app.command("study-probe", cls=SettingsCommand)
def study_probe(
    ctx: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_MODEL",
            help="A run folder, or the name of a run in runs/. With --recipe: a model folder, or a name on the hub.",
            autocompletion=complete_run,
        ),
    ],
    what: Annotated[What, typer.Option(metavar="WHAT", help="What to measure, from the list above.")],
    checkpoint: Annotated[str | None, typer.Option(metavar="WHICH", help=f"{WHICH_CHECKPOINT}. Default: last.")] = None,
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
        typer.Option(metavar="A,B", help="For per-sample and ratio-tail: penalties to compare on the same rollouts."),
    ] = None,
    optimizer_state: Annotated[
        bool,
        typer.Option("--optimizer-state", help="For what makes an update: start from the saved AdamW state."),
    ] = False,
    top: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="For cases: number of questions to show. Default: 3.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Output folder. Default: RUN/probes, or probes.")
    ] = None,
    trust_code: TrustCode = False,
) -> None:
    """Measure a checkpoint or a model on fresh rollouts.

    WHAT is one of these, most of which redo figures of the papers:

      per-sample    one update per question: do the correct rollouts of that
                    question become less likely?
      tail-leak     for each turn, how much probability the loss moves to
                    tokens outside top-p/top-k
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

    Writes JSON and a figure. Updates are undone, so the checkpoint does not
    change. Settings on the command line replace those of the recipe.

    [cyan]holdfast study-probe runs/flaky --what per-sample --compare none,llds[/cyan]

    [cyan]holdfast study-probe Qwen/Qwen2.5-3B --recipe my.toml --what tail-leak[/cyan]
    """
    penalties = [name.strip() for name in compare.split(",")] if compare else []
    if penalties and what in _PLAIN:
        raise ConfigError(
            f"--compare with --what {what.value}: this update is plain GRPO, without a penalty; leave it out"
        )
    if top is not None and what is not What.CASES:
        raise ConfigError(f"--top with --what {what.value}: only --what cases shows individual questions; leave it out")
    for option in ["--compare"] * bool(penalties) + ["--optimizer-state"] * optimizer_state:
        if what not in (*_COMPARING, *_PLAIN):
            raise ConfigError(f"{option} with --what {what.value}: this probe makes no update; leave it out")

    def run(subject: Subject, rollouts: Rollouts, seed: int, listener: Listener) -> Result:
        match what:
            case What.PER_SAMPLE:
                return probes.per_sample(subject, rollouts, seed=seed, compare=penalties, listener=listener)
            case What.TAIL_LEAK:
                return probes.tail_leak(subject, rollouts)
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
    with train_extra("loading PyTorch and transformers"):
        from holdfast_research import probes
    result, title, path = _measure(what.value, run, asked, penalties, with_reference=what in _COMPARING)
    if isinstance(result, probes.Cases):
        page = path.with_suffix(".md")
        page.write_text(probes.case_pages(result, title), encoding="utf-8", errors="backslashreplace")
        out().print(f"Wrote {page}", soft_wrap=True)


@dataclass(frozen=True)
class Asked:
    """The options on what is probed, and where the result goes."""

    target: str
    checkpoint: str | None
    recipe: str | None
    settings: list[str]
    questions: int | None
    seed: int | None
    optimizer_state: bool
    folder: Path | None
    trust_code: bool


def _measure(
    what: str,
    run: Callable[[Subject, Rollouts, int, Listener], Result],
    asked: Asked,
    penalties: Sequence[str] = (),
    *,
    with_reference: bool,
) -> tuple[Result, str, Path]:
    """Roll out, `run` the probe with its seed, print its lines, and write its JSON and figure.

    `with_reference`: `run` makes updates by the loss of the recipe. Returns the result, its title, and the JSON file.
    """
    from holdfast.cli.console import open_console
    from holdfast.evaluate.folder import write_json
    from holdfast_research import probes

    console = out()
    name, default_folder, model_tag, opened = _source(asked)
    with open_console(console, Path(asked.target)) as listener:
        subject = opened(listener=listener, with_reference=with_reference)
        tag = model_tag or Path(subject.name).parent.name
        config = subject.config
        seed = config.run.seed if asked.seed is None else asked.seed
        count = asked.questions or min(config.train.questions, len(subject.questions))
        probes.arms_of(config, penalties)  # refuses what the update would refuse, before the rollouts take their time
        folder = _make(asked.folder or default_folder)
        result = run(subject, probes.roll_out_questions(subject, count, seed, listener), seed, listener)
    title = f"{what} · {name if model_tag else f'{name} {tag}'}"
    title += f" · {count} questions × {config.train.group_size} rollouts, seed {seed}"
    title += ", the run's optimizer" * asked.optimizer_state
    console.print(f"\n{title}", style="bold", soft_wrap=True)
    for line in result.lines():
        console.print(line, soft_wrap=True)
    command = shlex.join([program(), *sys.argv[1:]])
    document = probes.document(result, subject, what=what, questions=count, seed=seed, command=command)
    stem = _free(folder, f"{what}-{tag}{'-optimizer-state' * asked.optimizer_state}-seed-{seed}", document)
    written = [folder / f"{stem}.json", folder / f"{stem}.svg"]
    write_json(written[0], document)
    try:
        probes.draw(result, title, written[1])
    except MissingExtra as missing:
        console.print(f"\nNo figure is drawn: {missing}", soft_wrap=True)
        del written[1]
    console.print("\nWrote " + " and ".join(map(str, written)), soft_wrap=True)
    return result, title, written[0]


def _free(folder: Path, stem: str, document: Mapping[str, object]) -> str:
    """The name of the result's files, with a number when files of another measurement have that name."""
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    return next(name for name in names if _read_setup(folder / f"{name}.json") in (None, _setup(document)))


def _read_setup(path: Path) -> str | None:
    try:
        return _setup(read_object(path, DataError, "give another folder"))
    except DataError:
        return None


def _setup(document: Mapping[str, object]) -> str:
    return json.dumps({key: value for key, value in document.items() if key != "result"}, sort_keys=True)


def _source(asked: Asked) -> tuple[str, Path, str, Callable[..., Subject]]:
    """The run, or the model, that a name means, the default place of results, its name in file names (empty for
    a run, whose checkpoint gives it: `step-000040`, or `best`), and what opens it. Raises `ConfigError`."""
    from holdfast.cli.recipes import allow, read_recipe
    from holdfast.recipe import Config
    from holdfast.recipe.overrides import parse_overrides
    from holdfast.tasks.opening import load_recipe
    from holdfast_research.probes import open_model, open_run

    target, settings = asked.target, asked.settings
    if "model.path" in parse_overrides(settings, Config):
        raise ConfigError(f"--model.path: the probe uses the model of {target}; leave --model.path out")
    if asked.recipe is None:
        run = find_run(target, "; to probe a model, give the recipe of its questions with --recipe")
        allow(load_recipe(run, settings), run, settings, trusted=asked.trust_code)
        opened = partial(open_run, run, asked.checkpoint or "last", settings, optimizer_state=asked.optimizer_state)
        return str(run), run / "probes", "", opened
    if is_run(Path(target)) or is_run(ROOT / target):
        raise ConfigError(f"--recipe {asked.recipe}: {target} is a run and has a recipe; leave --recipe out")
    if asked.checkpoint is not None:
        raise ConfigError(f"--checkpoint {asked.checkpoint} with --recipe: {target} is read as a model; leave it out")
    if asked.optimizer_state:
        raise ConfigError(
            f"--optimizer-state with --recipe: {target} is read as a model, without an optimizer; leave it out"
        )
    as_it_is = ["--model.path", target, "--warm_start.steps", "0", "--world.scripts.plain_steps", "0"]
    config, _ = read_recipe(asked.recipe, [*settings, *as_it_is])
    return target, Path("probes"), Path(target).name, partial(open_model, config)


def _make(folder: Path) -> Path:
    """The folder, made before anything takes long. Raises `ConfigError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made ({error.strerror}); give another --out") from None
    return folder
