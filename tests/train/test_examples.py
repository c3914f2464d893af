"""examples/minimal_search_grpo.py is the method: it samples, scores, and learns with the penalty. So does
examples/custom_loop.py, in seconds and without a search."""

from __future__ import annotations

import importlib.util
import itertools
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.agent.trajectory import Trajectory
from holdfast.methods.penalties import LLDS
from holdfast.recipe import load
from holdfast.tasks.opening import load_protocol
from holdfast.tasks.world.facts import build_world
from holdfast.train.start import warm_start_only

from ..told import says
from .whole_runs import Recipe

ROOT = Path(__file__).parents[2]


def module_of(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def example() -> ModuleType:
    return module_of("minimal_search_grpo")


def test_its_settings_are_the_quickstarts(example: ModuleType) -> None:
    config = load(ROOT / "src/holdfast/recipe/bundled/quickstart.toml")
    train = config.train
    assert load_protocol(config) == example.PROTOCOL
    assert (train.questions, train.group_size, train.optimizer_steps_per_rollout) == (
        example.QUESTIONS,
        example.GROUP,
        example.OPTIMIZER_STEPS,
    )
    assert (train.lr, train.warmup) == (example.LEARNING_RATE, example.WARMUP)
    assert config.loss.penalty == LLDS(coef=example.COEF, normalizer="policy")


def test_it_trains(
    example: ModuleType,
    recipe: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All say the same, and every other one is right: an update on more wrong ones than right ones displaces these."""
    numbers = itertools.count()

    def every_other(trajectory: Trajectory, golds: object) -> Trajectory:
        right = float(next(numbers) % 2)
        return replace(trajectory, reward=right, reward_parts={"em": right})

    config = recipe({"protocol.max_turns": 5})
    model = warm_start_only(config, tmp_path / "run")
    monkeypatch.setattr(example, "HFPolicy", says(lambda id, turn: "<answer> town </answer>"))
    monkeypatch.setattr(example, "score_trajectory", every_other)
    monkeypatch.setattr(example, "LEARNING_RATE", 1e-2)
    capsys.readouterr()
    rewards = list(example.train(str(model), steps=3, questions=6, world=build_world(config.world)))
    lines = capsys.readouterr().out.splitlines()
    assert [float(re.findall(r"reward (\S+)", line)[0]) for line in lines] == pytest.approx(rewards, abs=5e-4)
    assert len(rewards) == 3 and all(0 < reward < 1 for reward in rewards)
    fell = [re.findall(r"first mini-batch (\S+), last (\S+)", line)[0] for line in lines]
    assert all(first == "0.00" for first, _ in fell), "old log-probs on other shapes than the update's"
    assert any(float(last) > 0.02 for _, last in fell), "the penalty has nothing to do"


def test_the_loop_of_ones_own_learns(capsys: pytest.CaptureFixture[str]) -> None:
    history = module_of("custom_loop").train(steps=41)
    chance = 1 / 12
    assert sum(history[:5]) / 5 < chance + 0.1
    assert sum(history[-5:]) / 5 > 0.7
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("step  40") and not last.endswith("active 0.00")  # the penalty takes part
