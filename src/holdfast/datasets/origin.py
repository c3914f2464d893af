"""Where published sets come from: a folder laid out as the collection, one file, or a repository on the hub."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from holdfast.datasets.catalogue import HUB
from holdfast.errors import DataError, MissingExtra
from holdfast.hub import unreachable


class Origin(Protocol):
    """A place that has the files of question sets."""

    def get(self, name: str) -> Path | None:
        """The file `name`, such as `nq/test.jsonl`; None when there is no such file."""


@dataclass(frozen=True, slots=True)
class Folder:
    """Files in a local folder."""

    path: Path

    def get(self, name: str) -> Path | None:
        """The file in this folder, if it is there."""
        file = self.path / name
        return file if file.is_file() else None

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True)
class Hub:
    """A data set repository. Files are kept in the hub's own cache and taken from there without a network."""

    repository: str = HUB

    def get(self, name: str) -> Path | None:
        """Raises `DataError` when the hub cannot be reached or refuses, `MissingExtra` for huggingface_hub."""
        try:
            import huggingface_hub as hub
            from huggingface_hub import errors
        except ModuleNotFoundError:
            raise MissingExtra("huggingface_hub", "data") from None
        where: dict[str, Any] = {"repo_id": self.repository, "filename": name, "repo_type": "dataset"}
        try:
            return Path(hub.hf_hub_download(**where, local_files_only=True))
        except errors.LocalEntryNotFoundError:
            _reach()
        try:
            return Path(hub.hf_hub_download(**where))
        except errors.LocalEntryNotFoundError as error:
            raise DataError(f"{name} of {self.repository} did not arrive ({error}); try again") from error
        except errors.EntryNotFoundError:
            return None
        except errors.RepositoryNotFoundError:
            raise DataError(
                f"the hub has no data set {self.repository!r}, or not for you; check the name, or log in with "
                "`hf auth login`"
            ) from None
        except (errors.HfHubHTTPError, OSError) as error:
            raise DataError(f"the hub refuses {name} of {self.repository}: {error}") from error

    def __str__(self) -> str:
        return f"{self.repository} on the hub"


def origin_of(text: str | None) -> Origin:
    """A folder that exists, else a hub id `owner/name`; None is the collection on the hub. Raises `DataError`."""
    if text is None:
        return Hub()
    path = Path(text)
    if path.is_dir():
        return Folder(path)
    if path.is_file():
        raise DataError(
            f"{text} is one file; name the folder it is in, or turn it into another form with `holdfast data convert`"
        )
    owner, slash, name = text.partition("/")
    if slash and owner and name and "/" not in name and not text.startswith((".", "~", os.sep)):
        return Hub(text)
    raise DataError(f"{text} is neither a folder that exists nor a data set on the hub, such as {HUB}")


def _reach() -> None:
    """One short request before the client's patient ones. Raises `DataError`."""
    if (why := unreachable()) is not None:
        raise DataError(
            f"{why}, and the file is not in the hub's cache. Go online, or fetch the files elsewhere and name their "
            "folder: --from FOLDER, with SET/SPLIT.jsonl in it"
        )
