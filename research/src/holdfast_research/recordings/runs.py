"""The runs of every organism: arm, cause, seeds. `record_plan` has the organisms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from holdfast_research.methods import UNTRUNCATED as UNTRUNCATED_SAMPLER
from holdfast_research.methods import words
from holdfast_research.pages.seeds import ARMS
from holdfast_research.recordings.plan import (
    COLLAPSE,
    COLLAPSE_TRL,
    CURT,
    ECHO,
    MIRROR,
    ORDER,
    QUICKSTART,
    RAMBLER,
    STRAYER,
    Organism,
    Planned,
)
from holdfast_research.recordings.second import second_runs
from holdfast_research.recordings.third import pilot_runs, third_runs

_TRUNCATED = ("sampler-mismatch",)  # what the collapse recipe has beside everything else
_LONGER = "with the present code, 80 steps"
_CURES = {  # arms of holdfast_research.pages.seeds, 60 steps, in whose runs the reward holds
    "sane-step": ("GRPO, sane step (lr / 5)", (1, 2, 3)),
    "untruncated": ("GRPO, untruncated sampler", (1, 2, 3)),
    "gspo": ("GSPO (clip 3e-4, 4e-4)", (1, 3)),
    "llds": ("LLDS action gate, A >= 0", (1, 2, 3)),
    "llds-correct": ("LLDS action gate, correct", (1, 2)),
    "llds-published": ("LLDS action gate, published 0.2", (2,)),
    "sapo": ("SAPO, 0.5", (1, 2)),
}


def collapse_runs() -> Iterator[Planned]:
    """The collapse recipe as shipped, and its controls and cures."""
    overrides = ARMS["collapse"]
    for arm, (title, seeds) in _CURES.items():
        for seed in seeds:
            yield Planned(
                organism=COLLAPSE,
                arm=arm,
                cause="healthy-sharpening",
                seed=seed,
                how=f"{title}: the reward rises and holds",
                settings=tuple(words(overrides[title])),
                also=() if arm == "untruncated" else _TRUNCATED,
            )
    for seed in (1, 2, 3):
        make = partial(Planned, organism=COLLAPSE, seed=seed, also=_TRUNCATED)
        yield make(arm="grpo", cause="displacement", how="plain GRPO, the recipe as it is, 60 steps")
        yield make(arm="grpo-80", cause="displacement", how=f"the same {_LONGER}", steps=80)
        yield make(
            arm="llds-80",
            cause="healthy-sharpening",
            how=f"LLDS at coefficient 0.5 over all tokens, {_LONGER}",
            settings=("--loss.penalty.name", "llds", "--loss.penalty.coef", "0.5"),
            steps=80,
        )


UNTRUNCATED = tuple(words(UNTRUNCATED_SAMPLER))
_HALF = ("--loss.penalty.normalizer", "preserved", "--loss.penalty.coef", "0.5")
_LABORATORY = {  # arms of the laboratory when the collapse recipe was its organism: name there, cause, settings, seeds
    "lab-grpo": ("GRPO", "displacement", (), (11,)),
    "lab-sane-step": ("GRPO, sane step", "healthy-sharpening", ("--train.lr", "1.2e-4"), (11,)),
    "lab-untruncated": ("GRPO, untruncated sampler", "healthy-sharpening", UNTRUNCATED, (11,)),
    "lab-kl": ("KL to the reference", "healthy-sharpening", ("--loss.kl_coef", "0.1"), (11,)),
    "lab-lld": (
        "LLD",
        "healthy-sharpening",
        ("--loss.penalty.name", "llds", "--loss.penalty.gate", "token", *_HALF),
        (11,),
    ),
    "lab-sapo": ("SAPO", "healthy-sharpening", ("--loss.penalty.name", "sapo", *_HALF), (11,)),
}


def laboratory_runs() -> Iterator[Planned]:
    """Runs of the laboratory: the same recipe, longer, other seeds."""
    for arm, (title, cause, settings, seeds) in _LABORATORY.items():
        for seed in seeds:
            yield Planned(
                organism=COLLAPSE,
                arm=arm,
                cause=cause,
                seed=seed,
                how=f"{title}, an arm of the laboratory's death spiral, 80 steps",
                settings=settings,
                also=() if settings == UNTRUNCATED else _TRUNCATED,
                steps=80,
            )


def collapse_trl_runs() -> Iterator[Planned]:
    """`benchmarks/engines.py`, the arms in TRL."""
    for seed in (1, 2, 3):
        make = partial(Planned, organism=COLLAPSE_TRL, seed=seed, also=_TRUNCATED)
        yield make(arm="grpo", cause="displacement", how="the launched script of the collapse recipe")
        yield make(
            arm="llds",
            cause="healthy-sharpening",
            how="the same with LLDS at coefficient 0.5",
            settings=("--loss.penalty.name", "llds", "--loss.penalty.coef", "0.5"),
        )


def quickstart_runs() -> Iterator[Planned]:
    """The quickstart as shipped, and its control."""
    for arm, title in (("llds", "LLDS action gate"), ("grpo", "GRPO (control)")):
        for seed in (1, 2, 3):
            yield Planned(
                organism=QUICKSTART,
                arm=arm,
                cause="healthy-sharpening",
                seed=seed,
                how=f"{title}: 40 steps of the quickstart",
                settings=tuple(words(ARMS["quickstart"][title])),
            )


_SPIRAL = (
    *("--sampling.top_p", "0.9", "--sampling.top_k", "64"),
    *("--train.lr", "9e-4", "--train.optimizer_steps_per_rollout", "10"),
)
_DECAY = ("--train.lr", "7e-4", "--train.optimizer_steps_per_rollout", "10", "--train.warmup", "15")
_FAULTS = {
    # arm: (cause, the function of record_faults, start, settings, what was done)
    "giant-steps": ("step-too-large", "giant_steps", 25, "", "the learning rate times 30 from step 26 on"),
    "large-steps": ("step-too-large", "", 0, "--train.lr 8e-3", "about 25 times the learning rate that works"),
    "overflow": ("non-finite", "overflow", 20, "", "a learning rate that overflows the weights, at step 21"),
    "poisoned": ("non-finite", "poisoned", 20, "", "advantages that are not a number, from step 21 on"),
    "dead": ("dead-retriever", "dead_retriever", 25, "", "the retriever fails from step 26 on"),
    "ailing": ("dead-retriever", "ailing_retriever", 25, "", "85 % of the retriever's calls fail from step 26 on"),
    "empty": ("empty-retriever", "empty_retriever", 25, "", "the retriever finds nothing from step 26 on"),
    "leak": ("masked-leak", "masked_leak", 0, "", "observations in the loss mask"),
    "late-leak": ("masked-leak", "masked_leak", 20, "", "observations in the loss mask from step 21 on"),
    "stale": ("sampler-mismatch", "stale_sampler", 10, "", "rollouts from the weights of step 10 for ever"),
    "hot": ("sampler-mismatch", "hot_sampler", 20, "", "the sampler's temperature is 1.5 from step 21 on"),
    "topk": ("sampler-mismatch", "truncated_sampler", 20, "", "the sampler keeps two tokens from step 21 on"),
    "long": ("truncation", "length_bonus", 15, "", "an advantage for length from step 16 on"),
    "silent": ("answer-avoidance", "", 0, "--reward.em 1 --reward.format -0.6", "a wrong answer costs more than none"),
    "mute": (
        "answer-avoidance",
        "hard_questions",
        0,
        "--reward.em 1 --reward.format -0.9 --train.lr 6e-4",
        "questions of two hops only, and a wrong answer costs nearly as much as a right one gives",
    ),
    "inert": (
        "inert-penalty",
        "one_step",
        0,
        "--loss.penalty.name llds",
        "a penalty beside one optimizer step a batch",
    ),
    "no-answers": ("no-contrast", "no_answers", 0, "", "golden answers that nothing matches"),
    "exhausted": ("entropy-exhausted", "", 0, "--loss.entropy_coef -0.4", "entropy is punished"),
    "noisy": ("healthy-noisy", "", 0, "--train.questions 3", "batches of 3 questions"),
    "plateau": ("healthy-plateau", "", 0, "--train.lr 3e-6", "a hundredth of the learning rate: little happens"),
    "slower": ("healthy-lr-change", "smaller_rate", 25, "", "a fifth of the learning rate from step 26 on"),
    "faster": ("healthy-lr-change", "larger_rate", 25, "", "twice the learning rate from step 26 on"),
    "harder": ("healthy-data-switch", "other_questions", 30, "", "one hop first, all questions from step 31 on"),
    "easier": ("healthy-data-switch", "easier_questions", 30, "", "all questions first, one hop from step 31 on"),
    "resumed": ("healthy-resumed", "resumed", 35, "", "stopped after step 35, resumed from step 25, one file"),
    "plain": ("healthy-sharpening", "", 0, "", "the recipe as it is"),
}


def _runs(organism: Organism, arms: Mapping[str, tuple[int, ...]]) -> Iterator[Planned]:
    """Arms of the table above, with their seeds."""
    for arm, seeds in arms.items():
        cause, fault, start, settings, how = _FAULTS[arm]
        for seed in seeds:
            yield Planned(
                organism=organism,
                arm=arm,
                cause=cause,
                seed=seed,
                how=how,
                settings=tuple(settings.split()),
                fault=fault,
                start=start,
            )


def rambler_runs() -> Iterator[Planned]:
    """One run a cause, to tune the rules on."""
    one = ("plain", "giant-steps", "dead", "empty", "leak", "hot", "overflow", "large-steps", "long", "silent")
    yield from _runs(RAMBLER, dict.fromkeys(one, (1,)))


def _spirals(organism: Organism, seeds: tuple[int, ...], steps: int) -> Iterator[Planned]:
    for seed in seeds:
        yield Planned(
            organism=organism,
            arm="spiral",
            cause="displacement",
            seed=seed,
            how=f"the collapse recipe's sampler, steps per rollout and more learning rate, {steps} steps",
            settings=_SPIRAL,
            also=(*_TRUNCATED, "step-too-large"),  # three times the rate at which the organism learns, at once
            steps=steps,
        )


# There is no change of data here: on echo, the reward of a policy that had seen prompts of one length alone for 25
# batches fell to half when another came, so that these runs were no healthy ones, and had none of the faults either.
_TOY_FAULTS = {
    # arm: (cause, the fault in `record_echo` or `record_trl`, start, settings, what was done)
    "plain": ("healthy-sharpening", "", 0, "", "the task as it is"),
    "noisy": ("healthy-noisy", "", 0, "questions 2", "batches of 2 questions"),
    "plateau": ("healthy-plateau", "", 0, "lr 5e-6", "a hundredth of the learning rate: little happens"),
    "cosine": ("healthy-lr-change", "cosine", 0, "", "a cosine to 0"),
    "resumed": ("healthy-resumed", "resumed", 25, "", "stopped after batch 25 and resumed from a checkpoint"),
    "giant-steps": ("step-too-large", "giant_steps", 25, "", "the learning rate times 30 from batch 26 on"),
    "large-steps": ("step-too-large", "", 0, "lr 1e-2", "about 20 times the learning rate that works"),
    "long": ("truncation", "length_bonus", 15, "", "an advantage for length from batch 16 on"),
    "poisoned": ("non-finite", "poisoned", 25, "", "a loss that is not a number, at batch 26"),
    "hot": ("sampler-mismatch", "hot_sampler", 0, "", "the sampler's temperature is 1.6"),
    "topk": ("sampler-mismatch", "truncated_sampler", 0, "", "the sampler keeps two tokens"),
    "silent": ("answer-avoidance", "punished", 0, "", "a wrong answer costs 1, none costs nothing"),
    "inert": ("inert-penalty", "one_step", 0, "", "LLDS beside one optimizer step a batch"),
    "no-answers": ("no-contrast", "no_answers", 0, "", "a reward function that always says 0"),
    "exhausted": ("entropy-exhausted", "", 0, "entropy_coef -0.4", "entropy is punished"),
}


def _toy_runs(organism: Organism, arms: Mapping[str, tuple[int, ...]]) -> Iterator[Planned]:
    for arm, seeds in arms.items():
        cause, fault, start, settings, how = _TOY_FAULTS[arm]
        make = partial(Planned, organism=organism, arm=arm, cause=cause, how=how, fault=fault, start=start)
        yield from (make(seed=seed, settings=tuple(settings.split())) for seed in seeds)


def echo_runs() -> Iterator[Planned]:
    """TRL without a search agent, for calibration."""
    yield from _toy_runs(ECHO, dict.fromkeys(_TOY_FAULTS, (1,)) | {"resumed": (7,)})  # TRL resumes exactly


def order_runs() -> Iterator[Planned]:
    """TRL without a search agent, held out: a dense reward."""
    yield from _toy_runs(ORDER, _HELD_OUT_TOYS)


def mirror_runs() -> Iterator[Planned]:
    """The same: a reward in two parts, and a log of every other rollout batch."""
    yield from _toy_runs(MIRROR, _HELD_OUT_TOYS)


_HELD_OUT_TOYS = {
    "plain": (1, 2, 3, 4, 5, 6),
    "giant-steps": (1, 2, 3),
    "large-steps": (1, 2, 3),
    "long": (1, 2, 3),
    "noisy": (1, 2, 3),
    "cosine": (1, 2, 3),
    "resumed": (7,),
    "plateau": (1,),
    "poisoned": (1,),
    "hot": (1,),
    "silent": (1,),
    "exhausted": (1,),
    "no-answers": (1,),
    "inert": (1,),
}


def curt_runs() -> Iterator[Planned]:
    """The local engine, held out: nearly every cause."""
    arms = {
        "plain": (1, 2),
        "giant-steps": (1, 2),
        "dead": (1,),
        "empty": (1, 2),
        "leak": (1,),
        "hot": (1,),
        "noisy": (1, 2),
        "large-steps": (1,),
        "slower": (1,),
        "stale": (1,),
        "harder": (1,),
        "long": (1,),
        "ailing": (1,),
        "late-leak": (1,),
        "resumed": (1,),
        "easier": (1,),
        "overflow": (1,),
        "plateau": (1,),
        "mute": (1,),
        "poisoned": (1,),
        "faster": (1,),
        "topk": (1,),
        "exhausted": (1,),
        "inert": (1,),
        "no-answers": (1,),
    }
    yield from _runs(CURT, arms)


def strayer_runs() -> Iterator[Planned]:
    """The local engine, held out: displacement."""
    yield from _spirals(STRAYER, (1, 2), 60)
    sampler = ("--sampling.top_p", "0.9", "--sampling.top_k", "64")
    for arm, cause, settings, seeds, how in (
        ("truncated", "healthy-sharpening", sampler, (1, 2), "the collapse recipe's sampler"),
        ("brisk", "displacement", (*sampler, "--train.lr", "5e-4"), (1,), "the same, nearly at its rate"),
        ("decay", "displacement", (*sampler, *_DECAY), (1, 2, 3), "the same, above its rate, warmed up slowly"),
    ):
        for seed in seeds:
            yield Planned(
                organism=STRAYER,
                arm=arm,
                cause=cause,
                seed=seed,
                how=how,
                settings=settings,
                also=_TRUNCATED,
                steps=80 if arm == "decay" else 60,
            )
    yield from _runs(STRAYER, {"plain": (1,)})


# What was put in did nothing: the reward rose as without it, and what the fault leads to did not come about. Decided by
# the reward and by the series that the fault is about, never by what the rules say.
_TURNED_OUT = {
    "echo-silent-s1": "healthy-sharpening",  # nobody turned silent
    "rambler-silent-s1": "healthy-sharpening",  # the same
    "order-silent-s1": "",  # nobody turned silent; at rewards around -0.5 noise alone loses half of the peak: left out
    "order-exhausted-s1": "healthy-sharpening",  # entropy 0.42 to 0.25, without it 0.42 to 0.31
    "curt-harder-s1": "",  # the new questions are so hard that they alone halve the reward: neither healthy nor ill
    "curt-exhausted-s1": "healthy-sharpening",  # entropy 0.20 to 0.05, without it to 0.12; groups stay mixed
    "strayer-brisk-s1": "",  # fell and came back, within the noise: neither healthy nor a collapse
    "mirror-silent-s1": "healthy-sharpening",  # nobody turned silent
    "rover-harsh-s5": "healthy-sharpening",  # the reward rose and held, correct rollouts lost nothing
    "mirror-exhausted-s1": "healthy-sharpening",  # entropy 0.33 to 0.10, without it 0.33 to 0.16; groups stay mixed
}


def everything() -> list[Planned]:
    """All runs, in the order in which they are worth making."""
    calibration = (collapse_runs, laboratory_runs, collapse_trl_runs, echo_runs, rambler_runs)
    tuning = (quickstart_runs, order_runs, curt_runs, mirror_runs, strayer_runs)
    planned = [one for runs in (*calibration, *tuning) for one in runs()]
    planned += [*second_runs(_runs, _toy_runs), *pilot_runs(), *third_runs(_runs, _toy_runs)]
    labelled = [replace(one, cause=_TURNED_OUT.get(one.name, one.cause)) for one in planned]
    return [one for one in labelled if one.cause]
