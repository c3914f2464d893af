"""`holdfast init`: a recipe that fits one's own documents, questions and model, and demonstrations."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from holdfast.base.errors import ConfigError, DataError, ModelError
from holdfast.base.jsonl import Skips
from holdfast.cli.terminal import out, program, train_extra, waiting
from holdfast.model.settings import Model
from holdfast.recipe import load
from holdfast.tasks.demonstrations import write_demonstrations
from holdfast.tasks.files import read_questions, write_examples
from holdfast.tasks.opening import open_retriever, open_tasks
from holdfast.tasks.questions import Example, dev_questions
from holdfast.train.prepare import prepare

if TYPE_CHECKING:
    from holdfast.model.language_model import LanguageModel

_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
_HELD_OUT = 5
"""One question of so many is held out, at most 200."""
_MIN_QUESTIONS = 10
_NAMED = 3
"""Held-out questions that are named."""


def init(
    docs: Annotated[Path, typer.Argument(metavar="DOCS", help="A folder of documents, or a file of passages.")],
    questions: Annotated[
        Path | None, typer.Argument(metavar="[QUESTIONS]", help="Questions with answers: .jsonl, .csv, .parquet.")
    ] = None,
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="A model folder, or the hub id of a downloaded model.")
    ] = _MODEL,
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Output folder. Default: DOCS-agent.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Write into the folder even if it is not empty.")
    ] = False,
) -> None:
    """Write a recipe that fits your documents, your questions and your model.

    Reads the documents, and holds out a fifth of the questions. Measures how many
    passages a search must return, how long they are for the model's tokenizer,
    and whether its chat template has tools. Then writes the recipe, an index and
    demonstrations into a folder, checks the recipe as a dry run does, and warns if
    there is too little to learn from.

    [cyan]holdfast init docs questions.csv[/cyan]

    [cyan]holdfast init docs questions.csv --model Qwen/Qwen2.5-0.5B-Instruct --out my[/cyan]
    """
    console = out()
    if not docs.exists():
        raise ConfigError(f"{docs} does not exist; give a folder of documents, or a file of passages")
    name = re.sub(r"[^\w.-]+", "-", docs.resolve().stem).strip("-.") or "docs"
    folder = folder or Path(f"{name}-agent")
    if folder.exists() and any(folder.iterdir()) and not overwrite:
        raise ConfigError(f"{folder} is not empty; choose another folder with --out, or give --overwrite")
    asked = _questions(questions) if questions else None  # before what takes seconds to load
    for note in asked.notes if asked else ():
        console.print(f"{questions}: {note}", soft_wrap=True)
    with train_extra("loading PyTorch and transformers"):
        from holdfast.model.language_model import load_skeleton
    skeleton = load_skeleton(Model(path=model))
    if skeleton is None:
        raise ModelError(
            f"--model {model}: its tokenizer is needed, but it is not on this machine. Give the folder of a model, or "
            f"get one with {program()} model get smollm2"
        )
    with _whole(folder):
        head = {
            "run": {"name": re.sub(r"[^\w.-]+", "-", folder.resolve().name).strip("-.") or name},
            "data": {"train": "train.jsonl", "dev": "dev.jsonl"},
            "retrieval": {"corpus": os.path.relpath(docs, folder), "index": "index"},
            "model": {"path": os.path.relpath(model, folder) if Path(model).exists() else model},
        }
        _write(console, skeleton, folder, head, asked)


def _write(
    console: Console, skeleton: LanguageModel, folder: Path, head: dict[str, Any], asked: _Questions | None
) -> None:
    """Everything in the folder; says what was measured, and what is too little."""
    from holdfast.train.fitting import answer_ranks, as_toml, fitted

    shutil.rmtree(folder / "index", ignore_errors=True)  # of other documents, perhaps
    recipe = folder / "recipe.toml"
    if asked is not None:
        write_examples(folder / "train.jsonl", asked.train, "jsonl")
        write_examples(folder / "dev.jsonl", asked.dev, "jsonl")
        console.print(f"{len(asked.train):,} questions to train on, {len(asked.dev):,} held out")
    recipe.write_text(as_toml(head), encoding="utf-8")
    draft = load(recipe)
    notes: list[str] = []
    with waiting("Reading the documents"):
        retriever = open_retriever(draft, open_tasks(draft), notes.append)
    for note in notes:
        console.print(note, soft_wrap=True)
    with waiting("Searching for the questions, and measuring passages"):
        fit = fitted(skeleton, retriever.documents, retriever, asked.train if asked else ())
    settings = {**head, **fit.settings, "model": {**head["model"], **fit.settings["model"]}}
    rows = fit.made.rows if fit.made else ()
    if rows:
        write_demonstrations(folder / "demonstrations.jsonl", rows)
        settings["warm_start"] = {"data": "demonstrations.jsonl", **settings["warm_start"]}
    recipe.write_text(as_toml(settings), encoding="utf-8")

    limits = fit.settings["protocol"]
    if fit.found:
        counts = ", ".join(f"{count:,} with {k}" for k, count in fit.found.items())
        console.print(
            f"A search for the question shows the answer to so many of {fit.asked:,} training questions: {counts} "
            f"passages. The recipe has protocol.topk = {limits['topk']}.",
            soft_wrap=True,
        )
    console.print(
        f"An observation has room for {limits['topk']} passage{'s' * (limits['topk'] > 1)}, except for the longest 5 "
        f"%: protocol.max_observation_tokens = {limits['max_observation_tokens']}. The protocol is {limits['preset']}.",
        soft_wrap=True,
    )
    if asked is None or fit.made is None:
        console.print(
            f"Wrote {recipe}, without questions. Write some, one per line, and run this again with the file and "
            '--overwrite:\n  {"question": "Which lake is the deepest?", "golden_answers": ["Orsa", "Lake Orsa"]}',
            soft_wrap=True,
        )
        return
    twice = sum(len(turns) > 2 for _, turns in rows)
    console.print(
        f"{len(rows):,} of {fit.made.asked:,} questions became demonstrations, {twice:,} of them with a second search",
        soft_wrap=True,
    )
    for gap in fit.made.gaps:
        console.print(f"  {gap}", soft_wrap=True)
    ranks = answer_ranks(asked.dev, retriever)
    lost = [example.question for example, rank in zip(asked.dev, ranks, strict=True) if rank > limits["topk"]]
    console.print(
        f"A search for the question shows the answer to {len(asked.dev) - len(lost):,} of {len(asked.dev):,} held-out "
        "questions" + (f". It does not for: {' · '.join(lost[:_NAMED])}" if lost else ""),
        soft_wrap=True,
    )
    if "custom" in fit.settings["reward"]:
        console.print(
            "The reward compares answers in any script: reward.custom. Evaluate with --scorer unicode", soft_wrap=True
        )
    prepared = prepare(load(recipe))
    for note in prepared.notes:
        console.print(f"note: {note}.", soft_wrap=True)
    if prepared.needs:
        console.print(f"Training needs {prepared.needs}.", soft_wrap=True)
    console.print("The prompt of the first question, as the model reads it:\n", soft_wrap=True)
    console.print(prepared.prompt or "", soft_wrap=True)
    if rows:
        start = f"{head['run']['name']}-start"
        console.print(
            "\nDone. Teach it to search, ask it, and then let it learn from its own searches:\n"
            f"  {program()} warm-start {quote(str(recipe))} --run.name {quote(start)}\n"
            f"  {program()} ask {quote(start)} {quote(asked.dev[0].question)}\n"
            f"  {program()} train {quote(str(recipe))}",
            soft_wrap=True,
        )
        return
    show = f"{program()} index show {quote(str(folder / 'index'))} {quote(asked.train[0].question)}"
    console.print(
        "\nThere are no demonstrations, and without them a model that does not search yet never learns to. An answer "
        f"must occur in a document exactly as in the file of questions. See what a search finds: {show}",
        soft_wrap=True,
    )


@contextmanager
def _whole(folder: Path) -> Iterator[None]:
    """Makes the folder. After an error a new or empty one is gone, so that the command can be repeated."""
    is_new = not folder.exists() or not any(folder.iterdir())
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        raise


@dataclass(frozen=True, slots=True)
class _Questions:
    train: tuple[Example, ...]
    dev: tuple[Example, ...]
    notes: list[str]
    """On rows that cannot be used, and questions that the file has several times."""


def _questions(path: Path) -> _Questions:
    """The questions of a file, each once: one that stands there again would be in training and held out. Raises
    `DataError`."""
    skips = Skips()
    rows = read_questions(path, on_skip=skips)
    once: dict[str, Example] = {}
    others = 0
    for row in rows:
        key = " ".join(row.question.casefold().split())
        first = once.setdefault(key, row)
        answers = tuple(dict.fromkeys((*first.golden_answers, *row.golden_answers)))
        others += len(answers) > len(first.golden_answers)
        once[key] = replace(first, golden_answers=answers)
    if len(once) < _MIN_QUESTIONS:
        raise DataError(
            f"{path} has {len(once)} questions; a recipe needs {_MIN_QUESTIONS}, and a model learns from hundreds"
        )
    dev = tuple(dev_questions(list(once.values()), min(len(once) // _HELD_OUT, 200)))
    held = {example.index for example in dev}
    notes = skips.sentences()
    if again := len(rows) - len(once):
        got = f", and {others:,} got another golden answer by it" if others else ""
        notes.append(f"{again:,} of {len(rows):,} rows repeat a question; each question is asked once{got}")
    return _Questions(tuple(example for example in once.values() if example.index not in held), dev, notes)
