"""A pretrained model at its recipe's own rate, with rollouts that are fresh, and one, four and eight batches old. Each
claim is a prediction made before the runs."""

from __future__ import annotations

from dataclasses import replace

from holdfast_research import judge
from holdfast_research.experiments import arms as a
from holdfast_research.experiments.death_spiral_claims import ends_higher
from holdfast_research.experiments.real_old import EXPERIMENT as REAL_OLD
from holdfast_research.experiments.real_old import FRESH, OLD, PENALTIES, YOUNGER, old
from holdfast_research.values import Claim, Figure

YOUNGEST = old(1)
AGES = (FRESH, YOUNGEST, YOUNGER, OLD)
NAMES = tuple(arm.name for arm in AGES)
CURED = tuple(arm.name for arm in (OLD, *PENALTIES))
WHERE = "a pretrained model, real prose, the recipe's own learning rate"


def _above(arm: str, other: str, why: str) -> tuple[Claim, Claim]:
    return ends_higher(arm, other, where=WHERE, says=f"{arm} ends above {other}: {why}.")


EXPERIMENT = replace(
    REAL_OLD,
    name="real-age",
    title="How old rollouts may be",
    shows="how many batches old may rollouts be for SmolLM2-135M at its recipe's rate, and do penalties help at eight?",
    arms=(*AGES, *PENALTIES),
    minutes=55,
    settings={**REAL_OLD.settings, "train.lr": 2e-5},
    notes=(
        "The recipe of [factbook](factbook.md) with four questions a batch: 48 batches of 24 rollouts, four optimizer "
        "steps each (K = 4), each of the six rollouts of one question. Rollouts come from weights so many batches old, "
        "answers from those that learn.",
        "The old policy is recomputed, and nothing else corrects for age: verl's V1 `separate_async` left at its "
        "defaults, at its limit. Advantages are Dr.GRPO's, without a KL or an entropy bonus.",
        "The sentences are predictions, written before these runs. [Other seeds](real-old.md) were known fresh, and at "
        "eight batches with and without LLDS at 1.",
        "Made on an H100 in bf16. The initial checkpoints were not tested.",
    ),
    not_run=(
        "A penalty at fresh rollouts, one batch and four batches in this setting.",
        "Ratios to the sampler, other corrections, and plain GRPO with smaller steps: `old-policy` asks that.",
        "SAPO at the paper's γ = 0.1, and a larger model.",
    ),
    claims=(
        Claim(
            where=WHERE,
            says="With fresh rollouts plain GRPO learns and does not fall.",
            asks="it rises and never falls",
            test=judge.holds(FRESH.name),
        ),
        *_above(FRESH.name, OLD.name, "eight batches are too old at this rate too"),
        *_above(FRESH.name, YOUNGER.name, "so are four"),
        *_above(YOUNGEST.name, OLD.name, "one batch costs less than eight"),
        *(
            claim
            for arm in PENALTIES
            for claim in _above(arm.name, OLD.name, "the penalty keeps what stale rollouts take")
        ),
    ),
    picture=Figure("reward/mean", "Reward", CURED),
    figures=(
        *a.dynamics(
            NAMES, CURED, metrics=("reward/mean", "displacement/correct", "likelihood/correct", "entropy/mean")
        ),
        *(Figure("rollout/searches", "Searches per rollout", arms) for arms in (NAMES, CURED)),
        Figure("sampler/logprob_gap", "Log-prob of the sampler above the learner's, nats per token", NAMES),
    ),
    first_seed=16,
)
