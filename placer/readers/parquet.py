"""Read the rows of a `parquet:` file into memory, as columns of the inputs' dtypes."""

from __future__ import annotations

import zlib
from math import prod

import numpy as np
import pyarrow as pa
from pyarrow.parquet import ParquetFile

from placer.config.columns import Column, select_columns
from placer.errors import DataError
from placer.files.regular import open_regular
from placer.readers.arguments import ReadRequest
from placer.readers.column import check_limits, check_shape, convert
from placer.readers.digests import join_digests
from placer.readers.rows import LoadedRows, join_chunks

_ROWS_PER_BATCH = 16384


def read(request: ReadRequest) -> LoadedRows:
    """Read the columns that the inputs need, all rows of them or those of a split.

    An input is fed by one column of fixed-size lists of its shape, or by as many
    columns of numbers as one row of it has values, in C order.

    Raises:
        DataError: with the file and, if known, the column and the row, from 0.
    """
    source = request.source.text
    try:
        with (
            open_regular(request.folder / request.source.path) as file,
            ParquetFile(
                file, pre_buffer=False, page_checksum_verification=True
            ) as table,
        ):
            return _read_table(request, table)
    except FileNotFoundError:
        raise DataError(
            f"{source}: there is no such file",
            hint="the path is relative to the spec's folder",
        ) from None
    # For a damaged file, pyarrow also raises UnicodeDecodeError, which is a ValueError.
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(
            f"{source} cannot be read: {error}",
            hint="a parquet: source is a file in the Apache Parquet format",
        ) from error


def _read_table(request: ReadRequest, table: ParquetFile) -> LoadedRows:
    source, columns, options = request.source.text, request.columns, request.options
    schema = table.schema_arrow
    feeds = {
        column.name: _columns_of(request, column, schema)
        for column in (*columns, *options.other_columns)
    }
    wanted = list(dict.fromkeys(name for names in feeds.values() for name in names))
    chunks: dict[str, list[np.ndarray]] = {column.name: [] for column in columns}
    digests = dict.fromkeys(wanted, 0)
    count = 0
    for batch in table.iter_batches(_ROWS_PER_BATCH, columns=wanted, use_threads=False):
        arrays = {
            name: _to_numpy(source, name, batch.column(name), count) for name in wanted
        }
        if options.with_digests:
            for name, array in arrays.items():
                digests[name] = zlib.crc32(array.tobytes(), digests[name])
        for column in columns:
            names = feeds[column.name]
            chunk = np.empty((batch.num_rows, prod(column.shape)), column.dtype)
            size = chunk.shape[1] // len(names)
            for j, name in enumerate(names):
                values = convert(arrays[name], column, source, name, count)
                position = f"{source}: column '{name}', row"

                def where(i: int, position: str = position, first: int = count) -> str:
                    return f"{position} {first + i}"

                check_limits(values, column, where)
                chunk[:, j * size : (j + 1) * size] = values.reshape(len(values), size)
            chunks[column.name].append(chunk)
        count += batch.num_rows
        options.report(count)
    whole = {
        name: join_digests(digests[n] for n in names) for name, names in feeds.items()
    }
    return join_chunks(request, chunks, whole)


def _columns_of(
    request: ReadRequest, column: Column, schema: pa.Schema
) -> tuple[str, ...]:
    """Return the columns that feed an input; DataError if they do not fit it."""
    source, wanted = request.source.text, request.feeds[column.name]
    names = select_columns(request.source, column, wanted, schema.names)
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
