"""A pretrained model with stale rollouts, at twice its recipe's learning rate and at the recipe's own. Each claim is a
prediction made before the runs of these seeds."""

from __future__ import annotations

from holdfast_research import judge, signs
from holdfast_research.experiments import arms as a
from holdfast_research.experiments.death_spiral_claims import ends_higher, loses_nothing
from holdfast_research.experiments.factbook import EXPERIMENT as FACTBOOK
from holdfast_research.experiments.factbook import PAPERS_COEF
from holdfast_research.experiments.mismatch import CENTRED, TIS
from holdfast_research.methods import NO_PENALTY
from holdfast_research.values import Arm, Claim, Experiment, Figure

IPO = Arm("IPO", {"loss.methods.ipo.on": True, "loss.clip_low": 1.0, "loss.clip_high": 1e4})


def old(batches: int, cure: Arm | None = None) -> Arm:
    """Plain GRPO, or `cure`, on rollouts of the weights of so many batches ago."""
    name = f"{batches} batch{'es' * (batches > 1)} old"
    settings = {**NO_PENALTY, **(cure.settings if cure else {}), "train.staleness": batches}
    return Arm(f"{name}, {cure.name}" if cure else name, settings)


FRESH = a.GRPO
OLD, YOUNGER = old(8), old(4)


def _slower(arm: Arm) -> Arm:
    return Arm(f"{arm.name}, half the rate", {**arm.settings, "train.lr": 2e-5})


PENALTIES = tuple(old(8, cure) for cure in (a.LLDS_FIXED, PAPERS_COEF, a.SAPO_FIXED))
SLOWER, SLOWER_FRESH, *SLOWER_PENALTIES = map(_slower, (OLD, FRESH, *PENALTIES[:2]))
CORRECTIONS = tuple(old(8, cure) for cure in (CENTRED, TIS, IPO))
WHERE = "a pretrained model, real prose, an untruncated sampler with the weights of eight batches ago"
NAMES = tuple(arm.name for arm in (FRESH, YOUNGER, OLD))
CURED = tuple(tuple(arm.name for arm in (OLD, *cures)) for cures in (PENALTIES, CORRECTIONS))


def _above(arm: Arm, other: Arm) -> tuple[Claim, Claim]:
    return ends_higher(arm.name, other.name, where=WHERE, says=f"{arm.name} ends above {other.name}.")


EXPERIMENT = Experiment(
    name="real-old",
    title="A real model with stale rollouts",
    shows="which penalties and corrections help SmolLM2-135M at twice its recipe's rate, eight batches old?",
    recipe="factbook",
    arms=(FRESH, OLD, *PENALTIES, *CORRECTIONS, YOUNGER, SLOWER, SLOWER_FRESH, *SLOWER_PENALTIES),
    minutes=55,
    settings={
        "train.questions": 4,
        "train.steps": 48,
        "train.lr": 4e-5,
        "eval.start": False,
        "checkpoint.every": 0,
        "train.displacement_every": 1,
    },
    notes=(
        "The recipe of [factbook](factbook.md) at twice its learning rate, 4e-5: 48 batches of 24 rollouts, four "
        "optimizer steps each. Rollouts come from weights eight batches old. *Half the rate* is the recipe's own.",
        "The old policy is recomputed, and nothing else corrects for age. Advantages are Dr.GRPO's, without a KL.",
        "We chose the setting on seed 12, whose runs are not kept. The sentences are predictions from before the "
        "runs. They say “falls” and “keeps the reward”; stale rollouts are judged by test EM.",
        "Made on an H200 in bf16. Half the rate, and seed 14 of TIS, score centering and IPO, were made on a CPU, from "
        "other initial checkpoints, which have .44 to .48.",
    ),
    not_run=(
        "A penalty with fresh rollouts at this rate: it may mend the rate, and not the age.",
        "Tests of seed 14 on the card, whose time ended after 43 to 48 batches.",
    ),
    claims=(
        Claim(
            where="the control: the same learning rate with rollouts of the present weights",
            says="With fresh rollouts plain GRPO learns and does not fall.",
            asks="it rises and never falls",
            test=judge.holds(FRESH.name),
        ),
        *_above(FRESH, OLD),
        *loses_nothing(YOUNGER.name, FRESH.name, where=WHERE, says=f"{YOUNGER.name} loses nothing."),
        *_above(PENALTIES[0], OLD),
        *_above(PENALTIES[2], OLD),
        *_above(CORRECTIONS[0], OLD),
        *_above(CORRECTIONS[1], OLD),
        Claim(
            where=WHERE,
            says="Displacement of correct rollouts turns before the reward drops.",
            asks="the 5-step mean of displacement/correct is below 0 before the reward drops",
            test=signs.displaced_before_drop(OLD.name),
        ),
        Claim(
            where="the same learning rate with rollouts of the present weights",
            says="At half the rate fresh rollouts learn and do not fall.",
            asks="it rises and never falls",
            test=judge.holds(SLOWER_FRESH.name),
        ),
        *_above(SLOWER_FRESH, SLOWER),
        *_above(SLOWER_PENALTIES[0], SLOWER),
        *_above(SLOWER_PENALTIES[1], SLOWER),
    ),
    picture=Figure("reward/mean", "Reward", (FRESH.name, *CURED[0][:2], CURED[0][3], *CURED[1][1:3])),
    figures=(
        *a.dynamics(
            NAMES, *CURED, metrics=("reward/mean", "displacement/correct", "likelihood/correct", "entropy/mean")
        ),
        *(Figure("rollout/searches", "Searches per rollout", arms) for arms in (NAMES, *CURED)),
        Figure("sampler/logprob_gap", "Log-prob of the sampler above the learner's, nats per token", NAMES),
        Figure("centering/drift", "Drift towards the sampler", NAMES),
        Figure("ratio/log_product", "ln of the product of a rollout's ratios", NAMES),
    ),
    short=FACTBOOK.short,
    drawn=FACTBOOK.drawn,
    first_seed=FACTBOOK.first_seed,
)
