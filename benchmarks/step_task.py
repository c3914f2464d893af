"""The task of step_vs_trl.py: one model, one set of questions, and a script that fixes every length.

What is sampled is up to the model. How many tokens a turn has, what is searched for and which answer is given comes
from the script, so that two trainers generate and train on exactly the same number of tokens.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.cache import CachedRetriever
from holdfast.retrieval.types import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Sizes of one reinforcement-learning step."""

    questions: int = 8
    group: int = 4
    updates: int = 4
    """Optimizer steps per rollout batch."""
    turns: int = 4
    """Model turns of a rollout, the answer included; with `spread` > 0 a third each has one less and one more."""
    turn_tokens: int = 32
    """Sampled tokens of a turn, on average."""
    spread: float = 0.5
    """A turn has between (1 - spread) and (1 + spread) times `turn_tokens`."""
    observation_tokens: int = 500
    hidden: int = 64
    layers: int = 3
    heads: int = 4
    words: int = 600
    """Words of the vocabulary, besides 256 bytes."""
    seed: int = 0
    pretrained: str = ""
    """A folder with a pretrained model, used instead of a tiny one of `hidden`, `layers` and `heads`."""
    device: str = "cpu"
    """`cpu`, or `cuda`: both arms then work in bf16."""
    autocast: str = "auto"
    """`model.autocast` of our arm: `bf16` on a CPU."""
    trl_autocast: str = "auto"
    """The same of TRL."""

    def __post_init__(self) -> None:
        if self.turn_tokens * (1 - self.spread) < 16:
            raise SystemExit("the shortest turn, turn_tokens * (1 - spread), must have 16 tokens, to hold an answer")

    @property
    def rows(self) -> int:
        return self.questions * self.group

    @property
    @cache  # noqa: B019 — tasks are few and live as long as the process
    def lexicon(self) -> list[str]:
        """`words` different words."""
        rng = random.Random(f"lexicon {self.seed}")
        new_words: dict[str, None] = {}
        while len(new_words) < self.words:
            new_words["".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(3))] = None
        return list(new_words)

    def texts(self) -> list[str]:
        """The questions."""
        rng, lexicon = random.Random(f"questions {self.seed}"), self.lexicon
        return [f"{i} who is the {' '.join(rng.sample(lexicon, 8))}" for i in range(self.questions)]

    @cache  # noqa: B019
    def script(self, question: int, sample: int) -> Script:
        """What happens in one rollout."""
        rng, lexicon = random.Random(f"script {self.seed} {question} {sample}"), self.lexicon
        turns = self.turns + ((question + sample) % 3 - 1 if self.spread else 0)
        low, high = round(self.turn_tokens * (1 - self.spread)), round(self.turn_tokens * (1 + self.spread))
        return Script(
            lengths=tuple(rng.randint(max(low, 1), high) for _ in range(turns)),
            queries=tuple(" ".join(rng.sample(lexicon, 3)) for _ in range(turns - 1)),
            # At least one rollout of a group is right and one wrong, so that every group trains.
            right=sample == 0 or (sample > 1 and rng.random() < 0.5),
        )

    def tokenizer(self, *, end_token: bool) -> Any:
        """Byte-level BPE over the words. The id that would end a text is in the vocabulary either way; without
        `end_token` nobody knows that it means anything."""
        from transformers import AutoTokenizer

        from holdfast.tasks.world.model import build_tokenizer

        tokenizer = (
            AutoTokenizer.from_pretrained(self.pretrained)
            if self.pretrained
            else build_tokenizer([" ".join(self.lexicon), *self.texts()], tuple(self.lexicon))
        )
        if not end_token:
            tokenizer.eos_token = None
        return tokenizer

    def model(self, tokenizer: Any) -> Any:
        """The tiny model of the quickstart, untrained, or a pretrained one; it never ends a text by itself."""
        import torch
        from transformers import AutoModelForCausalLM

        from holdfast.tasks.world.model import build_model

        model = (
            AutoModelForCausalLM.from_pretrained(self.pretrained, dtype=torch.float32)
            if self.pretrained
            else build_model(tokenizer, seed=self.seed, hidden=self.hidden, layers=self.layers, heads=self.heads)
        )
        model.config.eos_token_id = model.generation_config.eos_token_id = None
        return model

    def retriever(self) -> CachedRetriever:
        """BM25 over passages long enough that three fill an observation, which is cut to its limit."""
        rng, lexicon = random.Random(f"corpus {self.seed}"), self.lexicon
        length = self.observation_tokens * 2 // 5
        documents = [
            Document(f"d{i}", f'"Passage {i}"\n' + " ".join(rng.choices(lexicon, k=length))) for i in range(200)
        ]
        return CachedRetriever(BM25Retriever.build(documents))

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """One option per size."""
        for name, default in asdict(self).items():
            parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> Task:
        return cls(**{name: getattr(options, name) for name in cls.__dataclass_fields__})

    def as_options(self) -> list[str]:
        return [word for name, value in asdict(self).items() for word in (f"--{name.replace('_', '-')}", str(value))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One rollout: sampled tokens per turn, a query for every turn but the last, and whether its answer is right."""

    lengths: tuple[int, ...]
    queries: tuple[str, ...]
    right: bool
