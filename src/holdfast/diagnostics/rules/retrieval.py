"""What comes back from searches: failures (RET001), or nothing (RET002)."""

from __future__ import annotations

from holdfast.diagnostics.rules.rule import Check, Rows, Rule, Signal
from holdfast.trailing import held, trailing_mean

ERRORS, FAILED, EMPTY = "retrieval/error_fraction", "rollout/failed_fraction", "retrieval/empty_fraction"
ROWS = 3
MOST_FAILING = 0.1
MOST_EMPTY = 0.3
"""Of the searches, in one row and on average over three."""


def fails_often(rows: Rows) -> Signal:
    (share,) = rows.columns
    smooth = trailing_mean(share, ROWS)
    return Signal((smooth > MOST_FAILING) & (share > MOST_FAILING), lambda: {rows.names[0]: smooth})


def is_often_empty(rows: Rows) -> Signal:
    """In two rows: a step may have a single search, so one row proves nothing."""
    (share,) = rows.columns
    smooth = trailing_mean(share, ROWS)
    return Signal((smooth > MOST_EMPTY) & held(share > MOST_EMPTY, 2), lambda: {EMPTY: smooth})


RET001 = Rule(
    code="RET001",
    title="retriever failing",
    needs=((ERRORS,), (FAILED,)),
    checks=(
        Check(
            series=(ERRORS,),
            signal=fails_often,
            message="The retriever fails: {retrieval/error_fraction:.0%} of the searches found no answer in any "
            "attempt.",
        ),
        Check(
            series=(FAILED,),
            signal=fails_often,
            message="Rollouts fail for reasons that are not the policy's: {rollout/failed_fraction:.0%} of them.",
        ),
    ),
    meaning="Searches fail, or rollouts end for reasons that are not the policy's.",
    impact="What is left is a biased sample, or, where the trainer counts an outage as an incorrect answer, a lesson "
    "not to search.",
    remedy={
        "holdfast": "Check the server behind `retrieval.url`; `run.max_failed_fraction` says when a run stops.",
        "trl": "Check the retriever; `SearchRollouts` keeps failed rollouts out of the loss.",
        "verl": "Check the retriever named in `actor_rollout_ref.rollout.agent.agent_loop_config_path`.",
        "unknown": "Check the retriever, and keep rollouts whose search failed out of the loss.",
    },
    limitations="A single bad step of 30 % or more is reported too. A retriever that answers with nonsense does not "
    "fail.",
)

RET002 = Rule(
    code="RET002",
    title="searches return nothing",
    needs=((EMPTY,),),
    checks=(
        Check(
            series=(EMPTY,),
            signal=is_often_empty,
            message="Searches return nothing: {retrieval/empty_fraction:.0%} of them.",
        ),
    ),
    meaning="Searches succeed and find no passage.",
    impact="The agent learns that searching does not pay, and answers from memory or not at all.",
    remedy={
        "holdfast": "Check `retrieval.corpus`, `retrieval.index` or the server behind `retrieval.url`, and "
        "`protocol.topk`.",
        "trl": "Check the index behind your retriever, and that queries reach it as the model wrote them.",
        "verl": "Check the index behind your retriever, and that queries reach it as the model wrote them.",
        "unknown": "Check the index, and that queries reach it as the model wrote them.",
    },
    limitations="Needs a count of empty results, which only holdfast's rollouts log. A retriever that returns the "
    "same passage to everything is not empty.",
)
