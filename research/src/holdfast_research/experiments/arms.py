"""Arms and figures that experiments share, so that a method is written down once."""

from __future__ import annotations

from dataclasses import replace

from holdfast_research import methods
from holdfast_research.judge import holds, holds_where, prevents_where
from holdfast_research.methods import GSPO, MEAN_OF_MEANS, NO_PENALTY, UNTRUNCATED, Settings
from holdfast_research.values import Arm, Claim, Figure, Sweep

LLDS_PAPER = "LLDS, arXiv 2512.04220"
SAPO_PAPER = "SAPO, arXiv 2603.10069"

# `usual`, the coefficient without a sweep, is what the sweep of research/docs/README.md chose for those it was made
# for: the action gate of LLDS, SAPO, the step.
COEFFICIENTS = Sweep(("loss.penalty.coef",), ((0.2,), (0.5,), (1.0,)), usual=2)
"""λ of every LLDS penalty, over the tokens it preserves; that of the paper is 0.2."""
SAPO_COEFFICIENTS = Sweep(("loss.penalty.coef",), ((0.1,), (0.5,), (1.0,)), usual=2)
"""γ of the paper is 0.1."""
GSPO_CLIPS = Sweep(("loss.clip_low", "loss.clip_high"), ((3e-4, 4e-4), (3e-3, 4e-3), (3e-2, 4e-2)), usual=0)
"""GSPO's own, and ten and a hundred times that."""
KL_COEFFICIENTS = Sweep(("loss.kl_coef",), ((0.01,), (0.1,), (1.0,)), usual=1)
STEPS = Sweep(("train.lr",), ((1.5e-5,), (3e-5,), (7.5e-5,)))
"""The recipe's learning rate, 1.5e-4, divided by ten, five and two."""

_OVER_PRESERVED: Settings = {"loss.penalty.normalizer": "preserved"}
SAPO: Settings = {**methods.SAPO, **_OVER_PRESERVED}
GSPO_CLIP: Settings = {"loss.clip_low": 3e-4, "loss.clip_high": 4e-4}
GRPO_CLIP: Settings = {"loss.clip_low": 0.2, "loss.clip_high": 0.2}


def llds(gate: str) -> Settings:
    """LLDS, divided by the tokens it preserves."""
    return {**methods.llds(gate), **_OVER_PRESERVED}


GRPO = Arm("GRPO", NO_PENALTY, control=True)
RELIABLE = Arm("GRPO, reliable search", {**NO_PENALTY, "faults.search_failure_rate": 0.0}, control=True)
SMALLER = Arm("GRPO, smaller step", NO_PENALTY, STEPS, control=True)
PLAIN_SAMPLER = Arm("GRPO, untruncated sampler", {**NO_PENALTY, **UNTRUNCATED}, control=True)
SEQUENCE_MEAN = Arm("GRPO, sequence mean", {**NO_PENALTY, **MEAN_OF_MEANS})
LENGTH_BASELINE = Arm("GRPO, baseline by length", {**NO_PENALTY, "loss.baseline": "length"})
SAMPLING_MASK = Arm("GRPO, sampling mask kept", {**NO_PENALTY, "sampling.mask_logprobs": True}, control=True)
LLDS_ACTION = Arm("LLDS action", llds("action"), COEFFICIENTS)
SAPO_ARM = Arm("SAPO", SAPO, SAPO_COEFFICIENTS)
PAPERS_KL = Arm("GRPO, KL 0.001", {**NO_PENALTY, "loss.kl_coef": 0.001})
PAPERS_GSPO = Arm("GSPO, clip 0.2", {**NO_PENALTY, **GSPO, **GRPO_CLIP})
PAPERS_GSPO_LLDS = Arm("GSPO, clip 0.2, LLDS action", {**llds("action"), **GSPO, **GRPO_CLIP}, COEFFICIENTS)
"""As the LLDS paper has them: GSPO with GRPO's clip, and GRPO with a KL."""


def fixed(arm: Arm) -> Arm:
    """The arm with the coefficient it has without a sweep."""
    return replace(arm, settings={**arm.settings, **arm.sweep.at(arm.sweep.usual)}, sweep=None) if arm.sweep else arm


LLDS_FIXED = fixed(LLDS_ACTION)
SAPO_FIXED = fixed(SAPO_ARM)
"""For experiments without a sweep: their runs are then those of `death-spiral`, and need not be made twice."""


def no_fall_where_grpo_fell(arm: Arm, where: str, why: str) -> Claim:
    """That an arm does not fall on the seeds on which plain GRPO did."""
    return Claim(
        where=where,
        says=f"{arm.name} does not fall where plain GRPO does: {why}.",
        asks="it never falls, on the seeds on which plain GRPO fell",
        test=prevents_where(arm.name, GRPO.name),
    )


_WHERE_IT_FELL = "on the seeds on which GRPO fell it holds"
SAME_STEP = Claim(
    where="the same recipe with a search that never fails",
    says="At this learning rate plain GRPO learns and holds where searches never fail.",
    asks="it holds",
    test=holds(RELIABLE.name),
)
SMALLER_STEP = Claim(
    where="a fifth of the step, or what the sweep chose",
    says="A smaller learning rate is a remedy too.",
    asks=_WHERE_IT_FELL,
    test=holds_where(SMALLER.name, GRPO.name),
)
OTHER_SAMPLER = Claim(
    where="the same recipe, sampled at top-p 1 without top-k",
    says="Untruncated, the same recipe learns and holds.",
    asks=_WHERE_IT_FELL,
    test=holds_where(PLAIN_SAMPLER.name, GRPO.name),
)
SAME_SAMPLER = Claim(
    where="log-probs of the loss over what the sampler kept: Keep Sampling Mask, DeepSeek-V3.2, arXiv 2512.02556",
    says="Truncated, with log-probs over what the sampler kept, it holds: the mismatch with the loss is at fault.",
    asks=_WHERE_IT_FELL,
    test=holds_where(SAMPLING_MASK.name, GRPO.name),
)
OTHER_MEAN = Claim(
    where="SAPO equation 9, and GSPO; the codes of LLDS and SAPO take the mean over tokens",
    says="With the mean over sequences plain GRPO keeps its reward.",
    asks=_WHERE_IT_FELL,
    test=holds_where(SEQUENCE_MEAN.name, GRPO.name),
)
OTHER_BASELINE = Claim(
    where="the baseline of OPO, arXiv 2505.23585, with GRPO's division by the deviation",
    says="With a baseline by length, under which a group's advantages sum to 0 over its tokens, it keeps its reward.",
    asks=_WHERE_IT_FELL,
    test=holds_where(LENGTH_BASELINE.name, GRPO.name),
)

DYNAMICS = (
    ("reward/mean", "Reward", "Figures 2 and 6"),
    ("likelihood/correct", "Likelihood of correct rollouts, nats per token", "Figures 2 and 4"),
    ("likelihood/incorrect", "Likelihood of incorrect rollouts, nats per token", "Figure 4"),
    ("displacement/correct", "Displacement of correct rollouts, nats per token", "Definition 4.1"),
    ("entropy/mean", "Entropy, nats per token", "Figure 4"),
    ("rollout/length", "Sampled tokens per rollout", "Figure 4"),
    ("grad/norm", "Gradient norm before clipping", "Figure 2"),
    ("ratio/log_product", "ln of the product of a rollout's ratios", "SAPO, Figure 1 (a)"),
    (
        "isdd/positive/below_half",
        "P(∏ r < 1/2) of rollouts with A > 0",
        "SAPO, Definition 1",
    ),
    ("clip/fraction", "Clipped tokens, share", "SAPO, Figure 1 (b)"),
    ("rollout/invalid_fraction", "Invalid turns, share", ""),
)
"""(metric, title, the figure of LLDS, or of SAPO where named, that shows the same; nothing where none does)."""


def dynamics(*groups: tuple[str, ...], metrics: tuple[str, ...] = ()) -> tuple[Figure, ...]:
    """The curves of `DYNAMICS`, or of those `metrics`, for each group of arms."""
    rows = [row for row in DYNAMICS if not metrics or row[0] in metrics]
    return tuple(Figure(metric, title, arms, after) for metric, title, after in rows for arms in groups)
