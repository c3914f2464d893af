"""The runs of every organism: arm, cause, seeds. `record_plan` has the organisms."""

from __future__ import annotations

from collections.abc import Iterator

from record_plan import COLLAPSE, QUICKSTART, Planned
from seeds import ARMS

_TRUNCATED = ("sampler-mismatch",)  # what the collapse recipe has beside everything else
_LONGER = "with the present code, 80 steps"
_CURES = {  # arms of benchmarks/seeds.py, 60 steps, in whose runs the reward holds
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
                settings=tuple(overrides[title]),
                also=() if arm == "untruncated" else _TRUNCATED,
            )
    for seed in (1, 2, 3):
        common = {"organism": COLLAPSE, "seed": seed, "also": _TRUNCATED}
        yield Planned(**common, arm="grpo", cause="displacement", how="plain GRPO, the recipe as it is, 60 steps")
        yield Planned(**common, arm="grpo-80", cause="displacement", how=f"the same {_LONGER}", steps=80)
        yield Planned(
            **common,
            arm="llds-80",
            cause="healthy-sharpening",
            how=f"LLDS at coefficient 0.5 over all tokens, {_LONGER}",
            settings=("--loss.penalty.name", "llds", "--loss.penalty.coef", "0.5"),
            steps=80,
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
                settings=tuple(ARMS["quickstart"][title]),
            )


def everything() -> list[Planned]:
    """All runs, in the order in which they are worth making."""
    return [*collapse_runs(), *quickstart_runs()]
