"""The same recipe, another testbed with every seed: how much of the death spiral was one testbed's?"""

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
    ends_higher,
    remedy,
)
from holdfast_research.values import Experiment, Figure

GRPO = a.GRPO.name


UNTRUNCATED = replace(a.PLAIN_SAMPLER, control=False)  # the control that must run here is that of the step
ARMS = (a.GRPO, a.RELIABLE, UNTRUNCATED, a.LENGTH_BASELINE, a.LLDS_FIXED, a.SAPO_FIXED)
NAMES = tuple(arm.name for arm in ARMS)

EXPERIMENT = Experiment(
    name="testbeds",
    title="Other testbeds",
    shows="does the same happen where every seed has its own world and initial checkpoint?",
    recipe="flaky",
    arms=ARMS,
    minutes=15,
    notes=(
        "Every seed is a testbed, with its own people and questions, filler words, weights and scripts. So the "
        "spread comes from testbeds and reinforcement learning together.",
        "160 batches, where death-spiral has 80. The penalties have λ = 1 and γ = 1, which the sweep of death-spiral "
        "chose on one testbed.",
    ),
    claims=(
        *COURSE,
        *FIRST_ACTION,
        a.SAME_STEP,
        a.OTHER_SAMPLER,
        a.OTHER_BASELINE,
        remedy(a.LLDS_FIXED.name, paper=a.LLDS_PAPER, where="Figure 6 and the tables of results (v2), LLDS-A"),
        remedy(a.SAPO_FIXED.name, paper=a.SAPO_PAPER, where="Figure 1 and the main table"),
        best(a.LLDS_FIXED.name, paper=a.LLDS_PAPER, where=BEST),
        best(a.SAPO_FIXED.name, paper=a.SAPO_PAPER, where=SAPO_BEST),
        *ends_higher(a.LLDS_FIXED.name, GRPO, paper=a.LLDS_PAPER, where=AFTER, says="LLDS ends above GRPO."),
        *ends_higher(a.SAPO_FIXED.name, GRPO, paper=a.SAPO_PAPER, where=ABLATION, says="SAPO ends above GRPO."),
    ),
    picture=Figure("reward/mean", "Reward", NAMES),
    figures=(
        Figure("advantage/tail_mean", "Mean advantage where the sampler cuts", NAMES[:4]),
        Figure("sampler/mask_mass", "Probability mass the sampler keeps", NAMES[:4]),
        *a.dynamics(NAMES[:4], (GRPO, *NAMES[4:])),
        Figure("advantage/tail_mean", "Mean advantage where the sampler cuts, with penalties", (GRPO, *NAMES[4:])),
    ),
    settings={"train.steps": 160},
    drawn=("world.seed", "warm_start.seed"),
)
