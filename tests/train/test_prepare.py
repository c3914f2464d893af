"""What is refused before the first step, and what is said."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from holdfast.agent.protocol import render_prompt
from holdfast.base.errors import ConfigError, HoldfastError
from holdfast.model.language_model import LanguageModel
from holdfast.recipe import Config, load
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.corpus import passages
from holdfast.tasks.opening import Questions, load_protocol, load_questions
from holdfast.tasks.questions import Example
from holdfast.train import prepare as checks
from holdfast.train import run, start
from holdfast.train.model_fit import validate_model_and_prompts
from holdfast.train.prepare import config_warnings, overlap_warnings, prepare

Recipe = Callable[..., Config]


def an_example(question: str, split: str = "train", index: int = 0) -> Example:
    return Example(source="mine", split=split, index=index, question=question, golden_answers=("x",))


def validate(config: Config, language_model: LanguageModel, **questions: tuple[Example, ...]) -> None:
    asked = replace(load_questions(config), **questions)
    validate_model_and_prompts(language_model, asked, load_protocol(config))


def test_a_question_of_few_characters_and_many_tokens_is_refused(recipe: Recipe, language_model: LanguageModel) -> None:
    plain = tuple(an_example("What is the lake of Mora? " * 4, index=i) for i in range(50))
    emojis = an_example("\N{FAMILY}" * 70, index=50)
    assert len(emojis.question) < len(plain[0].question)
    validate(recipe(), language_model, train=plain)
    with pytest.raises(ConfigError, match=r"prompt of train question mine/train/50 takes \d{3,} tokens"):
        validate(recipe(), language_model, train=(*plain, emojis))


def test_a_prompt_must_leave_room_for_one_token(recipe: Recipe, language_model: LanguageModel) -> None:
    questions, protocol = load_questions(recipe()), load_protocol(recipe())
    longest = max(
        len(render_prompt(e.question, protocol, language_model.tokenizer)) for e in (*questions.train, *questions.test)
    )
    limits = {"protocol.max_turn_tokens": 4, "protocol.max_observation_tokens": 16}
    validate(recipe(limits | {"protocol.max_total_tokens": longest + 1}), language_model)
    with pytest.raises(ConfigError, match="leaves no room"):
        validate(recipe(limits | {"protocol.max_total_tokens": longest}), language_model)


# ---- warnings


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, None),
        ({"sampling.top_p": 0.95}, "sampling.top_p"),
        ({"sampling.top_k": 50}, "sampling.top_k"),
        ({"sampling.top_p": 0.95, "sampling.top_k": 50, "sampling.mask_logprobs": True}, None),
        ({"loss.penalty.name": "llds", "loss.penalty.coef": 0.0}, "loss.penalty.coef"),
        ({"faults.search_failure_rate": 0.25}, "faults.search_failure_rate"),
    ],
)
def test_settings_that_raise_a_doubt(recipe: Recipe, changes: Mapping[str, Any], named: str | None) -> None:
    told = list(config_warnings(recipe(changes)))
    assert len(told) == (named is not None) and all(str(named) in sentence for sentence in told)


def test_questions_in_two_splits_are_told_of(recipe: Recipe) -> None:
    questions = Questions(
        train=tuple(an_example(q) for q in ("Who is A?", "Who is B?", "Who is C?")),
        dev=tuple(an_example(q, "dev") for q in ("who is  A?", "Who is D?")),
        test=tuple(an_example(q, "test") for q in ("WHO IS A?", "Who is C? ", "Who is D?", "Who is E?")),
    )
    told = list(overlap_warnings(questions))
    assert [sentence.partition(":")[0] for sentence in told] == [
        "1 of 2 dev questions are also train questions",
        "2 of 4 test questions are also train questions",
        "2 of 4 test questions are also dev questions",
    ]


# ---- passages


def test_passages_that_an_observation_cannot_show_are_counted(recipe: Recipe, own: Recipe) -> None:
    read, long, few = prepare(own("raw", {"protocol.max_observation_tokens": 30, "protocol.topk": 1})).notes
    assert re.search(r"\.jsonl: \d+ passages$", read)
    assert few.startswith("scores on ")
    assert re.match(r"[1-9]\d* of \d+ passages are too long: ", long)
    fits = {"protocol.max_observation_tokens": 400, "protocol.max_total_tokens": 500}
    assert prepare(own("raw", fits)).notes == (read, few)
    assert [note.partition(" on ")[0] for note in prepare(recipe()).notes] == ["scores"]


def test_demonstrations_that_a_script_will_make_are_judged_before_the_run(own: Recipe, lesson: dict[str, Any]) -> None:
    for settings in ({"warm_start": {"steps": 5}}, lesson):
        assert any(re.match(r"\d+ demonstrations are few", note) for note in prepare(own("raw", settings)).notes)
    assert not any("demonstration" in note for note in prepare(own("raw")).notes)


# ---- what a run would refuse before its first step


CUSTOM = "--loss.penalty.name=custom --loss.penalty.path="
OWN = "--data.train=q.jsonl --retrieval.corpus=c.jsonl --model.path=model --train.questions=8"
SMALL = (
    *("--warm_start.steps=0", "--protocol.max_total_tokens=200", "--protocol.max_observation_tokens=70"),
    *("--protocol.prompt=Question: {question}\n", "--run.device=cpu"),
)

REFUSED: dict[str, tuple[str, str]] = {
    "the tiny model, own questions": (
        f"{OWN} --model.path=tiny",
        "the tiny model knows only the words of the bundled world",
    ),
    "plain scripts without the world": (
        f"{OWN} --world.scripts.plain_steps=5",
        "plain_steps = 5 with --data.train = 'q.jsonl': only the bundled world has such a setting",
    ),
    # code
    "no such module": (f"{CUSTOM}no_such_module:Hinge", "the module no_such_module cannot be imported"),
    "a class that is always zero": (
        f"{CUSTOM}holdfast.methods.penalties:LLDS --train.optimizer_steps_per_rollout=1",
        "loss.penalty.name = 'custom' with train.optimizer_steps_per_rollout = 1",
    ),
    "no such argument": (
        f"{CUSTOM}holdfast.methods.penalties:LLDS --loss.penalty.settings=gat='token'",
        "did you mean gate?",
    ),
    "no such reward": ("--reward.custom={'no_such_module:f'=1.0}", "cannot be imported"),
    "not a reward": ("--reward.custom={'operator:itemgetter'=1.0}", "must return a finite number"),
    # files
    "no questions": (f"{OWN} --data.train=gone.jsonl", "gone.jsonl"),
    "questions without answers": (f"{OWN} --data.train=unanswered.jsonl", "none of 3 rows can be used as a question"),
    "a batch of more questions than there are": (
        f"{OWN} --train.questions=19",
        "train.questions = 19, but there are only 18 training questions",
    ),
    "a batch of more questions than the world has": (
        "--world.people=60 --world.train_questions=40 --train.questions=41",
        "train.questions = 41, but there are only",
    ),
    "one question": (f"{OWN} --data.train=one.jsonl", "too few to keep some"),
    "a corpus of nothing": (f"{OWN} --retrieval.corpus=empty.jsonl", "is empty"),
    "no index": (f"{OWN} --retrieval.corpus=none --retrieval.index=gone", "retrieval.index = 'gone'"),
    "an index of another corpus": (f"{OWN} --retrieval.index=other", "was built from another corpus"),
    "an index stemmed otherwise": (f"{OWN} --retrieval.index=index --retrieval.stem=false", "retrieval.stem = false"),
    "a damaged index": (f"{OWN} --retrieval.index=damaged", "is damaged"),
    "no script file": (f"{OWN} --warm_start.steps=5 --warm_start.data=gone.jsonl", "gone.jsonl"),
    "demonstrations with other tags": (
        f"{OWN} --warm_start.steps=5 --warm_start.data=tags.jsonl",
        "tags.jsonl:1: turns[0].text: is not a search, but an observation follows: write <search> query </search>",
    ),
    "no such model": (f"{OWN} --model.path=some/model", "is not a folder here"),
    "a quantized model": (f"{OWN} --model.path=model.gguf", "is a GGUF file, a quantized model for llama.cpp"),
    "a folder without a model": (f"{OWN} --model.path=nothing", "is a folder without config.json"),
    "a model without weights": (f"{OWN} --model.path=weightless", "no causal language model can be loaded"),
    "a model without a tokenizer": (f"{OWN} --model.path=speechless", "tokenizer"),
    "another model's tokenizer": (f"{OWN} --model.path=stranger", "so they do not fit"),
    "more tokens than positions": (f"{OWN} --protocol.max_total_tokens=99999", "the model has"),
    "a prompt too long": (
        f"{OWN} --protocol.max_total_tokens=32 --protocol.prompt={'xyz' * 40}{{question}}",
        "no room",
    ),
    "no such chat template": (f"{OWN} --model.chat_template=gone.jinja", "model.chat_template = 'gone.jinja'"),
    "a chat template that fails": (f"{OWN} --model.chat_template=bad.jinja", "drops the user's message"),
    "tools without a template": (f"{OWN} --protocol.preset=tools", "there is no chat template"),
}


@pytest.fixture(scope="module")
def place(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files to train on, and of their broken neighbours."""
    folder = tmp_path_factory.mktemp("place")
    for name, source in (("q.jsonl", "train.jsonl"), ("c.jsonl", "corpus.jsonl")):
        shutil.copy(home / source, folder / name)
    (folder / "one.jsonl").write_text('{"question": "Who?", "golden_answers": ["x"]}\n')
    (folder / "unanswered.jsonl").write_text('{"question": "Who?", "golden_answers": []}\n' * 3)
    (folder / "empty.jsonl").write_text("")
    (folder / "model.gguf").write_bytes(b"GGUF")
    turns = [{"text": "<query> a </query>", "observation": "<docs>b</docs>"}, {"text": "<answer> c </answer>"}]
    (folder / "tags.jsonl").write_text(json.dumps({"question": "Who?", "turns": turns}) + "\n")
    (folder / "bad.jinja").write_text("nothing")
    (folder / "nothing").mkdir()
    index = BM25Retriever.build(tuple(passages(folder / "c.jsonl", on_skip=lambda _: None)))
    for name in ("index", "damaged"):
        index.save(folder / name)
    next(path for path in (folder / "damaged").iterdir() if path.name != "manifest.json").write_bytes(b"?")
    (folder / "d.jsonl").write_text(json.dumps({"id": "1", "contents": "a\nb"}) + "\n")
    BM25Retriever.build(tuple(passages(folder / "d.jsonl", on_skip=lambda _: None))).save(folder / "other")
    for name in ("model", "weightless", "speechless", "stranger"):
        shutil.copytree(home / "raw", folder / name)
    (folder / "weightless" / "model.safetensors").unlink()
    for path in [*(folder / "speechless").glob("tokenizer*"), *(folder / "speechless").glob("special*")]:
        path.unlink()
    config = json.loads((folder / "stranger" / "config.json").read_text())
    (folder / "stranger" / "config.json").write_text(json.dumps(config | {"vocab_size": 20}))
    return folder


@pytest.fixture(autouse=True)
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def refusal(words: str, then: Callable[[Config], Any]) -> str:
    with pytest.raises(HoldfastError) as caught:
        then(load(None, [*SMALL, *words.split(" ")]))
    return str(caught.value)


@pytest.mark.parametrize("case", REFUSED)
def test_the_dry_run_and_the_run_refuse_the_same(case: str, tmp_path: Path) -> None:
    words, sentence = REFUSED[case]
    dry = refusal(words, prepare)
    assert sentence in dry
    assert refusal(words, lambda config: run.train(config, tmp_path / "run")) == dry
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "words",
    [
        "--train.steps=5",
        f"{CUSTOM}holdfast.methods.penalties:NLL --train.optimizer_steps_per_rollout=1",
        OWN,
        f"{OWN} --retrieval.index=index",
        f"{OWN} --retrieval.corpus=none --retrieval.index=index",
        f"{OWN} --retrieval.corpus=none --retrieval.url=http://127.0.0.1:9/retrieve",
        f"{OWN} --protocol.max_total_tokens=190",
    ],
)
def test_what_works_is_not_refused(words: str) -> None:
    notes = prepare(load(None, [*SMALL, *words.split(" ")])).notes
    assert not any(note.startswith("world") for note in notes)  # passages are named by their own file


@pytest.mark.parametrize(
    ("words", "package", "extra"),
    [
        ("--train.steps=5", "Stemmer", "train"),
        (f"{OWN} --model.lora_rank=4", "peft", "peft"),
        ("--track.wandb=p", "wandb", "track"),
    ],
)
def test_a_package_that_is_missing_is_named(
    words: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(name: str) -> Any:
        return None if name == package else SimpleNamespace()

    monkeypatch.setattr(checks, "find_spec", find)
    monkeypatch.setattr("holdfast.base.importing.find_spec", find)
    assert f"{package} is not installed" in refusal(words, prepare)
    assert f"[{extra}]" in refusal(words, prepare)


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "PyTorch sees no GPU here" in refusal("--run.device=cuda", prepare)


def test_a_warm_start_without_steps_is_refused(tmp_path: Path) -> None:
    said = refusal("--train.steps=5", lambda config: prepare(config, stage="warm-start"))
    assert "there is no warm start to make" in said
    assert refusal("--train.steps=5", lambda config: start.warm_start_only(config, tmp_path / "run")) == said
