"""SkyRL's search environment, as skyrl-gym has it, against `holdfast serve` and rows that holdfast writes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("skyrl_gym")

import skyrl_gym
from skyrl_gym.envs.search.env import SearchEnvConfig

from holdfast.base.scoring import exact_match
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.types import Document
from holdfast.tasks.files import row_of
from holdfast.tasks.questions import Example

from .conftest import PASSAGES

GOLDS = ("the Sile", "Río  Sile")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("index") / "index"
    BM25Retriever.build([Document(id, contents) for id, contents in PASSAGES.items()]).save(folder)
    command = [sys.executable, "-m", "holdfast", "serve", str(folder), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    yield line.split(" at ")[1].split()[0]
    process.kill()
    process.communicate()


@pytest.fixture
def environment(address: str) -> Any:
    """As SkyRL makes it of a row and `environment.skyrl_gym.search`."""
    example = Example(source="s", split="train", index=0, question="What is the lake of Mora?", golden_answers=GOLDS)
    row = row_of(example, "skyrl")
    made = skyrl_gym.make(
        row["env_class"],
        env_config=SearchEnvConfig(search_url=f"{address}/retrieve", topk=1),
        extras={"reward_spec": row["reward_spec"], "max_turns": 4},
    )
    prompt, _ = made.init(row["prompt"])
    assert prompt == row["prompt"] and example.question in prompt[0]["content"]
    return made


def shown(step: Any) -> str:
    (message,) = step["observations"]
    text: str = message["content"].strip().removeprefix("<information>").removesuffix("</information>")
    result: str = json.loads(text)["result"]
    return result


def test_skyrl_searches_here_and_scores_as_here(environment: Any) -> None:
    first = environment.step("<think> hm </think><search> the lake of Mora </search>")
    assert (first["done"], first["reward"]) == (False, 0)
    assert shown(first) == f"Doc 1: {PASSAGES['mora']}\n"
    last = environment.step("<answer> Sile </answer>")
    assert (last["done"], last["reward"]) == (True, 1.0)


@pytest.mark.parametrize("said", ["Sile", "the SILE!", "rio Sile", "Río Sile.", "a river", "", "S-ile"])
def test_both_agree_on_what_is_correct(environment: Any, said: str) -> None:
    assert environment.step(f"<answer>{said}</answer>")["reward"] == exact_match(said, GOLDS)


def test_nothing_found_is_no_error_and_a_failed_search_is_one(environment: Any) -> None:
    """SkyRL shows the model a failed search, and rewards what it answers: it cannot be left out of training."""
    assert shown(environment.step("<search> zebra </search>")) == ""
    assert "Search error" in shown(environment.step(f"<search>{'x' * 10_001}</search>"))
    assert environment.step("<answer> Sile </answer>")["reward"] == 1.0
