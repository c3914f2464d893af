"""A run folder: the names of its files, and what follows from them. Names need neither torch nor the schema. The files
of a checkpoint are in `model/checkpoint.py`.

config.toml              the recipe the run began with, below a line with its name; locked by the process that trains
metrics.jsonl            a line for each step
trajectories.jsonl       sampled rollouts, for people and for the report
displacement.jsonl       displacement of the rollouts of a step by that step
judgements.jsonl         with reward.judge, the grade of each answer
findings.json            findings of the rules of `holdfast diagnose`
report.html
answers.jsonl            the answers to each question of the closing evaluation, and whether they are right
results.json             the closing evaluation, written last: a run that has it is finished
checkpoints/step-000040  an exact checkpoint
checkpoints/best         the policy that was best on dev
model                    what a stage without steps saves: a warm start, or rejection sampling
kept.jsonl               of rejection sampling: the correct rollouts it learns from
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.base.errors import CheckpointError, ConfigError
from holdfast.base.files import UNWRITABLE, locked, write_whole
from holdfast.base.stored import read_object

CONFIG = "config.toml"
METRICS = "metrics.jsonl"
TRAJECTORIES = "trajectories.jsonl"
DISPLACEMENT = "displacement.jsonl"
FINDINGS = "findings.json"
REPORT = "report.html"
ANSWERS = "answers.jsonl"
RESULTS = "results.json"
FINAL_EVALUATION = "final_evaluation.json"
"""State of a final evaluation that is not finished."""
MODEL = "model"
KEPT = "kept.jsonl"
_HEAD, _MAX_HEAD = "# recipe: ", 4096
_CHECKPOINTS, _STEP = "checkpoints", "step-"
CHECKSUMS = "checksums.json"
"""In a checkpoint: written last."""


def is_run(folder: Path) -> bool:
    """Whether the folder has a recipe."""
    try:
        return (folder / CONFIG).is_file()
    except OSError:  # for example a question, which is too long for a name
        return False


def headed(recipe: str, name: str | None) -> str:
    """A recipe as TOML, below a comment with what the command line called it, if that is known."""
    return f"{_HEAD}{name}\n{recipe}" if name is not None and name.isprintable() else recipe


def recipe_name(run_dir: Path) -> str | None:
    """What the command line called the recipe of a run; None if its config.toml does not say."""
    try:
        with (run_dir / CONFIG).open(encoding="utf-8", errors="replace") as file:
            line = file.readline(_MAX_HEAD)
    except OSError:
        return None
    return line.removeprefix(_HEAD).rstrip("\n") if line.startswith(_HEAD) else None


def is_finished(run_dir: Path, *, stage: bool = False) -> bool:
    """Whether the run has its results; with `stage`, whether the stage without steps has its model."""
    return (run_dir / (MODEL if stage else RESULTS)).exists()


# ---- checkpoints


def checkpoints_of(run_dir: Path) -> Path:
    """The folder of the checkpoints."""
    return run_dir / _CHECKPOINTS


def step_folder(run_dir: Path, step: int) -> Path:
    """The checkpoint of a step, whether it exists or not."""
    return checkpoints_of(run_dir) / f"{_STEP}{step:06d}"


def best_folder(run_dir: Path) -> Path:
    """The checkpoint of the policy that was best on dev."""
    return checkpoints_of(run_dir) / "best"


def step_of(checkpoint: Path) -> int:
    """The step of a `step-000040`."""
    return int(checkpoint.name.removeprefix(_STEP))


def list_checkpoints(run_dir: Path) -> list[Path]:
    """Step checkpoints, newest first; whole or not."""
    folders = checkpoints_of(run_dir).glob(f"{_STEP}*")
    return sorted((f for f in folders if f.name.removeprefix(_STEP).isdigit()), key=step_of, reverse=True)


def newest_step(run_dir: Path) -> int | None:
    """The step of the newest checkpoint that has all its files, or None. Does not read the files."""
    return next((step_of(folder) for folder in list_checkpoints(run_dir) if missing_file(folder) is None), None)


def missing_file(checkpoint: Path) -> str | None:
    """What is missing in a checkpoint, or None."""
    sums = read_checksums(checkpoint)
    if "state.json" not in sums:
        return "its checksums are missing or cut off, so it is incomplete"
    return next((f"{name} is missing" for name in sums if not (checkpoint / name).is_file()), None)


def read_checksums(checkpoint: Path) -> dict[str, str]:
    """sha256 of each file of a checkpoint by name; none if they cannot be read."""
    try:
        return read_object(checkpoint / CHECKSUMS, CheckpointError, "take another checkpoint")
    except CheckpointError:
        return {}


# ---- a run begins


def begin(run_dir: Path, recipe: str) -> None:
    """Write the recipe, as TOML. Raises `ConfigError` when the folder holds a run already, or cannot be written."""
    for name in (METRICS, RESULTS, _CHECKPOINTS):
        if (run_dir / name).exists():
            raise ConfigError(
                f"{run_dir} already contains a run ({name}); give another run.name",
                hint=f"to continue it: holdfast resume {run_dir}",
            )
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_whole(run_dir / CONFIG, headed(recipe, recipe_name(run_dir)))
    except OSError as error:
        raise ConfigError(
            f"the run folder {run_dir} cannot be written ({error.strerror}); set run.dir to a folder that can"
        ) from error


@contextmanager
def writing(run_dir: Path) -> Iterator[None]:
    """Lock the run folder: two processes in it would mix their steps. A full or unwritable disk becomes an error.

    Raises `ConfigError` while another process writes here, `CheckpointError` for the disk.
    """
    try:
        with locked(run_dir / CONFIG):
            yield
    except BlockingIOError:
        raise ConfigError(
            f"another process is training in {run_dir}. Wait for it or stop it, or give another run.name"
        ) from None
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        raise CheckpointError(
            f"{error.filename or run_dir} cannot be written: {UNWRITABLE[error.errno]}",
            hint=f"once it can be written, continue from the newest checkpoint: holdfast resume {run_dir}",
        ) from error
