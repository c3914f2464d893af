"""What a recipe becomes in a host: options, or why it cannot run there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.base.section import Refusal

if TYPE_CHECKING:
    from holdfast.adapters.launch.files import Plan
    from holdfast.adapters.launch.recipe import Recipe
    from holdfast.methods.registry import Method
    from holdfast.recipe import Config


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
    value: object
    why: str


class Noted(str):
    """What is reported of a setting that has no meaning in the host, if it is not the default."""

    __slots__ = ()


class Refused(str):
    """Why the host has nothing like a setting, and the nearest to it. An error, if it is not the default."""

    __slots__ = ()


Fates = Mapping[str, Noted | Refused]
"""What becomes of a setting, or of a section's settings, that are neither options nor in a file of the launch."""

ANYWHERE: Fates = {
    "train.anchor_every": Refused(
        "the host's loss has log-probs of the policy that sampled, but not of an older one. Leave it out, or use "
        "`holdfast train`"
    ),
    "reward.judge": Refused(
        "the host does not have holdfast's judge. Set reward.judge.weight = 0 and give the host a reward function "
        "that asks one, or use `holdfast train`"
    ),
}
"""Settings that only the local trainer has."""


def fate(fates: Fates, setting: str) -> Noted | Refused | None:
    """The entry for a setting: that of its own name, or else of its section."""
    return fates.get(setting) or fates.get(setting.rpartition(".")[0])


@dataclass(frozen=True, slots=True)
class Translation:
    """A method in a host: its options there, or why it cannot be."""

    options: tuple[Option, ...] = ()
    problems: tuple[Refusal | str, ...] = ()
    """What the host cannot do."""
    notes: tuple[str, ...] = ()
    """A sentence for each thing that the host does differently."""
    absent: str = ""
    """Why the host does not have the method."""


def absent(method: Method, reasons: Mapping[str, str]) -> Translation:
    """A method that a host does not have, for the reason under its name, or for the method's own."""
    why = reasons.get(method.name, method.elsewhere)
    problem = f"[{method.table()}]: {why}. Leave it out, or use `holdfast train`"
    return Translation(problems=(problem,), absent=why)


@dataclass(frozen=True, slots=True)
class Launch:
    """How a recipe becomes a run of the host."""

    options: Callable[[Recipe], Iterator[Option]]
    """The options, in the order of the file that has them."""
    fates: Fates
    method: Callable[[Method, Config], Translation]
    problems: Callable[[Recipe], Iterator[Refusal | str]]
    """Combinations of settings that the host cannot do."""
    differences: Callable[[Recipe], Iterator[str]]
    """A sentence for each thing that the host does differently."""
    plan: Callable[[Recipe, tuple[Option, ...], tuple[str, ...]], Plan]
    """(recipe, options, notes) -> all of it, with the files of the folder."""
