"""What a host is: everything that holdfast knows of another trainer's words, as a value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
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

CHANGES: Mapping[str, Callable[[Values], Values]] = {"x": lambda x: x, "1 − x": lambda x: 1 - x}
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
    "weights": "weights to the engine",
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
    waits_with: str = ""
    """Beginning of names that are logged where rollouts are made meanwhile. There this is the wait for them."""


# ---- settings


class Code(str):
    """A value that is code of the host, and is written without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Here(str):
    """A path in the launch folder, or a full path. The command writes the full path: workers run in other folders."""

    __slots__ = ()


class Reference(str):
    """A key of the host's own configuration, which it looks up."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a host; `why` names the settings it comes from, or the reason for its value."""

    name: str
    value: Any
    why: str


@dataclass(frozen=True, slots=True)
class Setting:
    """How settings of a recipe become an option of the host.

    Its functions get the recipe as `holdfast.adapters.launch.plan.Recipe`: the sections by name, and what follows from
    several.
    """

    name: str
    why: str
    """As in `Option`. Without a value it is the name of the one setting whose value the option has."""
    value: Any = None
    """The value, or a function of the recipe that gives it."""
    when: Callable[[Any], Any] | None = None
    """Whether the recipe needs the option."""

    def options(self, recipe: Any) -> Iterator[Option]:
        """The option for a recipe, or nothing."""
        if self.when is not None and not self.when(recipe):
            return
        value = attrgetter(self.why)(recipe) if self.value is None else self.value
        yield Option(self.name, value(recipe) if callable(value) else value, self.why)


@dataclass(frozen=True, slots=True)
class Translation:
    """A method in a host: its options there, or why it cannot be."""

    options: tuple[Option, ...] = ()
    problems: tuple[str, ...] = ()
    """A sentence for each thing that the host cannot do."""
    notes: tuple[str, ...] = ()
    """A sentence for each thing that the host does differently."""


class Noted(str):
    """What is reported of a setting that has no meaning in the host, if it is not the default."""

    __slots__ = ()


class Refused(str):
    """Why the host has nothing like a setting, and the nearest to it. An error, if it is not the default."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a recipe becomes a run of the host."""

    settings: tuple[Setting | Callable[[Any], Iterable[Option]], ...]
    """The options, in the order of the file that has them; a function gives several."""
    others: Mapping[str, Noted | Refused]
    """What becomes of a setting, or of a section's settings, that are neither options nor in a file of the launch."""
    methods: Mapping[str, str | Callable[[Any, Any], Translation]]
    """A method by name -> its translation from (method, recipe), or why the host does not have it."""
    problems: Callable[[Any], Iterator[str]]
    """Recipe -> a sentence for each combination of settings that the host cannot do."""
    differences: Callable[[Any], Iterator[str]]
    """Recipe -> a sentence for each thing that the host does differently."""

    def options(self, recipe: Any) -> Iterator[Option]:
        """All options for a recipe."""
        for row in self.settings:
            yield from row.options(recipe) if isinstance(row, Setting) else row(recipe)

    def fate(self, setting: str) -> Noted | Refused | None:
        """The entry of `others` for a setting: that of its own name, or else of its section."""
        return self.others.get(setting) or self.others.get(setting.rpartition(".")[0])


ANYWHERE: Mapping[str, Refused] = {
    "train.anchor_every": Refused(
        "the host's loss has log-probs of the policy that sampled, but not of an older one. Leave it out, or use "
        "`holdfast train`"
    ),
    "reward.judge": Refused(
        "the host has no judge of ours. Set reward.judge.weight = 0 and give the host a reward function that asks one, "
        "or use `holdfast train`"
    ),
}
"""Settings that only the local trainer has."""


# ---- the host


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
    old_policy: Callable[[Mapping[str, Logged], Mapping[str, object]], OldPolicy] = lambda series, settings: (
        "recomputed"
    )
    """(series by its names, settings) -> what the ratio compares with."""

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
    doubtful: Callable[[Mapping[str, Logged], Mapping[str, object]], dict[str, str]] = lambda series, settings: {}
    """(series by its names, settings) -> name of a series that in this log does not mean what the table says -> why."""
    by_version: Callable[[Mapping[str, Logged]], tuple[Name, ...]] = lambda series: ()
    """Rows of the table that the version of the trainer changes, as far as the log shows the version."""

    spans: tuple[Span, ...] = ()
    """What it logs of a step's seconds, if a step logs their sum over all of its calls."""
    step_seconds: str = ""
    """The seconds of a whole step."""

    # ---- its settings

    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What a remedy calls it (`holdfast.hosts.PHRASES`) -> the host's settings, with a value where one is advised."""
    logged_by: Mapping[str, str] = field(default_factory=dict)
    """What logs a series, by the first prefix that its name has. Nothing logs a name without one."""
    saved_every: str = ""
    """The setting with the steps between two checkpoints."""
    launch: Launch | None = None
    """None: no recipe can be translated for it."""

    @property
    def family(self) -> str:
        """The id of the host that it is built on, or its own."""
        return self.kin or self.id

    @property
    def known_as(self) -> str:
        """How messages name it."""
        return self.title or self.id
