"""The leak without a language model: one context, a table of logits, advantages that do not depend on the token.

    python benchmarks/leak.py      # a table, and docs/laboratory/figures/leak-*.svg (needs pip install 'holdfast[lab]')

A token drawn from q moves the logits along A (e - p). Its mean over the sampler's q is A (q - p): nothing where q = p,
and for A below 0 a flow of probability from what the sampler can draw into what it cannot. Exact means, no sampling, no
Adam, no other context; so the pace means nothing, and what is left is which samplers leak, and which stop.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from holdfast.files import write_whole
from holdfast.lab.figures import draw
from holdfast.lab.series import RunSeries
from holdfast.lab.values import Figure
from laboratory_page import DOCS, alone

VOCABULARY = 1831
"""Of the organism."""
STEPS = 120
RATE = 40.0
"""Of a step, times the size of the advantage: so large that a hundred steps show where it ends."""
SIZE = 0.05
"""Of the advantage: what plain GRPO has per token before it falls."""

Kept = Callable[[np.ndarray], np.ndarray]


def top_k(p: np.ndarray, k: int) -> np.ndarray:
    """Which of the probabilities, in descending order, are kept; equals by rank."""
    return np.arange(len(p)) < k


def top_p(p: np.ndarray, share: float) -> np.ndarray:
    """The smallest most-likely-first set that reaches the share."""
    return np.cumsum(p) - p < share * p.sum()


def top_k_then_p(p: np.ndarray, k: int, share: float) -> np.ndarray:
    return top_k(p, k) & top_p(np.where(top_k(p, k), p, 0.0), share)


SAMPLERS: dict[str, Kept] = {
    "untruncated, or mask kept": lambda p: np.ones(len(p), bool),
    "top-p 0.95": lambda p: top_p(p, 0.95),
    "top-p 0.9": lambda p: top_p(p, 0.9),
    "top-k 64": lambda p: top_k(p, 64),
    "top-p 0.9 and top-k 64": lambda p: top_k_then_p(p, 64, 0.9),
}
FIGURES = (
    Figure("sampler/mass_kept", f"Mass the sampler keeps, advantage {-SIZE}", tuple(SAMPLERS)),
    Figure("entropy/mean", f"Entropy, nats, advantage {-SIZE}", tuple(SAMPLERS)),
)


def softmax(logits: np.ndarray) -> np.ndarray:
    mass = np.exp(logits - logits.max())
    return mass / mass.sum()


def trace(kept: Kept, advantage: float, steps: int = STEPS) -> list[dict[str, float]]:
    """Mass kept and entropy before each step, of a policy that begins with probabilities like 1 / rank^1.5."""
    logits = -1.5 * np.log(np.arange(1, VOCABULARY + 1))
    rows = []
    for step in range(steps + 1):
        logits = np.sort(logits)[::-1]  # only ranks matter
        p = softmax(logits)
        inside = kept(p)
        entropy = -float((p * np.log(p)).sum())
        rows.append({"step": step, "sampler/mass_kept": float(p[inside].sum()), "entropy/mean": entropy})
        q = np.where(inside, p, 0.0) / p[inside].sum()
        logits = logits + RATE * advantage * (q - p)
    return rows


def runs(advantage: float) -> dict[str, tuple[RunSeries, ...]]:
    return {
        name: (RunSeries(arm=name, seed=0, rows=tuple(trace(kept, advantage)), results={}),)
        for name, kept in SAMPLERS.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    print("| sampler | advantage | mass kept, first → last | entropy, first → last |\n|---|---|---|---|")
    for advantage in (-SIZE, SIZE):
        for name, (run,) in runs(advantage).items():
            cells = [
                f"{run.rows[0][metric]:.{digits}f} → {run.rows[-1][metric]:.{digits}f}"
                for metric, digits in (("sampler/mass_kept", 2), ("entropy/mean", 1))
            ]
            print(f"| {name} | {advantage:+.2f} | {cells[0]} | {cells[1]} |")
    for figure in FIGURES:
        svg = draw(figure, runs(-SIZE), key="leak")
        assert svg is not None
        write_whole(DOCS / "figures" / f"leak-{figure.metric.replace('/', '-')}.svg", alone(svg))


if __name__ == "__main__":
    main()
