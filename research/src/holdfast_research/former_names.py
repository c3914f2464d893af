"""Settings and metrics by the names they had when runs were recorded: recordings and kept runs stay as they are.

retrieval.drop = 0.2   ->   faults.search_failure_rate = 0.2
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from holdfast.recipe.overrides import assign

FORMER: Mapping[str, str] = {
    "sampling.keep_mask": "sampling.mask_logprobs",
    "retrieval.drop": "faults.search_failure_rate",
    "retrieval.max_failed": "run.max_failed_fraction",
    "guard.on": "guard.codes",
    "model.hidden": "world.model.hidden",
    "model.layers": "world.model.layers",
    "model.heads": "world.model.heads",
    "warm_start.batch": "warm_start.batch_size",
    "warm_start.plain_steps": "world.scripts.plain_steps",
    "warm_start.episodes": "world.scripts.count",
    "warm_start.skip_search": "world.scripts.skip_search",
    "warm_start.vague_query": "world.scripts.vague_query",
    "warm_start.give_up": "world.scripts.give_up",
    "warm_start.stop_early": "world.scripts.stop_early",
    "warm_start.misread": "world.scripts.misread",
    "warm_start.malformed": "world.scripts.malformed",
    "warm_start.ramble": "world.scripts.ramble",
    "loss.nthr": "loss.methods.nthr.on",
    "loss.drop_void": "loss.methods.drop_void.on",
    "loss.drop_first_actions": "loss.methods.drop_first_actions.on",
    "loss.negative_weight": "loss.methods.negative_weight.weight",
    "loss.off_policy_threshold": "loss.methods.off_policy_mask.threshold",
    "train.resample": "loss.methods.dynamic_sampling.rounds",
    "faults.stale_batches": "train.staleness",
}
"""Former name -> present name."""
SWITCHED_OFF: Mapping[str, Any] = {
    "loss.negative_weight": 1.0,
    "train.resample": 0,
    "train.per_sample_every": 0,
    "train.per_sample_questions": 4,
}
"""Former name -> the value without the method, which has a switch now, or is a probe."""
OF_TASK_SET: Mapping[str, tuple[str, ...]] = {
    "data.train": ("factbook:train",),
    "data.dev": ("factbook:dev",),
    "data.test": ("factbook:test",),
    "retrieval.corpus": ("factbook:corpus", "world"),
    "warm_start.data": ("factbook:demonstrations",),
}
"""Name -> former values that meant a part of the task set, which `data.train` now names whole."""
TO_SAMPLER = "faults.compare_with_sampler"
WEIGHTS = "loss.sampler_weights."
"""Begins the former names of `loss.methods.sampler_weights`; `level = "none"` was without weights."""

METRICS: Mapping[str, str] = {
    "advantage/cut_mean": "advantage/tail_mean",
    "displacement/rows": "displacement/rollouts",
    "grad/skipped": "grad/skipped_steps",
    "penalty/drop": "penalty/mean_decrease",
    "penalty/preserved_share": "penalty/preserved_fraction",
    "retrieval/cache_hit": "retrieval/duplicate_fraction",
    "rollout/cut_fraction": "rollout/truncated_observation_fraction",
    "rollout/first_action_match": "rollout/first_action_match_fraction",
    "rollout/mixed_groups": "rollout/mixed_group_fraction",
    "sampler/keeps_mask": "sampler/mask_in_loss",
    "sampler/mass_kept": "sampler/mask_mass",
}
"""Former name of a metric -> present name."""
_METRIC = re.compile(rf'"((?:eval_)?(?:holdfast/)?)({"|".join(METRICS)})"(?=:)')


def with_present_metrics(log: str) -> str:
    """A log in JSON with the metrics, ours or those that we added to TRL's, by their present names.

    >>> with_present_metrics('{"step": 1, "penalty/drop": 0.5, "reward/mean": 0}')
    '{"step": 1, "penalty/mean_decrease": 0.5, "reward/mean": 0}'
    """
    return _METRIC.sub(lambda found: f'"{found[1]}{METRICS[found[2]]}"', log)


def renamed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings of a recording, by their present names."""
    present: dict[str, Any] = {}
    former = dotted(settings)
    weighted = former.get(f"{WEIGHTS}level", "none") != "none"
    for name, value in former.items():
        if name in SWITCHED_OFF and value == SWITCHED_OFF[name]:
            continue
        if value in OF_TASK_SET.get(name, ()):
            if name == "data.train":
                assign(present, name, "factbook")
            continue
        if name == TO_SAMPLER:
            assign(present, "loss.old_policy", "sampler" if value else "recomputed")
        elif not name.startswith(WEIGHTS):
            assign(present, FORMER.get(name, name), value)
        elif weighted:
            assign(present, f"loss.methods.{name.removeprefix('loss.')}", value)
    return present


def dotted(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted name.

    >>> dotted({"train": {"lr": 1e-4}, "world": {"model": {"hidden": 48}}})
    {'train.lr': 0.0001, 'world.model.hidden': 48}
    """
    values: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and prefix + key != "reward.custom":
            values |= dotted(value, f"{prefix}{key}.")
        else:
            values[prefix + key] = value
    return values
