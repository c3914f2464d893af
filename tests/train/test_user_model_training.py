"""A model of one's own, base and instruct, whole and LoRA: it trains with any index, is saved, goes on and answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from holdfast.agent.protocol import CLEAN, render_prompt
from holdfast.base.errors import ModelError
from holdfast.base.run_folder import list_checkpoints
from holdfast.model.language_model import load_model
from holdfast.recipe import Config, Model
from holdfast.retrieval import open_index
from holdfast.retrieval.bm25_building import build_bm25
from holdfast.retrieval.dense_building import build_dense
from holdfast.retrieval.encoder import spec_of
from holdfast.train.loading import load_agent
from holdfast.train.run import resume, train
from holdfast.train.start import warm_start_only

from .whole_runs import comparable as rows_of

CPU = torch.device("cpu")


NO_PENALTY = {"loss.penalty": {"name": "none"}}


def brevity(example: Any, trajectory: Any) -> float:
    """A reward that does not ask for an action."""
    return 1.0


class Killed(BaseException):
    """Nothing in holdfast catches it."""


@pytest.fixture(scope="module")
def instruct(own: Callable[..., Config], lesson: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return warm_start_only(own("raw-chat", lesson), tmp_path_factory.mktemp("instruct") / "run")


@pytest.mark.parametrize("reward", [{"em": 1.0}, {"em": 1.0, "custom": {f"{__name__}:brevity": 0.1}}])
@pytest.mark.parametrize("model", ["raw", "base"])
def test_a_model_that_never_searches_or_answers_is_stopped_while_no_reward_says_otherwise(
    own: Callable[..., Config], base: Path, tmp_path: Path, told: Any, model: str, reward: dict[str, Any]
) -> None:
    changes = {"reward": reward, "train": {"steps": 3, "questions": 8, "optimizer_steps_per_rollout": 1}, **NO_PENALTY}
    config = own(base if model == "base" else model, {**changes, "train.group_size": 4})
    if model == "base" or "custom" in reward:
        train(config, tmp_path / "run", listener=told)
        return
    with pytest.raises(ModelError, match=r"none of the first 64 rollouts searched or answered.*warm_start\.data"):
        train(config, tmp_path / "run", listener=told)
    assert [step for step, _ in told.steps] == [1, 2]


@pytest.mark.parametrize("how", ["dense index", "served index"])
def test_it_trains_with_an_index_of_any_kind(
    own: Callable[..., Config],
    base: Path,
    home: Path,
    tmp_path: Path,
    encoder: Any,
    retrieve_server: Callable[..., Any],
    how: str,
) -> None:
    folder = tmp_path / "index"
    changes: dict[str, Any] = {"retrieval.corpus": "world", "train.steps": 1}
    if how == "dense index":
        build_dense(home / "corpus.jsonl", folder, spec_of(str(encoder())), device="cpu")
        changes["retrieval.index"] = str(folder)
    else:
        build_bm25(home / "corpus.jsonl", folder)
        changes["retrieval.url"] = retrieve_server(open_index(folder)).url
    train(own(base, changes), tmp_path / "run")
    (row,) = rows_of(tmp_path / "run")
    assert row["rollout/searches"] > 0
    assert row["retrieval/error_fraction"] == 0
    assert load_agent(tmp_path / "run").retriever.search(["place"], 3)[0]


RECOMPUTED_BF16 = {"model.gradient_checkpointing": True, "model.autocast": "bf16"}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "base": ("base", {}),
    "instruct, recomputed, bf16": ("instruct", RECOMPUTED_BF16 | {"loss.penalty.name": "sapo"}),
    "LoRA": ("base", {"model.lora_rank": 4, "train.lr": 2e-2}),
    "LoRA, instruct, recomputed, bf16": ("instruct", RECOMPUTED_BF16 | {"model.lora_rank": 2, "train.lr": 2e-2}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_trains_is_saved_goes_on_and_answers(
    own: Callable[..., Config], request: pytest.FixtureRequest, tmp_path: Path, told: Any, kind: str
) -> None:
    model, changes = KINDS[kind]
    start = request.getfixturevalue(model)
    config = own(start, changes)
    summary = train(config, tmp_path / "run", listener=told)
    rows = rows_of(tmp_path / "run")
    assert len(rows) == 2 and summary.split == "test"
    # There were right answers and wrong ones, some searched, and the update did something.
    assert 0 < sum(row["reward/em"] for row in rows) / 2 < 1
    assert sum(row["rollout/searches"] for row in rows) > 0
    assert any("displacement/correct" in row for row in rows) and any(
        "likelihood/correct/action_1" in row for row in rows
    )
    assert all(row["penalty/noise_floor"] == 0 for row in rows)
    assert any(row["grad/norm"] > 0 for row in rows) and rows[-1]["loss/kl"] > 0

    # Stopped and continued it is the same run.
    told.step = lambda result: (_ for _ in ()).throw(Killed) if result.step == 2 else None
    with pytest.raises(Killed):
        train(config, tmp_path / "again", listener=told)
    resume(tmp_path / "again")
    assert rows_of(tmp_path / "again") == rows

    # What it saved loads anywhere, and is what the agent runs on.
    saved = list_checkpoints(tmp_path / "run")[0] / "model"
    agent = load_agent(tmp_path / "run")
    plain = AutoModelForCausalLM.from_pretrained(saved, dtype=torch.float32).eval()
    ids = torch.tensor([render_prompt("What is place 3?", agent.protocol, agent.tokenizer)])
    with torch.no_grad():
        torch.testing.assert_close(agent.policy.model(ids).logits, plain(ids).logits, atol=1e-5, rtol=1e-5)
    assert AutoTokenizer.from_pretrained(saved)("a lake")["input_ids"] == agent.tokenizer("a lake")["input_ids"]
    fresh = load_model(Model(path="x"), start, CPU).model
    with torch.no_grad():
        assert not torch.allclose(agent.policy.model(ids).logits, fresh(ids).logits, atol=1e-3)
    if "LoRA" in kind:
        names = set(load_file(saved / "adapter_model.safetensors"))
        assert names and all("lora_" in name for name in names) and not (saved / "model.safetensors").exists()
        assert Path(json.loads((saved / "adapter_config.json").read_text())["base_model_name_or_path"]).is_absolute()


def test_base_and_instruct_see_their_own_prompts(base: Path, instruct: Path) -> None:
    """Also after the tokenizer was saved and loaded again."""
    tokenizers = [load_model(Model(path="x"), folder, CPU).tokenizer for folder in (base, instruct)]
    plain, chat = (tokenizer.decode(render_prompt("Where?", CLEAN, tokenizer)) for tokenizer in tokenizers)
    assert "Where?" in plain and chat == f"<|user|>{plain}<|agent|>"
