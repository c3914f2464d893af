"""What a method against collapse is in a recipe: its settings, and what it says of itself in errors and docs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from holdfast.base.section import Section

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

* rollout advantages: one advantage for each rollout, not for each token, as a critic gives, or a method `by_action`;
* group advantages: advantages that compare the rollouts of a question;
* negative rollouts: a weight above 0 of rollouts with A < 0;
* drift: more than one optimizer step per rollout batch, so that the policy differs from the old one;
* all log-probs: a loss over the whole vocabulary;
* output layer: a trained output layer;
* sampler: log-probs of the distribution that the tokens were drawn from;
* sampler's tokens: a loss over the tokens that the sampler draws from, so that its log-probs can be compared;
* sampler's distribution: a sampler that differs from the policy, and everything that it could draw at each token.
"""


class Method(Section):
    """A method against collapse, the table `[loss.methods.NAME]` of a recipe.

    It needs no torch. What the method does to a batch is in `operations.py`. To add one, write its settings in
    `registry.py`, and there.
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
    by_action: ClassVar[bool] = False
    """Whether it gives each action an advantage of its own."""
    metrics: ClassVar[Mapping[str, str]] = {}
    """Name of each series that it logs -> meaning and unit."""

    @model_validator(mode="before")
    @classmethod
    def _on_by_its_table(cls, data: Any) -> Any:
        return {"on": True, **data} if isinstance(data, dict) else data

    @classmethod
    def table(cls) -> str:
        """Its table in a recipe: `loss.methods.NAME`."""
        return f"loss.methods.{cls.name}"
