"""The page on explanations: its tables are those of the runs, and its sentences count what they count."""

from __future__ import annotations

from collections.abc import Callable

from holdfast_research.pages.methods import Method
from holdfast_research.pages.why import (
    EXPLANATIONS,
    PAGE,
    Explanation,
    fell,
    fell_or_surged,
    judged,
    page,
    runs_by_name,
)

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_runs() -> None:
    assert page(TEXT) == TEXT


def test_the_sentences_count_what_the_runs_say() -> None:
    found = runs_by_name()
    sampler, *others = EXPLANATIONS
    assert all(judged(sampler, found, fell_or_surged, removes=True).values())
    of_others = {
        name: ok for other in others for name, ok in judged(other, found, fell_or_surged, removes=True).items()
    }
    words = {3: "three", 4: "four"}
    assert f"{words[sum(of_others.values())]} of {len(of_others)} do so" in " ".join(TEXT.split())

    def right(failed: Callable[[Method], int], explanation: Explanation) -> int:
        every = [judged(explanation, found, failed, removes=removes) for removes in (True, False)]
        return sum(sum(part.values()) for part in every)

    assert f"right on more than {max(right(fell, one) for one in EXPLANATIONS)} arms" in TEXT
    assert f"mismatch of sampler and loss is right on {right(fell_or_surged, sampler)}." in TEXT
    held = [name for name, ok in judged(sampler, found, fell, removes=False).items() if not ok]
    sound = [name for name in held if fell_or_surged(found[name]) / len(found[name].runs) <= 1 / 3]
    assert len(sound) == 5 and "Five stay sound" in TEXT
