"""The same recipe, another organism with every seed: how much of the death spiral was one organism's?"""

from __future__ import annotations

from dataclasses import replace

from holdfast.lab.experiments import arms as a
from holdfast.lab.experiments.death_spiral_claims import (
    ABLATION,
    AFTER,
    BEST,
    COURSE,
    FIRST_ACTION,
    SAPO_BEST,
    best,
    cure,
    ends_higher,
    no_surge,
    postpones_surge,
)
from holdfast.lab.values import Arm, Experiment, Figure

GRPO = a.GRPO.name


def _longer(arm: Arm) -> Arm:
    """What has fallen by step 100 has shown it; what is to hold goes on."""
    return replace(arm, overrides=(*arm.overrides, "--train.steps", "160"))


UNTRUNCATED = replace(a.PLAIN_SAMPLER, control=False)  # the control that must run here is that of the step
ARMS = (a.GRPO, a.RELIABLE, *map(_longer, (UNTRUNCATED, a.LENGTH_BASELINE, a.LLDS_FIXED, a.SAPO_FIXED)))
NAMES = tuple(arm.name for arm in ARMS)
UNEQUAL = ". Here at step 160, and plain GRPO at step 100"

EXPERIMENT = Experiment(
    name="organisms",
    title="Other organisms",
    shows="plain GRPO, controls and penalties where every seed has a world and a warm start of its own",
    recipe="flaky",
    arms=ARMS,
    minutes=15,
    notes=(
        "Every seed is an organism: its own people and questions, its own filler words, its own weights and scripts.",
        "The spread is that of organisms and of reinforcement learning together.",
        "GRPO and its control of the step have 100 steps, not the 80 of death-spiral: another organism takes another "
        "time to fall. What is to prevent the fall has 160.",
        "The penalties have the strength that the sweep of death-spiral chose on one organism; none is made here.",
        "Every seed begins with a warm start, which takes as long as a run and is in none of the times.",
    ),
    claims=(
        *COURSE,
        *FIRST_ACTION,
        a.SAME_STEP,
        a.OTHER_SAMPLER,
        a.OTHER_BASELINE,
        *cure(a.LLDS_FIXED.name, paper=a.LLDS_PAPER, where="Figure 6 and the tables of results, LLDS-A"),
        *cure(a.SAPO_FIXED.name, paper=a.SAPO_PAPER, where="Figure 1 and the main table"),
        best(a.LLDS_FIXED.name, paper=a.LLDS_PAPER, where=BEST),
        best(a.SAPO_FIXED.name, paper=a.SAPO_PAPER, where=SAPO_BEST),
        *ends_higher(a.LLDS_FIXED.name, GRPO, paper=a.LLDS_PAPER, where=AFTER + UNEQUAL, says="LLDS ends above GRPO."),
        *ends_higher(
            a.SAPO_FIXED.name, GRPO, paper=a.SAPO_PAPER, where=ABLATION + UNEQUAL, says="SAPO ends above GRPO."
        ),
        *map(postpones_surge, (a.LLDS_FIXED.name, a.SAPO_FIXED.name)),
        *map(no_surge, (a.LLDS_FIXED.name, a.SAPO_FIXED.name, UNTRUNCATED.name)),
    ),
    figures=(
        Figure("advantage/cut_mean", "Mean advantage where the sampler cuts", NAMES[:4]),
        Figure("sampler/mass_kept", "Probability mass the sampler keeps", NAMES[:4]),
        *a.dynamics(NAMES[:4], (GRPO, *NAMES[4:])),
        Figure("advantage/cut_mean", "Mean advantage where the sampler cuts, with penalties", (GRPO, *NAMES[4:])),
    ),
    settings=("--train.steps", "100"),
    drawn=("world.seed", "warm_start.seed"),
)
