"""What an experiment is made of. Experiments are data: other modules run, judge and draw them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from holdfast_research.methods import SHORT, Settings
from holdfast_research.series import RunSeries

Runs = Mapping[str, tuple[RunSeries, ...]]
"""The finished runs of each arm, by its name; an arm without one is absent."""


CONTROL = "control"
FIRST_SEED = 11
"""The first of the reported seeds. The arms were chosen after seeds 1 to 3."""


class Status(StrEnum):
    """The word of a verdict."""

    SHOWN = "shown"
    PARTLY = "partly"
    NOT_SHOWN = "not shown"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the runs say of a claim."""

    word: Status
    because: str
    """One sentence with the counts it rests on."""
    numbers: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    """seed (as text) -> the numbers of that seed; None where the run has none."""
    yes: int = 0
    of: int = 0
    """Seeds that said yes, of those that could answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A sentence of a paper and how it is put to the test."""

    paper: str = CONTROL
    """As docs/reference/papers.md names it, or `CONTROL`: no paper says it, but a reader should ask."""
    where: str
    """Section, figure, definition or table."""
    says: str
    test: Callable[[Runs], Verdict]
    """Pure: the same runs, the same verdict."""
    asks: str
    """What the test looks at."""
    decoding: str = ""
    """Sampled or greedy, where the same is asked of both."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Coefficients of a method: settings that change together, and at least three values of them.

    >>> sweep = Sweep(("loss.clip_low", "loss.clip_high"), ((3e-4, 4e-4), (3e-3, 4e-3), (0.2, 0.2)))
    >>> sweep.at(1)
    {'loss.clip_low': 0.003, 'loss.clip_high': 0.004}
    >>> sweep.label(0), sweep.label(2)
    ('3e-4, 4e-4', '0.2, 0.2')
    """

    settings: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    usual: int = 1
    """Index of the value used without a sweep."""

    def at(self, index: int) -> Settings:
        """The settings with the values at an index."""
        return dict(zip(self.settings, self.values[index], strict=True))

    def label(self, index: int) -> str:
        """Those values as text."""
        return ", ".join(map(_short_number, self.values[index]))


def _short_number(value: float) -> str:
    if value >= 0.01:
        return repr(value)
    mantissa, exponent = f"{value:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


@dataclass(frozen=True, slots=True)
class Arm:
    """A method, as settings on top of the experiment's recipe."""

    name: str
    settings: Settings = field(default_factory=dict)
    sweep: Sweep | None = None
    """None: the method has no coefficient, or the experiment is about it."""
    control: bool = False
    """Runs with every choice of arms."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A metric over the steps, of a few arms."""

    metric: str
    title: str
    arms: tuple[str, ...]
    """Few enough to tell apart."""
    after: str = ""
    """The figure of a paper that shows the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A question, the arms that answer it, and the claims they are judged by."""

    name: str
    title: str
    shows: str
    """What it asks, in one line."""
    recipe: str
    """Name of a bundled recipe."""
    arms: tuple[Arm, ...]
    claims: tuple[Claim, ...]
    figures: tuple[Figure, ...]
    minutes: float
    """Of a run on one CPU core, roughly."""
    picture: Figure | None = None
    """The one on its page; `figures` are in the report. None: a section of a page without pictures."""
    notes: tuple[str, ...] = ()
    """What a reader of the page must know."""
    not_run: tuple[str, ...] = ()
    """What a reader could take for done. Arms and seeds without runs are listed anyway."""
    settings: Settings = field(default_factory=dict)
    """For every arm. Settings of the command line override them."""
    short: Settings = field(default_factory=lambda: SHORT)
    """Of the smoke test."""
    drawn: tuple[str, ...] = ()
    """Settings that take the seed of each run: `world.seed`, say, where every seed is to have a world of its own."""
    first_seed: int = FIRST_SEED
    """Later where the recipe was chosen on some of the usual seeds."""

    def arm(self, name: str) -> Arm:
        """The arm of this name."""
        return next(arm for arm in self.arms if arm.name == name)
