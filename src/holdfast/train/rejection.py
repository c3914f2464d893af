"""Rejection sampling: episodes of the starting policy, the right ones learned from by supervised learning.

The control for reinforcement learning on the same budget: it samples exactly as many episodes, of the same questions,
as a run of the recipe would, and makes as many optimizer steps. What it cannot do is learn from what went wrong.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.config import Config
from holdfast.data import Sampler
from holdfast.errors import CheckpointError
from holdfast.jsonl import write_jsonl
from holdfast.train.checkpoint import STAGE_MODEL, save_whole_model
from holdfast.train.episodes import training_rollouts
from holdfast.train.events import Observer, Silent
from holdfast.train.folder import RunFolder
from holdfast.train.session import open_workspace
from holdfast.train.start import starting_policy
from holdfast.train.trainer import set_up_torch
from holdfast.train.warm_start import Episode, warm_start
from holdfast.trajectory import Group

KEPT = "kept.jsonl"
"""Of each step its right episodes, then a row `{"step", "sampled", "kept"}`; without that it was not finished."""

_Row = dict[str, Any]


def rejection_sampling(config: Config, run_dir: Path, *, observer: Observer | None = None) -> Path:
    """Sample, keep what is right, learn from it; the folder of the saved model.

    `train.steps` batches of `train.questions` questions with `train.group_size` samples each; then as many optimizer
    steps as the recipe's run would make, at `train.lr`. In a folder that was begun before, sampling goes on after its
    last whole step. When nothing is right, the saved model is the start.
    """
    observer = observer or Silent()
    folder = RunFolder(run_dir)
    if (run_dir / KEPT).exists():
        _refuse_other(folder.config(), config, run_dir)
    else:
        folder.begin(config)
        (run_dir / KEPT).touch()  # the mark of what this folder is, by which --resume knows it
    set_up_torch(config)
    with folder.writing():
        observer.stage("questions and index")
        workspace = open_workspace(config, note=observer.note)
        policy = starting_policy(workspace, observer)
        sampler, done = Sampler(workspace.train, seed=config.run.seed), whole_steps(run_dir / KEPT)
        observer.stage("sampling", config.train.steps)
        for step in range(config.train.steps):
            examples = sampler.next(config.train.questions)
            if step in done:
                continue
            groups = training_rollouts(policy, examples, workspace, seed=(config.run.seed, step))
            done[step] = _append(run_dir / KEPT, step, groups)
            observer.advance(step + 1, {"kept": sum(map(len, done.values()))})
        episodes = [
            Episode(tuple(row["token_ids"]), tuple(map(bool, row["loss_mask"])))
            for step in range(config.train.steps)
            for row in done[step]
        ]
        if not episodes:
            sampled = config.train.steps * config.train.questions * config.train.group_size
            observer.note(
                f"none of the {sampled} sampled episodes was right, so there was nothing to learn from: the saved "
                "model is the one it started from. Begin with a better one ([warm_start])"
            )
        own = config.train
        steps = own.steps * own.optimizer_steps_per_rollout if episodes else 0
        observer.stage(f"learning from {len(episodes)} right episodes", steps)
        for row in warm_start(
            policy.model,
            episodes,
            pad_token_id=policy.pad_token_id,
            steps=steps,
            batch=max(own.questions * own.group_size // own.optimizer_steps_per_rollout, 1),
            lr=own.lr,
            seed=config.run.seed,
            device=workspace.device,
            micro_batch_tokens=own.micro_batch_tokens,
            autocast_dtype=policy.autocast_dtype,
        ):
            observer.advance(int(row["step"]), {"loss": row["loss"]})
        save_whole_model(run_dir / STAGE_MODEL, policy)
    return run_dir / STAGE_MODEL


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


def _refuse_other(there: Config, wanted: Config, run_dir: Path) -> None:
    if there.model_dump(exclude={"run"}) != wanted.model_dump(exclude={"run"}) or there.run.seed != wanted.run.seed:
        raise CheckpointError(
            f"{run_dir} holds episodes that were sampled under another recipe; give another --run.name, or the "
            "settings it was begun with"
        )
