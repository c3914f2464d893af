"""The part of the golden runs that takes seconds and is equal on any machine; `make golden` replays all of it.

Over the same recordings, and over every kept run, the closing words, RWD001, the headline and the study say the same. A
run fell, or it did not: the four agree on that. RWD001 alone waits where the reward was lost at once, until it is clear
that it does not come back; so a run that fell without RWD001 came back, or ended too soon to tell.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import numpy as np

import golden
from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.finding import Diagnosis, headline
from holdfast.diagnose.log import Log, Series, reward_curve
from holdfast.diagnose.log.collapse import collapsed, fell
from holdfast.train.summary import verdict_of
from holdfast_research.pages import kept_runs
from holdfast_research.recordings.library import read_manifest
from holdfast_research.series import RunSeries

SCORES = {"em": 0.2, "em_greedy": 0.3}


def kept(name: str) -> Iterator[Log]:
    for place, files in kept_runs.packed(name).items():
        rows = [json.loads(line) for line in files["metrics.jsonl"].splitlines()]
        rewards = [(row["step"], row["reward/mean"]) for row in rows if "reward/mean" in row]
        steps, values = (np.array(column) for column in zip(*rewards, strict=True))
        yield Log(
            format="holdfast", host="holdfast", name=place, series={"reward/mean": Series(steps, values)}, steps=steps
        )


def said(log: Log, diagnosis: Diagnosis) -> str:
    """What is said of a run, where all four say the same; every other answer is a failure."""
    curve = reward_curve(log)
    if curve is None:
        return "no reward"
    rows = tuple(
        {"step": int(step), "reward/mean": float(reward)}
        for step, reward in zip(curve.steps, curve.rewards, strict=True)
    )
    down = fell(curve) is not None
    waited = down and not curve.down.any()
    word = verdict_of(rows, SCORES, SCORES, "test").split(".")[0]
    study = RunSeries(arm="", seed=1, rows=rows, results={})
    assert word.startswith(("Fell", "Collapsed")) is down, log.name
    assert (word == "Collapsed") is (collapsed(curve) is not None and bool(curve.fallen[-1])), log.name
    assert (study.fell, study.collapsed) == (down, collapsed(curve) is not None), log.name
    course = diagnosis.course
    assert (course.fall is not None) is (down and not waited), log.name
    text = headline(log, diagnosis)
    assert (" fell near step " in text) is (course.fall is not None), log.name
    assert (" It had recovered" in text) is (course.back_step is not None), log.name
    assert course.half is None or course.fall is not None, log.name
    alarm = any(finding.code == "RWD001" for finding in (*diagnosis.findings, *diagnosis.notes))
    broke = any(finding.code == "GRP001" for finding in diagnosis.findings)  # a grader that returns 0 is told as that
    assert alarm is (down and not waited) or (down and broke), log.name
    return "fell, RWD001 waits" if waited else "fell" if down else "held"


def test_the_findings_of_all_recordings_are_those_recorded_and_all_say_the_same_of_a_fall() -> None:
    counts: Counter[str] = Counter()
    fallen: set[str] = set()

    def watch(log: Log, diagnosis: Diagnosis) -> None:
        counts[word := said(log, diagnosis)] += 1
        fallen.update([] if word == "held" else [log.name])

    assert golden.check("findings", golden.findings(False, watch)) == "equal"
    assert counts == {"held": 336, "fell": 173, "fell, RWD001 waits": 5}
    assert not fallen & {recording.name for recording in read_manifest() if recording.healthy}


def test_all_kept_runs_of_the_study() -> None:
    names = sorted(path.parent.name for path in kept_runs.KEPT.glob("*/plan.json"))
    counts = Counter(said(log, diagnose(log)) for name in names for log in kept(name))
    # `said` has compared each run. Runs are added with every experiment, so only the cases that must occur are counted.
    assert counts["held"] >= 263 and counts["fell"] >= 90
    assert counts["fell, RWD001 waits"] == 13, "a run that fell and whose alarm waits is new: look at it"


def test_a_younger_metric_is_left_out_only_where_the_recording_lacks_it() -> None:
    row = {"reward/mean": 0.5, "drift/positive": 0.1, "isdd/positive/below_half": 0.0, "brand/new": 1.0}
    recorded = {"a": [{"reward/mean": 0.5, "drift/positive": 0.2}], "b": [{"reward/mean": 0.5}]}
    kept = golden.without_younger(recorded, {"a": [row], "b": [row]})
    assert [sorted(rows[0]) for rows in kept.values()] == [
        ["brand/new", "drift/positive", "reward/mean"],
        ["brand/new", "reward/mean"],
    ]
    assert len(list(golden.differences(recorded, kept))) == 3  # two new names, and one number


def test_every_part_can_be_checked() -> None:
    recorded = {path.stem for path in golden.EXPECTED.glob("*.json")}
    assert recorded | set(golden.SELF_CHECKED) == set(golden.PARTS)
