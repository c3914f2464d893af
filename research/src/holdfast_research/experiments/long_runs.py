"""What holds for 80 steps, over 300: each claim is a prediction made before the runs."""

from __future__ import annotations

from holdfast_research import judge
from holdfast_research.experiments import arms as a
from holdfast_research.experiments.rivals import CENTRED
from holdfast_research.values import Claim, Experiment, Figure

GRPO = a.GRPO.name
TRIED = (a.GRPO, CENTRED, a.SAMPLING_MASK, a.LLDS_FIXED, a.SAPO_FIXED)
NAMES = tuple(arm.name for arm in TRIED)


def _holds(arm: str, why: str) -> Claim:
    return Claim(
        where="300 steps",
        says=f"{arm} holds for 300 steps: {why}.",
        asks="it rises and never falls, on the seeds on which plain GRPO fell",
        test=judge.holds_where(arm, GRPO),
    )


EXPERIMENT = Experiment(
    name="long-runs",
    title="Long runs",
    shows="whether what holds for 80 steps holds for 300",
    recipe="flaky",
    arms=(*TRIED, a.RELIABLE),
    minutes=25,
    settings={"train.steps": 300},
    notes=(
        "The sentences are predictions, written before the runs. The sampling mask and score centering remove the "
        "drift out of what the sampler can draw. The penalties leave it and give back likelihood where it was lost, so "
        "they only slow it.",
    ),
    claims=(
        Claim(
            where="300 steps",
            says="Plain GRPO falls and does not come back.",
            asks="it falls and ends below its fall",
            test=judge.stays_down(GRPO),
        ),
        _holds(a.SAMPLING_MASK.name, "nothing drives probability out of what the sampler can draw"),
        _holds(CENTRED.name, "it subtracts what does"),
        _holds(a.LLDS_FIXED.name, "it restores lost likelihood as fast as it is lost"),
        Claim(
            where="300 steps",
            says="SAPO only delays the fall: its KL acts on positive tokens, and the drift is of all.",
            asks="the reward falls within 300 steps, on the seeds on which that of plain GRPO did",
            test=judge.falls(a.SAPO_FIXED.name),
        ),
        a.SAME_STEP,
    ),
    figures=(
        *a.dynamics(NAMES, metrics=("reward/mean", "displacement/correct", "entropy/mean")),
        Figure("sampler/mask_mass", "Probability of what the sampler can draw", NAMES),
    ),
)
