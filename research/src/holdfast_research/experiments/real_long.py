"""A real pretrained model over as many rollout batches as the papers' runs take to collapse. Each claim is a prediction
made before the runs."""

from __future__ import annotations

from holdfast_research import judge
from holdfast_research.experiments import arms as a
from holdfast_research.experiments.factbook import EXPERIMENT as FACTBOOK
from holdfast_research.values import Claim, Experiment, Figure

ARMS = (a.GRPO, a.LLDS_FIXED, a.SAPO_FIXED)
NAMES = tuple(arm.name for arm in ARMS)
WHERE = "a pretrained model, real prose, 150 batches of rollouts at the step size of `factbook`"


EXPERIMENT = Experiment(
    name="real-long",
    title="A real model over 150 batches",
    shows="SmolLM2-135M on the World Factbook for as long as the papers' models need to collapse",
    recipe="factbook",
    arms=ARMS,
    minutes=8,
    settings={
        "train.steps": 150,
        "train.micro_batch_tokens": 8192,
        "eval.every": 25,
        "eval.start": False,
        "checkpoint.every": 0,
    },
    notes=(
        "The recipe is that of `factbook`, with 150 batches instead of 24. Each batch has four optimizer steps, so a "
        "run has 600.",
        "It is made for a GPU, where passes are under autocast to bf16: `--run.device cuda --jobs 6`. On a core of a "
        "CPU a run takes hours.",
        "The sentences are predictions, written before the runs: they are what the papers saw on models of 3 and 7 "
        "billion parameters.",
        "One pair of runs went to the end, on seed 13. There plain GRPO does not fall. The likelihood of its correct "
        "rollouts rises, and its entropy sinks from .08 to .02 nats. It does not babble, and it does not stop "
        "searching.",
        "LLDS is slower and arrives at the same place: .81 on 100 dev questions, sampled, after 25 batches, where "
        "plain GRPO has .98, and .98 both after 150. So what LLDS at λ = 1 loses in the 24 batches of `factbook` is, "
        "on this seed, time.",
        "Four runs on seeds 14 and 15, and one with SAPO, were begun beside them and stopped after 11 to 45 batches, "
        "because the time on the card ended. They are not kept.",
    ),
    claims=(
        Claim(
            where=WHERE,
            says="Plain GRPO falls within 150 batches.",
            asks="the reward falls",
            test=judge.falls(a.GRPO.name),
        ),
        a.no_fall_where_grpo_fell(a.LLDS_FIXED, WHERE, "it gives likelihood back where right rollouts lost it"),
        a.no_fall_where_grpo_fell(a.SAPO_FIXED, WHERE, "so does its KL"),
        *(
            Claim(
                where=WHERE,
                says=f"{arm} ends above plain GRPO.",
                asks="sampled exact match on the test questions",
                test=judge.ends_higher(arm, a.GRPO.name),
            )
            for arm in NAMES[1:]
        ),
    ),
    figures=(
        *a.dynamics(
            NAMES,
            metrics=("reward/mean", "likelihood/correct", "displacement/correct", "entropy/mean", "grad/norm"),
        ),
        Figure("rollout/searches", "Searches per rollout", NAMES),
        Figure("rollout/invalid_fraction", "Invalid turns, share", NAMES),
        Figure("penalty/active_fraction", "Tokens that the penalty acts on, share", NAMES[1:]),
    ),
    short=FACTBOOK.short,
    drawn=FACTBOOK.drawn,
    first_seed=FACTBOOK.first_seed,
)
