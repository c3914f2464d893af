"""What would log a series that a log lacks: a setting of the host, or holdfast's observer for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.diagnostics.causal import has
from holdfast.diagnostics.log import Host, Log

_VERL_LOSS = "`actor_rollout_ref.actor.policy_loss.loss_mode=holdfast_observe`, which leaves the loss as it is"
_TRL_LOSS = "`with_penalties(GRPOTrainer)`, which leaves the loss as it is"
_TRL_ROLLOUTS = "`SearchRollouts` with the functions of `reward_functions` (docs/engines.md)"
_TRL_SAMPLED_HERE = "`with_penalties(GRPOTrainer)` beside `SearchRollouts`, sampling with the trainer's own model"

# The first prefix that fits a name says what would log it. Nothing would log a name that none fits.
LOGGED_BY: Mapping[Host, Mapping[str, str]] = {
    "holdfast": {
        "displacement/": "`train.displacement_every = 1`",
        "eval/": "`eval.every`",
        "penalty/": '`loss.penalty.name` other than "none"',
        "": "every run of `holdfast train`; this log is of an older version, or not whole",
    },
    "trl": {
        "displacement/": _TRL_LOSS,
        "likelihood/correct": _TRL_LOSS,
        "likelihood/incorrect": _TRL_LOSS,
        "ratio/": _TRL_LOSS,
        "loss/tokens": "`with_penalties(GRPOTrainer)`, beside `SearchRollouts`",
        "penalty/": "`with_penalties(GRPOTrainer, LLDS(coef=0.2))`",
        "rollout/length": "every GRPOTrainer (`completions/mean_length`)",
        "clip/": "every GRPOTrainer (`clip_ratio/region_mean`)",
        "grad/norm": "every trainer, with `max_grad_norm` set",
        "entropy/mean": "every GRPOTrainer (`entropy`)",
        "rollout/mixed_group_fraction": "every GRPOTrainer (`frac_reward_zero_std`)",
        "sampler/logprob_gap": "`with_penalties(GRPOTrainer)` with `use_vllm=True` or `SearchRollouts`",
        "sampler/mask_mass": _TRL_LOSS,
        "advantage/tail_mean": _TRL_SAMPLED_HERE,
        "retrieval/": _TRL_ROLLOUTS,
        "rollout/": _TRL_ROLLOUTS,
        "reward/mean": "every GRPOTrainer (`reward`)",
        "reward/": _TRL_ROLLOUTS,
    },
    "verl": {
        "drift/": _VERL_LOSS,
        "likelihood/positive": _VERL_LOSS,
        "likelihood/negative": _VERL_LOSS,
        "ratio/": _VERL_LOSS,
        "penalty/": "`actor_rollout_ref.actor.policy_loss.loss_mode=holdfast_llds`",
        "clip/": "every actor of verl (`actor/pg_clipfrac`)",
        "grad/norm": "every actor of verl (`actor/grad_norm`)",
        "entropy/mean": "verl's trainer (`actor/entropy`)",
        "rollout/length": "verl's trainer (`response_length/mean`)",
        "reward/mean": "verl's trainer (`critic/score/mean`)",
        "sampler/logprob_gap": "`actor_rollout_ref.rollout.calculate_log_probs=True` (`rollout_corr/kl`)",
    },
    "unknown": {},
}
_KEEPING: Mapping[Host, str] = {"trl": ", with `logging_steps=1` and `trainer.save_state()` or `Monitoring`"}
"""What it takes for logged series to reach a file, with a row for every optimizer step."""


def logged_by(host: Host, name: str) -> str | None:
    """What logs a series on this host; None when nothing does."""
    return next((how for start, how in LOGGED_BY[host].items() if name.startswith(start)), None)


def best_set(host: Host, needs: Iterable[tuple[str, ...]]) -> tuple[tuple[str, ...], bool]:
    """The first of a rule's sets of series that this host can log, and whether there is one; else the first set."""
    sets = tuple(needs)
    loggable = next((names for names in sets if all(logged_by(host, name) for name in names)), None)
    return (sets[0], False) if loggable is None else (loggable, True)


def remedy_for(log: Log, missing: Iterable[str]) -> str:
    """What to do so that the next log has the series: why the observer that was on did not log them, or what does."""
    names = tuple(missing)
    return (observed_without(log, names) if log.host == "trl" else None) or how_to_log(log.host, names)


def observed_without(log: Log, missing: Iterable[str]) -> str | None:
    """Why a TRL log lacks series of correct rollouts although `with_penalties` wrote it; None where it did not."""
    absent = [name for name in missing if name.startswith(("likelihood/", "displacement/"))]
    if not absent or not has(log, "optimizer_steps_per_rollout"):
        return None
    if not has(log, "likelihood/correct"):
        why = (
            "no rollout counted as correct: pass `with_penalties(..., correct_above=X)`, with X between the rewards of "
            "incorrect and of correct rollouts"
        )
    elif all("/action_" in name for name in absent):
        why = "these rollouts have no second action to compare with"
    else:
        why = "measured no displacement: that takes a second rollout batch, and a `displacement_every` above 0"
    return f"`with_penalties` was there, but {why}."


def how_to_log(host: Host, names: Iterable[str]) -> str:
    """A sentence: what to set so that the next log has the series."""
    ways = list(dict.fromkeys(way for name in names if (way := logged_by(host, name)) is not None))
    if ways:
        return f"Logged by {'; '.join(ways)}{_KEEPING.get(host, '')}."
    if host == "unknown":
        return "holdfast's observers for TRL and verl log it (docs/engines.md)."
    return f"Nothing in {host} logs it; `holdfast train` does."
