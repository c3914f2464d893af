"""DAPO's dynamic sampling: further rollouts until enough groups have a contrast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from holdfast.methods.method import Method

if TYPE_CHECKING:
    from holdfast.agent.trajectory import Group


class DynamicSampling(Method):
    """Learn only from groups whose rewards differ, and sample other questions until there are `train.questions` of
    them. A step that finds none learns from all groups."""

    rounds: int = Field(9, ge=1)
    """Maximum number of further rounds of rollouts in a step."""

    name: ClassVar = "dynamic_sampling"
    source: ClassVar = "DAPO, [arXiv 2503.14476](https://arxiv.org/abs/2503.14476)"
    needs: ClassVar = frozenset({"group advantages"})
    acts_on: ClassVar = "it replaces groups whose rewards are equal"
    elsewhere: ClassVar = "it trains on every group that it samples"
    metrics: ClassVar = {
        "rollout/extra_questions": "Number of questions that `dynamic_sampling` drew in addition to `train.questions`. "
        "Absent without it."
    }

    @property
    def further_rounds(self) -> int:
        """`rounds`."""
        return self.rounds

    def select(self, groups: Sequence[Group]) -> list[bool]:
        """Groups whose rewards differ."""
        return [group.mixed for group in groups]
