"""How many correct rollouts lose likelihood in an update."""

from __future__ import annotations

from holdfast_research import judge, signs
from holdfast_research.experiments import arms as a
from holdfast_research.values import Claim, Experiment, Figure

NAMES = (a.GRPO.name, a.RELIABLE.name, a.PLAIN_SAMPLER.name, a.LLDS_ACTION.name)

EXPERIMENT = Experiment(
    name="per-sample",
    title="How many correct rollouts are displaced",
    shows="how many correct rollouts lose likelihood in an update?",
    recipe="flaky",
    arms=(a.GRPO, a.RELIABLE, a.PLAIN_SAMPLER, a.LLDS_FIXED),
    minutes=4.5,
    notes=(
        "The update is the training step on the whole batch, so questions affect one another. The paper updates on "
        "each question alone: under [that update](influence.md) hardly any question is displaced.",
    ),
    claims=(
        Claim(
            paper=a.LLDS_PAPER,
            where="after Figure 3 (v1), with another update: the run's own, on a whole batch",
            says="Late in training, more than half of the correct rollouts lose likelihood in the run's own update.",
            asks="displacement/fraction exceeds one half in some 5 steps before the reward drops",
            test=signs.most_displaced(a.GRPO.name),
        ),
        Claim(
            paper=a.LLDS_PAPER,
            where="Definition 4.1 (v1, v2)",
            says="The mean change of the correct rollouts' likelihood turns negative before the reward falls.",
            asks="the 5-step mean of displacement/correct is below 0 before the reward drops",
            test=signs.displaced_before_drop(a.GRPO.name),
        ),
        Claim(
            where="the same share in a run that holds",
            says="More than half is the mark of a collapse: in plain GRPO with a reliable search it does not occur.",
            asks="displacement/fraction never exceeds one half in 5 steps",
            test=judge.where_it_held(a.RELIABLE.name, signs.never_most_displaced(a.RELIABLE.name)),
        ),
        Claim(
            where="what the penalty is for",
            says="LLDS leaves correct rollouts likelier than plain GRPO does.",
            asks="the mean displacement of the run, seed by seed",
            test=judge.ends_higher(a.LLDS_ACTION.name, a.GRPO.name, judge.DISPLACEMENT),
        ),
    ),
    figures=(
        Figure("displacement/fraction", "Share of correct rollouts displaced", NAMES, "Figure 3"),
        Figure("displacement/correct", "Displacement of correct rollouts, nats per token", NAMES, "Figure 3"),
        Figure("displacement/incorrect", "Displacement of incorrect rollouts, nats per token", NAMES, "Figure 3"),
        Figure("reward/mean", "Reward", NAMES),
    ),
)
