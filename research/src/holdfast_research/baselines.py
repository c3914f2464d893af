"""Baselines for reinforcement learning: supervised learning on short answers, alone or after retrieved passages, and
rejection sampling. Each trains a recipe's start and saves a model in the run folder.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from holdfast.agent.agent import SearchAgent
from holdfast.agent.protocol import bare_question, bare_question_with_passages
from holdfast.agent.trajectory import Group
from holdfast.base import run_folder
from holdfast.base.errors import CheckpointError, DataError
from holdfast.base.jsonl import write_jsonl
from holdfast.base.run_folder import MODEL
from holdfast.base.scoring import sub_em
from holdfast.model.checkpoint import save_whole_model
from holdfast.model.language_model import LanguageModel
from holdfast.model.text.tokens import encode, foreign
from holdfast.recipe import Config, absolute, dump, load_run
from holdfast.retrieval.types import Hit, Retriever
from holdfast.tasks.machine import set_up_torch
from holdfast.tasks.opening import load_protocol, make_agent
from holdfast.tasks.questions import Example, QuestionOrder
from holdfast.tasks.task_set import Questions
from holdfast.tasks.world.facts import build_world
from holdfast.tasks.world.model import interchangeable_tokens
from holdfast.train.listener import Listener
from holdfast.train.prepare import Prepared, prepare
from holdfast.train.rollouts import roll_out, score
from holdfast.train.start import starting_policy
from holdfast.train.warm_start import Demonstration, augment_by_renaming, warm_start

CORRECT = "correct.jsonl"
"""In the run folder of rejection sampling: the correct rollouts it learns from."""
_QUERIES = 256
"""Queries per call of the retriever."""

_Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How long a model learns short answers, and how fast."""

    steps: int
    """Optimizer steps."""
    batch_size: int
    """Examples per optimizer step."""
    lr: float
    """Peak learning rate."""


# ---- supervised learning on short answers


def sft(config: Config, run_dir: Path, course: Course, *, passages: bool, listener: Listener | None = None) -> Path:
    """Teach a recipe's model to answer the training questions with their first golden answer; the saved model's folder.

    `passages` puts what the retriever finds for the question into the prompt (RAG-SFT), and leaves out questions whose
    passages hold no golden answer: they would teach the model to make one up. The recipe's own warm start is not made.

    Raises:
        ConfigError: The recipe cannot be trained, or the folder holds a run.
        DataError: No question is left.
    """
    listener = listener or Listener()
    warm = config.warm_start.model_copy(update={"steps": 0, "data": None})
    world = config.world.model_copy(update={"scripts": config.world.scripts.model_copy(update={"plain_steps": 0})})
    born = config.model_copy(update={"warm_start": warm, "world": world})
    prepared = prepare(born)
    config = absolute(config)
    run_folder.begin(run_dir, dump(config))
    with run_folder.writing(run_dir):
        questions, retriever, policy = _open(prepared, listener)
        most = course.steps * course.batch_size
        examples = short_answers(config, questions.train, retriever if passages else None, policy.tokenizer, most)
        limit = config.protocol.max_total_tokens
        examples = [example for example in examples if len(example.token_ids) <= limit]
        if not examples:
            raise DataError(f"every example is longer than protocol.max_total_tokens = {limit}; raise it")
        if passages and config.model.path == "tiny":  # a tiny model learns the facts by heart, and then reads nothing
            pools = interchangeable_tokens(build_world(config.world), policy.tokenizer)
            examples = augment_by_renaming(examples, pools, most, config.warm_start.seed)
        listener.stage("supervised learning", course.steps)
        _learn(policy, examples, course, config.warm_start.seed, config, listener)
        save_whole_model(run_dir / MODEL, policy)
    return run_dir / MODEL


def short_answers(
    config: Config, questions: Sequence[Example], retriever: Retriever | None, tokenizer: Any, most: int
) -> list[Demonstration]:
    """At most `most` questions, each with its first golden answer: only the answer and the end of the sequence are
    learned.

    With a retriever the passages it finds come before the question, and a question whose passages hold no golden answer
    is left out. Raises `DataError` when none is left.
    """
    protocol = load_protocol(config)
    examples = QuestionOrder(questions, config.warm_start.seed).next(most)
    prompts = [(bare_question(example.question), example) for example in examples]
    if retriever is not None:
        passages = _passages(retriever, examples, protocol.topk)
        prompts = [
            (bare_question_with_passages(example.question, hits), example)
            for example, hits in zip(examples, passages, strict=True)
            if sub_em(" ".join(hit.document.contents for hit in hits), example.golden_answers)
        ]
        if not prompts:
            raise DataError(
                f"none of {len(examples)} training questions has a golden answer in the {protocol.topk} passages found "
                "for it, so there is nothing to learn; check that [retrieval] and [data] belong together"
            )
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    demonstrations = []
    for text, example in prompts:
        prompt = protocol.template.prompt(tokenizer, foreign(text))
        answer = [*encode(tokenizer, foreign(f" {example.golden_answers[0].strip()}")), *end]
        mask = (*[False] * len(prompt), *[True] * len(answer))
        demonstrations.append(Demonstration((*prompt, *answer), mask))
    return demonstrations


def _passages(retriever: Retriever, examples: Sequence[Example], k: int) -> list[list[Hit]]:
    queries = [example.question for example in examples]
    return [
        hits
        for start in range(0, len(queries), _QUERIES)
        for hits in retriever.search(queries[start : start + _QUERIES], k)
    ]


# ---- rejection sampling


def rejection_sampling(config: Config, run_dir: Path, *, listener: Listener | None = None) -> Path:
    """Sample rollouts of the starting policy, learn from the correct ones by supervised learning; the saved model's
    folder.

    The control for reinforcement learning on the same budget: as many rollouts of the same questions, `train.steps`
    batches of `train.questions` × `train.group_size`, and as many optimizer steps at `train.lr`. It cannot learn from
    incorrect rollouts. In a folder that holds some of them already, sampling continues after the last whole step. When
    no rollout is correct, the saved model is the start.

    Raises:
        ConfigError: The recipe cannot be trained.
        CheckpointError: The folder holds rollouts of another recipe.
    """
    prepared = prepare(config)
    config, listener = absolute(config), listener or Listener()
    if (run_dir / CORRECT).exists():
        _refuse_other(load_run(run_dir), config, run_dir)
    else:
        run_folder.begin(run_dir, dump(config))
        (run_dir / CORRECT).touch()
    with run_folder.writing(run_dir):
        questions, retriever, policy = _open(prepared, listener)
        agent = make_agent(config, policy, retriever)
        correct = _sample(config, agent, questions.train, run_dir / CORRECT, listener)
        train = config.train
        rollouts = train.questions * train.group_size
        if not correct:
            listener.note(
                f"none of the {train.steps * rollouts} sampled rollouts was correct, so there was nothing to learn "
                "from: the saved model is the one it started from. Begin with a better one ([warm_start])"
            )
        course = Course(
            steps=train.steps * train.optimizer_steps_per_rollout if correct else 0,
            batch_size=max(rollouts // train.optimizer_steps_per_rollout, 1),
            lr=train.lr,
        )
        listener.stage(f"learning from {len(correct)} correct rollouts", course.steps)
        _learn(policy, correct, course, config.run.seed, config, listener)
        save_whole_model(run_dir / MODEL, policy)
    return run_dir / MODEL


def _sample(
    config: Config, agent: SearchAgent, questions: Sequence[Example], path: Path, listener: Listener
) -> list[Demonstration]:
    """The correct rollouts of all steps; those of steps that `path` holds are not sampled again."""
    train, question_order, done = config.train, QuestionOrder(questions, seed=config.run.seed), whole_steps(path)
    listener.stage("sampling", train.steps)
    for step in range(train.steps):
        examples = question_order.next(train.questions)
        if step in done:
            continue
        groups, _ = roll_out(
            agent,
            examples,
            size=train.group_size,
            seed=(config.run.seed, step),
            max_failed=config.run.max_failed_fraction,
        )
        done[step] = _append(path, step, score(groups, examples))
        listener.advance(step + 1, {"correct": sum(map(len, done.values()))})
    return [
        Demonstration(tuple(row["token_ids"]), tuple(map(bool, row["loss_mask"])))
        for step in range(train.steps)
        for row in done[step]
    ]


def whole_steps(path: Path) -> dict[int, list[_Row]]:
    """Step -> its correct rollouts, for steps that were written to their end; the rest is cut off the file."""
    steps: dict[int, list[_Row]] = {}
    open_rows: list[_Row] = []
    whole: list[_Row] = []
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            break
        open_rows.append(row)
        if "sampled" in row:
            steps[row["step"]] = open_rows[:-1]
            whole += open_rows
            open_rows = []
    if path.exists():
        write_jsonl(path, whole)
    return steps


def _append(path: Path, step: int, groups: Sequence[Group]) -> list[_Row]:
    """The correct rollouts of a step, each text once per question."""
    correct: dict[tuple[int, ...], _Row] = {}
    for group in groups:
        for t in group.trajectories:
            if t.correct:
                row = {"step": step, "id": t.example_id, "token_ids": list(t.token_ids)}
                correct.setdefault(t.token_ids, row | {"loss_mask": list(map(int, t.loss_mask))})
    rows = list(correct.values())
    sampled = sum(len(group.trajectories) for group in groups)
    with path.open("a", encoding="utf-8") as file:
        for row in [*rows, {"step": step, "sampled": sampled, "correct": len(rows)}]:
            file.write(json.dumps(row) + "\n")
    return rows


def _refuse_other(begun: Config, config: Config, run_dir: Path) -> None:
    if begun.model_dump(exclude={"run"}) != config.model_dump(exclude={"run"}) or begun.run.seed != config.run.seed:
        raise CheckpointError(
            f"{run_dir} holds rollouts that were sampled with another recipe; give another --run.name, or the "
            "settings it was begun with"
        )


# ---- shared


def _open(prepared: Prepared, listener: Listener) -> tuple[Questions, Retriever, LanguageModel]:
    config = prepared.config
    set_up_torch(config)
    for note in prepared.notes:
        listener.note(note)
    if not config.model.is_tiny:
        torch.manual_seed(config.warm_start.seed)  # fresh LoRA weights are the same for every run.seed
    policy = starting_policy(prepared, listener)
    torch.manual_seed(config.run.seed)
    return prepared.questions, prepared.retrievers.train, policy


def _learn(
    policy: LanguageModel,
    examples: Sequence[Demonstration],
    course: Course,
    seed: int,
    config: Config,
    listener: Listener,
) -> None:
    changes = {"steps": course.steps, "batch_size": course.batch_size, "lr": course.lr, "seed": seed}
    settings = config.warm_start.model_copy(update=changes)
    for row in warm_start(policy, examples, settings, micro_batch_tokens=config.train.micro_batch_tokens):
        listener.advance(int(row["step"]), {"loss": row["loss"]})
