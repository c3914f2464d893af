"""The pages on explanations and on claims: tables are those of the kept runs, and sentences count what they count."""

from __future__ import annotations

import json
import math
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import mean, median

import pytest

from holdfast.base.collapse import course, curve_of
from holdfast.base.collapse import fell as fall_of
from holdfast.base.run_folder import CONFIG
from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.readers import read_log
from holdfast.recipe import load
from holdfast_research.experiments import find
from holdfast_research.jobs import TrainingJob
from holdfast_research.judge import MIN_STEPS
from holdfast_research.pages import claims, hosts
from holdfast_research.pages.arms import Method, methods, surged
from holdfast_research.pages.claims import kept_runs
from holdfast_research.pages.curves import figures
from holdfast_research.pages.kept_runs import KEPT, restore
from holdfast_research.pages.why import (
    DISPLACED,
    DRIFTED,
    ENOUGH,
    EXPLANATIONS,
    LEAKED,
    PAGE,
    Explanation,
    counted,
    fell,
    judged,
    page,
    runs_by_name,
    thirds,
    turned,
)
from holdfast_research.pages.why import surged as entropy_surged
from holdfast_research.paths import READINGS, REPOSITORY
from holdfast_research.plan import PLAN_FILE, load_plan
from holdfast_research.series import RunSeries, below_step, between, drop_step, read_run, summarise, surge_step
from holdfast_research.values import Status

TEXT = PAGE.read_text(encoding="utf-8")
SAID = " ".join(TEXT.split())
READ_OFF = ("GRPO", "GRPO, sampling mask kept")
LLDS, SAPO, RATIO_ALONE = "LLDS action, λ = 1.0", "SAPO, γ = 1.0", "SAPO, ratio condition alone, γ = 1.0"


@pytest.fixture(scope="module")
def found() -> dict[str, Method]:
    return runs_by_name()


def kept(experiment: str) -> Mapping[str, tuple[RunSeries, ...]]:
    return {arm: tuple(runs) for arm, runs in kept_runs(experiment, KEPT).items()}


def of(method: Method) -> list[RunSeries]:
    return [run for _, run in sorted(method.runs.items())]


def test_the_tables_and_figures_are_those_of_the_runs(found: dict[str, Method]) -> None:
    assert page(TEXT, found) == TEXT, "python -m holdfast_research.pages.why"
    shown = {*re.findall(r"\(figures/(.+)\)", TEXT)}
    assert len(shown) == 4
    for about in ("rivals", "real-old"):
        drawn = figures(find(about), kept(about))
        while any(name.startswith(about) for name in shown):
            _, name, svg = next(drawn)
            assert name not in shown or svg == (PAGE.parent / "figures" / name).read_text(encoding="utf-8")
            shown.discard(name)


def test_what_the_explanations_are_right_on(found: dict[str, Method]) -> None:
    arms = counted(found)
    assert f"All {len(arms)} arms with runs on this testbed count" in SAID
    assert not {"LLDS, λ = 0.01", "SAPO, γ = 0.1", "GRPO"} & set(arms) and LLDS in arms and SAPO in arms

    def right(one: Explanation) -> int:
        return sum(sum(judged(one, found, fell, removes=removes).values()) for removes in (True, False))

    sampler, displacement, *others = EXPLANATIONS
    assert (sampler.name, displacement.name) == ("Sampler drift", "Displacement")
    counts = [right(one) for one in others]
    said = f"Displacement is right on {right(displacement)} of {len(arms)} arms, sampler drift on {right(sampler)}, the"
    assert said in SAID and f"others on {min(counts)} to {max(counts)}." in SAID
    remedies = judged(displacement, found, fell, removes=True)
    assert all(judged(sampler, found, fell, removes=True).values()) and "the sampler's three do not fall" in SAID
    assert (sum(remedies.values()), len(remedies)) == (7, 8) and "seven of eight against displacement do not" in SAID
    assert all(judged(sampler, found, entropy_surged, removes=True).values())
    ends = {name: f"{m.mean_of(lambda run: run.em_after):.2f}" for name, m in found.items()}
    masked, centred = ends["GRPO, sampling mask kept"], ends["score centering"]
    surging = [ends[name] for name, m in found.items() if not m.fell and m.surged == len(m.runs)]
    assert f"end at {masked} and {centred}, arms that never fell and surged on each seed at {min(surging)} to" in SAID
    assert (
        f"top-p 1 none: test EM {ends['GRPO, untruncated sampler']}. The others end at {masked}, {centred} and" in SAID
    )
    greedy = found["GRPO"].mean_of(lambda run: run.greedy_after)
    assert f"to {max(surging)}. Greedily even plain GRPO ends at {greedy:.2f}" in SAID
    last = [summarise(run).last / max(run.means("reward/mean")[1]) for run in of(found["GRPO"])]
    drawn = [course(run.reward).back_step for run in kept("testbeds")["GRPO"]]
    assert sum(share > 0.8 for share in last) == 5 and sum(step is not None for step in drawn) == 3  # eight of ten
    kept_up = [m for name, m in arms.items() if not m.fell and not name.startswith(sampler.removes)]
    assert sum(m.surged > 0 for m in kept_up) > len(kept_up) / 2


def test_the_mass_leaks_where_entropy_surges(found: dict[str, Method]) -> None:
    runs = [run for method in found.values() for run in of(method)]
    fallen, others = ([run for run in runs if run.fell is kind] for kind in (True, False))
    assert f"turns in {turned(LEAKED, fallen)} of {len(fallen)} runs that fell" in SAID
    assert f"and in {turned(LEAKED, others)} of {len(others)} others, those whose entropy surges" in SAID
    unlike = [run for run in fallen if not turned(LEAKED, [run])]
    assert len(unlike) == 3 and all(run in of(found["SAPO, no condition, γ = 1.0"]) for run in unlike)
    assert all(surged(run) for run in others if turned(LEAKED, [run]))
    for run in of(found["GRPO"]):
        surge, drop = surge_step(run, "entropy/mean", 0.3), drop_step(run)
        assert surge is not None and drop is not None and surge < drop


def test_the_calm_arms_that_leave_the_sampler_as_it_is(found: dict[str, Method]) -> None:
    sampler, *_ = EXPLANATIONS
    few = {name for name, m in counted(found).items() if m.failed / len(m.runs) <= 1 - ENOUGH}
    calm = {name for name in few if not name.startswith(sampler.removes)}
    small = {"SimpleTIR", RATIO_ALONE, "GSPO + LLDS action, λ = 1.0"}
    assert calm == {*small, "PPO", "Geo-RS"} and "as it is**: five arms" in SAID

    def tails(*names: str) -> list[float]:
        each = [between(run, "advantage/tail_mean", 20, 60) for name in names for run in of(found[name])]
        return [mean(values) for values in each if values]

    low, high = min(tails(*small)), max(tails(*small))
    assert len(tails(*small)) == 9 and f"stays between {low:.2f} and {high:+.2f} over the steps 20 to 60" in SAID
    for name, said in (("GRPO", "plain GRPO is {:.2f} to {:.2f}"), ("Geo-RS", "loose bounds has {:.2f} to {:.2f}")):
        assert said.format(min(tails(name)), max(tails(name))) in SAID
    assert tails("PPO") == [] and "PPO has no such series" in SAID
    assert f"an entropy of {found['SimpleTIR'].mean_of(lambda run: run.entropy_last):.2f} nats" in SAID


def test_how_strong_a_penalty(found: dict[str, Method]) -> None:
    assert [found[name].fell for name in ("LLDS, λ = 0.01", "LLDS, λ = 0.1, response gate")] == [3, 3]
    assert found["LLDS, λ = 0.2"].fell == 0 and all(drop_step(run) for run in of(found["LLDS, λ = 0.2"]))
    assert not any(drop_step(run) for run in of(found[LLDS]))
    sapo = ("SAPO, γ = 0.1", SAPO, "SAPO, τ = 0.6, γ = 1.0")
    assert [(found[name].fell, len(found[name].runs)) for name in sapo] == [(2, 3), (0, 5), (2, 3)]
    for name, said in (("GRPO", "steps {} to {} under plain"), (SAPO, "{} to {} under SAPO"), (LLDS, "{} to {} under")):
        steps = [step for run in of(found[name]) if (step := surge_step(run, "entropy/mean", 0.3)) is not None]
        assert len(steps) == 5 and said.format(min(steps), max(steps)) in SAID
    rare = {arm: runs for arm, runs in kept("preserving").items() if arm.endswith(", preserved, rare")}
    assert {arm[:3]: sum(map(surged, runs)) for arm, runs in rare.items()} == {"A ≥": 0, "cor": 3}
    assert not any(run.fell for runs in rare.values() for run in runs)
    anchored = [run for arm, runs in kept("anchor").items() if arm.endswith(", anchor") for run in runs]
    assert [run.fell for run in anchored] == [False] * 6 and all(map(surged, anchored))


def test_the_predicted_arms_ended_as_the_page_says(found: dict[str, Method]) -> None:
    assert [found[name].fell for name in ("interleaved SFT", "GiGPO", "Clip-Cov", "variance filter")] == [3] * 4
    ends = [summarise(run) for run in of(found["score centering"])]
    assert [end.fell for end in ends] == [False] * 3
    assert sum(end.last < 0.85 * end.peak for end in ends) == 1
    assert "score centering ended below 85 % of its peak on one seed of three" in SAID


def test_what_the_page_says_of_the_tokens_that_updates_move() -> None:
    table = SAID.partition("<!-- tokens -->")[2].partition("<!-- end -->")[0]
    rows = [[float(x) for x in re.findall(r"-?\d\.\d\d", row)] for row in table.split(" |---")[-1].split(" | [")[1:]]
    gaps = [push - by_response for row in rows for push, by_response in zip(row[:2], row[2:4], strict=True)]
    assert f"it takes {min(gaps):.2f} to {max(gaps):.2f} off their share of the push" in SAID
    old = kept("real-old")
    later, first = (thirds(old["8 batches old"], f"likelihood/{where}_observation") for where in ("after", "before"))
    said = "later actions go from {} to {} nats per token under plain GRPO, first actions from {} to {}."
    assert said.format(*later.split(" → "), *first.split(" → ")) in SAID
    moved = [
        abs(float(before) - float(after))
        for arm in ("LLDS action", "LLDS action, 0.2", "SAPO")
        for where in ("after", "before")
        for before, after in [thirds(old[f"8 batches old, {arm}"], f"likelihood/{where}_observation").split(" → ")]
    ]
    assert f"neither moves by more than {max(moved):.2f}" in SAID


def test_displacement_came_before_as_many_drops_as_the_page_says() -> None:
    """A run that several experiments share counts in the first; those that the number was read off do not count."""
    seen: list[object] = []
    since = []
    for name in ("death-spiral", "testbeds", *sorted(path.parent.name for path in KEPT.glob(f"*/{PLAN_FILE}"))):
        for arm, runs in kept(name).items():
            for run in runs:
                rewards, drop = run.series("reward/mean"), drop_step(run)
                if len(run.rows) >= MIN_STEPS and drop is not None and rewards not in seen:
                    seen.append(rewards)
                    below = below_step(run, "displacement/correct", -0.002)
                    first_page = name == "death-spiral" and arm in READ_OFF and run.seed < 14
                    if name != "testbeds" and not first_page:
                        since.append(below is not None and below < drop)
    assert f"nats per token came before {sum(since)} of {len(since)} drops of runs" in SAID


def test_other_worlds_and_the_real_model() -> None:
    with tempfile.TemporaryDirectory() as folder:
        restore("testbeds", Path(folder))
        first: dict[bool, list[str]] = {True: [], False: []}
        for job in (job for job in load_plan(Path(folder)).jobs(Path(folder)) if job.folder.exists()):
            said = diagnose(read_log(job.folder))
            every = sorted((f.step, f.code) for f in (*said.findings, *said.notes) if f.step is not None)
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
    assert f"from {start:.2f} to {ends['GRPO']:.2f}, means of three seeds" in readme
    assert f"level with it ({ends['LLDS action, 0.2']:.2f})" in readme
    assert f"at 1 it reaches {ends['LLDS action']:.2f}, SAPO {ends['SAPO']:.2f}" in readme
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
    assert not any(turned(measure, both) for measure in (LEAKED, DRIFTED)) and "24 batches or 150" in SAID
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


def test_a_sampler_with_other_weights() -> None:
    runs = kept("mismatch")
    falls = {arm: sorted(steps) for arm, seeds in runs.items() if (steps := [*filter(None, map(fall_step, seeds))])}
    old = ("1 batch old", "4 batches old", "16 batches old")
    assert all(len(falls[arm]) == len(runs[arm]) for arm in old) and "8-bit sampler" not in falls
    assert f"one batch old it falls at steps {in_words(falls[old[0]])}; the" in SAID
    assert f"Four batches old it falls at {in_words(falls[old[1]])}, and ends at 0." in SAID
    lasts, ems = (
        [of(run) for run in runs[old[0]]] for of in (lambda r: summarise(r).last, lambda r: summarise(r).em_after)
    )
    assert f"are {min(lasts):.2f} to {max(lasts):.2f}, and test EM is {min(ems):.2f} to {max(ems):.2f}" in SAID
    assert not any(fall_step(run) for run in runs["GRPO, untruncated sampler"])
    with tempfile.TemporaryDirectory() as folder:
        restore("mismatch", Path(folder))
        leads = []
        for job in load_plan(Path(folder)).jobs(Path(folder)):
            if job.arm in (*old, "8-bit sampler") and job.folder.exists():
                codes = {f.code: f.step for f in diagnose(read_log(job.folder)).findings}
                fallen = fall_step(next(run for run in runs[job.arm] if run.seed == job.seed))
                assert ("SMP001" in codes) is (fallen is not None)
                leads += [fallen - (codes["SMP001"] or 0)] if fallen is not None else []
    assert f"a finding in all {len(leads)} runs that fall uncured, {min(leads)} to {max(leads)} steps before" in SAID
    cured = {arm: runs[f"4 batches old, {arm}"] for arm in ("LLDS action", "SAPO", "TIS")}
    with_llds = [*cured["LLDS action"], *runs["1 batch old, LLDS action"]]
    assert len(with_llds) == 6 and not any(fall_step(run) or surged(run) for run in with_llds)
    assert not any(map(fall_step, cured["SAPO"])) and f"SAPO keeps {last_of(cured['SAPO']):.2f}" in SAID
    assert min(falls["4 batches old, TIS"]) > max(falls[old[1]])
    centred = {age: runs[f"{age}, score centering"] for age in old[:2]}
    held = [run for arm in (*centred.values(), runs["1 batch old, TIS"]) for run in arm]
    assert len(held) == 9 and not any(map(fall_step, held)) and len(falls["4 batches old, TIS"]) == 3
    rows = (*centred.values(), *(runs[f"{age}{cure}"] for cure in ("", ", LLDS action") for age in old[:2]))
    ems = [f"{mean(summarise(run).em_after for run in arm):.2f}" for arm in rows]
    assert "test EM is {} and {}, where plain GRPO has {} and {}, and LLDS {} and {}.".format(*ems) in SAID
    eight, control = (last_of(runs[arm]) for arm in ("8-bit sampler", "GRPO, untruncated sampler"))
    assert f"the reward ends at {eight:.2f}, not {control:.2f}" in SAID


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
        arm: [em for run in seeds if not math.isnan(em := summarise(run).em_after)] for arm, seeds in runs.items()
    }
    ems = {arm: mean(known) for arm, known in scores.items() if known}
    assert f"falls on 3 of 3 seeds** ({ems[old]:.2f}), where fresh rollouts end at {ems['GRPO']:.2f}" in SAID
    said = "LLDS at λ = 1 ({:.2f}), at the paper's 0.2 ({:.2f}) and SAPO at γ = 1 ({:.2f}) fall on 0 of 3"
    assert said.format(*(ems[f"{old}, {arm}"] for arm in list(arms)[:3])) in SAID
    assert (
        f"TIS on 2 of 3 ({ems[f'{old}, TIS']:.2f})" in SAID and f"two seeds falls ({ems['4 batches old']:.2f})" in SAID
    )
    (hidden,) = (run for run in runs[f"{old}, score centering"] if run.seed == 15)
    assert not hidden.fell and summarise(hidden).em_after == 0.01
    assert f"and ends at {ems[f'{old}, score centering']:.2f}: on one seed" in SAID
    well, slow = sorted(runs[f"{old}, half the rate"], key=lambda run: run.seed)
    (cured,) = runs[f"{old}, LLDS action, half the rate"]
    assert not any(run.fell for run in (well, slow, cured)) and slow.seed == cured.seed == 14
    assert f"from {summarise(slow).peak:.2f} to {summarise(slow).last:.2f}, within the noise of the rule" in SAID
    ended = [100 * summarise(run).em_after for run in (slow, cured, well)]
    fresh = mean(summarise(run).em_after for run in kept("factbook")["GRPO"])
    said = "weights answer {:.0f} % of the test questions. LLDS at λ = 1 ends at {:.0f} % there. On seed 13 plain GRPO "
    assert (said + "ends at {:.0f} %. After as many fresh").format(*ended) in SAID
    assert f"rollouts it was [{100 * fresh:.0f} %]" in SAID
    (control,) = runs["GRPO, half the rate"]
    assert f"on seed 14 the reward with them ends at {summarise(control).last:.2f}, and was not tested" in SAID
    restore("real-old", tmp_path)
    found = [
        [(f.code, f.step) for f in diagnose(read_log(tmp_path / "runs" / f"8-batches-old-{name}")).findings]
        for name in ("half-the-rate-s14", "half-the-rate-s13", "llds-action-half-the-rate-s14")
    ]
    said = "`{}` at batch {}, `{}` at {} and `{}` at {} on the first, `{}` at {} on the last, and nothing under LLDS."
    assert said.format(*(x for codes in found for finding in codes for x in finding)) in SAID and not found[2]
    readme = " ".join((REPOSITORY / "README.md").read_text(encoding="utf-8").split())
    tested = {run.seed for run in runs[old] if not math.isnan(summarise(run).em_after)}
    percent = [
        100 * mean(summarise(run).em_after for run in runs[arm] if run.seed in tested)
        for arm in (old, f"{old}, LLDS action", "GRPO")
    ]
    said = "ends at {:.0f} % of questions right, LLDS at {:.0f} %, fresh rollouts at {:.0f} %."
    assert tested == {13, 15} and said.format(*percent) in readme
    lost = {arm: max(map(most_lost, seeds)) for arm, seeds in runs.items()}
    said = "at most {:.0f}, {:.0f} and {:.0f} % of its peak under them, {:.0f} % with fresh rollouts"
    assert said.format(*(100 * lost[f"{old}, {arm}"] for arm in list(arms)[:3]), 100 * lost["GRPO"]) in SAID
    assert f"and {100 * min(map(most_lost, runs[old])):.0f} to {100 * lost[old]:.0f} % under plain GRPO" in SAID


def test_what_diagnose_says_of_the_real_model(tmp_path: Path) -> None:
    found: dict[str, list[dict[str, int]]] = {"stale": [], "penalty": [], "fresh": []}
    for name in ("real-old", "factbook", "real-long"):
        for job in finished(name, tmp_path):
            cure = "penalty" if "LLDS" in job.arm or "SAPO" in job.arm else "stale"
            codes = {f.code: f.step or 0 for f in diagnose(read_log(job.folder)).findings}
            found[cure if "old" in job.arm else "fresh"].append(codes)
    sampler, moved = (
        [min(steps) for codes in found["stale"] if (steps := [codes[code] for code in wanted if code in codes])]
        for wanted in (("SMP001",), ("ISD001", "LLD003"))
    )
    penalised = [len(found["penalty"]), sum("SMP001" in codes for codes in found["penalty"])]
    assert f"`SMP001` on all {len(sampler)} stale runs without a penalty by batch {max(sampler)}" in SAID
    assert penalised == [10, 7] and len(found["stale"]) == len(sampler) == len(moved) + 1
    assert f"`ISD001` or `LLD003`, from batch {min(moved)} to {max(moved)}, on all of the {len(sampler)} but" in SAID
    assert not any({"ISD001", "LLD003"} & set(codes) for kind in ("penalty", "fresh") for codes in found[kind])
    assert f"on none of {len(found['fresh'])} with fresh rollouts" in SAID


def test_every_run_that_fell_had_a_cause_that_the_table_names(tmp_path: Path) -> None:
    counts: Counter[tuple[str, bool]] = Counter()
    seen: set[tuple[float, ...]] = set()  # runs that several experiments share
    for name in sorted(path.parent.name for path in KEPT.glob(f"*/{PLAN_FILE}")):
        for job in finished(name, tmp_path):
            config, run = load(job.folder / CONFIG), read_run(job.folder, job.arm, job.seed)
            sampling, rewards = config.sampling, tuple(run.series("reward/mean")[1])
            truncated = (sampling.top_p < 1 or sampling.top_k > 0) and not sampling.mask_logprobs
            cause = "sampler" if truncated else "age" if config.faults.stale_batches else ""
            cause = cause or ("rate" if name in ("real-fall", "real-old") else "")
            counts[cause, run.fell] += rewards not in seen
            seen.add(rewards)
    fallen = [counts[cause, True] for cause in ("sampler", "age", "rate")]
    said = "All {} runs kept that fell have one of these: {} a truncated sampler, {} stale rollouts, {} two or five"
    assert said.format(sum(fallen), *fallen) in SAID
    assert f"The {counts['', False]} runs with none did not fall." in SAID and not counts["", True]


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


def finished(name: str, folder: Path) -> list[TrainingJob]:
    """The kept runs of an experiment, put into a folder."""
    restore(name, folder / name)
    return [job for job in load_plan(folder / name).jobs(folder / name) if job.folder.exists()]


def most_lost(run: RunSeries) -> float:
    """The most of its peak that the reward has lost, in five-step means."""
    means = run.means("reward/mean")[1]
    return max(1 - low / max(means[: at + 1]) for at, low in enumerate(means))


def last_of(runs: tuple[RunSeries, ...]) -> float:
    return mean(summarise(run).last for run in runs)


def fall_step(run: RunSeries) -> int | None:
    curve = curve_of([row["reward/mean"] for row in run.rows])
    return int(curve.steps[curve.fallen.argmax()]) if curve.fallen.any() else None


def in_words(numbers: list[int]) -> str:
    return " and ".join(filter(None, [", ".join(map(str, numbers[:-1])), str(numbers[-1])]))


def test_a_question_alone_displaces_few() -> None:
    displaced = []
    for run in json.loads((READINGS / "influence.json").read_text(encoding="utf-8"))["runs"]:
        fall = fall_of(curve_of(list(run["rewards"].values()), [int(step) for step in run["rewards"]]))
        assert fall is not None
        for checkpoint in run["checkpoints"]:
            if fall.peak_step < checkpoint["step"] <= fall.step:
                changes: dict[str, float] = {}
                for question, _, action, _, _, _, optimizer in map(str.split, checkpoint["units"]):
                    if action == "0":
                        changes[question] = changes.get(question, 0.0) + float(optimizer)
                displaced += [change < 0 for change in changes.values()]
    assert f"displaces {sum(displaced)} of {len(displaced)} questions at the fall" in SAID


def test_equal_settings_are_one_method_and_other_starts_are_left_out(tmp_path: Path) -> None:
    """SAPO's τ of 1 and preserving A ≥ 0 are arms of death-spiral under other names, there with five seeds."""
    for experiment in ("coefficient", "death-spiral", "preserving", "sapo", "testbeds"):
        shutil.copytree(KEPT / experiment, tmp_path / experiment)
    groups = methods(tmp_path)
    assert set(groups) == {"{}"}  # testbeds draws them with the seed
    found = {method.name: method for method in groups["{}"]}
    assert len(found) == len(groups["{}"])
    assert found[SAPO].experiment == "death-spiral" and set(found[SAPO].runs) == {*range(11, 16)}
    assert not {name for name in found if "τ = 1.0" in name or "rare" in name or "A ≥ 0" in name}
    assert {"LLDS, λ = 0.2", "SAPO, no condition, γ = 1.0", "KL to the reference, 0.1"} <= set(found)
    # One start: the warm start's greedy score, which no seed bears on, is the same everywhere.
    assert {run.results["before"]["em_greedy"] for method in found.values() for run in of(method)} == {0.025}


def test_the_long_runs_end_as_the_page_says() -> None:
    runs = {arm: of_arm[0] for arm, of_arm in kept("long-runs").items()}
    rewards = {arm: [row["reward/mean"] for row in run.rows] for arm, run in runs.items()}
    falls = {arm: curve.steps[curve.fallen.argmax()] for arm in runs if (curve := curve_of(rewards[arm])).fallen.any()}
    assert {len(of_run) for of_run in rewards.values()} == {300}
    assert falls == {"GRPO": 36, "GRPO, reliable search": 162}
    assert all(curve_of(rewards[arm]).back[-60:].any() for arm in falls)
    assert "falls at step 36, and with reliable searches at step 162; both come back late." in SAID
    assert max(set(runs) - set(falls), key=lambda arm: mean(rewards[arm][-5:])) == "GRPO, sampling mask kept"


# ---- the papers' claims: what the kept runs say of each


CLAIMS = (claims.DOCS / "claims.md").read_text(encoding="utf-8")


def test_the_page_of_claims_is_what_the_kept_runs_say() -> None:
    made = claims.whole_page()
    assert made == CLAIMS, "python -m holdfast_research.pages.claims"


def test_every_claim_of_a_paper_is_there_once_with_its_verdict_or_without(tmp_path: Path) -> None:
    """Of a repository that keeps one experiment."""
    shutil.copytree(KEPT / "per-sample", tmp_path / "per-sample")
    found = list(claims.answers(tmp_path))
    with_verdict = {one.experiment for one in found if one.verdict}
    assert with_verdict == {"per-sample"}
    asked = [one.claim for one in found if one.experiment == "per-sample"]
    assert asked == [claim for claim in find("per-sample").claims if claim.paper != "control"]
    assert {one.verdict.word for one in found if one.verdict} <= set(Status)

    page = claims.page(found)
    displaced = "Late in training, more than half of the correct rollouts lose likelihood in the run's own update."
    collapses = "Plain GRPO on a search agent rises, then collapses."
    assert page.count(f"| {displaced} |") == 1 and "(smaller.md#per-sample)" in page
    assert page.count(f"* {collapses}") == 1 and "`death-spiral`, `testbeds`" in page and "(testbeds.md)" not in page
