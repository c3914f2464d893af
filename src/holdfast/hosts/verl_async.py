"""verl's V1 trainers `separate_async` and `colocate_async` (0.9), whose rollouts may be versions old.

Both recompute the old policy unless `algorithm.rollout_correction.bypass_mode` is set: from the weights of the last
synchronisation, or of the start of the batch. They correct nothing by default.
"""

from dataclasses import replace

from holdfast.hosts.host import Name, Setting, Span
from holdfast.hosts.ours import OURS
from holdfast.hosts.verl import V1, VERL
from holdfast.hosts.verl_recipe import LAUNCH


def _options(phrase: str) -> tuple[str, ...]:
    """The options of verl's launch that have the value of our setting."""
    rows = (row for row in LAUNCH.settings if isinstance(row, Setting) and row.when is None)
    return tuple(row.name for row in rows if (row.why,) == OURS.words[phrase])


VERL_ASYNC = replace(
    VERL,
    id="verl-async",
    title="verl's asynchronous V1 trainer",
    kin="verl",
    more=(
        *VERL.more,
        Name("training/off_policy/trajectory_staleness/mean", "rollout/staleness"),
        Name("training/off_policy/trajectory_staleness/max", "rollout/max_staleness"),
        Name("training/off_policy/evicted_samples", "rollout/dropped_stale"),
        Name("timing_s/switch_wait", "time/waiting_s"),
    ),
    variant=lambda series, settings: "verl-async",
    spans=(
        *VERL.spans,
        Span("timing_s/switch_wait", "waiting"),
        Span("timing_s/switch_to_(trainer|rollout)", "weights"),
    ),
    words={
        **{phrase: names for phrase in OURS.words if (names := _options(phrase))},
        **VERL.words,
        "age of rollouts": (
            "trainer.v1.sampler.max_off_policy_threshold",
            "trainer.v1.separate_async.parameter_sync_step",
        ),
    },
    logged_by={**VERL.logged_by, "rollout/staleness": f"every trainer of V1 (`{V1}/mean`)"},
    launch=None,
)
"""No recipe is translated for it."""
