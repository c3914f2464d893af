"""What is looked at before a run: what cannot work is refused, what is doubtful is said in a sentence."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.data import Example
from holdfast.errors import ConfigError, ModelError
from holdfast.rollout.hf import HFPolicy
from holdfast.rollout.support import text_config
from holdfast.train.model import LanguageModel
from holdfast.train.session import Workspace

_LONGEST = 16  # prompts checked per split: rendering all of a hundred thousand would take a minute


def refuse_misfits(workspace: Workspace, language_model: LanguageModel) -> None:
    """Raise for a model the rollouts cannot serve or that cannot hold an episode, a prompt that leaves no room for one,
    and another model's tokenizer."""
    HFPolicy(language_model.model, language_model.tokenizer)  # its checks
    most = workspace.config.protocol.max_total_tokens
    positions = getattr(text_config(language_model.model), "max_position_embeddings", None)
    if positions is not None and positions < most:
        raise ConfigError(
            f"protocol.max_total_tokens = {most}, but the model has {positions} positions (max_position_embeddings); "
            f"set protocol.max_total_tokens to {positions} or less"
        )
    vocabulary = language_model.model.get_input_embeddings().weight.shape[0]
    for split, examples in (("train", workspace.train), ("dev", workspace.dev), ("test", workspace.test)):
        for example in sorted(examples, key=lambda e: -len(e.question))[:_LONGEST]:
            prompt = workspace.prompt(example, language_model.tokenizer)
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


def doubts(workspace: Workspace) -> Iterator[str]:
    """Sentences about settings and data that work, and still may not be what the user means."""
    config = workspace.config
    own = config.sampling
    if (own.top_p < 1 or own.top_k > 0) and not own.keep_mask:
        yield (
            f"sampling.top_p = {own.top_p:g} and sampling.top_k = {own.top_k} truncate the sampler, while log-probs "
            "are over the whole vocabulary. This mismatch alone can make a run collapse: set sampling.keep_mask = "
            "true, or top_p = 1 and top_k = 0, or watch sampler/logprob_gap"
        )
    penalty = config.loss.penalty.term
    if penalty is not None and not penalty.coef:
        yield (
            f"loss.penalty.coef = 0 with loss.penalty.name = {config.loss.penalty.name!r}: the penalty is measured and "
            "adds nothing. Leave coef out for the published value"
        )
    if config.retrieval.drop:
        yield (
            f"retrieval.drop = {config.retrieval.drop:g}: that share of the searches in training finds nothing, on "
            "purpose. Set it to 0 unless that is what you study"
        )
    splits = (("train", workspace.train), ("dev", workspace.dev), ("test", workspace.test))
    texts = {name: [_key(example) for example in examples] for name, examples in splits}
    for seen, unseen in (("train", "dev"), ("train", "test"), ("dev", "test")):
        known = set(texts[seen])
        if shared := sum(text in known for text in texts[unseen]):
            yield (
                f"{shared} of {len(texts[unseen])} {unseen} questions are also {seen} questions: scores on them say "
                "what the model remembers, not how it searches"
            )


def _key(example: Example) -> str:
    return " ".join(example.question.lower().split())
