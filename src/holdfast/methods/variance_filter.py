"""RAGEN-2's filter: learn from the groups with the largest variance of the reward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from holdfast.methods.method import Method

if TYPE_CHECKING:
    from holdfast.agent.trajectory import Group

_WHY = "it trains on every group that it samples"


class VarianceFilter(Method):
    """Learn only from the groups whose rewards vary most: as few as have `share` of the variance of all groups.

    No other questions are sampled in place of the rest.
    """

    share: float = Field(0.9, gt=0, le=1)
    """Share of the variance of the reward, summed over groups. At 1, only groups without contrast are left out."""

    name: ClassVar = "variance_filter"
    source: ClassVar = (
        "RAGEN-2; RAGEN, [arXiv 2504.20073](https://arxiv.org/abs/2504.20073), keeps a share of the groups"
    )
    needs: ClassVar = frozenset({"group advantages"})
    acts_on: ClassVar = "it compares the rewards within groups"
    hosts: ClassVar = {"trl": _WHY, "verl": _WHY}

    def select(self, groups: Sequence[Group]) -> list[bool]:
        """The groups with the largest variance, until they have their share."""
        from statistics import pvariance

        scored = [[t.reward or 0.0 for t in group.trajectories if not t.status.is_failure] for group in groups]
        variances = [pvariance(rewards) if rewards else 0.0 for rewards in scored]
        keep, left = [False] * len(groups), self.share * sum(variances)
        for index in sorted(range(len(groups)), key=lambda i: -variances[i]):
            if left <= 0 or variances[index] == 0:
                break
            keep[index], left = True, left - variances[index]
        return keep
