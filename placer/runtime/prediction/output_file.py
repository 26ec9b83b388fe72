"""Writes the file of a prediction: key columns and outputs, piece by piece."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import ml_dtypes
import numpy as np
import pyarrow as pa
from numpy.lib import format as npy_format
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from placer.channel.interface import Array
from placer.errors import DataError
from placer.plan.class_prefixes import class_prefixes
from placer.plan.plan import Output
from placer.runtime.prediction.class_columns import class_columns
from placer.system.files.atomic import atomic_file, mode_of

MAX_PADDED_NBYTES = 1 << 30
"""A column of text in a numpy file must not be mostly padding if it is larger than this."""
MAX_PADDING = 16
"""The largest allowed ratio of the padded size to the size of the text."""
PIECE_NBYTES = 16 << 20
"""The approximate size of a piece of outputs. In Parquet, each piece is a row group."""

Columns = Mapping[str, Array]
Write = Callable[[Columns], None]
"""A function that writes the next rows of all columns."""


@contextmanager
def prediction_file(
    path: Path, outputs: Sequence[Output], keys: Columns, rows: int
) -> Iterator[Write]:
    """Return a context manager that yields a function to write the outputs of the next rows.

    The file appears when the context ends. If the context raises, no file appears. The
    suffix determines the format:

    - `.parquet`: a column for each key and output. Several values per row are fixed-size
      lists, nested for more dimensions.
    - `.csv`: a column for each key and for each value per row: `probability.0`, ….
    - `.npz` and `.npy`: arrays of shape [rows, ...] for `numpy.load`.

    bfloat16 is written as float32. An output with classes becomes the column `class` and a
    column `probability.NAME` for each class.

    Args:
        path: the file.
        outputs: the outputs, in the order of the columns.
        keys: the key columns with all rows. They come before the outputs.
        rows: the number of all rows.

    Raises:
        DataError: if the file cannot be written, or two columns of a `.csv` file would have
            the same name.
    """
    path = path.resolve()
    dtypes = {each.name: _storable(np.dtype(each.dtype)) for each in outputs}
    empty = {
        each.name: np.empty((0, *each.shape), dtypes[each.name]) for each in outputs
    }
    name_classes = partial(_name_classes, outputs)
    dtype_of = _numpy_dtype if path.suffix in (".npz", ".npy") else _own_dtype
    first = {
        name: np.empty((0, *array.shape[1:]), dtype_of(name, array))
        for name, array in keys.items()
    } | name_classes(empty)
    try:
        with ExitStack() as contexts:
            file = contexts.enter_context(atomic_file(path, mode_of(path)))
            write = contexts.enter_context(_FORMATS[path.suffix](file, first, rows))
            pieces = _Pieces(write, keys, dtypes, name_classes)
            yield pieces.add
            pieces.flush()
    except OSError as error:
        raise DataError(
            f"predictions cannot be written to {path}: {error.strerror or error}",
            hint="name a file in a folder that exists and has room",
        ) from error


def _name_classes(outputs: Sequence[Output], arrays: Columns) -> dict[str, Array]:
    prefixes = class_prefixes(outputs)
    columns: dict[str, Array] = {}
    for each in outputs:
        array = arrays[each.name]
        if each.classes is None:
            columns[each.name] = array
        else:
            form, names = each.classes.form, each.classes.names
            columns |= class_columns(array, form, names, prefixes[each.name])
    return columns


def _storable(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.float32) if dtype == ml_dtypes.bfloat16 else dtype


def _own_dtype(name: str, array: Array) -> np.dtype[Any]:
    return array.dtype


def _numpy_dtype(name: str, array: Array) -> np.dtype[Any]:
    """Return the dtype of a key column in a numpy file.

    numpy pads each text to the length of the longest text. Raises DataError if the padding
    would be too large.
    """
    if array.dtype != object:
        return array.dtype
    sizes = [len(text) for text in array.tolist()]
    longest = max(sizes, default=0) or 1
    nbytes = 4 * longest * len(sizes)
    if nbytes > MAX_PADDED_NBYTES and nbytes > MAX_PADDING * 4 * sum(sizes):
        raise DataError(
            f"the longest text of '{name}' has {longest:,} characters; a numpy file would"
            f" pad all texts to this length and need {nbytes / 1e9:.1f} GB",
            hint="write a .parquet or .csv file: placer predict … --out FILE",
        )
    return np.dtype(f"U{longest}")


class _Pieces:
    def __init__(
        self,
        write: Write,
        keys: Columns,
        dtypes: Mapping[str, np.dtype[Any]],
        name_classes: Callable[[Columns], dict[str, Array]],
    ) -> None:
        self._write, self._keys, self._dtypes = write, keys, dtypes
        self._name_classes = name_classes
        self._batches: list[Columns] = []
        self._nbytes = self._written = 0

    def add(self, outputs: Columns) -> None:
        self._batches.append({name: outputs[name] for name in self._dtypes})
        self._nbytes += sum(outputs[name].nbytes for name in self._dtypes)
        if self._nbytes >= PIECE_NBYTES:
            self.flush()

    def flush(self) -> None:
        if not self._batches:
            return
        columns = {
            name: np.concatenate([batch[name] for batch in self._batches]).astype(
                dtype, copy=False
            )
            for name, dtype in self._dtypes.items()
        }
        low = self._written
        self._written += len(next(iter(columns.values())))
        keys = {n: array[low : self._written] for n, array in self._keys.items()}
        self._write(keys | self._name_classes(columns))
        self._batches, self._nbytes = [], 0


@contextmanager
def _parquet(file: BinaryIO, first: Columns, rows: int) -> Iterator[Write]:
    with parquet.ParquetWriter(file, _as_table(first).schema) as writer:
        yield lambda columns: writer.write_table(_as_table(columns))


def _as_table(columns: Columns) -> pa.Table:
    return pa.table({name: _as_arrow(array) for name, array in columns.items()})


def _as_arrow(array: Array) -> pa.Array:
    flat = _as_column(array.reshape(-1))
    for size in reversed(array.shape[1:]):
        flat = pa.FixedSizeListArray.from_arrays(flat, size)
    return flat


def _as_column(array: Array) -> pa.Array:
    return pa.array(array, pa.string() if array.dtype == object else None)


@contextmanager
def _csv(file: BinaryIO, first: Columns, rows: int) -> Iterator[Write]:
    with arrow_csv.CSVWriter(file, _as_cells(first).schema) as writer:
        yield lambda columns: writer.write_table(_as_cells(columns))


def _as_cells(columns: Columns) -> pa.Table:
    cells: dict[str, pa.Array] = {}
    for name, array in columns.items():
        if array.dtype == np.float16:
            array = array.astype(np.float32)
        for index in np.ndindex(array.shape[1:]):
            column = ".".join([name, *map(str, index)])
            if column in cells:
                raise DataError(
                    f"two columns of the predictions would be named '{column}'",
                    hint="write a .parquet or .npz file, where each output is one column",
                )
            cells[column] = _as_column(np.ascontiguousarray(array[:, *index]))
    return pa.table(cells)


@contextmanager
def _npy(file: BinaryIO, first: Columns, rows: int) -> Iterator[Write]:
    ((name, array),) = first.items()
    _write_header(file, array, rows)
    yield lambda columns: _write_array(file, columns[name], array.dtype)


@contextmanager
def _npz(file: BinaryIO, first: Columns, rows: int) -> Iterator[Write]:
    # Collect pieces in a temporary file, because an archive is written array by array.
    pieces: dict[str, list[tuple[int, int]]] = {name: [] for name in first}
    with tempfile.TemporaryFile() as spool:

        def write(columns: Columns) -> None:
            for name, places in pieces.items():
                begin = spool.tell()
                _write_array(cast(BinaryIO, spool), columns[name], first[name].dtype)
                places.append((begin, spool.tell() - begin))

        yield write
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, places in pieces.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    _write_header(cast(BinaryIO, member), first[name], rows)
                    for start, nbytes in places:
                        spool.seek(start)
                        member.write(spool.read(nbytes))


def _write_header(file: BinaryIO, first: Array, rows: int) -> None:
    header = {
        "descr": npy_format.dtype_to_descr(first.dtype),
        "fortran_order": False,
        "shape": (rows, *first.shape[1:]),
    }
    npy_format.write_array_header_1_0(file, header)


def _write_array(file: BinaryIO, array: Array, dtype: np.dtype[Any]) -> None:
    file.write(np.ascontiguousarray(array, dtype).tobytes())


_FORMATS = {".parquet": _parquet, ".csv": _csv, ".npz": _npz, ".npy": _npy}
