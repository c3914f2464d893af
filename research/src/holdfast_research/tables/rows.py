"""The rows of a table that are trained: each a few settings on top of a recipe, one command.

The same settings go with any recipe: `quickstart` for the bundled world, `qwen2.5-3b` for a cluster, one's own.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import ConfigError

_NONE = ("--loss.penalty.name", "none")
_LLDS = ("--loss.penalty.name", "llds", "--loss.penalty.gate")
_GSPO = ("--loss.ratio", "sequence", "--loss.reduction", "seq-mean-token-mean")
GRPO, EPISODES = "Search-R1 GRPO", "SFT on search episodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """A method of training, and how what it trained is evaluated."""

    name: str
    settings: tuple[str, ...] = ()
    stage: str = ""
    """`warm-start`, or empty for reinforcement learning."""
    baseline: tuple[str, ...] = ()
    """Words of `holdfast baseline`, for a row that is one: its name, and options."""
    bare: bool = False
    """Evaluated without instructions, as it was taught."""
    method: str = "search-r1"
    """Of `holdfast eval`."""
    after: str | None = None
    """The row whose model it starts from; None is the recipe's start."""
    against: str | None = None
    """The row its gain is over."""

    def command(self, recipe: str) -> str:
        """What trains it; `START` stands for the model it comes after."""
        verb = ["baseline", self.baseline[0]] if self.baseline else [self.stage or "train"]
        words = [
            "holdfast",
            *verb,
            recipe,
            *(("--model.path", "START") if self.after else ()),
            *self.settings,
            *self.baseline[1:],
        ]
        return shlex.join(words)


ROWS: tuple[TrainingRow, ...] = (
    TrainingRow(
        name="SFT",
        baseline=("sft",),
        method="direct",
        bare=True,
    ),
    TrainingRow(name=EPISODES, stage="warm-start"),
    TrainingRow(
        name="RAG after SFT",
        # A tiny model learns to read from episodes; from short answers alone it does not.
        baseline=("rag-sft", "--steps", "300"),
        method="rag",
        bare=True,
        after=EPISODES,
    ),
    TrainingRow(
        name="R1",
        # In the bundled world the start, too, must not know of searches.
        settings=("--protocol.preset", "r1", "--protocol.max_turns", "1", "--world.scripts.skip_search", "1", *_NONE),
        method="r1",
    ),
    TrainingRow(name="Rejection sampling", settings=_NONE, baseline=("rejection-sampling",)),
    TrainingRow(name="REINFORCE", settings=("--loss.advantage", "reinforce", *_NONE)),
    TrainingRow(name=GRPO, settings=_NONE),
    TrainingRow(name="+ LLD", settings=(*_LLDS, "token"), against=GRPO),
    TrainingRow(name="+ LLDS-R", settings=(*_LLDS, "response"), against=GRPO),
    TrainingRow(name="+ LLDS-A", settings=(*_LLDS, "action"), against=GRPO),
    TrainingRow(
        name="+ LLDS-A-MA",
        settings=(*_LLDS, "action", "--loss.penalty.answer_weight", "adaptive-paper"),
        against=GRPO,
    ),
    TrainingRow(name="SAPO", settings=("--loss.penalty.name", "sapo"), against=GRPO),
    TrainingRow(name="GSPO", settings=(*_GSPO, *_NONE)),
    TrainingRow(name="GSPO + LLDS-A", settings=(*_GSPO, *_LLDS, "action"), against="GSPO"),
)
"""In the order of the papers' tables, each with the recipe's reward.

λ is that of LLDS v2 for every gate; v1 has 0.1. SAPO's paper rewards token F1 and samples ten rollouts a question; its
row here is like for like with the others. GSPO has GRPO's clip, as in the LLDS paper, whose code reduces the penalty
beside it by token; these settings reduce it by sequence.
"""


def rows_of(texts: Sequence[str]) -> tuple[TrainingRow, ...]:
    """The rows whose name contains one of the texts, those they are held against and those they start from; all without
    texts.

    Raises `ConfigError`.
    """
    for text in texts:
        if not any(text.lower() in row.name.lower() for row in ROWS):
            names = ", ".join(row.name for row in ROWS)
            raise ConfigError(f"--rows {text}: no row has that in its name; there are {names}")
    chosen = {row.name for row in ROWS if not texts or any(text.lower() in row.name.lower() for text in texts)}
    chosen |= {name for row in ROWS if row.name in chosen for name in (row.against, row.after) if name}
    return tuple(row for row in ROWS if row.name in chosen)
