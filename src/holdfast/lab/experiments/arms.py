"""Arms and figures that experiments share, so that a method is written down once."""

from __future__ import annotations

from holdfast.lab.judge import does_not_collapse
from holdfast.lab.values import Arm, Claim, Figure, Sweep

LLDS_PAPER = "LLDS, arXiv 2512.04220"
SAPO_PAPER = "SAPO, arXiv 2603.10069"

STRENGTHS = Sweep(("loss.penalty.coef",), (("0.2",), ("0.5",), ("1.0",)))
"""Of every likelihood-preserving penalty, over the tokens it protects. λ of the paper is 0.2."""
SAPO_STRENGTHS = Sweep(("loss.penalty.coef",), (("0.1",), ("0.5",), ("1.0",)))
"""γ of the paper is 0.1."""
GSPO_CLIPS = Sweep(("loss.clip_low", "loss.clip_high"), (("3e-4", "4e-4"), ("3e-3", "4e-3"), ("0.2", "0.2")), usual=0)
"""GSPO's own, ten times it, and GRPO's, with which the LLDS paper ran it."""
KL_STRENGTHS = Sweep(("loss.kl_coef",), (("0.001",), ("0.01",), ("0.1",)), usual=2)
STEPS = Sweep(("train.lr",), (("6e-5",), ("1.2e-4",), ("3e-4",)))
"""The recipe's learning rate, 6e-4, divided by ten, five and two."""

NONE = ("--loss.penalty.name", "none")
_OVER_PROTECTED = ("--loss.penalty.normalizer", "paper")
LLDS = ("--loss.penalty.name", "llds", *_OVER_PROTECTED)
SAPO = ("--loss.penalty.name", "sapo", *_OVER_PROTECTED)
GSPO = ("--loss.ratio", "sequence", "--loss.reduction", "seq-mean-token-mean")
GSPO_CLIP = ("--loss.clip_low", "3e-4", "--loss.clip_high", "4e-4")
UNTRUNCATED = ("--sampling.top_p", "1", "--sampling.top_k", "0")
HALF = ("--loss.penalty.coef", "0.5")

GRPO = Arm("GRPO", NONE, control=True)
SANE = Arm("GRPO, sane step", NONE, STEPS, control=True)
SANE_FIXED = Arm("GRPO, sane step", (*NONE, "--train.lr", "1.2e-4"), control=True)
PLAIN_SAMPLER = Arm("GRPO, untruncated sampler", (*NONE, *UNTRUNCATED), control=True)
LLDS_ACTION = Arm("LLDS action", (*LLDS, "--loss.penalty.gate", "action"), STRENGTHS)
LLDS_ACTION_FIXED = Arm("LLDS action", (*LLDS, "--loss.penalty.gate", "action", *HALF))

SMALLER_STEP = Claim(
    paper="control",
    where="docs/results.md, a first collapse control",
    says="The collapse here is not merely a step too large: at a smaller step the same recipe learns and holds.",
    asks="plain GRPO with a smaller learning rate keeps 85 % of its peak. If it does, a smaller step is a cure too, "
    "and no penalty is needed to avoid this collapse",
    test=does_not_collapse(SANE.name),
)
OTHER_SAMPLER = Claim(
    paper="control",
    where="docs/results.md, a first collapse control",
    says="The collapse here owes itself to the truncated sampler: untruncated, the same recipe learns and holds.",
    asks="plain GRPO sampled at top-p 1 without top-k keeps 85 % of its peak",
    test=does_not_collapse(PLAIN_SAMPLER.name),
)

DYNAMICS = (
    ("reward/mean", "Reward", "Figures 2 and 6"),
    ("likelihood/correct", "Likelihood of correct rollouts, nats per token", "Figures 2 and 4"),
    ("likelihood/incorrect", "Likelihood of incorrect rollouts, nats per token", "Figure 4"),
    ("displacement/correct", "Displacement of correct rollouts, nats per token", "Definition 4.1"),
    ("entropy/mean", "Entropy, nats per token", "Figure 4"),
    ("rollout/length", "Sampled tokens per rollout", "Figure 4"),
    ("grad/norm", "Gradient norm before clipping", "Figure 2"),
    ("ratio/log_product", "ln of the product of a rollout's ratios", "SAPO, Figure 1"),
)
"""(metric, title, what in the papers it stands beside: figures of LLDS unless SAPO is named)."""


def dynamics(*groups: tuple[str, ...], metrics: tuple[str, ...] = ()) -> tuple[Figure, ...]:
    """The curves of `DYNAMICS`, or of those `metrics`, for each group of arms."""
    wanted = [row for row in DYNAMICS if not metrics or row[0] in metrics]
    return tuple(Figure(metric, title, arms, after) for metric, title, after in wanted for arms in groups)
