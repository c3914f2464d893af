"""A listener that remembers everything."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.diagnose.finding import Finding
from holdfast.train.listener import Listener, StepResult


class Told(Listener):
    def __init__(self) -> None:
        self.stages: list[tuple[str, int | None]] = []
        self.advanced: list[tuple[int, dict[str, float]]] = []
        self.steps: list[tuple[int, dict[str, float]]] = []
        self.notes: list[str] = []
        self.alarms: list[Finding] = []

    @property
    def done(self) -> list[int]:
        """How much was done, each time it was told."""
        return [done for done, _ in self.advanced]

    def stage(self, name: str, total: int | None = None) -> None:
        self.stages.append((name, total))

    def advance(self, done: int, detail: Mapping[str, float] | None = None) -> None:
        self.advanced.append((done, dict(detail or {})))

    def step(self, result: StepResult) -> None:
        self.steps.append((result.step, dict(result.metrics)))

    def note(self, message: str) -> None:
        self.notes.append(message)

    def finding(self, finding: Finding) -> None:
        self.alarms.append(finding)
