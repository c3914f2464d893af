"""The runs behind docs/laboratory/NAME.md: kept in the repository, and put back where `holdfast reproduce` looks.

    python benchmarks/laboratory_runs.py restore death-spiral     # into runs/lab/death-spiral
    holdfast reproduce death-spiral --report-only                 # the page, from those runs
    holdfast reproduce death-spiral --jobs 2                      # what is missing; delete a run to see it made again
    python benchmarks/laboratory_runs.py keep runs/lab/death-spiral

`laboratory/NAME` holds the plan and a zip of each finished run: its resolved recipe, its metrics with numbers rounded
to five digits, its results. Checkpoints, trajectories and reports are left out, so a restored run is finished for good.
"""

from __future__ import annotations

import argparse
import zipfile
from collections.abc import Iterator
from pathlib import Path

from holdfast.config import dump, load
from holdfast.lab.plan import PLAN_FILE, load_plan
from holdfast.lab.series import RESULTS_FILE
from holdfast.tracking import METRICS_FILE
from library import shortened

KEPT = Path(__file__).parent / "laboratory"
HOME = Path("runs") / "lab"
KINDS = ("runs", "sweep")
_CONFIG = "config.toml"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # zip's own: the same run gives the same bytes


def keep(folder: Path, kept: Path = KEPT) -> list[str]:
    """Pack the finished runs of an experiment's folder, and drop what is no longer there; the names of all."""
    plan = load_plan(folder)
    into = kept / plan.experiment
    runs = {kind: sorted(path.parent for path in (folder / kind).glob(f"*/{RESULTS_FILE}")) for kind in KINDS}
    for kind in KINDS:
        (into / kind).mkdir(parents=True, exist_ok=True)
        names = {run.name for run in runs[kind]}
        for old in [path for path in (into / kind).glob("*.zip") if path.stem not in names]:
            old.unlink()
        for run in runs[kind]:
            _pack(run, into / kind / f"{run.name}.zip", place=(HOME / plan.experiment / kind).as_posix())
    plan.save(into)
    return [run.name for kind in KINDS for run in runs[kind]]


def restore(name: str, folder: Path, kept: Path = KEPT) -> list[str]:
    """Put the kept runs of an experiment into a folder; the names of those that were not there yet."""
    put = []
    for archive in archives(name, kept):
        run = folder / archive.parent.name / archive.stem
        if not run.exists():
            with zipfile.ZipFile(archive) as packed:
                packed.extractall(run)
            put.append(run.name)
    if not (folder / PLAN_FILE).exists():
        load_plan(kept / name).save(folder)
    return put


def archives(name: str, kept: Path = KEPT) -> Iterator[Path]:
    """The packed runs of an experiment, those of its sweep last."""
    for kind in KINDS:
        yield from sorted((kept / name / kind).glob("*.zip"))


def _pack(run: Path, archive: Path, place: str) -> None:
    config = load(run / _CONFIG)
    files = {
        _CONFIG: dump(config.model_copy(update={"run": config.run.model_copy(update={"dir": place})})),
        METRICS_FILE: shortened((run / METRICS_FILE).read_text(encoding="utf-8")),
        RESULTS_FILE: (run / RESULTS_FILE).read_text(encoding="utf-8"),
    }
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for name, text in files.items():
            packed.writestr(zipfile.ZipInfo(name, _EPOCH), text, zipfile.ZIP_DEFLATED, 9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    todo = parser.add_subparsers(dest="todo", required=True)
    keeping = todo.add_parser("keep", help="pack finished runs into the repository")
    keeping.add_argument("folder", type=Path, help="of `holdfast reproduce`")
    restoring = todo.add_parser("restore", help="put kept runs back")
    restoring.add_argument("experiment", choices=sorted(path.parent.name for path in KEPT.glob(f"*/{PLAN_FILE}")))
    restoring.add_argument("--out", type=Path, help="where (default: runs/lab/EXPERIMENT)")
    asked = parser.parse_args()
    if asked.todo == "keep":
        print(f"{len(keep(asked.folder))} runs are kept in {KEPT}")
    else:
        out = asked.out or HOME / asked.experiment
        print(f"{len(restore(asked.experiment, out))} runs put into {out}")


if __name__ == "__main__":
    main()
