"""Rollouts: failing searches (RET001), empty ones (RET002), and rollouts that run out of turns or tokens (TRN001)."""

from __future__ import annotations

from functools import partial

from holdfast.base.collapse import DROPPED_SHARE, curve_of
from holdfast.base.trailing import Truths, Values, delayed, held, highest, last_where, lowest, margin, trailing_mean
from holdfast.diagnose.log import Log
from holdfast.diagnose.rules.remedies import advise
from holdfast.diagnose.rules.rule import ADVANTAGE, Check, Rows, Rule, Signal
from holdfast.diagnose.rules.truncation import LEVELS

FAILED_SEARCHES, FAILED, EMPTY = "retrieval/error_fraction", "rollout/failed_fraction", "retrieval/empty_fraction"
SEARCH_ROWS = 3
MAX_FAILED_FRACTION = 0.1
MAX_EMPTY_FRACTION = 0.3
"""In the latest rows and in the mean of three rows."""


def searches(log: Log) -> bool:
    """Whether rollouts of the run search, or the log says how many fail: others have no retriever."""
    marks = ("retrieval/", "rollout/searches", "tools/", FAILED)
    return log.host == "holdfast" or any(name.startswith(marks) for name in log.series)


def happens_often(rows: Rows, *, most: float, running: int) -> Signal:
    """The share of searches or rollouts is above `most`, in each of the latest rows and in the mean of three."""
    (share,) = rows.columns
    smooth = trailing_mean(share, SEARCH_ROWS)
    where = (smooth > most) & held(share > most, running)
    return Signal(where, lambda: {rows.names[0]: smooth}, normal=smooth < most / 2)


fails_often = partial(happens_often, most=MAX_FAILED_FRACTION, running=1)


RET001 = Rule(
    code="RET001",
    title="retriever failing",
    kind="logged cause",
    applies=searches,
    needs=((FAILED_SEARCHES,), (FAILED,)),
    checks=(
        Check(
            series=(FAILED_SEARCHES,),
            signal=fails_often,
            message="The retriever fails: {retrieval/error_fraction:.0%} of the searches failed after all retries.",
        ),
        Check(
            series=(FAILED,),
            signal=fails_often,
            message="{rollout/failed_fraction:.0%} of the rollouts fail for reasons outside the policy.",
        ),
    ),
    meaning="Searches fail, or rollouts end early for reasons outside the policy.",
    impact="The rollouts that remain are a biased sample. If the trainer counts a failed search as an incorrect "
    "answer, the policy learns not to search.",
    remedy=advise(
        "Check the [retriever]. Leave rollouts with a failed search out of the loss.",
        also={"holdfast": "`run.max_failed_fraction` sets when a run stops.", "trl": "`SearchRollouts` does."},
    ),
    limitations="One bad step is enough if 30 % or more fail. The rule does not notice a retriever that returns "
    "useless passages.",
)

RET002 = Rule(
    code="RET002",
    title="searches return nothing",
    kind="logged cause",
    applies=searches,
    needs=((EMPTY,),),
    checks=(
        Check(
            series=(EMPTY,),
            # A step may have a single search, so one row proves nothing.
            signal=partial(happens_often, most=MAX_EMPTY_FRACTION, running=2),
            message="{retrieval/empty_fraction:.0%} of the searches return nothing.",
        ),
    ),
    meaning="Searches succeed but find no passage.",
    impact="The agent learns that searching does not help. It then answers from memory, or not at all.",
    remedy=advise(
        "Check the [index], and that it receives queries as the model wrote them.",
        also={"holdfast": "Or the server at `retrieval.url`."},
    ),
    limitations="Only rollouts of holdfast log how many searches return nothing. The rule does not notice a "
    "retriever that returns the same passage for every query.",
)


TRUNCATED, LENGTH, REWARD = "rollout/truncated_fraction", "rollout/length", "reward/mean"

RISE_ERRORS = 4.0
"""Standard errors of a difference that a rise has to exceed."""
TRUNCATED_ROWS, TRUNCATED_LONG_ROWS = 3, 10
TRUNCATED_RISE = 0.15
"""Rise of the truncated fraction above its lowest value."""
GROWTH_ROWS = 5
GROWTH_ADVANTAGE = 0.1
"""Mean advantage per token. If correct answers are longer than incorrect ones, it is as high early in a run. But then
the reward rises with the length."""
LENGTH_RISE = 0.03
"""Growth of rollouts, as a share of their length."""


def grow_without_reward(rows: Rows) -> Signal:
    """Rollouts grow because advantages prefer long ones."""
    advantage, length = (trailing_mean(column, GROWTH_ROWS) for column in rows.columns)
    advantage_margin, length_margin = (margin(column, GROWTH_ROWS, RISE_ERRORS) for column in rows.columns)
    grown = length - lowest(length)
    where = (advantage > GROWTH_ADVANTAGE) & (advantage > advantage_margin)
    rises = reward_rises(rows)
    where &= (grown > LENGTH_RISE * length) & (grown > length_margin) & ~rises
    return Signal(
        where,
        lambda: {LENGTH: length, ADVANTAGE: advantage},
        lambda: {"before": length - grown},
        normal=held(rises, GROWTH_ROWS),
    )


def more_are_truncated(rows: Rows, *, costs: bool) -> Signal | None:
    """The truncated fraction rises, and the reward does not rise with it. With `costs`, only where the reward has
    dropped, as far as it is logged."""
    (share,) = rows.columns
    smooth = trailing_mean(share, TRUNCATED_ROWS)
    low = lowest(smooth)
    rise = smooth - low
    if not (rise > TRUNCATED_RISE).any():
        return None
    where = (rise > TRUNCATED_RISE) & (rise > margin(share, TRUNCATED_ROWS, RISE_ERRORS))
    where &= held(share > low + TRUNCATED_RISE / 2, 2)
    slow = trailing_mean(share, TRUNCATED_LONG_ROWS)
    slow_rise = slow - lowest(slow)
    where |= (slow_rise > TRUNCATED_RISE) & (slow_rise > margin(share, TRUNCATED_LONG_ROWS, RISE_ERRORS))
    is_back = held(share < low + TRUNCATED_RISE, TRUNCATED_ROWS) & (slow_rise < TRUNCATED_RISE)
    where &= does_not_pay(rows, costs=costs)
    before = last_where(smooth <= low)
    return Signal(
        where, lambda: {TRUNCATED: smooth}, lambda: {"before": smooth - rise, "then": rows.steps[before]}, is_back
    )


def does_not_pay(rows: Rows, *, costs: bool) -> Truths:
    """[N]: where the reward does not rise. With `costs`, only where it has dropped, as far as it is logged."""
    no_rise = ~reward_rises(rows)
    return no_rise & ~rows.where(REWARD, has_not_dropped) if costs else no_rise


def has_not_dropped(reward: Values) -> Truths:
    """[N]: where the reward is near its best, or below it by no more than noise."""
    return ~curve_of(reward).short.has_lost(DROPPED_SHARE, 2.0)


def reward_rises(rows: Rows) -> Truths:
    """[N]: where the reward is above its best before the last rows. Long rollouts are fine if they earn more."""

    def rises(reward: Values) -> Truths:
        mean = trailing_mean(reward, GROWTH_ROWS)
        return mean > delayed(highest(mean), GROWTH_ROWS)

    return rows.where(REWARD, rises)


TRN001 = Rule(
    code="TRN001",
    title="rollouts truncated",
    needs=((TRUNCATED,), (ADVANTAGE, LENGTH)),
    checks=(
        *LEVELS,
        Check(
            series=(ADVANTAGE, LENGTH),
            signal=grow_without_reward,
            message="Rollouts grow towards the token limit, from {before:.3g} to {rollout/length:.3g} tokens. Long "
            "rollouts have higher advantages, but the reward does not rise.",
            min_rows=GROWTH_ROWS,
            look_at=(LENGTH, ADVANTAGE),
        ),
        *(
            Check(
                series=(TRUNCATED,),
                signal=partial(more_are_truncated, costs=costs),
                message="More rollouts run out of turns or tokens: {rollout/truncated_fraction:.0%}, up from "
                "{before:.0%} at step {then}." + ("" if costs else " The reward has not dropped so far."),
                min_rows=TRUNCATED_ROWS,
                level="finding" if costs else "note",
            )
            for costs in (True, False)
        ),
    ),
    suppressed_by=("ENT003",),  # noise runs until the limit, and a higher limit would not end it
    meaning="Rollouts run out of turns or tokens, or grow towards that limit, but the reward does not rise.",
    impact="A truncated rollout has no answer and no reward. So the policy learns to avoid long rollouts, whatever "
    "they contain, or the agent stops learning when to end.",
    remedy=advise(
        "Read some [rollouts]. If they are sound, raise the [limits of tokens and turns]. If they are noise, this is "
        "a symptom: go back to an earlier checkpoint and lower the [learning rate].",
        also={
            "verl": "The agent loop `holdfast_search` has `max_turns` in the file named by "
            "`actor_rollout_ref.rollout.agent.agent_loop_config_path`.",
        },
    ),
    limitations="The rule finds a rising share, a share of 75 % or more from the start, and growth caused by "
    "advantages. Late in other collapses, rollouts ramble, and truncation is only a symptom: look at "
    "earlier findings. Long rollouts are not reported while the reward rises with them.",
)
