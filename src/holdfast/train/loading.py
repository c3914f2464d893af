"""Load the parts of a run from its recipe: questions, retriever, protocol, agent.

    config = load("recipe.toml")
    questions, protocol = load_questions(config), load_protocol(config)
    retrievers = load_retrievers(config)

    agent = load_agent("runs/quickstart")
    print(agent.ask("Who is the mentor of …?").answer)

Everything but an agent loads without torch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.agent.protocol import SearchProtocol
from holdfast.agent.tools import PRESETS, ToolProtocol
from holdfast.base.errors import ConfigError, DataError
from holdfast.base.jsonl import Skipped, Skips
from holdfast.base.retries import PATIENCE, Retries
from holdfast.model.chat_template import ChatTemplate
from holdfast.recipe import Config, load_run, require
from holdfast.recipe.paths import QUESTIONS, passages_of
from holdfast.retrieval import open_index
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.cache import CachedRetriever
from holdfast.retrieval.client import HTTPRetriever
from holdfast.retrieval.corpus import corpus_hash, files_seen, passages
from holdfast.retrieval.storage import MANIFEST, open_manifest, read_manifest
from holdfast.retrieval.types import Document, NoPassages, Retriever
from holdfast.tasks import factbook
from holdfast.tasks.files import joined, read_questions
from holdfast.tasks.questions import Example, hold_out
from holdfast.tasks.world.bundle import world_of

if TYPE_CHECKING:
    from holdfast.agent.agent import SearchAgent
    from holdfast.model.language_model import LanguageModel

logger = logging.getLogger(__name__)
Note = Callable[[str], None]
"""Takes a sentence for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """The questions of a recipe."""

    train: tuple[Example, ...]
    dev: tuple[Example, ...]
    test: tuple[Example, ...]
    """Empty if the recipe has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrievers:
    """The retrievers of training and of evaluation: one object, except in the bundled world."""

    train: CachedRetriever
    """In the bundled world, over the passages of its training split only."""
    eval: CachedRetriever
    """Over all passages."""


def load_questions(config: Config, *, note: Note | None = None) -> Questions:
    """The questions of [data]. Without a dev file, some training questions are held out.

    `note` gets the number of skipped rows of a file by reason; by default they are logged. Errors name the file and the
    line.
    """
    if config.data.train != "world":
        return _questions_of_files(config, note)
    splits = world_of(config.world).questions
    train, dev, test = (tuple(q.example for q in splits[split]) for split in ("train", "dev", "test"))
    return Questions(train=train, dev=dev, test=test)


def load_retriever(config: Config, *, note: Note | None = None) -> CachedRetriever:
    """The retriever of [retrieval], over all passages; without passages for an agent that does not search. `note` as in
    `load_questions`."""
    if config.data.train == "world":
        return _index(config, world_of(config.world).documents())
    settings = config.retrieval
    require(config, *passages_of(config))
    if not config.protocol.searches:
        return CachedRetriever(NoPassages(), 0)
    if settings.url is not None:
        # The rollout loop tries a failed search again by itself.
        return CachedRetriever(HTTPRetriever(settings.url, retries=0), settings.cache_size)
    if settings.corpus == "world" and settings.index is not None:  # no corpus is named: the index has its own passages
        return CachedRetriever(open_index(settings.index, device=_DEVICE), settings.cache_size)
    with skipped_rows(settings.corpus, "retrieval.corpus", note) as on_skip:
        return _index(config, read_passages(settings.corpus, on_skip, settings.fields))


def read_passages(
    corpus: str, on_skip: Callable[[Skipped], None], fields: Mapping[str, str] | None = None
) -> Iterable[Document]:
    """The passages that `retrieval.corpus` names: of the Factbook, or of a file or folder."""
    if factbook.is_factbook(corpus):
        return factbook.load_passages(corpus)
    return passages(corpus, on_skip=on_skip, fields=fields)


def load_retrievers(config: Config, *, note: Note | None = None) -> Retrievers:
    """The retrievers of training and of evaluation. `note` as in `load_questions`."""
    everything = load_retriever(config, note=note)
    if config.data.train != "world":
        return Retrievers(train=everything, eval=everything)
    return Retrievers(train=_index(config, world_of(config.world).documents("train")), eval=everything)


def load_protocol(config: Config) -> SearchProtocol:
    """The protocol of a recipe: its preset with its limits and prompt."""
    settings = config.protocol
    preset = PRESETS[settings.preset]
    template = ChatTemplate(config.model.chat_template, config.model.chat_template_kwargs)
    limits = settings.model_dump(exclude={"preset", "prompt", "tools", "tool_timeout"})
    protocol = replace(preset, prompt=settings.prompt or preset.prompt, template=template, **limits)
    if isinstance(protocol, ToolProtocol):
        tools = protocol.tools if settings.tools is None else settings.tools
        protocol = replace(protocol, tools=tools, tool_timeout=settings.tool_timeout)
    return protocol


def load_recipe(run_dir: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The recipe of a run, with overrides, for this machine: a run that was trained on a GPU can be opened anywhere.

    Raises `CheckpointError` if this is not a run folder.
    """
    anywhere = ["--run.device", "auto"] if load_run(Path(run_dir)).run.device == "cuda" else []
    return load_run(Path(run_dir), [*anywhere, *overrides])


def load_agent(run_dir: str | Path, checkpoint: str = "last", *, greedy: bool = True) -> SearchAgent:
    """The agent of a run folder, over all passages, as in evaluation: with its most likely tokens, or sampled at the
    training temperature without truncation.

    `checkpoint` is `last`, `best` (on dev), a step, its folder's name, or a path. Raises `CheckpointError`.
    """
    from holdfast.model.language_model import load_model, pick_device
    from holdfast.train.checkpoint import model_folder

    config = load_recipe(run_dir)
    folder = model_folder(Path(run_dir), checkpoint)
    language_model = load_model(config.model, folder, pick_device(config.run.device))
    agent = make_agent(config, language_model, load_retriever(config)).evaluated(greedy=greedy)
    return replace(agent, retries=Retries())  # who asks does not wait for a server as a run does


def make_agent(config: Config, language_model: LanguageModel, retriever: Retriever) -> SearchAgent:
    """The agent of a recipe with this model, as in training. Raises `ModelError` for a model that rollouts cannot
    use."""
    from holdfast.agent.agent import SearchAgent, lose_searches
    from holdfast.model.hf import HFPolicy

    protocol, sampling = load_protocol(config), config.sampling
    policy = HFPolicy(
        language_model.model,
        language_model.tokenizer,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        autocast_dtype=language_model.autocast_dtype,
        max_tokens=protocol.max_total_tokens,
    )
    failure_rate = config.faults.search_failure_rate
    return SearchAgent(
        policy=policy,
        retriever=retriever,
        protocol=protocol,
        wrap=partial(lose_searches, probability=failure_rate) if failure_rate else None,
        retries=Retries(patience=PATIENCE),
    )


@contextmanager
def skipped_rows(path: str, setting: str, note: Note | None) -> Iterator[Callable[[Skipped], None]]:
    """An `on_skip` for a reader of rows. What was skipped goes to `note` by reason, by default to the log.

    A `DataError` inside gets the name of the setting.
    """
    skips = Skips()
    try:
        yield skips
    except DataError as error:
        raise DataError(f"{setting}: {error}") from error
    if told := skips.sentences():
        say = note or logger.warning
        say(f"{setting} = {path!r}: {'; '.join(told)}")


def _questions_of_files(config: Config, note: Note | None) -> Questions:
    data = config.data
    require(config, *QUESTIONS)

    def read(path: str | None, split: str) -> tuple[Example, ...]:
        if path is None:
            return ()
        if factbook.is_factbook(path):
            return factbook.load_questions(path)
        with skipped_rows(path, f"data.{split}", note) as on_skip:
            questions = read_questions(path, split=split, on_skip=on_skip)
        if told := joined(questions):
            (note or logger.warning)(f"data.{split} = {path!r}: {told}")
        return questions

    train, dev, test = read(data.train, "train"), read(data.dev, "dev"), read(data.test, "test")
    if data.dev is None:
        train, dev = hold_out(train)
        if not train:
            raise ConfigError(
                f"data.train = {data.train!r} has only {len(dev)} question(s), too few to keep some for evaluation; "
                "add questions or set data.dev"
            )
    return Questions(train=train, dev=dev, test=test)


_DEVICE = "cpu"
"""Device of a dense index in a run: the model needs the memory of the GPU. `holdfast serve` can use a GPU."""


def check_index(config: Config, folder: Path, *, corpus_sha256: str | None = None) -> None:
    """Raise for an index that is missing, damaged, of another corpus, or stemmed differently from the recipe.

    Reads the manifest and the sizes of the files. `corpus_sha256` is that of the corpus in the recipe, if known.
    """
    stem = config.retrieval.stem
    manifest = open_manifest(folder, read_manifest(folder)["kind"], corpus_sha256)
    if config.retrieval.corpus != "world" and manifest.get("stem", stem) != stem:
        raise ConfigError(
            f"retrieval.stem = {str(stem).lower()}, but the index {folder} was built with stem = "
            f"{str(manifest['stem']).lower()}. Change retrieval.stem, or name another folder in retrieval.index for "
            "the new index"
        )


def _files_seen(config: Config) -> dict[str, str]:
    corpus = Path(config.retrieval.corpus)
    return {"corpus_files": files_seen(corpus, config.retrieval.fields)} if corpus.exists() else {}


def _index(config: Config, documents: Iterable[Document]) -> CachedRetriever:
    """A retriever over the index of the recipe, checked with the passages; without one, over a new index of them."""
    settings = config.retrieval
    folder = Path(settings.index) if settings.index is not None else None
    if folder is not None and (folder / MANIFEST).is_file():
        manifest = read_manifest(folder)
        # The passages are read only where a file is not the one, by size and time, that the index was built from.
        unchanged = _files_seen(config).items() <= manifest.items() and "corpus_files" in manifest
        digest = str(manifest["corpus_sha256"]) if unchanged else corpus_hash(documents)
        check_index(config, folder, corpus_sha256=digest)
        return CachedRetriever(open_index(folder, expected_hash=digest, device=_DEVICE), settings.cache_size)
    bm25 = BM25Retriever.build(tuple(documents), stem=settings.stem)
    if folder is not None:
        try:
            bm25.save(folder, _files_seen(config))
        except DataError as error:
            raise ConfigError(f"retrieval.index: {error}") from error
    return CachedRetriever(bm25, settings.cache_size)
