"""The runs behind research/docs/NAME.md: kept in the repository, and put back where `holdfast reproduce` looks.

    python -m holdfast_research.pages.kept_runs restore death-spiral     # into runs/lab/death-spiral
    holdfast reproduce report death-spiral         # the page, from those runs
    holdfast reproduce run death-spiral --jobs 2    # what is missing
    python -m holdfast_research.pages.kept_runs keep runs/lab/death-spiral

`research/data/laboratory/NAME` has the plan, and all finished runs in one file. Of each it has the resolved recipe, the
metrics with numbers rounded to five digits, and the results; no checkpoints, trajectories or reports, so a run is
finished for good. The policy that most of them start from comes with holdfast.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from holdfast.base.run_folder import CONFIG, METRICS, RESULTS
from holdfast.methods.penalties import PENALTIES
from holdfast_research.former_names import renamed, with_present_metrics
from holdfast_research.paths import KEPT_RUNS
from holdfast_research.plan import PLAN_FILE, load_plan
from holdfast_research.recordings.library import Files, read_collection, shortened, write_collection

KEPT = KEPT_RUNS
HOME = Path("runs") / "lab"
KINDS = ("runs", "sweep")
RUNS = "runs.json.xz"


def keep(folder: Path, kept: Path = KEPT) -> list[str]:
    """Pack the finished runs of an experiment's folder, and drop packed runs that it lacks; the names of all."""
    plan = load_plan(folder)
    name = plan.experiment.name
    plan.save(kept / name)
    before, after = packed(name, kept), {}
    for run in sorted(path.parent for kind in KINDS for path in (folder / kind).glob(f"*/{RESULTS}")):
        place = run.relative_to(folder).as_posix()
        made = _files(run, HOME / name / run.parent.name)
        known = before.get(place, made)
        after[place] = known if _shown(known) == _shown(made) else made  # a restored run keeps its former words
    write_collection(kept / name / RUNS, after)
    return [Path(place).name for place in after]


def restore(name: str, folder: Path, kept: Path = KEPT) -> list[str]:
    """Put the kept runs of an experiment into a folder; the names of those that were not there yet."""
    put = []
    for place, files in packed(name, kept).items():
        run = folder / place
        if not run.exists():
            run.mkdir(parents=True)
            now = {**files, CONFIG: as_now(files[CONFIG]), RESULTS: results_as_now(files[RESULTS])}
            now[METRICS] = with_present_metrics(files[METRICS])
            for file, text in now.items():
                (run / file).write_text(text, encoding="utf-8")
            put.append(run.name)
    if not (folder / PLAN_FILE).exists():
        load_plan(kept / name).save(folder)
    return put


def _shown(run: Files) -> tuple[str, Any]:
    """The series of a run, and its scores: a run may be evaluated after it was kept."""
    return with_present_metrics(run[METRICS]), json.loads(run[RESULTS]).get("after")


def packed(name: str, kept: Path = KEPT) -> Mapping[str, Files]:
    """The kept runs of an experiment as they were made, by their place in its folder; those of its sweep last."""
    return read_collection(kept / name / RUNS)


def as_now(recipe: str) -> str:
    """A run's recipe in today's words. Kept runs stay as they are. Since the first of them, settings were renamed; a
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


def _files(run: Path, home: Path) -> Files:
    recipe = tomllib.loads(as_now((run / CONFIG).read_text(encoding="utf-8")))
    return {
        CONFIG: tomli_w.dumps(recipe | {"run": recipe["run"] | {"dir": home.as_posix()}}),
        METRICS: shortened((run / METRICS).read_text(encoding="utf-8")),
        RESULTS: (run / RESULTS).read_text(encoding="utf-8"),
    }


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
