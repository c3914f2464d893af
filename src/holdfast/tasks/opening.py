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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.agent.agent import SearchAgent, lose_searches
from holdfast.agent.protocol import SearchProtocol
from holdfast.agent.tools import PRESETS, ToolProtocol
from holdfast.base.errors import ConfigError, DataError, raise_all
from holdfast.base.importing import is_import_path
from holdfast.base.retries import PATIENCE, Retries
from holdfast.model.text.chat_template import ChatTemplate
from holdfast.recipe import Config, load_run, require
from holdfast.recipe.paths import passages_of
from holdfast.recipe.sections import FACTBOOK, WORLD
from holdfast.retrieval import open_index
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.cache import CachedRetriever
from holdfast.retrieval.client import HTTPRetriever
from holdfast.retrieval.corpus import corpus_hash, files_seen, passages
from holdfast.retrieval.storage import MANIFEST, open_manifest, read_manifest
from holdfast.retrieval.types import Document, NoPassages, Retriever
from holdfast.tasks.factbook import FactbookTasks
from holdfast.tasks.files import FileTasks, Note, skipped_rows
from holdfast.tasks.task_set import Questions, TaskSet
from holdfast.tasks.user import UserTasks
from holdfast.tasks.world import WorldTasks

if TYPE_CHECKING:
    from holdfast.model.language_model import LanguageModel

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrievers:
    """The retrievers of training and of evaluation: one object, unless training may not find all passages."""

    train: CachedRetriever
    """In the bundled world, over the passages of its training split only."""
    eval: CachedRetriever
    """Over all passages."""


def open_tasks(config: Config, note: Note | None = None) -> TaskSet:
    """The task set that `data.train` names. `note` gets the number of skipped rows of a file by reason; by default they
    are logged.

    Raises `ConfigError` for settings that do not go with it, and for code that cannot be used.
    """
    named = config.data.train
    tasks: TaskSet
    if named in (WORLD, FACTBOOK):
        tasks = bundled(named, config)
    elif is_import_path(named):
        tasks = UserTasks(named)
    else:
        tasks = FileTasks(config, note or _log.warning)
    raise_all("these settings cannot work", tasks.refusals(config))
    return tasks


def bundled(name: str, config: Config) -> TaskSet:
    """A task set of the package, with the settings of a recipe."""
    return WorldTasks(config.world) if name == WORLD else FactbookTasks()


def load_questions(config: Config, *, note: Note | None = None) -> Questions:
    """The questions of a recipe. `note` as in `open_tasks`."""
    return open_tasks(config, note).questions()


def load_retriever(config: Config) -> CachedRetriever:
    """The retriever of a recipe, over all passages; without passages for an agent that does not search."""
    return open_retriever(config, open_tasks(config))


def load_retrievers(config: Config, *, note: Note | None = None) -> Retrievers:
    """The retrievers of training and of evaluation. `note` as in `open_tasks`."""
    return open_retrievers(config, open_tasks(config, note), note)


def open_retrievers(config: Config, tasks: TaskSet, note: Note | None = None) -> Retrievers:
    """`load_retrievers`, of an open task set."""
    everything = open_retriever(config, tasks, note)
    in_training = tasks.training_passages()
    return Retrievers(train=everything if in_training is None else _index(config, in_training), eval=everything)


def open_retriever(config: Config, tasks: TaskSet, note: Note | None = None) -> CachedRetriever:
    """`load_retriever`, of an open task set."""
    settings = config.retrieval
    if not config.protocol.searches:
        return CachedRetriever(NoPassages(), 0)
    require(config, *passages_of(config))
    if settings.url is not None:
        # The rollout loop tries a failed search again by itself.
        return CachedRetriever(HTTPRetriever(settings.url, retries=0), settings.cache_size)
    if tasks.own_passages:
        return _index(config, tasks.passages())
    if settings.corpus is not None:
        with skipped_rows(settings.corpus, "retrieval.corpus", note or _log.warning) as on_skip:
            return _index(config, passages(settings.corpus, on_skip=on_skip, fields=settings.fields))
    if settings.index is None:
        raise ConfigError(str(no_passages(config, tasks)))
    return CachedRetriever(open_index(settings.index, device=_DEVICE), settings.cache_size)


def no_passages(config: Config, tasks: TaskSet) -> str | None:
    """A sentence if an agent is to search, but nothing names passages."""
    settings = config.retrieval
    named = settings.corpus, settings.index, settings.url
    if not config.protocol.searches or tasks.own_passages or named != (None, None, None):
        return None
    return (
        f"data.train = {config.data.train!r}, but no passages are named to search. Set retrieval.corpus to a file "
        "or folder of yours, retrieval.index to an index, or retrieval.url to a server"
    )


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
    from holdfast.model.checkpoint import model_folder
    from holdfast.model.language_model import load_model, pick_device

    config = load_recipe(run_dir)
    folder = model_folder(Path(run_dir), checkpoint)
    language_model = load_model(config.model, folder, pick_device(config.run.device))
    agent = make_agent(config, language_model, load_retriever(config)).evaluated(greedy=greedy)
    return replace(agent, retries=Retries())  # who asks does not wait for a server as a run does


def make_agent(
    config: Config, language_model: LanguageModel, retriever: Retriever, protocol: SearchProtocol | None = None
) -> SearchAgent:
    """The agent of a recipe with this model, as in training; `protocol` is the recipe's, if it is made.

    Raises `ModelError` for a model that rollouts cannot use.
    """
    from holdfast.model.sampler.hf import HFPolicy

    protocol, sampling = protocol or load_protocol(config), config.sampling
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


_DEVICE = "cpu"
"""Device of a dense index in a run: the model needs the memory of the GPU. `holdfast serve` can use a GPU."""


def check_index(config: Config, folder: Path, *, corpus_sha256: str | None = None) -> None:
    """Raise for an index that is missing, damaged, of another corpus, or stemmed differently from the recipe.

    Reads the manifest and the sizes of the files. `corpus_sha256` is that of the corpus in the recipe, if known.
    """
    stem = config.retrieval.stem
    manifest = open_manifest(folder, read_manifest(folder)["kind"], corpus_sha256)
    if config.retrieval.corpus is not None and manifest.get("stem", stem) != stem:
        raise ConfigError(
            f"retrieval.stem = {str(stem).lower()}, but the index {folder} was built with stem = "
            f"{str(manifest['stem']).lower()}. Change retrieval.stem, or name another folder in retrieval.index for "
            "the new index"
        )


def _files_seen(config: Config) -> dict[str, str]:
    corpus = config.retrieval.corpus
    return {} if corpus is None else {"corpus_files": files_seen(Path(corpus), config.retrieval.fields)}


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
