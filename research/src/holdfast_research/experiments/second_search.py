"""Answer masking where agents stay at one search: does it bring back the second?"""

from __future__ import annotations

from holdfast_research import judge, signs
from holdfast_research.experiments import arms as a
from holdfast_research.experiments.death_spiral_claims import SAMPLED
from holdfast_research.methods import Settings
from holdfast_research.values import Arm, Claim, Experiment, Figure

HABIT: Settings = {
    "world.two_hop": 0.7,
    "world.mismatch": 0.1,
    "world.scripts.plain_steps": 1200,
    "world.scripts.stop_early": [0.55, 0.997],
    "warm_start.steps": 150,
    "train.steps": 60,
    "train.lr": 1e-4,
    "eval.every": 0,
}
"""On top of the quickstart, whose searches are reliable and whose sampler is not truncated: an agent that can search
twice and hardly ever does."""
STAYS, BACK = 1.2, 1.5
"""Searches per rollout: one, and another where it found nothing; and more than half of the second searches."""
LEARNS = ", where plain GRPO rises by 0.12 and holds"

V1: Settings = {**a.llds("response"), "loss.penalty.coef": 0.1}
LLDS_V1 = Arm("LLDS response, λ 0.1", V1)
MASKED_V1 = Arm("LLDS-MA 0, v1", {**V1, "loss.penalty.answer_weight": 0.0})
ADAPTIVE = {
    name: Arm(f"LLDS-MA, {name}", {**a.LLDS_FIXED.settings, "loss.penalty.answer_weight": f"adaptive-{name}"})
    for name in ("paper", "code")
}
PAIRS = (
    (MASKED_V1, LLDS_V1, "Figure 9, v1, equation 6"),
    (ADAPTIVE["paper"], a.LLDS_FIXED, "Figure 9, v2, equation 5"),
    (ADAPTIVE["code"], a.LLDS_FIXED, "Figure 9; the schedule of the released code"),
)
ARMS = (a.GRPO, LLDS_V1, MASKED_V1, a.LLDS_FIXED, *ADAPTIVE.values())
NAMES = tuple(arm.name for arm in ARMS)


def stays(arm: Arm, named: str, where: str) -> Claim:
    """An agent whose answers are not masked continues to search once."""
    return Claim(
        paper=a.LLDS_PAPER,
        where=where,
        says=f"Without masking, {named} stays at one search per question.",
        asks=f"searches per rollout end below {STAYS:g}{LEARNS}",
        test=judge.where_it_learned(a.GRPO.name, signs.searches_end_below(arm.name, STAYS)),
    )


EXPERIMENT = Experiment(
    name="second-search",
    title="The second search",
    shows="does masking answers in LLDS bring back a second search that agents have unlearned?",
    recipe="quickstart",
    arms=ARMS,
    settings=HABIT,
    minutes=2.5,
    notes=(
        "Seven questions in ten need two searches, and the initial checkpoint hardly ever makes the second. Searches "
        "are reliable and the sampler is not truncated, so nothing collapses. 60 batches.",
        "Plain GRPO's reward rises here and declines again, because a second search is so rarely right that hardly "
        "anything rewards it. So these runs cannot tell what masking does for agents that could learn to search "
        "again.",
        "The paper's agents make more than two searches with answers masked. Here three questions in ten need only "
        f"one, so we ask for more than {BACK:g}.",
        "LLDS-MA 0, v1 and its control have v1's gate and λ. The adaptive weights have the action gate with the λ of "
        "death-spiral, as their control has.",
    ),
    claims=(
        stays(a.GRPO, "plain GRPO", "Figure 9 (v1), GRPO"),
        stays(LLDS_V1, "LLDS of v1", "Figure 9 (v1), LLDS, with v1's gate and λ"),
        stays(a.LLDS_FIXED, "LLDS", "Figure 9 (v1), LLDS"),
        *(
            Claim(
                paper=a.LLDS_PAPER,
                where=where,
                says=f"{masked.name}: with answers masked the agent makes the second search.",
                asks=f"searches per rollout end above {BACK:g}, on the seeds on which {plain.name} ends below "
                f"{STAYS:g}{LEARNS}",
                test=judge.where_it_learned(
                    a.GRPO.name, signs.brings_back_searches(masked.name, plain.name, BACK, STAYS)
                ),
            )
            for masked, plain, where in PAIRS
        ),
        *(
            Claim(
                paper=a.LLDS_PAPER,
                where=where,
                says=f"{masked.name} ends above {plain.name}.",
                asks=SAMPLED,
                test=judge.ends_higher(masked.name, plain.name),
            )
            for (masked, plain, _), where in zip(
                PAIRS,
                (
                    "table of results (v1), 3B-Base: LLDS-R .360, LLDS-R-MA .430",
                    "table of results (v2), 3B-Base: LLDS-A .360, LLDS-A-MA .440",
                ),
                strict=False,
            )
        ),
        Claim(
            where="whether there is anything to learn with one search",
            says="Plain GRPO learns and holds here.",
            asks="its reward rises by 0.12, never loses 40 % of its peak, and ends at 85 % of it or above",
            test=judge.holds(a.GRPO.name),
        ),
    ),
    figures=(
        Figure("rollout/searches", "Searches per rollout", NAMES, "Figure 9"),
        Figure("reward/mean", "Reward", NAMES, "Figure 9"),
        Figure("penalty/answer_weight", "Weight of answer tokens", NAMES[1:], "equation 5"),
    ),
)
