"""What to change, in the words of each host: one text per remedy. `holdfast.hosts` has the words.

In a text, `[learning rate]` is followed by the host's name for it, if it has one here:

>>> advise("Lower the [learning rate].")["trl"], advise("Lower the [learning rate].")["unknown"]
('Lower the learning rate (`learning_rate`).', 'Lower the learning rate.')
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.diagnose.log import Log, finite, has
from holdfast.hosts import HOSTS, PHRASES, UNKNOWN, words
from holdfast.hosts.advice import WITHOUT

if TYPE_CHECKING:
    from holdfast.diagnose.finding import Finding
    from holdfast.diagnose.rules.rule import Hit

Remedy = Mapping[str, str]
"""What to change, by host. Names of settings are in backticks; the text for `unknown` has none."""

NOTHING: Remedy = {"unknown": ""}
"""For what has passed."""


@dataclass(frozen=True, slots=True)
class _Advice(Mapping[str, str]):
    """A text, with sentences for some hosts behind it or in its place. It has one for any host, and lists those with
    words of their own."""

    text: str
    also: Mapping[str, str] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, host: str) -> str:
        text = " ".join(filter(None, [self.instead.get(host, self.text), self.also.get(host)]))
        return _named(text, host)

    def __iter__(self) -> Iterator[str]:
        return iter((*(host.id for host in HOSTS.values() if host.words), UNKNOWN.id))

    def __len__(self) -> int:
        return len(tuple(iter(self)))


def advise(text: str, *, also: Mapping[str, str] | None = None, instead: Mapping[str, str] | None = None) -> Remedy:
    """A remedy for every host: `text`, with the sentences of `also` behind it, or those of `instead` in its place.

    Raises:
        KeyError: a phrase in brackets is not in `PHRASES`.
    """
    advice = _Advice(text, also or {}, instead or {})
    for part in (text, *advice.also.values(), *advice.instead.values()):
        if unknown := set(_PHRASE.findall(part)) - PHRASES:
            raise KeyError(*unknown)
    return advice


_PHRASE = re.compile(r"\[([^]]+)\]")


def _named(text: str, host: str) -> str:
    """The text with the host's names behind the phrases in brackets."""

    def named(match: re.Match[str]) -> str:
        phrase = match[1]
        names = words(host, phrase)
        return f"{phrase} ({', '.join(f'`{name}`' for name in names)})" if names else phrase

    return _PHRASE.sub(named, text)


def setting(log: Log, phrase: str) -> float | None:
    """The value of a setting in the log, by what a remedy calls it; None if the log has no number for it."""
    for name in words(log.host, phrase):
        try:
            return float(str(log.settings[name]))
        except (KeyError, ValueError):
            continue
    return None


OUR_BUG = "Settings of a recipe cannot cause this. Check the code that makes your `TokenBatch`, or report a bug."


def is_truncated(log: Log) -> bool | None:
    """Whether the sampler leaves tokens out, by the mass of its mask or by the settings; None if the log tells
    neither."""
    if has(log, "sampler/mask_mass"):
        return bool(finite(log.series["sampler/mask_mass"]).values.min() < WHOLE_MASS)
    named = [word.partition("=")[0].strip() for word in words(log.host, "without top-p and top-k")]
    found = [(name, log.settings[name]) for name in named if name in log.settings]
    return any(_leaves_out(name, value) for name, value in found) if found else None


WHOLE_MASS = 0.999
"""Probability inside the mask of a sampler that is not truncated, but for rounding."""


def _leaves_out(name: str, value: object) -> bool:
    """Whether a value of top-p, top-k or min-p leaves tokens out. None, 0 and -1 are off, and a top-p of 1."""
    try:
        number = float(str(value))
    except ValueError:
        return False
    return number < 1 if name.endswith("top_p") else number > 0


_PRESERVE = (
    "Preserve correct rollouts with a [penalty on lost likelihood], which needs two or more [optimizer steps per "
    "rollout batch]. If it is on, raise its coefficient, or lower the [learning rate]."
)
PRESERVE_LIKELIHOOD = advise(
    f"{_PRESERVE} If the sampler is truncated, first sample [without top-p and top-k].",
)
_PRESERVE_OF = {
    None: PRESERVE_LIKELIHOOD,
    False: advise(_PRESERVE),
    True: advise(f"The sampler is truncated: first sample [without top-p and top-k]. {_PRESERVE}"),
}


FRESHER = (
    "Lower the [limit on staleness], so that the sampler runs fewer updates ahead of the trainer. Take fewer "
    "[optimizer steps per rollout batch], or lower the [learning rate]. "
)
TO_SAMPLER = advise(f"{FRESHER}Here the old policy is the sampler's, so {WITHOUT}.")
"""Where the old policy is the sampler's, a penalty did not pay (holdfast.hosts.advice)."""


def preserve_likelihood(log: Log, hit: Hit, before: Sequence[Finding]) -> Remedy:
    """`PRESERVE_LIKELIHOOD`, with what the log tells of the sampler in place of an "if"; without a penalty where the
    ratio compares with the sampler."""
    return TO_SAMPLER if log.old_policy == "sampler" else _PRESERVE_OF[is_truncated(log)]


SMALLER_STEPS = advise(
    "Divide the [learning rate] by five or more, lengthen the [warm-up], or take fewer [optimizer steps per rollout "
    "batch]. Larger batches also make the steps smaller."
)

CHECK_REWARD: Remedy = advise(
    "First check the reward: call it on a correct rollout. Often it does not find the answer in the text, or the "
    "[limits of tokens and turns] leave no room for one. Read some [rollouts]. If the reward works, start from a "
    "[better policy], use easier questions, or a [denser reward]."
)

USABLE_FORM: Remedy = advise(
    "Read some [rollouts]. If the [limits of tokens and turns] cut them off, raise these. Otherwise the policy does "
    "not write the form that the parser reads: show it in the prompt, start from a [better policy], such as one "
    "trained on demonstrations, or give a small reward for the form."
)
"""For turns and rollouts that the environment cannot use, from the first row on."""
