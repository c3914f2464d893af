"""The closing paragraph of a run, from its own numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

from holdfast.collapse import WINDOW, Curve, collapsed, curve_of, fell


def verdict_of(
    series: Sequence[Mapping[str, float]], before: Mapping[str, float], after: Mapping[str, float], split: str
) -> str:
    """What rose, what fell, and whether correct rollouts were displaced, in a few plain sentences.

    `holdfast.collapse` defines dropped, fell and collapsed. A run that fell and came back says both.

    >>> rows = [{"reward/mean": r, "displacement/correct": 0.01} for r in (.2, .3, .4, .5, .6, .7)]
    >>> verdict_of(rows, {"em": 0.2, "em_greedy": 0.4}, {"em": 0.5, "em_greedy": 0.45}, "test")[:58]
    'Learned and held. Reward rose from 0.40 to 0.50 (peak 0.50'
    """
    curve = curve_of([row["reward/mean"] for row in series if "reward/mean" in row])
    moved = [row["displacement/correct"] for row in series if "displacement/correct" in row]
    if not len(curve.steps):
        return "No training step was made."
    text = (
        f"{_reward(curve, after['em'] - before['em'])} Exact match on {split}: sampled "
        f"{before['em']:.3f} to {after['em']:.3f}, greedy {before['em_greedy']:.3f} to {after['em_greedy']:.3f}."
    )
    if moved:
        below = sum(m < 0 for m in moved) / len(moved)
        text += (
            f" Correct rollouts became {'more' if mean(moved) > 0 else 'less'} likely under their own updates: "
            f"displacement {mean(moved):+.4f} nats per token on average, below 0 in {below:.0%} of the steps."
        )
    return text


def _reward(curve: Curve, gain: float) -> str:
    window = min(WINDOW, len(curve.steps))
    means = curve.short.means[window - 1 :]
    first, last, peak = means[0], means[-1], means.max()
    aside = f"{first:.2f} at first, means of {window} steps"
    fall, dropped = fell(curve), curve.dropped[-1]
    if fall is not None and curve.fallen[-1]:
        end = curve.fall_at(-1)
        word = "Fell" if collapsed(curve) is None else "Collapsed"
        return f"{word}. Reward fell from its peak of {end.peak:.2f} to {end.level:.2f} ({aside})."
    if fall is not None:
        low = curve.short.means[curve.steps >= fall.step].min()
        back = "came back in part" if dropped else "came back"
        return f"Fell and {back}. Reward fell from {fall.peak:.2f} to {low:.2f} and ended at {last:.2f} ({aside})."
    if dropped:
        return f"Dropped. Reward dropped from its peak of {peak:.2f} to {last:.2f} ({aside})."
    went = f"{'fell' if last < first else 'rose'} from {first:.2f} to {last:.2f}"
    held = "Learned and held." if gain > 0.02 else "Held, but learned little."
    return f"{held} Reward {went} (peak {peak:.2f}, means of {window} steps)."
