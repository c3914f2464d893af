"""What `pages.world` measures is what it says; the measures that need no model keep their bounds here."""

from __future__ import annotations

import pytest

from holdfast.cli.recipes import find as find_recipe
from holdfast.recipe import load
from holdfast_research.pages import world


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


@pytest.mark.parametrize("part", ["best_guess", "oracle", "one_search", "hit_rates", "leaks", "sizes"])
def test_the_quickstarts_world_keeps_its_bounds(bench: world.Bench, part: str) -> None:
    measures = list(getattr(world, part)(bench))
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
