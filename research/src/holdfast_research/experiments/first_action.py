"""The first action: shared by correct and incorrect rollouts, and the first to decay."""

from __future__ import annotations

from holdfast_research import judge, signs
from holdfast_research.experiments import arms as a
from holdfast_research.experiments.death_spiral_claims import FIRST_ACTION
from holdfast_research.values import Claim, Experiment, Figure

GRPO = a.GRPO.name
NAMES = (GRPO, a.RELIABLE.name, a.LLDS_ACTION.name)

EXPERIMENT = Experiment(
    name="first-action",
    title="The first action",
    shows="how often do incorrect rollouts begin with a right search, and which action decays first?",
    recipe="flaky",
    arms=(a.GRPO, a.RELIABLE, a.LLDS_FIXED),
    minutes=4.5,
    notes=(
        "A first search counts as right when it returns the passages of a correct sibling's first search. A search "
        "that found nothing by bad luck counts as wrong.",
    ),
    claims=(
        Claim(
            paper=a.LLDS_PAPER,
            where="Figure 5 (v1)",
            says="More and more incorrect rollouts begin with a right search.",
            asks="rollout/first_action_match_fraction when the reward drops is 0.1 above the start",
            test=signs.first_action_match_rises(GRPO),
        ),
        *FIRST_ACTION,
        Claim(
            where="the same in a run that holds",
            says="In plain GRPO with a reliable search, too, more incorrect rollouts begin with a right search.",
            asks="the same at the end. If so, the share alone is not a sign of a collapse",
            test=judge.where_it_held(a.RELIABLE.name, signs.first_action_match_rises_by_the_end(a.RELIABLE.name)),
        ),
    ),
    figures=(
        Figure("rollout/first_action_match_fraction", "Incorrect rollouts, right first search", NAMES, "Figure 5"),
        Figure("likelihood/correct/action_1", "First action of correct rollouts, nats per token", NAMES, "Figure 5"),
        Figure("likelihood/correct/action_2", "Second action of correct rollouts, nats per token", NAMES, "Figure 5"),
        Figure("likelihood/incorrect/action_1", "First action of incorrect rollouts, nats per token", NAMES),
        Figure("likelihood/incorrect/action_2", "Second action of incorrect rollouts, nats per token", NAMES),
        Figure("reward/mean", "Reward", NAMES),
    ),
)
