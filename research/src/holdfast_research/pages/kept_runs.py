"""The runs behind research/docs/NAME.md: kept in the repository, and put back where `holdfast reproduce` looks.

    python -m holdfast_research.pages.kept_runs restore death-spiral     # into runs/lab/death-spiral
    holdfast reproduce report death-spiral         # the page, from those runs
    holdfast reproduce run death-spiral --jobs 2    # what is missing
    python -m holdfast_research.pages.kept_runs keep runs/lab/death-spiral

`research/data/laboratory/NAME` has the plan, and a zip of each finished run: its resolved recipe, its metrics with
numbers rounded to five digits, its results; no checkpoints, trajectories or reports, so it is finished for good. The
policy that most of them start from comes with holdfast.
"""

from __future__ import annotations

import argparse
import json
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import tomli_w

from holdfast.base.run_folder import CONFIG, METRICS, RESULTS
from holdfast.methods.penalties import PENALTIES
from holdfast.recipe import dump, load
from holdfast_research.former_settings import renamed
from holdfast_research.paths import KEPT_RUNS
from holdfast_research.plan import PLAN_FILE, load_plan
from holdfast_research.recordings.library import shortened

KEPT = KEPT_RUNS
HOME = Path("runs") / "lab"
KINDS = ("runs", "sweep")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # zip's own: the same run gives the same bytes


def keep(folder: Path, kept: Path = KEPT) -> list[str]:
    """Pack the finished runs of an experiment's folder, kilobytes each, and delete packed runs that it lacks; the names
    of all.
    """
    plan = load_plan(folder)
    into = kept / plan.experiment.name
    runs = {kind: sorted(path.parent for path in (folder / kind).glob(f"*/{RESULTS}")) for kind in KINDS}
    for kind in KINDS:
        (into / kind).mkdir(parents=True, exist_ok=True)
        names = {run.name for run in runs[kind]}
        for old in [path for path in (into / kind).glob("*.zip") if path.stem not in names]:
            old.unlink()
        for run in runs[kind]:
            archive = into / kind / f"{run.name}.zip"
            if not _is_packed(run, archive):  # a run that was restored keeps its bytes
                _pack(run, archive, place=(HOME / plan.experiment.name / kind).as_posix())
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
            recipe, results = run / CONFIG, run / RESULTS
            recipe.write_text(as_now(recipe.read_text(encoding="utf-8")), encoding="utf-8")
            results.write_text(results_as_now(results.read_text(encoding="utf-8")), encoding="utf-8")
            put.append(run.name)
    if not (folder / PLAN_FILE).exists():
        load_plan(kept / name).save(folder)
    return put


def as_now(recipe: str) -> str:
    """A kept run's recipe in today's words. Runs are kept as they were made. Since then settings were renamed; a
    penalty's section held every setting of every penalty; `normalizer = "preserved"` was called "paper"; all warm
    starts had batches by length; and every run ended with the scores of its start."""
    resolved = renamed(tomllib.loads(recipe))
    resolved["warm_start"].pop("teaches", None)
    resolved["warm_start"].setdefault("batches", "by-length")
    resolved["eval"].setdefault("start", True)
    written = resolved["loss"]["penalty"]
    penalty = {key: value for key, value in written.items() if key in PENALTIES[written["name"]].model_fields}
    if penalty.get("normalizer") == "paper":
        penalty["normalizer"] = "preserved"
    resolved["loss"]["penalty"] = penalty
    return tomli_w.dumps(resolved)


def results_as_now(results: str) -> str:
    """A kept run's results with today's keys: `made_by` was the version of holdfast alone, called `holdfast`."""
    values = json.loads(results)
    if "holdfast" not in values:
        return results
    return json.dumps({"made_by": {"holdfast": values.pop("holdfast")}} | values, indent=1, ensure_ascii=False)


def archives(name: str, kept: Path = KEPT) -> Iterator[Path]:
    """The packed runs of an experiment, those of its sweep last."""
    for kind in KINDS:
        yield from sorted((kept / name / kind).glob("*.zip"))


def _is_packed(run: Path, archive: Path) -> bool:
    """Whether the archive is of this run: it has the same metrics."""
    if not archive.exists():
        return False
    with zipfile.ZipFile(archive) as packed:
        return packed.read(METRICS).decode() == shortened((run / METRICS).read_text(encoding="utf-8"))


def _pack(run: Path, archive: Path, place: str) -> None:
    config = load(run / CONFIG)
    files: dict[str, str | bytes] = {
        CONFIG: dump(config.model_copy(update={"run": config.run.model_copy(update={"dir": place})})),
        METRICS: shortened((run / METRICS).read_text(encoding="utf-8")),
        RESULTS: (run / RESULTS).read_text(encoding="utf-8"),
    }
    _write(archive, files)


def _write(archive: Path, files: Mapping[str, str | bytes]) -> None:
    with zipfile.ZipFile(archive, "w") as packed:
        for name, data in files.items():
            packed.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED, 9)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    todo = parser.add_subparsers(dest="todo", required=True)
    keeping = todo.add_parser("keep", help="pack finished runs into the repository")
    keeping.add_argument("folder", type=Path, help="of `holdfast reproduce run`")
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
