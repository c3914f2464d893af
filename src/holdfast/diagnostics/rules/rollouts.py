"""Rollouts: failing searches (RET001), empty ones (RET002), and rollouts that run out of turns or tokens (TRN001)."""

from __future__ import annotations

import numpy as np

from holdfast.diagnostics.rules.rule import ADVANTAGE, Check, Rows, Rule, Signal
from holdfast.trailing import Truths, Values, delayed, held, highest, lowest, margin, trailing_mean

FAILED_SEARCHES, FAILED, EMPTY = "retrieval/error_fraction", "rollout/failed_fraction", "retrieval/empty_fraction"
SEARCH_ROWS = 3
MOST_FAILING = 0.1
MOST_EMPTY = 0.3
"""Of the searches, in one row and on average over three."""


def fails_often(rows: Rows) -> Signal:
    (share,) = rows.columns
    smooth = trailing_mean(share, SEARCH_ROWS)
    return Signal((smooth > MOST_FAILING) & (share > MOST_FAILING), lambda: {rows.names[0]: smooth})


def is_often_empty(rows: Rows) -> Signal:
    """In two rows: a step may have a single search, so one row proves nothing."""
    (share,) = rows.columns
    smooth = trailing_mean(share, SEARCH_ROWS)
    return Signal((smooth > MOST_EMPTY) & held(share > MOST_EMPTY, 2), lambda: {EMPTY: smooth})


RET001 = Rule(
    code="RET001",
    title="retriever failing",
    needs=((FAILED_SEARCHES,), (FAILED,)),
    checks=(
        Check(
            series=(FAILED_SEARCHES,),
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
        "holdfast": "Check the server behind `retrieval.url`; `retrieval.max_failed` says when a run stops.",
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


TRUNCATED, LENGTH, REWARD = "rollout/truncated_fraction", "rollout/length", "reward/mean"

RISE_ERRORS = 4.0
"""Standard errors that a rise has to exceed."""
SHARE_ROWS = 3
SHARE_RISE = 0.15
GROWTH_ROWS = 5
PREFERRED = 0.1
"""Mean advantage per token of long rollouts. Where correct answers are longer than incorrect ones it is as high early
in a run, but then the reward rises with the length."""
LENGTH_RISE = 0.03
"""Share of its length by which a rollout has grown."""
ROWS_TO_LEARN = 20
"""Rows in which the reward may begin to rise although all rollouts are truncated."""


def all_are_truncated(rows: Rows) -> Signal:
    """From the first row on, while the reward does not rise."""
    (share,) = rows.columns
    return Signal((np.cumsum(share < 1) == 0) & ~reward_has_risen(rows), lambda: {TRUNCATED: share})


def grow_without_reward(rows: Rows) -> Signal:
    """Rollouts grow because advantages prefer long ones."""
    advantage, length = (trailing_mean(column, GROWTH_ROWS) for column in rows.columns)
    advantage_margin, length_margin = (margin(column, GROWTH_ROWS, RISE_ERRORS) for column in rows.columns)
    grown = length - lowest(length)
    where = (advantage > PREFERRED) & (advantage > advantage_margin)
    where &= (grown > LENGTH_RISE * length) & (grown > length_margin) & ~reward_rises(rows)
    return Signal(where, lambda: {LENGTH: length, ADVANTAGE: advantage}, lambda: {"before": length - grown})


def more_are_truncated(rows: Rows) -> Signal:
    (share,) = rows.columns
    smooth = trailing_mean(share, SHARE_ROWS)
    low = lowest(smooth)
    rise = smooth - low
    where = (
        (rise > SHARE_RISE) & (rise > margin(share, SHARE_ROWS, RISE_ERRORS)) & held(share > low + SHARE_RISE / 2, 2)
    )
    return Signal(where & ~reward_rises(rows), lambda: {TRUNCATED: smooth}, lambda: {"before": smooth - rise})


def reward_rises(rows: Rows) -> Truths:
    """[N]: where the reward is higher than ever before the last rows: rollouts that pay may be long."""

    def rises(reward: Values) -> Values:
        mean = trailing_mean(reward, GROWTH_ROWS)
        return (mean > delayed(highest(mean), GROWTH_ROWS)).astype(float)

    return rows.latest(REWARD, rises) > 0


def reward_has_risen(rows: Rows) -> Truths:
    """[N]: where the reward is above its first rows, beyond its noise."""

    def risen(reward: Values) -> Values:
        mean = trailing_mean(reward, GROWTH_ROWS)
        return (mean - mean[:GROWTH_ROWS][-1:] > margin(reward, GROWTH_ROWS, RISE_ERRORS)).astype(float)

    return rows.latest(REWARD, risen) > 0


TRN001 = Rule(
    code="TRN001",
    title="truncation",
    needs=((TRUNCATED,), (ADVANTAGE, LENGTH)),
    checks=(
        Check(
            series=(TRUNCATED,),
            signal=all_are_truncated,
            message="All rollouts run out of turns or tokens, and have done so since the log begins.",
            min_rows=ROWS_TO_LEARN,
        ),
        Check(
            series=(ADVANTAGE, LENGTH),
            signal=grow_without_reward,
            message="Rollouts grow towards their limit, to {rollout/length:.3g} tokens from {before:.3g}: advantages "
            "prefer long ones, and the reward does not rise with them.",
            min_rows=GROWTH_ROWS,
            look_at=(LENGTH, ADVANTAGE),
        ),
        Check(
            series=(TRUNCATED,),
            signal=more_are_truncated,
            message="More and more rollouts run out of turns or tokens: {rollout/truncated_fraction:.0%}, up from "
            "{before:.0%}.",
            min_rows=SHARE_ROWS,
        ),
    ),
    meaning="More and more rollouts run out of turns or tokens, or all of them do from the start, or they grow "
    "towards that because advantages prefer long ones, and the reward does not rise with it.",
    impact="A truncated rollout has no answer and no reward, so long ones are unlearned whatever they contain; or the "
    "agent has lost the habit of ending.",
    remedy={
        "holdfast": "Raise `protocol.max_total_tokens`, `protocol.max_turn_tokens` or `protocol.max_turns` if the "
        "rollouts are sound; look at `trajectories.jsonl` to see.",
        "trl": "Raise `max_completion_length` if the completions are sound; `log_completions=True` shows them. "
        "Rollouts of SearchRollouts are bounded by its protocol alone: raise its turns or tokens instead.",
        "verl": "Raise `data.max_response_length` or `actor_rollout_ref.rollout.multi_turn.max_assistant_turns` if "
        "the responses are sound; for the agent loop holdfast_search raise max_turns in the file that "
        "`actor_rollout_ref.rollout.agent.agent_loop_config_path` names.",
        "unknown": "Raise the budget of tokens and turns if the rollouts are sound; read some.",
    },
    limitations="Late in other collapses rollouts ramble and this is a symptom: look at what was found before it. "
    "Long rollouts are not reported while the reward rises with them.",
)
