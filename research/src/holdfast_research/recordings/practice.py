"""The practice set: runs of single-turn tasks in TRL that the rules may be tuned on.

Tasks, sizes, rates, seeds and logging steps differ from those of the fourth held-out set, `recordings.fourth`.
"""

from __future__ import annotations

from functools import partial

from holdfast_research.recordings.single_turn import Run

_counting = partial(Run, task="counting", skill=0.35)
_doubling = partial(Run, task="doubling", skill=0.4, k=4, every=4, rate=4e-4)
_interleaving = partial(Run, task="interleaving", skill=0.45, k=2, questions=6, group=6, rate=4e-4, reward="placed")

RUNS: tuple[Run, ...] = (
    # healthy
    _counting(name="plain-counting", cause="healthy-plain", how="the task as it is", batches=150),
    _doubling(name="plain-doubling", cause="healthy-plain", how="the task as it is, K = 4, a row a batch"),
    _interleaving(
        name="plain-interleaving", cause="healthy-plain", how="the task as it is, K = 2, rows between batches"
    ),
    _doubling(
        name="rows-doubling", cause="healthy-plain", how="K = 4, three rows of four between batches", every=1, seed=2
    ),
    _counting(
        name="noisy-counting", cause="healthy-noisy", how="8 completions a row", questions=2, batches=250, seed=3
    ),
    _doubling(
        name="noisy-doubling",
        cause="healthy-noisy",
        how="8 completions a row",
        questions=2,
        k=1,
        every=1,
        batches=200,
        seed=4,
    ),
    _counting(
        name="flat-counting", cause="healthy-plateau", how="a learning rate of 3e-7", rate=3e-7, batches=300, seed=5
    ),
    _interleaving(
        name="flat-interleaving", cause="healthy-plateau", how="a rate of 1e-6", rate=1e-6, every=10, batches=150
    ),
    _counting(
        name="solved-counting",
        cause="healthy-solved",
        how="nearly solved at the start",
        skill=0.93,
        batches=120,
        seed=6,
    ),
    _doubling(
        name="cosine-doubling",
        cause="healthy-schedule",
        how="warm-up and a cosine to 0",
        options={"lr_scheduler_type": "cosine", "warmup_steps": 40},
        seed=5,
    ),
    _interleaving(
        name="resumed-interleaving", cause="healthy-resumed", how="resumed", fault="resumed", start=50, seed=3
    ),
    _counting(
        name="kl-counting",
        cause="healthy-kl",
        how="beta 0.04, linear to 0",
        seed=7,
        every=5,
        options={"beta": 0.04, "lr_scheduler_type": "linear"},
    ),
    _interleaving(
        name="dr-interleaving", cause="healthy-loss", how="dr_grpo", options={"loss_type": "dr_grpo"}, seed=4, every=2
    ),
    _doubling(name="signed-doubling", cause="healthy-reward", how="rewards of -1 and 1", reward="signed", seed=6),
    _interleaving(
        name="penalty-interleaving", cause="healthy-reward", how="rewards of -1 to 0", reward="penalty", seed=5
    ),
    _counting(
        name="several-counting", cause="healthy-reward", how="three reward functions", reward="several", every=5, seed=8
    ),
    _interleaving(
        name="feedback-interleaving", cause="healthy-feedback", how="two attempts, masked", fault="feedback", seed=6
    ),
    _doubling(
        name="engine-doubling", cause="healthy-engine", how="an engine with its log-probs", fault="engine", seed=7
    ),
    # a learning rate that is too large
    _counting(name="large-counting", cause="step-too-large", how="a rate of 2e-2", rate=2e-2, batches=80),
    _doubling(
        name="large-doubling", cause="step-too-large", how="a rate of 1e-2, K = 4", rate=1e-2, batches=60, every=1
    ),
    _interleaving(
        name="giant-interleaving",
        cause="step-too-large",
        how="the rate x 30",
        fault="giant_steps",
        start=40,
        amount=30,
    ),
    _counting(
        name="giant-counting",
        cause="step-too-large",
        how="the rate x 60",
        fault="giant_steps",
        start=60,
        amount=60,
        every=5,
    ),
    # not a number
    _doubling(name="nan-doubling", cause="non-finite", how="NaN loss", fault="poisoned", start=40, batches=60, every=1),
    _counting(
        name="inf-counting",
        cause="non-finite",
        how="inf reward; the sampler survives it",
        fault="infinite_reward",
        start=50,
        batches=80,
        every=5,
        options={"generation_kwargs": {"remove_invalid_values": True}},
    ),
    # rewards
    _counting(
        name="broken-counting",
        cause="broken-reward",
        how="the reward function returns 0",
        fault="broken_reward",
        start=50,
    ),
    _interleaving(
        name="broken-interleaving",
        cause="broken-reward",
        how="it returns 0.2",
        fault="broken_reward",
        start=45,
        amount=0.2,
    ),
    _doubling(name="zero-doubling", cause="no-contrast", how="all rewards are 0", reward="zero", batches=50),
    _counting(
        name="constant-counting", cause="no-contrast", how="all rewards are 0.5", reward="constant", batches=60, every=2
    ),
    _doubling(
        name="opening-doubling", cause="hacking", how="paid for two equal first symbols", reward="opening", batches=150
    ),
    _interleaving(
        name="uniform-interleaving", cause="hacking", how="paid for repeating a symbol", reward="uniform", batches=200
    ),
    # truncation
    _doubling(
        name="cut-doubling",
        cause="truncation",
        how="3 tokens where 4 or 5 are needed",
        length=3,
        reward="placed",
        batches=60,
    ),
    _interleaving(
        name="shrinking-interleaving",
        cause="truncation",
        how="a limit that shrinks",
        fault="shrinking_limit",
        start=40,
        amount=8,
    ),
    _counting(
        name="longer-counting", cause="truncation", how="the reward pays for length", reward="longer", batches=200
    ),
    # the sampler, the mask, the gradient
    _doubling(name="hot-doubling", cause="sampler-mismatch", how="temperature 1.6", fault="hot_sampler", amount=1.6),
    _interleaving(name="topk-interleaving", cause="sampler-mismatch", how="top_k 2", fault="topk_sampler", amount=2),
    _counting(
        name="stale-counting",
        cause="sampler-mismatch",
        how="weights of batch 10 for ever",
        fault="stale_sampler",
        start=10,
        rate=1e-3,
    ),
    _doubling(
        name="engine-hot-doubling",
        cause="sampler-mismatch",
        how="an engine at 1.5",
        fault="engine_hot",
        start=30,
        amount=1.5,
    ),
    _interleaving(
        name="unmasked-interleaving", cause="masked-leak", how="no env_mask", fault="feedback_unmasked", seed=2
    ),
    _interleaving(
        name="ones-interleaving", cause="masked-leak", how="an env_mask of ones", fault="feedback_ones", every=2, seed=3
    ),
    _counting(name="cut-gradient-counting", cause="cut-gradient", how="a hook", fault="cut_gradient", batches=60),
    _doubling(
        name="cut-gradient-doubling",
        cause="cut-gradient",
        how="a hook, from batch 41 on",
        fault="cut_gradient",
        start=40,
    ),
    # entropy and KL
    _counting(
        name="bonus-counting",
        cause="entropy-surge",
        how="an entropy bonus of 0.5",
        batches=150,
        options={"entropy_coef": 0.5},
    ),
    _interleaving(
        name="bonus-interleaving",
        cause="entropy-surge",
        how="a bonus of 0.3",
        batches=150,
        options={"entropy_coef": 0.3},
    ),
    _doubling(
        name="exhausted-doubling",
        cause="entropy-exhausted",
        how="entropy is punished",
        batches=120,
        options={"entropy_coef": -0.4},
    ),
    _counting(
        name="noise-counting",
        cause="noise-policy",
        how="random weights, 3,000 words",
        skill=0.0,
        amount=3000,
        batches=40,
        reward="several",
    ),
    _doubling(
        name="noise-doubling",
        cause="noise-policy",
        how="random weights, 1,500 words",
        skill=0.0,
        amount=1500,
        batches=40,
        reward="placed",
    ),
    _interleaving(
        name="kl-interleaving",
        cause="kl-exploded",
        how="beta 0.1 at a rate of 6e-3",
        rate=6e-3,
        batches=80,
        options={"beta": 0.1},
    ),
    _doubling(
        name="kl-doubling",
        cause="kl-exploded",
        how="beta 0.04 at a rate of 8e-3",
        rate=8e-3,
        batches=60,
        options={"beta": 0.04},
    ),
)
