"""Testbeds of the recorded runs, with the side of the split each is on. `recordings.runs` has their runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.cli.recipes import find
from holdfast.recipe import Config, load
from holdfast_research.former_settings import dotted
from holdfast_research.methods import Settings, words

CALIBRATION, TUNING, HELD_OUT = "calibration", "tuning", "held-out"
"""`tuning` was held out, in two sets, and each has its one reading; since then thresholds may be chosen there too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Testbed:
    """A recipe, a world, a model and a reward, on one host."""

    name: str
    host: str
    split: str
    recipe: str
    """Name of a bundled recipe, or of a toy task."""
    settings: Settings = field(default_factory=dict)
    steps: int = 50
    """Rollout batches of a run."""


@dataclass(frozen=True, slots=True)
class Arm:
    """What is done to a testbed's runs."""

    name: str
    cause: str
    how: str
    """A sentence: what makes the run what it is."""
    settings: Settings = field(default_factory=dict)
    fault: str = ""
    """What the host's recorder changes from outside: a function of `recordings.local`, or its name in the others."""
    start: int = 0
    """The rollout batches before the fault begins."""
    also: tuple[str, ...] = ()
    """Other causes the run has, which did not decide how it went."""
    steps: int = 0
    """Rollout batches; 0: those of the testbed."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One run to make."""

    testbed: Testbed
    arm: Arm
    seed: int

    @property
    def name(self) -> str:
        """The run's, and its files'."""
        return f"{self.testbed.name}-{self.arm.name}-s{self.seed}"

    @property
    def length(self) -> int:
        """Rollout batches."""
        return self.arm.steps or self.testbed.steps


def config_of(planned: Planned) -> Config:
    """The recipe of a run, valid; what a recipe refuses is put in by its fault."""
    place = {"run.seed": planned.seed, "train.steps": planned.length}
    return load(find(planned.testbed.recipe), words({**planned.testbed.settings, **planned.arm.settings, **place}))


# Small enough for half a minute a run on one core.
_SMALL = dotted(
    {
        "run": {"threads": 1, "device": "cpu"},
        "eval": {"every": 0},
        "model": {"path": "tiny"},
        "world": {"dev_questions": 40, "test_questions": 40, "model": {"layers": 2}},
        "loss": {"kl_coef": 0, "penalty": {"name": "none"}},
        "train": {"group_size": 4, "displacement_rows": 32},
    }
)


def _small(**sections: dict[str, Any]) -> Settings:
    return {**_SMALL, **dotted(sections)}


# The collapse recipe, smaller: thoughts of high entropy, failures that ramble.
RAMBLER = Testbed(
    name="rambler",
    host="holdfast",
    split=CALIBRATION,
    recipe="collapse",
    settings=_small(
        sampling={"top_p": 1.0, "top_k": 0},
        train={"questions": 8, "lr": 3e-4, "warmup": 3, "optimizer_steps_per_rollout": 4},
        world={"people": 100, "train_questions": 1200, "mismatch": 0.05, "two_hop": 0.4, "model": {"hidden": 48}}
        | {"filler_words": 200, "filler_length": [2, 5], "ramble_length": [10, 16], "scripts": {"plain_steps": 1100}},
        warm_start={"steps": 350, "batch_size": 32},
    ),
)
# No filler at all: short turns, a sharp policy, another reward.
CURT = Testbed(
    name="curt",
    host="holdfast",
    split=TUNING,
    recipe="quickstart",
    steps=42,
    settings=_small(
        train={"questions": 8, "lr": 4e-4, "warmup": 2, "optimizer_steps_per_rollout": 4},
        reward={"em": 0.8, "f1": 0.2},
        world={"seed": 7, "people": 120, "train_questions": 1500, "mismatch": 0.1, "model": {"hidden": 40}},
        warm_start={"steps": 1100, "batch_size": 32, "seed": 3},
    ),
)
# Another preset, another shape of loss: longer rambles, half of the questions in two hops, a mean over rollouts.
STRAYER = Testbed(
    name="strayer",
    host="holdfast",
    split=TUNING,
    recipe="collapse",
    settings=_small(
        sampling={"top_p": 1.0, "top_k": 0},
        protocol={"preset": "search-r1"},
        train={"questions": 8, "lr": 3e-4, "warmup": 4, "optimizer_steps_per_rollout": 8},
        loss={"reduction": "seq-mean-token-mean"},
        world={"seed": 11, "people": 90, "train_questions": 1000, "mismatch": 0.05, "two_hop": 0.5}
        | {"filler_words": 120, "filler_length": [1, 4], "ramble_length": [12, 20]}
        | {"model": {"hidden": 48}, "scripts": {"plain_steps": 1200, "ramble": 0.15}},
        warm_start={"steps": 350, "batch_size": 32, "seed": 5},
    ),
)
COLLAPSE = Testbed(
    name="collapse",
    host="holdfast",
    split=CALIBRATION,
    recipe="collapse",
    settings={"run.threads": 1, "run.device": "cpu"},
    steps=60,
)
QUICKSTART = Testbed(
    name="quickstart",
    host="holdfast",
    split=TUNING,
    recipe="quickstart",
    settings={"run.threads": 1, "run.device": "cpu", "eval.every": 0},
    steps=40,
)


def _in_trl(testbed: Testbed) -> Testbed:
    """The same recipe, world and warm start on the other host."""
    return replace(testbed, name=f"{testbed.name}-trl", host="trl")


COLLAPSE_TRL = _in_trl(COLLAPSE)


def _toy(name: str, split: str, steps: int = 50) -> Testbed:
    """A task of `recordings.echo`: no search, no recipe of ours, TRL's own sampler."""
    return Testbed(name=name, host="trl", split=split, recipe=name, steps=steps)


ECHO = _toy("echo", CALIBRATION)
ORDER = _toy("order", TUNING)
MIRROR = _toy("mirror", TUNING)
SHIFT = _toy("shift", TUNING, steps=44)
ROTATE = _toy("rotate", HELD_OUT, steps=46)
TOYS = ("echo", "order", "mirror", "shift", "rotate")

# The second held-out set. Deeper and narrower, larger groups, three optimizer steps, F1 for a reward.
SCOUT = Testbed(
    name="scout",
    host="holdfast",
    split=TUNING,
    recipe="quickstart",
    steps=36,
    settings=_small(
        train={"questions": 5, "group_size": 6, "lr": 6e-4, "warmup": 3, "optimizer_steps_per_rollout": 3},
        reward={"em": 0, "f1": 1},
        world={"seed": 29, "people": 70, "train_questions": 900, "two_hop": 0.25, "mismatch": 0.05}
        | {"model": {"hidden": 32, "layers": 3}},
        warm_start={"steps": 900, "batch_size": 32, "seed": 8},
    ),
)
# Fewer words of filler, a longer failure, a reward in two parts: displacement under the truncated sampler.
ROVER = Testbed(
    name="rover",
    host="holdfast",
    split=TUNING,
    recipe="collapse",
    steps=56,
    settings=_small(
        train={"questions": 6, "group_size": 5, "lr": 3e-4, "warmup": 4, "optimizer_steps_per_rollout": 6},
        reward={"em": 0.7, "f1": 0.3},
        world={"seed": 31, "people": 110, "train_questions": 1100, "mismatch": 0.08, "two_hop": 0.35}
        | {"filler_words": 300, "filler_length": [3, 6], "ramble_length": [14, 22]}
        | {"model": {"hidden": 40}, "scripts": {"plain_steps": 1100, "ramble": 0.14}},
        warm_start={"steps": 400, "batch_size": 32, "seed": 9},
    ),
)
SCOUT_TRL = _in_trl(SCOUT)
ROVER_TRL = _in_trl(ROVER)

# The third held-out set. Nomads search with words of filler, and are truncated hard.
NOMAD = Testbed(
    name="nomad",
    host="holdfast",
    split=HELD_OUT,
    recipe="collapse",
    steps=52,
    settings=_small(
        train={"questions": 8, "group_size": 5, "lr": 3e-4, "warmup": 4, "optimizer_steps_per_rollout": 4},
        reward={"em": 0.6, "f1": 0.4},
        world={"seed": 43, "people": 130, "train_questions": 1300, "mismatch": 0.06, "two_hop": 0.3}
        | {"filler_words": 250, "filler_length": [2, 5], "ramble_length": [14, 20]}
        | {"model": {"hidden": 48}, "scripts": {"plain_steps": 1100, "ramble": 0.13}},
        warm_start={"steps": 380, "batch_size": 32, "seed": 12},
    ),
)
# Another preset and reduction, a deeper model, shorter fillers.
DROVER = Testbed(
    name="drover",
    host="holdfast",
    split=HELD_OUT,
    recipe="collapse",
    steps=52,
    settings=_small(
        protocol={"preset": "search-r1"},
        train={"questions": 8, "lr": 3e-4, "warmup": 4, "optimizer_steps_per_rollout": 4},
        loss={"reduction": "seq-mean-token-mean"},
        reward={"em": 0, "f1": 1},
        world={"seed": 47, "people": 80, "train_questions": 900, "mismatch": 0.05, "two_hop": 0.45}
        | {"filler_words": 150, "filler_length": [2, 4], "ramble_length": [12, 18]}
        | {"model": {"hidden": 40, "layers": 3}, "scripts": {"plain_steps": 1200, "ramble": 0.15}},
        warm_start={"steps": 380, "batch_size": 32, "seed": 14},
    ),
)
# No filler: a sharp policy, five optimizer steps, a reward in two parts.
DELVER = Testbed(
    name="delver",
    host="holdfast",
    split=HELD_OUT,
    recipe="quickstart",
    steps=40,
    settings=_small(
        train={"questions": 8, "group_size": 5, "lr": 5e-4, "warmup": 3, "optimizer_steps_per_rollout": 5},
        reward={"em": 0.5, "f1": 0.5},
        world={"seed": 53, "people": 95, "train_questions": 1200, "two_hop": 0.3, "mismatch": 0.08}
        | {"model": {"hidden": 40}},
        warm_start={"steps": 1000, "batch_size": 32, "seed": 17},
    ),
)
NOMAD_TRL = _in_trl(NOMAD)
