"""What the papers say of a collapse and its remedies, and what a sceptic asks besides."""

from __future__ import annotations

from dataclasses import replace

from holdfast_research import judge, signs
from holdfast_research.experiments import arms as a
from holdfast_research.values import CONTROL, Claim

GRPO = a.GRPO.name
BEST = "tables of results (v2): 3B-Instruct GRPO .336, LLDS-A .441; the GRPO there is from before its collapse"
AFTER = "Figure 6 (v1), the reward after the collapse"
SAPO_BEST = "main table: its GRPO is that of Search-R1, from before its collapse"
ABLATION = "ablation: GRPO .388, SAPO .429"
EM = "test EM at the end"
SAMPLED = f"sampled {EM}"
FALL = "it loses 40 % of its peak"


def ends_higher(
    arm: str, other: str, *, where: str, says: str, paper: str = CONTROL, asks: str = EM
) -> tuple[Claim, Claim]:
    """Asked of samples, which see all of the distribution, and of the most likely tokens, which do not."""
    sampled = Claim(
        paper=paper, where=where, says=says, asks=asks, decoding="sampled", test=judge.ends_higher(arm, other)
    )
    return sampled, replace(sampled, decoding="greedy", test=judge.ends_higher(arm, other, judge.GREEDY_EM))


def loses_nothing(arm: str, fresh: str, *, where: str, says: str) -> tuple[Claim, Claim]:
    """That stale rollouts cost nothing, asked of both kinds of answers."""
    sampled = Claim(
        where=where,
        says=says,
        asks=f"{EM}, not below that of fresh rollouts",
        decoding="sampled",
        test=judge.ends_no_lower(arm, fresh),
    )
    return sampled, replace(sampled, decoding="greedy", test=judge.ends_no_lower(arm, fresh, judge.GREEDY_EM))


def remedy(arm: str, *, where: str, other: str = GRPO, paper: str = CONTROL) -> Claim:
    """The papers' claim of their methods: nothing collapses."""
    return Claim(
        paper=paper,
        where=where,
        says=f"{arm} does not collapse where {other} does.",
        asks=f"on the seeds on which {other} fell it does not",
        test=judge.prevents_where(arm, other),
    )


def best(arm: str, *, paper: str, where: str) -> Claim:
    """Against GRPO before its collapse, from where the papers' tables take its scores."""
    return Claim(
        paper=paper,
        where=where,
        says=f"{arm} comes higher than GRPO ever does.",
        asks="the highest 5-step mean of the reward, over the steps both have",
        test=judge.peaks_higher(arm, GRPO),
    )


def proposition_1(arm: str) -> Claim:
    """Asked of arms near plain GRPO, whose kept runs are older than the series."""
    return Claim(
        paper=a.SAPO_PAPER,
        where="Proposition 1: a rollout's ratio decays with its action tokens",
        says="On the way to a fall queries lose more likelihood than thoughts.",
        asks="in rollouts with A > 0, up to the drop, drift/positive/query is below drift/positive/thought. Plain "
        "GRPO's kept runs are older than the series, so other arms that fall are asked",
        test=signs.queries_drift_more(arm),
    )


COLLAPSES = Claim(
    paper=a.LLDS_PAPER,
    where="section 1 and Figure 2 (v1)",
    says="Plain GRPO on a search agent rises, then falls.",
    asks=FALL,
    test=judge.falls(GRPO),
)
STAYS_DOWN = Claim(
    where="whether it is the end",
    says="Where it falls it stays down.",
    asks="it is still down at its last step",
    test=judge.stays_down(GRPO),
)

FIRST_ACTION = (
    *(
        Claim(
            paper=a.LLDS_PAPER,
            where=f"Figure 5 (v1), likelihood by action ({kind} rollouts)",
            says=f"The first action of {kind} rollouts starts likelier than the second and crosses below it.",
            asks="5-step means of likelihood by action, at the start and when the reward drops",
            test=signs.first_action_crosses(GRPO, kind),
        )
        for kind in ("correct", "incorrect")
    ),
    Claim(
        where="the same in a run that holds",
        says="The crossing is no mark of a collapse: with a reliable search it occurs too.",
        asks="the same of correct rollouts, at the start and at the end",
        test=judge.where_it_held(a.RELIABLE.name, signs.first_action_crosses_by_the_end(a.RELIABLE.name)),
    ),
    Claim(
        paper=a.LLDS_PAPER,
        where="Theorem 4.2 and Figure 5 (v1)",
        says="The first action decays more than the second.",
        asks="what each has lost from its summit when the reward drops, correct rollouts",
        test=signs.first_action_decays_faster(GRPO),
    ),
)

COURSE = (
    COLLAPSES,
    STAYS_DOWN,
    Claim(
        paper=a.LLDS_PAPER,
        where="Definitions 4.1 (v1, v2) and 5.1 (v1), which is A.3 (1) in v2",
        says="Updates make the same correct rollouts less likely, and they do so before the collapse.",
        asks="displacement/correct is below 0 before the reward drops",
        test=signs.displaced_before_drop(GRPO),
    ),
    Claim(
        where="Definition 4.1 in a run that holds",
        says="With a reliable search displacement is never below 0: it is the mark of a collapse.",
        asks="displacement/correct is never below 0",
        test=judge.where_it_held(a.RELIABLE.name, signs.never_displaced(a.RELIABLE.name)),
    ),
    Claim(
        paper=a.LLDS_PAPER,
        where="Definition 5.1 (v1), A.3 (3) in v2",
        says="Displacement grows from step to step.",
        asks="between its first value below 0 and the drop, the second half is lower than the first",
        test=signs.displacement_deepens(GRPO),
    ),
    Claim(
        paper=a.LLDS_PAPER,
        where="Definition A.3 (2) of v2, its first half",
        says="Meanwhile incorrect rollouts do not become likelier.",
        asks="over those steps the mean of displacement/incorrect is not above 0",
        test=signs.incorrect_not_raised(GRPO),
    ),
    Claim(
        paper=a.LLDS_PAPER,
        where="Figure 2 (v1), phases I and II",
        says="The likelihood of correct rollouts stagnates and slowly decays while the reward still rises.",
        asks="its summit comes before the reward's and 5 steps before the reward drops, and 0.01 nats per token are "
        "lost by then",
        test=signs.likelihood_decays_first(GRPO),
    ),
    Claim(
        paper=a.LLDS_PAPER,
        where="Figure 4 of v2",
        says="Before the collapse, incorrect rollouts are consistently less likely than correct ones.",
        asks="it is, in 90 % of the later half of the steps before the drop",
        test=signs.incorrect_below_correct(GRPO),
    ),
    Claim(
        where="the same in a run that holds",
        says="With a reliable search, too, incorrect rollouts are less likely than correct ones.",
        asks="the same in the later half; if so, it is no sign of a collapse",
        test=judge.where_it_held(a.RELIABLE.name, signs.incorrect_below_correct(a.RELIABLE.name)),
    ),
    Claim(
        paper=a.LLDS_PAPER,
        where="Figure 4 of v1",
        says="Entropy accelerates while the length of responses stays flat.",
        asks="when entropy is 0.3 nats above its lowest, the length is within 15 % of what it was there",
        test=signs.entropy_surges_alone(GRPO, "rollout/length"),
    ),
    Claim(
        paper=a.LLDS_PAPER,
        where="Figure 4 of v1 and its text",
        says="Entropy accelerates while the number of searches stays flat.",
        asks="when entropy is 0.3 nats above its lowest, searches are within 15 % of what they were there",
        test=signs.entropy_surges_alone(GRPO, "rollout/searches"),
    ),
    Claim(
        paper=a.LLDS_PAPER,
        where="Figure 4 of v1",
        says="Entropy rises before the reward falls.",
        asks="entropy is 0.3 nats above its lowest before the reward drops",
        test=signs.entropy_before_drop(GRPO),
    ),
    Claim(
        paper=a.LLDS_PAPER,
        where="Figure 7 and B.1 of v1, Figure 2 of v2",
        says="At the first sharp drop of the reward the gradient norm is still ordinary.",
        asks="at the drop it is at most twice the median until 5 steps before",
        test=signs.gradient_calm_at_drop(GRPO),
    ),
    Claim(
        paper=a.LLDS_PAPER,
        where="Figure 2 (v1), phase III: a surge, in a figure without a number",
        says="In the collapse the gradient norm surges.",
        asks="its largest value from the drop on is more than twice that median",
        test=signs.gradient_surges(GRPO),
    ),
    Claim(
        paper=a.SAPO_PAPER,
        where="Definition 1 and Figure 1",
        says="The importance ratios of rollouts begin to drift towards 0 before training fails.",
        asks="the mean of ln ∏ r is below ln 0.5 before the reward drops",
        test=signs.ratio_drifts_before_drop(GRPO),
    ),
    Claim(
        where="Definition 1 in a run that holds",
        says="With a reliable search ratios never drift: it is the mark of a collapse.",
        asks="the mean of ln ∏ r is never below ln 0.5",
        test=judge.where_it_held(a.RELIABLE.name, signs.ratio_never_drifts(a.RELIABLE.name)),
    ),
)

CAUSES = (
    a.SAME_STEP,
    a.OTHER_SAMPLER,
    a.SAME_SAMPLER,
    a.OTHER_MEAN,
    a.OTHER_BASELINE,
    a.SMALLER_STEP,
)

REMEDIES = (
    remedy("LLDS action", paper=a.LLDS_PAPER, where="Figure 6 and the tables of results (v2), LLDS-A"),
    remedy("LLDS response", paper=a.LLDS_PAPER, where="Figure 6 (v1), LLDS-R"),
    remedy("LLD", paper=a.LLDS_PAPER, where="table of gates, token: LLD, equation 4 of v1 and 9 of v2"),
    remedy("LLDS-MA", paper=a.LLDS_PAPER, where="tables of results (v1, v2), LLDS-MA"),
    remedy("SAPO", paper=a.SAPO_PAPER, where="Figure 1 and the main table"),
    Claim(
        where="Figure 1 of SAPO, asked of all rollouts; those with A < 0 are meant to lose likelihood",
        says="Under SAPO the ratios of all rollouts together do not drift either.",
        asks="the mean of ln ∏ r is never below ln 0.5",
        test=signs.ratio_never_drifts("SAPO"),
    ),
    best("LLDS action", paper=a.LLDS_PAPER, where=BEST),
    best("SAPO", paper=a.SAPO_PAPER, where=SAPO_BEST),
    *ends_higher(
        "LLDS action",
        GRPO,
        paper=a.LLDS_PAPER,
        where=AFTER,
        says="LLDS ends above GRPO.",
    ),
    *ends_higher(
        "LLDS action",
        "LLDS response",
        paper=a.LLDS_PAPER,
        where="table of gates, appendix (v2): token .319, response .319, action .330",
        says="The action gate ends above the response gate.",
    ),
    *ends_higher(
        "LLDS response",
        "LLD",
        paper=a.LLDS_PAPER,
        where="section 6.2 (v1): LLD .321, with the response gate .323",
        says="The response gate ends above no gate.",
    ),
    *ends_higher(
        "SAPO",
        GRPO,
        paper=a.SAPO_PAPER,
        where=ABLATION,
        says="SAPO ends above GRPO.",
    ),
    Claim(
        paper=a.LLDS_PAPER,
        where="table of GSPO (v2), Qwen2.5-3B-Instruct",
        says="GSPO collapses too.",
        asks=f"{FALL}, at GRPO's clip of 0.2, as in the paper",
        test=judge.falls(a.PAPERS_GSPO.name),
    ),
    remedy(
        a.PAPERS_GSPO_LLDS.name,
        paper=a.LLDS_PAPER,
        where="table of GSPO (v2), with LLDS-A",
        other=a.PAPERS_GSPO.name,
    ),
    *ends_higher(
        a.PAPERS_GSPO_LLDS.name,
        a.PAPERS_GSPO.name,
        paper=a.LLDS_PAPER,
        where="table of GSPO (v2): GSPO .331, with LLDS-A .451",
        says="LLDS on top of GSPO ends above GSPO.",
    ),
    Claim(
        where="GSPO's own clip, 3e-4 and 4e-4, or what the sweep chose",
        says="At a clip of its own GSPO collapses too.",
        asks=FALL,
        test=judge.falls("GSPO"),
    ),
    *ends_higher(
        "GSPO + LLDS action",
        "GSPO",
        where="both at GSPO's own clip",
        says="LLDS on top of that GSPO ends above it.",
    ),
    *ends_higher(
        "LLDS action",
        a.SMALLER.name,
        where="the question both papers leave open",
        says="LLDS ends above plain GRPO at a smaller learning rate.",
    ),
    *ends_higher(
        "LLDS action",
        a.PLAIN_SAMPLER.name,
        where="the cheaper remedy",
        says="LLDS under the truncated sampler ends above plain GRPO under the whole one.",
    ),
    Claim(
        where="the papers' plain GRPO has a KL of 0.001, the one here none",
        says="With that KL it falls too.",
        asks=FALL,
        test=judge.falls(a.PAPERS_KL.name),
    ),
    Claim(
        where="the ordinary remedy",
        says="A KL to the reference does as well.",
        asks="on the seeds on which GRPO fell it holds",
        test=judge.holds_where("KL to the reference", GRPO),
    ),
)
CLAIMS = (*COURSE, *CAUSES, *REMEDIES)
