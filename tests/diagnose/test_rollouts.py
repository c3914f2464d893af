"""Rollouts of every trainer: each form is read as the same rollout, and texts show what they should and no more."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.diagnose.readers import read_log
from holdfast.diagnose.readers.rollouts import SampledRollout, SampledTurn
from holdfast.diagnose.readers.rollouts import files as rollout_files
from holdfast.diagnose.readers.rollouts.conversation import answer_of, conversation_of
from holdfast.diagnose.readers.rollouts.files import MAX_ROLLOUTS, Rollouts, rollouts_at
from holdfast.diagnose.text_groups import copies, mixed_groups
from holdfast.diagnose.texts import text_findings, thought_of

ASKED = "Where is Mora?"
WROTE = "<think>I look.</think>\n<search> Mora </search>"
SAW = "<information>Mora is in Dalarna.</information>"
SAID = "<answer> Dalarna </answer>"
TEXT = f"{WROTE}\n{SAW}\n{SAID}"
CHAT_PROMPT = [{"role": "system", "content": "You help."}, {"role": "user", "content": ASKED}]
CHAT = [
    {"role": "assistant", "content": WROTE},
    {"role": "tool", "content": SAW},
    {"role": "assistant", "content": SAID},
]
TEMPLATED = f"<|im_start|>user\nAnswer it. Question: {ASKED}<|im_end|>\n<|im_start|>assistant\n"
NODES = [{"parent": k - 1 if k else None, "message": m, "advantages": [0.5]} for k, m in enumerate(CHAT_PROMPT + CHAT)]
TRACE = {"nodes": NODES, "rewards": {"em": {"score": 1.0, "weight": 1.0}}, "stop_condition": "max_turns_reached"}
PANEL = """\
╭──────────────────────────── Step 4 ────────────────────────────╮
│ ┏━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━┳━━━━━━━━━━━┓ │
│ ┃ Prompt         ┃ Completion             ┃   em ┃ Advantage ┃ │
│ ┡━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━╇━━━━━━━━━━━┩ │
│ │ Where is Mora? │ <think>I look.</think> │ 1.00 │      0.50 │ │
│ │                │ <search> Mora          │      │           │ │
│ │                │ </search>              │      │           │ │
│ │                │ <information>Mora is   │      │           │ │
│ │                │ in                     │      │           │ │
│ │                │ Dalarna.</information> │      │           │ │
│ │                │ <answer> Dalarna       │      │           │ │
│ │                │ </answer>              │      │           │ │
│ ├────────────────┼────────────────────────┼──────┼───────────┤ │
│ │ cut off        │ here                   │ 0.00 │      0.10 │ │
"""

FILES: dict[str, tuple[str, Any]] = {
    "trl": ("printed.log", f"{{'loss': 0.1}}\n{PANEL}"),
    "swift": (
        "completions.jsonl",
        {"step": ["4"], "prompt": [ASKED], "completion": [TEXT], "em": [1.0], "advantages": [0.5]},
    ),
    "verl": (
        "rollouts/4.jsonl",
        {"input": TEMPLATED, "output": TEXT, "score": 1.0, "gts": "Dalarna", "advantage": 0.5},
    ),
    "skyrl": (
        "dumped_evals/global_step_4_evals/nq.jsonl",
        {"input_prompt": ASKED, "output_response": TEXT, "score": 1.0, "advantage": 0.5, "stop_reason": "stop"},
    ),
    "prime-rl": ("rollouts/step_4/train/all/traces.jsonl", {"id": "a", "traces": [TRACE], "ok": True}),
    "prime-rl .6": (
        "rollouts/step_4/train_rollouts.jsonl",
        {"example_id": 1, "prompt": CHAT_PROMPT, "completion": CHAT, "reward": 1.0, "advantage": 0.5},
    ),
    "miles": (
        "trajectory/4.jsonl",
        {"group_index": 0, "prompt": ASKED, "messages": CHAT_PROMPT + CHAT, "reward": 1.0, "advantage": 0.5},
    ),
    "tinker": (
        "iteration_000004/train_logtree.json",
        {"root": {"children": [{"children": [{"data": {"type": "conversation", "messages": CHAT_PROMPT + CHAT}}]}]}},
    ),
    "rllm": (
        "episodes/train_step_4_epoch_0/episode_hash1.json",
        {
            "episode_id": "a",
            "training_step": 4,
            "trajectories": [
                {
                    "reward": 1.0,
                    "advantage": 0.5,
                    "steps": [{"chat_completions": CHAT_PROMPT + CHAT[:2], "model_response": SAID}],
                }
            ],
        },
    ),
    "nemo-rl": (
        "train_data_step4.jsonl",
        {"content": [[ASKED, WROTE, SAW, SAID]], "rewards": [1.0], "advantages": [0.5], "input_lengths": [9]},
    ),
    "art": ("trajectories/train/0004.jsonl", {"messages": CHAT_PROMPT + CHAT, "reward": 1.0, "advantage": 0.5}),
    "anybody": ("mine.jsonl", {"step": 4, "question": ASKED, "response": TEXT, "reward": 1.0, "advantage": 0.5}),
}


def put(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("form", FILES)
def test_every_form_is_the_same_rollout(tmp_path: Path, form: str) -> None:
    path = put(tmp_path, *FILES[form])
    (rollout,) = rollouts_at(path if path.suffix == ".log" else tmp_path).rollouts
    assert (rollout.step, rollout.question, rollout.answer) == (4, ASKED, "Dalarna")
    first, last = rollout.turns
    assert (first.text.split(), last.text.strip()) == (WROTE.split(), SAID)
    assert first.query == "Mora" and first.observation == SAW and not last.observation
    if form != "tinker":  # whose tree has no rewards
        assert (rollout.reward, rollout.advantage) == (1.0, 0.5)
    assert rollout.status == ("truncated" if form == "prime-rl" else "ok") and rollout.held_out == (form == "skyrl")


def test_parquet_whose_rows_repeat_and_one_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    old = {"step": "1", "prompt": ASKED, "completion": TEXT, "em": 1.0, "format": 0.5, "advantage": 0.5}
    for step in (1, 2):
        rows = [{**old, "step": str(step)}] + [{**old, "step": "2", "completion": SAID}] * (step - 1)
        (tmp_path / "completions").mkdir(exist_ok=True)
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / f"completions/completions_0000{step}.parquet")
    assert [(one.step, one.reward) for one in rollouts_at(tmp_path).rollouts] == [(1, 1.5), (2, 1.5)]
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    put(tmp_path, *FILES["anybody"])
    read = rollouts_at(tmp_path)
    assert len(read.rollouts) == 1 and "[data]" in read.notes[0]


def test_what_cannot_be_read_is_one_sentence_and_the_rest_is_read(tmp_path: Path) -> None:
    row = json.dumps({"step": 1, "prompt": "q", "completion": "a"})
    put(tmp_path, "mine.jsonl", f'{row}\n{row}\n7\n{row}\n{{"step": 1, "prom')
    put(tmp_path, "rollout_data/3.pt", "never opened")
    put(tmp_path, "notes.json", {"a": 1})
    read = rollouts_at(tmp_path)
    assert len(read.rollouts) == 3
    pickles, other, cut, rewards = read.notes
    assert "3.pt" in pickles and "line 3" in other and "line 5" in cut and "--name reward=" in rewards
    given = rollouts_at(put(tmp_path / "b", "x.jsonl", {"q": "Where?", "said": "x", "won": 2}), {"completion": "said"})
    assert given.rollouts[0].turns[0].text == "x" and given.rollouts[0].reward is None


def test_too_many_rollouts_are_thinned_by_steps(tmp_path: Path) -> None:
    rows = (json.dumps({"step": k // 8, "prompt": "q", "completion": str(k), "reward": 1}) for k in range(24_000))
    read = rollouts_at(put(tmp_path, "many.jsonl", "\n".join(rows)))
    steps = sorted({rollout.step for rollout in read.rollouts})
    assert MAX_ROLLOUTS / 4 < len(read.rollouts) <= MAX_ROLLOUTS and steps[0] == 0 and steps[-1] == 2999
    assert max(b - a for a, b in pairwise(steps)) < 10 and "24,000" in read.notes[0]


def test_a_folder_of_rollouts_is_a_log_and_beside_a_log_is_not(tmp_path: Path) -> None:
    for step in range(1, 7):
        rows = [{"input": TEMPLATED, "output": TEXT, "score": float(k < step), "step": step} for k in range(6)]
        put(tmp_path, f"rollouts/{step}.jsonl", "\n".join(map(json.dumps, rows)))
    log = read_log(tmp_path)
    assert log.host == "verl" and log.series["reward/mean"].values.round(2).tolist() == [0.17, 0.33, 0.5, 0.67, 0.83, 1]
    put(tmp_path, "run.log", "\n".join(f"step:{k} - critic/score/mean:0.25 - actor/grad_norm:1.0" for k in range(1, 9)))
    assert read_log(tmp_path).series["reward/mean"].values.tolist() == [0.25] * 8
    done = CliRunner().invoke(app, ["diagnose", str(tmp_path)])
    assert "identical rollouts have different rewards" in " ".join(done.output.split()) and done.exit_code == 0


# ---- what texts show


def made(step: int, k: int, *turns: SampledTurn, **more: Any) -> SampledRollout:
    turns = turns or (SampledTurn(text=f"<think>{THOUGHT} {k}</think><search>x</search>", observation=SAW, hits=None),)
    return SampledRollout(step=step, question=f"q{k}", turns=turns, reward=float(k % 2), **more)


THOUGHT = "First I find out where the lake is that the question asks about, then who lives beside it and since when."
LOOP = " ".join(["I search again."] * 200)


def turn(text: str, observation: str = SAW) -> tuple[SampledTurn, ...]:
    return (SampledTurn(text=text, observation=observation, query="x", hits=None),)


ILL: dict[str, Callable[[SampledRollout], SampledRollout]] = {
    "tool_error": lambda r: replace(
        r, turns=turn("<search>x</search>", "<information>TimeoutError: 30 s</information>")
    ),
    "empty": lambda r: replace(r, turns=turn("<search>x</search>", "<result>No results found.</result>")),
    "malformed": lambda r: replace(r, turns=turn('<tool_call>{"name": "search", </tool_call>')),
    "repeats": lambda r: replace(r, turns=turn(LOOP)),
    "blank": lambda r: replace(r, turns=(SampledTurn(text="!!!!!!!!", hits=None),)),
    "same": lambda r: replace(
        r, turns=(SampledTurn(text="<search>x</search>", observation=SAW, query=f"{r.step} {r.question}", hits=None),)
    ),
    "copied": lambda r: replace(r, prompt="For example, <answer> Beijing </answer>.", answer="Beijing"),
    "language": lambda r: replace(r, turns=turn("我先查一下这个湖在哪里，然后再回答问题。")),
    "unsearched": lambda r: replace(r, turns=(SampledTurn(text="<answer>x</answer>", hits=None),), reward=-5.0),
    "noisy": lambda r: replace(r, question="same", turns=turn(f"<search>{r.step}</search>")),
    "judge": lambda r: replace(r, answer="x", numbers={"reward/judge": 1.0, "reward/em": 0.0}),
    "thought": lambda r: replace(r, turns=turn("<think>ok</think><search>x</search>")) if r.step > 8 else r,
}


@pytest.mark.parametrize("kind", [None, *ILL])
def test_what_texts_show(kind: str | None) -> None:
    rollouts = [made(step, k) for step in range(1, 17) for k in range(8)]
    if kind is not None:
        rollouts = [ILL[kind](r) if k % 2 or kind in ("noisy", "thought") else r for k, r in enumerate(rollouts)]
    found = text_findings(rollouts)
    assert [one.kind for one in found] == ([] if kind is None else [kind])
    assert all(one.example and one.advice and one.step == (9 if kind == "thought" else 1) for one in found)
    assert text_findings(rollouts[:4]) == () and Rollouts().rollouts == ()
    if kind == "language":  # asked in that script
        assert text_findings([replace(r, question="这个湖在哪里，谁住在旁边？") for r in rollouts]) == ()


@pytest.mark.parametrize(
    "message",
    [
        {"content": "<think>maybe <answer>x</answer>, or <search> a </think><answer>Mora</answer>"},
        {"content": "maybe <search>x</search></think><answer>Mora</answer>"},
        {"content": "<answer>Mora</answer>", "reasoning": "maybe <answer>x</answer>, or <tool_call>{}</tool_call>"},
        {"content": "<answer>Mora</answer>", "reasoning_content": "maybe <search>x</search>"},
    ],
)
def test_a_thought_neither_answers_nor_searches(message: dict[str, Any]) -> None:
    _, _, turns = conversation_of([], [{"role": "user", "content": ASKED}, {"role": "assistant", **message}])
    assert (answer_of(turns), [turn.query for turn in turns]) == ("Mora", [None])
    assert thought_of(SampledRollout(step=1, question=ASKED, turns=turns)) > 5


# ---- copies within a group, and advantages that were taken over rollouts of other prompts

QUESTIONS, SIZE = 12, 4


def rollouts(*, copied: int = 0, shift: int = 0, over: str = "group", text: int = 300) -> list[SampledRollout]:
    """Groups of four. The first `copied` of each have one text; advantages are over blocks that begin `shift` late."""
    draw = random.Random(7)
    rewards = [float(draw.random() < 0.1 + 0.8 * (k // SIZE) / QUESTIONS) for k in range(QUESTIONS * SIZE)]
    rows = []
    for k, reward in enumerate(rewards):
        begin = (k - shift) // SIZE * SIZE + shift
        block = rewards if over == "batch" else [rewards[i % len(rewards)] for i in range(begin, begin + SIZE)]
        said = "x" * text if k % SIZE < copied else f"{k} " * (text // 2)
        rows.append(
            SampledRollout(
                step=3,
                question=f"q{k // SIZE}",
                turns=(SampledTurn(text=said, observation="", query=None),),
                reward=reward,
                advantage=reward - sum(block) / len(block) + (0.05 if over == "whitened" else 0.0),
            )
        )
    return rows


def test_long_texts_that_are_the_same_in_a_group_are_copies() -> None:
    found = copies(rollouts(copied=2))
    assert found is not None and (found.kind, found.step) == ("copies", 3) and "12 of 48" in found.summary
    assert copies(rollouts()) is None
    assert copies(rollouts(copied=4, text=20)) is None  # short answers are the same by right


def test_advantages_over_other_prompts_are_mixed_groups() -> None:
    found = mixed_groups(rollouts(shift=2))
    assert found is not None and found.kind == "mixed_groups"
    for sound in (rollouts(), rollouts(over="batch"), rollouts(over="whitened")):
        assert mixed_groups(sound) is None


def test_without_advantages_nothing_is_said_of_groups() -> None:
    bare = [SampledRollout(step=1, question="q", turns=(SampledTurn(text="x", observation="", query=None),))] * 9
    assert mixed_groups(bare) is None and copies(bare) is None


def test_what_runs_of_a_folder_share_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for k in range(9):
        (tmp_path / f"{k}.jsonl").write_text('{"step": 1, "data": {"actor/entropy": 0.5}}\n')
    looked_at: list[Path] = []
    monkeypatch.setattr(rollout_files, "_form_in", lambda path, given: looked_at.append(path))
    beside = rollout_files.rollouts_beside()
    assert [beside(tmp_path, str(k)).rollouts for k in range(9)] == [()] * 9
    assert len(looked_at) == 9
