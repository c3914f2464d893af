"""The death spiral and its cures: every method against plain GRPO and its controls."""

from __future__ import annotations

from dataclasses import replace

from holdfast.lab import judge
from holdfast.lab.experiments import arms as a
from holdfast.lab.values import Arm, Claim, Experiment, Figure

GRPO = a.GRPO.name
ARMS = (
    a.GRPO,
    a.RELIABLE,
    a.PLAIN_SAMPLER,
    a.KEPT_MASK,
    a.SMALLER,
    Arm("KL to the reference", a.NONE, a.KL_STRENGTHS),
    Arm("LLD", (*a.LLDS, "--loss.penalty.gate", "token"), a.STRENGTHS),
    Arm("LLDS response", (*a.LLDS, "--loss.penalty.gate", "response"), a.STRENGTHS),
    a.LLDS_ACTION,
    Arm(
        "LLDS-MA",
        (*a.LLDS, "--loss.penalty.gate", "action", "--loss.penalty.answer_weight", "adaptive-paper"),
        a.STRENGTHS,
    ),
    Arm("SAPO", a.SAPO, a.SAPO_STRENGTHS),
    Arm("GSPO", (*a.NONE, *a.GSPO), a.GSPO_CLIPS),
    Arm(
        "GSPO + LLDS action",
        (*a.LLDS, *a.GSPO, *a.GSPO_CLIP, "--loss.penalty.gate", "action"),
        a.STRENGTHS,
    ),
)

CONTROLS = (
    *(GRPO, a.RELIABLE.name, a.PLAIN_SAMPLER.name),
    *(a.KEPT_MASK.name, a.SMALLER.name, "KL to the reference"),
)
MECHANISM = (
    Figure("advantage/token_mean", "Mean advantage per token: below 0, failures are longer", CONTROLS),
    Figure("sampler/mass_kept", "Probability of what the sampler may choose", CONTROLS),
)


def _ends_higher(arm: str, other: str, *, paper: str, where: str, says: str) -> tuple[Claim, Claim]:
    """Asked of samples, which see all of the distribution, and of the most likely tokens, which do not."""
    sampled = Claim(
        paper=paper,
        where=where,
        says=says,
        asks="test EM at the end, sampled without truncation, seed by seed",
        test=judge.ends_higher(arm, other),
    )
    greedy = replace(sampled, asks="the same, greedy, seed by seed", test=judge.ends_higher(arm, other, "greedy after"))
    return sampled, greedy


EXPERIMENT = Experiment(
    name="death-spiral",
    title="The death spiral and its cures",
    shows="plain GRPO rises and collapses; what each method and each control does about it",
    recipe="flaky",
    arms=ARMS,
    minutes=5,
    notes=(
        "The recipe was made to collapse: a fifth of the searches find nothing, so that failures are longer than "
        "successes for good; thoughts of high entropy; a sampler cut at top-p 0.9 and top-k 64 with log-probs over the "
        "whole vocabulary. A cure here is a cure of this.",
        "Searches fail in training rollouts only. Test EM is measured with all searches answered.",
    ),
    claims=(
        Claim(
            paper=a.LLDS_PAPER,
            where="section 1 and Figure 2",
            says="Plain GRPO on a search agent rises, then collapses.",
            asks="rises by 0.12, stays 20 steps within 0.1 of its peak, then loses 40 % of it",
            test=judge.collapses(GRPO),
        ),
        a.SAME_STEP,
        a.OTHER_SAMPLER,
        a.SAME_SAMPLER,
        a.SMALLER_STEP,
        Claim(
            paper=a.LLDS_PAPER,
            where="Definitions 4.1 and A.3",
            says="Updates make the same correct rollouts less likely, and they do so before the collapse.",
            asks="the 5-step mean of displacement/correct lies below 0 at some step before the reward drops to 80 % of "
            "its peak",
            test=judge.displaced_before_drop(GRPO),
        ),
        Claim(
            paper="control",
            where="Definition 4.1 in a run that holds",
            says="Displacement is the mark of a collapse: in plain GRPO with a reliable search it does not occur.",
            asks="the 5-step mean of displacement/correct never lies below 0",
            test=judge.never_displaced(a.RELIABLE.name),
        ),
        Claim(
            paper=a.LLDS_PAPER,
            where="Figure 2, phases I and II",
            says="The likelihood of correct rollouts stagnates and slowly decays while the reward still rises.",
            asks="its summit comes 5 steps before the reward drops, and 0.01 nats per token are lost by then",
            test=judge.likelihood_decays_first(GRPO),
        ),
        Claim(
            paper=a.LLDS_PAPER,
            where="Figure 2, phase III; Definition A.3 (3)",
            says="The decay accelerates.",
            asks="from the summit down to the lowest point, the second half is steeper than the first",
            test=judge.decay_accelerates(GRPO),
        ),
        Claim(
            paper=a.LLDS_PAPER,
            where="Theorem 4.2, Figure 4",
            says="Wrong rollouts become consistently less likely than right ones.",
            asks="likelihood/incorrect is below likelihood/correct in 90 % of the later half of the steps",
            test=judge.wrong_below_right(GRPO),
        ),
        Claim(
            paper=a.LLDS_PAPER,
            where="Figure 4",
            says="Entropy accelerates while the length of responses stays flat.",
            asks="when entropy is 0.3 nats above its lowest, the length is within 15 % of what it was there",
            test=judge.entropy_before_length(GRPO),
        ),
        Claim(
            paper=a.LLDS_PAPER,
            where="Figure 4",
            says="Entropy rises before the reward falls.",
            asks="entropy is 0.3 nats above its lowest before the reward drops",
            test=judge.entropy_before_drop(GRPO),
        ),
        Claim(
            paper=a.LLDS_PAPER,
            where="Figure 2",
            says="At the first sharp drop of the reward the gradient norm is still ordinary.",
            asks="the norm at the drop is at most twice its median until 5 steps before it",
            test=judge.gradient_calm_at_drop(GRPO),
        ),
        Claim(
            paper=a.LLDS_PAPER,
            where="Figure 2, phase III",
            says="In the collapse, gradients explode.",
            asks="the largest norm after the drop is 10 times the median before it",
            test=judge.gradient_explodes(GRPO),
        ),
        Claim(
            paper=a.LLDS_PAPER,
            where="Figure 6 and the tables of results, LLDS-A",
            says="LLDS with the action gate keeps its reward where GRPO collapses.",
            asks="it keeps 85 % of its peak on the seeds on which GRPO collapsed",
            test=judge.holds_where("LLDS action", GRPO),
        ),
        Claim(
            paper=a.LLDS_PAPER,
            where="Figure 6 (v1), LLDS-R",
            says="LLDS with the response gate keeps its reward where GRPO collapses.",
            asks="the same",
            test=judge.holds_where("LLDS response", GRPO),
        ),
        *_ends_higher(
            "LLDS action",
            "LLDS response",
            paper=a.LLDS_PAPER,
            where="table of gates, appendix (v2): token .319, response .319, action .330",
            says="The action gate ends above the response gate.",
        ),
        *_ends_higher(
            "LLDS response",
            "LLD",
            paper=a.LLDS_PAPER,
            where="table of gates (v1): token .321, response .323",
            says="The response gate ends above no gate (LLD).",
        ),
        Claim(
            paper=a.LLDS_PAPER,
            where="table of GSPO, Qwen2.5-3B-Instruct",
            says="GSPO collapses too.",
            asks="rises by 0.12, stays 20 steps within 0.1 of its peak, then loses 40 % of it. The paper ran GSPO with "
            "GRPO's clip of 0.2; the sweep says which clip this arm has",
            test=judge.collapses("GSPO"),
        ),
        *_ends_higher(
            "GSPO + LLDS action",
            "GSPO",
            paper=a.LLDS_PAPER,
            where="table of GSPO: GSPO .331, with LLDS-A .451",
            says="LLDS on top of GSPO ends above GSPO.",
        ),
        Claim(
            paper=a.SAPO_PAPER,
            where="Definition 1 and Figure 1",
            says="The importance ratios of rollouts drift towards 0 before training fails.",
            asks="the mean of ln ∏ r lies below ln 0.5 before the reward drops",
            test=judge.ratio_drifts_before_drop(GRPO),
        ),
        Claim(
            paper=a.SAPO_PAPER,
            where="Figure 1 and the main table",
            says="SAPO keeps its reward where GRPO collapses.",
            asks="it keeps 85 % of its peak on the seeds on which GRPO collapsed",
            test=judge.holds_where("SAPO", GRPO),
        ),
        *_ends_higher(
            "SAPO",
            GRPO,
            paper=a.SAPO_PAPER,
            where="ablation: GRPO .388, SAPO .429",
            says="SAPO ends above GRPO.",
        ),
        *(
            Claim(
                paper="control",
                where="what goes before the collapse, and may only take longer",
                says=f"{arm} stops the surge of entropy, and not only the fall of the reward until the last step.",
                asks="entropy never rises 0.3 nats above its lowest, on the seeds on which that of GRPO does",
                test=judge.no_surge_where(arm, GRPO),
            )
            for arm in ("LLDS action", "SAPO", a.PLAIN_SAMPLER.name, a.KEPT_MASK.name)
        ),
        *_ends_higher(
            "LLDS action",
            a.SMALLER.name,
            paper="control",
            where="the question both papers leave open",
            says="LLDS ends above plain GRPO at a smaller step.",
        ),
        *_ends_higher(
            "LLDS action",
            a.PLAIN_SAMPLER.name,
            paper="control",
            where="the cheaper cure",
            says="LLDS under the truncated sampler ends above plain GRPO under the whole one.",
        ),
        Claim(
            paper="control",
            where="the question both papers leave open",
            says="A KL to the reference, the ordinary remedy, does as well.",
            asks="it keeps 85 % of its peak on the seeds on which GRPO collapsed",
            test=judge.holds_where("KL to the reference", GRPO),
        ),
    ),
    figures=(
        *MECHANISM,
        *a.dynamics(
            CONTROLS,
            (GRPO, "LLD", "LLDS response", "LLDS action", "LLDS-MA"),
            (GRPO, "SAPO", "GSPO", "GSPO + LLDS action"),
        ),
    ),
)
