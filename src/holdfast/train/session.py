"""From a recipe to the things a run works with: questions, retrievers, protocol, model. And back from a run folder."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from holdfast.config import Config, load
from holdfast.data import Example, hold_out, read_questions
from holdfast.errors import CheckpointError, ConfigError
from holdfast.jsonl import Skipped
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.cache import CachedRetriever
from holdfast.retrieval.client import HTTPRetriever
from holdfast.retrieval.corpus import corpus_hash, passages
from holdfast.retrieval.index import open_index
from holdfast.retrieval.manifest import MANIFEST
from holdfast.retrieval.types import Document
from holdfast.search.protocol import PRESETS, SearchProtocol, render_prompt
from holdfast.train.checkpoint import model_folder
from holdfast.train.model import load_model, pick_device
from holdfast.world.bundle import world_of
from holdfast.world.facts import World

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Everything of a run but the weights."""

    config: Config
    train: tuple[Example, ...]
    dev: tuple[Example, ...]
    test: tuple[Example, ...]
    """Empty when the recipe names none."""
    train_retriever: CachedRetriever
    eval_retriever: CachedRetriever
    """Over all passages. In the bundled world training sees the passages of its own region only."""
    protocol: SearchProtocol
    world: World | None
    device: torch.device

    def prompt(self, example: Example, tokenizer: Any) -> tuple[int, ...]:
        """Token ids of a question's prompt."""
        return tuple(render_prompt(example.question, self.protocol, tokenizer, self.config.model.chat_template))


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A trained agent, ready to be asked."""

    model: Any
    tokenizer: Any
    retriever: CachedRetriever
    protocol: SearchProtocol
    config: Config
    device: torch.device
    autocast_dtype: torch.dtype | None = None


def cache_dir() -> Path:
    """Where warm starts are kept: `$HOLDFAST_CACHE`, else `$XDG_CACHE_HOME/holdfast`, else `~/.cache/holdfast`."""
    if home := os.environ.get("HOLDFAST_CACHE"):
        return Path(home)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"


def open_workspace(config: Config, *, note: Callable[[str], None] | None = None) -> Workspace:
    """Read or build questions and retrievers.

    `note` is told how many rows of a file were skipped, and why the first was; without it that is logged. Errors name
    the file and the line.
    """
    device = pick_device(config.run.device)
    if config.data.train == "world":
        world = world_of(config.world)
        own = {region: tuple(q.example for q in questions) for region, questions in world.questions.items()}
        eval_retriever = _retriever(config, world.documents())
        train_retriever = _retriever(config, world.documents("train"))
    else:
        world = None
        own = _own_questions(config, note)
        train_retriever = eval_retriever = _own_retriever(config, note)
    return Workspace(
        config=config,
        train=own["train"],
        dev=own["dev"],
        test=own["test"],
        train_retriever=train_retriever,
        eval_retriever=eval_retriever,
        protocol=protocol_of(config),
        world=world,
        device=device,
    )


def protocol_of(config: Config) -> SearchProtocol:
    """The preset with the recipe's limits and prompt."""
    own = config.protocol
    preset = PRESETS[own.preset]
    limits = own.model_dump(exclude={"preset", "prompt"}, exclude_none=True)
    return replace(preset, prompt=own.prompt or preset.prompt, **limits)


def recipe_of(run_dir: Path, overrides: Sequence[str] = ()) -> Config:
    """The recipe of a run, with overrides, for the machine at hand: what was trained on a GPU opens anywhere."""
    path = run_dir / "config.toml"
    anywhere = ["--run.device", "auto"] if load(path).run.device == "cuda" else []
    return load(path, [*anywhere, *overrides])


def open_agent(run_dir: str | Path, checkpoint: str = "last") -> Agent:
    """The agent of a run folder. `checkpoint` is `last`, `best` (on dev) or the path of a saved model."""
    run_dir = Path(run_dir)
    if not (run_dir / "config.toml").is_file():
        raise CheckpointError(
            f"{run_dir} is no run folder (it has no config.toml); give the folder `holdfast train` named"
        )
    config = recipe_of(run_dir)
    folder = model_folder(run_dir, checkpoint)
    device = pick_device(config.run.device)
    language_model = load_model(config.model, folder, device)
    return Agent(
        model=language_model.model,
        tokenizer=language_model.tokenizer,
        retriever=open_retriever(config, None),
        protocol=protocol_of(config),
        config=config,
        device=device,
        autocast_dtype=language_model.autocast_dtype,
    )


def open_retriever(config: Config, note: Callable[[str], None] | None) -> CachedRetriever:
    """The retriever of a recipe, over all passages."""
    if config.data.train == "world":
        return _retriever(config, world_of(config.world).documents())
    return _own_retriever(config, note)


@contextmanager
def telling_skipped(path: str, setting: str, note: Callable[[str], None] | None) -> Iterator[Callable[[Skipped], None]]:
    """An `on_skip` for a reader of rows, which says in one sentence how many it was given: to `note`, or the log."""
    skipped: list[Skipped] = []
    yield skipped.append
    if skipped:
        say = note or logger.warning
        say(f"{setting} = {path!r}: {len(skipped)} row(s) cannot be used and were skipped; the first: {skipped[0]}")


def _own_questions(config: Config, note: Callable[[str], None] | None) -> dict[str, tuple[Example, ...]]:
    data = config.data

    def read(path: str | None, split: str) -> tuple[Example, ...]:
        if path is None:
            return ()
        with telling_skipped(path, f"data.{split}", note) as on_skip:
            return read_questions(path, split=split, on_skip=on_skip).examples

    train, dev, test = read(data.train, "train"), read(data.dev, "dev"), read(data.test, "test")
    if data.dev is None:
        train, dev = hold_out(train)
        if not train:
            raise ConfigError(
                f"data.train = {data.train!r} holds {len(dev)} question(s), too few to hold some out for evaluation; "
                "add questions or set data.dev"
            )
    return {"train": train, "dev": dev, "test": test}


_DEVICE = "cpu"
"""Of a dense index in the process of a run: the GPU's memory is the model's. `holdfast serve` puts one on a GPU."""


def _own_retriever(config: Config, note: Callable[[str], None] | None) -> CachedRetriever:
    if config.retrieval.url is not None:
        # The rollout loop tries a failed search again by itself.
        return CachedRetriever(HTTPRetriever(config.retrieval.url, retries=0), config.retrieval.cache_size)
    if config.retrieval.corpus == "world" and config.retrieval.index is not None:
        opened = open_index(config.retrieval.index, device=_DEVICE)
        return CachedRetriever(opened, config.retrieval.cache_size)
    with telling_skipped(config.retrieval.corpus, "retrieval.corpus", note) as on_skip:
        return _retriever(config, passages(config.retrieval.corpus, on_skip=on_skip))


def _retriever(config: Config, documents: Iterable[Document]) -> CachedRetriever:
    """Over the index if it is there, for which the passages are only counted off; else over one made of them."""
    own = config.retrieval
    folder = Path(own.index) if own.index is not None else None
    if folder is not None and (folder / MANIFEST).is_file():
        found = open_index(folder, expected_hash=corpus_hash(documents), device=_DEVICE)
        if isinstance(found, BM25Retriever) and found.stem != own.stem:
            raise ConfigError(
                f"retrieval.stem = {str(own.stem).lower()}, but the index {folder} was built with stem = "
                f"{str(found.stem).lower()}. Change retrieval.stem, or name another folder in retrieval.index for the "
                "new index"
            )
        return CachedRetriever(found, own.cache_size)
    bm25 = BM25Retriever.build(tuple(documents), stem=own.stem)
    if folder is not None:
        try:
            bm25.save(folder)
        except OSError as error:
            raise ConfigError(
                f"retrieval.index = {own.index!r} cannot be written ({error.strerror}); name a folder that can"
            ) from error
    return CachedRetriever(bm25, own.cache_size)
