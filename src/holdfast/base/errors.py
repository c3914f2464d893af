"""What holdfast raises on purpose: `HoldfastError`, and a subclass for each kind of problem.

Every subclass also inherits a standard exception, so `except ValueError` keeps working. The command line prints the
message of a `HoldfastError`, its hint if it has one, and exits with code 2. Anything else is a bug and keeps its
traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HoldfastError(Exception):
    """Root of everything holdfast raises on purpose.

    Args:
        message: says what is wrong, why, and what to do; complete without the hint.
        hint: the next step, such as a command to type. The command line prints it on a line of its own, and a
            traceback shows it as a note.
    """

    def __init__(self, *message: object, hint: str | None = None) -> None:
        super().__init__(*message)
        self.hint = hint
        if hint is not None:
            self.add_note(f"hint: {hint}")


class ConfigError(HoldfastError, ValueError):
    """A setting that cannot work: what you set, why, and what to do."""


class DataError(HoldfastError, ValueError):
    """A row or a file that cannot be used. Names the file, the line and the field."""


class RetrievalError(HoldfastError, RuntimeError):
    """A retriever failed. The rollout that searched ends as `retrieval_failed`, never as an incorrect answer."""


class RetrieverUnreachable(RetrievalError):
    """The retriever cannot be reached, or the connection broke."""


class RetrieverTimeout(RetrievalError):
    """The retriever did not answer in time."""


class RetrieverRefused(RetrievalError):
    """The retriever answered with a status other than 200, or with an error for some queries."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status
        """As in HTTP; 200 when only some of the queries of a request failed."""


class RetrieverGarbled(RetrievalError):
    """The retriever's answer cannot be read."""


class RolloutError(HoldfastError, RuntimeError):
    """Too many rollouts failed for the step to mean anything."""


class ModelError(HoldfastError, RuntimeError):
    """A model or tokenizer that cannot be loaded or used."""


class CheckpointError(HoldfastError, RuntimeError):
    """A checkpoint that is incomplete or does not match its checksums."""


class GuardStop(HoldfastError, RuntimeError):
    """A finding that `[guard]` stops at; the run is saved."""


class MissingExtra(HoldfastError, ImportError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed. Run: pip install 'holdfast-rl[{extra}]'")


class Terminated(SystemExit):
    """SIGTERM, as an exception. Other `SystemExit`s come from code of the user's."""


def raise_all(title: str, problems: Iterable[str], *, where: str = "") -> None:
    """Raise one `ConfigError` for all problems, if there are any: under `title` when there are several.

    `where` is the file they are in.
    """
    sentences = list(problems)
    prefix = f"{where}: " if where else ""
    if len(sentences) == 1 and "\n" not in sentences[0]:
        raise ConfigError(prefix + sentences[0])
    if sentences:
        raise ConfigError("\n  ".join([prefix + title, *sentences]))


def nearest_name(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """`did you mean x?` of the known name that is most like this one; else `otherwise`, or all that are known."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else otherwise or f"there are {', '.join(names)}"
