"""The page on explanations: tables are those of the kept runs, and sentences count what they count."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from statistics import mean

import pytest

from holdfast.base.run_folder import CONFIG
from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.log.collapse import course, curve_of
from holdfast.diagnose.log.collapse import fell as fall_of
from holdfast.diagnose.readers import read_log
from holdfast.recipe import load
from holdfast.recipe.loading import find_recipe as recipe
from holdfast_research.experiments import find
from holdfast_research.judge import MIN_STEPS
from holdfast_research.pages.arms import Method, methods, surged
from holdfast_research.pages.curves import figures
from holdfast_research.pages.kept_runs import KEPT, restore
from holdfast_research.pages.why import (
    DISPLACED,
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
from research.tests.why_page import SAID, TEXT, finished, kept, of

READ_OFF = ("GRPO", "GRPO, sampling mask kept")
LLDS, SAPO, RATIO_ALONE = "LLDS action, λ = 1.0", "SAPO, γ = 1.0", "SAPO, ratio condition alone, γ = 1.0"


@pytest.fixture(scope="module")
def found() -> dict[str, Method]:
    return runs_by_name()


def test_the_tables_and_figures_are_those_of_the_runs(found: dict[str, Method]) -> None:
    assert page(TEXT, found) == TEXT, "python -m holdfast_research.pages.why"
    shown = {*re.findall(r"\(figures/(.+)\)", TEXT)}
    assert len(shown) == 4
    for about in ("rivals", "real-age"):
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
    assert [found[name].fell for name, stayed in remedies.items() if stayed].count(1) == 1  # of the seven
    assert all(judged(sampler, found, entropy_surged, removes=True).values())
    ends = {name: f"{m.mean_of(lambda run: run.em_after):.2f}" for name, m in found.items()}
    masked, centred = ends["GRPO, sampling mask kept"], ends["score centering"]
    surging = [ends[name] for name, m in found.items() if not m.fell and m.surged == len(m.runs)]
    assert f"end at {masked} and {centred}, arms that never fell and surged on each seed at {min(surging)} to" in SAID
    assert f"none: test EM {ends['GRPO, untruncated sampler']}, sampled. The others end at {masked}, {centred}," in SAID
    assert max(ends.values()) == ends["SimpleTIR"] and f"{centred}, {ends['SimpleTIR']} and {ends[SAPO]}, plain" in SAID
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
    shifted = f"{turned(DISPLACED, fallen)} of {len(fallen)} runs that fell and in {turned(DISPLACED, others)} of"
    assert f"it turns in {shifted} {len(others)} others. The sampler's turns in {turned(LEAKED, fallen)}, all" in SAID
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
    again = [found[name].fell for name in ("interleaved SFT, every batch", "GiGPO, weight 4", "Clip-Cov, 2 %")]
    assert again == [1, 3, 3] and "interleaved SFT after every batch fell on one" in SAID
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
                codes = {f.code: f.certain for f in diagnose(read_log(job.folder)).findings}
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
    bypass = [runs[f"{age}, ratios to the sampler{cure}"] for cure in ("", ", LLDS action") for age in old[:2]]
    assert [len(arm) for arm in bypass] == [3] * 4 and not any(fall_step(run) for arm in bypass for run in arm)
    ends = [mean(summarise(run).em_after for run in arm) for arm in bypass]
    said = (
        "test EM is {:.2f} and {:.2f}. LLDS at 1 on top, which then holds on to weights that old, takes that to {:.2f}"
    )
    assert f"{said} and {{:.2f}}.".format(*ends) in SAID
    cost = [f"{100 * (ends[at] - ends[at + 2]):.0f}" for at in (0, 1)]
    words = " ".join((REPOSITORY / "docs" / "reference" / "hosts.md").read_text(encoding="utf-8").split())
    assert "LLDS at 1 on top costs {} and {} points".format(*cost) in words
    oldest = [runs[f"16 batches old{cure}"] for cure in ("", ", ratios to the sampler", ", LLDS action")]
    assert [sum(fall_step(run) is not None for run in arm) for arm in oldest] == [3, 0, 0]
    plain, to_sampler, penalised = (mean(summarise(run).em_after for run in arm) for arm in oldest)
    said = f"ends at 0 on 3 of 3 seeds, with such ratios at {to_sampler:.2f}, and with LLDS at 1 instead of them at"
    assert f"{said} {penalised:.2f}." in SAID and plain == 0
    eight, control = (last_of(runs[arm]) for arm in ("8-bit sampler", "GRPO, untruncated sampler"))
    assert f"the reward ends at {eight:.2f}, not {control:.2f}" in SAID


def test_every_run_that_fell_had_a_cause_that_the_table_names(tmp_path: Path) -> None:
    counts: Counter[tuple[str, bool]] = Counter()
    also: Counter[str] = Counter()
    usual = load(recipe("factbook")).train.lr
    shares: dict[tuple[str, str], list[float]] = {("llds", "nonnegative"): [], ("sapo", "positive"): []}
    seen: set[tuple[float, ...]] = set()  # runs that several experiments share
    for name in sorted(path.parent.name for path in KEPT.glob(f"*/{PLAN_FILE}")):
        for job in finished(name, tmp_path):
            config, run = load(job.folder / CONFIG), read_run(job.folder, job.arm, job.seed)
            sampling, rewards = config.sampling, tuple(run.series("reward/mean")[1])
            truncated = (sampling.top_p < 1 or sampling.top_k > 0) and not sampling.mask_logprobs
            fast = name in ("real-fall", "real-old") and config.train.lr > usual
            cause = "sampler" if truncated else "age" if config.train.staleness else "rate" if fast else ""
            if rewards not in seen:
                counts[cause, run.fell] += 1
                also["lost"] += run.fell and truncated and config.faults.search_failure_rate > 0
                also["fast"] += run.fell and cause == "age" and fast
                also["short"] += not cause and len(run.rows) < MIN_STEPS
                also["flat"] += not cause and name == "second-search"
            seen.add(rewards)
            if preserved := run.series("penalty/preserved_fraction")[1]:
                penalty = config.loss.penalty
                shares.get((penalty.name, getattr(penalty, "preserve", "")), []).append(mean(preserved))
    fallen = [counts[cause, True] for cause in ("sampler", "age", "rate")]
    said = f"{fallen[0]} a truncated sampler, {also['lost']} of them with lost searches; {fallen[1]} stale rollouts,"
    assert f"{said} {also['fast']} of them at twice the rate; {fallen[2]} two or five times" in SAID
    upright = sum(count for (cause, fell_too), count in counts.items() if cause and not fell_too)
    assert f"All {sum(fallen)} runs of the experiments" in SAID and f"have {upright} that did not fall." in SAID
    said = f"The {counts['', False]} runs with none did not, but {also['short']} have 24 batches and {also['flat']}"
    assert said in SAID and not counts["", True]
    bounds = [f"{bound:.2f}" for of_kind in shares.values() for bound in (min(of_kind), max(of_kind))]
    assert bounds == ["0.50", "0.95", "0.18", "0.52"]  # what papers.md and the guides of TRL and verl say of both


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
