"""Updates: too large (STP001), ratios that drift (ISD001), gradients that explode (GRD001) or are NaN (GRD002)."""

from __future__ import annotations

from functools import partial

import numpy as np

from holdfast.diagnose.log import Log
from holdfast.diagnose.log.trailing import (
    Truths,
    Values,
    delayed,
    held,
    highest,
    last_where,
    trailing_lowest,
    trailing_mean,
)
from holdfast.diagnose.rules.breaks import BREAKS
from holdfast.diagnose.rules.remedies import PRESERVE_LIKELIHOOD, SMALLER_STEPS, advise
from holdfast.diagnose.rules.rule import ROWS_TO_FORGET, Check, Rows, Rule, Signal, did_no_harm, falling

RATIO, LENGTH, REWARD, CLIPPED = "ratio/log_product", "rollout/length", "reward/mean", "clip/fraction"
POSITIVE_RATIO = "ratio/log_product/positive"
TO_SAMPLER = {"loss.old_policy": "sampler", "algorithm.rollout_correction.bypass_mode": "true"}
"""Settings of the local trainer and of verl under which ratios are to the sampler."""
DISPLACEMENT, LIKELIHOOD = "displacement/correct", "likelihood/correct"

DRIFT_ROWS = 5
DRIFT_NATS = -1.0
"""Nats. The average rollout has become e times less likely within the optimizer steps of one batch. Controls with a
suitable learning rate stay above -0.1, healthy plateaus above -0.75."""
DRIFT_NATS_WHILE_FALLING = -0.5
"""The same while the reward falls. Controls whose reward falls by chance stay above."""
DRIFT_MEMORY_ROWS = 10
"""Rows for which a drift counts as the cause of a fall. The reward falls later, when few correct rollouts are left."""

USUAL_ROWS = 8
"""Rows before an update whose mean size is the usual one."""
FEWEST_ROWS = 3
"""Fewest such rows."""
UNUSUAL_TIMES = 8.0
"""Times the usual size of an update."""
JUMP_NATS = 0.12
"""Nats per token by which one update lowers the likelihood of correct rollouts. Displacement collapses reach 0.16,
but long after they are found."""
FIRST_JUMP_NATS = 0.4
"""The same in the first rows, where nothing is usual yet. Short rollouts move by up to 0.3 in runs that learn."""
JUMP_SHARE = 0.15
"""The same as a share of their log-likelihood."""
RATIO_JUMP_NATS = -0.15
"""Nats per sampled token, from the product of ratios. Single updates of a displacement collapse reach -0.11."""
FIRST_RATIO_JUMP_NATS = -0.06
"""The same in two consecutive rows of the first five, before any decay. Runs that learn begin above -0.002."""
FIRST_ROWS = 5
CLIPPED_FRACTION = 0.1
"""Share of the tokens that one update clips. Harder questions clip 3 %, healthy runs with small batches up to 12 %."""
CLIPPED_TIMES = 2.0
"""Times the largest share before."""


def ratios_begin_at_one(log: Log) -> bool:
    """Whether ratios are to the weights before the update, as far as the log says. Those to the sampler of old rollouts
    sink with age alone, in runs that hold too."""
    return not any(str(log.settings.get(name)).lower() == value for name, value in TO_SAMPLER.items())


def drifts(rows: Rows) -> Signal | None:
    """Rollouts become much less likely within the optimizer steps of one batch. While the reward falls, less is
    enough."""
    (product,) = rows.columns
    smooth = trailing_mean(product, DRIFT_ROWS)
    worst = trailing_lowest(smooth, DRIFT_MEMORY_ROWS)
    far = (smooth < DRIFT_NATS) & held(product < DRIFT_NATS / 2, 3)  # not a single spike
    if not (worst < DRIFT_NATS_WHILE_FALLING).any():
        return None
    where = far | (falling(rows) & (worst < DRIFT_NATS_WHILE_FALLING))
    return Signal(
        where,
        lambda: {rows.names[0]: worst},
        lambda: {"ratio": np.exp(np.minimum(worst, 0.0))},
        normal=worst > DRIFT_NATS_WHILE_FALLING,
    )


def never_updates(log: Log) -> bool:
    """Whether the learning rate is exactly 0 in every row, so that no step can be too large."""
    rate = log.series.get("lr")
    return rate is not None and not rate.rounded and len(rate) > 0 and not rate.values.any()


def unusual(change: Values) -> Truths:
    """[N]: where the absolute value is far above its mean in the rows before; never in the first rows."""
    size = np.abs(change)
    return (size > UNUSUAL_TIMES * delayed(trailing_mean(size, USUAL_ROWS), 1)) & (np.arange(len(size)) >= FEWEST_ROWS)


def lowers_likelihood_at_once(rows: Rows) -> Signal:
    """One update lowers the likelihood of correct rollouts much more than those before it."""
    change, likelihood = rows.columns
    at_first = (-change > FIRST_JUMP_NATS) & (np.arange(len(change)) < FEWEST_ROWS)
    where = (at_first | ((-change > JUMP_NATS) & unusual(change))) & (-change > JUMP_SHARE * -likelihood)
    return Signal(
        where,
        lambda: {DISPLACEMENT: change, LIKELIHOOD: likelihood},
        lambda: {"taken": -change},
        normal=did_no_harm(rows),
    )


def ratio_falls_at_once(rows: Rows) -> Signal:
    """The ratio per token falls suddenly, or is low from the first rows on."""
    product, length = rows.columns
    per_token = product / np.maximum(length, 1.0)
    at_first = held(per_token < FIRST_RATIO_JUMP_NATS, 2) & (np.arange(len(per_token)) < FIRST_ROWS)
    where = at_first | ((per_token < RATIO_JUMP_NATS) & unusual(per_token))
    ratio = np.exp(np.minimum(per_token, 0.0))
    return Signal(
        where,
        lambda: {RATIO: product, "log-ratio per token": per_token},
        lambda: {"ratio": ratio},
        normal=did_no_harm(rows),
    )


def clips_much(rows: Rows) -> Signal | None:
    """One update clips many tokens, either suddenly or while the reward falls."""
    clipped, reward = rows.columns
    before = delayed(highest(clipped), 1)
    if not (clipped > CLIPPED_FRACTION).any():
        return None
    where = (clipped > CLIPPED_FRACTION) & ((clipped > CLIPPED_TIMES * before) | falling(rows))
    return Signal(
        where,
        lambda: {CLIPPED: clipped, "most before": before, REWARD: reward},
        normal=did_no_harm(rows),
    )


STP001 = Rule(
    code="STP001",
    title="step too large",
    needs=((DISPLACEMENT, LIKELIHOOD), (RATIO, LENGTH), (CLIPPED, REWARD)),
    checks=(
        Check(
            series=(DISPLACEMENT, LIKELIHOOD),
            signal=lowers_likelihood_at_once,
            rows_normal=ROWS_TO_FORGET,
            message="One update suddenly lowered the likelihood of its own correct rollouts by {taken:.2g} nats per "
            "token.",
            look_at=(DISPLACEMENT, REWARD),
        ),
        Check(
            series=(RATIO, LENGTH),
            signal=ratio_falls_at_once,
            rows_normal=ROWS_TO_FORGET,
            message="The importance ratio suddenly fell to {ratio:.2f} per sampled token within one rollout batch.",
            look_at=(RATIO, REWARD),
        ),
        Check(
            series=(CLIPPED, REWARD),
            signal=clips_much,
            rows_normal=ROWS_TO_FORGET,
            message="An update clipped {clip/fraction:.0%} of the tokens. No earlier update clipped more than "
            "{most before:.1%}.",
            better=((RATIO,),),
        ),
        *BREAKS,
    ),
    applies=lambda log: not never_updates(log),
    # With TRN001, correct rollouts are the short ones, and lose likelihood because long ones gain it. With SMP001, the
    # samples are another policy's.
    suppressed_by=("TRN001", "SMP001"),
    # In a policy that decays slowly, a jump is the end of that decay.
    suppressed_by_earlier=("LLD001", "LLD002", "LLD003", "ISD001", "ENT001"),
    meaning="One update changes the policy so much that the reward falls within a few steps. No slow decay comes "
    "before it.",
    impact="The optimizer overshoots. Likelihood-preserving penalties delay this, but do not prevent it where the step "
    "is the cause.",
    remedy=SMALLER_STEPS,
    limitations="If the log has neither displacement nor `ratio/log_product`, the rule uses weaker evidence. Either "
    "an update clips more than 10 % of the tokens, and the reward falls or no earlier update clipped "
    "half as many. Or the reward is lost within three rows while entropy or clipping jumps. "
    "Sequence-level clipping always clips that many tokens, so there a falling reward alone causes a "
    "finding. After LLD001 to LLD003, a jump is the end of that decay, and this rule reports nothing.",
)

ISD001 = Rule(
    code="ISD001",
    title="importance ratios drift",
    needs=((POSITIVE_RATIO,), (RATIO,)),
    applies=ratios_begin_at_one,
    checks=(
        Check(
            series=(POSITIVE_RATIO,),
            signal=drifts,
            message="Importance ratios drift: the ratios of an average rollout with A > 0 multiply to {ratio:.2g} "
            "within the optimizer steps of one batch.",
            min_rows=DRIFT_ROWS,
        ),
        Check(
            series=(RATIO,),
            signal=drifts,
            message="Importance ratios drift: the ratios of an average rollout multiply to {ratio:.2g} within the "
            "optimizer steps of one batch.",
            min_rows=DRIFT_ROWS,
            better=((POSITIVE_RATIO,),),
        ),
    ),
    meaning="Within the optimizer steps of one batch, the importance ratios of a rollout with A > 0 multiply to far "
    "less than 1.",
    impact="The ratio of a token scales its gradient. A correct token whose ratio is near 0 has almost no gradient, "
    "so its probability cannot recover (importance-sampling distribution drift, arXiv 2603.10069).",
    remedy=PRESERVE_LIKELIHOOD,
    limitations="Without `ratio/log_product/positive`, the mean includes incorrect rollouts, which should lose "
    "likelihood. The product is over tokens, so long rollouts drift sooner. While the reward falls, half "
    "the usual drift is enough for a finding. Ratios to the sampler of old rollouts sink with age alone: where the "
    "settings in the log have them (verl's bypass mode), the rule reports nothing; TRL's AsyncGRPOTrainer always has "
    "them, and its log does not say so.",
)


NORM, SKIPPED = "grad/norm", "grad/skipped_steps"
MUST_BE_FINITE = (NORM, "loss/policy", "loss/host", "loss/kl", "loss/penalty", "entropy/mean", "loss")
MAY_LACK_TOKENS = ("kl/reference", "ratio/mean", RATIO, CLIPPED)
"""Means over tokens, which some trainers log as NaN for a batch whose tokens are all left out of the loss."""
ROWS_OF_NAN = 3
"""Consecutive rows without a finite value that such batches do not explain."""

EXPLOSION_TIMES = 10.0
"""Times the usual norm. Isolated spikes of 4 to 36 times the median occur in runs that end well."""
ABOVE_LARGEST_TIMES = 2.0
"""Times the largest norm before. If many groups have no contrast, norms of 0 and of 9 alternate."""
BACK_TIMES = 3.0
"""An explosion is over when the mean of the last rows is below this many times the norm that was usual before it."""
USUAL_NORM_ROWS = 10
"""The usual norm is the mean of this many rows, and ends two rows before."""


def explodes(rows: Rows) -> Signal | None:
    """The gradient norm is far above its usual value and above every earlier one. Norms of 0 are left out: without
    contrast there is no gradient."""
    (norm,) = rows.columns
    known = norm[last_where(norm > 0)]
    usual = delayed(trailing_mean(known, USUAL_NORM_ROWS), 2)
    where = (norm > EXPLOSION_TIMES * usual) & (norm > ABOVE_LARGEST_TIMES * delayed(highest(norm), 2)) & (usual > 0)
    if not where.any():
        return None
    is_back = trailing_mean(known, USUAL_NORM_ROWS) < BACK_TIMES * usual[last_where(where)]
    return Signal(
        where, lambda: {NORM: norm, "usual": usual}, lambda: {"times": norm / np.maximum(usual, 1e-12)}, is_back
    )


def is_not_finite(rows: Rows) -> Signal:
    """The value is NaN or infinite. A trainer writes NaN as the reward if no rollout of the batch has one, which is not
    a fault. Weights that are NaN make every later value NaN, so finite ones show that the update was skipped."""
    (values,) = rows.columns
    if rows.names == (REWARD,):
        return Signal(np.isinf(values), lambda: {REWARD: values})
    bad = ~np.isfinite(values)
    return Signal(bad, lambda: {rows.names[0]: values}, normal=~bad)


def stays_not_finite(rows: Rows, *, at_first: bool) -> Signal:
    """The value has been NaN or infinite for three rows. With `at_first`, only where it always was; without it, only
    after finite values."""
    (values,) = rows.columns
    bad = ~np.isfinite(values)
    never = np.cumsum(~bad) == 0
    return Signal(held(bad, ROWS_OF_NAN) & (never == at_first), lambda: {rows.names[0]: values}, normal=~bad)


def skips(rows: Rows) -> Signal:
    """Optimizer steps were skipped."""
    (skipped,) = rows.columns
    return Signal(skipped > 0, lambda: {SKIPPED: skipped}, normal=did_no_harm(rows))


GRD001 = Rule(
    code="GRD001",
    title="gradient explosion",
    kind="symptom",
    needs=((NORM,),),
    checks=(
        Check(
            series=(NORM,),
            signal=explodes,
            message="The gradient norm explodes: {grad/norm:.3g}, which is {times:.0f} times its usual value.",
            min_rows=USUAL_NORM_ROWS // 2 + 1,
            rows_running=2,
        ),
    ),
    meaning="The gradient norm stays more than ten times above its usual value.",
    impact="With norm clipping, the step has a bounded size but a nearly random direction. Without clipping, the "
    "step ruins the weights.",
    remedy=SMALLER_STEPS,
    limitations="Single spikes are ignored. If the trainer logs the norm after clipping, the rule finds nothing.",
)

CUDNN = (
    "With PyTorch 2.11 or newer on an H100 and its like, first switch off attention by cuDNN, whose gradients can be "
    "NaN: `torch.backends.cuda.enable_cudnn_sdp(False)`."
)
"""github.com/pytorch/pytorch/issues/196678. holdfast's own trainer does so, and verl has another attention."""

GRD002 = Rule(
    code="GRD002",
    title="non-finite gradient, loss, KL or reward",
    kind="logged cause",
    needs=((SKIPPED,), (NORM,), ("loss/policy",), ("loss",)),
    equal_needs=True,
    every_row=True,
    checks=(
        Check(
            series=(REWARD,),
            signal=is_not_finite,
            message="The reward is infinite, so the advantages are not finite either.",
            raw=True,
        ),
        *(
            Check(
                series=(name,),
                signal=is_not_finite,
                message=f"{name} is not a finite number. If the trainer does not skip this update, it ruins the "
                "weights.",
                raw=True,
            )
            for name in MUST_BE_FINITE
        ),
        *(
            Check(
                series=(name,),
                signal=partial(stays_not_finite, at_first=at_first),
                message=f"{name} is not a finite number in any row so far. What it is computed from may be broken."
                if at_first
                else f"{name} was a finite number and has not been one for {ROWS_OF_NAN} rows. The weights may be "
                "ruined.",
                raw=True,
                level="note" if at_first else "finding",
            )
            for name in MAY_LACK_TOKENS
            for at_first in (False, True)
        ),
        Check(
            series=(SKIPPED,),
            signal=skips,
            rows_normal=ROWS_TO_FORGET,
            message="{grad/skipped_steps:g} optimizer steps were skipped because their gradient was not finite.",
        ),
    ),
    meaning="A loss or a gradient is NaN or infinite, a KL or an importance ratio becomes so, or a reward is infinite.",
    impact="One NaN in a gradient makes every weight NaN, unless the trainer skips the update. Skipping saves the "
    "weights but hides the cause. Common causes: exp() of an unbounded log-ratio, half precision, arithmetic "
    "on masked tokens (0 · ∞).",
    remedy=advise(
        "Lower the [learning rate], clip the [norm of the gradient] at 1, train in [full precision], and bound the "
        "[importance ratio]. Mask tokens before the arithmetic, not after it.",
        also={"trl": f"`with_penalties(GRPOTrainer)` does so. {CUDNN}", "unknown": CUDNN},
    ),
    limitations="The rule misses a NaN that the trainer leaves out of its log or writes as 0. A KL that is NaN "
    "from the first row on is a note: if the loss used it, the loss or the gradient would be NaN too, and that is a "
    "finding. If the reward is infinite, none of these settings helps: look for a division by "
    "0 in the reward function.",
)
