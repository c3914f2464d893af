"""verl's V1 trainers `separate_async` and `colocate_async` (0.9), whose rollouts may be versions old.

Both recompute the old policy unless `algorithm.rollout_correction.bypass_mode` is set: from the weights of the last
synchronisation, or of the start of the batch. They correct nothing by default.
"""

from dataclasses import replace

from holdfast.hosts.host import Name, Span
from holdfast.hosts.verl import V1, VERL

VERL_ASYNC = replace(
    VERL,
    id="verl-async",
    title="verl's asynchronous V1 trainer",
    kin="verl",
    trainers={"stale": "verl's V1 `separate_async` and `colocate_async`"},
    more=(
        *VERL.more,
        Name("training/off_policy/trajectory_staleness/mean", "rollout/staleness"),
        Name("training/off_policy/trajectory_staleness/max", "rollout/max_staleness"),
        Name("training/off_policy/evicted_samples", "rollout/dropped_stale"),
        Name("timing_s/switch_wait", "time/waiting_s"),
    ),
    variant=lambda series, settings: "",
    spans=(
        *VERL.spans,
        Span("timing_s/switch_wait", "waiting"),
        Span("timing_s/switch_to_(trainer|rollout)", "weights"),
    ),
    words={
        **VERL.words,
        "limit on staleness": (
            "trainer.v1.sampler.max_off_policy_threshold",
            "trainer.v1.separate_async.parameter_sync_step",
        ),
    },
    logged_by={**VERL.logged_by, "rollout/staleness": f"every trainer of V1 (`{V1}/mean`)"},
)
