"""The paper's λ: how weak is too weak."""

from __future__ import annotations

from holdfast_research import judge
from holdfast_research.experiments import arms as a
from holdfast_research.experiments.death_spiral_claims import FALL, proposition_1, remedy
from holdfast_research.values import Arm, Claim, Experiment

VALUES = (0.01, 0.1, 0.2, 0.5, 1.0)
ARMS = tuple(Arm(f"λ = {value}", {**a.LLDS_ACTION.settings, "loss.penalty.coef": value}) for value in VALUES)
V1 = Arm("λ = 0.1, response gate", {**a.llds("response"), "loss.penalty.coef": 0.1})

EXPERIMENT = Experiment(
    name="coefficient",
    title="The coefficient of LLDS",
    shows="how weak is too weak a λ?",
    recipe="flaky",
    arms=(a.GRPO, a.RELIABLE, *ARMS, V1),
    minutes=4.5,
    notes=("λ is over the preserved tokens, as in the paper's equation. GRPO is λ = 0.",),
    claims=(
        Claim(
            paper=a.LLDS_PAPER,
            where="Figure 8 (v1), λ = 0",
            says="Without the penalty training collapses.",
            asks=FALL,
            test=judge.falls(a.GRPO.name),
        ),
        Claim(
            paper=a.LLDS_PAPER,
            where="Figure 8 (v1), λ = 0.01",
            says="λ = 0.01 is too weak: it delays the collapse and does not prevent it.",
            asks="it falls too, and drops 5 steps later than without",
            test=judge.falls_after_delay("λ = 0.01", a.GRPO.name),
        ),
        remedy(V1.name, paper=a.LLDS_PAPER, where="Figure 8 (v1), λ = 0.1, with v1's gate"),
        remedy("λ = 0.1", where="the same with v2's gate, the action"),
        remedy("λ = 0.2", paper=a.LLDS_PAPER, where="Figure 8 (v2), λ = 0.2"),
        proposition_1(V1.name),
        *(remedy(f"λ = {value}", where=f"beyond the paper's values: λ = {value}") for value in (0.5, 1.0)),
    ),
    figures=a.dynamics(
        (a.GRPO.name, *(arm.name for arm in ARMS)),
        (a.GRPO.name, a.RELIABLE.name, "λ = 0.2", V1.name),
        metrics=("reward/mean", "likelihood/correct", "displacement/correct", "entropy/mean"),
    ),
)
