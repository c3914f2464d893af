"""How often a failed call is made again, after which pauses, and for how long where the server is away.

The caller waits in its own way: with `time.sleep`, `asyncio.sleep`, or until an event.
"""

from __future__ import annotations

import logging
import random
from time import monotonic

logger = logging.getLogger(__name__)

PATIENCE = 180.0
"""Seconds for which a server may be away: restarting one must not end a run of days."""
_MAX_PAUSE = 15.0
"""Mean seconds of the longest pause that a server did not ask for."""
_jitter = random.Random()  # separate, so that a retry does not change anybody's seeded random numbers


class Retries:
    """The retries of all calls to one server. Threads may share it.

    Args:
        attempts: of a call after its first.
        backoff: mean seconds before a call's second attempt. The pauses double, and are jittered, so that a hundred
            calls that failed together do not return together.
        patience: seconds for which a server that is away is tried after that: it may be restarting. All calls share
            them. When they are over, a call that fails is given up at once, until the server has answered.
    """

    def __init__(self, attempts: int = 2, *, backoff: float = 0.5, patience: float = 0.0) -> None:
        self._attempts, self._backoff, self._patience = attempts, backoff, patience
        self._away_since: float | None = None

    def pause(self, failures: int, *, away: str | None = None, asked: float = 0.0) -> float | None:
        """Seconds before the next attempt of a call; None when the call should be given up.

        Args:
            failures: attempts of the call so far: 1, 2, …
            away: a sentence for the log, if the server is away.
            asked: seconds that the server asks to wait.
        """
        pause = min(self._backoff * 2.0 ** min(failures - 1, 10), _MAX_PAUSE) * _jitter.uniform(0.5, 1.5)
        now, since = monotonic(), self._away_since
        is_over = away is not None and since is not None and now >= since + self._patience > since
        if failures <= self._attempts and not is_over:
            return max(pause, asked)
        if away is None:
            return None
        if since is None:
            since = self._away_since = now
            if self._patience:
                logger.warning("%s; holdfast tries again for another %.0f seconds", away, self._patience)
        left = since + self._patience - now
        return max(min(pause, left), asked) if asked < left else None

    def answered(self) -> None:
        """The server is not away, or no longer."""
        self._away_since = None
