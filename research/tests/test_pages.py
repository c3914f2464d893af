"""Pages and tables of the study, each made from small runs."""

from __future__ import annotations

import gzip
import json
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from operator import gt
from pathlib import Path
from statistics import mean
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from holdfast.base.errors import DataError
from holdfast.hosts.advice import ADVICE
from holdfast.recipe import load
from holdfast.recipe.loading import find_recipe
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.types import Document
from holdfast.train.start import warm_start_only
from holdfast.train.start_cache import SHIPPED
from holdfast_research.experiments import find
from holdfast_research.hits import main
from holdfast_research.pages import claims, gallery, leak, stale, world
from holdfast_research.pages.filling import filled
from holdfast_research.pages.influence import Pairs, estimate, ranks
from holdfast_research.pages.kept_runs import KEPT
from holdfast_research.pages.stale import FRESH, HALF, LLDS, OLD, WEAK
from holdfast_research.pages.terminal import PICTURE, drawn, printed, text_of
from holdfast_research.paths import REPOSITORY
from holdfast_research.starts import differences, measure
from holdfast_research.values import Status
from holdfast_research.wiki import prepare

# ---- the table of seeds


Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_finished_runs_become_the_table(run: Run, tmp_path: Path) -> None:
    for seed, after in ((1, 0.5), (2, 0.7)):
        folder = tmp_path / f"collapse-grpo--sane-step--lr---5-s{seed}"
        folder.mkdir()
        rows = [
            {"step": s, "reward/mean": s / 10, "entropy/mean": 1.5, "displacement/correct": 0.01} for s in range(1, 8)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        scores = {"before": {"em": 0.2, "em_greedy": 0.3}, "after": {"em": after, "em_greedy": 0.6}, "seconds": 9.0}
        (folder / "results.json").write_text(json.dumps(scores))
    done = run("pages.seeds", "collapse", "--out", tmp_path, "--seeds", 1, 2, "--arms", "sane step")
    assert done.returncode == 0, done.stderr
    # Means of five steps of .1 … .7: .3, .4, .5. At .4 a fifth of the peak is missing, which is not near it.
    assert (
        "| GRPO, sane step (lr / 5) | 1 | 0.30 → 0.50 (7) → 0.50 (0.50) | 1 | 1.50 → 1.50 | +0.0100 | 0.200 → 0.500 | "
        "0.300 → 0.600 |" in done.stdout
    )
    assert "sampled EM +0.400 (seeds +0.300 to +0.500), greedy +0.300" in done.stdout
    assert done.stdout.rstrip().endswith("collapsed on 0 of 2 seeds")
    assert (tmp_path / "collapse.md").read_text() == done.stdout


# ---- the picture of a terminal


def test_the_picture_is_what_the_command_prints() -> None:
    output = re.sub(r"\x1b\[[0-9;]*m", "", printed())
    shown = text_of(PICTURE.read_text(encoding="utf-8"))
    assert shown.splitlines() == [line for line in output.splitlines() if line]
    assert "LLD002  step 270" in shown and shown.endswith("diagnose --explain LLD002")


def test_it_is_small_and_loads_nothing() -> None:
    svg = PICTURE.read_text(encoding="utf-8")
    assert len(svg) < 60_000
    assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert not re.search(r"href|url\(|@import|<script", svg)


def test_colours_and_marks_are_kept() -> None:
    svg = drawn("\x1b[1;31mA<B\x1b[0m & c\n\n\x1b[2mlog\x1b[0m")
    assert '<tspan font-weight="bold" fill="#ff8b81">A&lt;B</tspan> &amp; c</text>' in svg
    assert text_of(svg) == "A<B & c\nlog"


# ---- what the command prints, on pages


def test_the_gallery_is_what_the_command_prints() -> None:
    for path, text in gallery.pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is behind the command: run `make docs`"


# ---- how often an index finds an answer


def test_hits_of_each_set_and_of_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ("Oslo\nThe capital of Norway is Oslo.", "Alps\nThe Alps are high.", "Capital\nNorway has one capital.")
    index = BM25Retriever.build([Document(str(i), text) for i, text in enumerate(texts)])
    index.save(tmp_path / "index")
    asked = [("nq", "capital of Norway", "oslo"), ("popqa", "high mountains", "Andes"), ("popqa", "high", "alps")]
    questions = tmp_path / "test.jsonl"
    rows = [{"question": text, "golden_answers": [gold], "data_source": name} for name, text, gold in asked]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    main(questions, [tmp_path / "index"])
    _, _, nq, popqa, everything = capsys.readouterr().out.splitlines()
    assert nq == "| index | nq | 1 | 0.00 | 1.00 | 1.00 | 1.00 |  |"
    assert popqa == "| index | popqa | 2 | 0.50 | 0.50 | 0.50 | 0.50 |  |"
    assert everything.startswith("| index | all | 3 | 0.33 | 0.67 | 0.67 | 0.67 | ")


# ---- the study on Wikipedia


def test_the_recipe_trains_on_two_sets_and_tests_all(tmp_path: Path) -> None:
    folder, out = tmp_path / "given", tmp_path / "wiki"
    folder.mkdir()
    with gzip.open(folder / "corpus.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write('{"id": "1", "contents": "\\"Oslo\\"\\nThe capital of Norway."}\n')
    for name in ("nq.train", "hotpotqa.train", "nq.dev", "nq.test", "popqa.test"):
        row = {"id": name, "question": "what is the capital of norway", "golden_answers": ["Oslo"]}
        (folder / f"{name}.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    prepare(folder, out)
    sets = {
        split: {json.loads(line)["data_source"] for line in (out / f"{split}.jsonl").read_text().splitlines()}
        for split in ("train", "dev", "test")
    }
    assert sets == {"train": {"nq", "hotpotqa"}, "dev": {"nq"}, "test": {"nq", "popqa"}}
    config = load(out / "wiki.toml")
    assert config.protocol.prompt is not None and "{question}" in config.protocol.prompt
    assert Path(config.retrieval.corpus).read_text().startswith('{"id": "1"')


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no corpus\.jsonl\.gz"):
        prepare(tmp_path, tmp_path / "wiki")


# ---- the flow of probability that a truncated sampler makes


def test_the_flow_is_the_gradient_of_the_loss_over_what_is_sampled() -> None:
    logits = torch.linspace(1.0, -2.0, 9, dtype=torch.float64, requires_grad=True)
    p = logits.detach().softmax(-1)
    q = torch.where(torch.arange(9) < 4, p, 0.0)  # of the first five, three have 0.797 and four 0.917
    q = q / q.sum()
    advantage = -0.3
    (advantage * q * logits.log_softmax(-1)).sum().backward()
    change, mass = leak.flow(logits.detach(), 0.8, 5, advantage)
    torch.testing.assert_close(change, logits.grad)
    assert mass == pytest.approx(float(p[:4].sum()))


@pytest.mark.parametrize("name", list(leak.SAMPLERS))
def test_only_a_mismatch_moves_anything_and_its_sign_is_the_advantages(name: str) -> None:
    def entropies(advantage: float) -> list[float]:
        return [row["entropy/mean"] for row in leak.trace(*leak.SAMPLERS[name], advantage, steps=30)]

    down, up = np.diff(entropies(-leak.SIZE)), np.diff(entropies(leak.SIZE))
    if name.startswith("untruncated"):
        assert max(abs(down).max(), abs(up).max()) < 1e-12
    else:
        assert (down > 0).all() and up.sum() < 0


def test_a_top_p_sampler_follows_what_leaks_and_a_top_k_sampler_does_not() -> None:
    last = {name: leak.trace(*sampler, -leak.SIZE)[-1]["sampler/mask_mass"] for name, sampler in leak.SAMPLERS.items()}
    assert last["top-p 0.9"] == pytest.approx(0.9, abs=0.01) and last["top-p 0.95"] == pytest.approx(0.95, abs=0.01)
    assert last["top-k 64"] < 0.6 and last["top-p 0.9 and top-k 64"] < 0.4


# ---- the world


@pytest.fixture(scope="module")
def bench() -> world.Bench:
    recipe = find_recipe("quickstart")
    settings = {
        "--world.scripts.count": "60",
        "--warm_start.steps": "2",
        "--world.model.hidden": "16",
        "--world.model.layers": "1",
    }
    return world.open_bench(load(recipe, [word for pair in settings.items() for word in pair]))


def test_the_quickstarts_world_keeps_its_bounds(bench: world.Bench) -> None:
    for part in (world.best_guess, world.oracle, world.one_search, world.hit_rates, world.leaks, world.sizes):
        measures = list(part(bench))
        assert len({m.name for m in measures}) == len(measures) > 0
        assert [m for m in measures if not m.holds] == []


def test_a_bound_can_be_missed() -> None:
    good, low, high = (world.Measure("hits", v, least=0.8, most=0.98) for v in (0.9, 0.79, 0.99))
    assert [m.holds for m in (good, low, high)] == [True, False, False]
    size = world.Measure("passages", 2520)
    assert world.table({0: [good, size], 7: [low]}).splitlines() == [
        "| measure | bound | world 0 | world 7 |",
        "|---|---|---|---|",
        "| hits | ≥ 0.8 and ≤ 0.98 | 0.9 | 0.79 **missed** |",
        "| passages |  | 2,520 |  |",
    ]


def test_shuffled_passages_are_about_somebody_else(bench: world.Bench) -> None:
    questions = bench.questions("test")
    shuffled = world.Shuffled(bench.retrievers.eval, questions)
    queries = [f"{q.hops[0].asked} of {q.hops[0].fact.subject}" for q in questions]
    hits = shuffled.search(queries, 3)
    assert hits == shuffled.search(queries, 3)  # an agent that asks again reads the same
    for question, found in zip(questions, hits, strict=True):
        assert question.hops[0].fact.subject not in [hit.document.title for hit in found]
        assert len(found) == 3
    assert len({found[0].document.id for found in hits}) > 100


# ---- influence: pooling and intervals


def made(levels: Sequence[float], rng: random.Random, *, questions: int = 12, copies: int = 1) -> list[Pairs]:
    """A checkpoint for each level, where what was measured is the prediction with so much noise."""
    checkpoints = []
    for level in levels:
        pairs = [(x := rng.random(), x + level * rng.random()) for _ in range(questions)]
        checkpoints.append({f"q{k}": np.asarray([pair] * copies) for k, pair in enumerate(pairs)})
    return checkpoints


def test_checkpoints_are_not_mixed_and_runs_count_alike() -> None:
    """Two checkpoints of opposite order and levels far apart, in a run, beside a run with one."""
    up = {"a": np.asarray([(1.0, 1.0), (2.0, 2.0)]), "b": np.asarray([(3.0, 3.0)])}
    down = {"a": np.asarray([(1.0, 103.0), (2.0, 102.0)]), "b": np.asarray([(3.0, 101.0)])}
    assert (pooled := estimate([[up, down], [up]], ranks, draws=50)) is not None
    assert pooled.value == pytest.approx(mean([mean([1, -1]), 1]))
    assert estimate([[], []], ranks, draws=50) is None
    two = {"a": np.asarray([(1.0, 1.0), (2.0, 2.0)])}
    assert estimate([[two]], ranks, draws=50) is None


def test_the_interval_draws_questions() -> None:
    """Copies of a unit within its question are no more evidence, and so are copies of a checkpoint."""
    once = made([1.0], random.Random(1))
    copied = made([1.0], random.Random(1), copies=20)
    first, second, third = (estimate([c], ranks, draws=400) for c in (once, copied, once * 5))
    assert first is not None and second is not None and third is not None
    assert first.low < first.value < first.high and first.high - first.low > 0.2
    assert (third.low, third.high) == (first.low, first.high)
    assert (second.low, second.high) == pytest.approx((first.low, first.high), abs=0.05)


# ---- the starts that come with holdfast can be made again: another policy on another processor, with the same scores


@pytest.mark.long  # three minutes each
@pytest.mark.parametrize("recipe", ["quickstart", "flaky"])
def test_a_start_made_again_arrives_at_the_same_scores(recipe: str, tmp_path: Path) -> None:
    model = warm_start_only(load(find_recipe(recipe), ["--run.threads=1"]), tmp_path / "start")
    assert differences(recipe, measure(recipe, model)) == []


def test_other_scores_are_told_apart() -> None:
    shipped = measure("quickstart", SHIPPED / "quickstart" / "model")
    assert differences("quickstart", shipped) == []
    assert [line.split(":")[0] for line in differences("quickstart", shipped | {"em": shipped["em"] + 0.2})] == ["em"]


# ---- the papers' claims: the page is what the kept runs say of each


def test_the_page_of_claims_is_what_the_kept_runs_say() -> None:
    said = claims.PAGE.read_text(encoding="utf-8")
    table = claims.page([*claims.answers(), *claims.answers_of_reading()])
    assert filled(said, {"claims": table}) == said, "python -m holdfast_research.pages.claims"


def test_every_claim_of_a_paper_is_there_once_with_its_verdict_or_without(tmp_path: Path) -> None:
    """Of a repository that keeps one experiment."""
    shutil.copytree(KEPT / "per-sample", tmp_path / "per-sample")
    found = list(claims.answers(tmp_path))
    with_verdict = {one.experiment for one in found if one.verdict}
    assert with_verdict == {"per-sample"}
    asked = [one.claim for one in found if one.experiment == "per-sample"]
    assert asked == [claim for claim in find("per-sample").claims if claim.paper != "control"]
    assert {one.verdict.word for one in found if one.verdict} <= set(Status)

    rows = claims.page(found).splitlines()
    displaced = "Late in training, more than half of the correct rollouts lose likelihood in the run's own update."
    collapses = "Plain GRPO on a search agent rises, then falls."
    (row,) = (row for row in rows if f"| {displaced} |" in row)
    assert row.endswith("| [per-sample](smaller.md#per-sample) **shown** 3/3 |")
    (row,) = (row for row in rows if f"| {collapses} |" in row)
    assert row.endswith("| not run (`death-spiral`) |")


# ---- the numbers of docs/reference/advice.md and of `holdfast.hosts.advice` are those of the kept runs


def test_the_differences_are_those_of_the_runs() -> None:
    text = stale.PAGE.read_text(encoding="utf-8")
    assert stale.page(text) == text, "python -m holdfast_research.pages.stale"


def test_the_readme_has_two_of_them() -> None:
    readme = " ".join((REPOSITORY / "README.md").read_text(encoding="utf-8").split())
    cells = {row[0]: row[2] for line in stale.table().splitlines() if len(row := line.strip("| ").split(" | ")) == 4}
    age, back = cells["eight batches old, against fresh"], cells["eight batches old: LLDS at 0.2, against plain GRPO"]
    cost, low, high = (number.strip("−()") for number in age.replace("to ", "").split())
    assert f"cost plain GRPO {cost} points sampled (t95 {high} to {low})" in readme
    assert f"LLDS at 0.2 gives back {back}" in readme


def test_what_the_advice_says_it_costs() -> None:
    sampled, greedy = stale.scores("em_after"), stale.scores("greedy_after")

    def ends(experiment: str, arm: str) -> list[str]:
        return [
            f"{mean(v for (e, a, _), v in found.items() if (e, a) == (experiment, arm)):.2f}".removeprefix("0")
            for found in (sampled, greedy)
        ]

    def each(experiment: str, arm: str) -> list[list[str]]:
        seeds = [place for place in sampled if place[:2] == (experiment, arm)]
        return [[f"{found[place]:.2f}".removeprefix("0") for found in (sampled, greedy)] for place in seeds]

    fresh, old, sampler = (row.cost for row in ADVICE.values())
    plain, weak, strong = (ends("factbook", arm) for arm in (FRESH, "LLDS action, 0.2", "LLDS action"))
    assert f"sampled {weak[0]} for {plain[0]}, greedy {weak[1]} for {plain[1]}" in fresh
    assert f"at 1: sampled {strong[0]}, greedy {strong[1]}" in fresh
    none, weak, strong, best = (ends("real-age", arm) for arm in (OLD, WEAK, LLDS, FRESH))
    assert (
        f"none ends at {none[0]} sampled, {none[1]} greedy (" in old
        and f"; 0.2 at {', '.join(weak)}; 1 at {', '.join(strong)}" in old
    )
    assert f"fresh without a penalty {', '.join(best)}" in old
    places = (("real-age", OLD), ("real-old", OLD + HALF), ("old-policy", OLD))
    plain = [score for (experiment, arm, _), score in sampled.items() if (experiment, arm) in places]
    assert len(plain) == 8 and min(plain) == 0 and f"(0 to {max(plain):.2f} on eight seeds)".replace("0.", ".") in old
    one_more, none = (ends("old-policy", arm) for arm in ("fresh, LLDS action, 0.2", FRESH))
    said = " ".join(stale.PAGE.read_text(encoding="utf-8").split())
    assert "Fresh rollouts end higher there with LLDS at 0.2 than without" in said
    assert all(map(gt, one_more, none))
    (alone, also), (none, learned) = (each("old-policy", arm) for arm in (f"{OLD}, ratios to the sampler", OLD))
    assert f"{alone[0]} sampled, {alone[1]} greedy, for {', '.join(none)} recomputed" in sampler
    assert f"second seed {', '.join(also)} for {', '.join(learned)};" in sampler
    assert "half the learning rate does not help at eight batches, and M2PO falls late" in said
    assert "seed 20, which has no fresh run, plain GRPO learns at eight batches too" in said and min(learned) > ".8"
    assert all(map(gt, none, ends("old-policy", f"{OLD}, half the rate")))
    assert all(map(gt, ends("old-policy", FRESH), ends("old-policy", f"{OLD}, M2PO")))
