"""An agent: a policy that can search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast.retrieval.types import Retriever
from holdfast.rollout.loop import Task, run_rollouts
from holdfast.rollout.scheduler import Agent
from holdfast.rollout.searching import RolloutStats
from holdfast.search.protocol import SearchProtocol, render_prompt
from holdfast.trajectory import Trajectory, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from holdfast.rollout.hf import HFPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchAgent:
    """What samples the turns, what answers the searches, and the language between the two.

    With `dataclasses.replace` one agent becomes another: `retriever=...`, `policy=agent.policy.with_sampling(...)`.
    """

    policy: HFPolicy
    retriever: Retriever
    protocol: SearchProtocol
    chat_template: str = "auto"
    """See `render_prompt`."""
    wrap: Callable[[Agent[Trajectory]], Agent[Trajectory]] | None = None
    """Put around every rollout: a fault to study, such as `lose_searches`."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        tokenizer: PreTrainedTokenizerBase = self.policy.tokenizer
        return tokenizer

    def evaluated(self, *, greedy: bool) -> SearchAgent:
        """The agent as evaluation asks it: without a fault, and with its most likely tokens or sampled at its
        temperature without truncation."""
        policy = self.policy.with_sampling(temperature=self.policy.temperature, greedy=greedy)
        return replace(self, policy=policy, wrap=None)

    def prompt(self, question: str) -> tuple[int, ...]:
        """Token ids of a question's prompt."""
        return tuple(render_prompt(question, self.protocol, self.tokenizer, self.chat_template))

    def ask(self, question: str, *, seed: int = 0, on_turn: Callable[[Task, Turn], None] | None = None) -> Trajectory:
        """One rollout, unscored. `on_turn` is called with each turn as it ends."""
        task = Task(id="ask", example_id="ask", prompt=self.prompt(question), seed=seed)
        (trajectory,) = self.run([task], on_turn=on_turn)
        return trajectory

    def run(
        self,
        tasks: Sequence[Task],
        *,
        patience: float = 0.0,
        stats: RolloutStats | None = None,
        on_turn: Callable[[Task, Turn], None] | None = None,
    ) -> list[Trajectory]:
        """`run_rollouts` by this agent."""
        return run_rollouts(
            tasks,
            policy=self.policy,
            retriever=self.retriever,
            protocol=self.protocol,
            tokenizer=self.tokenizer,
            patience=patience,
            wrap=self.wrap,
            stats=stats,
            on_turn=on_turn,
        )
