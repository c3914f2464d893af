"""The losses, as verl calls them, and their registration."""

from __future__ import annotations

import platform
import sys
from collections import deque
from contextvars import ContextVar
from dataclasses import dataclass, field, make_dataclass
from functools import wraps
from statistics import fmean
from typing import Any

import torch
import verl
from torch import Tensor
from verl.trainer.ppo import core_algos
from verl.workers.config import PolicyLossConfig
from verl.workers.utils import losses as verl_losses

from holdfast import __version__
from holdfast.adapters.host_losses import WINDOW, CountedMean, PreservedShare, measure, preserved_counts
from holdfast.adapters.verl_losses import ANSWER_SPAN, LOSSES, PENALTY_FIELDS, penalty_for
from holdfast.adapters.verl_term import Answers, Log, base_name, refuse_split_actions
from holdfast.base.errors import ConfigError
from holdfast.base.tested import TESTED, newer_than_tested
from holdfast.methods.penalties import LLDS, Penalty

_Settings = make_dataclass(
    "_Settings", [(name, Any, field(default=None)) for name in PENALTY_FIELDS], bases=(PolicyLossConfig,)
)


@dataclass
class HoldfastPolicyLossConfig(_Settings):  # type: ignore[misc, valid-type]
    """verl's `policy_loss` with the settings of a penalty: `penalty_coef` is the `coef` of a class in
    `holdfast.penalties`, and so on. None is the paper's value. `penalty_answer` says what counts as the answer, for a
    weight of it.

    Raises `ConfigError`, when verl builds its workers, for settings that cannot work together.
    """

    base_loss_mode: str = "vanilla"
    """The registered loss to which the penalty is added."""
    holdfast_version: str | None = None
    """The holdfast that every machine must have. `holdfast launch` writes its own."""

    def __post_init__(self) -> None:
        if self.holdfast_version not in (None, __version__):
            raise ConfigError(
                f"policy_loss.holdfast_version = {self.holdfast_version}, but {platform.node()} has holdfast "
                f"{__version__}; install one version on every machine, or write the folder again with `holdfast launch`"
            )
        if self.loss_mode in LOSSES:
            plan(self.loss_mode, self)
            return
        for key in (*PENALTY_FIELDS, "base_loss_mode"):
            if self[key] not in (None, "vanilla"):
                raise ConfigError(
                    f"policy_loss.{key} = {self[key]} with loss_mode = {self.loss_mode!r}, which does not use it; set "
                    f"loss_mode to one of {', '.join(LOSSES)}, or leave it out"
                )


def plan(name: str, settings: Any) -> tuple[Penalty | None, str]:
    """The penalty and the name of the base loss; `ConfigError` for what cannot work."""
    penalty = penalty_for(name, settings)
    base = base_name(settings, core_algos.POLICY_LOSS_REGISTRY)
    refuse_split_actions(penalty, settings.get("rollout_correction"), settings.get("penalty_answer"))
    return penalty, base


_micro_batch: ContextVar[Any] = ContextVar("micro_batch", default=None)
"""The TensorDict of verl's `ppo_loss` while it runs."""


def _wrap_ppo_loss() -> None:
    """Let `_micro_batch` have what verl's `ppo_loss` gets; it hides that from a policy loss."""
    original = verl_losses.ppo_loss

    @wraps(original)
    def ppo_loss(config: Any, model_output: Any, data: Any, dp_group: Any = None) -> Any:
        token = _micro_batch.set(data)
        try:
            return original(config, model_output, data, dp_group)
        finally:
            _micro_batch.reset(token)

    for name in ("verl.workers.utils.losses", "verl.workers.engine_workers", "verl.trainer.distillation.losses"):
        module = sys.modules.get(name)  # the last two have a name of their own for it, if they are imported already
        if getattr(module, "ppo_loss", None) is original:
            module.ppo_loss = ppo_loss  # type: ignore[union-attr]


class _Loss:
    """A policy loss as verl calls it, by keyword. One per name and process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._log = Log()
        self._searches: deque[int] = deque(maxlen=WINDOW)  # of recent rollouts; a schedule reads a whole rollout batch
        self._share = PreservedShare()
        self._settings: Any = None
        self._planned: tuple[Penalty | None, str] = (None, "")

    def __call__(
        self,
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """(scalar loss, metrics). All tensors [B, T]; `config` is verl's ActorConfig."""
        if config.policy_loss is not self._settings:  # for every micro-batch the same
            self._planned, self._settings = plan(self.name, config.policy_loss), config.policy_loss
        penalty, base = self._planned
        loss, metrics = core_algos.get_policy_loss_fn(base)(
            old_log_prob=old_log_prob,
            log_prob=log_prob,
            advantages=advantages,
            response_mask=response_mask,
            loss_agg_mode=loss_agg_mode,
            config=config,
            rollout_is_weights=rollout_is_weights,
        )
        mask = response_mask.bool()
        preserved = (penalty or LLDS()).preserved(advantages, mask)
        term = weight = None
        if penalty is not None:
            answers: dict[str, Any] = {}
            if penalty.uses_answer_mask:
                by_agent = config.policy_loss.get("penalty_answer") == ANSWER_SPAN
                where = Answers.of_agent(_micro_batch.get(), mask) if by_agent else Answers.by_last_action(mask)
                self._searches.extend(where.searches)
                weight = penalty.weight_at(fmean(self._searches or [0]))
                answers = {"answer_mask": where.mask, "answer_weight": 1.0 if weight is None else weight}
            term = penalty.per_token(log_prob, old_log_prob, advantages, mask, preserved=preserved, **answers)
        series = measure(preserved, term, log_prob, old_log_prob, advantages, mask)
        if weight is not None:
            series["penalty/answer_weight"] = CountedMean(log_prob.new_tensor(weight), mask.sum(), weight)
        if penalty is not None and term is not None:
            mode = "token-mean" if penalty.normalizer == "preserved" else loss_agg_mode
            coef = self._share.coefficient(penalty, preserved_counts(preserved, mask))
            if penalty.coef:
                loss = loss + coef * core_algos.agg_loss(term, mask, mode, **config.global_batch_info)
            with torch.no_grad():
                # With this micro-batch's denominator: verl takes a mean over micro-batches, and parts of a global sum
                # would shrink with their number.
                scale = config.global_batch_info.get("loss_scale_factor")
                logged = core_algos.agg_loss(term, mask, mode, loss_scale_factor=scale)
                series["loss/penalty"] = CountedMean(coef * logged, mask.sum(), 0.0)
        return loss, {**metrics, **self._log.numbers(self.name, series)}


def _register() -> None:
    version = verl.__version__
    tested = TESTED["verl"]
    if not tested.works_with(version):
        sentence = (
            f"verl {version} is installed, but holdfast.adapters.verl needs {tested.oldest} or newer. Run: pip install "
            f"'verl=={tested.newest}.*'"
        )
        print(f"holdfast: no losses registered: {sentence}", file=sys.stderr)  # verl hides what a plugin raises
        raise ConfigError(sentence)
    if all(name in core_algos.POLICY_LOSS_REGISTRY for name in LOSSES):
        return
    for name in LOSSES:
        core_algos.register_policy_loss(name)(_Loss(name))
    _wrap_ppo_loss()
    print(f"holdfast: policy losses registered with verl {version}: {', '.join(LOSSES)}", file=sys.stderr)
    if newer := newer_than_tested("verl", version):
        print(f"holdfast: {newer}", file=sys.stderr)


_register()
