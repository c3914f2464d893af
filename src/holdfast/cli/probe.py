"""`holdfast probe`: what one update would do to a policy."""

from __future__ import annotations

import itertools
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from holdfast.base.errors import ConfigError, DataError, MissingExtra
from holdfast.base.run_folder import is_run
from holdfast.base.stored import read_object
from holdfast.cli.code import TrustCode, allow
from holdfast.cli.recipes import read_recipe
from holdfast.cli.runs import ROOT, WHICH_CHECKPOINT, complete_run, find_run
from holdfast.cli.terminal import out, program, train_extra

if TYPE_CHECKING:
    from holdfast.evaluate.probes import Result, Rollouts, Subject
    from holdfast.train.listener import Listener

R = TypeVar("R", bound="Result")

Target = Annotated[
    str,
    typer.Argument(
        metavar="RUN_OR_MODEL",
        help="A run folder, or the name of a run in runs/. With --recipe: a model folder, or a name on the hub.",
        autocompletion=complete_run,
    ),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(metavar="WHICH", help=f"{WHICH_CHECKPOINT}. Default: last."),
]
Recipe = Annotated[
    str | None, typer.Option(metavar="RECIPE", help="For a model: recipe with its questions, retrieval and loss.")
]
Questions = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Number of training questions. Default: train.questions.")
]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Seed of questions and rollouts. Default: run.seed.")]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Output folder. Default: RUN/probes, or probes.")
]


def probe(
    ctx: typer.Context,
    target: Target,
    what: Annotated[
        Literal["per-sample", "tail-leak"], typer.Option(metavar="WHAT", help="What to measure, from the list above.")
    ],
    checkpoint: Checkpoint = None,
    recipe: Recipe = None,
    questions: Questions = None,
    seed: Seed = None,
    compare: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="For per-sample: penalties to compare on the same rollouts."),
    ] = None,
    optimizer_state: Annotated[
        bool,
        typer.Option("--optimizer-state", help="For per-sample: start from the saved AdamW state."),
    ] = False,
    folder: Out = None,
    trust_code: TrustCode = False,
) -> None:
    """Measure a checkpoint or a model on fresh rollouts.

    WHAT is one of these:

      per-sample    one update per question: do the correct rollouts of that
                    question become less likely?
      tail-leak     for each turn, how much probability the loss moves to
                    tokens outside top-p/top-k

    Writes JSON and a figure. Updates are undone, so the checkpoint does not
    change. Settings on the command line replace those of the recipe. In a clone,
    [cyan]holdfast study-probe[/cyan] redoes more figures of the papers.

    [cyan]holdfast probe runs/flaky --what per-sample --compare none,llds[/cyan]

    [cyan]holdfast probe Qwen/Qwen2.5-3B --recipe my.toml --what tail-leak[/cyan]
    """
    penalties = [name.strip() for name in compare.split(",")] if compare else []
    updates = what == "per-sample"
    for option in ["--compare"] * bool(penalties) + ["--optimizer-state"] * optimizer_state:
        if not updates:
            raise ConfigError(f"{option} with --what {what}: this probe makes no update; leave it out")

    def run(subject: Subject, rollouts: Rollouts, seed: int, listener: Listener) -> Result:
        from holdfast.evaluate.probes import per_sample, tail_leak

        if updates:
            return per_sample(subject, rollouts, seed=seed, compare=penalties, listener=listener)
        return tail_leak(subject, rollouts)

    asked = Asked(
        target, checkpoint, recipe, ctx.meta["settings"], questions, seed, optimizer_state, folder, trust_code
    )
    measure(what, run, asked, penalties, with_reference=updates)


@dataclass(frozen=True)
class Asked:
    """The options that every probe has."""

    target: str
    checkpoint: str | None
    recipe: str | None
    settings: list[str]
    questions: int | None
    seed: int | None
    optimizer_state: bool
    folder: Path | None
    trust_code: bool


def measure(
    what: str,
    run: Callable[[Subject, Rollouts, int, Listener], R],
    asked: Asked,
    penalties: Sequence[str] = (),
    *,
    with_reference: bool,
) -> tuple[R, str, Path]:
    """Roll out, `run` the probe with its seed, print its lines, and write its JSON and figure.

    `with_reference`: `run` makes updates by the loss of the recipe. Returns the result, its title, and the JSON file.
    """
    from holdfast.cli.console import open_console

    with train_extra("loading PyTorch and transformers"):
        import holdfast.evaluate.probes as probes
        from holdfast.evaluate.folder import write_json

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
    from holdfast.evaluate.probes import open_model, open_run
    from holdfast.recipe import Config
    from holdfast.recipe.settings import parse_overrides
    from holdfast.train.loading import load_recipe

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
