"""`holdfast probe`: what one update would do to a policy, or how likely its rollouts are. The policy stays as it is."""

from __future__ import annotations

import itertools
import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.terminal import err, out, program
from holdfast.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from holdfast.config import Config
    from holdfast.listener import Listener
    from holdfast.probes import Result, Rollouts, Subject


class What(StrEnum):
    PER_SAMPLE = "per-sample"
    FIRST_ACTION = "first-action"
    TOOL_ROUNDS = "tool-rounds"
    DRIFT = "drift"
    LEAK = "leak"


_UPDATES = (What.PER_SAMPLE, What.DRIFT)


def probe(
    ctx: typer.Context,
    of: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_MODEL",
            help="Run folder, or a name in runs/. With --recipe: folder of a model, or its name on the hub.",
            show_default=False,
        ),
    ],
    what: Annotated[
        What,
        typer.Option(
            metavar="WHAT", help="per-sample, drift, first-action, tool-rounds or leak, see above.", show_default=False
        ),
    ],
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="WHICH", help="Of a run: last (default), best on dev, or a step.", show_default=False),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(metavar="RECIPE", help="For a model: its questions, retrieval and loss.", show_default=False),
    ] = None,
    questions: Annotated[
        int | None,
        typer.Option(min=1, help="Training questions to roll out. Default: train.questions.", show_default=False),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Chooses questions and episodes. Default: run.seed.", show_default=False),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="For per-sample and drift: penalties to compare on the same rollouts, such as none,llds,sapo.",
            show_default=False,
        ),
    ] = None,
    moments: Annotated[
        bool,
        typer.Option(
            "--moments", help="For per-sample and drift: go on with the run's optimizer. Without: a fresh one."
        ),
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Where to write. Default: RUN/probes, or probes.", show_default=False
        ),
    ] = None,
) -> None:
    """Measure a checkpoint or a model.

    Rolls out training questions, measures, and writes JSON and a figure:

      per-sample    an update on one question alone: do its right rollouts
                    become less likely? Every question in turn.
      drift         an update on all: share of rollouts with ∏ r < ε, over ε
      first-action  do wrong rollouts begin with the search of a right one?
                    And the likelihood of each action.
      tool-rounds   likelihood of rollouts by number of searches
      leak          turn by turn: does the loss push probability out of what
                    a truncated sampler can draw?

    Updates are undone. Settings of the recipe may be changed:

    [cyan]holdfast probe runs/collapse --what per-sample --compare none,llds[/cyan]
    """
    for option in (["--compare"] if compare is not None else []) + ["--moments"] * moments:
        if what not in _UPDATES:
            raise ConfigError(f"{option} with --what {what.value}: this probe makes no update; leave it out")
    from holdfast.cli.console import open_console
    from holdfast.cli.extra import train_extra

    with train_extra(err(), "loading PyTorch and transformers"):
        import holdfast.probes as lab

    console = out()
    source = _source(of, checkpoint, recipe, ctx.meta["settings"], moments)
    with open_console(console, Path(of)) as listener:
        subject = source.open(listener, with_reference=what in _UPDATES)
        config = subject.config
        chosen = config.run.seed if seed is None else seed
        number = questions or min(config.train.questions, len(subject.questions))
        names = [name.strip() for name in compare.split(",")] if compare else []
        lab.arms_of(config, names)  # refuses what the update would, before the rollouts take their time
        folder = _made(folder or source.folder)
        rollouts = lab.roll_out_questions(subject, number, chosen, listener)
        result = _measure(subject, rollouts, what, chosen, names, listener)
    title = f"{what.value} · {source.title(subject)}"
    title += f" · {number} questions × {config.train.group_size} rollouts, seed {chosen}"
    title += ", the run's optimizer" * moments
    console.print(f"\n{title}", style="bold", soft_wrap=True)
    for line in lab.lines(result):
        console.print(line, soft_wrap=True)
    command = shlex.join([program(), *sys.argv[1:]])
    document = lab.document(result, subject, what=what.value, questions=number, seed=chosen, command=command)
    stem = _free(folder, f"{what.value}-{source.tag(subject)}{'-moments' * moments}-seed-{chosen}", document)
    written = [folder / f"{stem}.json", folder / f"{stem}.svg"]
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    written[0].write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
    try:
        lab.draw(result, title, written[1])
    except MissingExtra as missing:
        console.print(f"\nThere is no figure: {missing}", soft_wrap=True)
        del written[1]
    console.print("\nWrote " + " and ".join(map(str, written)), soft_wrap=True)


def _free(folder: Path, stem: str, document: Mapping[str, object]) -> str:
    """The name of the result's files: with a number behind it where they are there and answer another question."""
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    return next(name for name in names if _question(folder / f"{name}.json") in (None, _asked(document)))


def _question(path: Path) -> str | None:
    try:
        return _asked(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def _asked(document: Mapping[str, object]) -> str:
    return json.dumps({key: value for key, value in document.items() if key != "result"}, sort_keys=True)


def _measure(
    subject: Subject, rollouts: Rollouts, what: What, seed: int, compare: list[str], listener: Listener
) -> Result:
    import holdfast.probes as lab

    match what:
        case What.PER_SAMPLE:
            return lab.per_sample(subject, rollouts, seed=seed, compare=compare, listener=listener)
        case What.DRIFT:
            return lab.drift(subject, rollouts, seed=seed, compare=compare, listener=listener)
        case What.FIRST_ACTION:
            return lab.first_action(subject, rollouts, listener=listener)
        case What.TOOL_ROUNDS:
            return lab.tool_rounds(subject, rollouts, listener=listener)
        case What.LEAK:
            return lab.leak(subject, rollouts)


@dataclass(frozen=True)
class _Run:
    """A checkpoint of a run."""

    path: Path
    checkpoint: str
    settings: list[str]
    moments: bool

    @property
    def folder(self) -> Path:
        return self.path / "probes"

    def open(self, listener: Listener, *, with_reference: bool) -> Subject:
        from holdfast.probes import open_run

        return open_run(
            self.path,
            self.checkpoint,
            self.settings,
            listener,
            with_reference=with_reference,
            moments=self.moments,
        )

    def tag(self, subject: Subject) -> str:
        """`step-000040`, or `best`."""
        return Path(subject.name).parent.name

    def title(self, subject: Subject) -> str:
        return f"{self.path} {self.tag(subject)}"


@dataclass(frozen=True)
class _Model:
    """A model as it is, with a recipe."""

    name: str
    config: Config

    @property
    def folder(self) -> Path:
        return Path("probes")

    def open(self, listener: Listener, *, with_reference: bool) -> Subject:
        from holdfast.probes import open_model

        return open_model(self.config, listener, with_reference=with_reference)

    def tag(self, subject: Subject) -> str:
        return Path(self.name).name

    def title(self, subject: Subject) -> str:
        return self.name


def _source(of: str, checkpoint: str | None, recipe: str | None, settings: list[str], moments: bool) -> _Run | _Model:
    """What somebody means by a name. Raises `ConfigError`."""
    from holdfast.cli.runs import ROOT, find_run
    from holdfast.cli.train import read_recipe
    from holdfast.config import Config
    from holdfast.run_folder import is_run
    from holdfast.settings import parse_overrides

    if "model.path" in parse_overrides(settings, Config):
        raise ConfigError(f"--model.path: what is probed is {of}; leave --model.path out")
    if recipe is None:
        try:
            return _Run(find_run(of), checkpoint or "last", settings, moments)
        except ConfigError as error:
            raise ConfigError(f"{error}. To probe a model, say with --recipe what it is asked") from None
    if is_run(Path(of)) or is_run(ROOT / of):
        raise ConfigError(f"--recipe {recipe}: {of} is a run and has its own; leave --recipe out, or change settings")
    if checkpoint is not None:
        raise ConfigError(f"--checkpoint {checkpoint} with --recipe: {of} is taken as a model; leave --checkpoint out")
    if moments:
        raise ConfigError(f"--moments with --recipe: {of} is taken as a model, which has no optimizer; leave it out")
    as_it_is = ["--model.path", of, "--warm_start.steps", "0", "--world.scripts.plain_steps", "0"]
    return _Model(of, read_recipe(recipe, [*settings, *as_it_is])[0])


def _made(folder: Path) -> Path:
    """The folder, before anything takes long. Raises `ConfigError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made ({error.strerror}); say with --out where to write") from None
    return folder
