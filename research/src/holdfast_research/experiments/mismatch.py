"""A sampler that differs by age or by rounding, without truncation. Each claim is a prediction made before the runs."""

from __future__ import annotations

from holdfast_research import judge
from holdfast_research.experiments import arms as a
from holdfast_research.experiments.death_spiral_claims import EM, ends_higher, loses_nothing
from holdfast_research.experiments.factbook import PAPERS_COEF
from holdfast_research.methods import NO_PENALTY, UNTRUNCATED
from holdfast_research.values import Arm, Claim, Experiment, Figure

EIGHT_BITS = Arm("8-bit sampler", {**NO_PENALTY, **UNTRUNCATED, "faults.sampler_8_bits": True})
FOUR_OLD = Arm("4 batches old", {**NO_PENALTY, **UNTRUNCATED, "train.staleness": 4})
SIXTEEN_OLD = Arm("16 batches old", {**NO_PENALTY, **UNTRUNCATED, "train.staleness": 16})
ONE_OLD = Arm("1 batch old", {**NO_PENALTY, **UNTRUNCATED, "train.staleness": 1})
TIS = Arm("TIS", {"loss.methods.sampler_weights.on": True})
CENTRED = Arm("score centering", {"loss.methods.score_centering.on": True})
TO_SAMPLER = Arm("ratios to the sampler", {"loss.old_policy": "sampler"})
BOTH = Arm(f"{TO_SAMPLER.name}, {PAPERS_COEF.name}", {**TO_SAMPLER.settings, **PAPERS_COEF.settings})
M2PO = Arm("M2PO", {**TO_SAMPLER.settings, "loss.methods.m2po.on": True, "loss.clip_low": 1.0, "loss.clip_high": 1e4})
_WEIGHTS = "loss.methods.sampler_weights"
DECOUPLED = Arm("decoupled PPO", {**TIS.settings, f"{_WEIGHTS}.keep": "mask", f"{_WEIGHTS}.high": 5.0})
"""AReaL's: the clip compares with the recomputed policy, and tokens weigh recomputed / sampler, 0 above its cap."""


def _with(arm: Arm, cure: Arm) -> Arm:
    return Arm(f"{arm.name}, {cure.name}", {**arm.settings, **cure.settings})


CURES = (a.LLDS_FIXED, a.SAPO_FIXED, TIS)
OF_FOUR = tuple(_with(FOUR_OLD, cure) for cure in CURES)
OF_ONE = tuple(_with(ONE_OLD, cure) for cure in CURES)
BYPASS = tuple(
    _with(old, cure)
    for old in (ONE_OLD, FOUR_OLD)
    for cure in (TO_SAMPLER, Arm(f"{TO_SAMPLER.name}, LLDS action", {**a.LLDS_FIXED.settings, **TO_SAMPLER.settings}))
)
OLDEST = tuple(_with(SIXTEEN_OLD, cure) for cure in (TO_SAMPLER, a.LLDS_FIXED))
WEAKER = _with(FOUR_OLD, BOTH)
M2PO_ONE, M2PO_FOUR = _with(ONE_OLD, M2PO), _with(FOUR_OLD, M2PO)
DECOUPLED_ONE, DECOUPLED_FOUR = _with(ONE_OLD, DECOUPLED), _with(FOUR_OLD, DECOUPLED)
LATER = (WEAKER, M2PO_ONE, M2PO_FOUR, DECOUPLED_ONE, DECOUPLED_FOUR)
CENTRED_ONE, CENTRED_FOUR = _with(ONE_OLD, CENTRED), _with(FOUR_OLD, CENTRED)
FRESH = a.PLAIN_SAMPLER.name
TRIED = (a.PLAIN_SAMPLER, EIGHT_BITS, FOUR_OLD, SIXTEEN_OLD)
NAMES = tuple(arm.name for arm in TRIED)
AGED = tuple(
    tuple(arm.name for arm in (old, *cured))
    for old, cured in ((ONE_OLD, (*OF_ONE, CENTRED_ONE)), (FOUR_OLD, (*OF_FOUR, CENTRED_FOUR)))
)
BYPASSED = tuple(arm.name for arm in (ONE_OLD, *BYPASS, OLDEST[0]))
WHERE = "an untruncated sampler whose weights are not those that learn"


def _cured(arm: Arm, old: Arm) -> tuple[Claim, Claim]:
    return ends_higher(arm.name, old.name, where=WHERE, says=f"{arm.name} ends above plain GRPO with rollouts as old.")


def _ends_below_fresh(arm: Arm, says: str) -> tuple[Claim, Claim]:
    return ends_higher(FRESH, arm.name, where=WHERE, says=says, asks=f"{EM}, below that of fresh rollouts")


EXPERIMENT = Experiment(
    name="mismatch",
    title="A sampler that differs by age or rounding",
    shows="does a stale sampler, or one of 8 bits, end plain GRPO without truncation, and what helps?",
    recipe="flaky",
    arms=(a.GRPO, a.RELIABLE, *TRIED, ONE_OLD, *OF_FOUR, *OF_ONE, CENTRED_ONE, CENTRED_FOUR, *BYPASS, *OLDEST, *LATER),
    minutes=8,
    notes=(
        "The testbed, where a fifth of the searches fail. The sampler is untruncated, with the weights of some "
        "batches ago, or weights rounded to 8 bits (E4M3, each row scaled). A batch is ten optimizer steps.",
        "Ratios are to the weights before the update, so nothing corrects for the sampler. *Ratios to the sampler* are "
        "what verl's bypass mode and TRL's AsyncGRPOTrainer have.",
        "M2PO, decoupled PPO and the penalty at 0.2 came after the other arms, on another CPU.",
        "The sentences are predictions, written before the runs. They say “falls” and “holds”; rollouts that are stale "
        "are judged by test EM, because their reward is that of older weights.",
    ),
    not_run=(
        "M2PO and decoupled PPO at 16 batches.",
        "Truncation and stale rollouts together.",
    ),
    claims=(
        Claim(
            where="the control: the same sampler with the weights that learn",
            says="Untruncated and fresh, plain GRPO learns and holds.",
            asks="it rises and never falls",
            test=judge.holds(FRESH),
        ),
        Claim(
            where=WHERE,
            says="A sampler of 8 bits does not make it fall.",
            asks="it rises and never falls",
            test=judge.holds(EIGHT_BITS.name),
        ),
        *(
            claim
            for arm in (ONE_OLD, FOUR_OLD)
            for claim in loses_nothing(arm.name, FRESH, where=WHERE, says=f"{arm.name} does not make it fall.")
        ),
        *_ends_below_fresh(SIXTEEN_OLD, "16 batches old does: what the policy has given up keeps being punished."),
        *(
            claim
            for arm in (CENTRED_ONE, CENTRED_FOUR)
            for claim in _ends_below_fresh(arm, f"{arm.name} falls: the drift to the old sampler is not the cause.")
        ),
        *(
            claim
            for old, cured in (
                (ONE_OLD, (*OF_ONE, *BYPASS[:2], M2PO_ONE, DECOUPLED_ONE)),
                (FOUR_OLD, (*OF_FOUR, *BYPASS[3:], M2PO_FOUR)),
            )
            for arm in cured
            for claim in _cured(arm, old)
        ),
        *(claim for arm in OLDEST for claim in _cured(arm, SIXTEEN_OLD)),
        *_ends_below_fresh(BYPASS[2], f"{BYPASS[2].name} falls: so does TIS at that age."),
        *_ends_below_fresh(DECOUPLED_FOUR, f"{DECOUPLED_FOUR.name} falls, as TIS does: it has the same weights."),
        *ends_higher(
            WEAKER.name, BYPASS[3].name, where=WHERE, says="With ratios to the sampler λ = 0.2 costs less than 1."
        ),
    ),
    picture=Figure(
        "reward/mean",
        "Reward",
        (FRESH, FOUR_OLD.name, *(arm.name for arm in (OF_FOUR[0], *OF_FOUR[2:])), BYPASS[2].name),
    ),
    figures=(
        *a.dynamics(NAMES, metrics=("reward/mean", "displacement/correct", "entropy/mean")),
        Figure("sampler/logprob_gap", "Log-prob of the sampler above the learner's, nats per token", NAMES),
        *a.dynamics(*AGED, BYPASSED, metrics=("reward/mean", "entropy/mean")),
    ),
)
