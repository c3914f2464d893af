"""What comes back from searches (RET001, RET002), and episodes that run out of room (TRN001)."""

from __future__ import annotations

from holdfast.diagnostics.causal import first, held, lowest, noise, rows, trailing_mean
from holdfast.diagnostics.log import Log
from holdfast.diagnostics.rules.rule import Hit, Rule, earliest

FEW = 3
ERRORS, FAILED, EMPTY = "retrieval/error_fraction", "rollout/failed_fraction", "retrieval/empty_fraction"
FAILING = 0.1
NOTHING = 0.3


def _share(log: Log, name: str, bound: float, says: str, *, running: int = 1) -> Hit | None:
    """A share whose mean over three rows exceeds a bound, as do the last rows themselves."""
    found = rows(log, name)
    (share,) = found.columns
    smooth = trailing_mean(share, FEW)
    at = first((smooth > bound) & held(share > bound, running))
    if at is None:
        return None
    return Hit(int(found.steps[at]), says.format(smooth[at]), {name: float(smooth[at])}, (name,))


def failing(log: Log) -> Hit | None:
    """RET001."""
    return earliest(
        _share(log, ERRORS, FAILING, "The retriever fails: {:.0%} of the searches found no answer in any attempt."),
        _share(log, FAILED, FAILING, "Rollouts fail for reasons that are not the policy's: {:.0%} of them."),
    )


def nothing(log: Log) -> Hit | None:
    """RET002. A step may have a single search, so one row proves nothing."""
    return _share(log, EMPTY, NOTHING, "Searches return nothing: {:.0%} of them.", running=2)


TRUNCATED = "rollout/truncated_fraction"
RISE = 0.15


def truncation(log: Log) -> Hit | None:
    """TRN001."""
    found = rows(log, TRUNCATED)
    (share,) = found.columns
    smooth = trailing_mean(share, FEW)
    low = lowest(smooth)
    rise = smooth - low
    condition = (rise > RISE) & (rise > 4 * noise(share, FEW) / FEW**0.5) & held(share > low + RISE / 2, 2)
    condition[: FEW - 1] = False
    at = first(condition)
    if at is None:
        return None
    return Hit(
        int(found.steps[at]),
        f"More and more episodes run out of turns or tokens: {smooth[at]:.0%}, up from {smooth[at] - rise[at]:.0%}.",
        {TRUNCATED: float(smooth[at])},
        (TRUNCATED,),
    )


RULES = (
    Rule("RET001", failing, ((ERRORS,), (FAILED,))),
    Rule("RET002", nothing, ((EMPTY,),)),
    Rule("TRN001", truncation, ((TRUNCATED,),)),
)
