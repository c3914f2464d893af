"""What the page on why agents collapse and others say of the real model, and of the three trainers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median

from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.log.collapse import fell as fall_of
from holdfast.diagnose.readers import read_log
from holdfast_research.pages import hosts
from holdfast_research.pages.why import DISPLACED, DRIFTED, turned
from holdfast_research.paths import DOCS, REPOSITORY
from holdfast_research.series import RunSeries, between, summarise
from research.tests.why_page import SAID, finished, kept, scores


def test_the_real_model_with_fresh_rollouts() -> None:
    real = kept("factbook")
    grpo, llds, papers = real["GRPO"], real["LLDS action"], real["LLDS action, 0.2"]
    signs = [run.results["after"]["em"] > plain.results["after"]["em"] for plain, run in zip(grpo, papers, strict=True)]
    assert signs == [True, False, False] and [run.seed for run in papers] == [run.seed for run in grpo]
    for plain, run in zip(grpo, papers, strict=True):
        assert run.results["after"]["em_greedy"] >= plain.results["after"]["em_greedy"]
    for plain, theirs in (*zip(grpo, llds, strict=True), *zip(grpo, real["SAPO"], strict=True)):
        assert theirs.results["after"]["em"] < plain.results["after"]["em"]
        assert theirs.results["after"]["em_greedy"] > plain.results["after"]["em_greedy"]
    lost = 100 * (mean(scores(grpo)) - mean(scores(llds)))
    readme = " ".join((REPOSITORY / "README.md").read_text(encoding="utf-8").split())
    assert f"1 costs {lost:.0f} points sampled, none greedy" in readme
    assert f"1 costs {lost:.0f} points sampled |" in SAID
    fresh = (*grpo, *kept("real-age")["GRPO"], *kept("real-old")["GRPO, half the rate"], *kept("real-long")["GRPO"])
    assert sorted(len(run.rows) for run in fresh) == [24] * 3 + [48] * 6 + [150] and not any(run.fell for run in fresh)
    assert "in 24, 48 or 150 batches (3, 6 and 1 seeds)" in SAID


def test_the_real_model_over_150_batches() -> None:
    runs = {arm: seeds[0] for arm, seeds in kept("real-long").items() if seeds}
    assert list(runs) == ["GRPO", "LLDS action"] and not any(run.fell for run in runs.values())
    both = list(runs.values())
    assert [len(run.series("reward/mean")[0]) for run in both] == [150, 150]
    page = (DOCS / "real-long.md").read_text(encoding="utf-8")
    assert sum(runs["GRPO"].series("optimizer_steps_per_rollout")[1]) == 600 and "600 optimizer steps" in page
    dev = [[f"{em:.2f}".removeprefix("0") for em in between(run, "eval/em", 25, 150)] for run in both]
    assert f"it has {dev[1][0]} after 25 batches, where plain GRPO has {dev[0][0]}; after 150 both have" in page
    assert dev[0][-1] == dev[1][-1] == ".98" and "both have .98" in page
    likelihood, entropy = (runs["GRPO"].means(name)[1] for name in ("likelihood/correct", "entropy/mean"))
    assert likelihood[-1] > likelihood[0]
    assert f"from {entropy[0]:.2f} to {entropy[-1]:.2f} nats".replace("0.", ".") in page
    gpu = " ".join((REPOSITORY / "docs/reference/gpu.md").read_text(encoding="utf-8").split())
    minutes = [run.results["seconds"] / 60 for run in both]
    assert "took {:.0f} minutes with plain GRPO and {:.0f} with LLDS".format(*minutes) in gpu
    updates, steps = ([median(between(run, f"time/{part}_s", 1, 12)) for run in both] for part in ("update", "step"))
    assert all(f"took {seconds:.1f} seconds, the median" in gpu for seconds in updates)
    assert "each took {:.1f} to {:.1f} seconds a step".format(*steps) in gpu


def test_the_three_trainers() -> None:
    """The words of hosts.md, and that its table is that of the kept runs."""
    runs, text = hosts.kept_runs("flaky"), " ".join(hosts.PAGE.read_text(encoding="utf-8").split())
    assert hosts.table(runs) in hosts.PAGE.read_text(encoding="utf-8")
    grpo, llds = ([run for arms in runs.values() for run in arms[arm]] for arm in ("GRPO", "LLDS"))
    falls = [fall.step for run in grpo if (fall := fall_of(run.reward))]
    assert len(falls) == len(grpo) == 7 and f"at batches {min(falls)} to {max(falls)}" in text
    assert len(llds) == 7 and not any(run.fell for run in llds)
    last = [run.means("entropy/mean")[1][-1] for run in llds]
    assert f"to {min(last):.1f} to {max(last):.1f} nats by batch 45" in text
    real = hosts.kept_runs("factbook")
    assert hosts.scored_table(real) in hosts.PAGE.read_text(encoding="utf-8")
    (trl,) = real["TRL"]["GRPO"]
    before, after = (f"{trl.results[when]['em']:.3f}".removeprefix("0") for when in ("before", "after"))
    assert f"rises from {before} to {after} in {len(trl.rows)} batches" in text


def test_twice_the_rate() -> None:
    runs, old = kept("real-old"), "8 batches old"
    fresh = scores(runs["GRPO"])
    assert "ends at {:.2f}, {:.2f} and {:.2f} on fresh rollouts".format(*fresh) in SAID
    slower = scores(runs["GRPO, half the rate"])
    assert "Fresh rollouts end at {:.2f}, {:.2f} and {:.2f} there".format(*slower) in SAID
    ends = {
        arm: [em for em in scores(runs[f"{old}, {arm}"]) if not math.isnan(em)]
        for arm in ("LLDS action", "LLDS action, 0.2", "SAPO", "TIS", "score centering", "IPO")
    }
    penalties, corrections = (
        [em for each in part for em in each] for part in (list(ends.values())[:3], list(ends.values())[3:])
    )
    assert f"end at {max(corrections):.2f} or below" in SAID and f"end at {min(penalties):.2f} or above" in SAID
    later, first = (thirds(runs[old], f"likelihood/{where}_observation") for where in ("after", "before"))
    said = "go from {:.2f} to {:.2f} nats per token, those of first actions from {:.2f} to {:.2f}."
    assert said.format(*later, *first) in SAID
    moved = [
        abs(after - before)
        for arm in ("LLDS action", "LLDS action, 0.2", "SAPO")
        for where in ("after", "before")
        for before, after in [thirds(runs[f"{old}, {arm}"], f"likelihood/{where}_observation")]
    ]
    assert f"neither moves by more than {max(moved):.2f}" in SAID


def thirds(runs: Sequence[RunSeries], metric: str) -> tuple[float, float]:
    """The metric's mean over the first and over the last third of the steps, a mean over the runs, as printed."""
    series = [run.series(metric)[1] for run in runs]
    parts = [(mean(values[: len(values) // 3]), mean(values[-(len(values) // 3) :])) for values in series]
    first, last = (round(mean(part), 2) for part in zip(*parts, strict=True))
    return first, last


def _accuracy(runs: Sequence[RunSeries]) -> str:
    """A cell of a table: sampled (greedy)."""
    ends = [run.results["after"] for run in runs]
    return f"{mean(e['em'] for e in ends):.2f} ({mean(e['em_greedy'] for e in ends):.2f})"


def _each(runs: Sequence[RunSeries]) -> str:
    """A cell of a table with a test of every seed."""
    return ", ".join(_accuracy([run]) for run in runs)


def _in_readme(cell: str) -> str:
    return cell.replace("0.", ".") or "–"


def test_how_old_rollouts_may_be(tmp_path: Path) -> None:
    runs, old = kept("real-age"), "8 batches old"
    assert {len(seeds) for seeds in runs.values()} == {3} and {len(run.rows) for run in runs["GRPO"]} == {48}
    ages, cured = ("GRPO", "1 batch old", "4 batches old", old), [arm for arm in runs if arm.startswith(f"{old}, ")]
    readme = " ".join((REPOSITORY / "README.md").read_text(encoding="utf-8").split())
    others = kept("old-policy")
    assert all(run.seed == seed for runs in others.values() for run, seed in zip(runs, (19, 20), strict=False))
    for name, arm, other in (
        ("fresh rollouts", "GRPO", "GRPO"),
        *((f"{age} old", arm, None) for age, arm in (("one batch", ages[1]), ("four batches", ages[2]))),
        ("eight batches old", old, old),
        ("eight, LLDS at 0.2", f"{old}, LLDS action, 0.2", f"{old}, LLDS action, 0.2"),
        ("eight, LLDS at 1", f"{old}, LLDS action", None),
        ("eight, [ratios to the sampler](research/docs/old-policy.md)", None, f"{old}, ratios to the sampler"),
        ("eight, half the learning rate", None, f"{old}, half the rate"),
        ("eight, M2PO", None, f"{old}, M2PO"),
    ):
        means = _accuracy(runs[arm]) if arm else ""
        assert f"| {name} | {_in_readme(means)} | {_in_readme(_each(others.get(other, ())))} |" in readme
    half = kept("real-old")
    plain = [*scores(runs[old]), *scores(half[f"{old}, half the rate"]), *scores(others[old])]
    fresh = [*scores(runs["GRPO"]), *scores(half["GRPO, half the rate"]), *scores(others["GRPO"])]
    llds = [*scores(runs[f"{old}, LLDS action"]), *scores(half[f"{old}, LLDS action, half the rate"])]
    cost = [100 * (new - aged) for new, aged in zip(fresh, plain[:7], strict=True)]
    *undone, low, middle, high = sorted(plain)
    said = f"at {max(undone):.2f} or below on five of eight seeds, and at {low:.2f}, {middle:.2f} and {high:.2f} on"
    assert len(plain) == 8 and said in SAID and "on five of eight seeds" in readme
    assert f"cost plain GRPO {min(cost):.0f} to {max(cost):.0f} points on seven seeds" in SAID
    assert sum(with_it > without for with_it, without in zip(llds, plain[: len(llds)], strict=True)) == 5
    (weaker,) = half[f"{old}, LLDS action, 0.2, half the rate"]
    (twin,) = (run for run in half[f"{old}, half the rate"] if run.seed == weaker.seed)
    papers = [*zip(scores(runs[f"{old}, LLDS action, 0.2"]), scores(runs[old]), strict=True)]
    papers += [(scores((weaker,))[0], scores((twin,))[0])]
    papers += zip(scores(others[f"{old}, LLDS action, 0.2"]), scores(others[old][:1]), strict=True)
    assert len(papers) == 5 and all(with_it > without for with_it, without in papers)
    (hidden,) = (run for run in runs[old] if run.seed == 18)
    assert summarise(hidden).em_after == 0 and f"On seed 18 it ends at {summarise(hidden).last:.2f}, while" in SAID
    halved = [(arm, run.seed) for arm, seeds in runs.items() for run in seeds if turned(DRIFTED, [run])]
    assert halved == [(ages[2], 18), *((old, seed) for seed in (16, 17, 18))]
    assert all(turned(DISPLACED, [run]) for arm in ages for run in runs[arm])
    page = (DOCS / "real-age.md").read_text(encoding="utf-8").partition("## What we conclude")[2]
    assert page.count(": **shown**") + page.count("| **shown**") == 5 and page.count("**cannot tell** 2/2") == 2
    found = {
        (job.arm, job.seed): {f.code: f.certain or 0 for f in diagnose(read_log(job.folder)).findings}
        for job in finished("real-age", tmp_path)
    }
    wrong = [found[run] for run in halved]
    assert not any(codes for (arm, seed), codes in found.items() if arm in ages and (arm, seed) not in halved)
    said = f"`SMP001` from batch {min(c['SMP001'] for c in wrong)} to {max(c['SMP001'] for c in wrong)}, then `ISD001`"
    moved = [min(step for code, step in codes.items() if code in ("ISD001", "LLD003")) for codes in wrong]
    assert f"{said} or `LLD003` from {min(moved)} to {max(moved)}." in SAID
    told = [list(codes) for (arm, _), codes in found.items() if arm in cured]
    assert (
        sorted(told) == [[]] * 7 + [["SMP001"]] * 2 and "Of the nine with a penalty it reports `SMP001` on two" in SAID
    )


def test_which_old_policy() -> None:
    runs, old = kept("old-policy"), "8 batches old"

    def cells(*arms: str) -> str:
        return " | ".join(_each(runs[arm]) if arm else "not run" for arm in arms)

    for name, arms in (
        ("fresh | recomputed", ("GRPO", "fresh, LLDS action, 0.2", "", "")),
        ("eight batches old | recomputed", (old, f"{old}, LLDS action, 0.2", f"{old}, half the rate", "")),
        ("eight batches old | the sampler's", (f"{old}, ratios to the sampler", "", "", f"{old}, M2PO")),
    ):
        assert f"| {name} | {cells(*arms)} |" in SAID

    def on_dev(arm: str, batch: int) -> str:
        run = runs[arm][0]
        by_batch = [dict(zip(*run.series(f"eval/{name}"), strict=True))[batch] for name in ("em", "em_greedy")]
        return "{:.2f} ({:.2f})".format(*by_batch)

    half, m2po = f"{old}, half the rate", f"{old}, M2PO"
    assert f"intact at batch 24, with {on_dev(half, 24)} on 100 dev questions" in SAID
    assert f"gone at batch 36, with {on_dev(half, 36)}." in SAID
    assert f"It has {on_dev(m2po, 36)} on dev at batch 36 and {on_dev(m2po, 48)} at batch 48" in SAID
    assert f"ends at {runs[m2po][0].series('reward/em')[1][-1]:.2f}." in SAID


def test_what_diagnose_says_of_the_real_model(tmp_path: Path) -> None:
    found: dict[str, list[set[str]]] = {"stale": [], "penalty": [], "fresh": []}
    for name in ("real-old", "factbook", "real-long"):
        for job in finished(name, tmp_path):
            cure = "penalty" if "LLDS" in job.arm or "SAPO" in job.arm else "stale"
            codes = {f.code for f in diagnose(read_log(job.folder)).findings}
            found[cure if "old" in job.arm else "fresh"].append(codes)
    stale, moved = found["stale"], {"ISD001", "LLD003"}
    assert all("SMP001" in codes for codes in stale) and f"`SMP001` on all {len(stale)} stale runs" in SAID
    assert f"and `ISD001` or `LLD003` on {sum(bool(moved & codes) for codes in stale)}." in SAID
    assert not any(moved & codes for kind in ("penalty", "fresh") for codes in found[kind])
    assert f"on the {len(found['penalty'])} with a penalty, nor on {len(found['fresh'])} with fresh rollouts" in SAID
