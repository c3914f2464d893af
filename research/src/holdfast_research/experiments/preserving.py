"""Which rollouts a penalty preserves, how strongly, and over which denominator: at frequent and at rare reward."""

from __future__ import annotations

from holdfast_research import judge
from holdfast_research.experiments import arms as a
from holdfast_research.experiments.death_spiral_claims import SAMPLED, remedy
from holdfast_research.methods import NO_PENALTY, Settings, llds
from holdfast_research.values import Arm, Claim, Experiment

RULES = {"A ≥ 0": "nonnegative", "A > 0": "positive", "correct": "correct"}
COEFFICIENTS = (0.2, 0.5, 1.0)
NORMALIZERS = ("policy", "preserved")
# A short, careless warm start: a quarter of the reward, and groups without a correct rollout.
RARE: Settings = {"warm_start.steps": 250, "world.scripts.misread": 0.4, "world.scripts.give_up": 0.6}


def _arm(rule: str, coef: float, normalizer: str, rare: bool) -> Arm:
    preserve = {"loss.penalty.preserve": RULES[rule], "loss.penalty.normalizer": normalizer}
    settings = {**llds("action"), "loss.penalty.coef": coef, **preserve, **(RARE if rare else {})}
    return Arm(_name(rule, coef, normalizer, rare), settings)


def _name(rule: str, coef: float, normalizer: str, rare: bool) -> str:
    return f"{rule}, λ {coef}, {normalizer}{', rare' if rare else ''}"


def _usual(rule: str, rare: bool = False) -> str:
    """The arm with λ = 1 over preserved tokens."""
    return _name(rule, 1.0, "preserved", rare)


RARE_GRPO = Arm("GRPO, rare", {**NO_PENALTY, **RARE}, control=True)
ARMS = tuple(
    _arm(rule, coef, normalizer, rare)
    for rare in (False, True)
    for normalizer in NORMALIZERS
    for coef in COEFFICIENTS
    for rule in RULES
)

EXPERIMENT = Experiment(
    name="preserving",
    title="Which rollouts to preserve",
    shows="which rollouts should a penalty preserve, at frequent and at rare reward?",
    recipe="flaky",
    arms=(a.GRPO, a.RELIABLE, RARE_GRPO, *ARMS),
    minutes=4.5,
    notes=(
        "λ is over the preserved tokens, as in LLDS's paper. Its code divides by all tokens of the loss.",
        "Rare reward has another initial checkpoint, which learned for fewer steps and is careless.",
    ),
    claims=(
        remedy(_usual("A ≥ 0"), paper=a.LLDS_PAPER, where="equation 7 (v1): the preserving set is A ≥ 0"),
        remedy(_usual("A > 0"), where="the set of SAPO's equation 11, behind the gate of LLDS"),
        remedy(_usual("correct"), where="all-correct groups preserved, all-incorrect ones not"),
        Claim(
            where="all-incorrect groups are in the paper's preserving set (equation 7)",
            says="Where reward is rare, preserving all-incorrect groups costs learning: `correct` ends above A ≥ 0.",
            asks=f"with λ = 1 over preserved tokens, {SAMPLED}",
            test=judge.ends_higher(_usual("correct", rare=True), _usual("A ≥ 0", rare=True)),
        ),
        Claim(
            where="the control at rare reward",
            says="Where reward is rare, plain GRPO ends above LLDS with A ≥ 0.",
            asks=SAMPLED,
            test=judge.ends_higher(RARE_GRPO.name, _usual("A ≥ 0", rare=True)),
        ),
        *(remedy(_usual(rule, rare=True), where="where reward is rare", other=RARE_GRPO.name) for rule in RULES),
    ),
    figures=tuple(
        figure
        for rare in (False, True)
        for figure in a.dynamics(
            (
                RARE_GRPO.name if rare else a.GRPO.name,
                *(_usual(rule, rare) for rule in RULES),
                *(() if rare else (a.RELIABLE.name,)),
            ),
            metrics=("reward/mean", "displacement/correct", "entropy/mean"),
        )
    ),
)
