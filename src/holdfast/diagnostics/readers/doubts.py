"""Names that mean what the tables say only under some settings: where a log shows otherwise, they stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import numpy as np

from holdfast.diagnostics.log import Host, Series

_SUMS = ("seq-mean-token-sum", "token-sum")
_AGGREGATION = "actor_rollout_ref.actor.loss_agg_mode"


def doubts(host: Host, series: Mapping[str, Series], settings: Mapping[str, object]) -> dict[str, str]:
    """Name in the host's table -> why it is not read as ours in this log; `series` are under the host's names."""
    plain = {name.removeprefix("train/"): part for name, part in series.items()}
    found: dict[str, str] = {}
    if host == "trl" and _are_not_cut(plain):
        found["completions/clipped_ratio"] = (
            "it is 1 of rollouts that no limit has cut: they do not end in an end-of-text token"
        )
    if host == "verl" and str(settings.get(_AGGREGATION, "")).startswith(_SUMS) and "actor/entropy" in plain:
        found["actor/entropy"] = f"under loss_agg_mode={settings[_AGGREGATION]} verl sums it over tokens"
    clipped = plain.get("response_length/clip_ratio")
    if host == "verl" and clipped is not None and (clipped.values > 0).all():
        # verl before 0.9 pads responses to the longest allowed; later versions to the longest of the batch, and of
        # those at least one is as long as itself. So a 0 anywhere tells that the name means truncation.
        found["response_length/clip_ratio"] = (
            "it is never 0 here, and from verl 0.9 on it counts the rollouts as long as the longest of the batch, "
            "truncated or not"
        )
    return found


def _are_not_cut(plain: Mapping[str, Series]) -> bool:
    """Whether rollouts that all count as cut differ in length; where no length is logged, whether all always count."""
    clipped = plain.get("completions/clipped_ratio")
    shortest, longest = plain.get("completions/min_length"), plain.get("completions/max_length")
    if clipped is None:
        return False
    if shortest is None or longest is None:
        return bool((clipped.values == 1).all())
    steps = reduce(np.intersect1d, (clipped.steps, shortest.steps, longest.steps))
    share, low, high = (one.values[np.searchsorted(one.steps, steps)] for one in (clipped, shortest, longest))
    return bool(((share == 1) & (low < high)).any())
