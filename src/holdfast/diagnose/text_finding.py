"""What many rollouts show in their texts, as a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFinding:
    """Something that many rollouts show in their texts."""

    kind: str
    """The name of the page's filter, a key of `texts.KINDS` or a name of its own."""
    step: int
    """The first step at which it is as frequent as in a finding."""
    summary: str
    example: str
    """A part of a rollout of that step, or near it."""
    advice: str
