"""The rows of a table that are trained: each a few settings on top of a recipe, one command.

The same settings go with any recipe: `quickstart` for the bundled world, `qwen2.5-3b` for a cluster, one's own.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.base.errors import ConfigError
from holdfast.recipe import load
from holdfast.recipe.loading import find_recipe
from holdfast_research.methods import ADAPTIVE_ANSWERS, GSPO, NO_PENALTY, SAPO, Settings, llds, words

GRPO, DEMONSTRATIONS = "Search-R1 GRPO", "SFT on search demonstrations"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """A method of training, and how the model it trains is evaluated."""

    name: str
    settings: Settings = field(default_factory=dict)
    world_settings: Settings = field(default_factory=dict)
    """More settings, where the recipe trains on the bundled world."""
    warm_start: bool = False
    """Supervised learning on search demonstrations alone, without reinforcement learning."""
    baseline: tuple[str, ...] = ()
    """Words of `holdfast baseline`, for a row that is one: its name, and options."""
    method: str = "search-r1"
    """`--method` of `holdfast eval run`."""
    bare: bool = False
    """Evaluated without instructions, as in its training."""
    after: str | None = None
    """The row whose model it starts from; None is the recipe's start."""
    against: str | None = None
    """The baseline row of its gain."""

    def settings_on(self, recipe: Path) -> Settings:
        """What a recipe is trained with."""
        return {**self.settings, **(self.world_settings if load(recipe).data.train == "world" else {})}

    def command(self, recipe: str) -> str:
        """The command that trains it; `START` is a placeholder for the model it starts from."""
        verb = ["baseline", self.baseline[0]] if self.baseline else ["warm-start" if self.warm_start else "train"]
        start = ["--model.path", "START"] if self.after else []
        settings = words(self.settings_on(find_recipe(recipe)))
        return shlex.join(["holdfast", *verb, recipe, *start, *settings, *self.baseline[1:]])


ROWS: tuple[TrainingRow, ...] = (
    TrainingRow(name="SFT", baseline=("sft",), method="direct", bare=True),
    TrainingRow(name=DEMONSTRATIONS, warm_start=True),
    # A tiny model learns to read from demonstrations; from short answers alone it does not.
    TrainingRow(
        name="RAG after SFT", baseline=("rag-sft", "--steps", "300"), method="rag", bare=True, after=DEMONSTRATIONS
    ),
    TrainingRow(
        name="R1",
        settings={"protocol.preset": "r1", "protocol.max_turns": 1, **NO_PENALTY},
        world_settings={"world.scripts.skip_search": 1},  # the start, too, must not know of searches
        method="r1",
    ),
    TrainingRow(name="Rejection sampling", settings=NO_PENALTY, baseline=("rejection-sampling",)),
    TrainingRow(name="REINFORCE", settings={"loss.advantage": "reinforce", **NO_PENALTY}),
    TrainingRow(
        name="PPO",
        settings={**NO_PENALTY, "loss.advantage": "gae", "loss.kl_coef": 0.0, "reward.kl": 0.001},
        world_settings={"critic.lr": 3e-3},  # ten times the policy's, as published
    ),
    TrainingRow(name=GRPO, settings=NO_PENALTY),
    TrainingRow(name="+ LLD", settings=llds("token"), against=GRPO),
    TrainingRow(name="+ LLDS-R", settings=llds("response"), against=GRPO),
    TrainingRow(name="+ LLDS-A", settings=llds("action"), against=GRPO),
    TrainingRow(name="+ LLDS-A-MA", settings={**llds("action"), **ADAPTIVE_ANSWERS}, against=GRPO),
    TrainingRow(name="SAPO", settings=SAPO, against=GRPO),
    TrainingRow(name="GSPO", settings={**GSPO, **NO_PENALTY}),
    TrainingRow(name="GSPO + LLDS-A", settings={**GSPO, **llds("action")}, against="GSPO"),
)
"""In the order of the papers' tables, each with the recipe's reward.

λ is that of LLDS v2 for every gate; v1 has 0.1. SAPO's paper rewards token F1 and samples ten rollouts a question; its
row here is like for like with the others. PPO has as many rollouts of as many questions as GRPO; its paper has one
rollout a question. GSPO has GRPO's clip, as in the LLDS paper, whose code reduces the penalty
by token; these settings reduce it by sequence.
"""


def rows_of(texts: Sequence[str]) -> tuple[TrainingRow, ...]:
    """The rows whose name contains one of the texts, the baseline rows of their gains, and those they start from; all
    without texts.

    Raises `ConfigError`.
    """
    for text in texts:
        if not any(text.lower() in row.name.lower() for row in ROWS):
            names = ", ".join(row.name for row in ROWS)
            raise ConfigError(f"--rows {text}: no row has that in its name; there are {names}")
    chosen = {row.name for row in ROWS if not texts or any(text.lower() in row.name.lower() for text in texts)}
    chosen |= {name for row in ROWS if row.name in chosen for name in (row.against, row.after) if name}
    return tuple(row for row in ROWS if row.name in chosen)
