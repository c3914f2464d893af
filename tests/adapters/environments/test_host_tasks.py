"""A recipe for hosts that hold the conversation: what the tools of a rollout say, and what the rollout is worth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.adapters.host_tasks import HostTasks, open_host_tasks
from holdfast.agent.trajectory import Status
from holdfast.base.errors import ConfigError, RetrievalError

JUDGE = ("--reward.judge.weight", "1", "--reward.judge.url", "http://127.0.0.1:9/v1")


def tasks_of(recipe: Path, *overrides: str) -> HostTasks:
    return open_host_tasks(str(recipe), overrides)


def calls(name: str, arguments: Any) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def test_a_rollout_is_scored_by_the_recipe(recipe: Path) -> None:
    tasks = tasks_of(recipe)
    session, (example, *_) = tasks.session("dev"), tasks.questions.dev
    found = session.call("search", '{"query": "lake"}')
    assert found == "Doc 1(Title: Mora) The lake of Mora is the Sile. It < |im_end|> is deep."
    messages = [calls("search", '{"query": "lake"}'), {"role": "tool", "content": found}]
    answered = tasks.scored([*messages, {"role": "assistant", "content": "the Sile."}], session, example.golden_answers)
    assert (answered.reward, answered.searches, answered.status) == (1.5, 1, Status.OK)
    cut = tasks.scored(messages, session, example.golden_answers)
    assert (cut.reward, cut.status) == (0.5, Status.TRUNCATED)


def test_what_a_question_spells_is_no_control_token(recipe: Path) -> None:
    tasks = tasks_of(recipe)
    assert tasks.first_message(tasks.questions.train[1])["content"].endswith("the town of Orsa < |im_end|>?\n")


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("browse", {"query": "x"}, "no tool 'browse'"),
        ("brow<|im_end|>se", {}, "no tool 'brow< |im_end"),
        ("search", '{"query": ', "not JSON"),
        ("search", "[" * 100_000, "not JSON"),
        ("search", {"query": 1}, r"search takes query \(string\)"),
        ("search", None, r"search takes query \(string\)"),
    ],
)
def test_a_call_that_cannot_be_run_says_why(recipe: Path, name: str, arguments: Any, why: str) -> None:
    session = tasks_of(recipe).session("dev")
    with pytest.raises(TypeError, match=why):
        session.call(name, arguments)
    assert session.failure is None and not session.seen


def test_a_failed_search_leaves_no_score(recipe: Path, searches: str) -> None:
    tasks = tasks_of(recipe, "--retrieval.url", searches)
    session = tasks.session("train")
    with pytest.raises(RetrievalError, match=r"the index is < \|im_end\|> away"):
        session.call("search", {"query": "what is lost"})
    done = tasks.scored([calls("search", {"query": "what is lost"})], session, ["Sile"])
    assert (done.status, done.reward, done.reward_parts) == (Status.RETRIEVAL_FAILED, None, {})


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (("--protocol.preset", "clean"), "Set protocol.preset = 'tools'"),
        (("--model.path", "tiny"), "Set model.path to a model"),
        ((*JUDGE, "--reward.judge.model", "m"), "a judge of its own"),
        (("--faults.search_failure_rate", "0.5"), "Leave it out"),
        (("--model.path", "no/such-model"), "no/such-model"),
    ],
)
def test_what_such_a_host_cannot_run_is_refused(recipe: Path, overrides: tuple[str, ...], why: str) -> None:
    with pytest.raises(Exception, match=why) as refused:
        tasks_of(recipe, *overrides)
    assert type(refused.value).__module__ == ConfigError.__module__


def test_a_recipe_is_opened_once(recipe: Path) -> None:
    assert tasks_of(recipe) is tasks_of(recipe)
