"""What a host is: everything that holdfast knows of another trainer's words, as a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
COEF = 0.2
"""The coefficient of LLDS that every phrase below advises: its paper's, and the default of `LLDS`."""
OldPolicy = Literal["recomputed", "sampler"]
"""The policy in the ratio's denominator: log-probs that the trainer computes, or those of the sampler."""


class Logged(Protocol):
    """A series of a log."""

    @property
    def steps(self) -> NDArray[np.int64]:
        """[N], strictly increasing."""

    @property
    def values(self) -> Values:
        """[N]; may hold NaN."""


Seen = Mapping[str, Logged]
"""The series of a log by the host's names."""
Settings = Mapping[str, object]


# ---- series


def _same(values: Values) -> Values:
    return values


def _rest(values: Values) -> Values:
    return 1 - values


def _share(values: Values) -> Values:
    return values / 100


CHANGES: Mapping[str, Callable[[Values], Values]] = {"x": _same, "1 − x": _rest, "x / 100": _share}
"""From a number of the host to ours."""


@dataclass(frozen=True, slots=True)
class Name:
    """A series. It is here only if the host measures the same thing as holdfast."""

    host: str
    """As the host logs it, without the prefix `train/` that the W&B callback of transformers adds."""
    ours: str
    """The name in docs/reference/metrics.md."""
    change: str = "x"
    """A key of `CHANGES`."""
    differs: str = ""
    """What the host counts and holdfast does not, or the other way round. Reading adds a note."""


PARTS: Mapping[str, str] = {
    "generation": "generation",
    "tool": "tools and rewards",
    "old": "old and reference log-probs",
    "update": "update",
    "weights": "weight transfer to the engine",
    "waiting": "waiting for rollouts",
    "evaluation": "evaluation and checkpoints",
}
"""Where the seconds of a step go, in the order in which they are drawn -> in words."""


@dataclass(frozen=True, slots=True)
class Span:
    """A series of seconds that a step spends on one thing."""

    host: str
    """As the host logs it; a regular expression."""
    part: str
    """A key of `PARTS`."""
    inside: str = ""
    """The span that contains it. Its seconds are taken from that one; if they are more, it ran beside the step."""
    waits_with: tuple[str, ...] = ()
    """Beginnings of names that are logged where rollouts are made meanwhile. There this is the wait for them."""


# ---- the host, and what most hosts answer


def recomputed(series: Seen, settings: Settings) -> OldPolicy:
    """The trainer computes the old log-probs."""
    return "recomputed"


def of_sampler(series: Seen, settings: Settings) -> OldPolicy:
    """The old log-probs are the sampler's."""
    return "sampler"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Host:
    """A trainer. A fact about it stands here once; launch, remedies, readers, doctor and the pages read it. Equal to
    itself only."""

    id: str
    title: str = ""
    """How messages name it, if not by its id."""

    kin: str = ""
    """The id of the host whose evaluations and rows it writes, if it is built on one."""
    variant: Callable[[Seen, Settings], str] = lambda series, settings: ""
    """(series by its names, settings) -> the id of the trainer of this family that wrote the log; "" if it is this."""
    old_policy: Callable[[Seen, Settings], OldPolicy] = recomputed
    """(series by its names, settings) -> what the ratio compares with."""

    trainers: Mapping[str, str] = field(default_factory=dict)
    """A situation of `hosts.advice` -> the trainers of this host that are in it, in words."""

    # ---- its log

    series: tuple[Name, ...] = ()
    more: tuple[Name, ...] = ()
    """Series of what is built on this trainer, or of parts that few runs use."""
    older: Mapping[str, str] = field(default_factory=dict)
    """Other names, most of earlier versions, for names of `series`. In a log that has both, these are kept."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """What its console prints, in small letters and with `_` for blanks -> the name in its log."""
    own_labels: frozenset[str] = frozenset()
    """Of these, what no other console prints."""
    left_alone: Mapping[str, str] = field(default_factory=dict)
    """Names that look alike and mean something else; they keep their own names."""
    held_out: tuple[str, ...] = ()
    """Patterns of the mean scores of held-out datasets, the best first. Group 1 is the dataset."""
    agent: str = ""
    """A pattern of what stands for an agent's name, if its names have one; the table writes `<agent>`."""
    marks: tuple[str, ...] = ()
    """Beginnings of names that only this host logs."""
    families: tuple[str, ...] = ()
    """Beginnings of names that this host logs, and others may."""
    prefixed: bool = False
    """Whether its names have `train/` before them in W&B."""
    doubtful: Callable[[Seen, Settings], dict[str, str]] = lambda series, settings: {}
    """(series by its names, settings) -> name of a series that in this log does not mean what the table says -> why."""
    by_version: Callable[[Seen], tuple[Name, ...]] = lambda series: ()
    """Rows of the table that the version of the trainer changes, as far as the log shows the version."""

    spans: tuple[Span, ...] = ()
    """What it logs of a step's seconds, if a step logs their sum over all of its calls."""
    step_seconds: str = ""
    """The seconds of a whole step."""

    # ---- its settings

    settings: Mapping[str, str] = field(default_factory=dict)
    """A setting of a recipe -> the option that has the same value. `adapters/launch` writes these options."""
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What a remedy calls it (`holdfast.hosts.PHRASES`) -> the host's settings, with a value where one is advised; only
    where `settings` does not say it."""
    logged_by: Mapping[str, str] = field(default_factory=dict)
    """What logs a series, by the first prefix that its name has. Nothing logs a name without one."""
    saved_every: str = ""
    """The setting with the steps between two checkpoints."""

    @property
    def family(self) -> str:
        """The id of the host that it is built on, or its own."""
        return self.kin or self.id

    def plain(self, name: str) -> str:
        """A name in its log as its tables have it."""
        return name.removeprefix("train/") if self.prefixed else name

    @property
    def known_as(self) -> str:
        """How messages name it."""
        return self.title or self.id
