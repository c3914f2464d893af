"""Rows of parquet, in bounded memory: a few kilobytes of it may stand for gigabytes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from holdfast.base.errors import DataError
from holdfast.base.importing import optional
from holdfast.base.opening import Unpacked, check_regular, opened

_BATCH = 1024
"""The most rows in memory at a time; contexts of HotpotQA make a row 6 kB."""
_BATCH_BYTES = 1 << 27
"""Bytes of a batch, if its rows are as large as the file lets them be."""
_DATA = (b"\x15\x00", b"\x15\x06")
_VARINT = rb"[\x80-\xff]*[\x00-\x7f]"
_DICTIONARY = re.compile(
    rb"\x15\x04\x15(%b)\x15%b(?:\x15%b\x3c|\x4c)\x15(%b)" % (_VARINT, _VARINT, _VARINT, _VARINT), re.S
)
"""How headers of pages begin (parquet.thrift, `PageHeader`, in thrift's compact protocol): the type; of a dictionary,
its bytes unpacked and packed, a checksum if there is one, and how many values it has."""


def parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number from 1, row). Raises `DataError` for a file that is damaged, or has more in it than its size explains."""
    pyarrow, parquet = import_pyarrow()
    check_regular(path)
    number, unpacked = 0, Unpacked(path)
    try:
        with opened(path) as stored, parquet.ParquetFile(path) as file:
            groups = [_Group(stored, file.metadata.row_group(k)) for k in range(file.metadata.num_row_groups)]
            unpacked.check(sum(group.size for group in groups))
            for k, group in enumerate(groups):
                for batch in file.iter_batches(batch_size=group.rows_at_a_time, row_groups=[k]):
                    unpacked.add(batch.nbytes)
                    for row in batch.to_pylist():
                        number += 1
                        yield number, row
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
        raise DataError(f"{path} cannot be read as parquet: {error}") from error


def count_parquet_rows(path: Path) -> int:
    """The number of rows that the file names. Raises `DataError`."""
    pyarrow, parquet = import_pyarrow()
    check_regular(path)
    try:
        return int(parquet.read_metadata(path).num_rows)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as parquet: {error}") from error


class _Group:
    """What the values of a group of rows may take in memory.

    A page of values is as large as the file says. But where a page has only numbers of the values in a dictionary, a
    value of a megabyte takes a bit each time.
    """

    def __init__(self, stored: BinaryIO, group: Any) -> None:
        columns = [group.column(k) for k in range(group.num_columns)]
        dictionaries = [_dictionary(stored, column) for column in columns]
        pairs = list(zip(columns, dictionaries, strict=True))
        self.size = sum(
            column.total_uncompressed_size + column.num_values * max(4, size // max(count, 1))
            for column, (size, count) in pairs
        )
        """Bytes of all values, where each value of a dictionary is used as often as the others."""
        rows = max(group.num_rows, 1)
        largest = self.size // rows + sum(size * max(1, column.num_values // rows) for column, (size, _) in pairs)
        self.rows_at_a_time = min(_BATCH, max(1, _BATCH_BYTES // max(largest, 1)))


def _dictionary(stored: BinaryIO, column: Any) -> tuple[int, int]:
    """(bytes, values) of a column's dictionary; (0, 0) without one. Raises `DataError`."""
    if not column.num_values:
        return 0, 0
    stored.seek(min(at for at in (column.dictionary_page_offset, column.data_page_offset) if at))
    header = stored.read(40)
    if header.startswith(_DATA):
        return 0, 0
    if (found := _DICTIONARY.match(header)) is None:
        raise DataError(
            f"{stored.name} cannot be read as parquet: {column.path_in_schema} does not begin with a page of values"
        )
    size, count = (sum((byte & 127) << 7 * k for k, byte in enumerate(varint)) >> 1 for varint in found.groups())
    return size, count


def import_pyarrow() -> tuple[Any, Any]:
    """The modules `pyarrow` and `pyarrow.parquet`. Raises `MissingExtra`."""
    return optional("pyarrow", "data"), optional("pyarrow.parquet", "data")
