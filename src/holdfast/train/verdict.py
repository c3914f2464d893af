"""The closing paragraph of a run, from its own numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

_WINDOW = 5


def verdict_of(
    series: Sequence[Mapping[str, float]], before: Mapping[str, float], after: Mapping[str, float], split: str
) -> str:
    """What rose, what fell, and whether correct rollouts were displaced, in a few plain sentences.

    >>> rows = [{"reward/mean": r, "displacement/correct": 0.01} for r in (.2, .3, .4, .5, .6, .7)]
    >>> verdict_of(rows, {"em": 0.2, "em_greedy": 0.4}, {"em": 0.5, "em_greedy": 0.45}, "test")[:58]
    'Learned and held. Reward rose from 0.40 to 0.50 (peak 0.50'
    """
    rewards = [row["reward/mean"] for row in series if "reward/mean" in row]
    moved = [row["displacement/correct"] for row in series if "displacement/correct" in row]
    if not rewards:
        return "No training step was made."
    means = [mean(rewards[i : i + _WINDOW]) for i in range(max(len(rewards) - _WINDOW + 1, 1))]
    first, last, peak = means[0], means[-1], max(means)
    gain = after["em"] - before["em"]
    if peak > 0 and last < 0.6 * peak:
        headline = "Collapsed."
    elif last < 0.85 * peak:
        headline = "Fell back from its peak."
    elif gain > 0.02:
        headline = "Learned and held."
    else:
        headline = "Held, but learned little."
    text = (
        f"{headline} Reward rose from {first:.2f} to {last:.2f} (peak {peak:.2f}, means of {_WINDOW} steps). Exact match "
        f"on {split}: sampled {before['em']:.3f} to {after['em']:.3f}, greedy {before['em_greedy']:.3f} to "
        f"{after['em_greedy']:.3f}."
    ).replace("Reward rose", "Reward rose" if last >= first else "Reward fell")
    if moved:
        below = sum(m < 0 for m in moved) / len(moved)
        text += (
            f" Correct rollouts became {'more' if mean(moved) > 0 else 'less'} likely under their own updates: "
            f"displacement {mean(moved):+.4f} nats per token on average, below 0 in {below:.0%} of the steps."
        )
    return text
