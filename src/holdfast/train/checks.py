"""Checks before a run: errors for what cannot work, warnings for what is doubtful."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import ConfigError, MissingExtra, ModelError
from holdfast.base.importing import missing_train_package
from holdfast.data.factbook import FACTBOOK
from holdfast.data.questions import Example
from holdfast.recipe import Config, require
from holdfast.recipe.paths import QUESTIONS, passages_of
from holdfast.recipe.validation import check_training

if TYPE_CHECKING:
    from holdfast.agent.protocol import SearchProtocol
    from holdfast.model.language_model import LanguageModel
    from holdfast.retrieval.types import Document
    from holdfast.train.loading import Questions

_PROMPTS = 16
"""Prompts checked per split, the longest first: rendering a hundred thousand would take a minute."""
_COUNTED = 1000
"""Passages whose tokens are counted, and questions per split, the longest in bytes first: a tokenizer makes a token or
less of each byte."""
_SMALL_CORPUS = 256 * 2**20
"""Bytes of a corpus that is read whole before a run begins. A larger one is read when it is indexed."""


def validate_before_training(config: Config, *, stage: str | None = None) -> str | None:
    """Refuse what cannot be trained, as far as the recipe, its code and its files show within seconds.

    `holdfast train` and its dry run call this first, so both refuse with the same sentence. Three things can still fail
    later: damaged weights, a corpus that is too large to read twice, and a server that does not answer.

    `stage` as in `check_training`. Returns a sentence on the memory, disk and time that training on a CPU needs, for a
    model in a folder. Raises `HoldfastError`.
    """
    demonstrations = ("warm_start.data",) if config.warm_start.steps else ()
    require(config, *QUESTIONS, *passages_of(config), *demonstrations, "model.path", "model.chat_template", "run.code")
    check_training(config, stage=stage)
    _check_packages(config)
    if config.run.device == "cuda" or config.model.autocast == "bf16":
        from holdfast.model.language_model import in_bf16, pick_device

        in_bf16(config.model, pick_device(config.run.device))
    if config.data.train != "world":
        _check_passages(config)
    if config.critic.path is not None:
        _check_critic(config.critic.path)
    path = config.warm_start.data
    if config.warm_start.steps and path is not None and not path.startswith(FACTBOOK):
        from holdfast.train.loading import load_protocol, skipped_rows
        from holdfast.train.warm_start import read_demonstrations

        with skipped_rows(path, "warm_start.data", _ignore) as on_skip:
            read_demonstrations(Path(path), load_protocol(config), on_skip=on_skip)
    if (template := config.model.chat_template) not in ("auto", "none"):
        from holdfast.agent.protocol import read_template

        read_template(template)
    if config.data.train != "world" or config.model.path != "tiny":
        return _check_prompts(config, stage)
    return None


def passage_notes(config: Config) -> list[str]:
    """How many passages a corpus has, what was skipped in it, and for a model in a folder how many of them are so long
    that an agent does not see their end, judged by a sample."""
    if config.data.train == "world" or config.retrieval.corpus == "world":
        return []
    from holdfast.retrieval.corpus import Reading
    from holdfast.train.loading import read_passages

    settings = config.retrieval
    reading = Reading(settings.corpus)
    sample, whole = _sample(reading.counted(read_passages(settings.corpus, reading.skips, settings.fields)))
    read, *skipped = reading.sentences()
    notes = [read if whole else f"{settings.corpus}: more than {reading.passages:,} passages", *skipped]
    return notes + _cut_passages(config, sample, reading.passages)


def _sample(passages: Iterable[Document]) -> tuple[list[Document], bool]:
    """Every n-th passage, at most `_COUNTED`, and whether the corpus was read to its end. Of a large one only
    `_SMALL_CORPUS` characters are."""
    sample: list[Document] = []
    every, characters = 1, 0
    for row, document in enumerate(passages):
        if row % every == 0:
            sample.append(document)
        if len(sample) > _COUNTED:
            sample, every = sample[::2], 2 * every
        characters += len(document.contents)
        if characters > _SMALL_CORPUS:
            return sample, False
    return sample, True


def _cut_passages(config: Config, sample: Sequence[Document], count: int) -> list[str]:
    from holdfast.model.language_model import load_skeleton
    from holdfast.retrieval.types import Hit
    from holdfast.train.loading import load_protocol

    if config.model.path == "tiny" or (skeleton := load_skeleton(config.model)) is None:
        return []
    protocol = load_protocol(config)
    searches = ([Hit(document, 0.0)] * protocol.topk for document in sample)
    cut = sum(protocol.observe(hits, skeleton.tokenizer).truncated for hits in searches)
    if not cut:
        return []
    spread = f", spread over {count:,}," if len(sample) < count else ""
    return [
        f"{cut:,} of {len(sample):,} passages{spread} do not fit into an observation of "
        f"protocol.max_observation_tokens = {protocol.max_observation_tokens} that has protocol.topk = {protocol.topk} "
        "of their length. An agent does not see the end of such a passage, nor an answer there. Raise the one, lower "
        "the other, or cut the passages shorter"
    ]


def _ignore(_: str) -> None:
    """Skipped rows are reported when the run reads them."""


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
    from holdfast.train.checkpoint import has_critic

    if not has_critic(Path(path)):
        raise ConfigError(
            f"critic.path = {path!r} has no critic: give a checkpoint of a run with loss.advantage = 'gae', such as "
            "runs/ppo/checkpoints/step-000040, or leave it out to begin with a copy of the starting policy"
        )


def _check_passages(config: Config) -> None:
    from holdfast.retrieval.storage import MANIFEST
    from holdfast.train.loading import check_index, digest_of, read_passages, skipped_rows

    settings = config.retrieval
    if settings.url is not None:
        return
    folder = None if settings.index is None else Path(settings.index)
    if folder is not None and (settings.corpus == "world" or (folder / MANIFEST).is_file()):
        check_index(config, folder)
    if settings.corpus == "world":  # no corpus is named: the index has its own passages
        return
    corpus = Path(settings.corpus)
    with skipped_rows(settings.corpus, "retrieval.corpus", _ignore) as on_skip:
        documents = read_passages(settings.corpus, on_skip, settings.fields)
        if corpus.is_file() and corpus.stat().st_size > _SMALL_CORPUS:
            next(iter(documents), None)
        elif folder is not None and (folder / MANIFEST).is_file():
            check_index(config, folder, corpus_sha256=digest_of(config, folder, documents))
        else:
            for _ in documents:
                pass


def _check_prompts(config: Config, stage: str | None) -> str | None:
    """Check the questions; for a model in a folder also its tokenizer, the prompts, and that it has weights."""
    from holdfast.train.loading import load_protocol, load_questions

    questions = load_questions(config, note=_ignore)
    if stage is None and (asked := config.train.questions) > (count := len(questions.train)):
        raise ConfigError(
            f"train.questions = {asked}, but there are only {count} training questions, and a batch asks each once; "
            f"set train.questions to {count} or less"
        )
    if config.model.path == "tiny":
        return None
    from holdfast.model.language_model import has_adapters, load_skeleton, pick_device
    from holdfast.model.support import refuse_unsupported
    from holdfast.train.cost import cost_of

    skeleton = load_skeleton(config.model)
    if skeleton is None:
        return None
    refuse_unsupported(skeleton.model)
    validate_prompts(skeleton, questions, load_protocol(config), config.model.chat_template)
    if has_adapters(config.model.path) or pick_device(config.run.device).type != "cpu":
        return None
    return cost_of(skeleton.model, config, questions, lora_rank=config.model.lora_rank)


def validate_model_and_prompts(
    language_model: LanguageModel, questions: Questions, protocol: SearchProtocol, chat_template: str
) -> None:
    """Raise `ModelError` for a model that rollouts cannot use, and as `validate_prompts`."""
    from holdfast.model.hf import HFPolicy
    from holdfast.model.support import end_ids

    HFPolicy(language_model.model, language_model.tokenizer)  # checks the model
    validate_prompts(language_model, questions, protocol, chat_template)
    protocol.check_template(language_model.tokenizer, end_ids(language_model.model, language_model.tokenizer))


def validate_prompts(
    language_model: LanguageModel, questions: Questions, protocol: SearchProtocol, chat_template: str
) -> None:
    """Raise `ConfigError` for a model, or a prompt, that leaves no room for a rollout; `ModelError` for the tokenizer
    of another model."""
    from holdfast.agent.protocol import render_prompt
    from holdfast.model.support import positions_of

    most, positions = protocol.max_total_tokens, positions_of(language_model.model)
    if positions < most:
        raise ConfigError(
            f"protocol.max_total_tokens = {most}, but the model has {positions} positions (max_position_embeddings, or "
            f"its attention window); set protocol.max_total_tokens to {positions} or less"
        )
    vocabulary = language_model.model.get_input_embeddings().weight.shape[0]
    for split, examples in _splits(questions):
        for example in _longest(examples, language_model.tokenizer):
            prompt = render_prompt(example.question, protocol, language_model.tokenizer, chat_template)
            if len(prompt) >= most:
                raise ConfigError(
                    f"the prompt of {split} question {example.id} takes {len(prompt)} tokens, which leaves no room in "
                    f"a rollout of protocol.max_total_tokens = {most}; raise that, shorten protocol.prompt, or drop "
                    "the question"
                )
            if max(prompt) >= vocabulary:
                raise ModelError(
                    f"the tokenizer produces token id {max(prompt)}, but the model has only {vocabulary} embeddings, "
                    "so they do not fit. Give a folder with the model's own tokenizer"
                )


def _longest(examples: Sequence[Example], tokenizer: Any) -> list[Example]:
    """The questions with the most tokens. An emoji is one character and several tokens."""
    from holdfast.model.tokens import encode

    counted = sorted(examples, key=lambda e: -len(e.question.encode()))[:_COUNTED]
    return sorted(counted, key=lambda e: -len(encode(tokenizer, e.question)))[:_PROMPTS]


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
    if config.faults.of_sampler:
        yield (
            "faults.stale_batches or faults.sampler_8_bits: rollouts in training come from other weights than those "
            "that learn, on purpose. Leave both out unless that is what you study"
        )


def overlap_warnings(questions: Questions) -> Iterator[str]:
    """A sentence for each two splits that share questions."""
    texts = {name: [_key(example) for example in examples] for name, examples in _splits(questions)}
    for seen, unseen in (("train", "dev"), ("train", "test"), ("dev", "test")):
        known = set(texts[seen])
        if shared := sum(text in known for text in texts[unseen]):
            yield (
                f"{shared} of {len(texts[unseen])} {unseen} questions are also {seen} questions: scores on them "
                "measure what the model remembers, not how it searches"
            )


def _splits(questions: Questions) -> tuple[tuple[str, tuple[Example, ...]], ...]:
    return (("train", questions.train), ("dev", questions.dev), ("test", questions.test))


def _key(example: Example) -> str:
    return " ".join(example.question.lower().split())
