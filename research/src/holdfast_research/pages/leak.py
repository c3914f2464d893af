"""The leak without a language model: one context, a table of logits, advantages that do not depend on the token.

    python -m holdfast_research.pages.leak      # a table, and research/docs/figures/leak-entropy-mean.svg

A token drawn from q moves the logits along A (e - p). Its mean over the sampler's q is A (q - p): nothing where q = p,
and for A below 0 a flow of probability from what the sampler can draw into what it cannot. Exact means, no sampling, no
Adam, no other context; so the pace means nothing, and what is left is which samplers leak, and which stop.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from holdfast.base.files import write_whole
from holdfast.model.sampler.sampling import sampling_mask_ids
from holdfast_research.figures import draw
from holdfast_research.pages.curves import alone
from holdfast_research.paths import DOCS
from holdfast_research.series import RunSeries
from holdfast_research.values import Figure

VOCABULARY = 1831
"""Tokens of the testbed's."""
STEPS = 120
RATE = 40.0
"""Learning rate: so large that a hundred steps show where it ends."""
SIZE = 0.05
"""Absolute advantage: that of plain GRPO per token before it falls."""

SAMPLERS = {
    "untruncated, or mask kept": (1.0, 0),
    "top-p 0.95": (0.95, 0),
    "top-p 0.9": (0.9, 0),
    "top-k 64": (1.0, 64),
    "top-p 0.9 and top-k 64": (0.9, 64),
}
"""Name -> top-p and top-k."""
FIGURE = Figure("entropy/mean", f"Entropy, nats, advantage {-SIZE}", tuple(SAMPLERS))


def flow(logits: Tensor, top_p: float, top_k: int, advantage: float) -> tuple[Tensor, float]:
    """A (q - p), and the mass that the sampler keeps; `logits` are float64 [V]."""
    p = logits.softmax(-1)
    ids = sampling_mask_ids(logits[None], logits.argmax()[None], top_p=top_p, top_k=top_k)[0]
    inside = torch.zeros_like(p).scatter_(0, ids[ids >= 0].long(), 1.0)
    mass = float((p * inside).sum())
    return advantage * (p * inside / mass - p), mass


def trace(top_p: float, top_k: int, advantage: float, steps: int = STEPS) -> list[dict[str, float]]:
    """Mass kept and entropy before each step, of a policy that begins with probabilities like 1 / rank^1.5."""
    logits = -1.5 * torch.arange(1, VOCABULARY + 1, dtype=torch.float64).log()
    rows = []
    for step in range(steps + 1):
        change, mass = flow(logits, top_p, top_k, advantage)
        every = logits.log_softmax(-1)
        entropy = -float((every.exp() * every).sum())
        rows.append({"step": step, "sampler/mask_mass": mass, "entropy/mean": entropy})
        logits = logits + RATE * change
    return rows


def runs(advantage: float) -> dict[str, tuple[RunSeries, ...]]:
    """Sampler -> its trace, as the runs of an arm."""
    return {
        name: (RunSeries(arm=name, seed=0, rows=tuple(trace(*sampler, advantage)), results={}),)
        for name, sampler in SAMPLERS.items()
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    print("| sampler | advantage | mass kept, first → last | entropy, first → last |\n|---|---|---|---|")
    for advantage in (-SIZE, SIZE):
        for name, (run,) in runs(advantage).items():
            cells = [
                f"{run.rows[0][metric]:.{digits}f} → {run.rows[-1][metric]:.{digits}f}"
                for metric, digits in (("sampler/mask_mass", 2), ("entropy/mean", 1))
            ]
            print(f"| {name} | {advantage:+.2f} | {cells[0]} | {cells[1]} |")
    svg = draw(FIGURE, runs(-SIZE), key="leak")
    assert svg is not None
    write_whole(DOCS / "figures" / "leak-entropy-mean.svg", alone(svg))


if __name__ == "__main__":
    main()
