"""Rejection sampling: episodes of the starting policy, the right ones learned from by supervised learning.

The control for reinforcement learning on the same budget: it samples exactly as many episodes, of the same questions,
as a run of the recipe would, and makes as many optimizer steps. What it cannot do is learn from what went wrong.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast import run_folder
from holdfast.config import Config
from holdfast.data import Example, Sampler
from holdfast.errors import CheckpointError
from holdfast.jsonl import write_jsonl
from holdfast.language_model import LanguageModel, set_up_torch
from holdfast.listener import Listener
from holdfast.loading import load_questions, load_retrievers, make_agent
from holdfast.rollout.agent import SearchAgent
from holdfast.run_folder import KEPT, MODEL
from holdfast.train.checkpoint import save_whole_model
from holdfast.train.checks import validate_before_training
from holdfast.train.rollouts import roll_out, score
from holdfast.train.start import starting_policy
from holdfast.train.warm_start import Episode, Supervision, warm_start
from holdfast.trajectory import Group

_Row = dict[str, Any]


def rejection_sampling(config: Config, run_dir: Path, *, listener: Listener | None = None) -> Path:
    """Sample, keep what is correct, learn from it; the folder of the saved model.

    `train.steps` batches of `train.questions` questions with `train.group_size` samples each; then as many optimizer
    steps as the recipe's run would make, at `train.lr`. In a folder that was begun before, sampling goes on after its
    last whole step. When nothing is correct, the saved model is the start.
    """
    validate_before_training(config)
    listener = listener or Listener()
    if (run_dir / KEPT).exists():
        _refuse_other(run_folder.read_recipe(run_dir), config, run_dir)
    else:
        run_folder.begin(run_dir, config)
        (run_dir / KEPT).touch()  # the mark of what this folder is, by which a resume knows it
    with run_folder.writing(run_dir):
        set_up_torch(config)
        listener.stage("questions and index")
        questions, retrievers = load_questions(config, note=listener.note), load_retrievers(config, note=listener.note)
        policy = starting_policy(config, questions, retrievers.train, listener)
        agent = make_agent(config, policy, retrievers.train)
        episodes = _sample(config, agent, questions.train, run_dir / KEPT, listener)
        if not episodes:
            sampled = config.train.steps * config.train.questions * config.train.group_size
            listener.note(
                f"none of the {sampled} sampled episodes was right, so there was nothing to learn from: the saved "
                "model is the one it started from. Begin with a better one ([warm_start])"
            )
        _learn(config, policy, episodes, listener)
        save_whole_model(run_dir / MODEL, policy)
    return run_dir / MODEL


def _sample(
    config: Config, agent: SearchAgent, questions: Sequence[Example], path: Path, listener: Listener
) -> list[Episode]:
    """The correct rollouts of all steps; those that `path` holds already are not sampled again."""
    train, sampler, done = config.train, Sampler(questions, seed=config.run.seed), whole_steps(path)
    listener.stage("sampling", train.steps)
    for step in range(train.steps):
        examples = sampler.next(train.questions)
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
        listener.advance(step + 1, {"kept": sum(map(len, done.values()))})
    return [
        Episode(tuple(row["token_ids"]), tuple(map(bool, row["loss_mask"])))
        for step in range(train.steps)
        for row in done[step]
    ]


def _learn(config: Config, policy: LanguageModel, episodes: Sequence[Episode], listener: Listener) -> None:
    train = config.train
    steps = train.steps * train.optimizer_steps_per_rollout if episodes else 0
    listener.stage(f"learning from {len(episodes)} right episodes", steps)
    supervision = Supervision(
        steps=steps,
        batch=max(train.questions * train.group_size // train.optimizer_steps_per_rollout, 1),
        lr=train.lr,
        seed=config.run.seed,
        micro_batch_tokens=train.micro_batch_tokens,
    )
    for row in warm_start(policy, episodes, supervision):
        listener.advance(int(row["step"]), {"loss": row["loss"]})


def whole_steps(path: Path) -> dict[int, list[_Row]]:
    """step -> its right episodes, of the steps that were written to their end; the rest is cut off the file."""
    steps: dict[int, list[_Row]] = {}
    open_rows: list[_Row] = []
    kept: list[_Row] = []
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            break
        open_rows.append(row)
        if "sampled" in row:
            steps[row["step"]] = open_rows[:-1]
            kept += open_rows
            open_rows = []
    if path.exists():
        write_jsonl(path, kept)
    return steps


def _append(path: Path, step: int, groups: Sequence[Group]) -> list[_Row]:
    """The right episodes of a step, each text once per question."""
    right: dict[tuple[int, ...], _Row] = {}
    for group in groups:
        for t in group.trajectories:
            if t.correct:
                row = {"step": step, "id": t.example_id, "token_ids": list(t.token_ids)}
                right.setdefault(t.token_ids, row | {"loss_mask": list(map(int, t.loss_mask))})
    rows = list(right.values())
    sampled = sum(len(group.trajectories) for group in groups)
    with path.open("a", encoding="utf-8") as file:
        for row in [*rows, {"step": step, "sampled": sampled, "kept": len(rows)}]:
            file.write(json.dumps(row) + "\n")
    return rows


def _refuse_other(begun: Config, config: Config, run_dir: Path) -> None:
    if begun.model_dump(exclude={"run"}) != config.model_dump(exclude={"run"}) or begun.run.seed != config.run.seed:
        raise CheckpointError(
            f"{run_dir} holds episodes that were sampled under another recipe; give another --run.name, or the "
            "settings it was begun with"
        )
