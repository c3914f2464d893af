"""Every run of the library, before any of them is made: organisms, the side of the split each is on, causes, seeds."""

from __future__ import annotations

from dataclasses import dataclass, replace

CALIBRATION, TUNING, HELD_OUT = "calibration", "tuning", "held-out"
"""`tuning` was held out, in two sets, and each has its one reading; since then thresholds may be chosen there too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Organism:
    """A recipe, a world, a model and a reward, on one host."""

    name: str
    host: str
    split: str
    recipe: str
    settings: tuple[str, ...] = ()
    school: tuple[str, ...] = ()
    """Settings of the warm start; another host's runs load the model it makes."""
    steps: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One run to make."""

    organism: Organism
    arm: str
    cause: str
    seed: int
    how: str
    settings: tuple[str, ...] = ()
    fault: str = ""
    """A function of `record_faults` (local engine) or of `record_trl`."""
    start: int = 0
    also: tuple[str, ...] = ()
    steps: int = 0

    @property
    def name(self) -> str:
        return f"{self.organism.name}-{self.arm}-s{self.seed}"

    @property
    def length(self) -> int:
        return self.steps or self.organism.steps


def _options(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Small enough for half a minute a run on one core.
_SMALL = _options(
    "--run.threads 1 --run.device cpu --eval.every 0 --world.dev_questions 40 --world.test_questions 40 "
    "--model.path tiny --world.model.layers 2 --loss.kl_coef 0 --loss.penalty.name none --train.group_size 4 "
    "--train.displacement_rows 32"
)
_CLEAN = _options("--sampling.top_p 1 --sampling.top_k 0")

# The collapse recipe, smaller: thoughts of high entropy, failures that ramble.
RAMBLER = Organism(
    name="rambler",
    host="holdfast",
    split=CALIBRATION,
    recipe="collapse",
    settings=(
        *_SMALL,
        *_CLEAN,
        *_options("--train.questions 8 --train.lr 3e-4 --train.warmup 3 --train.optimizer_steps_per_rollout 4"),
    ),
    school=(
        *_options("--world.people 100 --world.train_questions 1200 --world.mismatch 0.05 --world.two_hop 0.4"),
        *_options("--world.filler_words 200 --world.model.hidden 48"),
        *("--world.filler_length", "[2, 5]", "--world.ramble_length", "[10, 16]"),
        *_options("--world.scripts.plain_steps 1100 --warm_start.steps 350 --warm_start.batch_size 32"),
    ),
)
# No filler at all: short turns, a sharp policy, another reward.
CURT = Organism(
    name="curt",
    host="holdfast",
    split=TUNING,
    recipe="quickstart",
    steps=42,
    settings=(
        *_SMALL,
        *_options("--train.questions 8 --train.lr 4e-4 --train.warmup 2 --train.optimizer_steps_per_rollout 4"),
        *_options("--reward.em 0.8 --reward.f1 0.2"),
    ),
    school=(
        *_options("--world.seed 7 --world.people 120 --world.train_questions 1500 --world.mismatch 0.1"),
        *_options("--world.model.hidden 40 --warm_start.steps 1100 --warm_start.batch_size 32 --warm_start.seed 3"),
    ),
)
# Another preset, another shape of loss: longer rambles, half of the questions in two hops, a mean over rollouts.
STRAYER = Organism(
    name="strayer",
    host="holdfast",
    split=TUNING,
    recipe="collapse",
    settings=(
        *_SMALL,
        *_CLEAN,
        *_options("--train.questions 8 --train.lr 3e-4 --train.warmup 4 --train.optimizer_steps_per_rollout 8"),
        *_options("--loss.reduction seq-mean-token-mean"),
    ),
    school=(
        *_options("--protocol.preset search-r1 --world.seed 11 --world.people 90 --world.train_questions 1000"),
        *_options("--world.mismatch 0.05 --world.two_hop 0.5 --world.filler_words 120 --world.model.hidden 48"),
        *("--world.filler_length", "[1, 4]", "--world.ramble_length", "[12, 20]"),
        *_options(
            "--world.scripts.plain_steps 1200 --warm_start.steps 350 --warm_start.batch_size 32 --warm_start.seed 5"
        ),
        *_options("--world.scripts.ramble 0.15"),
    ),
)
COLLAPSE = Organism(
    name="collapse",
    host="holdfast",
    split=CALIBRATION,
    recipe="collapse",
    settings=_options("--run.threads 1 --run.device cpu"),
    steps=60,
)
QUICKSTART = Organism(
    name="quickstart",
    host="holdfast",
    split=TUNING,
    recipe="quickstart",
    settings=_options("--run.threads 1 --run.device cpu --eval.every 0"),
    steps=40,
)


def _in_trl(organism: Organism, *settings: str) -> Organism:
    """The same recipe, world and school on the other host."""
    return replace(organism, name=f"{organism.name}-trl", host="trl", settings=(*organism.settings, *settings))


COLLAPSE_TRL = _in_trl(COLLAPSE)


def _toy(name: str, split: str) -> Organism:
    """A task of `record_echo`: no search, no recipe of ours, TRL's own sampler."""
    return Organism(name=name, host="trl", split=split, recipe=name)


ECHO = _toy("echo", CALIBRATION)
ORDER = _toy("order", TUNING)
MIRROR = _toy("mirror", TUNING)
SHIFT = replace(_toy("shift", TUNING), steps=44)
ROTATE = replace(_toy("rotate", HELD_OUT), steps=46)
TOYS = ("echo", "order", "mirror", "shift", "rotate")

# The second held-out set. Deeper and narrower, larger groups, three optimizer steps, F1 for a reward.
SCOUT = Organism(
    name="scout",
    host="holdfast",
    split=TUNING,
    recipe="quickstart",
    steps=36,
    settings=(
        *_SMALL,
        *_options("--world.model.layers 3 --train.questions 5 --train.group_size 6 --train.lr 6e-4 --train.warmup 3"),
        *_options("--train.optimizer_steps_per_rollout 3 --reward.em 0 --reward.f1 1"),
    ),
    school=(
        *_options("--world.seed 29 --world.people 70 --world.train_questions 900 --world.two_hop 0.25"),
        *_options("--world.mismatch 0.05 --world.model.hidden 32 --warm_start.steps 900 --warm_start.batch_size 32"),
        *_options("--warm_start.seed 8"),
    ),
)
# Fewer words of filler, a longer failure, a reward in two parts: displacement under the truncated sampler.
ROVER = Organism(
    name="rover",
    host="holdfast",
    split=TUNING,
    recipe="collapse",
    steps=56,
    settings=(
        *_SMALL,
        *_options("--train.questions 6 --train.group_size 5 --train.lr 3e-4 --train.warmup 4"),
        *_options("--train.optimizer_steps_per_rollout 6 --reward.em 0.7 --reward.f1 0.3"),
    ),
    school=(
        *_options("--world.seed 31 --world.people 110 --world.train_questions 1100 --world.mismatch 0.08"),
        *_options("--world.two_hop 0.35 --world.filler_words 300 --world.model.hidden 40"),
        *("--world.filler_length", "[3, 6]", "--world.ramble_length", "[14, 22]"),
        *_options(
            "--world.scripts.plain_steps 1100 --warm_start.steps 400 --warm_start.batch_size 32 --warm_start.seed 9"
        ),
        *_options("--world.scripts.ramble 0.14"),
    ),
)
SCOUT_TRL = _in_trl(SCOUT)
ROVER_TRL = _in_trl(ROVER)

# The third held-out set. Nomads search with words of filler, and are truncated hard.
NOMAD = Organism(
    name="nomad",
    host="holdfast",
    split=HELD_OUT,
    recipe="collapse",
    steps=52,
    settings=(
        *_SMALL,
        *_options("--train.questions 8 --train.group_size 5 --train.lr 3e-4 --train.warmup 4"),
        *_options("--train.optimizer_steps_per_rollout 4 --reward.em 0.6 --reward.f1 0.4"),
    ),
    school=(
        *_options("--world.seed 43 --world.people 130 --world.train_questions 1300 --world.mismatch 0.06"),
        *_options("--world.two_hop 0.3 --world.filler_words 250 --world.model.hidden 48"),
        *("--world.filler_length", "[2, 5]", "--world.ramble_length", "[14, 20]"),
        *_options(
            "--world.scripts.plain_steps 1100 --warm_start.steps 380 --warm_start.batch_size 32 --warm_start.seed 12"
        ),
        *_options("--world.scripts.ramble 0.13"),
    ),
)
# Another preset and reduction, a deeper model, shorter fillers.
DROVER = Organism(
    name="drover",
    host="holdfast",
    split=HELD_OUT,
    recipe="collapse",
    steps=52,
    settings=(
        *_SMALL,
        *_options("--world.model.layers 3 --train.questions 8 --train.lr 3e-4 --train.warmup 4"),
        *_options("--train.optimizer_steps_per_rollout 4 --loss.reduction seq-mean-token-mean"),
        *_options("--reward.em 0 --reward.f1 1"),
    ),
    school=(
        *_options("--protocol.preset search-r1 --world.seed 47 --world.people 80 --world.train_questions 900"),
        *_options("--world.mismatch 0.05 --world.two_hop 0.45 --world.filler_words 150 --world.model.hidden 40"),
        *("--world.filler_length", "[2, 4]", "--world.ramble_length", "[12, 18]"),
        *_options(
            "--world.scripts.plain_steps 1200 --warm_start.steps 380 --warm_start.batch_size 32 --warm_start.seed 14"
        ),
        *_options("--world.scripts.ramble 0.15"),
    ),
)
# No filler: a sharp policy, five optimizer steps, a reward in two parts.
DELVER = Organism(
    name="delver",
    host="holdfast",
    split=HELD_OUT,
    recipe="quickstart",
    steps=40,
    settings=(
        *_SMALL,
        *_options("--train.questions 8 --train.group_size 5 --train.lr 5e-4 --train.warmup 3"),
        *_options("--train.optimizer_steps_per_rollout 5 --reward.em 0.5 --reward.f1 0.5"),
    ),
    school=(
        *_options("--world.seed 53 --world.people 95 --world.train_questions 1200 --world.two_hop 0.3"),
        *_options("--world.mismatch 0.08 --world.model.hidden 40 --warm_start.steps 1000 --warm_start.batch_size 32"),
        *_options("--warm_start.seed 17"),
    ),
)
NOMAD_TRL = _in_trl(NOMAD)
