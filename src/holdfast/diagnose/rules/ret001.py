"""RET001: searches or whole rollouts fail.

Meaning: Searches fail, or rollouts end early for reasons outside the policy.

Impact: The rollouts that remain are a biased sample. If the trainer counts a failed search as an incorrect answer, the
policy learns not to search.

Limitations: One bad step is enough if 30 % or more of the searches fail. The rule does not notice a retriever that
returns useless passages.
"""

from __future__ import annotations

from functools import partial

from holdfast.diagnose.rules._parts import FAILED_ROLLOUTS, FAILED_SEARCHES
from holdfast.diagnose.rules._parts.tools import MAX_FAILED_FRACTION, happens_often, searches
from holdfast.diagnose.rules.remedies import advise
from holdfast.diagnose.rules.rule import Check, Rule

fails_often = partial(happens_often, most=MAX_FAILED_FRACTION, running=1)


RULE = Rule(
    title="retriever failing",
    kind="logged cause",
    applies=searches,
    checks=(
        Check(
            series=(FAILED_SEARCHES,),
            signal=fails_often,
            message="The retriever fails: {retrieval/error_fraction:.0%} of the searches failed after all retries.",
        ),
        Check(
            series=(FAILED_ROLLOUTS,),
            signal=fails_often,
            message="{rollout/failed_fraction:.0%} of the rollouts fail for reasons outside the policy.",
        ),
    ),
    remedy=advise(
        "Check the [retriever]. Leave rollouts with a failed search out of the loss.",
        also={"holdfast": "`run.max_failed_fraction` sets when a run stops.", "trl": "`SearchRollouts` does."},
    ),
    rollouts="failed",
)
