"""RAGEN-2's filter: learn from the groups whose rewards vary most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from holdfast.methods.method import Method

if TYPE_CHECKING:
    from holdfast.agent.trajectory import Group

_SLACK = 0.01
"""RAGEN-2's `selection_eps`: the sum may miss its share by this much."""


class VarianceFilter(Method):
    """Learn only from the groups whose rewards vary most: as few as have `share` of the standard deviations of all
    groups, less 0.01.

    No other questions are sampled in place of the rest.
    """

    share: float = Field(0.9, gt=0, le=1)
    """Share of the standard deviations of the reward, summed over groups. At 1, little but groups without contrast is
    left out."""

    name: ClassVar = "variance_filter"
    source: ClassVar = (
        "RAGEN-2; RAGEN, [arXiv 2504.20073](https://arxiv.org/abs/2504.20073), keeps a share of the groups"
    )
    needs: ClassVar = frozenset({"group advantages"})
    acts_on: ClassVar = "it compares the rewards within groups"
    elsewhere: ClassVar = "it trains on every group that it samples"

    def select(self, groups: Sequence[Group]) -> list[bool]:
        """The groups with the largest deviation, until they have their share."""
        from statistics import stdev

        scored = [[t.reward or 0.0 for t in group.trajectories if not t.status.is_failure] for group in groups]
        deviations = [stdev(rewards) if len(rewards) > 1 else 0.0 for rewards in scored]
        keep, left = [False] * len(groups), self.share * sum(deviations) - _SLACK
        for index in sorted(range(len(groups)), key=lambda i: -deviations[i]):
            if left <= 0 or deviations[index] == 0:
                break
            keep[index], left = True, left - deviations[index]
        return keep
