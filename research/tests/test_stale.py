"""The numbers of docs/reference/advice.md and of `holdfast.hosts.advice` are those of the kept runs."""

from __future__ import annotations

from statistics import mean

from holdfast.hosts.advice import ADVICE
from holdfast_research.pages.stale import FRESH, LLDS, OLD, PAGE, WEAK, page, scores, table
from holdfast_research.paths import REPOSITORY


def test_the_differences_are_those_of_the_runs() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text, "python -m holdfast_research.pages.stale"


def test_the_readme_has_two_of_them() -> None:
    readme = " ".join((REPOSITORY / "README.md").read_text(encoding="utf-8").split())
    cells = {row[0]: row[2] for line in table().splitlines() if len(row := line.strip("| ").split(" | ")) == 4}
    age, back = cells["eight batches old, against fresh"], cells["eight batches old: LLDS at 0.2, against plain GRPO"]
    cost, low, high = (number.strip("−()") for number in age.replace("to ", "").split())
    assert f"cost plain GRPO {cost} points sampled (t95 {high} to {low})" in readme
    assert f"LLDS at 0.2 gives back {back}" in readme


def test_what_the_advice_says_it_costs() -> None:
    sampled, greedy = scores("em_after"), scores("greedy_after")

    def ends(experiment: str, arm: str) -> list[str]:
        return [
            f"{mean(v for (e, a, _), v in found.items() if (e, a) == (experiment, arm)):.2f}".removeprefix("0")
            for found in (sampled, greedy)
        ]

    fresh, stale, sampler = (row.cost for row in ADVICE.values())
    plain, weak, strong = (ends("factbook", arm) for arm in (FRESH, "LLDS action, 0.2", "LLDS action"))
    assert f"sampled {weak[0]} for {plain[0]}, greedy {weak[1]} for {plain[1]}" in fresh
    assert f"at 1: sampled {strong[0]}, greedy {strong[1]}" in fresh
    none, weak, strong, best = (ends("real-age", arm) for arm in (OLD, WEAK, LLDS, FRESH))
    assert (
        f"none ends at {none[0]} sampled, {none[1]} greedy; 0.2 at {', '.join(weak)}; 1 at {', '.join(strong)}" in stale
    )
    assert f"fresh without a penalty {', '.join(best)}" in stale
    one_more, none = (ends("old-policy", arm) for arm in ("fresh, LLDS action, 0.2", FRESH))
    said = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert "LLDS at 0.2 ends at {} sampled and {} greedy, for {} and {} without".format(*one_more, *none) in said
    alone, new, none = (ends("old-policy", arm) for arm in (f"{OLD}, ratios to the sampler", FRESH, OLD))
    assert f"{alone[0]} sampled, {alone[1]} greedy, for {', '.join(new)} fresh and {', '.join(none)} recomp" in sampler
