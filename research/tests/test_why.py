"""The page on why agents collapse: tables are those of the kept runs, and sentences count what they count."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from statistics import mean

import pytest

from holdfast.base.run_folder import CONFIG
from holdfast.diagnose.log.collapse import curve_of
from holdfast.diagnose.log.collapse import fell as fall_of
from holdfast.hosts.advice import ADVICE
from holdfast.recipe import load
from holdfast_research.experiments import EXPERIMENTS, find
from holdfast_research.judge import noise
from holdfast_research.pages.arms import methods
from holdfast_research.pages.curves import picture_of
from holdfast_research.pages.kept_runs import KEPT
from holdfast_research.pages.why import DISPLACED, MEASURES, PAGE, page, turned
from holdfast_research.paths import DOCS, READINGS
from holdfast_research.plan import PLAN_FILE
from holdfast_research.series import RunSeries, drop_step, read_run, summarise, surge_step
from research.tests.why_page import SAID, TEXT, finished, kept, scores


def test_the_tables_and_the_figure_are_those_of_the_runs() -> None:
    assert page(TEXT) == TEXT, "python -m holdfast_research.pages.why"
    assert re.findall(r"\(figures/(.+)\)", TEXT) == ["real-age.svg"]
    drawn = picture_of(find("real-age"), kept("real-age"))
    assert drawn == (PAGE.parent / "figures" / "real-age.svg").read_text(encoding="utf-8")


def test_every_figure_is_on_a_page() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in DOCS.glob("*.md"))
    shown = set(re.findall(r"\(figures/([^)]+)\)", pages))
    assert shown == {path.name for path in (DOCS / "figures").iterdir()}


def test_the_page_is_short_and_so_are_its_sentences() -> None:
    assert len(TEXT.split()) <= 3000
    prose = " ".join(line for line in TEXT.splitlines() if not line.startswith(("|", "#", "!", "<!--")))
    plain = re.sub(r"\[([^]]+)\]\([^)]*\)|[`*]", r"\1", prose)
    lengths = [len(sentence.split()) for sentence in re.split(r"(?<=[.:?])\s+(?=[A-Z`\[*])|\s\*\s", plain) if sentence]
    assert max(lengths) <= 30 and mean(lengths) <= 17


def test_the_study_is_short() -> None:
    pages = {path.stem: path.read_text(encoding="utf-8") for path in DOCS.glob("*.md")}
    assert sum(len(text.split()) for text in pages.values()) <= 25_000
    for name in EXPERIMENTS:
        lines = pages.get(name, "").splitlines()
        prose = [word for line in lines if not line.startswith(("|", "![", "#")) for word in line.split()]
        words = re.findall(r"[^\W_][\w.,–'-]*", re.sub(r"\]\([^)]*\)", "]", " ".join(lines)))
        assert len(prose) <= 300 and len(words) <= 900, name


def test_the_truncated_sampler() -> None:
    runs, others = kept("death-spiral"), kept("remedies")

    def fell(*arms: tuple[RunSeries, ...]) -> list[int]:
        return [sum(run.fell for run in arm) for arm in arms]

    def surged(*arms: tuple[RunSeries, ...]) -> list[int]:
        return [sum(summarise(run).surged for run in arm) for arm in arms]

    back = [summarise(run).last / max(run.means("reward/mean")[1]) for run in runs["GRPO"]]
    assert fell(runs["GRPO"]) == [5] and sum(share > 0.8 for share in back) == 5
    penalised = runs["LLDS action"], runs["SAPO"]
    assert fell(*penalised) == [0, 0] and surged(*penalised) == [5, 5]
    plain, llds, sapo = (mean(scores(arm)) for arm in (runs["GRPO"], *penalised))
    assert abs(llds - plain) < noise(400) < sapo - plain
    calm = others["SimpleTIR"], others["PPO"]
    assert fell(*calm) == surged(*calm) == [0, 0] and fell(others["NTHR"], others["DPPO"]) == [3, 3]
    drawn = kept("testbeds")
    assert fell(drawn["GRPO"], drawn["GRPO, untruncated sampler"]) == [5, 0]
    assert [len(drawn[arm]) for arm in ("GRPO", "GRPO, untruncated sampler")] == [5, 3]
    assert "plain GRPO falls on 5 of 5 too, and on 0 of 3 untruncated" in SAID


def test_how_strong_a_penalty() -> None:
    runs, weak, sapo = kept("death-spiral"), kept("coefficient"), kept("sapo")
    assert [sum(run.fell for run in weak[arm]) for arm in ("λ = 0.01", "λ = 0.1, response gate", "λ = 0.2")] == [
        3,
        3,
        0,
    ]
    assert all(drop_step(run) for run in weak["λ = 0.2"]) and not any(map(drop_step, runs["LLDS action"]))
    assert (sum(run.fell for run in sapo["γ = 0.1"]), len(sapo["γ = 0.1"])) == (2, 3)
    surges = {
        arm: [surge_step(run, "entropy/mean", 0.3) or 0 for run in runs[arm]] for arm in ("GRPO", "LLDS action", "SAPO")
    }
    span = {arm: f"{min(steps)} to {max(steps)}" for arm, steps in surges.items()}
    assert (
        f"batches {span['LLDS action']} with LLDS and {span['SAPO']} with SAPO. Plain GRPO has {span['GRPO']}." in SAID
    )
    anchored = [run for arm, seeds in kept("anchor").items() if ", anchor" in arm for run in seeds]
    assert len(anchored) == 9 and not any(run.fell for run in anchored)


def test_displacement_also_turns_in_healthy_runs() -> None:
    real = [run for seeds in kept("factbook").values() for run in seeds]
    assert not any(run.fell for run in real) and len(MEASURES) == 6
    assert turned(DISPLACED, real) == 5 and "also turns in five healthy runs of the real model" in SAID


def test_the_tiny_model_with_stale_rollouts() -> None:
    runs = kept("mismatch")

    def ends(arm: str) -> tuple[float, float]:
        return mean(scores(runs[arm])), mean(scores(runs[arm], greedy=True))

    fresh, one, four = (ends(arm) for arm in ("GRPO, untruncated sampler", "1 batch old", "4 batches old"))
    assert all(theirs < ours - 0.4 for ours, theirs in zip(fresh, one, strict=True)) and four == (0, 0)
    for cure in ("ratios to the sampler", "score centering"):
        for age in ("1 batch old", "4 batches old"):
            assert all(old > new - noise(400) for new, old in zip(fresh, ends(f"{age}, {cure}"), strict=True))
    oldest = ends("16 batches old, ratios to the sampler")
    assert oldest[0] > fresh[0] - 0.1 and oldest[1] == pytest.approx(fresh[1] / 2, abs=0.02)
    both = ends("4 batches old, ratios to the sampler, LLDS action")
    assert f"LLDS at 1 takes greedy answers at four batches to {both[1]:.2f}." in SAID
    to_sampler = [
        ends(f"{age}, ratios to the sampler{cure}")[0]
        for age in ("1 batch old", "4 batches old")
        for cure in ("", ", LLDS action")
    ]
    cost = [f"{100 * (to_sampler[at] - to_sampler[at + 1]):.0f}" for at in (0, 2)]
    assert "LLDS at 1 on top cost {} and {} points sampled".format(*cost) in ADVICE["sampler"].stronger


def test_the_share_of_preserved_tokens_is_what_the_guides_say(tmp_path: Path) -> None:
    shares: dict[tuple[str, str], list[float]] = {("llds", "nonnegative"): [], ("sapo", "positive"): []}
    for name in sorted(path.parent.name for path in KEPT.glob(f"*/{PLAN_FILE}")):
        for job in finished(name, tmp_path):
            run = read_run(job.folder, job.arm, job.seed)
            if preserved := run.series("penalty/preserved_fraction")[1]:
                penalty = load(job.folder / CONFIG).loss.penalty
                shares.setdefault((penalty.name, getattr(penalty, "preserve", "")), []).append(mean(preserved))
    bounds = [f"{bound:.2f}" for of_kind in list(shares.values())[:2] for bound in (min(of_kind), max(of_kind))]
    assert bounds == ["0.49", "0.95", "0.18", "0.52"]  # what papers.md and the guides of TRL and verl say of both


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
    words = " ".join((DOCS / "influence.md").read_text(encoding="utf-8").split())
    assert f"displaces {sum(displaced)} of {len(displaced)} questions" in words


def test_equal_settings_are_one_method_and_other_starts_are_left_out(tmp_path: Path) -> None:
    """SAPO's τ of 1 and preserving A ≥ 0 are arms of death-spiral under other names, there with five seeds."""
    for experiment in ("coefficient", "death-spiral", "preserving", "sapo", "testbeds"):
        shutil.copytree(KEPT / experiment, tmp_path / experiment)
    groups = methods(tmp_path)
    assert set(groups) == {"{}"}  # testbeds draws them with the seed
    found = {method.name: method for method in groups["{}"]}
    assert len(found) == len(groups["{}"])
    sapo = found["SAPO, γ = 1.0"]
    assert sapo.experiment == "death-spiral" and set(sapo.runs) == {*range(11, 16)}
    assert not {name for name in found if "τ = 1.0" in name or "rare" in name or "A ≥ 0" in name}
    assert {"LLDS, λ = 0.2", "SAPO, no condition, γ = 1.0", "KL to the reference, 0.1"} <= set(found)
    # One start: the warm start's greedy score, which no seed bears on, is the same everywhere.
    runs = [run for method in found.values() for run in method.runs.values()]
    assert {run.results["before"]["em_greedy"] for run in runs} == {0.025}
