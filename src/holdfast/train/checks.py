"""What is looked at before a run: what cannot work is refused, what is doubtful is said in a sentence."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.config import Config
from holdfast.data import Example
from holdfast.errors import ConfigError, ModelError
from holdfast.language_model import LanguageModel
from holdfast.loading import Questions
from holdfast.rollout.hf import HFPolicy
from holdfast.rollout.support import text_config
from holdfast.search.protocol import SearchProtocol, render_prompt

_LONGEST = 16  # prompts checked per split: rendering all of a hundred thousand would take a minute


def validate_model_and_prompts(
    language_model: LanguageModel, questions: Questions, protocol: SearchProtocol, chat_template: str
) -> None:
    """Raise for a model the rollouts cannot serve or that cannot hold an episode, a prompt that leaves no room for one,
    and another model's tokenizer."""
    HFPolicy(language_model.model, language_model.tokenizer)  # its checks
    most = protocol.max_total_tokens
    positions = getattr(text_config(language_model.model), "max_position_embeddings", None)
    if positions is not None and positions < most:
        raise ConfigError(
            f"protocol.max_total_tokens = {most}, but the model has {positions} positions (max_position_embeddings); "
            f"set protocol.max_total_tokens to {positions} or less"
        )
    vocabulary = language_model.model.get_input_embeddings().weight.shape[0]
    for split, examples in _splits(questions):
        for example in sorted(examples, key=lambda e: -len(e.question))[:_LONGEST]:
            prompt = render_prompt(example.question, protocol, language_model.tokenizer, chat_template)
            if len(prompt) >= most:
                raise ConfigError(
                    f"the prompt of {split} question {example.id} takes {len(prompt)} tokens, which leaves no room in "
                    f"an episode of protocol.max_total_tokens = {most}; raise that, shorten protocol.prompt, or drop "
                    "the question"
                )
            if max(prompt) >= vocabulary:
                raise ModelError(
                    f"the tokenizer writes token {max(prompt)}, but the model has embeddings for {vocabulary} only: "
                    "they do not belong together. Give a folder that holds the model's own tokenizer"
                )


def config_warnings(config: Config) -> Iterator[str]:
    """Sentences about settings that work, and still may not be what the user means."""
    sampling = config.sampling
    if (sampling.top_p < 1 or sampling.top_k > 0) and not sampling.mask_logprobs:
        yield (
            f"sampling.top_p = {sampling.top_p:g} and sampling.top_k = {sampling.top_k} truncate the sampler, while "
            "log-probs are over the whole vocabulary. This mismatch alone can make a run collapse: set "
            "sampling.mask_logprobs = true, or top_p = 1 and top_k = 0, or watch sampler/logprob_gap"
        )
    penalty = config.loss.penalty.term
    if penalty is not None and not penalty.coef:
        yield (
            f"loss.penalty.coef = 0 with loss.penalty.name = {config.loss.penalty.name!r}: the penalty is measured and "
            "adds nothing. Leave coef out for the published value"
        )
    if config.faults.search_failure_rate:
        yield (
            f"faults.search_failure_rate = {config.faults.search_failure_rate:g}: that share of the searches in "
            "training returns nothing, on purpose. Set it to 0 unless that is what you study"
        )


def overlap_warnings(questions: Questions) -> Iterator[str]:
    """Sentences about questions that are in two splits."""
    texts = {name: [_key(example) for example in examples] for name, examples in _splits(questions)}
    for seen, unseen in (("train", "dev"), ("train", "test"), ("dev", "test")):
        known = set(texts[seen])
        if shared := sum(text in known for text in texts[unseen]):
            yield (
                f"{shared} of {len(texts[unseen])} {unseen} questions are also {seen} questions: scores on them say "
                "what the model remembers, not how it searches"
            )


def _splits(questions: Questions) -> tuple[tuple[str, tuple[Example, ...]], ...]:
    return (("train", questions.train), ("dev", questions.dev), ("test", questions.test))


def _key(example: Example) -> str:
    return " ".join(example.question.lower().split())
