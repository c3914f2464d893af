"""Exact checkpoints: written whole or not at all, checked before they are trusted, never a pickle.

checkpoints/step-000040/model/            what `from_pretrained` loads
                        optimizer.safetensors
                        state.json        step, sampler position, generators, best dev score
                        checksums.json    sha256 of every file above, written last
checkpoints/best/model/                   the policy that was best on dev, with state.json and checksums.json
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from holdfast.errors import CheckpointError

_CHECKSUMS = "checksums.json"


def save_checkpoint(
    folder: Path,
    *,
    model: Any,
    tokenizer: Any,
    optimizer: torch.optim.Optimizer | None,
    state: dict[str, Any],
) -> None:
    """Write to a folder beside, checksum, then rename: a kill leaves the old folder or the new one, never half of one."""
    from safetensors.torch import save_file

    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    model.save_pretrained(partial / "model", safe_serialization=True)
    tokenizer.save_pretrained(partial / "model")
    if optimizer is not None:
        save_file(_optimizer_tensors(optimizer), partial / "optimizer.safetensors")
    (partial / "state.json").write_text(json.dumps(state))
    sums = {str(p.relative_to(partial)): _sha256(p) for p in sorted(partial.rglob("*")) if p.is_file()}
    (partial / _CHECKSUMS).write_text(json.dumps(sums, indent=1))
    for path in [*partial.rglob("*"), partial]:
        _sync(path)
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    partial.rename(folder)
    _sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def step_folder(run_dir: Path, step: int) -> Path:
    return run_dir / "checkpoints" / f"step-{step:06d}"


def list_checkpoints(run_dir: Path) -> list[Path]:
    """Step checkpoints, newest first; whole or not."""
    return sorted((run_dir / "checkpoints").glob("step-*"), reverse=True)


def prune(run_dir: Path, keep: int) -> None:
    """Delete all but the newest `keep` step checkpoints."""
    for folder in list_checkpoints(run_dir)[keep:]:
        shutil.rmtree(folder)


def newest_whole(run_dir: Path, note: Callable[[str], None]) -> Path:
    """The newest checkpoint whose checksums hold; says which ones it refused and why."""
    refused = 0
    for folder in list_checkpoints(run_dir):
        problem = find_damage(folder)
        if problem is None:
            return folder
        note(f"checkpoint {folder.name} is refused: {problem}; the one before it is used")
        refused += 1
    if refused:
        raise CheckpointError(
            f"all {refused} checkpoints in {run_dir} are damaged; start the run anew with --overwrite"
        )
    raise CheckpointError(f"{run_dir} has no checkpoint to resume from; it stopped before the first one was written")


def find_damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, None if nothing is."""
    try:
        sums = json.loads((folder / _CHECKSUMS).read_text())
    except (OSError, json.JSONDecodeError):
        return "its checksums are missing or cut off, so it was not written to the end"
    for name, expected in sums.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if _sha256(path) != expected:
            return f"{name} does not match its checksum"
    return None


def model_folder(run_dir: Path, which: str) -> Path:
    """The saved model of a run: `last`, `best`, or the path of a model or checkpoint folder."""
    if which == "best":
        folder = run_dir / "checkpoints" / "best"
    elif which == "last":
        whole = [folder for folder in list_checkpoints(run_dir) if find_damage(folder) is None]
        if not whole:
            raise CheckpointError(
                f"{run_dir} has no whole checkpoint; let the run reach one (checkpoint.every) or finish"
            )
        folder = whole[0]
    else:
        folder = Path(which)
        return folder / "model" if (folder / "model").is_dir() else folder
    if not (folder / "model").is_dir():
        raise CheckpointError(f"{folder} holds no model; the run has not been evaluated on dev yet (eval.every)")
    if (problem := find_damage(folder)) is not None:
        raise CheckpointError(f"{folder}: {problem}")
    return folder / "model"


def read_state(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "state.json").read_text())


def load_optimizer(folder: Path, optimizer: torch.optim.Optimizer) -> None:
    """Restore what `save_checkpoint` wrote. Raises `CheckpointError` when the parameters are not the same ones."""
    from safetensors.torch import load_file

    tensors = load_file(folder / "optimizer.safetensors")
    names = _parameter_names(optimizer)
    for parameter, name in names.items():
        own = {key.rpartition("/")[2]: value for key, value in tensors.items() if key.rpartition("/")[0] == name}
        for key, value in own.items():
            if value.dim() and value.shape != parameter.shape:
                raise CheckpointError(
                    f"{folder}: the optimizer state of parameter {name} has another shape than the model's"
                )
            own[key] = value.to(parameter.device) if value.dim() else value
        if own:
            optimizer.state[parameter] = own
    known = set(names.values())
    if stray := {key.rpartition("/")[0] for key in tensors} - known:
        raise CheckpointError(f"{folder}: the optimizer state names {len(stray)} parameters this model does not train")


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return {
        f"{name}/{key}": value.detach().clone().contiguous()
        for parameter, name in _parameter_names(optimizer).items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def _parameter_names(optimizer: torch.optim.Optimizer) -> dict[torch.Tensor, str]:
    """Parameters by their place in the optimizer, which is their order in the model."""
    return {p: f"{g}.{i}" for g, group in enumerate(optimizer.param_groups) for i, p in enumerate(group["params"])}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Make a file or a folder's entries survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
