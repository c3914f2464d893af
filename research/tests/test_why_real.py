"""What the page on explanations and others say of the real model, and of the three trainers."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from statistics import mean, median

import pytest

from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.log.collapse import fell as fall_of
from holdfast.diagnose.readers import read_log
from holdfast_research.judge import MIN_STEPS
from holdfast_research.pages import hosts
from holdfast_research.pages.arms import surged
from holdfast_research.pages.kept_runs import restore
from holdfast_research.pages.why import DISPLACED, DRIFTED, LEAKED, turned
from holdfast_research.paths import REPOSITORY
from holdfast_research.plan import load_plan
from holdfast_research.series import RunSeries, below_step, between, drop_step, summarise
from research.tests.why_page import SAID, finished, kept


def test_other_worlds_and_the_real_model() -> None:
    with tempfile.TemporaryDirectory() as folder:
        restore("testbeds", Path(folder))
        first: dict[bool, list[str]] = {True: [], False: []}
        for job in (job for job in load_plan(Path(folder)).jobs(Path(folder)) if job.folder.exists()):
            said = diagnose(read_log(job.folder))
            every = sorted((f.certain, f.code) for f in (*said.findings, *said.notes) if f.certain is not None)
            run = next(run for run in kept("testbeds")[job.arm] if run.seed == job.seed)
            first[surged(run)].append(every[0][1] if every else "")
    assert f"in {first[True].count('SMP001')} of the {len(first[True])} runs that surge" in SAID
    assert "SMP001" not in first[False] and first[False]
    penalised = [run for arm in ("LLDS action", "SAPO") for run in kept("testbeds")[arm]]
    assert (sum(map(surged, penalised)), len(penalised)) == (7, 8)
    real = kept("factbook")
    every = [run for seeds in real.values() for run in seeds]
    assert (turned(DISPLACED, every), turned("displacement below -0.002 nats", every), len(every)) == (5, 4, 12)
    grpo, llds, papers = real["GRPO"], real["LLDS action"], real["LLDS action, 0.2"]
    signs = [run.results["after"]["em"] > plain.results["after"]["em"] for plain, run in zip(grpo, papers, strict=True)]
    assert signs == [True, False, False] and [run.seed for run in papers] == [run.seed for run in grpo]
    for plain, run in zip(grpo, papers, strict=True):
        assert run.results["after"]["em_greedy"] >= plain.results["after"]["em_greedy"]
    for plain, theirs in (*zip(grpo, llds, strict=True), *zip(grpo, real["SAPO"], strict=True)):
        assert theirs.results["after"]["em"] < plain.results["after"]["em"]
        assert theirs.results["after"]["em_greedy"] > plain.results["after"]["em_greedy"]
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    ends = {arm: mean(run.results["after"]["em"] for run in runs) for arm, runs in real.items()}
    start = mean(run.results["before"]["em"] for run in grpo)
    readme = " ".join(readme.split())
    lost = 100 * (ends["GRPO"] - ends["LLDS action"])
    assert f"1 costs {lost:.0f} points sampled, none greedy" in readme and start < ends["GRPO"]
    every_greedy = [
        abs(theirs.results["after"]["em_greedy"] - plain.results["after"]["em_greedy"])
        for arm in ("LLDS action", "SAPO")
        for plain, theirs in zip(grpo, real[arm], strict=True)
    ]
    assert f"the differences, {min(every_greedy):.3f} to {max(every_greedy):.3f}," in SAID


def test_the_real_model_that_falls() -> None:
    runs = kept("real-fall")
    assert [run.fell for run in runs["GRPO"]] == [True] * 3 and "plain GRPO ends at 0 on three of three seeds" in SAID
    assert {len(run.rows) for run in runs["LLDS action"]} == {24} and MIN_STEPS > 24
    starts = [run.results["before"]["em"] for run in kept("factbook")["GRPO"]]  # the same warm starts, on test
    ends = [run.results["after"]["em"] for run in runs["LLDS action"]]
    assert max(ends) < min(starts) and f"ends at {min(ends):.3f} to {max(ends):.3f}, below its starts" in SAID
    assert [run.results["after"]["em"] for run in runs["GRPO"]] == [0.0] * 3
    assert [turned("the sampler keeps 0.02 less than at its most", [run]) for run in runs["GRPO"]] == [0, 1, 0]
    sound = runs["GRPO, untruncated, reliable search"]
    assert [run.fell for run in sound] == [False, True, False] and "one of three falls too, to nothing" in SAID
    entropy = sound[1].means("entropy/mean")[1][-1]
    assert "one of the three falls leaks" in SAID and f"an entropy of {entropy:.1f} nats" in SAID
    cured = runs["LLDS action, untruncated, reliable search"]
    assert sum(run.fell for run in cured) == 1 and "with LLDS one, not to nothing" in SAID
    assert min(run.results["after"]["em"] for run in cured) > 0.2


def test_the_real_model_over_150_batches() -> None:
    runs = {arm: seeds[0] for arm, seeds in kept("real-long").items() if seeds}
    assert list(runs) == ["GRPO", "LLDS action"] and not any(run.fell for run in runs.values())
    assert [len(run.series("reward/mean")[0]) for run in runs.values()] == [150, 150]
    both = list(runs.values())
    assert (
        not any(turned(measure, both) for measure in (LEAKED, DRIFTED))
        and "in 24 batches, in 48 with half the batch, or in 150" in SAID
    )
    assert sum(runs["GRPO"].series("optimizer_steps_per_rollout")[1]) == 600
    assert [list(between(run, "eval/em", 25, 25)) for run in runs.values()] == [[0.98], [0.81]]
    gpu = " ".join((REPOSITORY / "docs/reference/gpu.md").read_text(encoding="utf-8").split())
    minutes = [run.results["seconds"] / 60 for run in both]
    assert "took {:.0f} minutes with plain GRPO and {:.0f} with LLDS".format(*minutes) in gpu
    updates, steps = ([median(between(run, f"time/{part}_s", 1, 12)) for run in both] for part in ("update", "step"))
    assert all(f"took {seconds:.1f} seconds, the median" in gpu for seconds in updates)
    assert "each took {:.1f} to {:.1f} seconds a step".format(*steps) in gpu
    likelihood, entropy = (runs["GRPO"].means(name)[1] for name in ("likelihood/correct", "entropy/mean"))
    assert likelihood[-1] > likelihood[0] and entropy[-1] < entropy[0]


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


def test_stale_rollouts_on_a_real_model(tmp_path: Path) -> None:
    runs = kept("real-old")
    falls = {arm: (sum(run.fell for run in seeds), len(seeds)) for arm, seeds in runs.items()}
    old = "8 batches old"
    arms = {
        arm: falls[f"{old}, {arm}"]
        for arm in ("LLDS action", "LLDS action, 0.2", "SAPO", "score centering", "TIS", "IPO")
    }
    assert falls[old] == (3, 3) and list(arms.values()) == [(0, 3), (0, 3), (0, 3), (1, 3), (2, 3), (3, 3)]
    assert falls["4 batches old"] == (1, 2) and falls["GRPO"] == (1, 3)
    scores = {
        arm: {run.seed: em for run in seeds if not math.isnan(em := summarise(run).em_after)}
        for arm, seeds in runs.items()
    }
    both = ("GRPO", old, "4 batches old", *(f"{old}, {arm}" for arm in arms if arm not in ("SAPO", "IPO")))
    ems = {arm: mean(scores[arm][seed] for seed in (13, 15)) for arm in both}
    assert f"falls on 3 of 3 seeds** ({ems[old]:.2f}), where fresh rollouts end at {ems['GRPO']:.2f}" in SAID
    (sapo,), (ipo,) = (scores[f"{old}, {arm}"].items() for arm in ("SAPO", "IPO"))
    said = "LLDS at λ = 1 ({:.2f}), at the paper's 0.2 ({:.2f}) and SAPO at γ = 1 ({:.2f}, seed {}) fall on 0 of 3"
    assert said.format(*(ems[f"{old}, {arm}"] for arm in list(arms)[:2]), *sapo[::-1]) in SAID
    assert "IPO falls on 3 of 3 seeds ({:.0f}, seed {}), and".format(*ipo[::-1]) in SAID
    assert f"2 of 3 ({ems[f'{old}, TIS']:.2f})" in SAID and f"two seeds falls ({ems['4 batches old']:.2f})" in SAID
    searches = [run.means("rollout/searches")[1] for run in runs[old]]
    assert f"It searches up to {max(map(max, searches)):.1f} times a question, then at most once" in SAID
    assert max(means[-1] for means in searches) < 1.05
    rise = [ends.entropy_last - ends.entropy_first for ends in map(summarise, runs[old])]
    assert f"entropy rises by {min(rise):.1f} to {max(rise):.1f} nats" in SAID
    (hidden,) = (run for run in runs[f"{old}, score centering"] if run.seed == 15)
    assert not hidden.fell and summarise(hidden).em_after == 0.01
    said = f"ends at {ems[f'{old}, score centering']:.2f}: on seed 15 the final weights answer 1 % although the reward"
    assert said in SAID and f"old, still was {summarise(hidden).last:.2f}" in SAID
    later = [100 * scores[f"{old}, {arm}"][14] for arm in ("TIS", "score centering")]
    assert "warm start, TIS answers {:.0f} % and score centering {:.0f} %.".format(*later) in SAID
    slow, cured = (
        sorted(runs[f"{old}{cure}, half the rate"], key=lambda run: run.seed) for cure in ("", ", LLDS action")
    )
    assert not any(run.fell for run in (*slow, *cured)) and [run.seed for run in slow] == [13, 14, 15]

    def percent(*ended: RunSeries, em: str = "em") -> list[str]:
        return [f"{100 * run.results['after'][em]:.0f}" for run in ended]

    starts = [run.results["before"]["em"] for run in kept("factbook")["GRPO"]]  # of the same warm starts
    fresh = sorted(runs["GRPO, half the rate"], key=lambda run: run.seed)
    (weaker,) = runs[f"{old}, LLDS action, 0.2, half the rate"]
    begun = "from starts of {:.0f}, {:.0f} and {:.0f} %".format(*(100 * start for start in starts))
    said = (
        "plain GRPO ends at {}, {} and {} % on seeds 13, 14 and 15, {}; eight batches old at {}, {} and {} %, and LLDS"
    )
    assert [run.seed for run in fresh] == [13, 14, 15]
    assert said.format(*percent(*fresh), begun, *percent(*slow)) in SAID
    said = "and LLDS at λ = 1 at {}, {} and {} %, greedily at {}, {} and {} % where plain GRPO has {}, {} and {} %."
    assert said.format(*percent(*cured), *percent(*cured, *slow, em="em_greedy")) in SAID
    said = "At the paper's 0.2, run on the second seed alone, it ends at {} %, and greedily at {} %."
    assert weaker.seed == 14 and said.format(*percent(weaker), *percent(weaker, em="em_greedy")) in SAID
    aged = kept("real-age")
    cost = [
        100 * (plain.results["after"]["em"] - theirs.results["after"]["em"])
        for plain, theirs in (*zip(fresh, slow, strict=True), *zip(aged["GRPO"], aged[old], strict=True))
    ]
    assert f"on six seeds eight batches cost plain GRPO {min(cost):.0f} to {max(cost):.0f} points, and LLDS" in SAID
    assert (
        "The rewards end at {:.2f}, {:.2f} and {:.2f}, the last two".format(*(summarise(run).last for run in slow))
        in SAID
    )
    means = (mean(run.results["after"]["em"] for run in arm) for arm in (cured, slow, fresh))
    said = "Three other seeds: {2:.2f} fresh, {1:.2f} at eight, {0:.2f} with LLDS at 1."
    assert said.format(*means) in SAID
    page = (REPOSITORY / "research/docs/real-old.md").read_text(encoding="utf-8")  # made of the kept runs
    verdict = page.partition("At half the rate fresh rollouts learn and do not fall.")[2].partition("\n")[0]
    assert "**partly**, 2 of 3" in verdict
    above = [
        theirs.results["after"]["em"] > plain.results["after"]["em"]
        for plain, theirs in (*zip(slow, cured, strict=True), *zip(aged[old], aged[f"{old}, LLDS action"], strict=True))
    ]
    assert not any(run.fell for run in fresh) and sum(above) == 5 and "ends above it on five." in SAID
    restore("real-old", tmp_path)
    found = [
        [
            (f.code, f.certain)
            for f in diagnose(read_log(tmp_path / "runs" / f"8-batches-old-{cure}half-the-rate-s{run.seed}")).findings
        ]
        for cure, arm in (("", slow), ("llds-action-", cured))
        for run in arm
    ]
    said = (
        "`{}` at batch {} on the first; `{}` at {}, `{}` at {} and `{}` at {} on the second; `{}` at {}, `{}` at {} "
        "and `{}` at {} on the third; and nothing under LLDS at λ = 1."
    )
    told = [finding for codes in found for finding in codes if finding[0] != "TRN001"]
    assert said.format(*(x for finding in told for x in finding)) in SAID and not any(found[3:])
    tested = {run.seed for run in runs[old] if not math.isnan(summarise(run).em_after)}
    assert tested == {13, 15}
    lost = {arm: max(map(most_lost, seeds)) for arm, seeds in runs.items()}
    said = "at most {:.0f}, {:.0f} and {:.0f} % of its peak under them, {:.0f} % with fresh rollouts"
    assert said.format(*(100 * lost[f"{old}, {arm}"] for arm in list(arms)[:3]), 100 * lost["GRPO"]) in SAID
    assert f"and {100 * min(map(most_lost, runs[old])):.0f} to {100 * lost[old]:.0f} % under plain GRPO" in SAID


def test_how_old_rollouts_may_be(tmp_path: Path) -> None:
    runs, old = kept("real-age"), "8 batches old"
    assert {len(seeds) for seeds in runs.values()} == {3} and {len(run.rows) for run in runs["GRPO"]} == {48}

    def cell(arm: str, *, greedy: bool) -> str:
        ends = [run.results["after"] for run in sorted(runs[arm], key=lambda run: run.seed)]
        sampled = ", ".join(f"{100 * end['em']:.0f}" for end in ends)
        return f"{sampled}; greedy {100 * mean(end['em_greedy'] for end in ends):.0f}" if greedy else sampled

    readme = " ".join((REPOSITORY / "README.md").read_text(encoding="utf-8").split())
    arms = {"fresh": ["GRPO"], "one batch old": ["1 batch old"], "four": ["4 batches old"]}
    cured = [f"{old}, {cure}" for cure in ("LLDS action, 0.2", "LLDS action", "SAPO")]
    for name, row in {**arms, "eight": [old, *cured]}.items():
        cells = [cell(arm, greedy=True) for arm in row] + ["–"] * (4 - len(row))
        assert f"| {name} | {' | '.join(cells)} |" in SAID
    for name, row in {"fresh rollouts": ["GRPO"], "eight batches old": [old, *cured[:2]]}.items():
        ends = [[run.results["after"] for run in runs[arm]] for arm in row]
        cells = [f"{mean(e['em'] for e in end):.2f} ({mean(e['em_greedy'] for e in end):.2f})" for end in ends]
        assert f"| {name} | {' | '.join(cells).replace('0.', '.')} |" in readme
    ems = {arm: mean(run.results["after"]["em"] for run in seeds) for arm, seeds in runs.items()}
    ages = ["GRPO", "1 batch old", "4 batches old", old]
    said = "{:.2f} fresh, {:.2f} at one batch, {:.2f} at four, {:.2f} at eight; at eight LLDS at 0.2 has {:.2f}, at 1"
    assert said.format(*(ems[arm] for arm in (*ages, cured[0]))) in SAID
    assert f"at 1 {ems[cured[1]]:.2f}, SAPO {ems[cured[2]]:.2f}." in SAID
    said = "{:.2f} with LLDS at 0.2, {:.2f} at 1, {:.2f} with SAPO, where fresh rollouts have {:.2f}."
    assert said.format(*(ems[arm] for arm in (*cured, "GRPO"))) in SAID
    cost = {
        arm: [
            f"{100 * (fresh.results['after']['em'] - run.results['after']['em']):.0f}"
            for fresh, run in zip(runs["GRPO"], runs[arm], strict=True)
        ]
        for arm in ages[1:]
    }
    one, four, eight = cost.values()
    said = "Eight batches cost {}, {} and {} points.** Four cost {}, {} and {}, and one {}, {} and {}, which"
    assert said.format(*eight, *four, *one) in SAID
    left = sorted(100 * (ems["GRPO"] - ems[arm]) for arm in cured)
    assert (left[0], left[-1]) == (
        pytest.approx(5, abs=0.5),
        pytest.approx(10.5),
    )
    first = [100 * mean(row["reward/em"] for row in run.rows[:9]) for run in runs[old]]  # rollouts of the start
    assert "{:.0f}, {:.0f} and {:.0f} % are right.".format(*first) in SAID
    assert [sum(run.fell for run in runs[arm]) for arm in (*ages, *cured)] == [0, 0, 1, 1, 0, 0, 0]
    ends = [summarise(run) for run in runs[old]]
    lost = [100 * (1 - end.last / max(run.means("reward/mean")[1])) for end, run in zip(ends, runs[old], strict=True)]
    said = f"ends {lost[0]:.0f}, {lost[1]:.0f} and {lost[2]:.0f} % below its peak at eight batches."
    assert said in SAID and f"it recovers to {ends[2].last:.2f}, although" in SAID and ends[2].em_after == 0
    assert f"loses up to {100 * max(most_lost(run) for arm in cured for run in runs[arm]):.0f} % of its peak" in SAID
    halved = [(arm, run.seed) for arm, seeds in runs.items() for run in seeds if turned(DRIFTED, [run])]
    assert (
        halved == [(ages[2], 18), *((old, seed) for seed in (16, 17, 18))] and "on the four runs that go wrong" in SAID
    )
    assert all(turned(DISPLACED, [run]) for arm in ages for run in runs[arm]) and "on all twelve runs of plain" in SAID
    for arm in cured:
        pairs = zip(runs[arm], runs[old], strict=True)
        assert all(theirs.results["after"]["em"] > plain.results["after"]["em"] for theirs, plain in pairs)
    found = {
        (job.arm, job.seed): {f.code: f.certain or 0 for f in diagnose(read_log(job.folder)).findings}
        for job in finished("real-age", tmp_path)
    }
    wrong = [found[run] for run in halved]
    assert not any(codes for (arm, seed), codes in found.items() if arm in ages and (arm, seed) not in halved)
    said = f"`SMP001`, from batch {min(c['SMP001'] for c in wrong)} to {max(c['SMP001'] for c in wrong)}, then `ISD001`"
    moved = [min(step for code, step in codes.items() if code in ("ISD001", "LLD003")) for codes in wrong]
    assert f"{said} or `LLD003`, from {min(moved)} to {max(moved)}." in SAID
    told = [list(codes) for (arm, _), codes in found.items() if arm in cured]
    assert sorted(told) == [[]] * 7 + [["SMP001"]] * 2 and "Of the nine with a penalty, `SMP001` on two" in SAID


def test_what_diagnose_says_of_the_real_model(tmp_path: Path) -> None:
    found: dict[str, list[dict[str, int]]] = {"stale": [], "penalty": [], "fresh": []}
    for name in ("real-old", "factbook", "real-long"):
        for job in finished(name, tmp_path):
            cure = "penalty" if "LLDS" in job.arm or "SAPO" in job.arm else "stale"
            codes = {f.code: f.certain or 0 for f in diagnose(read_log(job.folder)).findings}
            found[cure if "old" in job.arm else "fresh"].append(codes)
    sampler, moved = (
        [min(steps) for codes in found["stale"] if (steps := [codes[code] for code in wanted if code in codes])]
        for wanted in (("SMP001",), ("ISD001", "LLD003"))
    )
    penalised = [len(found["penalty"]), sum("SMP001" in codes for codes in found["penalty"])]
    assert f"`SMP001` on all {len(sampler)} stale runs without a penalty by batch {max(sampler)}" in SAID
    assert penalised == [13, 8] and len(found["stale"]) == len(sampler) == len(moved) + 1
    assert f"`ISD001` or `LLD003`, from batch {min(moved)} to {max(moved)}, on all of the {len(sampler)} but" in SAID
    assert not any({"ISD001", "LLD003"} & set(codes) for kind in ("penalty", "fresh") for codes in found[kind])
    assert f"on none of {len(found['fresh'])} with fresh rollouts" in SAID


def test_displacement_turns_first_on_a_real_model() -> None:
    runs = [run for seeds in kept("real-old").values() for run in seeds]
    dropped = [(run, drop) for run in runs if (drop := drop_step(run)) is not None]
    until = median(drop for _, drop in dropped)
    others = [run for run in runs if drop_step(run) is None]
    first = [(below_step(run, "displacement/correct", 0.0), drop) for run, drop in dropped]
    ahead = [drop - below for below, drop in first if below is not None and below < drop]
    early = [(below_step(run, "displacement/correct", 0.0) or math.inf) <= until for run in others]
    said = f"before {len(ahead)} of {len(dropped)} drops of all arms, some {median(ahead):.0f} batches ahead"
    assert f"below 0 {said}, and in {sum(early)} of {len(others)} runs that never drop" in SAID


def most_lost(run: RunSeries) -> float:
    """The most of its peak that the reward has lost, in five-step means."""
    means = run.means("reward/mean")[1]
    return max(1 - low / max(means[: at + 1]) for at, low in enumerate(means))
