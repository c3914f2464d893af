from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from step_task import Task

TINY = Task(
    questions=2, group=2, updates=2, turns=3, turn_tokens=32, observation_tokens=60, hidden=16, layers=1, words=400
)
HAS_TRL = importlib.util.find_spec("trl") is not None


def expected(task: Task) -> dict[str, int]:
    """What the script alone says about a step; prompts apart."""
    scripts = [task.script(q, k) for q in range(task.questions) for k in range(task.group)]
    observed = sum(len(s.queries) for s in scripts) * task.observation_tokens
    sampled = sum(sum(s.lengths) for s in scripts)
    prompts = sum(len(prompt) for prompt in prompt_ids(task)) * task.group
    return {"rollouts": 4, "sampled": sampled, "tokens": prompts + sampled + observed, "updates": 2, "mixed groups": 2}


def prompt_ids(task: Task) -> list[list[int]]:
    tokenizer = task.tokenizer(end_token=False)
    return [tokenizer(f"Question: {text}\n")["input_ids"] for text in task.texts()]


@pytest.mark.long
@pytest.mark.parametrize("arms", [["holdfast"], pytest.param(["holdfast", "trl"], marks=pytest.mark.slow)])
def test_a_step_is_the_scripts(run, tmp_path: Path, arms: list[str]) -> None:
    if "trl" in arms and not HAS_TRL:
        pytest.skip("trl is not installed")
    path = tmp_path / "out.json"
    done = run("step_vs_trl.py", *TINY.as_options(), "--rounds", 1, "--arms", *arms, "--json", path)
    assert done.returncode == 0, done.stderr
    results = json.loads(path.read_text())
    for arm in arms:
        assert [step["counts"] for step in results[arm]["steps"]] == [expected(TINY)]
        assert results[arm]["peak_mb"] >= results[arm]["memory_before_mb"] > 50
        seconds = results[arm]["steps"][0]["seconds"]
        assert 0 < seconds["rollout"] + seconds["old log-probs"] + seconds["optimizer steps"] <= seconds["step"] * 1.001
    assert ("trl / holdfast:" in done.stdout) is (len(arms) == 2)
