"""The subclass of a trainer that `with_penalties` makes."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, TypeVar

from holdfast.adapters.host_losses import unsupported
from holdfast.adapters.trl.asynchronous import NAME, OLDEST, AsyncMixin
from holdfast.adapters.trl.mask import MaskMixin
from holdfast.adapters.trl.notices import say, warn
from holdfast.adapters.trl.nthr_mixin import NthrMixin
from holdfast.adapters.trl.penalty_mixin import PenaltyMixin, Settings
from holdfast.adapters.trl.unsloth import unsloth_mixin
from holdfast.base.errors import ConfigError
from holdfast.base.tested import TESTED, between, newer_than_tested
from holdfast.hosts.advice import WITHOUT
from holdfast.methods.custom_penalty import try_out
from holdfast.methods.penalties import PENALTIES, Penalty

T = TypeVar("T", bound=type)


def with_penalties(
    trainer_class: T,
    penalty: Penalty | None = None,
    *,
    correct_above: float = 0.5,
    displacement_every: int = 10,
    displacement_rows: int = 64,
    mask_logprobs: bool = False,
    nthr: bool = False,
) -> T:
    """A subclass of a `GRPOTrainer` that adds `penalty` to the loss and `holdfast/...` to the log.

    Args:
        trainer_class: TRL's GRPOTrainer, or a subclass of it that keeps its `_compute_loss`; or AsyncGRPOTrainer, see
            `holdfast.adapters.trl.asynchronous`, which measures no displacement and does not know what is correct.
        penalty: `LLDS(...)`, `SAPO(...)`, `NLL(...)`, or a class of yours derived from `holdfast.penalties.Penalty`;
            None observes only.
        correct_above: a rollout is correct when its reward, weighted and summed as TRL does, exceeds this; or, where a
            reward function is named `em`, when that is 1. Used by `preserve="correct"` and by the series of correct and
            incorrect rollouts. The default suits rewards of 0 and 1.
        displacement_every: measure displacement on every n-th rollout batch, at the cost of two forward passes; 0 is
            never.
        displacement_rows: on at most this many rollouts, over all processes.
        mask_logprobs: take the log-probs of the loss over the tokens that the sampler can draw. For a sampler that
            `top_p`, `top_k` or `min_p` truncates; see `holdfast.adapters.trl.mask`.
        nthr: lower the weight of tokens in negative rollouts that hurt positive ones; see
            `holdfast.adapters.trl.nthr_mixin`.

    Returns:
        A class to use in place of the given one: same arguments, same checkpoints.

    Raises:
        ConfigError: the class or the penalty is of another kind, or the installed TRL is too old; a newer one than was
            tested is a warning. When the trainer is constructed: a schedule without an optimizer step, or with a
            penalty that is always zero, an unknown loss type, or a sampler whose mask cannot be recomputed.
    """
    is_async, is_unsloth = _is_async(trainer_class), _is_unsloth(trainer_class)
    if penalty is not None and not isinstance(penalty, Penalty):
        raise ConfigError(
            f"with_penalties(..., {penalty!r}): pass a penalty object such as LLDS(coef=0.2), SAPO(coef=0.1) or "
            "NLL(coef=0.1); leave it out to observe only"
        )
    if penalty is not None and type(penalty) not in PENALTIES.values():
        try_out(penalty)
    if displacement_every < 0 or displacement_rows < 1:
        raise ConfigError(
            f"displacement_every={displacement_every}, displacement_rows={displacement_rows}: use 0 (never) or more "
            "for the first and at least 1 for the second"
        )
    if mask_logprobs and is_unsloth:
        raise ConfigError(
            "mask_logprobs=True with an Unsloth trainer: Unsloth does not keep the logits that a mask needs, but has a "
            "mask of its own. Leave it out, and sample with vLLM and UNSLOTH_GRPO_TRUNCATED_SUPPORT=1, or without "
            "truncation: top_p=1, top_k=0, min_p=None"
        )
    if nthr and (mask_logprobs or is_unsloth):
        other = "mask_logprobs=True" if mask_logprobs else "an Unsloth trainer"
        why = "a loss over the whole vocabulary" if mask_logprobs else "TRL's own forward pass"
        raise ConfigError(f"nthr=True with {other}: NTHR needs {why}. Leave one out")
    if is_async:
        _check_async(penalty, mask_logprobs=mask_logprobs, nthr=nthr)
    mixin = AsyncMixin if is_async else unsloth_mixin(trainer_class) if is_unsloth else PenaltyMixin
    added = [*([type(penalty).__name__] if penalty else []), *["NTHR"] * nthr]
    name = f"{trainer_class.__name__}With{'And'.join(added)}" if added else f"Observed{trainer_class.__name__}"
    bases = (mixin, *[MaskMixin] * mask_logprobs, *[NthrMixin] * nthr, trainer_class)
    settings = Settings(penalty, correct_above, displacement_every, displacement_rows, mask_logprobs)
    return type(name, bases, {"holdfast_settings": settings})  # type: ignore[return-value]


def _is_async(trainer_class: Any) -> bool:
    """Whether it is TRL's AsyncGRPOTrainer. Raises `ConfigError` for what is neither that nor a GRPOTrainer, for what
    `with_penalties` has made, and for a TRL that is too old."""
    from trl import GRPOTrainer

    installed = version("trl")
    if not TESTED["trl"].works_with(installed):
        raise ConfigError(
            f"trl {installed} is installed, but this adapter needs {TESTED['trl'].oldest} or newer: {_INSTALL}"
        )
    if newer := newer_than_tested("trl", installed):
        warn(newer)
    if isinstance(trainer_class, GRPOTrainer | Penalty):
        raise ConfigError(
            f"with_penalties({type(trainer_class).__name__}(...)): the first argument is the class of a trainer, and "
            "the second a penalty: with_penalties(GRPOTrainer, LLDS()). Use what it returns in place of the class"
        )
    if hasattr(trainer_class, "holdfast_settings"):
        raise ConfigError(
            f"with_penalties({trainer_class.__name__}, ...): this class has been through with_penalties already. Give "
            "it the class of before; for two penalties at once write one of your own (docs/reference/losses.md)"
        )
    bases = trainer_class.__mro__ if isinstance(trainer_class, type) else ()
    is_async = any(base.__name__ == NAME for base in bases)
    if is_async or GRPOTrainer in bases:
        return is_async
    given = f"with_penalties({getattr(trainer_class, '__name__', trainer_class)!r})"
    if _is_unsloth(GRPOTrainer):
        raise ConfigError(
            f"{given}: this class is not the one with which Unsloth replaced TRL's GRPOTrainer. Write `import "
            "unsloth` before every import of trl"
        )
    raise ConfigError(
        f"{given}: this function needs TRL's GRPOTrainer, its AsyncGRPOTrainer, or a subclass of one. Other "
        "trainers have no per-token loss to which a penalty could be added"
    )


def _check_async(penalty: Penalty | None, *, mask_logprobs: bool, nthr: bool) -> None:
    """Raise `ConfigError` for what AsyncGRPOTrainer cannot honour."""
    host = f"TRL's {NAME}"
    problems = [] if penalty is None else list(unsupported(penalty, host))
    problems += [f"mask_logprobs=True: {host} has no pass of its own for old log-probs. Leave it out"] * mask_logprobs
    problems += [f"nthr=True: {host} trains on parts of groups, and NTHR compares whole ones. Leave it out"] * nthr
    if not between(version("trl"), OLDEST):
        problems.append(f"with_penalties({NAME}) needs trl 1.16 or newer, whose loss gets packed rollouts: {_INSTALL}")
    for problem in problems:
        raise ConfigError(problem)
    if penalty is not None:
        noise = "; with one, set a threshold such as 0.01, because vLLM's numbers differ from the trainer's"
        threshold = getattr(penalty, "threshold", None)
        say(
            f"the old policy of {host} is the sampler's: {WITHOUT} "
            f"(docs/reference/advice.md){noise if threshold == 0 else ''}"
        )


def _is_unsloth(trainer_class: type) -> bool:
    return any(base.__name__.startswith(("Unsloth", "_Unsloth")) for base in trainer_class.__mro__)


_INSTALL = "pip install 'holdfast-rl[trl]'"
