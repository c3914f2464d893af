"""`holdfast eval`: a model, a method, questions; and `holdfast eval compare`, whether two results differ."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.terminal import ABSENT, err, out
from holdfast.errors import ConfigError
from holdfast.evals.methods import METHODS, Method, method_named
from holdfast.run_folder import is_run, list_checkpoints


class Scorer(StrEnum):
    TABLE = "table"
    OFFICIAL = "official"


def evaluate(
    ctx: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL | compare A B",
            help="A run folder, a checkpoint, a model folder, a hub id, or a server's model. Or `compare` and two "
            "folders of results.",
            show_default=False,
        ),
    ],
    method: Annotated[str, typer.Option(metavar="METHOD", help=f"{', '.join(METHODS)}.")] = "search-r1",
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DATA",
            help="A file of questions, a set (nq, seven …), world, test or dev. May be repeated. Default: the run's "
            "own test questions.",
        ),
    ] = None,
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="Ask an OpenAI-compatible server.", show_default=False)
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of the server's model. Default: MODEL. `none`: plain text."),
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Answers per question, sampled. Default: one, greedy.", show_default=False)
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only the first so many questions of each set.", show_default=False)
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where. Default: runs/evals/…", show_default=False)
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="ROW", help="What a table calls it.", show_default=False)
    ] = None,
    checkpoint: Annotated[
        str, typer.Option(metavar="WHICH", help="Of a run: `last`, `best`, a step, or a folder.")
    ] = "last",
    scorer: Annotated[Scorer, typer.Option(help="One rule for all sets, or each set's official one.")] = Scorer.TABLE,
    bare: Annotated[
        bool, typer.Option("--bare", help="direct and rag: no instructions, as a model taught on examples is asked.")
    ] = False,
    batch: Annotated[
        int, typer.Option(min=1, help="Answers at once: fewer take less memory, and a stop loses less.")
    ] = 128,
) -> None:
    """Evaluate a model with a method, or compare two results.

    Greedy unless --samples is given. Stop at any time: the same command goes on.
    Settings stand above a run's own:

    [cyan]holdfast eval runs/quickstart[/cyan]
    [cyan]holdfast eval Qwen/Qwen2.5-3B-Instruct --method rag --data nq.jsonl --retrieval.url http://127.0.0.1:8000[/cyan]
    [cyan]holdfast eval compare runs/evals/a runs/evals/b[/cyan]
    """
    settings: list[str] = ctx.meta["settings"]
    if words[0] == "compare":
        _compare(words[1:])
        return
    if len(words) > 1:
        raise ConfigError(f"one model at a time: {words[0]} was given, and {' '.join(words[1:])} besides")
    results, where = _evaluate(
        words[0],
        method_named(method),
        data or [],
        settings,
        server=server,
        tokenizer=tokenizer,
        samples=samples,
        limit=limit,
        folder=folder,
        name=name,
        checkpoint=checkpoint,
        scorer=scorer.value,
        bare=bare,
        batch=batch,
    )
    _show(results, where)


def _evaluate(
    model: str,
    method: Method,
    data: list[str],
    settings: list[str],
    *,
    folder: Path | None,
    name: str | None,
    limit: int | None,
    batch: int,
    scorer: str,
    bare: bool,
    samples: int | None,
    **opening: Any,
) -> tuple[dict[str, Any], Path]:
    from holdfast.cli.console import open_console
    from holdfast.cli.extra import train_extra

    with train_extra(err(), "loading PyTorch and transformers"):
        from holdfast.evals.model import open_model, retriever_for, settings_of
        from holdfast.evals.questions import load_questions
        from holdfast.evals.run import Evaluation
        from holdfast.language_model import set_up_torch

    model = _in_runs(model)
    config, run = settings_of(model, settings, data)
    if not data:
        data = ["world"] if config.data.train == "world" else ["test"]
    folder = folder or _usual_folder(model, method.name, data, samples)
    with open_console(err(), folder) as listener:
        set_up_torch(config)
        listener.stage("questions and passages")
        examples = load_questions(data, config, limit=limit)
        retriever = retriever_for(method, config, data, listener.note)
        listener.stage("loading the model")
        evaluated = open_model(model, config, run, samples=samples, given=settings, **opening)
        taught = run is not None and config.warm_start.teaches == method.name and not _trained_on(run)
        evaluation = Evaluation(
            evaluated,
            method,
            examples,
            retriever,
            samples=samples,
            scorer=scorer,
            bare=bare or taught,
            row=name or f"{Path(model).name} {method.name}",
        )
        try:
            return evaluation.run(folder, listener, batch=batch), folder
        finally:
            if hasattr(evaluated.policy, "close"):
                evaluated.policy.close()


def _trained_on(run: Path) -> bool:
    """Whether reinforcement learning followed the warm start."""
    return bool(list_checkpoints(run))


def _in_runs(model: str) -> str:
    """The name of a run in runs/ stands for its folder."""
    from holdfast.cli.runs import ROOT

    return str(ROOT / model) if not Path(model).exists() and is_run(ROOT / model) else model


def _usual_folder(model: str, method: str, data: list[str], samples: int | None) -> Path:
    """runs/evals/MODEL-METHOD-DATA; other settings under the same name are refused there, not mixed."""
    parts = [Path(model).name or "model", method, *[Path(one).name.split(".")[0] for one in data]]
    return Path("runs") / "evals" / "-".join([*parts, *([f"{samples}-samples"] if samples else [])])


def _show(results: dict[str, Any], folder: Path) -> None:
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), collapse_padding=True, pad_edge=False, header_style="bold")
    table.add_column(results["method"], style="dim", no_wrap=True)
    for title in ("asked", "EM (95 %)", "F1", "subEM", "hit", "searches", "cut", "failed"):
        table.add_column(title, justify="right", no_wrap=True)
    totals = {"mean of sets": results["macro"], "all questions": results["micro"]}
    for title, own in {**results["sets"], **totals}.items():
        low, high = own.get("em_interval", (None, None))
        table.add_row(
            title,
            str(own["questions"]) if "questions" in own else "",
            f"{own['em']:.3f} ({low:.3f}–{high:.3f})" if low is not None else ABSENT,
            _number(own.get("f1")),
            _number(own.get("sub_em")),
            _number(own.get("hit")),
            _number(own.get("searches"), ".2f"),
            _number(own.get("truncated")),
            str(own["failed"]) if "failed" in own else "",
        )
    console = out()
    console.print(table)
    if failed := results["micro"]["failed"]:
        console.print(f"\n{failed} answer(s) failed and are in no mean; the same command asks them again.")
    console.print(f"\n{folder / 'results.json'}", soft_wrap=True)


def _compare(words: list[str]) -> None:
    if len(words) != 2:
        raise ConfigError("compare takes two folders of results: holdfast eval compare A B")
    from rich.table import Table

    from holdfast.evals.results import compare

    found = compare(Path(words[0]), Path(words[1]))
    table = Table(box=None, padding=(0, 1), collapse_padding=True, pad_edge=False, header_style="bold")
    for title in ("EM", "asked", "A", "B", "B - A (95 %)", "only A", "only B", "p"):
        table.add_column(title, justify="left" if title == "EM" else "right", no_wrap=True)
    for own in found.rows:
        table.add_row(
            own.set,
            str(own.questions),
            f"{own.a:.3f}",
            f"{own.b:.3f}",
            f"{own.difference:+.3f} ({own.low:+.3f} to {own.high:+.3f})",
            ABSENT if own.only_a is None else str(own.only_a),
            ABSENT if own.only_b is None else str(own.only_b),
            ABSENT if own.p is None else f"{own.p:.2g}",
        )
    console = out()
    console.print(f"A  {found.name_a}\nB  {found.name_b}\n")
    console.print(table)
    console.print(
        "\nonly A, only B: questions that one has right and the other wrong; p: exact McNemar test.", style="dim"
    )
    for note in found.notes:
        console.print(f"note: {note}", soft_wrap=True)


def _number(value: float | None, form: str = ".3f") -> str:
    return "" if value is None else format(value, form)
