"""The manifest of an index: what it was built from, and what its files must look like."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from holdfast.errors import DataError

MANIFEST = "manifest.json"
FORMAT = 2
KEPT_BY_SERVER = "queries.jsonl"
SCRATCH = "scratch"
"""Subfolder of what only the building needs."""
_AGAIN = "delete the folder and build the index again"
_WHOLE = 256 * 2**20
_SAMPLES, _SAMPLE = 64, 2**20


def write_manifest(folder: Path, settings: dict[str, Any]) -> None:
    """The last file of an index: a folder without it is none."""
    manifest = {"format": FORMAT, **settings, "files": fingerprints(folder)}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The settings, unchecked but for the format. Raises `DataError` for a folder that holds no index."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        unfinished = building(folder)
        if unfinished.is_dir():
            raise DataError(
                f"{folder} holds no index yet: its building was interrupted. Run the same `holdfast index` command "
                "again, and it goes on"
            ) from None
        raise DataError(f"{folder} holds no index: there is no {MANIFEST} in it") from None
    except (OSError, ValueError) as error:
        raise DataError(f"the index {folder} is damaged ({MANIFEST}: {error}); {_AGAIN}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(f"the index {folder} was made by another version of holdfast; {_AGAIN}")
    return manifest


def check_files(folder: Path, manifest: dict[str, Any]) -> None:
    """Raises `DataError` when a file is missing or is not the one that was written."""
    found = fingerprints(folder)
    for name, expected in manifest["files"].items():
        if found.get(name) != expected:
            state = "has changed" if name in found else "is missing"
            raise DataError(f"the index {folder} is damaged: {name} {state} since it was saved; {_AGAIN}")


def refuse_other_corpus(folder: Path, manifest: dict[str, Any], expected_hash: str | None) -> None:
    """Raises `DataError` when the index was built from other passages than the caller means."""
    if expected_hash is not None and expected_hash != manifest["corpus_sha256"]:
        raise DataError(f"the index {folder} was built from another corpus than yours, or an older one; {_AGAIN}")


def fingerprints(folder: Path) -> dict[str, str]:
    """A hash of every file of an index but its manifest, by path from `folder`."""
    return {
        path.relative_to(folder).as_posix(): _fingerprint(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.name not in (MANIFEST, KEPT_BY_SERVER)
        and SCRATCH not in path.relative_to(folder).parts
    }


def building(folder: Path) -> Path:
    """Where an index is built before it gets its name."""
    return folder.with_name(f"{folder.name}.building")


def _fingerprint(path: Path) -> str:
    """SHA-256 of the file's size and bytes; of a file above 256 MiB, the bytes of 64 places spread over it, so that an
    index of a hundred gigabytes is checked in a second."""
    size = path.stat().st_size
    digest = hashlib.sha256(size.to_bytes(8, "big"))
    with open(path, "rb") as file:
        if size <= _WHOLE:
            while block := file.read(_SAMPLE):
                digest.update(block)
        else:
            for i in range(_SAMPLES):
                file.seek((size - _SAMPLE) * i // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE))
    return digest.hexdigest()
