"""`holdfast eval`: `run` evaluates a model with a method on questions, `compare` says whether two results differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from holdfast.base.errors import ConfigError
from holdfast.base.jsonl import write_jsonl
from holdfast.base.run_folder import is_run, list_checkpoints, missing_file, step_of
from holdfast.cli.command import SettingsCommand
from holdfast.cli.console import open_console
from holdfast.cli.recipes import allow
from holdfast.cli.runs import WHICH_CHECKPOINT, TrustCode, complete_run, in_runs
from holdfast.cli.terminal import ABSENT, HELP_OPTIONS, err, out, train_extra
from holdfast.evaluate.folder import OVER_TRAINING
from holdfast.evaluate.methods import method_named
from holdfast.evaluate.questions import load_questions, usual_questions
from holdfast.evaluate.results import compare as compare_evaluations
from holdfast.evaluate.servers import find_server, key_in
from holdfast.recipe.loading import find_recipe

EVERY = "all"
"""`--checkpoint` for every checkpoint that a run has kept."""

_LEGEND = (
    "asked: questions · subEM: the answer contains a golden one · hit: a passage contains one\n"
    "searches: per question · cut: share of answers that ran out of turns or tokens"
)

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", context_settings=HELP_OPTIONS)


@app.callback()
def evaluate() -> None:
    """Evaluate a model on questions, or compare two evaluations.

    [cyan]holdfast eval run runs/quickstart[/cyan]

    [cyan]holdfast eval compare runs/evals/a runs/evals/b[/cyan]
    """


@app.command("run", cls=SettingsCommand)
def run(
    ctx: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A run folder, a checkpoint, a model folder or a hub id. With --server: the name of its model, or a "
            "run whose recipe to use. Default: the only model of the server.",
            autocompletion=complete_run,
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="RECIPE",
            help="Evaluate as this recipe says: a TOML file, or the name of a bundled one. Default: the recipe of the "
            "run; for a model folder or a hub id, the defaults.",
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(metavar="METHOD", help="How the model answers, from the list above.")
    ] = "search-r1",
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DATA",
            help="Questions: a file, a published set (nq, hotpotqa …), `seven` (the test sets of `holdfast data "
            "list`), `test` or `dev` of the recipe, or `world`. Without data.dev, `dev` is what training holds out. "
            "May be repeated. Default: `test`, or `dev` of files that have no test questions.",
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Use a model on this OpenAI-compatible server. For a chat endpoint, add the path "
            "/v1/chat/completions.",
        ),
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(metavar="VARIABLE", help="Environment variable with the API key. Default: OPENAI_API_KEY."),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Tokenizer of the server's model; `none` sends plain text. Default: MODEL."),
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Answers to sample per question. Default: one greedy answer.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the first N questions of each set.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Output folder. Default: runs/evals/…")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="ROW", help="Name of the result in tables. Default: MODEL METHOD.")
    ] = None,
    checkpoint: Annotated[
        str,
        typer.Option(metavar="WHICH", help=f"{WHICH_CHECKPOINT}; `all`: every saved one, for scores over training."),
    ] = "last",
    scorer: Annotated[
        Literal["table", "unicode", "official"],
        typer.Option(
            help="`table`: exact match as in Search-R1, for all sets; `unicode`: for answers in any language; "
            "`official`: the official rule of each set."
        ),
    ] = "table",
    bare: Annotated[
        bool,
        typer.Option(
            "--bare",
            help="For methods direct and rag: no instructions, for a model fine-tuned on short answers.",
        ),
    ] = False,
    thinking_tokens: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="For a model that thinks: tokens per call in addition to the method's limit. For the search agent, "
            "set protocol.max_turn_tokens instead.",
        ),
    ] = 0,
    batch: Annotated[
        int, typer.Option(min=1, metavar="N", help="Answers per batch. A smaller batch needs less memory.")
    ] = 128,
    trust_code: TrustCode = False,
) -> None:
    """Evaluate a model on questions.

    Methods:

      direct     answer from the model's own knowledge
      cot        reason step by step, then answer
      rag        retrieve once with the question, then answer
      ircot      retrieve with each sentence of the reasoning
      search-o1  search while reasoning, and extract facts from the documents
      r1         a model trained by RL to reason and answer, without search
      search-r1  the search agent of Search-R1: think, search, answer, in turns

    Answers are greedy unless --samples is given. A run is evaluated with its own
    recipe, and a model that TRL or verl trained with the recipe.toml that
    `holdfast launch` wrote. Settings on the command line override the recipe.
    Writes the answers and results.json to the output folder. If it stops, run the
    same command again: it continues.

    [cyan]holdfast eval run runs/quickstart[/cyan]

    [cyan]holdfast eval run runs/my --recipe recipe.toml --data dev[/cyan]

    [cyan]holdfast eval run Qwen/Qwen2.5-3B-Instruct --method rag --data nq.jsonl --retrieval.url http://127.0.0.1:8000[/cyan]
    """
    settings: list[str] = ctx.meta["settings"]
    chosen = method_named(method)
    if bare and chosen.bare is None:
        raise ConfigError(
            f"--bare has no effect with --method {method}, which always gives instructions; leave it out, or use "
            "--method direct or rag"
        )
    if thinking_tokens and chosen.conversation is None:
        raise ConfigError(
            f"--thinking-tokens has no effect with --method {method}, whose turns are limited by "
            f"protocol.max_turn_tokens; set --protocol.max_turn_tokens {thinking_tokens}"
        )
    with train_extra("loading PyTorch and transformers"):
        from holdfast.evaluate.model import open_model, retriever_for, run_at, settings_of
        from holdfast.evaluate.run import Evaluation
        from holdfast.tasks.machine import set_up_torch
    endpoint, model = None, None if model is None else in_runs(model)
    if server is not None:
        served = None if model is None or run_at(model) else model
        endpoint = find_server(server, served, api_key=key_in(api_key_env))
    elif model is None:
        raise ConfigError("MODEL is missing: give a run folder, a model folder, a name on the hub, or --server")
    elif api_key_env is not None:
        raise ConfigError(f"--api-key-env {api_key_env} has no effect without --server; leave it out")
    shown = model or (endpoint.model if endpoint else "")
    config, run_dir = settings_of(model, settings, data or [], find_recipe(recipe) if recipe else None)
    allow(config, None if recipe else run_dir, settings, trusted=trust_code)
    data = data or [usual_questions(config)]
    every = checkpoint == EVERY
    checkpoints = _checkpoints(checkpoint, shown, server)
    folder = folder or _default_folder(shown, method, data, samples, every=every)
    with open_console(err(), folder) as listener:
        set_up_torch(config)
        listener.stage("questions and passages")
        examples = load_questions(data, config, limit=limit)
        retriever = retriever_for(chosen, config, data, listener.note)

        def results_of(which: str) -> dict[str, Any]:
            """The results of a checkpoint. Its model is freed at the end: two of them may not fit into memory."""
            listener.stage("loading the model")
            evaluated = open_model(
                model,
                config,
                run_dir,
                samples=samples,
                given=settings,
                server=endpoint,
                tokenizer=tokenizer,
                checkpoint=which,
                note=listener.note if which == checkpoints[0] else None,
            )
            evaluation = Evaluation(
                evaluated,
                chosen,
                examples,
                retriever,
                samples=samples,
                scorer=scorer,
                bare=bare,
                thinking_tokens=thinking_tokens,
                row=(name or f"{Path(shown).name} {method}") + (f" step {which}" if every else ""),
            )
            into = folder / f"step-{int(which):06d}" if every else folder
            try:
                return evaluation.run(into, listener, batch=batch)
            finally:
                if hasattr(evaluated.policy, "close"):
                    evaluated.policy.close()

        by_checkpoint = {which: results_of(which) for which in checkpoints}
    if every:
        _show_training(by_checkpoint, folder)
    else:
        _show(by_checkpoint[checkpoint], folder)


@app.command("compare")
def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="Output folder of an evaluation.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Output folder of another evaluation.")],
) -> None:
    """Test whether two evaluations differ, question by question.

    Reads two output folders of [cyan]holdfast eval run[/cyan]. Prints for each question set
    the difference of exact match (EM), its 95 % interval, and the p-value of an
    exact McNemar test.

    [cyan]holdfast eval compare runs/evals/a runs/evals/b[/cyan]
    """
    comparison = compare_evaluations(first, second)
    table = _table("EM", "asked", "A", "B", "B - A (95 %)", "only A", "only B", "p")
    for row in comparison.rows:
        table.add_row(
            row.set,
            str(row.questions),
            f"{row.a:.3f}",
            f"{row.b:.3f}",
            f"{row.difference:+.3f} ({row.low:+.3f} to {row.high:+.3f})",
            ABSENT if row.only_a is None else str(row.only_a),
            ABSENT if row.only_b is None else str(row.only_b),
            ABSENT if row.p is None else f"{row.p:.2g}",
        )
    console = out()
    console.print(f"A  {comparison.name_a}\nB  {comparison.name_b}\n")
    console.print(table)
    console.print("\nonly A, only B: questions that only A, or only B, answers correctly", style="dim")
    for note in comparison.notes:
        console.print(f"note: {note}", soft_wrap=True)


def _default_folder(model: str, method: str, data: list[str], samples: int | None, *, every: bool) -> Path:
    """runs/evals/MODEL-METHOD-DATA. Results with other settings in that folder are refused, not mixed."""
    parts = [Path(model).name[:128] or "model", method, *[Path(name).name.split(".")[0] for name in data]]
    parts += [f"{samples}-samples"] if samples else []
    return Path("runs") / "evals" / "-".join([*parts, *(["all-checkpoints"] if every else [])])


def _checkpoints(which: str, model: str, server: str | None) -> list[str]:
    """The checkpoints to evaluate: of `all`, the steps of a run's complete ones, in order."""
    if which == EVERY and server is not None:
        raise ConfigError(
            "--checkpoint all cannot be combined with --server, which has one model; leave one of them out"
        )
    run = Path(model)
    if which != "last" and not is_run(run):
        raise ConfigError(
            f"--checkpoint {which} chooses among the checkpoints of a run, and {model} is not a run folder; leave it "
            "out, or give the run"
        )
    if which != EVERY:
        return [which]
    steps = sorted(step_of(folder) for folder in list_checkpoints(run) if missing_file(folder) is None)
    if not steps:
        raise ConfigError(f"{run} has no complete checkpoint; see checkpoint.every and checkpoint.keep")
    return [str(step) for step in steps]


def _show_training(by_step: dict[str, dict[str, Any]], folder: Path) -> None:
    """EM of each set by step, also as a log that `holdfast report` draws."""
    scores = {
        step: {title: row.get("em") for title, row in [*results["sets"].items(), ("mean of sets", results["macro"])]}
        for step, results in by_step.items()
    }
    write_jsonl(folder / OVER_TRAINING, ({"step": int(step), **of_sets} for step, of_sets in scores.items()))
    any_results = next(iter(by_step.values()))
    asked = {title: f" ({row['scored']})" for title, row in any_results["sets"].items()}
    table = _table("EM (95 %) at step", *(f"{title}{asked.get(title, '')}" for title in next(iter(scores.values()))))
    for step, results in by_step.items():
        table.add_row(step, *map(_em, [*results["sets"].values(), results["macro"]]))
    console = out()
    console.print(table)
    console.print("in parentheses: questions, and 95 % intervals over them", style="dim")
    console.print(f"\nholdfast report {folder / OVER_TRAINING}", soft_wrap=True)


def _show(results: dict[str, Any], folder: Path) -> None:
    table = _table(results["method"], "asked", "EM (95 %)", "F1", "subEM", "hit", "searches", "cut", "failed")
    table.columns[0].style = "dim"
    totals = {"mean of sets": results["macro"], "all questions": results["micro"]}
    for title, row in {**results["sets"], **totals}.items():
        table.add_row(
            title,
            str(row["questions"]) if "questions" in row else "",
            _em(row),
            _number(row.get("f1")),
            _number(row.get("sub_em")),
            _number(row.get("hit")),
            _number(row.get("searches"), ".2f"),
            _number(row.get("truncated")),
            str(row["failed"]) if "failed" in row else "",
        )
    console = out()
    console.print(table)
    console.print(_LEGEND, style="dim")
    if failed := results["micro"]["failed"]:
        console.print(
            f"\n{failed} answer(s) failed and are left out of all means. Run the same command again to retry them."
        )
    console.print(f"\n{folder / 'results.json'}", soft_wrap=True)


def _em(row: dict[str, Any]) -> str:
    """EM with its interval."""
    low, high = row.get("em_interval", (None, None))
    return ABSENT if low is None else f"{row['em']:.3f} ({low:.3f}–{high:.3f})"


def _table(first: str, *others: str) -> Any:
    """A plain table: the first column to the left, the others to the right."""
    table = Table(box=None, padding=(0, 1), collapse_padding=True, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    for title in others:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _number(value: float | None, form: str = ".3f") -> str:
    return "" if value is None else format(value, form)
