"""One optimizer step per rollout batch, where a penalty needs an older policy to compare with."""

from __future__ import annotations

from dataclasses import replace

from holdfast_research import judge
from holdfast_research.experiments import arms as a
from holdfast_research.experiments.death_spiral_claims import FALL, remedy
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
    shows="does a penalty help at K = 1, compared with a policy one batch older, or up to five?",
    recipe="flaky",
    arms=(a.GRPO, a.RELIABLE, *REMEDIES),
    minutes=3,
    notes=(
        "60 batches at four times the recipe's learning rate, because there are a tenth of the optimizer steps.",
        "At K = 1 old and new policy are equal, so without an anchor both penalties are zero.",
    ),
    claims=(
        Claim(
            where="the collapse at K = 1",
            says="Plain GRPO falls with one optimizer step per rollout batch too.",
            asks=FALL,
            test=judge.falls(GRPO),
        ),
        remedy(LLDS.name, paper=a.LLDS_PAPER, where="equation 4, whose old policy is that of the step before"),
        remedy(OLDER.name, where="README of the code: an older snapshot"),
        remedy(SAPO.name, where="SAPO has no anchor in its paper"),
        replace(a.SAME_STEP, where="the same with a search that never fails"),
    ),
    figures=a.dynamics(NAMES, metrics=("reward/mean", "displacement/correct", "entropy/mean", "likelihood/correct")),
    settings={"train.optimizer_steps_per_rollout": 1, "train.lr": 6e-4, "train.steps": 60},
)
