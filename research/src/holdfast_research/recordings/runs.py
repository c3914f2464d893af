"""Every recorded run: which arms a testbed has, with which seeds.

Three sets were held out, one after another. The first is `order`, `mirror`, `curt`, `strayer` and `quickstart`.

The second was planned after the first had been read and before any of its runs was made. Collapses were to be spread
over their mechanisms, half of them slow (displacement). Of the nine displaced runs three fell to half, so most
collapses there are breaks. Faults are those that certainly do something, so that no label depends on how a run went.

The third was planned after the second had been read and before any of its runs was made. More than half of its
collapses were to be slow: the collapse recipe's truncated sampler, or a harder one, with ten optimizer steps a rollout
batch, at rates under which a reward falls over 15 to 40 batches. Which rates do was tried on `rover` and `strayer`, of
the older sets. No label changes by what the rules say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from holdfast_research.methods import NO_PENALTY, SAPO, UNTRUNCATED, Settings, llds
from holdfast_research.pages import seeds
from holdfast_research.recordings import plan
from holdfast_research.recordings.plan import Arm, Planned, Testbed

_HEALTHY = "healthy-sharpening"
_TRUNCATED = ("sampler-mismatch",)  # a truncated sampler, which the collapse recipe has
_RECIPE: Settings = {"sampling.top_p": 0.9, "sampling.top_k": 64}
_HARDER: Settings = {"sampling.top_p": 0.8, "sampling.top_k": 20}
_LONG: Settings = {"train.optimizer_steps_per_rollout": 10}
_HALF: Settings = {"loss.penalty.normalizer": "preserved", "loss.penalty.coef": 0.5}
_LLDS_HALF: Settings = {"loss.penalty.name": "llds", "loss.penalty.coef": 0.5, "loss.penalty.normalizer": "policy"}


def _rate(lr: float, warmup: int) -> Settings:
    return {"train.lr": lr, "train.warmup": warmup}


# ---- arms: name, cause, what was done, settings


def _named(arms: Iterable[Arm]) -> dict[str, Arm]:
    return {arm.name: arm for arm in arms}


def _arm(name: str, cause: str, fault: str, start: int, how: str) -> Arm:
    return Arm(name, cause, how, fault=fault, start=start)


SEARCH_ARMS = _named(
    [
        Arm("plain", _HEALTHY, "the recipe as it is"),
        Arm("noisy", "healthy-noisy", "batches of 3 questions", {"train.questions": 3}),
        Arm("plateau", "healthy-plateau", "a hundredth of the learning rate: little happens", {"train.lr": 3e-6}),
        Arm("large-steps", "step-too-large", "about 25 times the learning rate that works", {"train.lr": 8e-3}),
        Arm("exhausted", "entropy-exhausted", "entropy is punished", {"loss.entropy_coef": -0.4}),
        Arm(
            "silent", "answer-avoidance", "a wrong answer costs more than none", {"reward.em": 1, "reward.format": -0.6}
        ),
        Arm(
            "mute",
            "answer-avoidance",
            "questions of two hops only, and a wrong answer costs nearly as much as a right one gives",
            {"reward.em": 1, "reward.format": -0.9, "train.lr": 6e-4},
            fault="hard_questions",
        ),
        Arm(
            "inert",
            "inert-penalty",
            "a penalty beside one optimizer step a batch",
            {"loss.penalty.name": "llds"},
            fault="one_step",
        ),
        _arm("giant-steps", "step-too-large", "giant_steps", 25, "the learning rate times 30 from step 26 on"),
        _arm("overflow", "non-finite", "overflow", 20, "a learning rate that overflows the weights, at step 21"),
        _arm("poisoned", "non-finite", "poisoned", 20, "advantages that are not a number, from step 21 on"),
        _arm("dead", "dead-retriever", "dead_retriever", 25, "the retriever fails from step 26 on"),
        _arm("ailing", "dead-retriever", "ailing_retriever", 25, "85 % of the retriever's calls fail from step 26 on"),
        _arm("empty", "empty-retriever", "empty_retriever", 25, "the retriever finds nothing from step 26 on"),
        _arm("leak", "masked-leak", "masked_leak", 0, "observations in the loss mask"),
        _arm("late-leak", "masked-leak", "masked_leak", 20, "observations in the loss mask from step 21 on"),
        _arm("stale", "sampler-mismatch", "stale_sampler", 10, "rollouts from the weights of step 10 for ever"),
        _arm("hot", "sampler-mismatch", "hot_sampler", 20, "the sampler's temperature is 1.5 from step 21 on"),
        _arm("topk", "sampler-mismatch", "truncated_sampler", 20, "the sampler keeps two tokens from step 21 on"),
        _arm("long", "truncation", "length_bonus", 15, "an advantage for length from step 16 on"),
        _arm("no-answers", "no-contrast", "no_answers", 0, "golden answers that nothing matches"),
        _arm("slower", "healthy-lr-change", "smaller_rate", 25, "a fifth of the learning rate from step 26 on"),
        _arm("faster", "healthy-lr-change", "larger_rate", 25, "twice the learning rate from step 26 on"),
        _arm("harder", "healthy-data-switch", "other_questions", 30, "one hop first, all questions from step 31 on"),
        _arm("easier", "healthy-data-switch", "easier_questions", 30, "all questions first, one hop from step 31 on"),
        _arm("resumed", "healthy-resumed", "resumed", 35, "stopped after step 35, resumed from step 25, one file"),
    ]
)

# The questions of a toy never change. On echo, the reward of a policy that had seen prompts of one length alone for 25
# batches fell to half when another came: those runs were not healthy, and had none of the faults either.
TOY_ARMS = _named(
    [
        Arm("plain", _HEALTHY, "the task as it is"),
        Arm("noisy", "healthy-noisy", "batches of 2 questions", {"questions": 2}),
        Arm("plateau", "healthy-plateau", "a hundredth of the learning rate: little happens", {"lr": 5e-6}),
        Arm("large-steps", "step-too-large", "about 20 times the learning rate that works", {"lr": 1e-2}),
        Arm("exhausted", "entropy-exhausted", "entropy is punished", {"entropy_coef": -0.4}),
        _arm("cosine", "healthy-lr-change", "cosine", 0, "a cosine to 0"),
        _arm("resumed", "healthy-resumed", "resumed", 25, "stopped after batch 25 and resumed from a checkpoint"),
        _arm("giant-steps", "step-too-large", "giant_steps", 25, "the learning rate times 30 from batch 26 on"),
        _arm("long", "truncation", "length_bonus", 15, "an advantage for length from batch 16 on"),
        _arm("poisoned", "non-finite", "poisoned", 25, "a loss that is not a number, at batch 26"),
        _arm("hot", "sampler-mismatch", "hot_sampler", 0, "the sampler's temperature is 1.6"),
        _arm("topk", "sampler-mismatch", "truncated_sampler", 0, "the sampler keeps two tokens"),
        _arm("silent", "answer-avoidance", "punished", 0, "a wrong answer costs 1, none costs nothing"),
        _arm("inert", "inert-penalty", "one_step", 0, "LLDS beside one optimizer step a batch"),
        _arm("no-answers", "no-contrast", "no_answers", 0, "a reward function that always says 0"),
    ]
)


def _shipped(arm: str, title: str) -> Arm:
    """An arm of `pages.seeds` in whose runs the reward holds."""
    also = () if arm == "untruncated" else _TRUNCATED
    return Arm(arm, _HEALTHY, f"{title}: the reward rises and holds", seeds.ARMS["collapse"][title], also=also)


def _laboratory(arm: str, title: str, cause: str, settings: Settings) -> Arm:
    """An arm of the study when the collapse recipe was its testbed."""
    how = f"{title}, an arm of the laboratory's death spiral, 80 steps"
    return Arm(arm, cause, how, settings, also=() if settings is UNTRUNCATED else _TRUNCATED, steps=80)


_LONGER = "with the present code, 80 steps"
COLLAPSE_ARMS = _named(
    [
        _shipped("sane-step", "GRPO, sane step (lr / 5)"),
        _shipped("untruncated", "GRPO, untruncated sampler"),
        _shipped("gspo", "GSPO (clip 3e-4, 4e-4)"),
        _shipped("llds", "LLDS action gate, A >= 0"),
        _shipped("llds-correct", "LLDS action gate, correct"),
        _shipped("llds-published", "LLDS action gate, published 0.2"),
        _shipped("sapo", "SAPO, 0.5"),
        Arm("grpo", "displacement", "plain GRPO, the recipe as it is, 60 steps", also=_TRUNCATED),
        Arm("grpo-80", "displacement", f"the same {_LONGER}", also=_TRUNCATED, steps=80),
        Arm(
            "llds-80",
            _HEALTHY,
            f"LLDS at coefficient 0.5 over all tokens, {_LONGER}",
            _LLDS_HALF,
            also=_TRUNCATED,
            steps=80,
        ),
        _laboratory("lab-grpo", "GRPO", "displacement", {}),
        _laboratory("lab-sane-step", "GRPO, sane step", _HEALTHY, {"train.lr": 1.2e-4}),
        _laboratory("lab-untruncated", "GRPO, untruncated sampler", _HEALTHY, UNTRUNCATED),
        _laboratory("lab-kl", "KL to the reference", _HEALTHY, {"loss.kl_coef": 0.1}),
        _laboratory("lab-lld", "LLD", _HEALTHY, {**llds("token"), **_HALF}),
        _laboratory("lab-sapo", "SAPO", _HEALTHY, {**SAPO, **_HALF}),
    ]
)
COLLAPSE_TRL_ARMS = _named(
    [
        Arm("grpo", "displacement", "the launched script of the collapse recipe", also=_TRUNCATED),
        Arm("llds", _HEALTHY, "the same with LLDS at coefficient 0.5", _LLDS_HALF, also=_TRUNCATED),
    ]
)
QUICKSTART_ARMS = _named(
    [
        Arm("llds", _HEALTHY, "LLDS action gate: 40 steps of the quickstart"),
        Arm("grpo", _HEALTHY, "GRPO (control): 40 steps of the quickstart", NO_PENALTY),
    ]
)
STRAYER_ARMS = SEARCH_ARMS | _named(
    [
        Arm(
            "spiral",
            "displacement",
            "the collapse recipe's sampler, steps per rollout and more learning rate, 60 steps",
            {**_RECIPE, **_LONG, "train.lr": 9e-4},
            also=(*_TRUNCATED, "step-too-large"),  # three times the rate at which the testbed learns, at once
            steps=60,
        ),
        Arm("truncated", _HEALTHY, "the collapse recipe's sampler", _RECIPE, also=_TRUNCATED, steps=60),
        Arm(
            "decay",
            "displacement",
            "the same, above its rate, warmed up slowly",
            {**_RECIPE, **_LONG, **_rate(7e-4, 15)},
            also=_TRUNCATED,
            steps=80,
        ),
    ]
)
ROVER_ARMS = _named(
    [
        Arm(
            "spiral",
            "displacement",
            "the collapse recipe's sampler and steps per rollout, at three times the rate that works",
            {**_RECIPE, **_LONG, **_rate(9e-4, 4)},
            also=(*_TRUNCATED, "step-too-large"),
        ),
        Arm(
            "decay",
            "displacement",
            "the collapse recipe's sampler and steps per rollout, warmed up slowly",
            {**_RECIPE, **_LONG, **_rate(7e-4, 15)},
            also=_TRUNCATED,
        ),
        Arm("plain", _HEALTHY, "the rate that works, the whole sampler", UNTRUNCATED),
        Arm("truncated", _HEALTHY, "the rate that works, the truncated sampler", _RECIPE, also=_TRUNCATED),
    ]
)


def _displaced(arm: str, sampler: Settings, lr: float, steps: int, how: str, warmup: int = 15) -> Arm:
    settings = {**sampler, **_LONG, **_rate(lr, warmup)}
    return Arm(arm, "displacement", how, settings, also=_TRUNCATED, steps=steps)


_TEN = "ten optimizer steps a rollout batch"
THIRD_ARMS = _named(
    [
        _displaced("press", _HARDER, 1e-3, 60, f"top-p 0.8 and top-k 20, at three times the rate that works, {_TEN}"),
        _displaced("erode", _HARDER, 8e-4, 72, f"top-p 0.8 and top-k 20, above the rate that works, {_TEN}"),
        _displaced("slip", _RECIPE, 1e-3, 72, f"top-p 0.9 and top-k 64, at three times the rate that works, {_TEN}"),
        Arm("plain", _HEALTHY, "the rate that works, the whole sampler", UNTRUNCATED),
        Arm("truncated", _HEALTHY, "the rate that works, the recipe's sampler", _RECIPE, also=_TRUNCATED),
        Arm(
            "sane",
            _HEALTHY,
            "the sampler and steps of its collapses, a tenth of the rate",
            {**_HARDER, **_LONG, **_rate(1e-4, 15)},
            also=_TRUNCATED,
        ),
    ]
)


def _tried(arm: str, lr: float, warmup: int, steps: int) -> Arm:
    rate = f"{lr:.1e}".replace(".0e", "e").replace("e-0", "e-")
    return _displaced(arm, _HARDER, lr, steps, f"top-p 0.8 and top-k 20, {_TEN}, at a rate of {rate}", warmup)


TRIED = (  # rates tried before the third set was made: tuning runs
    Planned(plan.ROVER, _tried("harsh", 5e-4, 10, 60), seed=5),
    Planned(plan.ROVER, _tried("harsher", 9e-4, 15, 60), seed=5),
    Planned(plan.ROVER, _tried("harshest", 1.2e-3, 20, 60), seed=6),
    Planned(plan.ROVER, _tried("harsher", 8e-4, 15, 70), seed=6),
    Planned(plan.STRAYER, _tried("harsh", 5e-4, 15, 70), seed=5),
    Planned(plan.STRAYER, _tried("harsher", 8e-4, 15, 70), seed=5),
)


# ---- testbeds, their arms, and the seeds of each

_Seeds = Mapping[str, Iterable[int]]


def _first(count: int, arms: str) -> _Seeds:
    """Seeds 1 to `count` for every arm named in a text."""
    return dict.fromkeys(arms.split(), range(1, count + 1))


_HELD_OUT_TOYS: _Seeds = {
    **_first(6, "plain"),
    **_first(3, "giant-steps large-steps long noisy cosine"),
    **_first(1, "plateau poisoned hot silent exhausted no-answers inert"),
    "resumed": (7,),
}
_SLOW = {**_first(5, "press"), **_first(3, "erode slip plain truncated"), **_first(2, "sane")}
RUNS: tuple[tuple[Testbed, Mapping[str, Arm], _Seeds], ...] = (
    # calibration
    (
        plan.COLLAPSE,
        COLLAPSE_ARMS,
        {
            **_first(3, "sane-step untruncated llds grpo grpo-80 llds-80"),
            **_first(2, "llds-correct sapo"),
            "gspo": (1, 3),
            "llds-published": (2,),
            **dict.fromkeys((name for name in COLLAPSE_ARMS if name.startswith("lab-")), (11,)),
        },
    ),
    (plan.COLLAPSE_TRL, COLLAPSE_TRL_ARMS, _first(3, "grpo llds")),
    (plan.ECHO, TOY_ARMS, {**dict.fromkeys(TOY_ARMS, (1,)), "resumed": (7,)}),  # TRL resumes exactly
    (plan.RAMBLER, SEARCH_ARMS, _first(1, "plain giant-steps dead empty leak hot overflow large-steps long silent")),
    # tuning: the first held-out set
    (plan.QUICKSTART, QUICKSTART_ARMS, _first(3, "llds grpo")),
    (plan.ORDER, TOY_ARMS, _HELD_OUT_TOYS),
    (
        plan.CURT,
        SEARCH_ARMS,
        {**dict.fromkeys(SEARCH_ARMS.keys() - {"silent"}, (1,)), **_first(2, "plain giant-steps empty noisy")},
    ),
    (plan.MIRROR, TOY_ARMS, _HELD_OUT_TOYS),
    (plan.STRAYER, STRAYER_ARMS, {**_first(2, "spiral truncated"), **_first(3, "decay"), **_first(1, "plain")}),
    # tuning: the second held-out set
    (
        plan.SHIFT,
        TOY_ARMS,
        {
            "plain": range(2, 15),
            **_first(5, "giant-steps large-steps long cosine"),
            **_first(1, "no-answers plateau hot inert poisoned"),
            "resumed": (7,),
        },
    ),
    (plan.ROVER, ROVER_ARMS, {**_first(4, "spiral decay"), **_first(3, "plain truncated")}),
    (plan.ROVER_TRL, ROVER_ARMS, _first(1, "spiral")),
    (
        plan.SCOUT,
        SEARCH_ARMS,
        {
            **_first(3, "plain giant-steps noisy"),
            **_first(2, "dead empty slower faster"),
            **_first(1, "leak hot poisoned long resumed inert plateau topk no-answers ailing"),
        },
    ),
    (
        plan.SCOUT_TRL,
        SEARCH_ARMS,
        {**_first(3, "plain"), **_first(2, "dead"), **_first(1, "empty giant-steps plateau")},
    ),
    # held out: the third set
    (plan.NOMAD, THIRD_ARMS, _SLOW),
    (plan.DROVER, THIRD_ARMS, _SLOW),
    (plan.NOMAD_TRL, THIRD_ARMS, _first(2, "press")),
    (plan.NOMAD_TRL, SEARCH_ARMS, {**_first(3, "plain"), **_first(1, "empty plateau")}),
    (
        plan.ROTATE,
        TOY_ARMS,
        {
            **_first(6, "plain"),
            **_first(4, "giant-steps"),
            **_first(3, "long cosine"),
            **_first(2, "large-steps noisy"),
            **_first(1, "poisoned plateau hot inert no-answers"),
            "resumed": (7,),
        },
    ),
    (
        plan.DELVER,
        SEARCH_ARMS,
        {
            **_first(5, "plain"),
            **_first(2, "giant-steps noisy large-steps empty slower faster"),
            **_first(1, "dead long poisoned resumed leak overflow hot plateau inert no-answers topk"),
        },
    ),
)

# Runs whose fault did nothing: the reward rose as without it, and what the fault leads to did not come about. Decided
# by the reward and by the series that the fault is about, never by what the rules say. "": left out of the library.
RELABELLED = {
    "echo-silent-s1": _HEALTHY,  # the policy did not turn silent
    "rambler-silent-s1": _HEALTHY,  # the same
    "order-silent-s1": "",  # the same; at rewards around -0.5 noise alone loses half of the peak
    "order-exhausted-s1": _HEALTHY,  # entropy 0.42 to 0.25, without it 0.42 to 0.31
    "curt-harder-s1": "",  # the new questions are so hard that they alone halve the reward
    "curt-exhausted-s1": _HEALTHY,  # entropy 0.20 to 0.05, without it to 0.12; groups stay mixed
    "mirror-silent-s1": _HEALTHY,  # the policy did not turn silent
    "rover-harsh-s5": _HEALTHY,  # the reward rose and held, correct rollouts lost nothing
    "mirror-exhausted-s1": _HEALTHY,  # entropy 0.33 to 0.10, without it 0.33 to 0.16; groups stay mixed
}


def everything() -> list[Planned]:
    """All runs, calibration first."""
    planned = [
        Planned(testbed, arms[name], seed)
        for testbed, arms, seeds_of in RUNS
        for name, numbers in seeds_of.items()
        for seed in numbers
    ]
    causes = [(run, RELABELLED.get(run.name, run.arm.cause)) for run in (*planned, *TRIED)]
    return [replace(run, arm=replace(run.arm, cause=cause)) for run, cause in causes if cause]
