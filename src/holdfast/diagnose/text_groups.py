"""Rollouts of one question at one step: copies of each other, and advantages that were taken over other questions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from holdfast.diagnose.finding import TextFinding
from holdfast.diagnose.readers.rollouts import SampledRollout
from holdfast.diagnose.readers.text import clean

_EXAMPLE = 160
_LONG = 200
"""Characters from which on two rollouts that were sampled do not have the same text by chance."""
_COPIED = 0.1
"""Share of the long rollouts that are copies."""
_MIN_FOUND = 3
_APART, _MIXED = 0.1, 0.5
"""How far the mean advantage of a question is from the mean of its step, of the mean size of an advantage; and the
share of such questions. Advantages over the group have the same mean in all groups, but for rounding."""


def _groups(rollouts: Sequence[SampledRollout]) -> list[list[SampledRollout]]:
    """The rollouts of each question of each step, where there are several."""
    groups: dict[object, list[SampledRollout]] = defaultdict(list)
    for rollout in rollouts:
        if not rollout.held_out:
            groups[rollout.step, rollout.prompt, rollout.question].append(rollout)
    return [group for group in groups.values() if len(group) > 1]


def copies(rollouts: Sequence[SampledRollout]) -> TextFinding | None:
    """Long rollouts of one question and step with the same text: written twice, or sampled with one seed."""
    long = 0
    copied: list[SampledRollout] = []
    for group in _groups(rollouts):
        seen = set()
        for rollout in group:
            text = "\n".join(turn.text for turn in rollout.turns)
            if len(text) >= _LONG:
                long += 1
                copied += [rollout] if text in seen else []
                seen.add(text)
    if len(copied) < max(_MIN_FOUND, _COPIED * long):
        return None
    first = min(copied, key=lambda rollout: rollout.step)
    return TextFinding(
        kind="copies",
        step=first.step,
        summary=f"{len(copied):,} of {long:,} long rollouts repeat the text of another rollout of the same question "
        "and step.",
        example=clean(first.turns[0].text, _EXAMPLE),
        advice="Sampled texts of this length do not repeat by chance. Give every rollout of a group its own seed, "
        "and check that no rollout is written or trained on twice. If neither is the cause, the policy always writes "
        "the same text.",
    )


def mixed_groups(rollouts: Sequence[SampledRollout]) -> TextFinding | None:
    """Questions whose mean advantage differs from that of others, though equal rewards have other advantages elsewhere.

    A baseline over the whole batch is not meant: it gives equal rewards of a step equal advantages.
    """
    judged = [group for group in _groups(rollouts) if all(row.advantage is not None for row in group)]
    sizes, means = defaultdict(set), defaultdict(list)
    for group in judged:
        sizes[group[0].step].add(len(group))
        means[group[0].step].append(_mean(group))
    whole = [group for group in judged if len(sizes[group[0].step]) == 1]
    size = fmean(abs(row.advantage or 0.0) for group in whole for row in group) if whole else 0.0
    off = [group for group in whole if abs(_mean(group) - fmean(means[group[0].step])) > _APART * size]
    if not size or len(off) < max(_MIN_FOUND, _MIXED * len(whole)) or _one_baseline(whole):
        return None
    first = min(off, key=lambda group: group[0].step)[0]
    return TextFinding(
        kind="mixed_groups",
        step=first.step,
        summary=f"For {len(off):,} of {len(whole):,} questions, the mean advantage differs from the other questions: "
        "groups contain rollouts of several prompts.",
        example=clean(first.question or first.prompt, _EXAMPLE),
        advice="Check the order of rollouts where rewards are reshaped into groups: on every process, the rollouts "
        "of a prompt must be adjacent.",
    )


def _mean(group: Sequence[SampledRollout]) -> float:
    return fmean(row.advantage or 0.0 for row in group)


def _one_baseline(groups: Sequence[Sequence[SampledRollout]]) -> bool:
    """Whether equal rewards of a step have equal advantages, whatever the question."""
    advantages: dict[object, list[float]] = defaultdict(list)
    for group in groups:
        for row in group:
            advantages[row.step, row.reward].append(row.advantage or 0.0)
    return all(max(part) - min(part) < 1e-3 for part in advantages.values())
