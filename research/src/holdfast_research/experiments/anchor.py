"""One optimizer step per rollout batch, where a penalty needs an older policy to compare with."""

from __future__ import annotations

from dataclasses import replace

from holdfast_research import judge
from holdfast_research.experiments import arms as a
from holdfast_research.experiments.death_spiral_claims import FALL, no_surge, remedy
from holdfast_research.values import Arm, Claim, Experiment

ANCHOR = {"train.anchor_every": 1}
LLDS = Arm("LLDS action, anchor", {**a.LLDS_FIXED.settings, **ANCHOR})
OLDER = Arm("LLDS action, anchor every 5", {**a.LLDS_FIXED.settings, "train.anchor_every": 5})
SAPO = Arm("SAPO, anchor", {**a.SAPO_FIXED.settings, **ANCHOR})
REMEDIES = (LLDS, OLDER, SAPO)
GRPO = a.GRPO.name
NAMES = (GRPO, *(arm.name for arm in REMEDIES), a.RELIABLE.name)

EXPERIMENT = Experiment(
    name="anchor",
    title="One optimizer step per rollout, with an anchor",
    shows="a penalty at K = 1, where it needs an older policy to compare with: one batch older, or up to five",
    recipe="flaky",
    arms=(a.GRPO, a.RELIABLE, *REMEDIES),
    minutes=3,
    notes=(
        "The learning rate is four times the recipe's. With a tenth of the optimizer steps, plain GRPO takes too long "
        "to fall otherwise.",
        "At K = 1 old and new policy are equal. Without an anchor both penalties are zero, and the arms would be GRPO.",
    ),
    claims=(
        Claim(
            where="the collapse at K = 1",
            says="Plain GRPO falls with one optimizer step per rollout batch too.",
            asks=FALL,
            test=judge.falls(GRPO),
        ),
        *(
            claim
            for arm, paper, where in (
                (LLDS, a.LLDS_PAPER, "equation 4, whose old policy is that of the step before"),
                (OLDER, "control", "README of the code: an older snapshot"),
                (SAPO, "control", "SAPO has no anchor in its paper"),
            )
            for claim in (*remedy(arm.name, paper=paper, where=where), no_surge(arm.name))
        ),
        replace(a.SAME_STEP, where="the same with a search that never fails"),
    ),
    figures=a.dynamics(NAMES, metrics=("reward/mean", "displacement/correct", "entropy/mean", "likelihood/correct")),
    settings={"train.optimizer_steps_per_rollout": 1, "train.lr": 6e-4, "train.steps": 60},
)
