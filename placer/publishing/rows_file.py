"""Writes rows of sparse tables, and removed keys, as Parquet files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np

from placer.checkpoint.manifest import Stored
from placer.checkpoint.writing import describe_file, map_file

Array = np.ndarray
_GROUP: Final = 1 << 16
"""The minimum number of rows of a row group, except the last one."""


class RowsFile:
    """A Parquet file with the columns `key` and `row`, as a context manager.

    Args:
        path: the file.
        dim: the number of values of a row.
        dtype: the dtype of the rows.
        keys_dtype: int64 or uint64.

    Attributes:
        path, dim, dtype: the arguments.
        rows: the number of rows so far.

    Raises:
        OSError: here, in `add` and in `finish`, if the file cannot be written.

    Example:
        with RowsFile(Path("items.parquet"), 16, "float32", "int64") as file:
            file.add(keys, rows)  # uint64[n], float32[n, 16]
            file.finish()
    """

    def __init__(self, path: Path, dim: int, dtype: str, keys_dtype: str) -> None:
        import pyarrow as pa

        element = pa.field(
            "element", pa.from_numpy_dtype(np.dtype(dtype)), nullable=False
        )
        self._row = pa.list_(element, dim)
        columns = [
            pa.field("key", pa.from_numpy_dtype(np.dtype(keys_dtype)), nullable=False),
            pa.field("row", self._row, nullable=False),
        ]
        self.path, self.dim, self.dtype, self.rows = path, dim, dtype, 0
        self._keys_dtype = keys_dtype
        self._parts: list[tuple[Array, Array]] = []
        self._waiting = 0
        self._schema = pa.schema(columns)
        self._writer = _open(path, self._schema)

    def __enter__(self) -> RowsFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _close(self._writer)

    def add(self, keys: Array, rows: Array) -> None:
        """Add rows. The arrays may change afterwards.

        Args:
            keys: distinct keys, uint64[n].
            rows: their rows, of shape [n, dim].
        """
        if not keys.size:
            return
        self._parts.append((keys.copy(), rows.copy()))
        self._waiting += keys.size
        self.rows += keys.size
        if self._waiting >= _GROUP:
            self._write()

    def finish(self) -> Stored:
        """Finish the file, and sync it to disk. Return its size and checksums."""
        self._write()
        self._writer.close()
        return _synced(self.path)

    def _write(self) -> None:
        import pyarrow as pa

        if not self._parts:
            return
        keys = np.concatenate([keys for keys, _ in self._parts])
        rows = np.concatenate([rows for _, rows in self._parts])
        self._parts, self._waiting = [], 0
        order = np.argsort(keys)
        values = pa.array(np.ascontiguousarray(rows[order]).reshape(-1))
        columns = [
            pa.array(keys[order].view(self._keys_dtype)),
            pa.FixedSizeListArray.from_arrays(values, type=self._row),
        ]
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))


def write_removed(path: Path, keys_dtype: str, keys: Array) -> Stored:
    """Write removed keys, uint64[n], as a Parquet file with the column `key`.

    Raises OSError if the file cannot be written.
    """
    import pyarrow as pa

    kind = pa.from_numpy_dtype(np.dtype(keys_dtype))
    schema = pa.schema([pa.field("key", kind, nullable=False)])
    writer = _open(path, schema)
    try:
        column = pa.array(keys.view(keys_dtype))
        writer.write_batch(pa.record_batch([column], schema=schema))
        writer.close()
    finally:
        _close(writer)
    return _synced(path)


def _open(path: Path, schema: Any) -> Any:
    from pyarrow import parquet

    return parquet.ParquetWriter(
        path,
        schema,
        compression="none",
        use_dictionary=False,
        write_page_checksum=True,
    )


def _close(writer: Any) -> None:
    """Close a file that may have failed: its error has been raised before."""
    with suppress(OSError):
        writer.close()


def _synced(path: Path) -> Stored:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    pieces: Sequence[memoryview] = [map_file(path)]
    return describe_file(pieces)
