"""Checkpoints: exact, whole or not at all, checked before they are trusted."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from holdfast.base.errors import CheckpointError
from holdfast.base.files import partial_folder
from holdfast.base.run_folder import list_checkpoints, step_folder
from holdfast.model import checkpoint
from holdfast.model.checkpoint import (
    checkpoint_of,
    find_damage,
    load_optimizer,
    model_folder,
    newest_whole,
    prune,
    read_state,
    recover_interrupted_saves,
    save_checkpoint,
)
from holdfast.model.language_model import LanguageModel


def trained(language_model: LanguageModel, steps: int = 3) -> torch.optim.Optimizer:
    """AdamW after some steps, with a parameter that never had a gradient."""
    parameters = list(language_model.model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    for step in range(steps):
        for i, p in enumerate(parameters[:-1]):
            p.grad = torch.full_like(p, 0.1 * (step + 1) + i)
        optimizer.step()
    return optimizer


def save(run_dir: Path, step: int, language_model: LanguageModel) -> Path:
    folder = step_folder(run_dir, step)
    save_checkpoint(folder, language_model, optimizer=trained(language_model, 1), state={"step": step})
    return folder


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_the_model_loads_elsewhere_and_is_the_same(tmp_path: Path, language_model: LanguageModel) -> None:
    folder = save(tmp_path, 3, language_model)
    assert (folder.name, find_damage(folder), read_state(folder)) == ("step-000003", None, {"step": 3})
    again = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    for name, value in language_model.model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    assert tokenizer("What is the lake?")["input_ids"] == language_model.tokenizer("What is the lake?")["input_ids"]


def test_the_optimizer_comes_back_exactly(tmp_path: Path, language_model: LanguageModel) -> None:
    optimizer = trained(language_model)
    save_checkpoint(tmp_path / "step-000001", language_model, optimizer=optimizer, state={"step": 1})
    parameters = list(language_model.model.parameters())
    fresh = torch.optim.AdamW(parameters, lr=1e-2)
    load_optimizer(tmp_path / "step-000001", fresh)
    assert len(fresh.state) == len(parameters) - 1
    for p in parameters[:-1]:
        assert set(fresh.state[p]) == {"step", "exp_avg", "exp_avg_sq"}
        for key, value in optimizer.state[p].items():
            assert torch.equal(fresh.state[p][key], value) and fresh.state[p][key].dtype == value.dtype


def test_an_optimizer_without_all_of_its_moments_is_damaged(tmp_path: Path, language_model: LanguageModel) -> None:
    """Also where its checksum is right."""
    folder, fresh = save(tmp_path, 1, language_model), torch.optim.AdamW(language_model.model.parameters())
    path = folder / "optimizer.safetensors"
    moments = {name: value.clone() for name, value in load_file(path).items()}
    for kept, promised, whole in (
        (len(moments), {"tensors": str(len(moments))}, True),
        (len(moments) - 1, {"tensors": str(len(moments))}, False),
        (0, {"tensors": str(len(moments))}, False),
        (len(moments), {}, False),
    ):
        save_file(dict(list(moments.items())[:kept]), path, metadata=promised or None)
        with nullcontext() if whole else pytest.raises(CheckpointError, match=r"optimizer\.safetensors lacks moments"):
            load_optimizer(folder, fresh)


def test_an_optimizer_that_has_taken_no_step_has_no_moments(tmp_path: Path, language_model: LanguageModel) -> None:
    optimizer = torch.optim.AdamW(language_model.model.parameters())
    save_checkpoint(tmp_path / "c", language_model, optimizer=optimizer, state={"step": 1})
    load_optimizer(tmp_path / "c", optimizer)
    assert not optimizer.state


@pytest.mark.parametrize(("before", "after"), [(None, True), (True, None)])
def test_an_optimizer_goes_on_where_it_is_fused_and_where_it_is_not(
    tmp_path: Path, language_model: LanguageModel, before: bool | None, after: bool | None
) -> None:
    parameters = list(language_model.model.parameters())
    first = torch.optim.AdamW(parameters, lr=1e-2, fused=before)
    for p in parameters:
        p.grad = torch.full_like(p, 0.1)
    first.step()
    save_checkpoint(tmp_path / "c", language_model, optimizer=first, state={})
    second = torch.optim.AdamW(parameters, lr=1e-2, fused=after)
    load_optimizer(tmp_path / "c", second)
    second.step()
    assert {float(second.state[p]["step"]) for p in parameters} == {2.0}


@pytest.mark.parametrize("name", ["model/model.safetensors", "optimizer.safetensors", "state.json", "checksums.json"])
def test_a_file_cut_in_half_is_damage(tmp_path: Path, language_model: LanguageModel, name: str) -> None:
    folder = save(tmp_path, 1, language_model)
    cut_in_half(folder / name)
    problem = find_damage(folder)
    assert problem is not None and (name in problem or "checksums" in problem)
    (folder / name).unlink()
    assert find_damage(folder) is not None


def test_the_newest_whole_one_is_used_and_the_others_are_told_of(tmp_path: Path, language_model: LanguageModel) -> None:
    for step in (2, 4, 6):
        save(tmp_path, step, language_model)
    cut_in_half(step_folder(tmp_path, 6) / "model" / "model.safetensors")
    (step_folder(tmp_path, 4) / "checksums.json").unlink()
    notes: list[str] = []
    assert newest_whole(tmp_path, notes.append) == step_folder(tmp_path, 2)
    assert len(notes) == 2 and all("Using step-000002 instead" in note for note in notes)
    assert "step-000006 cannot be used: model/model.safetensors does not match its checksum" in notes[0]
    assert "step-000004 cannot be used: its checksums are missing" in notes[1]
    # Put aside: as the newest by name, the damaged ones would have `prune` delete the good one.
    prune(tmp_path, 1)
    assert [f.name for f in list_checkpoints(tmp_path)] == ["step-000002"]
    assert (tmp_path / "checkpoints" / "refused-step-000006" / "model").is_dir()
    cut_in_half(step_folder(tmp_path, 2) / "optimizer.safetensors")
    with pytest.raises(CheckpointError, match=r"no complete checkpoint \(step-000002: optimizer\.safetensors does not"):
        newest_whole(tmp_path, notes.append)


def test_prune_keeps_the_newest_by_number(tmp_path: Path) -> None:
    for step in (900_000, 1_000_000, 20):
        step_folder(tmp_path, step).mkdir(parents=True)
    (tmp_path / "checkpoints" / "best").mkdir()
    prune(tmp_path, 2)
    assert [f.name for f in list_checkpoints(tmp_path)] == ["step-1000000", "step-900000"]
    assert (tmp_path / "checkpoints" / "best").is_dir()


@pytest.mark.parametrize("where", ["save_model", "_sha256", "_sync"])
def test_a_save_that_fails_leaves_the_old_one(
    tmp_path: Path, language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    folder = save(tmp_path, 1, language_model)
    before = (folder / "checksums.json").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, where, full_disk)
        with pytest.raises(CheckpointError, match=r"No space left on device"):
            save_checkpoint(folder, language_model, state={"step": 2})
    assert find_damage(folder) is None and (folder / "checksums.json").read_bytes() == before
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]  # nor does it waste the room it had taken


def full_disk(*_: Any) -> None:
    raise OSError(28, "No space left on device")


def test_a_kill_between_the_two_renames_is_put_right(tmp_path: Path, language_model: LanguageModel) -> None:
    """`best` is replaced over and over: for a moment the old one stands aside and the new one is not there yet."""
    best = tmp_path / "checkpoints" / "best"
    save_checkpoint(best, language_model, state={"step": 1})
    best.rename(best.with_name(".best.old"))
    (best.with_name(".best.01234567.partial") / "model").mkdir(parents=True)
    assert model_folder(tmp_path, "best").parent.name == ".best.old"  # readers find it meanwhile
    recover_interrupted_saves(tmp_path)
    assert [p.name for p in best.parent.iterdir()] == ["best"]
    assert model_folder(tmp_path, "best") == best / "model"
    # Killed one rename later, the old one is in the way of nobody.
    (best.with_name(".best.old") / "model").mkdir(parents=True)
    recover_interrupted_saves(tmp_path)
    assert [p.name for p in best.parent.iterdir()] == ["best"]


def test_which_checkpoint_is_meant(
    tmp_path: Path, language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for which in ("last", "best"):
        with pytest.raises(CheckpointError, match=f"has no (complete )?checkpoint( {which})?"):
            model_folder(tmp_path, which)
    old, new = save(tmp_path, 2, language_model), save(tmp_path, 4, language_model)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "4").mkdir()
    (tmp_path / "step-000004").mkdir()  # neither is a checkpoint of the run
    for which in ("last", "4", "0004", "step-000004", "checkpoints/step-000004", str(new)):
        assert checkpoint_of(tmp_path, which).resolve() == new == model_folder(tmp_path, which).resolve().parent
    assert model_folder(tmp_path, str(new / "model")) == new / "model", "a model alone"
    with pytest.raises(CheckpointError, match=r"has no checkpoint lasst\. Give last, best, a saved step \(2, 4\), a "):
        checkpoint_of(tmp_path, "lasst")
    best = tmp_path / "checkpoints" / "best"
    save_checkpoint(best, language_model, state={"step": 2})
    assert checkpoint_of(tmp_path, "best") == best
    for folder in (new, best):
        cut_in_half(folder / "model" / "model.safetensors")
    assert checkpoint_of(tmp_path, "last") == old
    for which in ("4", "step-000004", str(new), "best"):
        with pytest.raises(CheckpointError, match=r"cannot be used: model/.* does not match its checksum"):
            model_folder(tmp_path, which)


def test_what_is_no_checkpoint_of_ours_is_a_sentence(tmp_path: Path, language_model: LanguageModel) -> None:
    """Also where its checksums are right."""
    folder, optimizer = save(tmp_path, 1, language_model), trained(language_model, 1)
    (folder / "state.json").write_text("[" * 200_000)
    with pytest.raises(CheckpointError, match=r"state\.json is not valid JSON: it is nested too deeply"):
        read_state(folder)
    (folder / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match="'step' is missing"):
        read_state(folder, step=int)
    other = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1, 1, 1))], lr=1e-2)
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors is the optimizer of another model"):
        load_optimizer(folder, other)
    (folder / "optimizer.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors cannot be read"):
        load_optimizer(folder, optimizer)


def test_two_processes_may_save_the_same_folder(tmp_path: Path, language_model: LanguageModel) -> None:
    """Runs that share a warm start: a half of one is not in the way of the other."""
    killed = tmp_path / ".another.01234567.partial" / "model"
    killed.mkdir(parents=True)
    with partial_folder(tmp_path / "start") as other:
        (other / "model").mkdir()
        save_checkpoint(tmp_path / "start", language_model, state={})
        assert find_damage(tmp_path / "start") is None and (other / "model").is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["start"], "what a killed one left is deleted"
