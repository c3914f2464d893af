"""What a sceptic tries before a penalty, on the testbed where LLDS and SAPO hold."""

from __future__ import annotations

from holdfast_research.experiments import arms as a
from holdfast_research.experiments.death_spiral_claims import COLLAPSES, proposition_1, remedy
from holdfast_research.methods import GSPO, MEAN_OF_MEANS, NO_PENALTY, Settings
from holdfast_research.values import Arm, Experiment, Figure

PPO: Settings = {
    **NO_PENALTY,
    "loss.advantage": "gae",
    "critic.lr": 1.5e-3,
    "train.questions": 160,
    "train.group_size": 1,
}
"""As many rollouts as 32 groups of five, and ten times the policy's learning rate for the critic, as published."""
GEO_RS: Settings = {
    **NO_PENALTY,
    "loss.methods.sampler_weights.level": "sequence",
    "loss.methods.sampler_weights.aggregate": "mean",
    "loss.methods.sampler_weights.keep": "reject",
    "loss.methods.sampler_weights.low": 0.85,
    "loss.methods.sampler_weights.high": 1.15,
}
"""The published bounds, 0.99 and 1.01, leave out every rollout of this sampler: it keeps 0.86 of the probability on the
geometric mean of a rollout's tokens."""

GSPO_ARM = a.fixed(Arm("GSPO", {**NO_PENALTY, **GSPO}, a.GSPO_CLIPS))
METHODS = {
    "PPO": ("the baseline of both LLDS tables, said to be more stable", PPO),
    "NTHR": ("arXiv 2505.18830", {**NO_PENALTY, "loss.methods.nthr.on": True}),
    "SimpleTIR": ("arXiv 2509.02479", {**NO_PENALTY, "loss.methods.drop_void.on": True}),
    "DPPO": ("arXiv 2602.04879", {**NO_PENALTY, "loss.surrogate": "dppo"}),
    "Geo-RS": ("weights for a sampler that is not the old policy, bounds of 0.85 and 1.15", GEO_RS),
    "CISPO": (
        "arXiv 2506.13585",
        {**NO_PENALTY, "loss.surrogate": "cispo", "loss.clip_low": 1.0, "loss.clip_high": 4.0},
    ),
    "GSPO by action": (
        "GSPO with one ratio for each model turn, at GSPO's clip",
        {**NO_PENALTY, **MEAN_OF_MEANS, **a.GSPO_CLIP, "loss.ratio": "action"},
    ),
    "off-policy mask": (
        "DeepSeek-V3.2, arXiv 2512.02556",
        {**NO_PENALTY, "loss.methods.off_policy_mask.threshold": 0.5},
    ),
    "positive only": ("rollouts with A < 0 left out", {**NO_PENALTY, "loss.methods.negative_weight.weight": 0.0}),
    "first actions left out": (
        "section 5.3 of LLDS, which proposes it",
        {**NO_PENALTY, "loss.methods.drop_first_actions.on": True},
    ),
}
ARMS = tuple(Arm(name, settings) for name, (_, settings) in METHODS.items())
PENALTIES = (a.LLDS_FIXED, a.SAPO_FIXED)
CONTROLS = (a.GRPO, a.RELIABLE, a.PLAIN_SAMPLER, a.SAMPLING_MASK)
GRPO = a.GRPO.name
NAMES = tuple(METHODS)

EXPERIMENT = Experiment(
    name="remedies",
    title="Remedies of others",
    shows="do PPO, NTHR, SimpleTIR, DPPO and others prevent the fall, next to LLDS and SAPO?",
    recipe="flaky",
    arms=(*CONTROLS, *PENALTIES, a.LENGTH_BASELINE, GSPO_ARM, *ARMS),
    minutes=8,  # what falls has long rollouts
    notes=(
        "Each remedy has the constants of its source, chosen for other models. LLDS and SAPO were swept and the others "
        "were not, so they do not compare on equal terms.",
        "PPO has 160 questions with one rollout each, where the others have 32 with five. Its critic starts as a copy "
        "of the policy.",
        "Geo-RS has wider bounds than the published 0.99 and 1.01, which left out every rollout here.",
    ),
    claims=(
        COLLAPSES,
        proposition_1("NTHR"),
        *(remedy(name, where=where) for name, (where, _) in METHODS.items()),
    ),
    picture=Figure("reward/mean", "Reward", (GRPO, *NAMES[:5])),
    figures=a.dynamics(
        (GRPO, *NAMES[:5]),
        (GRPO, *NAMES[5:]),
        metrics=(
            *("reward/mean", "displacement/correct", "entropy/mean", "rollout/length"),
            *("isdd/positive/below_half", "rollout/invalid_fraction"),
        ),
    ),
)
