"""The set `real-model`: search agents that are a pretrained language model of 135 million parameters, all healthy.

    python -m holdfast_research.recordings.real_model --wiki FOLDER

The runs of the experiment `factbook` are taken from those kept in the repository, and `grpo` and `llds` of
research/docs/wiki.md from a folder of run folders. A run is healthy because its score on test questions rose, which
was measured when the run was made. No threshold was chosen on these runs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

from holdfast.base.run_folder import CONFIG, METRICS
from holdfast_research import collection
from holdfast_research.pages.kept_runs import packed
from holdfast_research.recordings.library import REAL_MODEL, Recording, folder_of, keep_logs, write_manifest
from holdfast_research.recordings.record import changed, versions

HEALTHY = "healthy-learned"
ROSE = {
    "factbook": "sampled exact match of 400 test questions rose by .20 or more",
    "wiki": "sampled exact match of 391 test questions rose from .100 to {}",
}
WIKI = {"grpo": ".189", "llds": ".176"}
"""The runs of research/docs/wiki.md -> their score in the end."""


def sources(wiki: Path) -> dict[str, tuple[str, collection.Files]]:
    """Name of a recording -> what makes it healthy, and its files."""
    kept = {f"factbook-{Path(place).name}": (ROSE["factbook"], files) for place, files in packed("factbook").items()}
    runs = {
        f"wiki-{name}": (
            ROSE["wiki"].format(score),
            {file: (wiki / name / file).read_text(encoding="utf-8") for file in (CONFIG, METRICS)},
        )
        for name, score in WIKI.items()
    }
    return kept | runs


def row_of(name: str, how: str, files: Mapping[str, str]) -> Recording:
    """The manifest's row of a run."""
    resolved = tomllib.loads(files[CONFIG])
    testbed = name.split("-")[0]
    return Recording(
        name=name,
        testbed=testbed,
        host="holdfast",
        split=REAL_MODEL,
        cause=HEALTHY,
        seed=resolved["run"]["seed"],
        steps=json.loads(files[METRICS].splitlines()[-1])["step"],
        how=how,
        recipe=testbed,
        settings=changed(resolved),
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--wiki", type=Path, required=True, metavar="FOLDER", help="holds the run folders grpo and llds"
    )
    folder = folder_of(REAL_MODEL)
    folder.mkdir(exist_ok=True)
    rows = []
    with tempfile.TemporaryDirectory() as work:
        for name, (how, files) in sources(parser.parse_args().wiki).items():
            run = Path(work) / name
            run.mkdir()
            (run / METRICS).write_text(files[METRICS], encoding="utf-8")
            rows.append(row_of(name, how, files))
        keep_logs(rows, Path(work), folder)
    write_manifest(rows, versions(), folder)
    print(f"{len(rows)} packed; the set is {sum(path.stat().st_size for path in folder.iterdir()) / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
