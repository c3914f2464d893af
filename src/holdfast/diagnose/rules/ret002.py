"""RET002: searches return nothing.

Meaning: Searches succeed but find no passage.

Impact: The agent learns that searching does not help. It then answers from memory, or not at all.

Limitations: Only holdfast's own rollouts log how many searches return nothing. The rule does not notice a retriever
that returns the same passage for every query.
"""

from __future__ import annotations

from functools import partial

from holdfast.diagnose.rules._parts import EMPTY_SEARCHES
from holdfast.diagnose.rules._parts.tools import MAX_EMPTY_FRACTION, happens_often, searches
from holdfast.diagnose.rules.remedies import advise
from holdfast.diagnose.rules.rule import Check, Rule

RULE = Rule(
    title="searches return nothing",
    kind="logged cause",
    applies=searches,
    checks=(
        Check(
            series=(EMPTY_SEARCHES,),
            # A step may have a single search, so one row proves nothing.
            signal=partial(happens_often, most=MAX_EMPTY_FRACTION, running=2),
            message="{retrieval/empty_fraction:.0%} of the searches return nothing.",
        ),
    ),
    remedy=advise(
        "Check the [index], and that it receives queries as the model wrote them.",
        also={"holdfast": "Or the server at `retrieval.url`."},
    ),
    rollouts="empty",
)
