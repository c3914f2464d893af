"""What is looked at before and during a run: what cannot work is refused, what is doubtful is said in a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.config import Config
from holdfast.data import Example
from holdfast.errors import ConfigError, ModelError
from holdfast.rollout.hf import HFPolicy
from holdfast.rollout.support import text_config
from holdfast.train.model import LanguageModel
from holdfast.train.session import Workspace

_LONGEST = 16  # prompts checked per split: rendering all of a hundred thousand would take a minute
_FIRST_STEPS = 3


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
    if own.top_p < 1 or own.top_k > 0:
        yield (
            f"sampling.top_p = {own.top_p:g} and sampling.top_k = {own.top_k} truncate the sampler, while log-probs "
            "are over the whole vocabulary. This mismatch alone can make a run collapse: watch sampler/logprob_gap, or "
            "set top_p = 1 and top_k = 0"
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


class Watch:
    """Listens to the metrics of a run, and says once what makes its training void."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._seen: list[Mapping[str, float]] = []
        self._said_skipped = False

    def __call__(self, metrics: Mapping[str, float]) -> Iterator[str]:
        """Sentences to say after this step, mostly none."""
        if metrics.get("grad/skipped") and not self._said_skipped:
            self._said_skipped = True
            yield (
                f"{metrics['grad/skipped']:.0f} of {metrics['optimizer_steps_per_rollout']:.0f} optimizer steps were "
                "skipped because their gradient was not finite (grad/skipped); if it goes on, lower train.lr, or set "
                "model.autocast = 'none'"
            )
        if len(self._seen) < _FIRST_STEPS:
            self._seen.append(metrics)
            if len(self._seen) == _FIRST_STEPS:
                yield from self._after_first_steps()

    def _after_first_steps(self) -> Iterator[str]:
        if self._config.loss.advantage != "reinforce" and self._all_zero("rollout/mixed_groups"):
            yield (
                f"in the first {_FIRST_STEPS} steps all rollouts of each question got the same reward, so there was "
                "nothing to prefer and nothing was learned (rollout/mixed_groups is 0). Start from a better policy "
                "([warm_start]), take easier questions, or add a denser part to [reward], such as f1"
            )
        elif self._config.loss.penalty.name in ("llds", "sapo") and self._all_zero("penalty/active_fraction"):
            if self._all_zero("penalty/preserved_share"):
                reason = (
                    f"no rollout was protected by loss.penalty.preserve = {self._config.loss.penalty.preserve!r}. It "
                    "will act once some are; 'nonnegative' protects more"
                )
            else:
                reason = (
                    "the policy did not become less likely on any token it protects. When this stays so, updates are "
                    "too small to matter: raise train.lr or train.optimizer_steps_per_rollout"
                )
            yield f"the penalty was inert in the first {_FIRST_STEPS} steps (penalty/active_fraction is 0): {reason}"

    def _all_zero(self, name: str) -> bool:
        values = [metrics[name] for metrics in self._seen if name in metrics]
        return bool(values) and not any(values)


def _key(example: Example) -> str:
    return " ".join(example.question.lower().split())
