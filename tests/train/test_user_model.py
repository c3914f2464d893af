"""A model of one's own, base and instruct, whole and LoRA: it trains with any index, is saved, goes on and answers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from holdfast.agent.protocol import render_prompt
from holdfast.agent.trajectory import Search
from holdfast.base.errors import CheckpointError, ConfigError, ModelError
from holdfast.base.run_folder import list_checkpoints
from holdfast.model.language_model import LanguageModel, load_model, take_weights
from holdfast.recipe import Config, Model
from holdfast.tasks.opening import load_agent, load_protocol, load_questions
from holdfast.train.learner import Reference
from holdfast.train.model_fit import validate_model_and_prompts
from holdfast.train.prepare import prepare
from holdfast.train.run import resume, train
from holdfast.train.saving import refuse_other_shape
from holdfast.train.start import warm_start_only

from .whole_runs import Killed, a_start
from .whole_runs import comparable as rows_of

CPU = torch.device("cpu")


def brevity(example: Any, trajectory: Any) -> float:
    """A reward that does not ask for an action."""
    return 1.0


@pytest.fixture(scope="module")
def instruct(own: Callable[..., Config], lesson: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return warm_start_only(own("raw-chat", lesson), tmp_path_factory.mktemp("instruct") / "run")


@pytest.mark.parametrize("custom", [{}, {f"{__name__}:brevity": 0.1}])
def test_a_model_that_never_searches_or_answers_is_stopped_while_no_reward_says_otherwise(
    own: Callable[..., Config], tmp_path: Path, told: Any, custom: dict[str, float]
) -> None:
    changes = {"train": {"steps": 3, "questions": 8, "group_size": 4, "optimizer_steps_per_rollout": 1}}
    config = own("raw", changes | {"reward": {"em": 1.0, "custom": custom}, "loss.penalty": {"name": "none"}})
    refused = pytest.raises(ModelError, match=r"none of the first 64 rollouts called a tool.*warm_start\.data")
    with nullcontext() if custom else refused:
        train(config, tmp_path / "run", listener=told)
    assert [step for step, _ in told.steps if step] == ([1, 2, 3] if custom else [1, 2])


OLD_KERNELS = torch.backends.cpu.get_cpu_capability() == "DEFAULT" and torch.cpu._is_amx_tile_supported()
"""PyTorch packs keys in bf16 for AMX wherever the CPU has it, which its oldest kernels (`make numerics`) refuse."""
RECOMPUTED_BF16 = {"model.gradient_checkpointing": True, "model.autocast": "none" if OLD_KERNELS else "bf16"}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "instruct, recomputed, bf16": ("instruct", RECOMPUTED_BF16 | {"loss.penalty.name": "sapo"}),
    "LoRA": ("base", {"model.lora_rank": 4, "train.lr": 2e-2}),
}


@pytest.mark.usefixtures("told_what_to_say")
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
    # Half of the answers are right, half of the rollouts search, and the update does something.
    assert {(row["reward/em"], row["rollout/searches"]) for row in rows} == {(0.5, 0.5)}
    assert all("displacement/correct" in row and "likelihood/correct/action_1" in row for row in rows)
    assert all(row["penalty/noise_floor"] == 0 for row in rows)
    assert all(row["grad/norm"] > 0 for row in rows) and rows[-1]["loss/kl"] > 0
    assert any(row["penalty/active_fraction"] > 0 for row in rows)
    said = [json.loads(line) for line in (tmp_path / "run" / "trajectories.jsonl").read_text().splitlines()]
    queries = {turn["query"] for row in said for turn in row["turns"] if "query" in turn}
    assert queries == {"place teacher", "lake"}

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


# ---- the weights


def test_a_weight_begins_where_torch_would_begin_it(home: Path, tmp_path: Path) -> None:
    """On a CPU the address decides how sums are rounded, and in a file it depends on the length of the header."""
    shutil.copytree(home / "raw", tmp_path / "raw")
    weights = load_file(tmp_path / "raw" / "model.safetensors")
    begins = []
    for longer in (0, 8, 24):
        metadata = {"format": "pt", "note": "x" * longer}
        save_file(weights, tmp_path / "raw" / "model.safetensors", metadata=metadata)
        mapped = AutoModelForCausalLM.from_pretrained(tmp_path / "raw")
        loaded = load_model(Model(path="x"), tmp_path / "raw", CPU).model
        begins += [weight.data_ptr() % 64 for weight in mapped.parameters()]
        assert not any(weight.data_ptr() % 64 for weight in loaded.parameters())
        assert all(torch.equal(a, b) for a, b in zip(mapped.parameters(), loaded.parameters(), strict=True))
    assert any(begins)


# ---- the reference


@pytest.mark.parametrize("rank", [0, 4])
def test_the_reference_stays_where_the_policy_started(home: Path, rank: int) -> None:
    made = load_model(Model(path="x", lora_rank=rank), home / "raw", CPU)
    ids = torch.arange(2, 14)[None]
    mask = torch.ones_like(ids, dtype=torch.bool)
    reference = Reference(made)

    def policy() -> torch.Tensor:
        return made.logprobs(ids, mask, temperature=0.7)[0]

    with torch.no_grad():
        start = policy()
        for p in made.model.parameters():
            if p.requires_grad:
                p.add_(0.05)
        moved = policy()
        with reference.in_place():
            kept = policy()
        again = policy()
        if rank:
            with made.model.disable_adapter():
                off = policy()
            torch.testing.assert_close(kept, off, atol=1e-6, rtol=1e-6)
    assert torch.equal(kept, start) and not torch.allclose(moved, start, atol=1e-2)
    assert torch.equal(again, moved)  # and the policy is itself again afterwards


def test_the_reference_of_warm_started_adapters_is_the_warm_started_policy(
    own: Callable[..., Config], lesson: dict[str, Any]
) -> None:
    """Switching the adapters off would compare with a model that cannot even answer."""
    config = own("raw", lesson | {"model.lora_rank": 4})
    a_start(config)
    made = a_start(config)  # from the cache
    ids = torch.arange(2, 14)[None]
    mask = torch.ones_like(ids, dtype=torch.bool)
    with torch.no_grad():
        with Reference(made).in_place():
            kept = made.logprobs(ids, mask)[0]
        assert torch.equal(kept, made.logprobs(ids, mask)[0])
        with made.model.disable_adapter():
            assert not torch.allclose(made.logprobs(ids, mask)[0], kept, atol=1e-2)


def test_padding_is_an_id_that_the_model_embeds(home: Path) -> None:
    made = load_model(Model(path="x"), home / "raw", CPU)
    rows = made.model.get_input_embeddings().weight.shape[0]
    made.tokenizer.add_tokens([f"<more {i}>" for i in range(rows)])
    made.tokenizer.pad_token = f"<more {rows - 1}>"
    assert made.tokenizer.pad_token_id >= rows and made.pad_token_id == made.tokenizer.eos_token_id


# ---- precision and dropout


def test_weights_are_fp32_and_dropout_is_off(tmp_path: Path, make_model: Callable[..., Any], home: Path) -> None:
    shutil.copytree(home / "raw", tmp_path / "half")
    make_model(attention_dropout=0.5).to(torch.bfloat16).save_pretrained(tmp_path / "half")
    made = load_model(Model(path="x"), tmp_path / "half", CPU)
    assert {p.dtype for p in made.model.parameters()} == {torch.float32} and made.autocast_dtype is None
    ids = torch.arange(2, 14)[None]
    made.model.train()
    with torch.no_grad():
        assert torch.equal(made.model(ids).logits, made.model(ids).logits)
    assert load_model(Model(path="x", autocast="bf16"), tmp_path / "half", CPU).autocast_dtype is torch.bfloat16


# ---- models that are refused


def broken(home: Path, folder: Path, change: Callable[[Path], Any]) -> Path:
    shutil.copytree(home / "raw", folder)
    change(folder)
    return folder


def without_a_layer(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.0.mlp.down_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def cut(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (cut, "no causal language model can be loaded"),
        (without_a_layer, r"lack 1 of the weights of a Qwen2ForCausalLM, such as model\.layers\.0\.mlp\.down_proj"),
        (lambda folder: (folder / "config.json").write_text("{"), "no tokenizer can be loaded|no causal language"),
        (lambda folder: (folder / "tokenizer_config.json").write_text("{"), "no tokenizer can be loaded"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused(
    home: Path, tmp_path: Path, change: Callable[[Path], Any], problem: str
) -> None:
    folder = broken(home, tmp_path / "broken", change)
    with pytest.raises(ModelError, match=problem) as caught:
        load_model(Model(path=str(folder)), folder, CPU)
    assert "\n" not in str(caught.value)


def with_template(text: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / "chat_template.jinja").write_text(text)


LOOP, END = "{% for i in range(99999) %}", "{% endfor %}"


@pytest.mark.parametrize(
    "template",
    [
        LOOP * 3 + END * 3,
        "{{ 'a' * 10 ** 10 }}",
        "{% set n = namespace(x='aa') %}{% for i in range(40) %}{% set n.x = n.x + n.x %}{% endfor %}{{ n.x }}",
    ],
    ids=["endless", "one large text", "doubled forty times"],
)
def test_a_chat_template_that_costs_too_much_is_refused(home: Path, tmp_path: Path, template: str) -> None:
    folder = broken(home, tmp_path / "broken", with_template(template))
    with pytest.raises(ModelError, match="its chat template needs many seconds"):
        load_model(Model(path=str(folder)), folder, CPU)


@pytest.mark.parametrize("template", ["{{ messages[0].content }}", LOOP + END, "{{ raise_exception('no') }}"])
def test_a_chat_template_that_fails_or_takes_a_moment_is_loaded(home: Path, tmp_path: Path, template: str) -> None:
    folder = broken(home, tmp_path / "whole", with_template(template))
    assert load_model(Model(path=str(folder)), folder, CPU).tokenizer.chat_template == template


@pytest.mark.parametrize(
    ("inside", "newest"),
    [
        (("checkpoint-9", "checkpoint-10", "checkpoint-best"), "checkpoint-10"),
        (("checkpoints/step-000040/model", "checkpoints/step-000060/model"), "checkpoints/step-000060/model"),
    ],
)
def test_the_output_folder_of_a_trainer_names_its_newest_checkpoint(
    tmp_path: Path, inside: tuple[str, ...], newest: str
) -> None:
    for name in inside:
        (tmp_path / "out" / name).mkdir(parents=True)
        (tmp_path / "out" / name / "config.json").write_text("{}")
    (tmp_path / "out" / "checkpoint-99").mkdir()  # without a model
    with pytest.raises(ModelError) as caught:
        load_model(Model(path="out"), tmp_path / "out", CPU)
    assert f"The newest one inside is {newest}: give '{tmp_path}/out/{newest}'" in str(caught.value)
    assert caught.value.hint == f"holdfast eval run {tmp_path}/out/{newest}, or --model.path {tmp_path}/out/{newest}"


def test_adapters_of_another_rank_are_refused(
    own: Callable[..., Config], lesson: dict[str, Any], tmp_path: Path
) -> None:
    short = {"model.lora_rank": 2, "warm_start": lesson["warm_start"] | {"steps": 1}}
    made = warm_start_only(own("raw", short), tmp_path / "run")
    assert load_model(Model(path=str(made)), made, CPU).model.peft_config["default"].r == 2
    refuse_other_shape(Config(model=Model(path="x", lora_rank=2)), made)
    refuse_other_shape(Config(model=Model(path=str(made))), made)
    with pytest.raises(CheckpointError, match=r"model\.lora_rank = 0, but .* was trained with 2"):
        refuse_other_shape(Config(model=Model(path="x")), made)
    with pytest.raises(ConfigError, match=r"model\.lora_rank = 3, but the adapters .* have rank 2"):
        load_model(Model(path=str(made), lora_rank=3), made, CPU)
    settings = json.loads((made / "adapter_config.json").read_text())
    (made / "adapter_config.json").write_text(json.dumps(settings | {"base_model_name_or_path": "/gone"}))
    with pytest.raises(ModelError, match="base_model_name_or_path = '/gone' is not a folder here"):
        load_model(Model(path=str(made)), made, CPU)
    (made / "adapter_config.json").write_text("[]")
    with pytest.raises(ModelError, match=r"adapter_config\.json is not a JSON object"):
        load_model(Model(path=str(made)), made, CPU)


def test_weights_of_another_model_are_refused(home: Path, tmp_path: Path, make_model: Callable[..., Any]) -> None:
    shutil.copytree(home / "raw", tmp_path / "wide")
    make_model(hidden_size=64).save_pretrained(tmp_path / "wide")
    config = Model(path=str(home / "raw"))
    with pytest.raises(CheckpointError, match=r"whose hidden_size = 32, but .*wide was trained with 64"):
        refuse_other_shape(Config(model=config), tmp_path / "wide")
    with pytest.raises(CheckpointError, match=r"contains the weights of another model .*start a new run"):
        take_weights(load_model(config, home / "raw", CPU), config, tmp_path / "wide")


# ---- the warm start of a model of one's own


def test_bad_and_overlong_episodes_are_left_out_and_said(
    own: Callable[..., Config], tmp_path: Path, told: Any, write_rows: Callable[..., str]
) -> None:
    good = {"question": "What?", "turns": [{"text": "<answer> a </answer>"}]}
    endless = {"question": "What?", "turns": [{"text": "why " * 300 + "<answer> a </answer>"}]}
    path = write_rows(tmp_path / "e.jsonl", [good, good, endless, {"question": "What?"}])
    warm_start_only(own("raw", {"warm_start": {"data": path, "steps": 1}}), tmp_path / "run", listener=told)
    with pytest.raises(CheckpointError, match=r"is a finished warm start, .*--model\.path .*run/model"):
        resume(tmp_path / "run")
    assert any("e.jsonl" in note and "skipped 1 row (line 4): turns" in note for note in told.notes)
    assert any("1 of 3 demonstrations" in note and "max_total_tokens = 200" in note for note in told.notes)
    path = write_rows(tmp_path / "long.jsonl", [endless])
    with pytest.raises(ConfigError, match=r"1 of 1 demonstrations .* longer than protocol\.max_total_tokens = 200"):
        warm_start_only(own("raw", {"warm_start": {"data": path, "steps": 1}}), tmp_path / "next")


# ---- a model that calls tools: it learns from demonstrations, trains, is evaluated, asked and saved


@pytest.fixture(scope="module")
def recipe_of_tools(
    own: Callable[..., Config],
    make_model: Callable[..., Any],
    speaker: Callable[[str], Any],
    write_rows: Callable[..., str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Config]:
    """recipe_of_tools({…}): a tiny model whose template has tools, taught by demonstrations in tags."""
    folder, tokenizer = tmp_path_factory.mktemp("tools") / "model", speaker("hermes")
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    make_model(vocab_size=len(tokenizer), max_position_embeddings=1024, **ends).save_pretrained(folder)
    tokenizer.save_pretrained(folder)

    search = {"text": "<search> place </search>", "observation": ["place 3\nIt is a lake."]}
    rows = [
        {"question": f"What is place {i}?", "turns": [search, {"text": f"<answer> {answer} </answer>"}]}
        for i, answer in enumerate(["town", "lake"] * 10)
    ]
    lesson = {"steps": 80, "batch_size": 10, "lr": 1e-2, "data": write_rows(folder.parent / "episodes.jsonl", rows)}

    def make(changes: dict[str, Any] | None = None) -> Config:
        limits = {"max_turn_tokens": 60, "max_observation_tokens": 90, "max_total_tokens": 1000, "max_turns": 3}
        protocol = {f"protocol.{name}": value for name, value in {"preset": "tools", **limits}.items()}
        return own(folder, {"warm_start": lesson, **protocol, **(changes or {})})

    return make


def test_it_is_taught_trained_saved_evaluated_and_asked(recipe_of_tools: Callable[..., Config], tmp_path: Path) -> None:
    config = recipe_of_tools({"train.steps": 1})
    prepare(config)
    train(config, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == 1 and rows[-1]["rollout/answered_fraction"] > 0 and rows[-1]["rollout/searches"] > 0
    said = (tmp_path / "run" / "trajectories.jsonl").read_text().splitlines()
    turns = [turn for line in said for turn in json.loads(line)["turns"]]
    searches = [turn for turn in turns if "query" in turn]
    assert searches, turns
    assert all("<tool_call>" in turn["text"] for turn in searches)
    asked = load_agent(tmp_path / "run").ask("What is place 3?")
    assert isinstance(asked.turns[0].action, Search) and asked.turns[0].observation_text.startswith(
        "Doc 1(Title: place"
    )


def test_a_model_whose_turns_would_never_end_is_refused(
    recipe_of_tools: Callable[..., Config], make_model: Callable[..., Any], speaker: Callable[[str], Any]
) -> None:
    config, tokenizer = recipe_of_tools(), speaker("hermes")
    tokenizer.eos_token = "<|eot_id|>"
    model = make_model(vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id, max_position_embeddings=1024)
    language_model = LanguageModel(model=model, tokenizer=tokenizer)
    with pytest.raises(ConfigError, match=r"ends a message with '<\|im_end\|>', which does not end the model's text"):
        validate_model_and_prompts(language_model, load_questions(config), load_protocol(config))
