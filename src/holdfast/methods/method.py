"""What a method is: settings, hooks that the local trainer calls, and what it says of itself in errors and docs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import model_validator

from holdfast.base.section import Section

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.agent.batch import TokenBatch
    from holdfast.agent.trajectory import Group
    from holdfast.model.language_model import LanguageModel

Need = Literal[
    "rollout advantages",
    "group advantages",
    "negative rollouts",
    "drift",
    "all log-probs",
    "output layer",
    "sampler",
    "sampler's tokens",
    "sampler's distribution",
]
"""What a method cannot work without. `recipe/needs.py` has the settings that take it away, and the sentences.

* rollout advantages: one advantage for each rollout, not for each token, as a critic or `credit` gives;
* group advantages: advantages that compare the rollouts of a question;
* negative rollouts: a weight above 0 of rollouts with A < 0;
* drift: more than one optimizer step per rollout batch, so that the policy differs from the old one;
* all log-probs: a loss over the whole vocabulary;
* output layer: a trained output layer;
* sampler: log-probs of the distribution that the tokens were drawn from;
* sampler's tokens: a loss over the tokens that the sampler draws from, so that its log-probs can be compared;
* sampler's distribution: a sampler that differs from the policy, and everything that it could draw at each token.
"""


Probe = tuple[Sequence[int], Sequence[int]]
"""Token ids: a context, and what continues it."""
ToAnswer = Callable[[str], tuple[tuple[int, ...], tuple[int, ...]]]
"""Token ids of an answer in the protocol: what opens it, and its text."""


class Method(Section):
    """A method against collapse, the table `[loss.methods.NAME]` of a recipe.

    Hooks are listed in the order in which a step calls them. A hook that a method does not override does nothing. B
    rollouts, T tokens. To add a method, write its class in a file of its own and list it in `registry.py`.
    """

    on: bool = False
    """Use the method. Any setting of its table switches it on, an empty table too."""

    name: ClassVar[str]
    """In recipes, errors and docs."""
    source: ClassVar[str]
    """Where it was published, as Markdown."""
    needs: ClassVar[frozenset[Need]] = frozenset()
    acts_on: ClassVar[str] = "it needs one advantage for each rollout"
    """What it does, for the sentence that refuses it: "it compares the rollouts of a group"."""
    elsewhere: ClassVar[str] = "the host does not have this method"
    """Why other trainers do not have it. One that does, or has a reason of its own, says so in its file of `hosts/`."""
    metrics: ClassVar[Mapping[str, str]] = {}
    """Name of each series that it logs -> meaning and unit."""

    @model_validator(mode="before")
    @classmethod
    def _on_by_its_table(cls, data: Any) -> Any:
        return {"on": True, **data} if isinstance(data, dict) else data

    # ---- rollouts

    @property
    def further_rounds(self) -> int:
        """At most how many more rounds of rollouts a step may take while `select` leaves out groups."""
        return 0

    def select(self, groups: Sequence[Group]) -> Sequence[bool]:
        """Which scored groups to learn from. If a step has none, it learns from all."""
        return [True] * len(groups)

    def probes(self, groups: Sequence[Group], answers: Sequence[Sequence[str]], to_answer: ToAnswer) -> Sequence[Probe]:
        """Texts whose likelihood under the policy `credit` needs. `answers` are the golden answers of each group."""
        return ()

    def credit(self, batch: TokenBatch, groups: Sequence[Group], probed: Sequence[float]) -> Tensor | None:
        """float [B, T]: added to the advantages, which are then of tokens.

        Args:
            batch: all rollouts of `groups`, with their advantages. On the CPU.
            groups: where the rows come from, in order.
            probed: for each of `probes`, the mean log-prob of the tokens of its continuation, in nats.
        """
        return None

    def drop_by_rollout(self, batch: TokenBatch, groups: Sequence[Group]) -> Tensor | None:
        """bool [B, T]: sampled tokens to drop from the loss, judged by the rollouts. `batch` has advantages and is on
        the CPU."""
        return None

    # ---- after the pass under the old weights

    def drop_by_old_policy(self, micro: TokenBatch) -> Tensor | None:
        """bool [B, T]: sampled tokens to drop from the loss, judged by `old_logprobs`."""
        return None

    def weights(self, micro: TokenBatch) -> Tensor | None:
        """float [B, T]: factors on the policy loss."""
        return None

    def check_model(self, language_model: LanguageModel) -> None:
        """Raise `ModelError` for a model that the method cannot work with. Called once."""

    def hidden_rows(self, batch: TokenBatch) -> Tensor | None:
        """bool [B]: rows whose hidden states `scores` needs; None: it needs none."""
        return None

    def scores(
        self, batch: TokenBatch, hidden: Mapping[int, Tensor], language_model: LanguageModel, temperature: float
    ) -> Tensor:
        """float [B, T]: factors on the policy loss, from hidden states.

        Args:
            batch: all rows, with `old_logprobs` over the whole vocabulary.
            hidden: by row, float [n, d], the states that predict its n sampled tokens; of the rows of `hidden_rows`.
            language_model: its output layer makes the logits.
            temperature: of the log-probs.
        """
        import torch

        return torch.ones_like(batch.rollout_logprobs)

    def measured(self, micros: Sequence[TokenBatch]) -> dict[str, float]:
        """Its series, from the micro-batches of a step."""
        return {}

    # ---- in an optimizer step

    def drop_by_policy(self, micro: TokenBatch, logprobs: Tensor) -> Tensor | None:
        """bool [B, T]: sampled tokens to drop from the policy loss, judged by the policy as it is now."""
        return None

    def term(self, micro: TokenBatch, logprobs: Tensor) -> Tensor | None:
        """float [B, T]: added to the loss, with its coefficient; 0 outside `micro.learned_mask`."""
        return None

    @classmethod
    def learns_without_advantage(cls) -> bool:
        """Whether `term` can have a gradient on rollouts whose advantage is 0. Micro-batches of such rollouts are
        passed without a graph if nothing does."""
        return cls.term is not Method.term

    # ---- after the update

    def lesson(self, batch: TokenBatch, step: int) -> Tensor | None:
        """bool [B]: rows to learn from by their likelihood, in one more optimizer step. `step` counts from 1."""
        return None

    @classmethod
    def table(cls) -> str:
        """Its table in a recipe: `loss.methods.NAME`."""
        return f"loss.methods.{cls.name}"
