"""A pretrained model at its recipe's own rate, with rollouts that are fresh, and one, four and eight batches old. Each
claim is a prediction made before the runs."""

from __future__ import annotations

from dataclasses import replace

from holdfast_research import judge
from holdfast_research.experiments import arms as a
from holdfast_research.experiments.real_old import EXPERIMENT as REAL_OLD
from holdfast_research.experiments.real_old import FRESH, OLD, PENALTIES, YOUNGER, old
from holdfast_research.values import Claim, Figure

YOUNGEST = old(1)
AGES = (FRESH, YOUNGEST, YOUNGER, OLD)
NAMES = tuple(arm.name for arm in AGES)
CURED = tuple(arm.name for arm in (OLD, *PENALTIES))
WHERE = "a pretrained model, real prose, the recipe's own learning rate"


def _above(arm: str, other: str, why: str) -> Claim:
    return Claim(
        where=WHERE,
        says=f"{arm} ends above {other}: {why}.",
        asks="sampled exact match on the test questions",
        test=judge.ends_higher(arm, other),
    )


EXPERIMENT = replace(
    REAL_OLD,
    name="real-age",
    title="How old rollouts may be",
    shows="SmolLM2-135M at its recipe's rate: rollouts fresh, one, four and eight batches old, and penalties at eight",
    arms=(*AGES, *PENALTIES),
    minutes=55,
    settings={**REAL_OLD.settings, "train.lr": 2e-5},
    notes=(
        "The recipe is that of `factbook` with half its batch, four questions, and 48 batches. In training, rollouts "
        "come from weights so many batches old; evaluation has those that learn.",
        "The ages and penalties of [real-old](real-old.md) at half its rate, on other seeds and another machine. The "
        "predictions were written when three seeds of that were known for fresh rollouts, and for eight batches with "
        "and without LLDS at 1, and one of LLDS at 0.2. Of one and four batches at this rate, and of SAPO, nothing "
        "was.",
        "All 21 runs were made on an H100 in bf16 within nine minutes, eleven at once, the warm starts and tests "
        "included.",
    ),
    claims=(
        Claim(
            where=WHERE,
            says="With fresh rollouts plain GRPO learns and does not fall.",
            asks="it rises and never falls",
            test=judge.holds(FRESH.name),
        ),
        *(
            _above(FRESH.name, arm.name, why)
            for arm, why in (
                (OLD, "eight batches are too old at this rate too"),
                (YOUNGER, "so are four"),
            )
        ),
        _above(YOUNGEST.name, OLD.name, "one batch costs less than eight"),
        *(_above(arm.name, OLD.name, "the penalty keeps what stale rollouts take") for arm in PENALTIES),
    ),
    figures=(
        *a.dynamics(
            NAMES, CURED, metrics=("reward/mean", "displacement/correct", "likelihood/correct", "entropy/mean")
        ),
        *(Figure("rollout/searches", "Searches per rollout", arms) for arms in (NAMES, CURED)),
        Figure("sampler/logprob_gap", "Log-prob of the sampler above the learner's, nats per token", NAMES),
    ),
    first_seed=16,
)
