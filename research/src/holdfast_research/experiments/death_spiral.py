"""The death spiral and its remedies: every method against plain GRPO and its controls."""

from __future__ import annotations

from holdfast_research.experiments import arms as a
from holdfast_research.experiments.death_spiral_claims import CLAIMS
from holdfast_research.methods import ADAPTIVE_ANSWERS, GSPO, NO_PENALTY
from holdfast_research.values import Arm, Experiment, Figure

GRPO = a.GRPO.name
ARMS = (
    a.GRPO,
    a.RELIABLE,
    a.PLAIN_SAMPLER,
    a.SAMPLING_MASK,
    a.SEQUENCE_MEAN,
    a.LENGTH_BASELINE,
    a.SMALLER,
    Arm("KL to the reference", NO_PENALTY, a.KL_COEFFICIENTS),
    Arm("LLD", a.llds("token"), a.COEFFICIENTS),
    Arm("LLDS response", a.llds("response"), a.COEFFICIENTS),
    a.LLDS_ACTION,
    Arm("LLDS-MA", {**a.llds("action"), **ADAPTIVE_ANSWERS}, a.COEFFICIENTS),
    a.SAPO_ARM,
    Arm("GSPO", {**NO_PENALTY, **GSPO}, a.GSPO_CLIPS),
    Arm("GSPO + LLDS action", {**a.llds("action"), **GSPO, **a.GSPO_CLIP}, a.COEFFICIENTS),
    a.PAPERS_GSPO,
    a.PAPERS_GSPO_LLDS,
    a.PAPERS_KL,
)

CONTROLS = (
    *(GRPO, a.RELIABLE.name, a.PLAIN_SAMPLER.name),
    *(a.SAMPLING_MASK.name, a.SMALLER.name, "KL to the reference"),
)
MEANS = (a.SEQUENCE_MEAN.name, a.LENGTH_BASELINE.name)
MECHANISM = (
    Figure("advantage/token_mean", "Mean advantage per token: below 0, failures are longer", CONTROLS),
    Figure("advantage/tail_mean", "Mean advantage where the sampler cuts", (*CONTROLS[:4], *MEANS)),
    Figure("sampler/mask_mass", "Probability mass the sampler keeps", CONTROLS),
)

EXPERIMENT = Experiment(
    name="death-spiral",
    title="The death spiral and its remedies",
    shows="does plain GRPO rise and collapse, and what do each method and each control do about it?",
    recipe="flaky",
    arms=ARMS,
    minutes=5,
    notes=(
        "The [recipe is built to collapse](testbed.md). A fifth of the searches in training find nothing. The "
        "sampler has top-p 0.9 and top-k 64, and log-probs are over the whole vocabulary. What prevents this "
        "collapse need not prevent others.",
        "All seeds have one world and one initial checkpoint, so they are runs of one testbed.",
    ),
    claims=CLAIMS,
    picture=Figure("reward/mean", "Reward", (GRPO, a.PLAIN_SAMPLER.name, a.SAMPLING_MASK.name, "LLDS action", "SAPO")),
    figures=(
        *MECHANISM,
        *a.dynamics(
            CONTROLS,
            (GRPO, "LLD", "LLDS response", "LLDS action", "LLDS-MA"),
            (GRPO, "SAPO", "GSPO", "GSPO + LLDS action", *MEANS),
        ),
        *a.dynamics(
            (GRPO, a.PAPERS_KL.name, a.PAPERS_GSPO.name, a.PAPERS_GSPO_LLDS.name),
            metrics=("reward/mean", "entropy/mean"),
        ),
    ),
)
