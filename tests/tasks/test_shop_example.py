"""examples/shop: what docs/guide/own-tools.md shows, up to the training itself."""

from __future__ import annotations

import importlib.util
import inspect
import shutil
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.protocol import render_prompt
from holdfast.agent.trajectory import Answer, Call, Search
from holdfast.model.hub import load_tokenizer
from holdfast.model.text.tokens import decode
from holdfast.recipe import load
from holdfast.tasks.demonstrate_tools import demonstrate_by, script_named
from holdfast.tasks.opening import load_protocol, load_questions, load_retriever
from holdfast.train.warm_start import encode_demonstration

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guide" / "own-tools.md").read_text(encoding="utf-8")


def module_at(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"shop_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for file in (ROOT / "examples" / "shop").iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    module_at(tmp_path / "make.py").main()
    return tmp_path


def test_the_guide_shows_the_code_of_the_example() -> None:
    own = module_at(ROOT / "examples" / "shop" / "my_tools.py")
    for function in (own.calculator, own.solve):
        assert f"\n{inspect.getsource(function)}" in GUIDE


def test_the_script_solves_every_question_and_its_calls_fit_the_rollouts(shop: Path) -> None:
    config = load(shop / "shop.toml")
    protocol, questions = load_protocol(config), load_questions(config)
    assert len(questions.test) == 200
    assert not {each.question for each in questions.test} & {each.question for each in questions.train}
    made = demonstrate_by(script_named("my_tools:solve"), questions.train, load_retriever(config), protocol)
    assert (len(made.rows), made.left_out) == (len(questions.train), {})
    tokenizer = load_tokenizer("model", config.model)
    kinds = (Search, Call, Answer)
    for question, turns in made.rows[::100]:
        prompt = render_prompt(question, protocol, tokenizer)
        learned = encode_demonstration(prompt, turns, protocol, tokenizer)
        assert len(learned.token_ids) <= protocol.max_total_tokens
        for (said, _), kind in zip(turns, kinds, strict=True):
            ids = protocol.encode_turn(said, tokenizer)
            assert len(ids) <= protocol.max_turn_tokens
            assert isinstance(protocol.parse(decode(tokenizer, ids[:-1]), tokenizer, finished=True)[0], kind)
