"""The number of CPU threads: the fastest of a trial, kept over a resume."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.model.language_model import LanguageModel
from holdfast.train import run, threads
from holdfast.train.listener import Listener, StepResult
from holdfast.train.run import resume, train
from holdfast.train.threads import choose_threads, fastest_threads

from .whole_runs import Recipe

Speed = Callable[[int], float]


@pytest.fixture
def speed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Speed], None]:
    """Makes a pass take as many seconds as a function of the threads says."""

    def be(seconds: Speed) -> None:
        monkeypatch.setattr(threads, "_median_seconds", lambda _: seconds(torch.get_num_threads()))

    return be


@pytest.mark.parametrize(
    ("most", "seconds", "tried", "best"),
    [
        (1, lambda n: 1 / n, [1], 1),
        (8, lambda n: 1 / n, [1, 2, 4, 8], 8),
        (6, lambda n: 1 / n, [1, 2, 4, 6], 6),
        (8, lambda n: max(1 / n, 0.5), [1, 2, 4], 2),  # four bring no more than two
        (8, lambda n: 1 if n == 1 else 17, [1, 2], 1),  # another program has the other cores
    ],
)
def test_as_many_threads_as_make_a_pass_faster(
    language_model: LanguageModel,
    speed: Callable[[Speed], None],
    most: int,
    seconds: Speed,
    tried: list[int],
    best: int,
) -> None:
    torch.set_num_threads(most)  # the fixture of this folder puts back what was
    speed(seconds)
    assert list(fastest_threads(language_model)) == tried
    assert torch.get_num_threads() == best


def test_a_pass_is_really_timed(language_model: LanguageModel) -> None:
    torch.set_num_threads(1)
    (seconds,) = fastest_threads(language_model).values()
    assert 0 < seconds < 10


@pytest.mark.parametrize(
    ("changes", "measured"),
    [
        ({"run.threads": 0, "model.path": "some/model"}, True),
        ({"run.threads": 0}, False),
        ({"run.threads": 3, "model.path": "some/model"}, False),
    ],
)
def test_measured_only_where_the_recipe_leaves_it_open(
    language_model: LanguageModel,
    recipe: Recipe,
    speed: Callable[[Speed], None],
    changes: dict[str, Any],
    measured: bool,
) -> None:
    torch.set_num_threads(2)
    speed(lambda n: 1.0)
    said = choose_threads(language_model, recipe(changes))
    assert (said is not None) is measured
    assert torch.get_num_threads() == (1 if measured else 2)
    if said is not None:
        assert "CPU threads: 1" in said and "run.threads" in said


def test_a_resumed_run_keeps_its_threads(
    recipe: Recipe, tmp_path: Path, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise sums would be rounded differently, and its metrics would drift away."""

    class Stopped(Listener):
        def step(self, result: StepResult) -> None:
            if result.step == 2:
                raise KeyboardInterrupt

    config = recipe({"train.steps": 3, "checkpoint.every": 1, "run.threads": 0})
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", listener=Stopped())
    torch.set_num_threads(1)
    state = tmp_path / "run" / "checkpoints" / "step-000001" / "state.json"
    assert json.loads(state.read_text())["machine"]["threads"] == 1
    monkeypatch.setattr(run, "set_up_torch", lambda _: torch.set_num_threads(4))  # a trial might find another number
    resume(tmp_path / "run", listener=told)
    assert torch.get_num_threads() == 1
    assert not [note for note in told.notes if "rounded differently" in note]
