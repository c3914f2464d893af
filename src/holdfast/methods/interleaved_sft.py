"""Supervised steps between those of reinforcement learning, on the run's own correct rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from holdfast.methods.method import Method

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.agent.batch import TokenBatch


class InterleavedSFT(Method):
    """After the update of every `every`-th step, take one optimizer step on the likelihood of its correct rollouts.

    It raises what the policy update may have lowered: tags, queries and answers of rollouts that were right. The
    published form learns from demonstrations, and generalises less than reinforcement learning alone.
    """

    every: int = Field(10, ge=1)
    """Steps from one supervised step to the next."""

    name: ClassVar = "interleaved_sft"
    source: ClassVar = "a control of [arXiv 2606.26027](https://arxiv.org/abs/2606.26027), there on demonstrations"
    elsewhere: ClassVar = "its trainer has no supervised steps"
    metrics: ClassVar = {
        "loss/supervised": "Mean negative log-prob of the tokens of correct rollouts, in nats, before a supervised "
        "step of `interleaved_sft`. Absent in steps without one."
    }

    def lesson(self, batch: TokenBatch, step: int) -> Tensor | None:
        """The correct rollouts, at every `every`-th step."""
        return batch.correct if step % self.every == 0 else None
