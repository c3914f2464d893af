"""The seven question sets of the papers, their sizes, and the forms of question files."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from holdfast.base.errors import DataError

Form = Literal["jsonl", "searchr1", "verl", "skyrl"]
FORMS: tuple[Form, ...] = get_args(Form)

HUB = "RUC-NLPIR/FlashRAG_datasets"
"""All seven in one form, `SET/SPLIT.jsonl`; published results are made from it."""

SEVEN = "seven"
"""Name of the test questions of all seven sets."""

SAMPLE = "sample"
FACTBOOK_SET = "factbook"
"""Name of the bundled questions and passages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QASet:
    """A question set as it is published."""

    name: str
    """The `source` of its questions, and its scoring mode."""
    title: str
    multi_hop: bool
    sizes: Mapping[str, int]
    """Questions per published split."""
    tested_on: str
    """The published split that results are reported on: test where its answers are public, else dev."""
    licence: str
    """As its authors state it."""
    home: str

    @property
    def test_size(self) -> int:
        """Questions that results are reported on."""
        return self.sizes[self.tested_on]

    @property
    def train_size(self) -> int | None:
        """Training questions; None where none are published."""
        return self.sizes.get("train")

    def size(self, split: str) -> int | None:
        """Questions in `train`, `test` (what results are reported on) or another published split; None if unknown."""
        return self.test_size if split == "test" else self.sizes.get(split)


SETS: dict[str, QASet] = {
    qa.name: qa
    for qa in (
        QASet(
            name="nq",
            title="Natural Questions (open)",
            multi_hop=False,
            sizes={"train": 79_168, "dev": 8_757, "test": 3_610},
            tested_on="test",
            licence="CC BY-SA 3.0",
            home="https://ai.google.com/research/NaturalQuestions",
        ),
        QASet(
            name="triviaqa",
            title="TriviaQA",
            multi_hop=False,
            sizes={"train": 78_785, "dev": 8_837, "test": 11_313},
            tested_on="test",
            licence="Apache-2.0",
            home="https://nlp.cs.washington.edu/triviaqa",
        ),
        QASet(
            name="popqa",
            title="PopQA",
            multi_hop=False,
            sizes={"test": 14_267},
            tested_on="test",
            licence="MIT",
            home="https://github.com/AlexTMallen/adaptive-retrieval",
        ),
        QASet(
            name="hotpotqa",
            title="HotpotQA",
            multi_hop=True,
            sizes={"train": 90_447, "dev": 7_405},
            tested_on="dev",
            licence="CC BY-SA 4.0",
            home="https://hotpotqa.github.io",
        ),
        QASet(
            name="2wikimultihopqa",
            title="2WikiMultiHopQA",
            multi_hop=True,
            sizes={"train": 15_000, "dev": 12_576},
            tested_on="dev",
            licence="Apache-2.0",
            home="https://github.com/Alab-NII/2wikimultihop",
        ),
        QASet(
            name="musique",
            title="MuSiQue (answerable)",
            multi_hop=True,
            sizes={"train": 19_938, "dev": 2_417},
            tested_on="dev",
            licence="CC BY 4.0",
            home="https://github.com/StonyBrookNLP/musique",
        ),
        QASet(
            name="bamboogle",
            title="Bamboogle",
            multi_hop=True,
            sizes={"test": 125},
            tested_on="test",
            licence="MIT",
            home="https://github.com/ofirpress/self-ask",
        ),
    )
}
"""In the order of the papers' tables. The collection holds 15,000 of 2WikiMultiHopQA's 167k training questions."""

GENERAL = tuple(name for name, qa in SETS.items() if not qa.multi_hop)
MULTI_HOP = tuple(name for name, qa in SETS.items() if qa.multi_hop)
TEST_SIZE = sum(qa.test_size for qa in SETS.values())
"""51,713."""


def set_named(name: str) -> QASet:
    """The set with this name. Raises `DataError`, which names the nearest one."""
    if name in SETS:
        return SETS[name]
    known = [*SETS, SEVEN, SAMPLE, FACTBOOK_SET]
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
    raise DataError(f"there is no question set {name!r}; {hint} `holdfast data list` lists them")
