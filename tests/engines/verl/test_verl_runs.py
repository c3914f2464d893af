"""`holdfast launch verl`, run: verl's trainer with Ray, vLLM and a served index.

Five starts of verl, each of four minutes and more on two cores, with 7 GB of memory.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from holdfast.adapters.verl_watch import family

from ...waiting import wait_for
from ..setting_up import SETTING_UP

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not (find_spec("verl") and find_spec("vllm")), reason="needs verl and vLLM: `make contracts-verl`"
    ),
]

ACTOR = "actor/holdfast/"
PASSAGE = re.compile(r"Doc \d+\(Title: [^)]*\) (.*?)(?:\n|</information>)")
SAVED = "latest_checkpointed_iteration.txt"


@pytest.fixture(scope="module")
def protected(lab: Any) -> Any:
    """Four rollout batches of 16 with LLDS, two optimizer steps each."""
    run = lab.start("llds", "--train.lr=1e-3")
    run.wait()
    return run


def trained(run: Any) -> dict[int, dict[str, float]]:
    """Step -> metrics, of the steps that trained."""
    return {row["step"]: row["data"] for row in run.rows if "actor/pg_loss" in row["data"]}


def diagnose(log: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", "diagnose", log], capture_output=True, text=True, timeout=300
    )


def test_every_rollout_is_trained_on_and_searches(protected: Any) -> None:
    assert list(trained(protected)) == [1, 2, 3, 4]
    rollouts = protected.rollouts
    assert len(rollouts) == len({row["uid"] for row in rollouts}) == 4 * 16
    assert sum(row["output"].count("</information>") for row in rollouts) > len(rollouts) / 2
    assert len({row["score"] for row in rollouts}) > 1, "no reward differs, and nothing would be learned"
    assert all(data["num_turns/mean"] > 2 for data in trained(protected).values())


def test_the_loss_counts_what_was_sampled_and_no_passage(protected: Any, lab: Any) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(lab.model)
    batches, found = protected.batches, 0
    assert len(batches) == 4 * 16, "every rollout once"
    # verl's dump has texts alone, without special tokens. So positions come from the agent loop: a pad token that was
    # sampled inside an action is in the mask.
    texts = {tokenizer.decode(row["response"], skip_special_tokens=True) for row in batches}
    assert texts == {row["output"] for row in protected.rollouts}
    for row in batches:
        assert row["mask"] == [int(action > 0) for action in row["action_ids"]]
        runs: list[tuple[int, list[int]]] = []
        for token, inside in zip(row["response"], row["mask"], strict=True):
            if not runs or runs[-1][0] != inside:
                runs.append((inside, []))
            runs[-1][1].append(token)
        for inside, ids in runs:
            text = tokenizer.decode(ids)
            if inside:
                assert "<information>" not in text
            elif "<information>" in text:
                assert text.startswith("\n\n<information>")
                passages = PASSAGE.findall(text)
                assert set(passages) <= lab.passages
                found += len(passages)
            else:
                assert "neither a search nor an answer" in text
    assert found > 16


def test_the_penalty_is_at_work_after_the_first_of_two_optimizer_steps(protected: Any) -> None:
    data = trained(protected)
    assert all(step[f"{ACTOR}penalty/preserved_fraction"] > 0 for step in data.values())
    assert all(step[f"{ACTOR}penalty/active_fraction"] <= 0.5 for step in data.values())
    assert max(step[f"{ACTOR}loss/penalty"] for step in data.values()) > 0


def test_the_weights_arrive_in_vllm(protected: Any) -> None:
    """An update changes the probability of some tokens by a tenth and more; the sampler then agrees to a hundredth."""
    data = trained(protected)
    assert max(abs(step[f"{ACTOR}ratio/max"] - 1) for step in data.values()) > 0.1
    for step in data.values():
        assert step["training/rollout_actor_probs_pearson_corr"] > 0.99
        assert step["training/rollout_probs_diff_max"] < 0.01


def test_the_logs_are_read_and_the_run_is_set_up_well(protected: Any) -> None:
    (log,) = (protected.folder / "holdfast").glob("*.jsonl")
    for path in (log, protected.console):
        done = diagnose(path)
        assert done.returncode in (0, 1), done.stdout + done.stderr
        assert "4 rows, steps 1 to 4" in done.stdout and "too short to judge the reward" in done.stdout
        assert not SETTING_UP & set(re.findall(r"\b[A-Z]{3}\d{3}\b", done.stdout)), done.stdout


def test_a_killed_run_goes_on_from_its_checkpoint(lab: Any) -> None:
    """Observing, with a checkpoint at every step: killed after the second of four, started again by the same script."""
    run = lab.start("observed", "--loss.penalty.name=none", "--checkpoint.every=1", "--checkpoint.keep=4")
    saved = run.folder / "runs/small" / SAVED
    wait_for(lambda: int(saved.read_text() or 0) >= 2, minutes=25, process=run.process, log=run.console)
    run.kill()
    run.process.wait()
    last, before = int(saved.read_text()), trained(run)
    assert 2 <= last < 4 and 1 in before  # the second step may be saved and not yet logged
    again = lab.start("observed", fresh=False)
    again.wait()
    after = trained(again)
    assert list(after) == list(range(last + 1, 5)) and saved.read_text() == "4"
    for data in (*before.values(), *after.values()):
        assert f"{ACTOR}likelihood/negative" in data and f"{ACTOR}penalty/active_fraction" not in data


def test_a_run_whose_engine_is_killed_ends_and_says_so(lab: Any) -> None:
    """verl itself would wait for its rollouts for ever."""
    run = lab.start("killed", "--train.steps=40", "--checkpoint.every=1", "--checkpoint.keep=1")
    saved = run.folder / "runs/small" / SAVED
    wait_for(lambda: int(saved.read_text() or 0) >= 1, minutes=25, process=run.process, log=run.console)
    engines = [process for process, title in family(run.process.pid).items() if title.startswith("VLLM::EngineCore")]
    assert engines
    os.kill(engines[0].pid, signal.SIGKILL)
    assert run.process.wait(10 * 60) == 1
    assert "holdfast: VLLM::EngineCore" in run.console.read_text(errors="replace")[-2000:]


def test_a_thousand_rollouts_with_a_retriever_that_is_gone_for_a_minute_lose_none(lab: Any) -> None:
    run = lab.start("outage", "--train.steps=1", "--train.questions=64", "--train.group_size=16")
    before = lab.server.answered()
    wait_for(lambda: lab.server.answered() > before + 200, minutes=25, process=run.process, log=run.console)
    lab.server.kill()
    time.sleep(60)
    assert not run.rollouts, "the rollouts wait for it"
    lab.server.start()
    console = run.wait(minutes=45)
    assert lab.server.answered() > 200, "the second server had something to do"
    rollouts = run.rollouts
    assert len(rollouts) == len({row["uid"] for row in rollouts}) == 1024
    assert "is not trained on" not in console and "Empty output" not in console
