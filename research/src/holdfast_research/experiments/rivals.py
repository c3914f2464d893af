"""Rival explanations of the same collapse, side by side on one testbed. Each claim is a prediction made before the
runs."""

from __future__ import annotations

from holdfast_research import judge
from holdfast_research.experiments import arms as a
from holdfast_research.methods import NO_PENALTY
from holdfast_research.values import Arm, Claim, Experiment, Figure

CENTRED = Arm("score centering", {**NO_PENALTY, "loss.methods.score_centering.on": True})
SUPERVISED = Arm("interleaved SFT", {**NO_PENALTY, "loss.methods.interleaved_sft.every": 10})
CREDIT = Arm("GiGPO", {**NO_PENALTY, "loss.methods.gigpo.weight": 1.0})
CLIP_COV = Arm("Clip-Cov", {**NO_PENALTY, "loss.methods.clip_cov.share": 2e-4})
VARIANCE = Arm("variance filter", {**NO_PENALTY, "loss.methods.variance_filter.share": 0.9})
NEW = (CENTRED, SUPERVISED, CREDIT, CLIP_COV, VARIANCE)
STRONGER = (
    Arm("interleaved SFT, every batch", {**NO_PENALTY, "loss.methods.interleaved_sft.every": 1}),
    Arm("GiGPO, weight 4", {**NO_PENALTY, "loss.methods.gigpo.weight": 4.0}),
    Arm("Clip-Cov, 2 %", {**NO_PENALTY, "loss.methods.clip_cov.share": 0.02}),
    Arm("variance filter, half", {**NO_PENALTY, "loss.methods.variance_filter.share": 0.5}),
)
"""Ten, four and a hundred times the dose, and half of the groups."""
CONTROLS = (a.GRPO, a.RELIABLE, a.PLAIN_SAMPLER, a.SAMPLING_MASK)
GRPO = a.GRPO.name
KNOWN = (GRPO, a.SAMPLING_MASK.name, a.LLDS_FIXED.name, a.SAPO_FIXED.name)
TRIED = (GRPO, *(arm.name for arm in NEW))
TRIED_MORE = (GRPO, *(arm.name for arm in STRONGER))


def _falls_too(arm: Arm, where: str, why: str) -> Claim:
    return Claim(
        where=where,
        says=f"{arm.name} falls where plain GRPO falls: {why}.",
        asks="the reward falls, on the seeds on which that of plain GRPO did",
        test=judge.falls(arm.name),
    )


EXPERIMENT = Experiment(
    name="rivals",
    title="Rival explanations",
    shows="what holds where plain GRPO falls, if the drift of a truncated sampler is what makes it fall",
    recipe="flaky",
    arms=(*CONTROLS, a.LLDS_FIXED, a.SAPO_FIXED, *NEW, *STRONGER),
    minutes=8,
    notes=(
        "The sentences are predictions, written before the runs from one explanation: at a prefix the expected update "
        "is E[A]·∇log P(S) + Cov(A, ∇log p), S being what the truncated sampler can draw. The first term moves "
        "probability out of S where the mean advantage is negative.",
        "Score centering subtracts that term, and the sampling mask removes it by another loss. The others leave it.",
        "The sentences on stronger doses were written after the runs of the weaker ones, before their own. That on "
        "interleaved SFT did not come true on one seed, which comes back. Of the filter at one half two seeds come "
        "back.",
    ),
    claims=(
        Claim(
            where="score centering, arXiv 2609.20807",
            says="Score centering prevents the fall: the drift is its cause.",
            asks="it rises and never falls, on the seeds on which plain GRPO fell",
            test=judge.holds_where(CENTRED.name, GRPO),
        ),
        Claim(
            where="log-probs of the loss over what the sampler kept, DeepSeek-V3.2, arXiv 2512.02556",
            says="The sampling mask prevents it too, by another way.",
            asks="it rises and never falls, on the seeds on which plain GRPO fell",
            test=judge.holds_where(a.SAMPLING_MASK.name, GRPO),
        ),
        _falls_too(SUPERVISED, "interleaved SFT, arXiv 2606.26027", "nine of ten steps drift as before"),
        _falls_too(CREDIT, "GiGPO, arXiv 2505.10978", "credit of actions leaves the mean advantage negative"),
        _falls_too(CLIP_COV, "Clip-Cov, arXiv 2505.22617", "it spares one token in five thousand"),
        _falls_too(VARIANCE, "RAGEN-2", "the groups that it keeps have a negative mean over tokens too"),
        Claim(
            where="the same at ten times the dose",
            says="Interleaved SFT after every batch does not fall: it gives back what each batch moves out.",
            asks="it never falls, on the seeds on which plain GRPO fell",
            test=judge.prevents_where(STRONGER[0].name, GRPO),
        ),
        _falls_too(STRONGER[1], "four times the dose", "credit of actions leaves the mean advantage negative"),
        _falls_too(STRONGER[2], "a hundred times the dose", "98 of 100 tokens drift as before"),
        _falls_too(STRONGER[3], "half of the groups", "those that it keeps have a negative mean too"),
        a.OTHER_SAMPLER,
        a.SAME_STEP,
    ),
    figures=(
        *a.dynamics(KNOWN, TRIED, metrics=("reward/mean", "displacement/correct", "entropy/mean")),
        *(Figure("sampler/mask_mass", "Probability of what the sampler can draw", arms) for arms in (KNOWN, TRIED)),
        *a.dynamics(TRIED_MORE, metrics=("reward/mean", "entropy/mean")),
    ),
)
