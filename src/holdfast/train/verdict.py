"""The closing paragraph of a run, from its own numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

from holdfast.falls import bottom, deepest_fall, fallen

_WINDOW = 5


def verdict_of(
    series: Sequence[Mapping[str, float]], before: Mapping[str, float], after: Mapping[str, float], split: str
) -> str:
    """What rose, what fell, and whether correct rollouts were displaced, in a few plain sentences.

    `Collapsed` is what docs/results.md calls a collapse: at the end the reward, a mean over 5 steps, has lost 40 % of
    its peak, or of its range where rewards are below 0. A run that lost as much on the way says so.

    >>> rows = [{"reward/mean": r, "displacement/correct": 0.01} for r in (.2, .3, .4, .5, .6, .7)]
    >>> verdict_of(rows, {"em": 0.2, "em_greedy": 0.4}, {"em": 0.5, "em_greedy": 0.45}, "test")[:58]
    'Learned and held. Reward rose from 0.40 to 0.50 (peak 0.50'
    """
    rewards = [row["reward/mean"] for row in series if "reward/mean" in row]
    moved = [row["displacement/correct"] for row in series if "displacement/correct" in row]
    if not rewards:
        return "No training step was made."
    window = min(_WINDOW, len(rewards))
    means = [mean(rewards[i : i + window]) for i in range(len(rewards) - window + 1)]
    first, last, peak = means[0], means[-1], max(means)
    text = (
        f"{_headline(means, after['em'] - before['em'])} Reward {'rose' if last >= first else 'fell'} from "
        f"{first:.2f} to {last:.2f} (peak {peak:.2f}, means of {window} steps). Exact match on {split}: sampled "
        f"{before['em']:.3f} to {after['em']:.3f}, greedy {before['em_greedy']:.3f} to {after['em_greedy']:.3f}."
    )
    if moved:
        below = sum(m < 0 for m in moved) / len(moved)
        text += (
            f" Correct rollouts became {'more' if mean(moved) > 0 else 'less'} likely under their own updates: "
            f"displacement {mean(moved):+.4f} nats per token on average, below 0 in {below:.0%} of the steps."
        )
    return text


def _headline(means: Sequence[float], gain: float) -> str:
    last, peak, lowest = means[-1], max(means), min(means)
    if last < peak and fallen(last, peak, lowest):
        return "Collapsed."
    top, low = (means[place] for place in deepest_fall(means))
    if fallen(low, top, lowest) and top - low > 0.1:  # a rare reward's noise is less
        return f"Fell to {low:.2f} and came back."
    floor = bottom(peak, lowest)
    if last - floor < 0.85 * (peak - floor):
        return "Fell back from its peak."
    return "Learned and held." if gain > 0.02 else "Held, but learned little."
