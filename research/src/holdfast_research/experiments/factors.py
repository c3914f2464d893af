"""The factors of the testbed, each switched alone: what makes this agent prone to collapse?"""

from __future__ import annotations

from holdfast_research import judge
from holdfast_research.experiments import arms as a
from holdfast_research.experiments.death_spiral_claims import COLLAPSES, FALL, PLATEAU
from holdfast_research.methods import NO_PENALTY, Settings
from holdfast_research.values import Arm, Claim, Experiment

GRPO = a.GRPO.name

PUBLISHED = "top-p 0.95 alone, twice as long"


def _arm(name: str, settings: Settings) -> Arm:
    return Arm(name, {**NO_PENALTY, **settings})


TOOL = (
    _arm("one search in ten fails", {"faults.search_failure_rate": 0.1}),
    _arm("one hop", {"world.two_hop": 0}),
    _arm("no tool", {"protocol.max_turns": 1, "world.scripts.skip_search": 1}),
)
SAMPLER = (a.PLAIN_SAMPLER, a.SAMPLING_MASK)
TRUNCATION = (
    _arm("top-p alone", {"sampling.top_k": 0}),
    _arm("top-k alone", {"sampling.top_p": 1}),
    _arm("top-p 0.95 and top-k", {"sampling.top_p": 0.95}),
    _arm(PUBLISHED, {"sampling.top_p": 0.95, "sampling.top_k": 0, "train.steps": 160}),
)
LANGUAGE = (
    _arm("short filler", {"world.filler_length": [1, 2]}),
    _arm("no filler", {"world.filler_words": 0, "world.scripts.ramble": 0}),
    _arm("no rambles", {"world.scripts.ramble": 0}),
)
LOSS = (
    a.SEQUENCE_MEAN,
    _arm("advantage without std", {"loss.advantage": "dr_grpo"}),
    a.LENGTH_BASELINE,
    _arm("entropy bonus against", {"loss.entropy_coef": -0.01}),
)
SCHEDULE = (
    _arm("half the step, twice as long", {"train.lr": 7.5e-5, "train.steps": 160, "train.warmup": 30}),
    _arm("no warm-up", {"train.warmup": 0}),
    _arm("groups of ten", {"train.group_size": 10, "train.questions": 16}),
    _arm("half the batch", {"train.questions": 16}),
)
GROUPS = (TOOL, SAMPLER, TRUNCATION, LANGUAGE, LOSS, SCHEDULE)


def _answers(arm: str, where: str, says: str) -> Claim:
    return Claim(
        where=where,
        says=says,
        asks=f"{arm} does not lose 40 % of its peak on the seeds on which the whole recipe did",
        test=judge.prevents_where(arm, GRPO),
    )


EXPERIMENT = Experiment(
    name="factors",
    title="What makes the testbed prone",
    shows="each factor of the testbed switched alone, in tool, sampler, language, loss and schedule",
    recipe="flaky",
    arms=(a.GRPO, a.RELIABLE, *(arm for group in GROUPS for arm in group)),
    minutes=4.5,
    notes=(
        "A factor that changes the world or the scripts has its own warm start, so its runs begin with another policy.",
        "Without the tool every question is a guess and there is next to no reward. So that arm can show that nothing "
        "collapses, and little more.",
    ),
    claims=(
        COLLAPSES,
        PLATEAU,
        a.SAME_STEP,
        a.OTHER_SAMPLER,
        a.SAME_SAMPLER,
        a.OTHER_MEAN,
        a.OTHER_BASELINE,
        Claim(
            where="research/docs/testbed.md, the mechanism: its pace is the step times the mean advantage per token",
            says="Half the learning rate only postpones it.",
            asks=f"with half the learning rate and twice the steps {FALL}, and drops 5 steps later",
            test=judge.falls_after_delay("half the step, twice as long", GRPO),
        ),
        _answers("one search in ten fails", "the same, weaker", "Fewer failed searches do not collapse it."),
        _answers("one hop", "multi-turn questions", "Questions of one hop do not collapse."),
        Claim(
            where="top-p 0.95 without top-k: the sampler of SAPO's paper and of LLDS's script",
            says="At the published truncation it collapses too, only later.",
            asks=f"in twice the steps {FALL}, and drops 5 steps later",
            test=judge.falls_after_delay(PUBLISHED, GRPO),
        ),
        _answers("top-p alone", "top-p 0.9 without top-k", "Top-p without top-k does not collapse."),
        _answers("top-k alone", "the other half of the sampler", "Top-k without top-p does not collapse."),
        _answers("short filler", "Theorem 4.2: low-probability tokens", "With little filler nothing collapses."),
        _answers("no filler", "Theorem 4.2: low-probability tokens", "Thoughts of low entropy do not collapse."),
        _answers("entropy bonus against", "what the penalties do besides", "Pushing entropy down is enough."),
        _answers("groups of ten", "SAPO trains with groups of ten", "Larger groups do not collapse."),
    ),
    figures=tuple(
        figure
        for group in GROUPS
        for figure in a.dynamics(
            (GRPO, *(arm.name for arm in group)),
            metrics=("reward/mean", "entropy/mean", "rollout/length", "displacement/correct"),
        )
    ),
)
