"""What a recipe names, read once and checked: errors for what cannot work, notes and warnings for what is doubtful."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.agent.calling import SEARCH
from holdfast.agent.protocol import CallTurn, SearchProtocol, render_prompt
from holdfast.base.errors import ConfigError, MissingExtra, raise_all
from holdfast.base.importing import missing_train_package
from holdfast.base.thoughts import opens_thought
from holdfast.model.text.chat_template import read_template
from holdfast.model.text.tokens import decode
from holdfast.recipe import Config, require
from holdfast.recipe.config import code_errors
from holdfast.recipe.paths import QUESTIONS, passages_of
from holdfast.retrieval.types import Document, Hit
from holdfast.tasks.demonstrations import Text, read_demonstrations
from holdfast.tasks.files import skipped_rows
from holdfast.tasks.opening import Retrievers, load_protocol, no_passages, open_retrievers, open_tasks
from holdfast.tasks.questions import Example
from holdfast.tasks.task_set import Questions, TaskSet
from holdfast.train.start_cache import has_warm_start

if TYPE_CHECKING:
    import torch

_REFUSED = "this recipe cannot be trained"
_SAMPLE = 1000
"""Passages whose tokens are counted, and questions that demonstrations are tried on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A recipe that can be trained, and what it names. A dry run ends with it; a run begins with it."""

    config: Config
    tasks: TaskSet
    protocol: SearchProtocol
    questions: Questions
    retrievers: Retrievers
    needs: str | None
    """The memory, disk and time that training on a CPU needs, for a model in a folder."""
    prompt: str | None
    """The text of the tokens that the first training question begins with, for a model in a folder."""
    notes: tuple[str, ...]
    """Sentences: rows that were skipped, the number of passages, how many are too long to be read whole, settings that
    may not be meant, and questions that splits share."""

    @property
    def device(self) -> torch.device:
        """The device of the recipe. Asked for by what needs torch; a dry run does without."""
        return _device(self.config)


def prepare(config: Config, *, stage: str | None = None, continued: bool = False) -> Prepared:
    """Read questions, passages and tokenizer, build the index or open it, and refuse what cannot be trained.

    `holdfast train` and its dry run both begin here, so both refuse with the same sentence, and before a run folder
    exists. Two things can still fail later: damaged weights, and a server that does not answer. An index that is built
    is kept in `retrieval.index`.

    `stage` is `warm-start` for `holdfast warm-start`, None for reinforcement learning. With `continued`, a checkpoint
    holds the critic, and the one that it began with may be gone. Raises `HoldfastError`.
    """
    notes: list[str] = []
    learned_from = ("warm_start.data",) if config.warm_start.steps else ()
    require(config, *QUESTIONS, *passages_of(config), *learned_from, "model.path", "model.chat_template", "run.code")
    raise_all(_REFUSED, _recipe_errors(config, stage))
    tasks = open_tasks(config, notes.append)
    raise_all(_REFUSED, _task_errors(config, tasks))
    _check_packages(config)
    if config.run.device == "cuda":
        _device(config)
    if config.critic.path is not None and not continued:
        _check_critic(config.critic.path)
    if (template := config.model.chat_template) not in ("auto", "none"):
        read_template(template)
    questions, protocol = tasks.questions(), load_protocol(config)
    if stage is None:
        _check_batch(config, questions)
    fit = None
    if not config.model.is_tiny:
        from holdfast.train.model_fit import fit_model

        fit = fit_model(config, tasks, questions, protocol)
    demonstrations = _written_demonstrations(config, protocol)
    retrievers = open_retrievers(config, tasks, notes.append)
    if passages := () if tasks.closed else retrievers.train.documents:
        named = config.retrieval.corpus or config.retrieval.index or config.data.train
        notes.append(f"{named}: {len(passages):,} passages")
        if fit is not None:
            notes += _cut_passages(fit.tokenizer, protocol, passages)
        by_script = config.warm_start.data is None and type(tasks).demonstrations is TaskSet.demonstrations
        if config.warm_start.steps and by_script and not continued:
            demonstrations = tasks.demonstrations(
                questions.train[:_SAMPLE],
                retrievers.train,
                protocol,
                seed=config.warm_start.seed,
                most=MIN_DEMONSTRATIONS,
            )
    prompt = None if fit is None else exact_prompt(questions.train[0].question, protocol, fit.tokenizer)
    if prompt is not None and opens_thought(prompt) and protocol.max_turn_tokens < _THOUGHT:
        notes.append(
            f"the chat template opens a thought, and a turn has {protocol.max_turn_tokens} tokens "
            "(protocol.max_turn_tokens): a model that thinks longer comes neither to a search nor to an answer. Raise "
            "the limit, or switch thinking off (docs/reference/tools.md#variables-of-a-template)"
        )
    tools = [schema["function"]["name"] for schema in protocol.schemas or ()]
    notes += (*config_warnings(config), *overlap_warnings(questions))
    notes += what_is_too_little(demonstrations, questions, tools)
    return Prepared(
        config=config,
        tasks=tasks,
        protocol=protocol,
        questions=questions,
        retrievers=retrievers,
        needs=None if fit is None else fit.needs,
        prompt=prompt,
        notes=tuple(notes),
    )


def _device(config: Config) -> torch.device:
    from holdfast.model.language_model import pick_device

    return pick_device(config.run.device)


def _written_demonstrations(config: Config, protocol: SearchProtocol) -> Sequence[Text] | None:
    """Those of a file; None without one."""
    path = config.warm_start.data
    if path is None or not config.warm_start.steps:
        return None
    with skipped_rows(path, "warm_start.data", lambda _: None) as on_skip:  # noted when they are learned from
        return read_demonstrations(Path(path), protocol, on_skip=on_skip)


def _recipe_errors(config: Config, stage: str | None) -> Iterator[str]:
    """What the recipe, and the code that it names, cannot do."""
    if stage == "warm-start" and not has_warm_start(config):
        yield "warm_start.steps = 0, so there is no warm start to make; set warm_start.steps"
    yield from code_errors(config)


def _task_errors(config: Config, tasks: TaskSet) -> Iterator[str]:
    """What the task set lacks for training."""
    if config.model.is_tiny and not tasks.has_model:
        yield (
            f"model.path = 'tiny' with data.train = {config.data.train!r}: the tiny model knows only the words of "
            "the bundled world. Set model.path to a model of yours, for example a Qwen2.5 directory"
        )
    if (problem := no_passages(config, tasks)) is not None:
        yield problem


def _cut_passages(tokenizer: Any, protocol: SearchProtocol, passages: Sequence[Document]) -> list[str]:
    """A sentence if some of the passages, judged by a sample, are so long that an agent does not see their end."""
    sample = passages[:: -(-len(passages) // _SAMPLE)]
    searches = ([Hit(document, 0.0)] * protocol.topk for document in sample)
    cut = sum(protocol.observe(hits, tokenizer).truncated for hits in searches)
    if not cut:
        return []
    spread = f", spread over {len(passages):,}," if len(sample) < len(passages) else ""
    return [
        f"{cut:,} of {len(sample):,} passages{spread} are too long: protocol.topk = {protocol.topk} passages of their "
        f"length do not fit into protocol.max_observation_tokens = {protocol.max_observation_tokens}. An agent does "
        "not see the end of such a passage, nor an answer there. Raise the limit, lower topk, or split the passages"
    ]


def _check_packages(config: Config) -> None:
    track = config.track
    if (package := missing_train_package()) is not None:
        raise MissingExtra(package, "train")
    for needed, package, extra in (
        (config.model.lora_rank > 0, "peft", "peft"),
        (track.tensorboard, "tensorboard", "track"),
        (track.wandb is not None, "wandb", "track"),
    ):
        if needed and find_spec(package) is None:
            raise MissingExtra(package, extra)


def _check_critic(path: str) -> None:
    from holdfast.model.checkpoint import has_critic

    if not has_critic(Path(path)):
        raise ConfigError(
            f"critic.path = {path!r} has no critic: give a checkpoint of a run with loss.advantage = 'gae', such as "
            "runs/ppo/checkpoints/step-000040, or leave it out to begin with a copy of the initial policy"
        )


def _check_batch(config: Config, questions: Questions) -> None:
    if (needed := config.train.questions) > (count := len(questions.train)):
        raise ConfigError(
            f"train.questions = {needed}, but there are only {count} training questions, and a batch asks each once; "
            f"set train.questions to {count} or less"
        )


def config_warnings(config: Config) -> Iterator[str]:
    """Sentences about settings that work, but may not be what the user means."""
    sampling = config.sampling
    if sampling.truncated and not (sampling.mask_logprobs or config.loss.methods.score_centering.on):
        yield (
            f"sampling.top_p = {sampling.top_p:g} and sampling.top_k = {sampling.top_k} truncate the sampler, while "
            "log-probs are over the whole vocabulary. This mismatch alone can make a run collapse: set "
            "sampling.mask_logprobs = true, or top_p = 1 and top_k = 0, or switch [loss.methods.score_centering] on"
        )
    penalty = config.loss.penalty.term
    if penalty is not None and not penalty.coef:
        yield (
            f"loss.penalty.coef = 0 with loss.penalty.name = {config.loss.penalty.name!r}: the penalty is measured "
            "but not added to the loss. Leave coef out for the published value"
        )
    if config.faults.search_failure_rate:
        yield (
            f"faults.search_failure_rate = {config.faults.search_failure_rate:g}: that share of the searches in "
            "training returns nothing, on purpose. Set it to 0 unless that is what you study"
        )
    if config.sampler_differs:
        yield (
            "train.staleness or faults.sampler_8_bits: training rollouts come from different weights than the "
            "trained ones, on purpose. Leave both out unless that is what you study"
        )


def overlap_warnings(questions: Questions) -> Iterator[str]:
    """A sentence for each two splits that share questions."""
    texts = {name: [_key(example) for example in examples] for name, examples in questions.splits.items()}
    for seen, unseen in (("train", "dev"), ("train", "test"), ("dev", "test")):
        known = set(texts[seen])
        if shared := sum(text in known for text in texts[unseen]):
            yield (
                f"{shared} of {len(texts[unseen])} {unseen} questions are also {seen} questions: scores on them "
                "measure what the model remembers, not how it searches"
            )


def _key(example: Example) -> str:
    return " ".join(example.question.lower().split())


# ---- what a dry run says of a plan as a whole: the prompt that the model reads, and what is too little to learn from

MIN_DEMONSTRATIONS, _MIN_SCORED = 200, 100
_THOUGHT = 256
"""Tokens of a turn with which a thought has room; the default, 500, is meant for thoughts."""


def exact_prompt(question: str, protocol: SearchProtocol, tokenizer: Any) -> str:
    """The text of the tokens that a rollout begins with.

    Raises `ConfigError` where the prompt of the recipe writes the marks of a chat template that is applied to it.
    """
    template = protocol.template
    if template.text(tokenizer, protocol.schemas) is not None:
        around = decode(tokenizer, template.prompt(tokenizer, "x", protocol.schemas))
        for mark in tokenizer.all_special_tokens:
            if mark in protocol.prompt and mark in around:
                raise ConfigError(
                    f"protocol.prompt writes {mark}, and so does {template}, which would wrap the prompt a second "
                    "time. Take the marks out of protocol.prompt, or set model.chat_template = 'none'"
                )
    return decode(tokenizer, render_prompt(question, protocol, tokenizer))


def what_is_too_little(
    demonstrations: Sequence[Text] | None, questions: Questions, tools: Collection[str] = ()
) -> Iterator[str]:
    """Sentences about what teaches or shows less than somebody may expect. Without demonstrations they are None.
    `tools` are the names of those that the model may call."""
    if demonstrations is not None:
        count, twice = len(demonstrations), sum(len(turns) > 2 for _, turns in demonstrations)
        if count < MIN_DEMONSTRATIONS:
            yield f"{count} demonstrations are few: a small model learns to search from a few hundred; add questions"
        if not twice:
            yield (
                "no demonstration has a second search, and training rarely discovers what a warm start never shows; "
                "if questions need two searches, write such demonstrations "
                "(docs/guide/quickstart.md#teach-it-to-search)"
            )
        called = {said.tool for _, turns in demonstrations for said, _ in turns if isinstance(said, CallTurn)}
        if unseen := [name for name in tools if name not in (SEARCH.name, *called)]:
            yield (
                f"no demonstration calls {' or '.join(unseen)}, and a small model rarely begins to by itself; write a "
                "script that does (docs/guide/own-tools.md#show-a-model-how)"
            )
    scored = "test" if questions.test else "dev"
    if 0 < (size := len(questions.splits[scored])) < _MIN_SCORED:
        yield (
            f"scores on {size} {scored} question{'s' * (size > 1)} are uncertain: a score of 0.5 has the 95 % interval "
            f"{_interval(size)}. With {_MIN_SCORED} questions, it would be {_interval(_MIN_SCORED)}"
        )


def _interval(size: int) -> str:
    """95 %, by Wilson's formula, which at 0.5 is symmetric."""
    half = 1.96 / (2 * (size + 1.96**2) ** 0.5)
    return f"{0.5 - half:.2f} to {0.5 + half:.2f}"
