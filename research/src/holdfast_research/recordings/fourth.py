"""The fourth held-out set: runs of arithmetic, copying and sorting in TRL, planned before any of them was made.

`recordings.outcomes` is part of the plan: which codes are right for which cause, and when a fault had no effect, which
makes a healthy run. The set is read once, after the rules are frozen. Models, sizes, rates, seeds, amounts of faults
and logging steps differ from those of the practice set.

The faults are those of scripts that people run:

* the learning rate: too large from step 1, or 20 to 40 times as large in the middle;
* numbers: a loss that is NaN, a reward that is inf, with samplers that survive it and such that do not;
* the reward: a function that breaks, one without contrast from the start, one that is gamed;
* the limit: below the answer's length from the start, shrinking, or reached because length is paid;
* the sampler: hotter, truncated, or stale; TRL's own, which logs nothing of it, and an engine with log-probs;
* the loss: feedback tokens in it, a gradient that is cut off, an entropy bonus, an entropy penalty, a KL that explodes;
* the policy: random weights.
"""

from __future__ import annotations

from functools import partial

from holdfast_research.recordings.single_turn import Run

_arithmetic = partial(Run, task="arithmetic", skill=0.3, questions=5, group=8, rate=4e-4, length=8, batches=140)
_copying = partial(Run, task="copying", skill=0.5, questions=6, group=4, k=4, rate=3e-4, length=12, batches=70)
_sorting = partial(
    Run, task="sorting", skill=0.3, questions=4, group=6, k=3, rate=4e-4, length=11, reward="placed", batches=80
)
_survives = {"generation_kwargs": {"remove_invalid_values": True}}
"""The sampler draws from a policy of NaN, as some engines do; TRL's own ends the run."""

_HEALTHY: tuple[Run, ...] = (
    _arithmetic(name="arithmetic-plain-1", cause="healthy-plain", how="every step logged", seed=11),
    _arithmetic(name="arithmetic-plain-4", cause="healthy-plain", how="every 4th step", every=4, batches=140, seed=12),
    _copying(name="copying-plain-4", cause="healthy-plain", how="K = 4, a row a batch", every=4, seed=13),
    _copying(name="copying-plain-1", cause="healthy-plain", how="K = 4, every step logged", seed=14),
    _sorting(name="sorting-plain-10", cause="healthy-plain", how="K = 3, every 10th step", every=10, seed=15),
    _sorting(name="sorting-plain-1", cause="healthy-plain", how="K = 3, every step logged", seed=16),
    _arithmetic(
        name="arithmetic-noisy", cause="healthy-noisy", how="8 completions", questions=2, group=4, batches=200, seed=17
    ),
    _copying(name="copying-noisy", cause="healthy-noisy", how="8 completions", questions=2, k=1, batches=180, seed=18),
    _copying(
        name="copying-noisy-4", cause="healthy-noisy", how="8 completions", questions=2, every=4, batches=110, seed=19
    ),
    _sorting(
        name="sorting-noisy",
        cause="healthy-noisy",
        how="one group of 8",
        questions=1,
        group=8,
        k=1,
        every=4,
        batches=200,
        reward="exact",
        seed=20,
    ),
    _arithmetic(name="arithmetic-flat", cause="healthy-plateau", how="a rate of 1e-7", rate=1e-7, batches=400, seed=21),
    _copying(
        name="copying-flat",
        cause="healthy-plateau",
        how="a rate of 3e-7, 8 completions",
        rate=3e-7,
        questions=2,
        k=1,
        batches=420,
        seed=22,
    ),
    _sorting(
        name="sorting-flat",
        cause="healthy-plateau",
        how="a rate of 2e-7",
        rate=2e-7,
        k=1,
        every=10,
        batches=400,
        seed=23,
    ),
    _copying(name="copying-solved", cause="healthy-solved", how="solved nearly from the start", skill=0.85, seed=24),
    _sorting(name="sorting-solved", cause="healthy-solved", how="high from the start", skill=0.6, every=4, seed=25),
    _sorting(
        name="sorting-cosine",
        cause="healthy-schedule",
        how="warm-up, then a cosine to 0",
        every=4,
        seed=26,
        options={"lr_scheduler_type": "cosine", "warmup_steps": 60},
    ),
    _arithmetic(
        name="arithmetic-linear",
        cause="healthy-schedule",
        how="warm-up, then a line to 0",
        seed=27,
        options={"lr_scheduler_type": "linear", "warmup_steps": 30},
    ),
    _copying(name="copying-resumed", cause="healthy-resumed", how="resumed", fault="resumed", start=35, seed=28),
    _arithmetic(
        name="arithmetic-resumed",
        cause="healthy-resumed",
        how="resumed, every 10th step",
        fault="resumed",
        start=75,
        every=10,
        batches=140,
        seed=29,
    ),
    _arithmetic(name="arithmetic-beta", cause="healthy-kl", how="beta 0.05", every=4, seed=30, options={"beta": 0.05}),
    _sorting(name="sorting-beta", cause="healthy-kl", how="beta 0.01", every=10, seed=31, options={"beta": 0.01}),
    _arithmetic(
        name="arithmetic-dr-grpo",
        cause="healthy-loss",
        how="dr_grpo, rewards not scaled",
        seed=32,
        options={"loss_type": "dr_grpo", "scale_rewards": "none"},
    ),
    _sorting(
        name="sorting-dapo",
        cause="healthy-loss",
        how="dapo, a higher clip",
        every=4,
        seed=33,
        options={"loss_type": "dapo", "epsilon_high": 0.28},
    ),
    _copying(name="copying-bnpo", cause="healthy-loss", how="bnpo", seed=34, options={"loss_type": "bnpo"}),
    _copying(name="copying-signed", cause="healthy-reward", how="-1 or 1", reward="signed", every=4, seed=35),
    _sorting(name="sorting-penalty", cause="healthy-reward", how="from -1 to 0", reward="penalty", every=10, seed=36),
    _arithmetic(name="arithmetic-tenfold", cause="healthy-reward", how="0 or 10", reward="tenfold", seed=37),
    _copying(name="copying-several", cause="healthy-reward", how="three functions", reward="several", seed=38),
    _arithmetic(name="arithmetic-two", cause="healthy-reward", how="two functions", reward="two", every=4, seed=39),
    _copying(
        name="copying-feedback",
        cause="healthy-feedback",
        how="two attempts, feedback masked",
        fault="feedback",
        amount=5,
        length=9,
        every=4,
        seed=40,
    ),
    _sorting(name="sorting-engine", cause="healthy-engine", how="an engine's log-probs", fault="engine", seed=41),
    _arithmetic(
        name="arithmetic-accumulated",
        cause="healthy-plain",
        how="5 micro-batches a step",
        seed=42,
        options={"gradient_accumulation_steps": 5},
    ),
)

_RATE: tuple[Run, ...] = (
    _arithmetic(
        name="arithmetic-large", cause="step-too-large", how="a rate of 8e-3", rate=8e-3, every=4, batches=100, seed=51
    ),
    _copying(name="copying-large", cause="step-too-large", how="a rate of 1.5e-2", rate=1.5e-2, batches=50, seed=52),
    _sorting(
        name="sorting-large", cause="step-too-large", how="a rate of 1.5e-2", rate=1.5e-2, every=10, batches=70, seed=53
    ),
    _arithmetic(
        name="arithmetic-giant",
        cause="step-too-large",
        how="the rate x 40 from batch 71 on",
        fault="giant_steps",
        start=70,
        amount=40,
        every=10,
        seed=54,
    ),
    _copying(
        name="copying-giant",
        cause="step-too-large",
        how="the rate x 30 from batch 41 on",
        fault="giant_steps",
        start=40,
        amount=30,
        seed=55,
    ),
    _sorting(
        name="sorting-giant",
        cause="step-too-large",
        how="the rate x 30 from batch 51 on",
        fault="giant_steps",
        start=50,
        amount=30,
        every=4,
        seed=56,
    ),
    _arithmetic(
        name="arithmetic-kl",
        cause="kl-exploded",
        how="beta 0.05 at a rate of 1e-2",
        rate=1e-2,
        every=4,
        seed=57,
        options={"beta": 0.05},
    ),
    _copying(
        name="copying-kl",
        cause="kl-exploded",
        how="beta 0.2 at a rate of 1e-2",
        rate=1e-2,
        batches=50,
        seed=58,
        options={"beta": 0.2},
    ),
)
_NUMBERS: tuple[Run, ...] = (
    _arithmetic(
        name="arithmetic-nan", cause="non-finite", how="NaN loss, ends the run", fault="poisoned", start=60, seed=61
    ),
    _copying(
        name="copying-nan",
        cause="non-finite",
        how="NaN loss, ends the run",
        fault="poisoned",
        start=40,
        every=4,
        seed=62,
    ),
    _sorting(
        name="sorting-nan",
        cause="non-finite",
        how="NaN loss, survived",
        fault="poisoned",
        start=50,
        every=10,
        seed=63,
        options=_survives,
    ),
    _arithmetic(
        name="arithmetic-inf",
        cause="non-finite",
        how="inf reward, survived",
        fault="infinite_reward",
        start=80,
        every=4,
        seed=64,
        options=_survives,
    ),
    _copying(
        name="copying-inf",
        cause="non-finite",
        how="inf reward, ends the run",
        fault="infinite_reward",
        start=40,
        seed=65,
    ),
)
_REWARD: tuple[Run, ...] = (
    _arithmetic(
        name="arithmetic-broken",
        cause="broken-reward",
        how="0 from batch 71 on",
        fault="broken_reward",
        start=70,
        seed=71,
    ),
    _sorting(
        name="sorting-broken",
        cause="broken-reward",
        how="0 from batch 41 on",
        fault="broken_reward",
        start=40,
        every=10,
        batches=90,
        seed=72,
    ),
    _copying(
        name="copying-broken",
        cause="broken-reward",
        how="0.1 from batch 36 on",
        fault="broken_reward",
        start=35,
        amount=0.1,
        every=4,
        seed=73,
    ),
    _arithmetic(name="arithmetic-zero", cause="no-contrast", how="all are 0", reward="zero", batches=60, seed=74),
    _copying(name="copying-zero", cause="no-contrast", how="all are 0", reward="zero", batches=40, seed=75),
    _sorting(
        name="sorting-constant",
        cause="no-contrast",
        how="all are 0.5",
        reward="constant",
        every=10,
        batches=60,
        seed=76,
    ),
    _arithmetic(
        name="arithmetic-opening",
        cause="hacking",
        how="paid for two equal first digits",
        reward="opening",
        every=4,
        batches=160,
        seed=77,
    ),
    _sorting(
        name="sorting-uniform",
        cause="hacking",
        how="paid for repeating a letter",
        reward="uniform",
        every=10,
        batches=140,
        seed=78,
    ),
    _copying(name="copying-short", cause="hacking", how="paid for brevity", reward="short", batches=90, seed=79),
)
_LIMIT: tuple[Run, ...] = (
    _copying(
        name="copying-cut",
        cause="truncation",
        how="4 tokens where 5 to 9 are needed",
        length=4,
        reward="placed",
        every=4,
        seed=81,
    ),
    _sorting(
        name="sorting-cut", cause="truncation", how="3 tokens where 5 to 7 are needed", length=3, every=10, seed=82
    ),
    _copying(
        name="copying-shrinking",
        cause="truncation",
        how="from batch 31 on a token less every 4 batches",
        fault="shrinking_limit",
        start=30,
        amount=4,
        seed=83,
    ),
    _sorting(
        name="sorting-shrinking",
        cause="truncation",
        how="from batch 31 on a token less every 6 batches",
        fault="shrinking_limit",
        start=30,
        amount=6,
        every=10,
        batches=90,
        seed=86,
    ),
    _sorting(
        name="sorting-longer",
        cause="truncation",
        how="length is paid",
        reward="longer",
        every=4,
        batches=120,
        rate=1e-3,
        seed=84,
    ),
    _copying(
        name="copying-long",
        cause="truncation",
        how="a second function pays for length",
        reward="long",
        every=4,
        batches=90,
        also=("hacking",),
        seed=85,
    ),
)
_SAMPLER: tuple[Run, ...] = (
    _arithmetic(
        name="arithmetic-hot",
        cause="sampler-mismatch",
        how="temperature 1.5",
        fault="hot_sampler",
        amount=1.5,
        seed=91,
    ),
    _sorting(
        name="sorting-topk",
        cause="sampler-mismatch",
        how="top_k 2",
        fault="topk_sampler",
        amount=2,
        every=10,
        seed=92,
    ),
    _copying(
        name="copying-stale",
        cause="sampler-mismatch",
        how="the weights of batch 15 for ever",
        fault="stale_sampler",
        start=15,
        seed=93,
    ),
    _arithmetic(
        name="arithmetic-engine-hot",
        cause="sampler-mismatch",
        how="an engine at 1.7 from batch 51 on",
        fault="engine_hot",
        start=50,
        amount=1.7,
        every=4,
        seed=94,
    ),
    _sorting(
        name="sorting-engine-stale",
        cause="sampler-mismatch",
        how="an engine with the weights of batch 12",
        fault="engine_stale",
        start=12,
        seed=95,
    ),
)
_LOSS: tuple[Run, ...] = (
    _copying(
        name="copying-unmasked",
        cause="masked-leak",
        how="no env_mask",
        fault="feedback_unmasked",
        amount=5,
        length=9,
        seed=101,
    ),
    _arithmetic(
        name="arithmetic-ones",
        cause="masked-leak",
        how="an env_mask of ones",
        fault="feedback_ones",
        amount=6,
        every=4,
        seed=102,
    ),
    _sorting(
        name="sorting-detached",
        cause="cut-gradient",
        how="from step 1 on",
        fault="cut_gradient",
        every=10,
        batches=60,
        seed=103,
    ),
    _arithmetic(
        name="arithmetic-detached",
        cause="cut-gradient",
        how="from batch 61 on",
        fault="cut_gradient",
        start=60,
        seed=104,
    ),
    _copying(
        name="copying-bonus",
        cause="entropy-surge",
        how="an entropy bonus of 0.4",
        seed=105,
        options={"entropy_coef": 0.4},
    ),
    _arithmetic(
        name="arithmetic-bonus",
        cause="entropy-surge",
        how="an entropy bonus of 0.6",
        every=4,
        seed=106,
        options={"entropy_coef": 0.6},
    ),
    _sorting(
        name="sorting-exhausted",
        cause="entropy-exhausted",
        how="entropy costs 0.4",
        every=4,
        seed=107,
        options={"entropy_coef": -0.4},
    ),
    _arithmetic(
        name="arithmetic-exhausted",
        cause="entropy-exhausted",
        how="entropy costs 0.6",
        seed=108,
        options={"entropy_coef": -0.6},
    ),
    _copying(
        name="copying-random",
        cause="noise-policy",
        how="random weights, 4,000 words",
        skill=0.0,
        amount=4000,
        reward="several",
        batches=40,
        seed=109,
    ),
    _sorting(
        name="sorting-random",
        cause="noise-policy",
        how="random weights, 2,000 words",
        skill=0.0,
        amount=2000,
        every=10,
        batches=60,
        seed=110,
    ),
)

RUNS = (*_HEALTHY, *_RATE, *_NUMBERS, *_REWARD, *_LIMIT, *_SAMPLER, *_LOSS)
