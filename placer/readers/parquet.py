"""Read the rows of a `parquet:` file into memory, as columns of the inputs' dtypes."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from math import prod

import numpy as np
import pyarrow as pa
from pyarrow.parquet import ParquetFile

from placer.config.columns import Column
from placer.errors import DataError
from placer.files.regular import open_regular
from placer.readers.arguments import ReadRequest
from placer.readers.chunks import collect_batches, columns_of
from placer.readers.column import check_limits, check_shape, convert, row_positions
from placer.readers.file_errors import file_errors
from placer.readers.rows import LoadedRows

_ROWS_PER_BATCH = 16384


def read(request: ReadRequest) -> LoadedRows:
    """Read the columns that the inputs need, all rows of them or those of a split.

    An input is fed by one column of fixed-size lists of its shape, or by as many
    columns of numbers as one row of it has values, in C order.

    Raises:
        DataError: with the file and, if known, the column and the row, from 0.
    """
    hint = "a parquet: source is a file in the Apache Parquet format"
    # For a damaged file, pyarrow also raises UnicodeDecodeError, which is a ValueError.
    kinds = OSError, ValueError, pa.ArrowException
    with (
        file_errors(request.source.text, hint, *kinds),
        open_regular(request.folder / request.source.path) as file,
        ParquetFile(file, pre_buffer=False, page_checksum_verification=True) as table,
    ):
        schema = table.schema_arrow
        feeds = {c.name: _columns_of(request, c, schema) for c in request.used}
        wanted = list(dict.fromkeys(n for names in feeds.values() for n in names))
        batches = _read_batches(request.source.text, table, wanted)
        parse = partial(_parse, request.source.text)
        return collect_batches(request, feeds, batches, parse, _add_values)


def _read_batches(
    source: str, table: ParquetFile, wanted: Sequence[str]
) -> Iterator[dict[str, np.ndarray]]:
    count = 0
    for batch in table.iter_batches(_ROWS_PER_BATCH, columns=wanted, use_threads=False):
        yield {n: _to_numpy(source, n, batch.column(n), count) for n in wanted}
        count += batch.num_rows


def _parse(
    source: str, column: Column, name: str, array: np.ndarray, first: int
) -> np.ndarray:
    """Return the values in the dtype of the input; `first` is the first row."""
    values = convert(array, column, source, name, first)
    numbers = range(first, first + len(values))
    check_limits(values, column, row_positions(source, name, numbers))
    return values


def _add_values(array: np.ndarray, checksum: int) -> int:
    return zlib.crc32(array.tobytes(), checksum)


def _columns_of(
    request: ReadRequest, column: Column, schema: pa.Schema
) -> tuple[str, ...]:
    """Return the columns that feed an input; DataError if they do not fit it."""
    source, names = request.source.text, columns_of(request, column, schema.names)
    shapes = {name: _shape_of(source, name, schema.field(name).type) for name in names}
    if len(names) == 1 and (shapes[names[0]] or prod(column.shape) != 1):
        check_shape(shapes[names[0]], column, source, names[0], None)
    for name, shape in shapes.items():
        if len(names) > 1 and shape:
            raise DataError(
                f"{source}: input '{column.name}' reads {len(names)} columns, and column"
                f" '{name}' has the shape [n, {', '.join(map(str, shape))}]",
                hint="only columns with one number in each row can be read together",
            )
    return names


def _shape_of(source: str, name: str, type_: pa.DataType) -> tuple[int, ...]:
    """Return the shape of a row of a column; DataError if it does not hold numbers."""
    shape = []
    inner = type_
    while pa.types.is_fixed_size_list(inner):
        shape.append(inner.list_size)
        inner = inner.value_type
    if pa.types.is_list(inner) or pa.types.is_large_list(inner):
        raise DataError(
            f"{source}: column '{name}' holds {type_}, whose rows may have different"
            " lengths",
            hint="write lists of a fixed size: pyarrow.list_(TYPE, SIZE)",
        )
    if not (
        pa.types.is_boolean(inner)
        or pa.types.is_integer(inner)
        or pa.types.is_floating(inner)
    ):
        raise DataError(
            f"{source}: column '{name}' holds {type_}, not numbers",
            hint="write the number of each word to the file; a csv: source has"
            " vocabularies",
        )
    return tuple(shape)


def _to_numpy(source: str, name: str, array: pa.Array, first: int) -> np.ndarray:
    """Return the values of some rows, [rows, *shape]; DataError for a null.

    `first` is the number of the first row.
    """
    shape = [len(array)]
    size = 1
    while True:
        if array.null_count:
            index = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
            raise DataError(
                f"{source}: column '{name}', row {first + index // size} is null",
                hint="replace nulls by numbers before you write the file",
            )
        if not pa.types.is_fixed_size_list(array.type):
            break
        shape.append(array.type.list_size)
        size *= array.type.list_size
        array = array.flatten()
    values: np.ndarray = array.to_numpy(zero_copy_only=False)
    return values.reshape(shape)
