"""Tool calls in a real TRL trainer: masks token by token, results as TRL itself writes them, refusals."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trl")

import trl
from datasets import Dataset
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.utils import get_json_schema

from holdfast.adapters.tool_session import rollout_of
from holdfast.adapters.trl import LLDS, with_penalties
from holdfast.adapters.trl.mask import loss_mask
from holdfast.adapters.trl.observe import action_ids_of
from holdfast.adapters.trl_environment import environment_rewards, search_environment, tool_dataset
from holdfast.agent.calling import tools_named
from holdfast.agent.tools import NATIVE
from holdfast.agent.trajectory import Answer, Call, Invalid, Read, Search, Status
from holdfast.base.errors import ConfigError, RetrievalError
from holdfast.evaluate.openai import WordTokenizer
from holdfast.model.text.tokens import encode
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.types import Document, Hit

from .conftest import QUESTIONS, Down, every_other, sampled_rows, train_and_keep_batches

SMALL = replace(
    NATIVE,
    prompt="{question}",
    max_turns=3,
    max_turn_tokens=30,
    max_observation_tokens=60,
    max_total_tokens=700,
)
WORDS = WordTokenizer()
PASSAGES = [Document(f"d{i}", f"Mora {i}\nThe lake of Mora {i} is near the town.") for i in range(6)]


def model_config(tokenizer: Any) -> Any:
    return Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )


@pytest.mark.parametrize("mask_truncated", [False, True])
def test_what_trl_trains_on_is_what_was_sampled(
    mask_truncated: bool, searching: Callable[..., Any], speaker: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four rollouts of a group call and answer, answer, answer wrong, and babble until they are cut."""
    tokenizer = speaker("hermes")
    called, babbled = SMALL.write_search("the lake", tokenizer), "the lake of Orsa, " * 12
    said = ((called, "town"), ("town",), ("lake",), (babbled,) * 3)
    protocol = replace(SMALL, max_turns=1 if mask_truncated else 3)
    trainer = searching(
        LLDS(),
        protocol=protocol,
        mask_truncated_completions=mask_truncated,
        model=Qwen2ForCausalLM(model_config(tokenizer)),
        processing_class=tokenizer,
        max_steps=2,
        script=lambda id, turn: said[int(id) % 4][turn],
    )
    actions, cut = Counter(), 0
    for t, trained in sampled_rows(train_and_keep_batches(trainer, monkeypatch)):
        actions.update(type(turn.action) for turn in t.turns)
        unfinished = mask_truncated and t.token_ids[-1] != tokenizer.eos_token_id
        cut += unfinished
        assert trained == ([False] * len(trained) if unfinished else list(t.loss_mask[len(t.prompt) :]))
    assert cut == (2 if mask_truncated else 0)
    assert actions == Counter({Search: 2, Answer: 4 if mask_truncated else 6, Invalid: 2 if mask_truncated else 6})


@pytest.mark.parametrize(
    "name", ["hermes", "llama", "qwen2_5", "qwen3_training", "qwen3_instruct_2507", "llama3_1", "llama3_2"]
)
def test_a_result_has_the_ids_that_trl_gives_it(name: str, speaker: Callable[[str], Any]) -> None:
    tokenizer = speaker(name)
    host = SimpleNamespace(
        processing_class=tokenizer, _tokenizer=tokenizer, _is_vlm=False, chat_template=None, chat_template_kwargs={}
    )
    for text in ("lake.", 'a "quoted"\nline', "漢字 café", "x\n"):
        ours = NATIVE.observe([Hit(Document("d", f"Orsa\n{text}"), 0.0)], tokenizer, turn=[tokenizer.eos_token_id])
        message = {"role": "tool", "name": "search", "content": ours.text}
        assert list(ours.token_ids) == trl.GRPOTrainer._get_tool_suffix_ids(host, [message])


MCP_SERVER = '''
from mcp.server.mcpserver import MCPServer

server = MCPServer("numbers")

@server.tool()
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b

server.run()
'''


def test_search_rollouts_call_a_server(
    searching: Callable[..., Any], speaker: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `make contracts-trl`, which installs the extra mcp."""
    pytest.importorskip("mcp", reason="of the extra mcp")
    (tmp_path / "numbers_server.py").write_text(MCP_SERVER)
    name = f"mcp:{shlex.join([sys.executable, str(tmp_path / 'numbers_server.py')])}"
    tokenizer = speaker("hermes")
    asked = '<tool_call>\n{"name": "add", "arguments": {"a": 41}}\n</tool_call>'
    trainer = searching(
        LLDS(),
        protocol=replace(SMALL, tools=("search", name)),
        model=Qwen2ForCausalLM(model_config(tokenizer)),
        processing_class=tokenizer,
        max_steps=2,
        script=lambda id, turn: (asked, "town")[turn] if int(id) % 2 else "lake",
    )
    results = [
        turn.observation_text
        for t, _ in sampled_rows(train_and_keep_batches(trainer, monkeypatch))
        for turn in t.turns
        if isinstance(turn.action, Call)
    ]
    assert results == ["42"] * 4


# ---- TRL's own loop of tools


def test_a_server_is_not_for_trls_own_loop() -> None:
    """Said before it is started, and whether or not the extra mcp is installed."""
    with pytest.raises(ConfigError, match=r"'mcp:no-such-server'.* with SearchRollouts"):
        search_environment(None, WORDS, replace(SMALL, tools=("mcp:no-such-server",)))


def repeated(text: str, times: int = 2) -> str:
    """Repeat a text.

    Args:
        text: What to repeat.
        times: How often, "at least once".
    """
    return text * (times if times > 0 else 1 // 0)


def test_functions_are_tools_of_an_environment_without_search() -> None:
    path = f"{__name__}:repeated"
    environment = search_environment(None, WORDS, replace(SMALL, tools=(path,)))()
    assert get_json_schema(environment.repeated) == tools_named(path)[0].schema and not hasattr(environment, "search")
    results = [environment.repeated(text="<a> "), environment.repeated(text="x", times=0)]
    with pytest.raises(TypeError, match="repeated takes"):
        environment.repeated(text="x", times="3")
    assert results[0] == "<a> <a>" and results[1].startswith("Error: ZeroDivisionError")
    calls = [call("repeated", text="<a> "), call("repeated", text="x", times="3"), call("repeated", text="x", times=0)]
    said = [results[0], "refused", results[1]]
    messages = [m for c, text in zip(calls, said, strict=True) for m in (c, {"role": "tool", "content": text})]
    done = rollout_of(messages, environment._session)
    assert [type(turn.action) for turn in done.turns] == [Call, Invalid, Call]
    assert [turn.result and turn.result.failed for turn in done.turns] == [False, None, True]
    logged: dict[str, float] = {}
    (em,), _ = environment_rewards({"em": 1.0})
    em([messages], [environment], golden_answers=[["town"]], log_metric=logged.__setitem__)
    assert (logged["holdfast/tools/repeated/calls"], logged["holdfast/tools/repeated/errors"]) == (2, 0.5)


def call(name: str, **arguments: Any) -> dict[str, Any]:
    calls = [{"type": "function", "function": {"name": name, "arguments": arguments}}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def test_what_an_environment_did_is_scored_as_a_rollout() -> None:
    environment = search_environment(BM25Retriever.build(PASSAGES), WORDS, replace(SMALL, tools=("search", "read")))()
    environment.reset(golden_answers=["x"])
    found, read = environment.search("lake Mora 3"), environment.read("d3")
    assert found.startswith("Doc d3(Title: Mora 3) The lake") and read == "Doc d3(Title: Mora 3) " + PASSAGES[3].text
    assert environment.read("d9") == SMALL.nothing_found
    results = [{"role": "tool", "name": "search", "content": text} for text in (found, '{"error": "no tool"}', read)]
    calls = [call("search", query="lake Mora 3"), call("browse", url="x"), call("read", id="d3")]
    messages = [message for pair in zip(calls, results, strict=True) for message in pair]
    messages.append({"role": "assistant", "content": "<think>\nhm\n</think>\n\ntown"})
    done = rollout_of(messages, environment._session)
    assert [type(turn.action) for turn in done.turns] == [Search, Invalid, Read, Answer] and done.answer == "town"
    assert done.turns[0].hits[0] == "d3" and not done.turns[1].hits and done.turns[2].hits == ("d3",)
    parts = {"em": 1.0, "retrieval": 0.5, "format": 0.25}
    functions, weights = environment_rewards(parts)
    scores = {
        function.__name__: function(
            completions=[messages, messages[:1]],
            environments=[environment] * 2,
            golden_answers=[["town"]] * 2,
            example_id=["q"] * 2,
            log_metric=lambda *_: None,
        )
        for function in functions
    }
    assert scores == {"em": [1.0, 0.0], "retrieval": [1.0, 0.0], "format": [0.0, 0.0]} and sum(weights) == 1.75


def test_what_trl_encodes_again_spells_no_control_token(speaker: Callable[[str], Any]) -> None:
    class Shelf:
        def search(self, queries: Any, k: int) -> Any:
            if queries == ["lost"]:
                raise RetrievalError("no <|im_end|> here")
            return [[Hit(Document("d", "Orsa\nIt <|im_end|> is a < b."), 0.0)]]

    tokenizer = speaker("hermes")
    environment = search_environment(Shelf(), tokenizer, SMALL)()
    assert environment.search("x").endswith("It < |im_end|> is a < b.")
    with pytest.raises(RetrievalError, match=r"no < \|im_end"):
        environment.search("lost")
    (row,) = tool_dataset([replace(QUESTIONS[0], question="Who <|im_end|>?")], tokenizer, SMALL)
    assert row["prompt"][0]["content"] == "Who < |im_end|>?"


def test_several_calls_in_a_message_are_a_turn_each() -> None:
    environment = search_environment(BM25Retriever.build(PASSAGES), WORDS, replace(SMALL, topk=1))()
    both = call("search", query="lake Mora 3")
    both["tool_calls"] += call("browse", url="x")["tool_calls"] + call("search", query="lake Mora 4")["tool_calls"]
    found = [environment.search("lake Mora 3"), "there is no such tool", environment.search("lake Mora 4")]
    results = [{"role": "tool", "content": text} for text in found]
    done = rollout_of([both, *results, {"role": "assistant", "content": "town"}], environment._session)
    assert [type(turn.action) for turn in done.turns] == [Search, Invalid, Search, Answer] and done.searches == 2
    assert [turn.hits for turn in done.turns] == [("d3",), (), ("d4",), ()]
    assert [turn.observation_text for turn in done.turns] == [*found, ""]


@pytest.mark.parametrize(
    "failed",
    [call("search", query="lake Mora 3", top_k="3"), call("search", text="x"), call("read", id="d3")],
    ids=["an argument too many", "another argument", "a tool that is not offered"],
)
def test_a_call_that_trl_refuses_has_found_nothing(failed: dict[str, Any]) -> None:
    environment = search_environment(BM25Retriever.build(PASSAGES), WORDS, replace(SMALL, topk=1))()
    function = failed["tool_calls"][0]["function"]
    with pytest.raises((TypeError, AttributeError)):  # TRL shows the model the error
        getattr(environment, function["name"])(**function["arguments"])
    messages = [failed, {"role": "tool", "content": "{'error': '...'}"}, call("search", query="lake Mora 4")]
    messages.append({"role": "tool", "content": environment.search("lake Mora 4")})
    done = rollout_of(messages, environment._session)
    assert [type(turn.action) for turn in done.turns] == [Invalid, Search]
    assert [turn.hits for turn in done.turns] == [(), ("d4",)]


def test_an_outage_is_no_wrong_answer() -> None:
    environment = search_environment(Down(), WORDS)()
    with pytest.raises(RetrievalError, match="down"):
        environment.search("x")
    done = rollout_of([call("search", query="x"), {"role": "tool", "content": "{}"}], environment._session)
    assert done.status is Status.RETRIEVAL_FAILED and done.error == "down"
    environment.reset()
    assert rollout_of([], environment._session).status is Status.TRUNCATED
    assert not hasattr(environment, "read")


def get_reward(x: str) -> str:
    """Be taken for a reward.

    Args:
        x: Anything.
    """
    return x


def test_a_tool_whose_name_trl_keeps_for_itself_is_refused() -> None:
    protocol = replace(NATIVE, tools=(f"{__name__}:get_reward",))
    with pytest.raises(ConfigError, match="'get_reward' to the model; rename the function"):
        search_environment(None, WORDS, protocol)


def test_trl_runs_the_environment(make_trainer: Any, speaker: Callable[[str], Any]) -> None:
    """TRL renders, parses and calls; what is sampled follows a script. The penalty finds the actions in TRL's mask."""
    tokenizer = speaker("qwen2_5")
    functions, weights = environment_rewards({"em": 1.0, "format": 0.5})
    made: list[Any] = []

    def factory() -> Any:
        made.append(search_environment(BM25Retriever.build(PASSAGES), tokenizer, SMALL)())
        return made[-1]

    trainer = make_trainer(
        with_penalties(trl.GRPOTrainer, LLDS(), displacement_every=1),
        rollout_func=None,
        environment_factory=factory,
        reward_funcs=functions,
        reward_weights=weights,
        train_dataset=tool_dataset(QUESTIONS, tokenizer, SMALL),
        model=Qwen2ForCausalLM(model_config(tokenizer)),
        processing_class=tokenizer,
        max_completion_length=200,
        max_steps=2,
    )
    asked = SMALL.write_search("the lake", tokenizer)

    def say(prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        texts = [
            "town" if "Doc 1(Title" in tokenizer.decode(ids) else asked if i % 2 else "lake"
            for i, ids in enumerate(prompt_ids)
        ]
        return [[*encode(tokenizer, text), tokenizer.eos_token_id] for text in texts], None

    trainer._generate_single_turn = say
    trainer.train()
    row = trainer.state.log_history[0]
    assert (row["tools/call_frequency"], row["rewards/em/mean"], row["rewards/format/mean"]) == (0.5, 0.5, 1.0)
    assert "holdfast/likelihood/correct/action_2" in row and "holdfast/likelihood/incorrect/action_2" not in row
    assert {seen for environment in made for seen in environment._session.seen}


def test_results_of_plain_functions_are_in_no_action(
    make_trainer: Any, speaker: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tools=[function]`: half of the rollouts call it, and have two actions."""
    tokenizer = speaker("qwen2_5")
    trainer = make_trainer(
        with_penalties(trl.GRPOTrainer, LLDS()),
        rollout_func=None,
        tools=[repeated],
        reward_funcs=every_other,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "Repeat."}]}] * 4),
        model=Qwen2ForCausalLM(model_config(tokenizer)),
        processing_class=tokenizer,
        max_completion_length=200,
        max_steps=2,
    )
    asked = '<tool_call>\n{"name": "repeated", "arguments": {"text": "lake"}}\n</tool_call>'

    def say(prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        ended = ["lakelake" in tokenizer.decode(ids) for ids in prompt_ids]
        texts = ["town" if end else asked if i % 2 else "lake" for i, end in enumerate(ended)]
        return [[*encode(tokenizer, text), tokenizer.eos_token_id] for text in texts], None

    trainer._generate_single_turn = say
    ((_, batch),) = train_and_keep_batches(trainer, monkeypatch)
    mask = loss_mask(batch)
    for ids, sampled, present, actions in zip(
        batch["completion_ids"], mask, batch["completion_mask"].bool(), action_ids_of(batch, mask), strict=True
    ):
        called = "tool_call" in tokenizer.decode(ids[sampled])
        assert ("lakelake" in tokenizer.decode(ids[present & ~sampled])) == called
        assert "lakelake" not in tokenizer.decode(ids[sampled]) and actions.max() == 1 + called
    row = trainer.state.log_history[0]
    assert "holdfast/likelihood/correct/action_2" in row and "holdfast/likelihood/incorrect/action_2" not in row


def test_a_result_is_shortened_to_its_budget() -> None:
    path = f"{__name__}:repeated"
    environment = search_environment(None, WORDS, replace(SMALL, tools=(path,), max_observation_tokens=4))()
    assert environment.repeated(text="a b ", times=3) == "a b a b"
