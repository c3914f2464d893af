"""SAPO's threshold and its two conditions, one added after the other as in its ablation."""

from __future__ import annotations

from holdfast_research import judge, methods, signs
from holdfast_research.experiments import arms as a
from holdfast_research.experiments.death_spiral_claims import FALL, SAMPLED, ends_higher, proposition_1, remedy
from holdfast_research.methods import MEAN_OF_MEANS, NO_PENALTY, Settings
from holdfast_research.values import Arm, Claim, Experiment, Figure

TAUS = (0.6, 0.8, 1.0, 1.2)
ARMS = tuple(Arm(f"τ = {tau}", {**a.SAPO_FIXED.settings, "loss.penalty.tau": tau}) for tau in TAUS)
PAPERS_GAMMA = Arm("γ = 0.1", {**a.SAPO_FIXED.settings, "loss.penalty.coef": 0.1})
# No ratio is above 1e6, which removes the ratio's condition.
_ANY_RATIO = {"loss.penalty.tau": 1e6}
_ANY_ADVANTAGE = {"loss.penalty.preserve": "all"}
UNCONDITIONAL = Arm("no condition", {**a.SAPO_FIXED.settings, **_ANY_RATIO, **_ANY_ADVANTAGE})
RATIO_ONLY = Arm("ratio condition alone", {**a.SAPO_FIXED.settings, **_ANY_ADVANTAGE})
NO_RATIO = Arm("no ratio condition", {**a.SAPO_FIXED.settings, **_ANY_RATIO})
CODE = Arm("A ≥ 0 (code)", {**a.SAPO_FIXED.settings, "loss.penalty.preserve": "nonnegative"})
# Half the questions, so that a batch has as many rollouts as those of the other arms.
_PUBLISHED: Settings = {
    **MEAN_OF_MEANS,
    "reward.em": 0.0,
    "reward.f1": 1.0,
    "train.questions": 16,
    "train.group_size": 10,
    "loss.kl_coef": 0.001,
    "loss.entropy_coef": 0.001,
}
PUBLISHED_GRPO = Arm("GRPO, F1, ten rollouts", {**NO_PENALTY, **_PUBLISHED})
PUBLISHED = Arm("SAPO as published", {**methods.SAPO, **_PUBLISHED, "loss.penalty.coef": 0.1})
"""The penalty divided as the policy loss, over A > 0, γ = 0.1."""

EXPERIMENT = Experiment(
    name="sapo",
    title="SAPO: threshold and conditions",
    shows="what do SAPO's threshold τ, the paper's γ, and each of its conditions do?",
    recipe="flaky",
    arms=(
        a.GRPO,
        a.RELIABLE,
        *ARMS,
        PAPERS_GAMMA,
        UNCONDITIONAL,
        RATIO_ONLY,
        NO_RATIO,
        CODE,
        PUBLISHED_GRPO,
        PUBLISHED,
    ),
    minutes=4.5,
    notes=(
        "γ = 1 over the preserved tokens, which the sweep of death-spiral chose; the paper has 0.1.",
        "SAPO as published, and GRPO beside it, have the paper's reward (token F1), groups of ten, mean over "
        "sequences, KL and entropy bonus. They share world, model and learning rate with the other arms.",
    ),
    picture=Figure(
        "reward/mean", "Reward", (a.GRPO.name, "τ = 1.0", PAPERS_GAMMA.name, UNCONDITIONAL.name, RATIO_ONLY.name)
    ),
    claims=(
        Claim(
            paper=a.SAPO_PAPER,
            where="Figure 1 and Definition 1",
            says="The importance ratios of rollouts drift towards 0 before GRPO fails.",
            asks="the mean of ln ∏ r is below ln 0.5 before the reward drops",
            test=signs.ratio_drifts_before_drop(a.GRPO.name),
        ),
        proposition_1(PAPERS_GAMMA.name),
        remedy("τ = 1.0", paper=a.SAPO_PAPER, where="Figure 1"),
        remedy(PAPERS_GAMMA.name, paper=a.SAPO_PAPER, where="Figure 1, at the paper's own γ"),
        Claim(
            paper=a.SAPO_PAPER,
            where="Figure 1, with the paper's reward, group and means",
            says="Plain GRPO collapses in the published setting.",
            asks=FALL,
            test=judge.falls(PUBLISHED_GRPO.name),
        ),
        remedy(
            PUBLISHED.name, other=PUBLISHED_GRPO.name, paper=a.SAPO_PAPER, where="Figure 1, in the published setting"
        ),
        *ends_higher(
            PUBLISHED.name,
            PUBLISHED_GRPO.name,
            paper=a.SAPO_PAPER,
            where="ablation at five rollouts: GRPO .388, SAPO .429; table of results at ten: SAPO .442",
            says="SAPO as published ends above GRPO in the same setting.",
        ),
        *(
            Claim(
                paper=a.SAPO_PAPER,
                where=f"τ sweep: 1.0 .442, {tau} {em}",
                says=f"τ = 1.0 ends above τ = {tau}.",
                asks=SAMPLED,
                test=judge.ends_higher("τ = 1.0", f"τ = {tau}"),
            )
            for tau, em in (("0.6", ".418"), ("0.8", ".425"), ("1.2", ".434"))
        ),
        *(
            Claim(
                paper=a.SAPO_PAPER, where=f"ablation: {where}", says=says, asks=SAMPLED, test=judge.ends_higher(*arms)
            )
            for where, says, arms in (
                (
                    "GRPO .388, with an unconditional log-ratio term .398",
                    "A log-ratio term on every token ends above plain GRPO.",
                    (UNCONDITIONAL.name, a.GRPO.name),
                ),
                (
                    "unconditional .398, with the ratio's condition .417",
                    "The ratio's condition ends above none.",
                    (RATIO_ONLY.name, UNCONDITIONAL.name),
                ),
                (
                    "the ratio's condition .417, with that on the advantage .429",
                    "Both conditions end above the ratio's alone.",
                    ("τ = 1.0", RATIO_ONLY.name),
                ),
            )
        ),
        Claim(
            where="next to the ablation, whose row without the ratio's condition has none on the advantage either",
            says="The ratio's condition helps where only A > 0 is preserved, too.",
            asks=SAMPLED,
            test=judge.ends_higher("τ = 1.0", NO_RATIO.name),
        ),
        Claim(
            paper=a.SAPO_PAPER,
            where="equation 11 against the released code",
            says="The paper's A > 0 ends above the code's A ≥ 0.",
            asks=SAMPLED,
            test=judge.ends_higher("τ = 1.0", CODE.name),
        ),
    ),
    figures=a.dynamics(
        (a.GRPO.name, *(arm.name for arm in ARMS)),
        (a.GRPO.name, "τ = 1.0", NO_RATIO.name, CODE.name, a.RELIABLE.name),
        (a.GRPO.name, "τ = 1.0", PAPERS_GAMMA.name, UNCONDITIONAL.name, RATIO_ONLY.name),
        metrics=("reward/mean", "ratio/log_product", "clip/fraction", "displacement/correct", "entropy/mean"),
    ),
)
