"""A sampler that differs by age or by rounding, without truncation. Each claim is a prediction made before the runs."""

from __future__ import annotations

from holdfast_research import judge
from holdfast_research.experiments import arms as a
from holdfast_research.methods import NO_PENALTY, UNTRUNCATED
from holdfast_research.values import Arm, Claim, Experiment, Figure

EIGHT_BITS = Arm("8-bit sampler", {**NO_PENALTY, **UNTRUNCATED, "faults.sampler_8_bits": True})
FOUR_OLD = Arm("4 batches old", {**NO_PENALTY, **UNTRUNCATED, "train.staleness": 4})
SIXTEEN_OLD = Arm("16 batches old", {**NO_PENALTY, **UNTRUNCATED, "train.staleness": 16})
ONE_OLD = Arm("1 batch old", {**NO_PENALTY, **UNTRUNCATED, "train.staleness": 1})
TIS = Arm("TIS", {"loss.methods.sampler_weights.on": True})
CENTRED = Arm("score centering", {"loss.methods.score_centering.on": True})


def _with(arm: Arm, cure: Arm) -> Arm:
    return Arm(f"{arm.name}, {cure.name}", {**arm.settings, **cure.settings})


CURES = (a.LLDS_FIXED, a.SAPO_FIXED, TIS)
OF_FOUR = tuple(_with(FOUR_OLD, cure) for cure in CURES)
OF_ONE = tuple(_with(ONE_OLD, cure) for cure in CURES)
TO_SAMPLER = Arm("ratios to the sampler", {"loss.old_policy": "sampler"})
BYPASS = tuple(
    _with(old, cure)
    for old in (ONE_OLD, FOUR_OLD)
    for cure in (TO_SAMPLER, Arm(f"{TO_SAMPLER.name}, LLDS action", {**a.LLDS_FIXED.settings, **TO_SAMPLER.settings}))
)
OLDEST = tuple(_with(SIXTEEN_OLD, cure) for cure in (TO_SAMPLER, a.LLDS_FIXED))
CENTRED_ONE, CENTRED_FOUR = _with(ONE_OLD, CENTRED), _with(FOUR_OLD, CENTRED)
TRIED = (a.PLAIN_SAMPLER, EIGHT_BITS, FOUR_OLD, SIXTEEN_OLD)
NAMES = tuple(arm.name for arm in TRIED)
AGED = tuple(
    tuple(arm.name for arm in (old, *cured))
    for old, cured in ((ONE_OLD, (*OF_ONE, CENTRED_ONE)), (FOUR_OLD, (*OF_FOUR, CENTRED_FOUR)))
)
BYPASSED = tuple(arm.name for arm in (ONE_OLD, *BYPASS, OLDEST[0]))
WHERE = "an untruncated sampler whose weights are not those that learn"


def _holds(arm: Arm, says: str) -> Claim:
    return Claim(where=WHERE, says=says, asks="it rises and never falls", test=judge.holds(arm.name))


def _cured(arm: Arm, old: Arm, why: str) -> Claim:
    return Claim(
        where=WHERE,
        says=f"{arm.name} holds where it falls without: {why}.",
        asks="it rises and never falls, on the seeds on which plain GRPO with rollouts as old fell",
        test=judge.holds_where(arm.name, old.name),
    )


WHYS = (
    "it gives likelihood back where right rollouts lost it",
    "so does its KL",
    "it corrects for the sampler, token by token",
)
"""Of `CURES`."""


EXPERIMENT = Experiment(
    name="mismatch",
    title="A sampler that differs by age or rounding",
    shows="whether a stale sampler, or one of 8 bits, makes plain GRPO fall without truncation",
    recipe="flaky",
    arms=(a.GRPO, a.RELIABLE, *TRIED, ONE_OLD, *OF_FOUR, *OF_ONE, CENTRED_ONE, CENTRED_FOUR, *BYPASS, *OLDEST),
    minutes=8,
    notes=(
        "Rollouts are sampled from the whole vocabulary, by the weights of some batches ago or by weights rounded to "
        "8 bits (E4M3, each row scaled). Ratios are to the weights before the update, as without these faults, so "
        "nothing corrects for the sampler.",
        "The sentences are predictions, written before the runs. A truncated sampler differs in one direction at every "
        "step: it never draws what it cuts. Rounding has no direction that lasts. Age has one, away from what the "
        "policy was, and it grows with age.",
        "The arms with rollouts one batch old, and the cures of four, and their predictions, were added when the first "
        "run of four batches had fallen, before they were run; likewise the cures of one batch, when that had fallen.",
        "Score centering came last, to tell two explanations apart, with its predictions written before its runs. If "
        "the drift towards the old sampler ends these runs, it holds, because it takes that drift out exactly: it "
        "knows the sampler's whole distribution. If the runs end because correct rollouts lose likelihood, it falls "
        "as TIS does, which removes most of the drift, and only the penalties hold.",
        "Ratios to the sampler are what verl's bypass mode and TRL's AsyncGRPOTrainer have: clip and penalty compare "
        "with each token's log-prob when it was drawn. Their predictions were written before their runs, with all "
        "others known: a ratio to the sampler corrects token by token, as TIS does, so it holds at one batch and falls "
        "at four. When it had held on one seed at four, sixteen batches were added, with it and with LLDS.",
        "The predictions on score centering did not come true. With rollouts one batch old or four it falls on no "
        "seed, and at four ends highest of that age. TIS at one batch does not fall either. So here it is enough to "
        "take the drift out. On a [real model](real-old.md), with rollouts eight batches old, it is not.",
    ),
    claims=(
        Claim(
            where="the control: the same sampler with the weights that learn",
            says="Untruncated and fresh, plain GRPO learns and holds.",
            asks="it rises and never falls",
            test=judge.holds(a.PLAIN_SAMPLER.name),
        ),
        _holds(EIGHT_BITS, "A sampler of 8 bits does not make it fall."),
        _holds(FOUR_OLD, "Rollouts four batches old do not make it fall."),
        Claim(
            where=WHERE,
            says="Rollouts sixteen batches old do: wrong rollouts that the policy has given up keep being punished.",
            asks="the reward falls",
            test=judge.falls(SIXTEEN_OLD.name),
        ),
        _holds(ONE_OLD, "Rollouts one batch old do not make it fall."),
        *(_cured(arm, FOUR_OLD, why) for arm, why in zip(OF_FOUR, WHYS, strict=True)),
        *(_cured(arm, ONE_OLD, why) for arm, why in zip(OF_ONE, WHYS, strict=True)),
        *(
            Claim(
                where=WHERE,
                says=f"{arm.name} falls: the drift towards the old sampler is not what ends these runs.",
                asks="the reward falls",
                test=judge.falls(arm.name),
            )
            for arm in (CENTRED_ONE, CENTRED_FOUR)
        ),
        *(
            _cured(arm, old, "it corrects for the sampler, as TIS does" if arm is BYPASS[0] else WHYS[0])
            for arm, old in ((BYPASS[0], ONE_OLD), (BYPASS[1], ONE_OLD), (BYPASS[3], FOUR_OLD))
        ),
        *(
            Claim(
                where=WHERE,
                says=f"{arm.name} does not fall where plain GRPO does.",
                asks="it never falls, on the seeds on which plain GRPO with rollouts as old fell",
                test=judge.prevents_where(arm.name, SIXTEEN_OLD.name),
            )
            for arm in OLDEST
        ),
        Claim(
            where=WHERE,
            says=f"{BYPASS[2].name} falls: so does TIS at that age.",
            asks="the reward falls",
            test=judge.falls(BYPASS[2].name),
        ),
    ),
    figures=(
        *a.dynamics(NAMES, metrics=("reward/mean", "displacement/correct", "entropy/mean")),
        Figure("sampler/logprob_gap", "Log-prob of the sampler above the learner's, nats per token", NAMES),
        *a.dynamics(*AGED, BYPASSED, metrics=("reward/mean", "entropy/mean")),
    ),
)
