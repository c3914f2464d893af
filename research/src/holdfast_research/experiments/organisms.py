"""The same recipe, another organism with every seed: how much of the death spiral was one organism's?"""

from __future__ import annotations

from dataclasses import replace

from holdfast_research.experiments import arms as a
from holdfast_research.experiments.death_spiral_claims import (
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
from holdfast_research.values import Experiment, Figure

GRPO = a.GRPO.name


UNTRUNCATED = replace(a.PLAIN_SAMPLER, control=False)  # the control that must run here is that of the step
ARMS = (a.GRPO, a.RELIABLE, UNTRUNCATED, a.LENGTH_BASELINE, a.LLDS_FIXED, a.SAPO_FIXED)
NAMES = tuple(arm.name for arm in ARMS)

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
        "All arms have 160 steps, not the 80 of death-spiral: another organism takes another time to fall, and what "
        "falls may come back.",
        "The penalties have the strength that the sweep of death-spiral chose on one organism; none is made here.",
        "Every seed begins with a warm start, which takes as long as a run and is in none of the times.",
    ),
    claims=(
        *COURSE,
        *FIRST_ACTION,
        a.SAME_STEP,
        a.OTHER_SAMPLER,
        a.OTHER_BASELINE,
        *cure(a.LLDS_FIXED.name, paper=a.LLDS_PAPER, where="Figure 6 and the tables of results (v2), LLDS-A"),
        *cure(a.SAPO_FIXED.name, paper=a.SAPO_PAPER, where="Figure 1 and the main table"),
        best(a.LLDS_FIXED.name, paper=a.LLDS_PAPER, where=BEST),
        best(a.SAPO_FIXED.name, paper=a.SAPO_PAPER, where=SAPO_BEST),
        *ends_higher(a.LLDS_FIXED.name, GRPO, paper=a.LLDS_PAPER, where=AFTER, says="LLDS ends above GRPO."),
        *ends_higher(a.SAPO_FIXED.name, GRPO, paper=a.SAPO_PAPER, where=ABLATION, says="SAPO ends above GRPO."),
        *map(postpones_surge, (a.LLDS_FIXED.name, a.SAPO_FIXED.name)),
        *map(no_surge, (a.LLDS_FIXED.name, a.SAPO_FIXED.name, UNTRUNCATED.name)),
    ),
    figures=(
        Figure("advantage/tail_mean", "Mean advantage where the sampler cuts", NAMES[:4]),
        Figure("sampler/mask_mass", "Probability mass the sampler keeps", NAMES[:4]),
        *a.dynamics(NAMES[:4], (GRPO, *NAMES[4:])),
        Figure("advantage/tail_mean", "Mean advantage where the sampler cuts, with penalties", (GRPO, *NAMES[4:])),
    ),
    settings={"train.steps": 160},
    drawn=("world.seed", "warm_start.seed"),
)
