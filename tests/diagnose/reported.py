"""Small logs of failures that people report, made by hand in the names of TRL, verl, ms-swift and prime-rl.

The rules are not judged by them: they show what a finding looks like, and tests hold that each host's names are read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
ROWS = 80
T = np.arange(ROWS)

TRL = {
    "reward": "reward",
    "mixed": "frac_reward_zero_std",
    "entropy": "entropy",
    "length": "completions/mean_length",
    "norm": "grad_norm",
    "kl": "kl",
    "clip": "clip_ratio/region_mean",
    "lr": "learning_rate",
    "calls": "tools/call_frequency",
    "failed calls": "tools/failure_frequency",
    "gap": "sampling/sampling_logp_difference/mean",
    "ratio": "sampling/importance_sampling_ratio/mean",
    "staleness": "sample/staleness_mean",
    "format": "rewards/format_reward/mean",
}
HOSTS: Mapping[str, Mapping[str, str]] = {
    "trl": TRL,
    "swift": {name: theirs for name, theirs in TRL.items() if name not in ("calls", "failed calls", "staleness")}
    | {"turns": "num_turns", "ratio": "rollout_correction/is_weight_mean", "gap": "rollout_correction/kl"},
    "verl": {
        "reward": "critic/score/mean",
        "entropy": "actor/entropy",
        "length": "response_length/mean",
        "norm": "actor/grad_norm",
        "kl": "actor/kl_loss",
        "clip": "actor/pg_clipfrac",
        "lr": "actor/lr",
        "calls": "tool_call_counts/mean",
        "turns": "num_turns/mean",
        "gap": "rollout_corr/kl",
        "ratio": "rollout_corr/rollout_is_mean",
    },
    "prime-rl": {
        "reward": "train/agg/effective/solver/reward/mean",
        "entropy": "entropy/all/mean",
        "length": "train/agg/effective/solver/num_output_tokens/mean",
        "norm": "optim/grad_norm",
        "lr": "optim/lr",
        "turns": "train/agg/effective/solver/num_turns/mean",
        "gap": "mismatch_kl/all/mean",
        "staleness": "off_policy/mean",
    },
}
"""Host -> our word for a series -> the host's name."""


def noisy(curve: NDArray[np.floating[Any]], spread: float, seed: int = 0) -> Values:
    """A curve with noise."""
    return np.asarray(curve + spread * np.random.default_rng(seed).normal(size=ROWS), np.float64)


RISING = 0.3 + 0.4 * (1 - np.exp(-T / 25))
WELL: Mapping[str, Values] = {
    "reward": noisy(RISING, 0.02),
    "mixed": noisy(0.4 * np.ones(ROWS), 0.03, 1),  # TRL logs the share without contrast
    "entropy": noisy(0.9 - 0.2 * T / ROWS, 0.02, 2),
    "length": noisy(300 + 0.5 * T, 8.0, 3),
    "norm": noisy(0.4 * np.ones(ROWS), 0.03, 4),
    "kl": noisy(0.02 * T / ROWS, 0.0005, 5).clip(0),
    "clip": noisy(0.002 * np.ones(ROWS), 0.0002, 6),
    "lr": np.minimum(1, T / 8) * 1e-6,
    "calls": noisy(1.5 * np.ones(ROWS), 0.1, 8),
    "failed calls": noisy(0.04 * np.ones(ROWS), 0.01, 9).clip(0),
    "turns": noisy(4.0 * np.ones(ROWS), 0.1, 10),
    "gap": noisy(0.0005 * np.ones(ROWS), 0.00005, 11),
    "ratio": noisy(0.99 * np.ones(ROWS), 0.005, 12),
    "staleness": noisy(1.0 * np.ones(ROWS), 0.05, 13),
    "format": noisy(0.95 * np.ones(ROWS), 0.01, 14),
}
EVALUATED_EVERY = 4


def fades(values: Values, start: int, to: float, rows: int) -> Values:
    """From its value at a row in a straight line to another, and there it stays."""
    gone = np.clip((T - start) / rows, 0, 1)
    return np.asarray((1 - gone) * values + gone * (to + 0.1 * (values - values.mean())))


HELD = noisy(np.minimum(RISING, RISING[25]), 0.02)
UPDATES = np.cumsum(WELL["lr"]) / 1e-6


@dataclass(frozen=True, slots=True)
class Reported:
    """A failure: the code that must come first, the series that are not well, and those that one must be among."""

    code: str
    changes: Mapping[str, Values]
    level: str = "finding"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that log all of these series."""
        return tuple(host for host, names in HOSTS.items() if set(self.changes) <= set(names))


REPORTED: Mapping[str, Reported] = {
    "no calls": Reported("TOL001", {"calls": fades(WELL["calls"], 30, 0.0, 12).clip(0), "reward": HELD}),
    "no turns": Reported("TOL001", {"turns": fades(WELL["turns"], 30, 1.0, 12), "reward": HELD}),
    "calls fail": Reported(
        "TOL002",
        {"failed calls": np.where(T < 30, WELL["failed calls"], 0.97), "reward": np.where(T < 30, WELL["reward"], 0.1)},
    ),
    "learning rate 0": Reported("LRN001", {"lr": np.zeros(ROWS), "reward": noisy(0.3 * np.ones(ROWS), 0.02)}),
    "learning rate 0 later": Reported("LRN001", {"lr": np.where(T < 40, 1e-6, 0.0)}),
    "never learned": Reported("RWD004", {"reward": noisy(0.3 * np.ones(ROWS), 0.03)}, level="note"),
    "weights not synced": Reported(
        "SMP003", {"gap": 0.0005 + (0.01 * UPDATES) ** 2, "reward": noisy(0.3 * np.ones(ROWS), 0.02)}
    ),
    "ratio below 1": Reported("SMP002", {"ratio": fades(WELL["ratio"], 20, 0.3, 20)}),
    "stale rollouts": Reported(
        "OFP001", {"staleness": fades(WELL["staleness"], 30, 6.0, 20), "reward": fades(WELL["reward"], 36, 0.2, 20)}
    ),
    "clipping grows": Reported(
        "OFP001", {"clip": fades(WELL["clip"], 30, 0.05, 20), "reward": fades(WELL["reward"], 36, 0.4, 24)}
    ),
}


def written(host: str, changes: Mapping[str, Values], folder: Path, *, leave_out: tuple[str, ...] = ()) -> Path:
    """The log of a host: a run that is well, with some series changed."""
    names = {name: theirs for name, theirs in HOSTS[host].items() if name not in leave_out}
    rows = []
    for row in range(ROWS):
        values = {
            theirs: float({**WELL, **changes}[name][row])
            for name, theirs in names.items()
            if name != "score" or row % EVALUATED_EVERY == 0
        }
        rows.append(_line(host, row + 1, values))
    file = folder / ("logging.jsonl" if host == "swift" else "metrics.jsonl")
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def _line(host: str, step: int, values: dict[str, float]) -> dict[str, object]:
    if host == "verl":
        return {"step": step, "data": values}
    if host == "swift":
        return {**values, "global_step/max_steps": f"{step}/{ROWS}"}
    return {"step": step, **values}
