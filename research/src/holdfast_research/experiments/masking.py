"""Answer masking: does it bring back the second search?"""

from __future__ import annotations

from holdfast_research import judge, signs
from holdfast_research.experiments import arms as a
from holdfast_research.experiments.death_spiral_claims import SAMPLED, remedy
from holdfast_research.values import Arm, Claim, Experiment, Figure

WEIGHTS = {"LLDS-MA 0": 0.0, "LLDS-MA, paper": "adaptive-paper", "LLDS-MA, code": "adaptive-code"}
ARMS = tuple(
    Arm(name, {**a.LLDS_FIXED.settings, "loss.penalty.answer_weight": weight}) for name, weight in WEIGHTS.items()
)
NAMES = (a.GRPO.name, a.LLDS_ACTION.name, *WEIGHTS)

EXPERIMENT = Experiment(
    name="masking",
    title="Masking answers",
    shows="what does masking answers in LLDS cost, and how often does the agent search?",
    recipe="flaky",
    arms=(a.GRPO, a.RELIABLE, a.LLDS_FIXED, *ARMS),
    minutes=4.5,
    notes=(
        "In the paper masking is for base models that end up with one search per question. Here half of the "
        "questions need two, and the initial checkpoint stops early on some of them.",
    ),
    claims=(
        Claim(
            paper=a.LLDS_PAPER,
            where="Figure 9 (v1), GRPO",
            says="Without masking, plain GRPO stays at one search per question.",
            asks="searches per rollout end below 1.2",
            test=signs.searches_end_below(a.GRPO.name, 1.2),
        ),
        Claim(
            paper=a.LLDS_PAPER,
            where="Figure 9 (v1), LLDS",
            says="Without masking, LLDS stays at one search per question.",
            asks="searches per rollout end below 1.2",
            test=signs.searches_end_below(a.LLDS_ACTION.name, 1.2),
        ),
        *(
            Claim(
                paper=a.LLDS_PAPER,
                where=f"Figure 9, {'v1, equation 6' if weight == 0.0 else 'v2, equation 5'}",
                says=f"{name}: with answers masked the agent makes more than two searches.",
                asks="searches per rollout end above 2, on the seeds on which LLDS without masking ends below 1.2",
                test=signs.brings_back_searches(name, a.LLDS_ACTION.name, 2.0, 1.2),
            )
            for name, weight in WEIGHTS.items()
            if weight != "adaptive-code"
        ),
        Claim(
            paper=a.LLDS_PAPER,
            where="table of results (v2), 3B-Base: LLDS-A .360, LLDS-A-MA .440",
            says="Masking ends above LLDS without it.",
            asks=SAMPLED,
            test=judge.ends_higher("LLDS-MA, paper", a.LLDS_ACTION.name),
        ),
        *(remedy(name, where="whether masking costs it") for name in WEIGHTS),
    ),
    figures=(
        Figure("rollout/searches", "Searches per rollout", NAMES, "Figure 9"),
        Figure("reward/mean", "Reward", NAMES, "Figure 9"),
        Figure("penalty/answer_weight", "Weight of answer tokens", NAMES[1:], "equation 5"),
    ),
)
