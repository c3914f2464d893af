from __future__ import annotations

from typing import Any

from holdfast.diagnose.finding import Finding
from holdfast.train.listener import Listener, Listeners, StepResult

FINDING = Finding(code="GRD002", step=1, summary="", evidence={}, series=(), remedy="")


def calls() -> list[tuple[str, tuple[Any, ...]]]:
    """Every method of a listener, and arguments for it."""
    return [
        ("stage", ("training", 3)),
        ("advance", (1, {"loss": 0.5})),
        ("note", ("a sentence",)),
        ("step", (StepResult(step=1, metrics={"reward/mean": 0.5}),)),
        ("finding", (FINDING,)),
        ("close", ()),
    ]


def test_listeners_are_told_everything_in_their_order() -> None:
    told: list[tuple[str, str, tuple[Any, ...]]] = []

    class Named(Listener):
        def __init__(self, name: str) -> None:
            for method in methods:
                setattr(self, method, lambda *args, method=method: told.append((name, method, args)))

    methods = [name for name in dir(Listener) if not name.startswith("_")]
    assert sorted(methods) == sorted(method for method, _ in calls())
    both = Listeners(Named("a"), Listener(), Named("b"))
    for method, arguments in calls():
        getattr(both, method)(*arguments)
    assert told == [(name, method, arguments) for method, arguments in calls() for name in "ab"]
