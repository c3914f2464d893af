"""Names that mean what the tables say only under some settings: where a log shows otherwise, they stay as they are."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.diagnostics.log import Host, Series

_SUMS = "seq-mean-token-sum"
_AGGREGATION = "actor_rollout_ref.actor.loss_agg_mode"


def doubts(host: Host, series: Mapping[str, Series], settings: Mapping[str, object]) -> dict[str, str]:
    """Host name -> why it is not read as ours in this log; `series` are under the host's names."""
    found: dict[str, str] = {}
    if host == "verl" and str(settings.get(_AGGREGATION, "")).startswith(_SUMS):
        found["actor/entropy"] = f"under loss_agg_mode={settings[_AGGREGATION]} verl sums it over a rollout's tokens"
    clipped = series.get("response_length/clip_ratio")
    if host == "verl" and clipped is not None and (clipped.values > 0).all():
        # verl before 0.9 pads responses to the longest allowed; later versions to the longest of the batch, and of
        # those at least one is as long as itself. So a 0 anywhere tells that the name means truncation.
        found["response_length/clip_ratio"] = (
            "it is never 0 here, and from verl 0.9 on it counts the rollouts as long as the longest of the batch, "
            "truncated or not"
        )
    unended = series.get("completions/clipped_ratio")
    if host == "trl" and unended is not None and (unended.values == 1).all():
        found["completions/clipped_ratio"] = "it is 1 throughout: these rollouts do not end in an end-of-text token"
    return {name: why for name, why in found.items() if name in series}
