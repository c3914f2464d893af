"""Which recipe, weights and passages a name stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.agent.protocol import R1
from holdfast.base.errors import CheckpointError, ConfigError
from holdfast.evaluate.methods import METHODS
from holdfast.evaluate.model import agent_protocol, open_model, retriever_for, run_of, settings_of
from holdfast.evaluate.servers import Server
from holdfast.recipe import dump, load


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "mine"
    (folder / "checkpoints" / "step-000010" / "model").mkdir(parents=True)
    settings = ["--data.train", "t.jsonl", "--retrieval.corpus", "c.jsonl", "--retrieval.index", "i"]
    settings += ["--protocol.max_turns", "7", "--sampling.top_p", "0.9"]
    (folder / "config.toml").write_text(dump(load(None, settings)))
    return folder


def test_a_run_its_checkpoints_and_its_model(run: Path, tmp_path: Path) -> None:
    inside = run / "checkpoints" / "step-000010"
    for path in (run, inside, inside / "model"):
        assert run_of(path) is not None and run_of(path).resolve() == run.resolve()  # type: ignore[union-attr]
    (tmp_path / "config.toml").write_text("[other]\ntool = 1\n")
    (tmp_path / "hub-model").mkdir()
    assert run_of(tmp_path / "hub-model") is None, "somebody else's config.toml above it makes no run"


def test_settings_stand_above_a_runs_own(run: Path) -> None:
    config, folder = settings_of(str(run), ["--protocol.max_turns", "3"], [])
    assert folder == run and config.protocol.max_turns == 3 and config.retrieval.index == "i"
    config, _ = settings_of(str(run), ["--retrieval.url", "http://127.0.0.1:1"], ["seven"])
    assert (config.retrieval.url, config.retrieval.index, config.retrieval.corpus) == (
        "http://127.0.0.1:1",
        None,
        "world",
    )
    config, folder = settings_of("some/model", [], ["nq"])
    assert folder is None and config.model.path == "some/model"


def test_a_server_is_asked_without_the_runs_truncation(run: Path) -> None:
    config, folder = settings_of(str(run), [], [])
    server = Server(url="http://127.0.0.1:1/v1/completions", model="m")
    subject = open_model(str(run), config, folder, samples=1, server=server, tokenizer="none")
    assert subject.policy.top_p == 1.0 and subject.decoding == "sampled at temperature 1"
    subject.policy.close()


def test_a_run_without_a_whole_checkpoint(run: Path) -> None:
    config, folder = settings_of(str(run), [], [])
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        open_model(str(run), config, folder, samples=None)


def test_passages_must_answer_the_questions(run: Path) -> None:
    own, _ = settings_of(str(run), [], [])
    world, _ = settings_of("some/model", [], ["nq"])
    with pytest.raises(ConfigError, match="no passages are given for --data nq"):
        retriever_for(METHODS["rag"], world, ["nq"])
    with pytest.raises(ConfigError, match="--data world asks about the bundled world, but the retriever has other"):
        retriever_for(METHODS["search-r1"], own, ["test", "world"])
    assert retriever_for(METHODS["cot"], world, ["nq"]) is None
    small = load(None, ["--world.people", "60"])
    assert retriever_for(METHODS["rag"], small, ["world"]).search(["mentor"], 2)[0]


def test_without_search_there_is_one_turn_and_no_word_of_it() -> None:
    protocol = agent_protocol(METHODS["r1"], load(None, ["--protocol.topk", "5"]))
    assert (protocol.prompt, protocol.max_turns, protocol.topk) == (R1.prompt, 1, 5)
    own = agent_protocol(METHODS["r1"], load(None, ["--protocol.prompt", "Q: {question}"]))
    assert (own.prompt, own.max_turns) == ("Q: {question}", 1), "a recipe's own prompt is kept"
    assert agent_protocol(METHODS["search-r1"], load(None)).max_turns == 4
