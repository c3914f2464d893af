"""Alerts of trackio and W&B: a finding reaches the dashboard, webhook or mail that the run has there.

The tracker is the one that the run itself has started. Nothing is imported, because a process that has not imported
trackio or W&B has no run there.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.diagnose.finding import Finding

_logger = logging.getLogger("holdfast")


def raise_alerts(finding: Finding) -> list[str]:
    """Raise an alert in each tracker with an active run. Returns the names of these trackers.

    If a tracker fails, a warning is logged, because an alert must not end a training run.
    """
    title = f"holdfast: {finding.code} at step {finding.step}"  # W&B takes fewer than 64 characters
    text = f"{finding.summary} {finding.remedy}".replace("`", "").strip()
    reached = []
    for name, alert in _TRACKERS.items():
        module = sys.modules.get(name)
        try:
            if module is not None and alert(module, title, text):
                reached.append(name)
        except Exception as error:
            _logger.warning("holdfast: %s did not accept the alert about %s: %s", name, finding.code, error)
    return reached


def _trackio(module: Any, title: str, text: str) -> bool:
    """`trackio.alert`, which wants a level of its own type."""
    if not hasattr(module, "alert") or module.context_vars.current_run.get() is None:
        return False
    module.alert(title=title, text=text, level=module.AlertLevel.WARN)
    return True


def _wandb(module: Any, title: str, text: str) -> bool:
    """`Run.alert` of W&B."""
    if getattr(module, "run", None) is None:
        return False
    module.run.alert(title=title, text=text, level="WARN")
    return True


_TRACKERS: Mapping[str, Callable[[Any, str, str], bool]] = {"trackio": _trackio, "wandb": _wandb}
