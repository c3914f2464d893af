"""Tool calls in a real TRL trainer: masks token by token, results as TRL itself writes them, refusals."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

trl = pytest.importorskip("trl")

from transformers import Qwen2Config, Qwen2ForCausalLM  # noqa: E402

from holdfast.adapters.trl import LLDS, with_penalties  # noqa: E402
from holdfast.adapters.trl_search import SearchRollouts, question_dataset, reward_functions  # noqa: E402
from holdfast.agent.protocol import render_prompt  # noqa: E402
from holdfast.agent.tools import NATIVE  # noqa: E402
from holdfast.agent.trajectory import Answer, Search, Trajectory  # noqa: E402
from holdfast.base.errors import ConfigError  # noqa: E402
from holdfast.data.questions import Example  # noqa: E402
from holdfast.model.tokens import encode  # noqa: E402
from holdfast.retrieval.bm25 import BM25Retriever  # noqa: E402
from holdfast.retrieval.types import Document, Hit  # noqa: E402

SMALL = replace(
    NATIVE,
    prompt="{question}",
    max_turns=3,
    max_turn_tokens=30,
    max_observation_tokens=60,
    max_total_tokens=700,
)
PASSAGES = [Document(f"d{i}", f"Mora {i}\nThe lake of Mora {i} is near the town.") for i in range(6)]
QUESTIONS = [
    Example(source="t", split="train", index=i, question=f"What is the lake of Mora {i}?", golden_answers=("town",))
    for i in range(6)
]


@pytest.fixture(scope="module")
def taught(speaker: Callable[[str], Any]) -> tuple[Any, Any]:
    """A tokenizer with a template of tools, and a model that calls, answers or babbles, about equally often."""
    tokenizer = speaker("hermes")
    torch.manual_seed(0)
    config = Qwen2Config(
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
    model = Qwen2ForCausalLM(config)
    said = [SMALL.write_search("the lake", tokenizer), "town", "lake", "the lake of Orsa, " * 12]
    rows = []
    for question in ("What is the lake of Mora 1?", "What is the lake of Mora 4?"):
        prompt = render_prompt(question, SMALL, tokenizer)
        rows += [(prompt, [*encode(tokenizer, text), tokenizer.eos_token_id]) for text in said]
    width = max(len(prompt) + len(turn) for prompt, turn in rows)
    tokens, labels = torch.full((2, len(rows), width), tokenizer.pad_token_id)
    labels[:] = -100
    for i, (prompt, turn) in enumerate(rows):
        tokens[i, : len(prompt) + len(turn)] = torch.tensor(prompt + turn)
        labels[i, len(prompt) : len(prompt) + len(turn)] = torch.tensor(turn)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(80):
        optimizer.zero_grad()
        model(input_ids=tokens, labels=labels).loss.backward()
        optimizer.step()
    return tokenizer, model


@pytest.fixture
def searching(make_trainer: Any, taught: tuple[Any, Any]) -> Callable[..., Any]:
    tokenizer, model = taught

    def make(protocol: Any = SMALL, **more: Any) -> Any:
        functions, weights = reward_functions({"em": 1.0, "format": 0.5})
        return make_trainer(
            with_penalties(trl.GRPOTrainer, LLDS(), displacement_every=1),
            rollout_func=SearchRollouts(BM25Retriever.build(PASSAGES), protocol),
            reward_funcs=functions,
            reward_weights=weights,
            train_dataset=question_dataset(QUESTIONS),
            model=model,
            processing_class=tokenizer,
            **({"learning_rate": 1e-3} | more),
        )

    return make


@pytest.mark.parametrize("mask_truncated", [False, True])
def test_what_trl_trains_on_is_what_was_sampled(
    mask_truncated: bool, searching: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    protocol = replace(SMALL, max_turns=1 if mask_truncated else 3)
    trainer = searching(protocol, mask_truncated_completions=mask_truncated)
    batches: list[Any] = []
    original = type(trainer)._generate_and_score_completions

    def keep(self: Any, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch = original(self, inputs)
        batches.append((inputs, batch))
        return batch

    monkeypatch.setattr(type(trainer), "_generate_and_score_completions", keep)
    trainer.train()
    actions, cut = set(), 0
    for inputs, batch in batches:
        mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
        gap = (batch["sampling_per_token_logps"] - batch["old_per_token_logps"])[mask]
        assert float(gap.abs().max()) < 1e-4
        for i, row in enumerate(inputs):
            t: Trajectory = row["trajectory"]
            n, length = len(t.prompt), len(t.token_ids) - len(t.prompt)
            actions |= {type(turn.action) for turn in t.turns}
            assert batch["completion_ids"][i, :length].tolist() == list(t.token_ids[n:])
            unfinished = mask_truncated and t.token_ids[-1] != trainer.processing_class.eos_token_id
            cut += unfinished
            expected = [False] * length if unfinished else list(t.loss_mask[n:])
            assert mask[i, :length].tolist() == expected and not mask[i, length:].any()
            assert batch["holdfast_answer_mask"][i, :length].tolist() == list(t.answer_mask[n:])
    assert {Answer, Search} <= actions and bool(cut) == mask_truncated


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


def test_a_model_without_a_template_of_tools_is_refused(searching: Callable[..., Any]) -> None:
    trainer = searching()
    trainer.processing_class = tokenizer = copy.deepcopy(trainer.processing_class)
    tokenizer.chat_template = "{{ messages[0].content }}"
    with pytest.raises(ConfigError, match="does not tell the model of tools"):
        trainer.rollout_func(["Who?"], trainer)
    tokenizer.chat_template = None
    with pytest.raises(ConfigError, match="there is no chat template"):
        trainer.rollout_func(["Who?"], trainer)
