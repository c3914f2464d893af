"""What `pages.world` measures is what it says; the measures that need no model keep their bounds here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from holdfast.cli.recipes import find as find_recipe
from holdfast.data.world.scripted import stated
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


def test_a_reading_stands_before_its_value(bench: world.Bench) -> None:
    moments = world.readings(bench)
    assert len(moments) > 850  # 200 dev and 400 test questions, half of them with two hops
    for moment in moments[::20]:
        context, forced = (bench.tokenizer.decode(ids) for ids in (moment.context, moment.forced))
        subject, written = forced.removeprefix("<think> ").split(" has ")
        last = context[context.rindex("<information>") :]
        assert stated(last)[moment.rank] == (subject, written, moment.text)
        assert bench.tokenizer.decode(moment.value) == f" {moment.text}"


def test_forced_reading_looks_at_the_value_and_nothing_else() -> None:
    """A model that predicts each next token right, but for position 5, which predicts token 6."""

    class Knowing(torch.nn.Linear):
        def forward(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
            logits = torch.nn.functional.one_hot(input_ids.roll(-1, dims=1), 50).float()
            logits[:, 5] = 0
            return SimpleNamespace(logits=logits)

    def moment(before: int) -> object:
        ids = tuple(range(1, before + 1))
        return world.Reading("one hop", ids[:-2], ids[-2:], (30, 31), "Kelan Orso", 0)

    policy = SimpleNamespace(model=Knowing(1, 1), pad_token_id=0)
    # A value of two tokens after n others is at positions n and n + 1, predicted at n - 1 and n.
    right = world.reads_forced(policy, [moment(n) for n in (4, 5, 6, 7)])
    assert right == [True, False, False, True]
