"""Stale rollouts, and what else helps against them: another old policy, a smaller step, other methods. Each claim is a
prediction made before the runs."""

from __future__ import annotations

from dataclasses import replace

from holdfast_research import judge
from holdfast_research.experiments import arms as a
from holdfast_research.experiments import mismatch
from holdfast_research.experiments.factbook import PAPERS_COEF
from holdfast_research.experiments.real_age import EXPERIMENT as REAL_AGE
from holdfast_research.experiments.real_old import FRESH, OLD, old
from holdfast_research.methods import NO_PENALTY
from holdfast_research.values import Arm, Claim, Figure

SAPO_PAPER = replace(a.SAPO_FIXED, name="SAPO, 0.1", settings={**a.SAPO_FIXED.settings, "loss.penalty.coef": 0.1})
"""With the paper's γ."""
SAMPLER = old(8, mismatch.TO_SAMPLER)
SAMPLER_LLDS = old(8, mismatch.BOTH)
HALF = Arm("8 batches old, half the rate", {**OLD.settings, "train.lr": 1e-5})
LLDS = old(8, PAPERS_COEF)
SAPO = old(8, SAPO_PAPER)
FRESH_LLDS = Arm(f"fresh, {PAPERS_COEF.name}", {**NO_PENALTY, **PAPERS_COEF.settings})
M2PO, DECOUPLED = old(8, mismatch.M2PO), old(8, mismatch.DECOUPLED)
OLD_TIS = old(8, mismatch.TIS)
QUARTER = Arm("8 batches old, a quarter of the rate", {**OLD.settings, "train.lr": 5e-6})
PENALTIES, RIVALS = (LLDS, SAPO, SAMPLER_LLDS, FRESH_LLDS), (M2PO, OLD_TIS, DECOUPLED)
ARMS = (OLD, SAMPLER, HALF, LLDS, FRESH, FRESH_LLDS, M2PO, SAPO, SAMPLER_LLDS, OLD_TIS, DECOUPLED, QUARTER)
NAMES = tuple(
    tuple(arm.name for arm in arms)
    for arms in ((FRESH, OLD, SAMPLER, HALF, QUARTER), (OLD, *PENALTIES), (OLD, SAMPLER, *RIVALS))
)
WHERE = "a pretrained model, real prose, the recipe's own learning rate"


def _above(arm: Arm, other: Arm, why: str) -> Claim:
    return Claim(
        where=WHERE,
        says=f"{arm.name} ends above {other.name}: {why}.",
        asks="sampled exact match on the test questions",
        test=judge.ends_higher(arm.name, other.name),
    )


EXPERIMENT = replace(
    REAL_AGE,
    name="old-policy",
    title="Which old policy, which step",
    shows="what else helps at eight batches: ratios to the sampler, a smaller step, other methods?",
    arms=ARMS,
    minutes=60,
    settings={**REAL_AGE.settings, "eval.start": True, "eval.every": 12, "eval.questions": 100},
    notes=(
        "The setting of [real-age](real-age.md) on other seeds and a CPU: four questions a batch, four optimizer "
        "steps, 48 batches. Seed 19 is in float32, seed 20 in bf16 on another CPU.",
        "Arms of one seed share their warm start, and the test questions are the same for all. So differences are of "
        "pairs of answers.",
        "The predictions were written before any run of these seeds had begun; those on M2PO, TIS and decoupled PPO "
        "came after the others.",
    ),
    claims=(
        _above(FRESH, OLD, "eight batches are too old, on these seeds too"),
        _above(LLDS, OLD, "the penalty keeps what stale rollouts take"),
        _above(SAMPLER, OLD, "ratios to the sampler see the age of a rollout, and the clip acts on it"),
        _above(FRESH, SAMPLER, "that clip stops tokens which fresh rollouts would have taught"),
        _above(HALF, OLD, "with half the step, weights differ half as much in eight batches"),
        _above(LLDS, HALF, "a penalty is more than a smaller step"),
        _above(SAPO, OLD, "its KL acts at the paper's coefficient too"),
        _above(LLDS, SAPO, "but that coefficient is a tenth of what was enough"),
        _above(FRESH, FRESH_LLDS, "a penalty costs something (expected not to be shown, at the paper's coefficient)"),
        _above(M2PO, OLD, "it drops the tokens that make stale rollouts dangerous, as its paper says"),
        _above(LLDS, M2PO, "what is lost is likelihood of correct rollouts, which no mask gives back"),
        _above(DECOUPLED, OLD, "its weights are to the sampler"),
        _above(LLDS, OLD_TIS, "at twice the rate TIS was not enough"),
        _above(SAMPLER, SAMPLER_LLDS, "two remedies are too much (expected not to be shown either)"),
    ),
    figures=(
        *a.dynamics(
            *NAMES,
            metrics=("reward/mean", "displacement/correct", "likelihood/correct", "entropy/mean"),
        ),
        *(Figure("eval/em", "Exact match on dev questions, sampled", arms) for arms in NAMES),
        Figure("ratio/log_product", "ln of the product of a rollout's ratios", (OLD.name, SAMPLER.name)),
    ),
    picture=Figure("reward/mean", "Reward", NAMES[0]),
    not_run=(
        "The same at one batch and with fresh rollouts, a larger model, and several learning rates for each method.",
    ),
    first_seed=19,
)
