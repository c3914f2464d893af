"""`holdfast ask`: an agent answers one question or several, turn by turn."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator, Sequence
from os.path import exists
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.agent.trajectory import Call
from holdfast.agent.turn_parts import parts_of_turn, why_no_answer
from holdfast.base.errors import ConfigError
from holdfast.base.run_folder import is_run
from holdfast.cli.recipes import allow
from holdfast.cli.runs import ROOT, WHICH_CHECKPOINT, TrustCode, complete_run, find_run, in_runs, newest_run
from holdfast.cli.terminal import is_live, out, train_extra
from holdfast.cli.transcript import show_line, show_observation, show_turn
from holdfast.evaluate.questions import answerable, new_words
from holdfast.evaluate.servers import find_server, key_in
from holdfast.recipe.loading import find_recipe

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.agent.agent import SearchAgent
    from holdfast.agent.trajectory import Trajectory, Turn
    from holdfast.recipe import Config


def ask(
    ctx: typer.Context,
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="A run folder, or the name of a run in runs/. Default: the newest run. With --recipe: a run, a model "
            "folder or a hub id. Default: the model of the recipe.",
            autocompletion=complete_run,
        ),
    ] = None,
    question: Annotated[
        str | None,
        typer.Argument(
            metavar="QUESTION", help="A question. Default: read questions from standard input, one per line."
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="RECIPE",
            help="Ask with the protocol and the passages of this recipe: a TOML file, or the name of a bundled one. "
            "Default: the recipe of the run.",
        ),
    ] = None,
    greedy: Annotated[bool, typer.Option("--greedy/--sample", help="Decode greedily or sample.")] = True,
    checkpoint: Annotated[str, typer.Option(metavar="WHICH", help=f"{WHICH_CHECKPOINT}.")] = "last",
    server: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Use the run's model on this OpenAI-compatible server, such as vLLM."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="With --server: name of the model there. Default: the only model of the server."
        ),
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(metavar="VARIABLE", help="Environment variable with the API key. Default: OPENAI_API_KEY."),
    ] = None,
    trust_code: TrustCode = False,
) -> None:
    """Ask an agent a question, and watch it search and answer.

    Uses the model, the recipe and the passages of a run, or, before any training,
    a model with a recipe. Settings on the command line override the recipe.
    Writes nothing.

    [cyan]holdfast ask runs/quickstart "Who is the mentor of …?"[/cyan]

    [cyan]holdfast ask Qwen/Qwen2.5-3B-Instruct --recipe my.toml "Which …?"[/cyan]

    [cyan]holdfast ask runs/quickstart --checkpoint best < questions.txt[/cyan]

    [cyan]holdfast ask runs/quickstart --server http://127.0.0.1:8001[/cyan]
    """
    if server is None and (model or api_key_env):
        raise ConfigError(f"{'--model' if model else '--api-key-env'} has no effect without --server; leave it out")
    asked, question = _asked_and_question(run, question, with_recipe=recipe is not None)
    if question is None and sys.stdin is None:
        raise ConfigError("no question is given, and standard input is closed; give the question as an argument")
    console = out()
    with train_extra("loading the agent"):
        from holdfast.evaluate.model import open_agent, settings_of

        file, settings = find_recipe(recipe) if recipe else None, ctx.meta["settings"]
        model_of_recipe = settings_of(None, settings, [], file)[0].model
        named = asked or model_of_recipe.path
        if not asked and model_of_recipe.is_tiny:
            raise ConfigError(
                f"the tiny model of {recipe} exists only after training; train it first, or name another model"
            )
        config, folder = settings_of(named, settings, [], file)
        allow(config, None if file else folder, settings, trusted=trust_code)
        if folder is None and checkpoint != "last":
            raise ConfigError(
                f"--checkpoint {checkpoint} chooses among the checkpoints of a run; leave it out, or give the run"
            )
        endpoint = None if server is None else find_server(server, model, api_key=key_in(api_key_env))
        agent = open_agent(named, config, folder, greedy=greedy, checkpoint=checkpoint, server=endpoint, given=settings)
    if question is None and sys.stdin.isatty() and is_live(console):
        console.print(f"holdfast · {named}")
        _offer(folder, config, console)
        console.print("Press Enter on an empty line to quit.", style="dim")
        for typed in _typed_questions():
            answer(agent, typed, console, echo=False, notes=new_words(typed, agent, config))
        return
    failed = unsure = False
    for number, line in enumerate(filter(str.strip, sys.stdin) if question is None else [question]):
        if number:
            console.print()
        notes = new_words(line.strip(), agent, config)
        trajectory = answer(agent, line.strip(), console, notes=notes)
        failed |= trajectory.error is not None
        unsure |= bool(notes)
    if unsure:
        console.print()
        _offer(folder, config, console)
    if failed:
        raise typer.Exit(2)


def answer(
    agent: SearchAgent, question: str, console: Console, *, echo: bool = True, notes: Sequence[str] = ()
) -> Trajectory:
    """Roll out one question and print each turn as it comes, then the answer or the reason why it is missing.

    `notes` are printed before the turns.
    """

    def show(_task: Any, turn: Turn) -> None:
        show_turn(console, parts_of_turn(turn, agent.protocol))
        if turn.observation_text:
            returned = isinstance(turn.action, Call)
            show_observation(console, turn.observation_text, agent.protocol, is_result=returned)
        console.file.flush()

    if echo:
        show_line(console, "question", question)
    for note in notes:
        show_line(console, "note", note)
    trajectory = agent.ask(question, seed=secrets.randbits(63), on_turn=show)
    if trajectory.answer is None:
        show_line(console, "answers", f"nothing: {why_no_answer(trajectory, agent.protocol)}", style="red")
    return trajectory


def _asked_and_question(run: str | None, question: str | None, *, with_recipe: bool) -> tuple[str | None, str | None]:
    """What is asked, and the question: `holdfast ask "a question"` asks the newest run, or the model of the recipe."""
    if run is not None and question is None and " " in run and not exists(run) and not is_run(ROOT / run):
        run, question = None, run
    if with_recipe:
        return None if run is None else in_runs(run), question
    asked = newest_run() if run is None else find_run(run, "; to ask a model, give a recipe with --recipe")
    return str(asked), question


def _offer(folder: Path | None, config: Config, console: Console) -> None:
    """Print three questions that the agent of a run can be asked."""
    if folder is not None:
        what, questions = answerable(folder, config)
        if questions:
            console.print(f"To try, {what}:\n" + "\n".join(f"  {text}" for text in questions))


def _typed_questions() -> Iterator[str]:
    """Lines typed after a prompt, until an empty one."""
    import readline  # noqa: F401  (arrow keys and history in input())

    while True:
        try:
            line = input("\n> ").strip()
        except EOFError:
            print()
            return
        if not line:
            return
        yield line
