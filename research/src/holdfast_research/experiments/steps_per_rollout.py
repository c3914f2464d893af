"""Optimizer steps per rollout batch: the same YAML means 10 in one code base and 2 in another."""

from __future__ import annotations

from holdfast_research import judge
from holdfast_research.experiments import arms as a
from holdfast_research.experiments.death_spiral_claims import FALL, remedy
from holdfast_research.methods import NO_PENALTY, Settings
from holdfast_research.values import Arm, Claim, Experiment

PENALISED = (2, 5, 10, 20)
"""At K = 1 the policy equals the old one, so a penalty is zero, and the recipe is refused."""
STEPS = (1, *PENALISED)


def _steps(k: int) -> Settings:
    return {"train.optimizer_steps_per_rollout": k}


def _name(method: str, k: int) -> str:
    return f"{method}, K = {k}"


GRPO = tuple(Arm(_name("GRPO", k), {**NO_PENALTY, **_steps(k)}, control=k in PENALISED) for k in STEPS)
LLDS = tuple(Arm(_name("LLDS", k), {**a.LLDS_FIXED.settings, **_steps(k)}) for k in PENALISED)
SAPO = tuple(Arm(_name("SAPO", k), {**a.SAPO_FIXED.settings, **_steps(k)}) for k in PENALISED)
NAMES = tuple(tuple(arm.name for arm in arms) for arms in (GRPO, LLDS, SAPO))

EXPERIMENT = Experiment(
    name="steps-per-rollout",
    title="Optimizer steps per rollout",
    shows="what do K = 1, 2, 5, 10 and 20 optimizer steps per rollout batch do?",
    recipe="flaky",
    arms=(*GRPO, *LLDS, *SAPO, a.RELIABLE),
    minutes=5,
    notes=(
        "K changes two things at once: how far the policy moves on one rollout batch, and how large the mini-batches "
        "are, since each rollout is used once. The learning rate is the same for all K.",
    ),
    claims=(
        Claim(
            paper=a.LLDS_PAPER,
            where="appendix on training (v2; 512 questions × 5, mini-batches of 256: K = 10)",
            says="Plain GRPO collapses at the published K = 10.",
            asks=FALL,
            test=judge.falls("GRPO, K = 10"),
        ),
        Claim(
            where="K = 2, which the same configuration means in current verl",
            says="At K = 2 plain GRPO keeps its reward.",
            asks="it holds",
            test=judge.holds("GRPO, K = 2"),
        ),
        *(
            Claim(
                where="other than the published K",
                says=f"At K = {k} plain GRPO falls.",
                asks=FALL,
                test=judge.falls(_name("GRPO", k)),
            )
            for k in STEPS
            if k != 10
        ),
        remedy(
            "LLDS, K = 10",
            paper=a.LLDS_PAPER,
            where="README of the code: old must differ from new",
            other="GRPO, K = 10",
        ),
        remedy("LLDS, K = 20", where="beyond the published K", other="GRPO, K = 20"),
        Claim(
            where="if drift within a rollout batch is what counts",
            says="More steps drift further: at K = 20 plain GRPO drops earlier than at K = 5.",
            asks="the reward of K = 5 drops 5 steps later or never",
            test=judge.delays("GRPO, K = 5", "GRPO, K = 20"),
        ),
    ),
    figures=a.dynamics(*NAMES, metrics=("reward/mean", "displacement/correct", "entropy/mean", "ratio/log_product")),
)
