"""TRL: log-probs of the loss over the tokens that a truncated sampler can draw, instead of the whole vocabulary.

`with_penalties(..., mask_logprobs=True)`. The pass that takes the old log-probs finds, at each sampled token, the ids
inside top-k, top-p and min-p; reference and current log-probs are then normalised over the same ids. This is the Keep
Sampling Mask of DeepSeek-V3.2 (arXiv 2512.02556, section 3.1), with a mask recomputed from the trainer's logits: TRL
1.16 does not pass on what vLLM could report. Since 1.17 its importance weights are corrected for the truncation, by its
release notes, and the mask would do that again (`corrects_itself`).

How it works. TRL asks the model for log-probs with `fused_lm_head=True`, which never holds logits. During a pass of the
loss that call goes to the model's own forward, whose output layer then sees the sampled tokens alone. So a pass holds
logits of [sampled tokens, vocabulary]. No other call of the model changes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from holdfast.base.errors import ConfigError
from holdfast.base.tested import between
from holdfast.hosts.trl import CORRECTS
from holdfast.losses._tensors import upcast
from holdfast.model.passes.logprobs import project_only
from holdfast.model.sampler.sampling import SamplingMask, drawable_ids, truncate

if TYPE_CHECKING:
    Trainer = Any  # the trainer class that follows a mixin
else:
    Trainer = object

SAMPLING_MASK, WHOLE_LOGPS = "holdfast_sampling_mask", "holdfast_whole_logps"
"""In the batch: the mask, one int32 tensor [n_i, k_i] a rollout; old log-probs [B, T] over the whole vocabulary."""

_DISTRIBUTION = (
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "no_repeat_ngram_size",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "top_h",
    "logit_bias",
    "bad_words",
    "bad_words_ids",
    "allowed_token_ids",
    "suppress_tokens",
    "min_tokens",
    "min_new_tokens",
    "structured_outputs",
)
"""What else in `generation_kwargs` changes the sampler's distribution, in transformers or vLLM."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """How TRL's sampler truncates the policy's distribution."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    min_p_first: bool = False
    """vLLM applies min-p before top-k and top-p, transformers after both."""

    @classmethod
    def of(cls, args: Any) -> Truncation:
        """From a `GRPOConfig`, whose `generation_kwargs` overrule the rest, as they do in TRL."""
        given = {name: getattr(args, name) for name in ("temperature", "top_k", "top_p", "min_p")}
        given |= {name: value for name, value in (args.generation_kwargs or {}).items() if name in given}
        top_p, min_p = given["top_p"], given["min_p"]
        return cls(
            given["temperature"],
            max(given["top_k"] or 0, 0),
            1.0 if top_p is None else top_p,
            min_p or 0.0,
            bool(args.use_vllm),
        )

    @property
    def active(self) -> bool:
        """Whether any token can be left out."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    def truncate(self, scaled: Tensor) -> tuple[Tensor, Tensor]:
        """Of logits [N, V], divided by the temperature: unnormalised probabilities, float32 [N, k], most likely first
        and 0 outside the sampling mask, and their token ids."""
        mass = (scaled - scaled.amax(-1, keepdim=True)).float().exp()  # 1 for the most likely token
        if self.min_p_first:
            mass = mass.masked_fill(mass < self.min_p, 0.0)
        ranked, ids = truncate(mass, self.top_p, self.top_k)
        return ranked.masked_fill(ranked < self.min_p, 0.0), ids

    def mask_mass(self, logits: Tensor) -> Tensor:
        """float [N], of logits [N, V]: the probability of the tokens that can be drawn."""
        scaled = logits / self.temperature
        ranked, _ = self.truncate(scaled)
        return ranked.sum(-1) / (scaled - scaled.amax(-1, keepdim=True)).exp().sum(-1)


def check_mask(args: Any) -> None:
    """Raise `ConfigError` for a `GRPOConfig` whose sampling mask cannot be recomputed, or would be of no use."""
    sampler, given = Truncation.of(args), args.generation_kwargs or {}
    if not sampler.top_k:
        cut = f"top_p={sampler.top_p:g} and " if sampler.top_p < 1 else ""
        raise ConfigError(
            f"mask_logprobs=True with {cut}top_k=0: holdfast keeps the sampling mask of every token in memory, and "
            "top_k limits its size. Set top_k=512, which rarely removes more than top_p does. A sampler that is not "
            "truncated needs no mask"
        )
    other = [name for name in _DISTRIBUTION if given.get(name)]
    if args.repetition_penalty != 1:
        other.append("repetition_penalty")
    if args.vllm_structured_outputs_regex is not None:
        other.append("vllm_structured_outputs_regex")
    if other:
        raise ConfigError(
            f"mask_logprobs=True with {', '.join(dict.fromkeys(other))}: the sampler's distribution then depends on "
            "more than the logits, so the mask cannot be recomputed. Leave only temperature, top_k, top_p and min_p"
        )
    if sampler.temperature != args.temperature:
        raise ConfigError(
            f"mask_logprobs=True: generation_kwargs sets temperature {sampler.temperature:g} for sampling, but the "
            f"loss uses temperature={args.temperature:g}. Sampler and loss would differ with any mask. Set "
            f"GRPOConfig(temperature={sampler.temperature:g}) instead"
        )
    if args.beta and not takes_old_logprobs(args):
        raise ConfigError(
            f"mask_logprobs=True with beta={args.beta:g}: with one optimizer step per rollout batch, TRL computes "
            "the reference's log-probs first, and the mask would come from the wrong model. Set "
            f"num_iterations=2, steps_per_generation={2 * args.gradient_accumulation_steps} or more, or beta=0"
        )


def takes_old_logprobs(args: Any) -> bool:
    """Whether TRL computes old log-probs before the update. Source: `_generate_and_score_completions`."""
    micro_batches = args.steps_per_generation * args.num_iterations
    corrected = args.use_vllm and args.vllm_importance_sampling_correction
    return bool(args.gradient_accumulation_steps % micro_batches or corrected)


def warning(args: Any, remedy: str) -> str | None:
    """A sentence on a truncated sampler whose loss is over the whole vocabulary."""
    sampler = Truncation.of(args)
    if not sampler.active:
        return None
    return (
        f"top_p={sampler.top_p:g}, top_k={sampler.top_k} and min_p={sampler.min_p:g} truncate the sampler, while the "
        "log-probs of the loss are over the whole vocabulary. This mismatch alone can make a run collapse. "
        f"{remedy}, or set top_p=1.0, top_k=0 and min_p=None"
    )


def weights_vllm(args: Any) -> bool:
    """Whether TRL weights its loss by the ratio of its own log-probs to vLLM's."""
    return bool(args.use_vllm and args.vllm_importance_sampling_correction)


def corrects_itself(args: Any) -> bool:
    """Whether these weights are unbiased under top-k, top-p and min-p: since TRL 1.17, by its release notes."""
    return weights_vllm(args) and between(version("trl"), CORRECTS)


class MaskMixin(Trainer):
    """The methods that `mask_logprobs` adds to the trainer; each calls `super()`. Evaluation stays as it is."""

    _masked: MaskedPasses | None = None
    _env_mask: Sequence[Sequence[int]] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("args") is not None:
            check_mask(kwargs["args"])  # before a model is loaded
        super().__init__(*args, **kwargs)
        check_mask(self.args)

    def _generate(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        result: tuple[Any, ...] = super()._generate(*args, **kwargs)
        self._env_mask = result[2]
        return result

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        with self._masking(MaskedPasses(Truncation.of(self.args))) as masked:
            batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if masked.whole is None:
            return batch  # one optimizer step: the pass of the loss is the first
        batch |= {SAMPLING_MASK: masked.sampling_mask, WHOLE_LOGPS: masked.whole}
        if "trajectory" in inputs[0] and not self.use_vllm:  # SearchRollouts reports them over the whole vocabulary
            batch["sampling_per_token_logps"] += batch["old_per_token_logps"] - masked.whole
        return batch

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if not self.model.training:
            return super()._compute_loss(model, inputs)
        passes = MaskedPasses(
            Truncation.of(self.args),
            loss_mask=loss_mask(inputs),
            sampling_mask=inputs.get(SAMPLING_MASK),
            entropy_gradient=bool(self.args.entropy_coef or self.args.use_adaptive_entropy),
        )
        with self._masking(passes):
            loss: Tensor = super()._compute_loss(model, inputs)
        inputs.setdefault(WHOLE_LOGPS, passes.whole)
        return loss

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, *args: Any, **kwargs: Any
    ) -> tuple[Any, ...]:
        arguments = (model, input_ids, attention_mask, logits_to_keep, *args)
        passes: AbstractContextManager[None] = nullcontext()
        if self._masked is not None:
            if self._masked.loss_mask is None:
                sampled = attention_mask[:, -logits_to_keep:].bool()
                self._masked.loss_mask = sampled & _padded(self._env_mask, sampled)
            inner = self.accelerator.unwrap_model(model)
            inner = inner.get_base_model() if hasattr(inner, "get_base_model") else inner
            passes = self._masked.over(inner, entropy=kwargs.get("compute_entropy", False))
        with passes:
            return super()._get_per_token_logps_and_entropies(*arguments, **kwargs)  # type: ignore[no-any-return]

    @contextmanager
    def _masking(self, passes: MaskedPasses) -> Iterator[MaskedPasses]:
        self._masked = passes
        try:
            yield passes
        finally:
            self._masked = None


class MaskedPasses:
    """The passes of the model over some rollouts, in the order that TRL makes them.

    Without a `sampling_mask`, the first pass finds it: it must be the policy that sampled.

    Args:
        sampler: of the rollouts.
        loss_mask: bool [B, T] over completion tokens; None until TRL has built the batch.
        sampling_mask: of an earlier pass, one tensor [n_i, k_i] a rollout.
        entropy_gradient: whether the loss has an entropy term.
    """

    def __init__(
        self,
        sampler: Truncation,
        *,
        loss_mask: Tensor | None = None,
        sampling_mask: Sequence[Tensor] | None = None,
        entropy_gradient: bool = False,
    ) -> None:
        self.sampler, self.loss_mask = sampler, loss_mask
        self.sampling_mask, self.entropy_gradient = sampling_mask, entropy_gradient
        self.whole: Tensor | None = None
        """[B, T]: the log-probs of the first pass, over the whole vocabulary."""

    @contextmanager
    def over(self, model: Any, *, entropy: bool) -> Iterator[None]:
        """Within this context, `model` answers TRL's calls for log-probs of these rollouts with masked ones.

        Args:
            model: without wrappers of accelerate or PEFT, as TRL has patched it.
            entropy: whether TRL reads the entropies, which stay those of the whole vocabulary.
        """
        assert self.loss_mask is not None
        loss_mask, masks, whole = self.loss_mask, list[Tensor](), list[Tensor]()
        host = model.forward

        @functools.wraps(host)
        def forward(*args: Any, fused_lm_head: bool = False, labels: Any = None, **kwargs: Any) -> Any:
            if not fused_lm_head:
                return host(*args, **kwargs) if labels is None else host(*args, labels=labels, **kwargs)
            start = sum(map(len, whole))
            rows = slice(start, start + len(labels))
            known = None if self.sampling_mask is None else SamplingMask(tuple(self.sampling_mask[rows]))
            with project_only(model, _predicts(labels, loss_mask[rows])):
                output = host(*args, use_cache=False, **kwargs)
            result, mask, over_all = self._logprobs(output, labels, loss_mask[rows], known, entropy=entropy)
            masks.extend(mask.rows)
            whole.append(over_all)
            return result

        model.forward = forward
        try:
            yield
        finally:
            model.forward = host
        if sum(map(len, whole)) != len(loss_mask):
            raise ConfigError(
                f"mask_logprobs=True: only {sum(map(len, whole))} of {len(loss_mask)} rollouts passed through the "
                "forward pass of TRL's GRPOTrainer. The log-probs of the others are not over the sampling mask. A "
                "trainer class or a kernel has replaced that forward pass; remove it, or leave out mask_logprobs"
            )
        if self.sampling_mask is None:
            self.sampling_mask = masks
        if self.whole is None:
            self.whole = torch.cat(whole)

    def _logprobs(
        self, output: Any, labels: Tensor, loss_mask: Tensor, known: SamplingMask | None, *, entropy: bool
    ) -> tuple[Any, SamplingMask, Tensor]:
        """Of one call: what TRL reads, the sampling mask, and log-probs [b, T] over the whole vocabulary."""
        from trl.trainer.utils import FusedCausalLMOutput

        scaled = upcast(output.logits[0]) / self.sampler.temperature
        sampled = _predicts(labels, loss_mask)[:, :-1]
        targets = labels[:, 1:][sampled]
        if known is None:
            with torch.no_grad():
                ids = drawable_ids(*self.sampler.truncate(scaled), targets)
            # Of each rollout, without the columns that none of its tokens fills.
            known = SamplingMask(tuple(row[:, (row >= 0).any(0)] for row in ids.split(sampled.sum(-1).tolist())))

        def spread(values: Tensor) -> Tensor:
            return values.new_zeros(sampled.shape).masked_scatter(sampled, values)

        picked = scaled.gather(-1, targets[:, None])[:, 0]
        result = FusedCausalLMOutput(
            log_probs=spread(picked - _logsumexp(known, scaled)), aux_loss=getattr(output, "aux_loss", None)
        )
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.entropy_gradient):
            over_all = scaled.logsumexp(-1)
            if entropy:
                result.entropy = spread(over_all - ((scaled - over_all[:, None]).exp() * scaled).sum(-1))
        return result, known, spread((picked - over_all).detach())[:, -loss_mask.size(1) :]


def loss_mask(batch: dict[str, Any]) -> Tensor:
    """bool [B, T] over completion tokens: those the model sampled. T counts completion tokens only."""
    mask = batch["completion_mask"]
    return (mask * batch["tool_mask"] if batch.get("tool_mask") is not None else mask).bool()


def _predicts(labels: Tensor, loss_mask: Tensor) -> Tensor:
    """bool [b, S]: the positions that predict the sampled tokens among the last T of S."""
    result = torch.zeros_like(labels, dtype=torch.bool)  # PEFT may have put virtual tokens in front
    result[:, -loss_mask.size(1) - 1 : -1] = loss_mask
    return result


def _padded(rows: Sequence[Sequence[int]] | None, like: Tensor) -> Tensor:
    """bool of the shape of `like`, from rows of 1 and 0: True behind the end of a row, as TRL pads it."""
    result = torch.ones_like(like, dtype=torch.bool)
    for row, values in zip(result, rows or (), strict=False):
        row[: len(values)] = torch.as_tensor(values, device=like.device).bool()
    return result


def _logsumexp(mask: SamplingMask, scaled: Tensor) -> Tensor:
    """`SamplingMask.logsumexp` over rollouts whose masks have different widths."""
    width = max((row.size(1) for row in mask.rows), default=0)
    rows = tuple(torch.nn.functional.pad(row, (0, width - row.size(1)), value=-1) for row in mask.rows)
    return SamplingMask(rows).logsumexp(scaled)
