"""The tests that claims are put to. Each function makes a pure one: runs in, verdict out.

A test asks one question of every seed: yes, no, or not to be told (the reward never fell, a series is missing). Shown
is yes on every seed, partly on at least half of them, not shown on fewer. With fewer than `MIN_SEEDS` seeds that can
answer, the verdict is cannot tell: a single run shows nothing.
"""

from holdfast.lab.judge.actions import (
    brings_back_searches,
    first_action_crosses,
    first_action_decays_faster,
    first_action_match_rises,
    searches_end_below,
)
from holdfast.lab.judge.asking import MIN_SEEDS, MIN_STEPS, NOBODY, Test, tally
from holdfast.lab.judge.before import (
    displaced_before_drop,
    displacement_deepens,
    entropy_before_drop,
    entropy_surges_alone,
    gradient_calm_at_drop,
    gradient_surges,
    likelihood_decays_first,
    most_displaced,
    never_displaced,
    never_most_displaced,
    ratio_drifts_before_drop,
    ratio_never_drifts,
    wrong_below_right,
    wrong_not_raised,
)
from holdfast.lab.judge.outcome import (
    collapses,
    delays,
    does_not_collapse,
    drops_after_as_many_updates,
    ends_higher,
    falls,
    falls_after_delay,
    holds_where,
    no_surge_where,
    peaks_higher,
    postpones_surge,
    prevents_where,
    stays_down,
)

__all__ = [
    "MIN_SEEDS",
    "MIN_STEPS",
    "NOBODY",
    "Test",
    "brings_back_searches",
    "collapses",
    "delays",
    "displaced_before_drop",
    "displacement_deepens",
    "does_not_collapse",
    "drops_after_as_many_updates",
    "ends_higher",
    "entropy_before_drop",
    "entropy_surges_alone",
    "falls",
    "falls_after_delay",
    "first_action_crosses",
    "first_action_decays_faster",
    "first_action_match_rises",
    "gradient_calm_at_drop",
    "gradient_surges",
    "holds_where",
    "likelihood_decays_first",
    "most_displaced",
    "never_displaced",
    "never_most_displaced",
    "no_surge_where",
    "peaks_higher",
    "postpones_surge",
    "prevents_where",
    "ratio_drifts_before_drop",
    "ratio_never_drifts",
    "searches_end_below",
    "stays_down",
    "tally",
    "wrong_below_right",
    "wrong_not_raised",
]
