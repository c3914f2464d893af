"""What `data.train` names is one value, and what does not go with it is refused when it is opened."""

from __future__ import annotations

import pytest

from holdfast.base.errors import ConfigError
from holdfast.loading import load_retriever, open_tasks
from holdfast.recipe import load

CONTRADICTIONS = {
    # what is wrong: overrides, the last of which the refusal names
    "own corpus, bundled questions": ["--retrieval.corpus=c.jsonl"],
    "server and bundled questions": ["--retrieval.url=http://h:1"],
    "own dev, bundled train": ["--data.dev=d.jsonl"],
    "own test, the Factbook": ["--data.train=factbook", "--data.test=d.jsonl"],
    "own corpus, the Factbook": ["--data.train=factbook", "--retrieval.corpus=c.jsonl"],
    "an index of the world": ["--retrieval.index=i"],
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_contradictions(case: str) -> None:
    *_, last = overrides = CONTRADICTIONS[case]
    with pytest.raises(ConfigError) as caught:
        open_tasks(load(overrides=overrides))
    assert last.removeprefix("--").partition("=")[0] in str(caught.value) and "data.train" in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["--data.train=factbook", "--retrieval.index=i"],
        ["--data.train=factbook", "--retrieval.url=http://h:1"],
        ["--data.train=q.jsonl", "--data.dev=d.jsonl", "--retrieval.corpus=c.jsonl"],
        ["--data.train=q.jsonl", "--retrieval.url=http://h:1"],
    ],
)
def test_their_neighbours_are_fine(overrides: list[str]) -> None:
    open_tasks(load(overrides=overrides))


def test_questions_without_passages_are_refused_where_they_are_searched() -> None:
    config = load(overrides=["--data.train=q.jsonl"])
    with pytest.raises(ConfigError, match=r"Set retrieval\.corpus"):
        load_retriever(config)
    tools = ["--protocol.preset=tools", "--protocol.tools=['my_tools:add']", "--model.path=m"]
    assert load_retriever(load(overrides=["--data.train=q.jsonl", *tools])).search(["?"], 1) == [[]]


def test_another_task_set_takes_nothing_along() -> None:
    config = load("src/holdfast/recipe/bundled/flaky.toml", ["--data.train=factbook"])
    assert config.world == load().world and not config.faults.search_failure_rate
    mine = load("src/holdfast/recipe/bundled/flaky.toml", ["--data.train=a.jsonl", "--data.test=t.jsonl"])
    assert mine.data.test == "t.jsonl"
