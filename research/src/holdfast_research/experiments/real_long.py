"""A real pretrained model over as many rollout batches as the papers' runs take to collapse. Each claim is a prediction
made before the runs."""

from __future__ import annotations

from holdfast_research import judge
from holdfast_research.experiments import arms as a
from holdfast_research.experiments.death_spiral_claims import ends_higher
from holdfast_research.experiments.factbook import EXPERIMENT as FACTBOOK
from holdfast_research.values import Claim, Experiment, Figure

ARMS = (a.GRPO, a.LLDS_FIXED, a.SAPO_FIXED)
NAMES = tuple(arm.name for arm in ARMS)
WHERE = "a pretrained model, real prose, 150 batches of rollouts at the step size of `factbook`"


EXPERIMENT = Experiment(
    name="real-long",
    title="A real model over 150 batches",
    shows="does SmolLM2-135M collapse in as many batches as the papers' models needed?",
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
        "The recipe of [factbook](factbook.md), with 150 batches instead of 24: 600 optimizer steps. Made on a GPU, "
        "under autocast to bf16 (`--run.device cuda --jobs 6`). The sentences are predictions, written before the "
        "runs: they are what the papers saw on models of 3 and 7 billion parameters.",
        "One pair of runs went to the end. Plain GRPO does not fall: its correct rollouts become likelier, and its "
        "entropy sinks from .10 to .02 nats, in five-batch means.",
        "LLDS at λ = 1 is slower, and arrives at the same place. On 100 dev questions, sampled, it has .81 after 25 "
        "batches, where plain GRPO has .98; after 150 both have .98.",
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
            claim
            for arm in NAMES[1:]
            for claim in ends_higher(arm, a.GRPO.name, where=WHERE, says=f"{arm} ends above plain GRPO.")
        ),
    ),
    picture=Figure("reward/mean", "Reward", NAMES[:2]),
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
