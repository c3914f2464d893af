"""Rollouts of the released Search-R1 models: read and scored as FlashRAG did, each by the model's own words alone.

They are others' data and not in the repository. HOLDFAST_ROLLOUTS names a folder of `*.jsonl.gz`, whose rows have
`response`, `golden_answers`, and the `prediction`, `em`, `f1` and `sub_em` that were published with them.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.protocol import SEARCH_R1, parse_action
from holdfast.agent.trajectory import Answer, Search
from holdfast.base.scoring import exact_match, f1, sub_em

FOLDER = os.environ.get("HOLDFAST_ROLLOUTS")
FILES = sorted(Path(FOLDER).glob("*.jsonl.gz")) if FOLDER else []
pytestmark = pytest.mark.skipif(not FILES, reason="set HOLDFAST_ROLLOUTS to a folder of rollouts")

FOUND = {"bamboogle-3b-base": (11, 125), "bamboogle-3b-instruct": (43, 236), "nq-3b-base": (159, 399)}
"""Correct answers and searches of the files that docs/reference/scoring.md speaks of."""
OBSERVATION = re.compile(r"<information>.*?</information>", re.S)


def rows(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def turns(response: str) -> list[str]:
    """What the model wrote, between the observations."""
    return OBSERVATION.split(response)


@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
def test_answers_and_scores_are_those_published(path: Path) -> None:
    kinds: Counter[str] = Counter()
    for row in rows(path):
        actions = [parse_action(turn, SEARCH_R1) for turn in turns(row["response"])]
        kinds.update(type(action).__name__ for action in actions)
        answer = actions[-1].text if isinstance(actions[-1], Answer) else None
        assert (answer or "") == (row["prediction"] or "").strip(), row["id"]
        for score, name in ((exact_match, "em"), (f1, "f1"), (sub_em, "sub_em")):
            assert score(answer, row["golden_answers"]) == pytest.approx(row[name]), (row["id"], name)
        assert all(isinstance(action, Search) for action in actions[:-1] if not isinstance(action, Answer))
    correct = sum(int(row["em"]) for row in rows(path))
    assert FOUND.get(path.name.removesuffix(".jsonl.gz"), (correct, kinds["Search"])) == (correct, kinds["Search"])
