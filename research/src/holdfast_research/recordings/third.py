"""The third held-out set, planned after the second had been read and before any of its runs was made.

More than half of the collapses are to be slow: the collapse recipe's truncated sampler, or a harder one, with ten
optimizer steps a rollout batch, at rates under which a reward falls over 15 to 40 batches. Which rates do was tried on
`rover` and `strayer`, of the older sets: those runs are tuning runs.

Decided beforehand: runs are made in this order, and one that is not made in time is left out. No label changes by what
the rules say. A healthy run whose reward fell to half would be left out, and named.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from holdfast_research.recordings.plan import (
    DELVER,
    DROVER,
    NOMAD,
    NOMAD_TRL,
    ROTATE,
    ROVER,
    STRAYER,
    Organism,
    Planned,
)
from holdfast_research.recordings.second import Runs

_TRUNCATED = ("sampler-mismatch",)
_RECIPE = ("--sampling.top_p", "0.9", "--sampling.top_k", "64")
_HARDER = ("--sampling.top_p", "0.8", "--sampling.top_k", "20")
_CLEAN = ("--sampling.top_p", "1", "--sampling.top_k", "0")
_LONG = ("--train.optimizer_steps_per_rollout", "10")
_SLOW = {
    # arm: (sampler, rate, batches of warm-up, batches, in words)
    "press": (_HARDER, "1e-3", "15", 60, "top-p 0.8 and top-k 20, at three times the rate that works"),
    "erode": (_HARDER, "8e-4", "15", 72, "top-p 0.8 and top-k 20, above the rate that works"),
    "slip": (_RECIPE, "1e-3", "15", 72, "top-p 0.9 and top-k 64, at three times the rate that works"),
}


def third_runs(local: Runs, toys: Runs) -> Iterator[Planned]:
    """In the order in which they are made: the causes take turns, so that a recording cut short has them all."""
    waiting = [
        iter(_slow()),
        toys(ROTATE, _TOYS),
        local(DELVER, _FAULTS),
        _healthy(),
        local(NOMAD_TRL, {"plain": (1, 2, 3), "empty": (1,), "plateau": (1,)}),
    ]
    shares = (3, 4, 3, 2, 1)
    while waiting:
        rounds = [list(islice(runs, share)) for runs, share in zip(waiting, shares, strict=True)]
        yield from (run for made in rounds for run in made)
        if not any(rounds):
            return


_TOYS = {
    "plain": (1, 2, 3, 4, 5, 6),
    "giant-steps": (1, 2, 3, 4),
    "long": (1, 2, 3),
    "cosine": (1, 2, 3),
    "large-steps": (1, 2),
    "noisy": (1, 2),
    "resumed": (7,),
    "poisoned": (1,),
    "plateau": (1,),
    "hot": (1,),
    "inert": (1,),
    "no-answers": (1,),
}
_FAULTS = {
    "plain": (1, 2, 3, 4, 5),
    "giant-steps": (1, 2),
    "dead": (1,),
    "noisy": (1, 2),
    "large-steps": (1, 2),
    "empty": (1, 2),
    "slower": (1, 2),
    "faster": (1, 2),
    "long": (1,),
    "poisoned": (1,),
    "resumed": (1,),
    "leak": (1,),
    "overflow": (1,),
    "hot": (1,),
    "plateau": (1,),
    "inert": (1,),
    "no-answers": (1,),
    "topk": (1,),
}


def _slow() -> Iterator[Planned]:
    for seed in (1, 2, 3):
        for organism in (NOMAD, DROVER):
            yield from (_displaced(organism, arm, seed) for arm in _SLOW)
    yield from (_displaced(NOMAD_TRL, "press", seed) for seed in (1, 2))
    for seed in (4, 5):
        yield from (_displaced(organism, "press", seed) for organism in (NOMAD, DROVER))


def _displaced(organism: Organism, arm: str, seed: int) -> Planned:
    sampler, rate, warmup, steps, how = _SLOW[arm]
    return Planned(
        organism=organism,
        arm=arm,
        cause="displacement",
        seed=seed,
        how=f"{how}, ten optimizer steps a rollout batch",
        settings=(*sampler, *_LONG, "--train.lr", rate, "--train.warmup", warmup),
        also=_TRUNCATED,
        steps=steps,
    )


def _healthy() -> Iterator[Planned]:
    """The same organisms at the rate that works: every sampler, and ten optimizer steps of a tenth of the rate."""
    for seed in (1, 2, 3):
        for organism in (NOMAD, DROVER):
            yield _well(organism, "plain", seed, _CLEAN, "the rate that works, the whole sampler")
            yield _well(organism, "truncated", seed, _RECIPE, "the rate that works, the recipe's sampler")
            if seed < 3:
                small = (*_HARDER, *_LONG, "--train.lr", "1e-4", "--train.warmup", "15")
                yield _well(
                    organism, "sane", seed, small, "the sampler and steps of its collapses, a tenth of the rate"
                )


def _well(organism: Organism, arm: str, seed: int, settings: tuple[str, ...], how: str) -> Planned:
    return Planned(
        organism=organism,
        arm=arm,
        cause="healthy-sharpening",
        seed=seed,
        how=how,
        settings=settings,
        also=() if arm == "plain" else _TRUNCATED,
    )


def pilot_runs() -> Iterator[Planned]:
    """What was tried beforehand: tuning runs."""
    for organism, arm, seed, steps, rate, warmup in _TRIED:
        yield Planned(
            organism=organism,
            arm=arm,
            cause="displacement",
            seed=seed,
            how=f"top-p 0.8 and top-k 20, ten optimizer steps a rollout batch, at a rate of {rate}",
            settings=(*_HARDER, *_LONG, "--train.lr", rate, "--train.warmup", warmup),
            also=_TRUNCATED,
            steps=steps,
        )


_TRIED = (
    # organism, arm, seed, batches, rate, batches of warm-up
    (ROVER, "harsh", 5, 60, "5e-4", "10"),
    (ROVER, "harsher", 5, 60, "9e-4", "15"),
    (ROVER, "harshest", 6, 60, "1.2e-3", "20"),
    (ROVER, "harsher", 6, 70, "8e-4", "15"),
    (STRAYER, "harsh", 5, 70, "5e-4", "15"),
    (STRAYER, "harsher", 5, 70, "8e-4", "15"),
)
