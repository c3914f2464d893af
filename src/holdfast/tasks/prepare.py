"""The training mixes and the test set of the papers, from the published files, checked against the published sizes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

from holdfast.base.environment import unreachable
from holdfast.base.errors import DataError
from holdfast.base.importing import optional
from holdfast.base.jsonl import write_jsonl
from holdfast.tasks import factbook
from holdfast.tasks.catalogue import FACTBOOK_SET, HUB, SAMPLE, SETS, SEVEN, Form, QASet, set_named
from holdfast.tasks.files import iter_examples, read_examples, write_examples
from holdfast.tasks.questions import Example
from holdfast.tasks.rows import light

_ENDINGS = (".jsonl", ".jsonl.gz", ".parquet")


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder with the layout of the collection, `SET/SPLIT.jsonl`."""

    path: Path

    def get(self, name: str) -> Path | None:
        """The file `name`, such as `nq/test.jsonl`; None when there is no such file."""
        file = self.path / name
        return file if file.is_file() else None

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True)
class Hub:
    """A data set repository. Files are kept in the hub's own cache and taken from there without a network."""

    repository: str = HUB

    def get(self, name: str) -> Path | None:
        """As `Folder.get`. Raises `DataError` for a hub that is away or refuses, `MissingExtra` for huggingface_hub."""
        hub, errors = (optional(f"huggingface_hub{part}", "data", "huggingface_hub") for part in ("", ".errors"))
        where: dict[str, Any] = {"repo_id": self.repository, "filename": name, "repo_type": "dataset"}
        try:
            return Path(hub.hf_hub_download(**where, local_files_only=True))
        except errors.LocalEntryNotFoundError:
            _check_hub()
        except errors.HFValidationError:
            raise DataError(_NEITHER.format(self.repository)) from None
        try:
            return Path(hub.hf_hub_download(**where))
        except errors.LocalEntryNotFoundError as error:
            raise DataError(f"{name} of {self.repository} could not be downloaded ({error}); try again") from error
        except errors.EntryNotFoundError:
            return None
        except errors.RepositoryNotFoundError:
            raise DataError(
                f"the hub has no data set {self.repository!r} that you may read; check the name, or log in with "
                "`hf auth login`"
            ) from None
        except (errors.HfHubHTTPError, OSError) as error:
            raise DataError(f"the hub refuses {name} of {self.repository}: {error}") from error

    def __str__(self) -> str:
        return f"{self.repository} on the hub"


Origin = Folder | Hub
"""Where the published files come from."""
_NEITHER = f"{{}} is neither a folder nor a data set on the hub, such as {HUB}"


def origin_of(text: str | None) -> Origin:
    """A folder that exists, else a hub id `owner/name`; None is the collection on the hub. Raises `DataError`."""
    if text is None:
        return Hub()
    path = Path(text)
    if path.is_dir():
        return Folder(path)
    if path.is_file():
        raise DataError(f"{text} is a file; name its folder, or convert the file with `holdfast data convert`")
    owner, slash, name = text.partition("/")
    if slash and owner and name and "/" not in name and not text.startswith((".", "~", os.sep)):
        return Hub(text)
    raise DataError(_NEITHER.format(text))


def _check_hub() -> None:
    """Raises `DataError` when the hub does not answer a short request; its client would retry for a minute."""
    if (why := unreachable()) is not None:
        raise DataError(
            f"{why}, and the file is not in the hub's cache. Go online, or download the files elsewhere and name their "
            "folder: --from FOLDER, with SET/SPLIT.jsonl in it"
        )


@dataclass(frozen=True, slots=True)
class Part:
    """The training or test questions of one set."""

    qa: QASet
    role: str

    @property
    def published_split(self) -> str:
        """The name its authors give the split."""
        return self.qa.tested_on if self.role == "test" else "train"

    @property
    def size(self) -> int:
        """Published number of questions."""
        return self.qa.sizes[self.published_split]

    def __str__(self) -> str:
        return f"{self.qa.name}/{self.published_split}"


def plan(what: str) -> dict[str, list[Part]]:
    """role -> its parts, of a set's name, several joined with `+`, or `seven`.

    A set has its training questions, if it publishes any, and its test questions; a mix has the training questions of
    its sets, one set after the other; `seven` has the test questions of all. Raises `DataError`.

    >>> {role: [str(part) for part in parts] for role, parts in plan("hotpotqa").items()}
    {'train': ['hotpotqa/train'], 'test': ['hotpotqa/dev']}
    >>> [str(part) for part in plan("nq+hotpotqa")["train"]]
    ['nq/train', 'hotpotqa/train']
    """
    if what == SEVEN:
        return {"test": [Part(qa, "test") for qa in SETS.values()]}
    names = [name.strip() for name in what.split("+")]
    sets = [set_named(name) for name in names]
    if len(set(names)) < len(names):
        raise DataError(f"{what!r} names a set twice; its questions would count twice")
    if len(sets) > 1:
        without = [qa.name for qa in sets if qa.train_size is None]
        if without:
            raise DataError(f"{' and '.join(without)} has no training questions; leave it out of {what!r}")
        return {"train": [Part(qa, "train") for qa in sets]}
    (qa,) = sets
    roles = ("train", "test") if qa.train_size is not None else ("test",)
    return {role: [Part(qa, role)] for role in roles}


def examples_of(part: Part, origin: Origin) -> Iterator[Example]:
    """The questions of a part, their ids `SET/ROLE/INDEX`, unique over all sets.

    Looked for as `SET/SPLIT`, and as `ROLE`, a file of several sets as Search-R1 has it, in .jsonl, .jsonl.gz or
    .parquet. `metadata` loses its lists and objects, which training and evaluation do not read. Raises `DataError` when
    no file is found, a row cannot be used, or the number of questions is not the published one.
    """
    separate = [f"{part}{ending}" for ending in _ENDINGS]
    shared = [f"{part.role}{ending}" for ending in _ENDINGS]
    for name in (*separate, *shared):
        if (path := origin.get(name)) is not None:
            break
    else:
        raise DataError(f"{origin} has none of {', '.join((*separate, *shared))}")
    count = 0
    for example in iter_examples(path, source=part.qa.name if name in separate else None, split=part.role):
        if example.source != part.qa.name:
            if name in separate:
                raise DataError(
                    f"{path} should contain only questions of {part.qa.name}, but has one of {example.source!r}"
                )
            continue
        count += 1
        other = {key: value for key, value in example.metadata.items() if key != "id"}  # `test_0` in every set
        yield light(replace(example, split=part.role, metadata=other))
    if count != part.size:
        raise DataError(
            f"{path} has {count:,} questions of {part.qa.name}, the published {part.published_split} set has "
            f"{part.size:,}: another version, or a damaged copy. `holdfast data convert` takes files of any size"
        )


def prepare(what: str, folder: Path, *, origin: str | None = None, form: Form = "jsonl") -> dict[Path, int]:
    """Write `train` and `test` files of what `plan` says into `folder`; returns each file with its number of questions.

    `sample` writes `questions.jsonl` and `corpus.jsonl`, in any form the questions; `factbook` writes `corpus.jsonl`,
    `train`, `dev` and `test`. Raises `DataError`, and leaves no half file.
    """
    ending = "jsonl" if form == "jsonl" else "parquet"
    if what == SAMPLE:
        folder.mkdir(parents=True, exist_ok=True)
        questions = folder / f"questions.{ending}"
        count = write_examples(questions, sample_questions(), form)
        passages = sample_file("corpus.jsonl").read_bytes()
        (folder / "corpus.jsonl").write_bytes(passages)
        return {questions: count, folder / "corpus.jsonl": passages.count(b"\n")}
    if what == FACTBOOK_SET:
        return _prepare_factbook(folder, form, ending)
    parts = plan(what)
    source = origin_of(origin)
    written = {}
    for role, several in parts.items():
        path = folder / f"{role}.{ending}"
        written[path] = write_examples(path, _all(several, source), form)
    return written


def _prepare_factbook(folder: Path, form: Form, ending: str) -> dict[Path, int]:
    folder.mkdir(parents=True, exist_ok=True)
    corpus, questions = folder / "corpus.jsonl", factbook.load_questions()
    rows = ({"id": passage.id, "contents": passage.contents} for passage in factbook.load_passages())
    written = {corpus: write_jsonl(corpus, rows)}
    for split in ("train", "dev", "test"):
        path = folder / f"{split}.{ending}"
        written[path] = write_examples(path, questions.splits[split], form)
    return written


def open_questions(what: str, *, origin: str | None = None) -> tuple[Example, ...]:
    """Questions to evaluate on: a file, `sample`, a set's name (its test questions), several with `+`, or `seven`.

    Raises `DataError` for anything else, and for files that `read_examples` refuses.
    """
    if Path(what).is_file():
        return read_examples(what)
    if Path(what).suffix in (".jsonl", ".gz", ".parquet", ".json", ".csv", ".tsv"):
        raise DataError(f"{what} does not exist")
    if what == SAMPLE:
        return sample_questions()
    names: Sequence[str] = tuple(SETS) if what == SEVEN else what.split("+")
    parts = [Part(set_named(name.strip()), "test") for name in dict.fromkeys(names)]
    return tuple(_all(parts, origin_of(origin)))


def sample_questions() -> tuple[Example, ...]:
    """The questions that ship, single- and multi-hop; `metadata["passages"]` are the ids of those that answer one."""
    return read_examples(sample_file("questions.jsonl"), source=SAMPLE, split="test")


def sample_file(name: str) -> Path:
    """`questions.jsonl` or `corpus.jsonl` of the sample."""
    return Path(str(package_files("holdfast.tasks"))) / "sample" / name


def _all(parts: Sequence[Part], origin: Origin) -> Iterator[Example]:
    seen: set[str] = set()
    for part in parts:
        for example in examples_of(part, origin):
            if example.id in seen:
                raise DataError(f"{origin}: two questions have the id {example.id}; the files are damaged")
            seen.add(example.id)
            yield example
