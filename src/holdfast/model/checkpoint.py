"""Exact checkpoints: written whole or not at all, checked before they are trusted, never a pickle.

checkpoints/step-000040/model/            what `from_pretrained` loads
                        optimizer.safetensors
                        anchor.safetensors   the weights of the policy that the penalty compares with, if it is older
                        critic.safetensors, critic_optimizer.safetensors   of a run with a critic
                        state.json        step, sampler position, generators, best dev score
                        checksums.json    sha256 of every file above, written last
checkpoints/best/model/                   the policy that was best on dev, with state.json and checksums.json
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from holdfast.base.errors import CheckpointError
from holdfast.base.files import delete_left_partial, partial_folder
from holdfast.base.run_folder import (
    CHECKSUMS,
    MODEL,
    checkpoints_of,
    list_checkpoints,
    missing_file,
    read_checksums,
    step_folder,
    step_of,
)
from holdfast.base.stored import read_object
from holdfast.model.language_model import LanguageModel, save_model

_OPTIMIZER = "optimizer.safetensors"
_ANCHOR = "anchor.safetensors"
_CRITIC = "critic.safetensors"
CRITIC_OPTIMIZER = "critic_optimizer.safetensors"
_COUNT = "tensors"
"""What the file of an optimizer says of itself. It has none after a run without an optimizer step."""
_ANOTHER = "use another checkpoint, or a complete copy of this one"


def save_checkpoint(
    folder: Path,
    language_model: LanguageModel,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    anchor: Sequence[torch.Tensor] = (),
    critic: tuple[Mapping[str, torch.Tensor], torch.optim.Optimizer] | None = None,
    state: dict[str, Any],
) -> None:
    """Write `folder` whole, or leave what is there. Raises `CheckpointError` when the disk is full or not writable.

    `critic`: its trained weights by name, and its optimizer.
    """
    with _whole(folder) as partial:
        save_model(partial / "model", language_model)
        if optimizer is not None:
            _save_optimizer(partial / _OPTIMIZER, optimizer)
        if anchor:
            save_file({str(i): w.to("cpu", copy=True).contiguous() for i, w in enumerate(anchor)}, partial / _ANCHOR)
        if critic is not None:
            weights, critic_optimizer = critic
            copies = {name: w.detach().to("cpu", copy=True).contiguous() for name, w in weights.items()}
            save_file(copies, partial / _CRITIC)
            _save_optimizer(partial / CRITIC_OPTIMIZER, critic_optimizer)
        (partial / "state.json").write_text(json.dumps(state))


def save_whole_model(folder: Path, language_model: LanguageModel) -> None:
    """Write the model alone, as safely. `folder` itself is what `from_pretrained` loads."""
    with _whole(folder) as partial:
        save_model(partial, language_model)


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """A folder to write to. When the block ends well, it gets checksums, is flushed to disk and replaces `folder`.

    A killed process leaves the old folder or the new one, never a part of one. `recover_interrupted_saves` repairs what
    a kill between the last two renames leaves.
    """
    try:
        with partial_folder(folder) as partial:
            yield partial
            sums = {str(p.relative_to(partial)): _sha256(p) for p in sorted(partial.rglob("*")) if p.is_file()}
            (partial / CHECKSUMS).write_text(json.dumps(sums, indent=1))
            for path in [*partial.rglob("*"), partial]:
                _sync(path)
            old = _old(folder)
            shutil.rmtree(old, ignore_errors=True)
            if folder.exists():
                folder.rename(old)
            partial.rename(folder)
            _sync(folder.parent)
            shutil.rmtree(old, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(
            f"{folder} cannot be written ({reason}); what was saved before is untouched. Make room, or make it "
            "writable",
            hint="once it can be written, continue from the newest checkpoint: holdfast resume RUN",
        ) from error


def prune(run_dir: Path, keep: int) -> None:
    """Delete all but the newest `keep` step checkpoints."""
    for folder in list_checkpoints(run_dir)[keep:]:
        shutil.rmtree(folder)


def recover_interrupted_saves(run_dir: Path) -> None:
    """Repair what a killed process left: restore a folder between its two renames, delete partial folders."""
    for old in checkpoints_of(run_dir).glob(".*.old"):
        folder = old.with_name(old.name.removeprefix(".").removesuffix(".old"))
        if folder.exists():
            shutil.rmtree(old)
        else:
            old.rename(folder)
    delete_left_partial(checkpoints_of(run_dir))


def newest_whole(run_dir: Path, note: Callable[[str], None]) -> Path | None:
    """The newest checkpoint whose checksums match; None when there is no checkpoint at all.

    Newer damaged ones are noted and renamed to `refused-step-…`: as the newest by name they would make `prune` delete
    whole ones. Raises `CheckpointError` when all are damaged; then none is renamed.
    """
    refused: list[tuple[Path, str]] = []
    for folder in list_checkpoints(run_dir):
        problem = find_damage(folder)
        if problem is None:
            for damaged, why in refused:
                note(f"checkpoint {damaged.name} cannot be used: {why}. Using {folder.name} instead")
                aside = damaged.with_name(f"refused-{damaged.name}")
                shutil.rmtree(aside, ignore_errors=True)
                damaged.rename(aside)
            return folder
        refused.append((folder, problem))
    if refused:
        problems = "; ".join(f"{folder.name}: {problem}" for folder, problem in refused)
        raise CheckpointError(
            f"{run_dir} has no complete checkpoint ({problems}); start the run again with --overwrite"
        )
    return None


def find_damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, or None if it is whole. Reads all of it."""
    if (missing := missing_file(folder)) is not None:
        return missing
    for name, checksum in read_checksums(folder).items():
        if _sha256(folder / name) != checksum:
            return f"{name} does not match its checksum"
    return None


def checkpoint_of(run_dir: Path, which: str) -> Path:
    """A whole checkpoint: `last`, `best`, a step, a name in the run's `checkpoints/`, or a path. Reads all of it.

    Raises `CheckpointError` for a missing or damaged one.
    """
    if which == "last":
        folder = next((f for f in list_checkpoints(run_dir) if find_damage(f) is None), None)
        if folder is None:
            raise CheckpointError(
                f"{run_dir} has no complete checkpoint; let the run reach one (checkpoint.every) or finish"
            )
    elif (problem := find_damage(folder := _named(run_dir, which))) is not None:
        raise CheckpointError(f"{folder} cannot be used: {problem}; {_ANOTHER}")
    return folder


def model_folder(run_dir: Path, which: str) -> Path:
    """The model in `checkpoint_of`, or at a path that is a model alone, without checksums.

    Without steps, `last` is the model that a stage such as a warm start has saved. Raises `CheckpointError`.
    """
    if which == "last":
        if (run_dir / MODEL).is_dir() and not list_checkpoints(run_dir):
            return run_dir / MODEL
    elif (path := Path(which)) == _named(run_dir, which) and not (path / MODEL).is_dir():
        return path
    return checkpoint_of(run_dir, which) / MODEL


def _named(run_dir: Path, which: str) -> Path:
    """The folder of any checkpoint but `last`, whole or not; one of the run's comes before a path."""
    own = {folder.name: folder for folder in checkpoints_of(run_dir).glob("*")}
    name = step_folder(run_dir, int(which)).name if which.isdecimal() else which
    if (folder := own.get(name, own.get(f".{name}.old"))) is not None:
        return folder
    if which != "best" and not which.isdecimal() and Path(which).is_dir():
        return Path(which)
    steps = ", ".join(str(step_of(kept)) for kept in reversed(list_checkpoints(run_dir))) or "none yet"
    why = ", which evaluations on dev save: set eval.every before you train" if which == "best" else ""
    raise CheckpointError(
        f"{run_dir} has no checkpoint {which}{why}. Give last, best, a saved step ({steps}), a name in "
        f"{checkpoints_of(run_dir)}, or a path"
    )


def read_state(folder: Path, **needs: type) -> dict[str, Any]:
    """The state of a checkpoint, from its state.json, which must have the fields `needs`. Raises `CheckpointError`."""
    return read_object(folder / "state.json", CheckpointError, _ANOTHER, **needs)


def has_optimizer(folder: Path) -> bool:
    """Whether a run can continue from a checkpoint; `best` has only the policy."""
    return (folder / _OPTIMIZER).is_file()


def load_optimizer(folder: Path, optimizer: torch.optim.Optimizer, file: str = _OPTIMIZER) -> None:
    """Restore what `save_checkpoint` wrote, for the same parameters. Raises `CheckpointError` for anything else."""
    saved: dict[str, dict[str, torch.Tensor]] = {}
    tensors, promised = _load(folder / file)
    for key, value in tensors.items():
        name, _, part = key.rpartition("/")
        saved.setdefault(name, {})[part] = value
    if promised.get(_COUNT) != str(len(tensors)):
        raise CheckpointError(f"{folder / file} lacks moments of the optimizer, so it is damaged; {_ANOTHER}")
    for parameter, name in _parameter_names(optimizer).items():
        moments = saved.get(name, {})
        for part, value in moments.items():
            if value.dim() and value.shape != parameter.shape:
                raise CheckpointError(f"{folder / file} is the optimizer of another model; {_ANOTHER}")
            # A fused optimizer reads the count of steps where the parameter is, any other on the CPU.
            moves = value.dim() or optimizer.defaults.get("fused")
            moments[part] = value.to(parameter.device) if moves else value
        if moments:
            optimizer.state[parameter] = moments


def load_anchor(folder: Path) -> list[torch.Tensor]:
    """The anchor's weights as `save_checkpoint` got them, on the CPU; empty if there was none."""
    saved = _load(folder / _ANCHOR)[0] if (folder / _ANCHOR).is_file() else {}
    return [saved[str(i)] for i in range(len(saved))]


def has_critic(folder: Path) -> bool:
    """Whether a checkpoint has a critic."""
    return (folder / _CRITIC).is_file()


def load_critic(folder: Path, weights: Mapping[str, torch.Tensor]) -> None:
    """Give a critic's trained weights, by name, the saved ones. Raises `CheckpointError` without a critic, or for
    another model's."""
    if not has_critic(folder):
        raise CheckpointError(
            f"{folder} has no critic ({_CRITIC}), so its run did not have loss.advantage = 'gae', as this recipe "
            "does. Restore [loss] of the recipe, or start a new run"
        )
    saved, _ = _load(folder / _CRITIC)
    shapes, expected = ({name: list(w.shape) for name, w in of.items()} for of in (saved, weights))
    if shapes != expected:
        name = next(n for n in sorted({*shapes, *expected}) if shapes.get(n) != expected.get(n))
        raise CheckpointError(
            f"{folder / _CRITIC} is the critic of another model: {name} has shape {shapes.get(name, 'none')} there "
            f"and {expected.get(name, 'none')} here. Start from the model with which it was trained, or leave "
            "critic.path out"
        )
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(saved[name])


def _load(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors of a file by name, on the CPU, and what it says of itself. Raises `CheckpointError` where it cannot
    be read."""
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); {_ANOTHER}") from None


def _save_optimizer(path: Path, optimizer: torch.optim.Optimizer) -> None:
    tensors = {
        # On the CPU: the moments are twice the size of the weights, and a GPU may have no room for a copy.
        f"{name}/{part}": value.detach().to("cpu", copy=True).contiguous()
        for parameter, name in _parameter_names(optimizer).items()
        for part, value in optimizer.state.get(parameter, {}).items()
    }
    save_file(tensors, path, metadata={_COUNT: str(len(tensors))})


def _parameter_names(optimizer: torch.optim.Optimizer) -> dict[torch.Tensor, str]:
    """The name of each parameter: its place in the optimizer, which is its order in the model."""
    return {p: f"{g}.{i}" for g, group in enumerate(optimizer.param_groups) for i, p in enumerate(group["params"])}


def _old(folder: Path) -> Path:
    """The name of a folder while its successor is renamed."""
    return folder.with_name(f".{folder.name}.old")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
