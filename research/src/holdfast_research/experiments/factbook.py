"""A real pretrained model learns to search real prose: plain GRPO and the penalties from the same starts."""

from __future__ import annotations

from dataclasses import replace

from holdfast_research import judge
from holdfast_research.experiments import arms as a
from holdfast_research.experiments.death_spiral_claims import ends_higher
from holdfast_research.values import Claim, Experiment, Figure

PAPERS_COEF = replace(
    a.LLDS_FIXED, name="LLDS action, 0.2", settings={**a.LLDS_FIXED.settings, "loss.penalty.coef": 0.2}
)
"""With the paper's λ."""
ARMS = (a.GRPO, a.LLDS_FIXED, PAPERS_COEF, a.SAPO_FIXED)
NAMES = tuple(arm.name for arm in ARMS)


WHERE = "a pretrained model, real prose"


def _learns(arm: str) -> Claim:
    return Claim(
        where=WHERE,
        says=f"{arm} teaches SmolLM2-135M more than its warm start did.",
        asks="sampled test EM rises by .20 or more over that of the initial checkpoint",
        test=judge.gains(arm, 0.2),
    )


EXPERIMENT = Experiment(
    name="factbook",
    title="A real model on real text",
    shows="does SmolLM2-135M learn to search the World Factbook, with plain GRPO and with the penalties?",
    recipe="factbook",
    arms=ARMS,
    minutes=30,
    notes=(
        "The passages are real prose, and the questions are made from facts. 24 batches of 48 rollouts, four optimizer "
        "steps each, with fresh rollouts and an untruncated sampler.",
        "Every seed has its own initial checkpoint, which its arms share. The recipe was chosen on dev questions and "
        "on seeds up to 12.",
    ),
    claims=(
        *map(_learns, NAMES),
        *(
            claim
            for arm in NAMES[1:]
            for claim in ends_higher(arm, a.GRPO.name, where=WHERE, says=f"{arm} ends above plain GRPO.")
        ),
    ),
    picture=Figure("reward/mean", "Reward", NAMES),
    figures=(
        Figure("reward/mean", "Reward", NAMES),
        Figure("reward/em", "Exact match of training rollouts", NAMES),
        Figure("rollout/searches", "Searches per rollout", NAMES),
        Figure("likelihood/correct", "Likelihood of correct rollouts, nats per token", NAMES),
        Figure("displacement/correct", "Displacement of correct rollouts, nats per token", NAMES),
        Figure("entropy/mean", "Entropy, nats per token", NAMES),
        Figure("penalty/active_fraction", "Tokens that the penalty acts on, share", NAMES[1:]),
    ),
    not_run=("Stale rollouts, which [another page](real-age.md) has, and more than 24 batches on several seeds.",),
    short={
        "warm_start.steps": 2,
        "train.steps": 1,
        "train.questions": 2,
        "train.group_size": 2,
        "train.optimizer_steps_per_rollout": 2,
        "eval.start": False,
    },
    drawn=("warm_start.seed",),
    first_seed=13,
)
