"""The numbers of research/docs/signals.md that the kept runs and the readings have, counted again."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest

from holdfast.base.collapse import halved
from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.readers import read_log
from holdfast_research.judge import MIN_STEPS
from holdfast_research.pages.claims import kept_runs
from holdfast_research.pages.kept_runs import KEPT, restore
from holdfast_research.paths import DOCS
from holdfast_research.plan import PLAN_FILE, load_plan
from holdfast_research.series import RunSeries, below_step, between, drop_step

TEXTS = {name: " ".join((DOCS / f"{name}.md").read_text(encoding="utf-8").split()) for name in ("signals", "README")}
EXPERIMENTS = sorted(path.parent.name for path in KEPT.glob(f"*/{PLAN_FILE}"))


@pytest.fixture(scope="module")
def dropped() -> dict[tuple[str, str, int], RunSeries]:
    """(experiment, arm, seed) -> a run whose reward dropped. One that several experiments share is in the first."""
    found: dict[tuple[str, str, int], RunSeries] = {}
    seen = []
    for name in ("death-spiral", "testbeds", *EXPERIMENTS):
        for arm, seeds in kept_runs(name, KEPT).items():
            for run in seeds:
                rewards = run.series("reward/mean")
                if len(run.rows) >= MIN_STEPS and drop_step(run) is not None and rewards not in seen:
                    seen.append(rewards)
                    found[name, arm, run.seed] = run
    return found


def warned(run: RunSeries) -> bool:
    """Whether displacement was below -0.002 nats per token before the drop."""
    below, drop = below_step(run, "displacement/correct", -0.002), drop_step(run)
    return below is not None and drop is not None and below < drop


def test_displacement_came_before_as_many_drops_as_the_page_says(
    dropped: dict[tuple[str, str, int], RunSeries],
) -> None:
    read_off = [key for key in dropped if key[1].startswith("GRPO") and key[0] == "testbeds"]
    read_off += [("death-spiral", "GRPO", seed) for seed in (11, 12, 13)]
    assert len(read_off) == 9 and all(warned(dropped[key]) for key in read_off)
    assert "which it was read off | 9 | 9 | 2 to 37 |" in TEXTS["signals"]
    same_pages = [key for key in dropped if key[0] == "testbeds" and key not in read_off]
    same_pages.append(("death-spiral", "GRPO, sampling mask kept", 11))
    assert [warned(dropped[key]) for key in same_pages] == [False] * 4
    since = [run for key, run in dropped.items() if key not in (*read_off, *same_pages)]
    said = f"below -0.002 nats per token came before {sum(map(warned, since))} of {len(since)} drops**"
    assert said in TEXTS["README"].replace("](signals.md#displacement)", "")


def test_thoughts_lose_more_than_queries_as_often_as_the_page_says(
    dropped: dict[tuple[str, str, int], RunSeries],
) -> None:
    ratios = []
    for (name, _, _), run in dropped.items():
        drop = drop_step(run)
        assert drop is not None
        drift = {kind: between(run, f"drift/positive/{kind}", 1, drop) for kind in ("thought", "answer", "query")}
        if name in ("remedies", "sapo", "coefficient") and all(drift.values()):
            thought, answer, query = (mean(values) for values in drift.values())
            assert thought < answer < query < 0
            ratios.append(thought / query)
    assert f"{len(ratios)} runs log both and drop" in TEXTS["signals"]
    assert f"{min(ratios):.0f} to {max(ratios):.0f} times" in TEXTS["signals"]


def test_the_rules_name_as_many_drops_as_the_page_says(
    dropped: dict[tuple[str, str, int], RunSeries], tmp_path: Path
) -> None:
    came = {key: run for key, run in dropped.items() if warned(run)}
    named = 0
    for name in {name for name, _, _ in came}:
        restore(name, tmp_path / name)
        folders = {(job.arm, job.seed): job.folder for job in load_plan(tmp_path / name).jobs(tmp_path / name)}
        for (_, arm, seed), run in ((key, run) for key, run in came.items() if key[0] == name):
            said = diagnose(read_log(folders[arm, seed]))  # where the likelihood came back, it is a note by the end
            every = (*said.findings, *said.notes)
            first = min((f.step for f in every if f.code in ("LLD002", "LLD003")), default=None)
            half = halved(run.reward)
            named += first is not None and (half is None or first < half.step)
    assert f"`LLD003` names {named} of the {len(came)} drops that came with it, before half" in TEXTS["signals"]
