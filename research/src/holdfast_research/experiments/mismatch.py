"""A sampler that differs by age or by rounding, without truncation. Each claim is a prediction made before the runs."""

from __future__ import annotations

from holdfast_research import judge
from holdfast_research.experiments import arms as a
from holdfast_research.methods import NO_PENALTY, UNTRUNCATED
from holdfast_research.values import Arm, Claim, Experiment, Figure

EIGHT_BITS = Arm("8-bit sampler", {**NO_PENALTY, **UNTRUNCATED, "faults.sampler_8_bits": True})
FOUR_OLD = Arm("4 batches old", {**NO_PENALTY, **UNTRUNCATED, "faults.stale_batches": 4})
SIXTEEN_OLD = Arm("16 batches old", {**NO_PENALTY, **UNTRUNCATED, "faults.stale_batches": 16})
ONE_OLD = Arm("1 batch old", {**NO_PENALTY, **UNTRUNCATED, "faults.stale_batches": 1})
OLD_LLDS = Arm("4 batches old, LLDS action", {**FOUR_OLD.settings, **a.LLDS_FIXED.settings})
OLD_SAPO = Arm("4 batches old, SAPO", {**FOUR_OLD.settings, **a.SAPO_FIXED.settings})
WEIGHTED = Arm("4 batches old, TIS", {**FOUR_OLD.settings, "loss.methods.sampler_weights.on": True})
CURES = (OLD_LLDS, OLD_SAPO, WEIGHTED)
TRIED = (a.PLAIN_SAMPLER, EIGHT_BITS, FOUR_OLD, SIXTEEN_OLD)
NAMES = tuple(arm.name for arm in TRIED)
OLD = (FOUR_OLD.name, *(arm.name for arm in CURES))
WHERE = "an untruncated sampler whose weights are not those that learn"


def _cured(arm: Arm, why: str) -> Claim:
    return Claim(
        where=WHERE,
        says=f"{arm.name} does not fall where rollouts four batches old did: {why}.",
        asks="it rises and never falls, on the seeds on which rollouts four batches old fell",
        test=judge.holds_where(arm.name, FOUR_OLD.name),
    )


EXPERIMENT = Experiment(
    name="mismatch",
    title="A sampler that differs by age or rounding",
    shows="whether a stale sampler, or one of 8 bits, makes plain GRPO fall without truncation",
    recipe="flaky",
    arms=(a.GRPO, a.RELIABLE, *TRIED, ONE_OLD, *CURES),
    minutes=8,
    notes=(
        "Rollouts are sampled from the whole vocabulary, by the weights of some batches ago or by weights rounded to "
        "8 bits (E4M3, each row scaled). Ratios are to the weights before the update, as without these faults, so "
        "nothing corrects for the sampler.",
        "The sentences are predictions, written before the runs. A truncated sampler differs in one direction at every "
        "step: it never draws what it cuts. Rounding has no direction that lasts. Age has one, away from what the "
        "policy was, and it grows with age.",
        "The arms with a batch of age 1 and with a cure, and their predictions, were added when the first run of four "
        "batches had fallen, before they were run.",
    ),
    claims=(
        Claim(
            where="the control: the same sampler with the weights that learn",
            says="Untruncated and fresh, plain GRPO learns and holds.",
            asks="it rises and never falls",
            test=judge.holds(a.PLAIN_SAMPLER.name),
        ),
        Claim(
            where=WHERE,
            says="A sampler of 8 bits does not make it fall.",
            asks="it rises and never falls",
            test=judge.holds(EIGHT_BITS.name),
        ),
        Claim(
            where=WHERE,
            says="Rollouts four batches old do not make it fall.",
            asks="it rises and never falls",
            test=judge.holds(FOUR_OLD.name),
        ),
        Claim(
            where=WHERE,
            says="Rollouts sixteen batches old do: wrong rollouts that the policy has given up keep being punished.",
            asks="the reward falls",
            test=judge.falls(SIXTEEN_OLD.name),
        ),
        Claim(
            where=WHERE,
            says="Rollouts one batch old do not make it fall.",
            asks="it rises and never falls",
            test=judge.holds(ONE_OLD.name),
        ),
        _cured(WEIGHTED, "it corrects for the sampler, token by token"),
        _cured(OLD_LLDS, "it gives likelihood back where right rollouts lost it"),
        _cured(OLD_SAPO, "so does its KL"),
    ),
    figures=(
        *a.dynamics(NAMES, metrics=("reward/mean", "displacement/correct", "entropy/mean")),
        Figure("sampler/logprob_gap", "Log-prob of the sampler above the learner's, nats per token", NAMES),
        *a.dynamics(OLD, metrics=("reward/mean", "entropy/mean")),
    ),
)
