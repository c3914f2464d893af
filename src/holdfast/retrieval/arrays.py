"""Arrays on disk: written in order without ever being whole in memory, and read as they were written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class NpyWriter:
    """A `.npy` file written from front to back. Plain writes: a full disk is an `OSError`, where a memory map would
    end the process."""

    def __init__(self, path: Path, dtype: DTypeLike, shape: int | tuple[int, int], *, rows: int = 0) -> None:
        """`shape` of the whole array. With `rows`, a file that holds that many is continued; the rest is cut off."""
        self.dtype = np.dtype(dtype)
        whole: tuple[int, ...] = shape if isinstance(shape, tuple) else (shape,)
        self._file = open(path, "r+b" if rows else "w+b")  # noqa: SIM115 (closed by `__exit__`)
        header = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": whole}
        np.lib.format.write_array_header_1_0(self._file, header)  # type: ignore[arg-type]
        row_bytes = self.dtype.itemsize * int(np.prod(whole[1:], dtype=np.int64))
        self._file.seek(rows * row_bytes, 1)
        self._file.truncate()

    def write(self, part: NDArray[Any]) -> None:
        """Append the next elements."""
        self._file.write(np.ascontiguousarray(part, self.dtype).data)

    def flush(self) -> None:
        self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()

    def __enter__(self) -> NpyWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def mapped(path: Path) -> NDArray[Any]:
    """A `.npy` file as a read-only array that the system pages in and out."""
    return np.asarray(np.load(path, mmap_mode="r"))


def blocks(path: Path, rows: int) -> Iterator[NDArray[Any]]:
    """The rows of a `.npy` file, so many at a time, read and not mapped: pages of a map count as memory in use."""
    array = np.load(path, mmap_mode="r")
    row_items = int(np.prod(array.shape[1:], dtype=np.int64))
    with open(path, "rb") as file:
        file.seek(array.offset)
        for first in range(0, len(array), rows):
            count = min(rows, len(array) - first)
            yield np.fromfile(file, array.dtype, count * row_items).reshape(count, *array.shape[1:])
