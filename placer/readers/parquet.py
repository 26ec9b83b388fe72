"""Read the rows of a `parquet:` file into memory, as columns of the inputs' dtypes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from math import prod
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.parquet import ParquetFile

from placer.config.columns import Column
from placer.config.csv import Cells, check_pattern, first_match
from placer.errors import DataError
from placer.files.regular import open_regular
from placer.readers.arguments import ReadRequest
from placer.readers.chunks import collect_batches, columns_of
from placer.readers.column import (
    check_limits,
    check_shape,
    convert,
    dtype_of,
    row_positions,
)
from placer.readers.csv_cells import CellParser, add_cells
from placer.readers.file_errors import file_errors
from placer.readers.rows import LoadedRows

_ROWS_PER_BATCH = 16384


def read(request: ReadRequest) -> LoadedRows:
    """Read the columns that the inputs need, all rows of them or those of a split.

    An input is fed by one column of fixed-size lists of its shape, or by as many
    columns of numbers as one row of it has values, in C order. A column with a
    vocabulary is read as text.

    Raises:
        DataError: with the file and, if known, the column and the row, from 0.
    """
    with (
        parquet_errors(request.source.text),
        open_regular(request.folder / request.source.path) as file,
        ParquetFile(file, pre_buffer=False, page_checksum_verification=True) as table,
    ):
        wanted, collect = find_columns(request, table.schema_arrow)
        batches = table.iter_batches(_ROWS_PER_BATCH, columns=wanted, use_threads=False)
        return collect(batches, 0)


def parquet_errors(source: str) -> AbstractContextManager[None]:
    """Return a context in which the errors of a damaged file become DataErrors."""
    hint = "a parquet: source is a file in the Apache Parquet format"
    # For a damaged file, pyarrow also raises UnicodeDecodeError, which is a ValueError.
    return file_errors(source, hint, OSError, ValueError, pa.ArrowException)


def find_columns(
    request: ReadRequest, schema: pa.Schema
) -> tuple[list[str], Callable[[Iterable[pa.RecordBatch], int], LoadedRows]]:
    """Return the columns of a file that are read, and a function that collects their
    rows from batches of them, given the number of the first row in the file.

    Raises DataError if they do not fit the inputs.
    """
    source, form = request.source.text, request.data.parquet or Cells()
    if not request.options.to_predict:
        for pattern in (*form.vocabulary, *form.unknown, *form.missing):
            check_pattern(source, pattern, schema.names)
    feeds = {c.name: _columns_of(request, c, schema) for c in request.used}
    wanted = list(dict.fromkeys(n for names in feeds.values() for n in names))
    parse = partial(_parse, source, form)

    def collect(batches: Iterable[pa.RecordBatch], first: int) -> LoadedRows:
        read = _read_batches(source, batches, wanted, form, first)
        return collect_batches(request, feeds, read, parse, _add_values, first)

    return wanted, collect


Values: TypeAlias = np.ndarray | pa.StringArray
"""Some rows of a column: text if it has a vocabulary, else numbers."""


def _read_batches(
    source: str,
    batches: Iterable[pa.RecordBatch],
    wanted: Sequence[str],
    form: Cells,
    count: int,
) -> Iterator[dict[str, Values]]:
    """Yield the columns of batches; `count` is the number of the first row."""
    for batch in batches:
        yield {
            n: read_text(batch.column(n))
            if form.words(n) is not None
            else _to_numpy(
                source, n, _fill(batch.column(n), first_match(form.missing, n)), count
            )
            for n in wanted
        }
        count += batch.num_rows


def read_text(array: pa.Array) -> pa.StringArray:
    """Return the values of a column as text; a null is an empty text."""
    return array.cast(pa.string()).fill_null("")


def _fill(array: pa.Array, missing: float | None) -> pa.Array:
    """Return a column of numbers in which nulls and NaNs are `missing`, if given."""
    if missing is None or pa.types.is_fixed_size_list(array.type):
        return array
    if pa.types.is_floating(array.type):
        array = pc.if_else(pc.is_nan(array), None, array)
    if not array.null_count:
        return array
    if missing != int(missing) or pa.types.is_boolean(array.type):
        array = array.cast(pa.float64())
    return array.fill_null(pa.scalar(missing).cast(array.type))


def _parse(
    source: str, form: Cells, column: Column, name: str, array: Values, first: int
) -> np.ndarray:
    """Return the values in the dtype of the input; `first` is the first row."""
    where = row_positions(source, name, range(first, first + len(array)))
    if not isinstance(array, np.ndarray):
        dtype, unknown = dtype_of(column, source), first_match(form.unknown, name)
        words = form.words(name)
        parser = CellParser("parquet", name, column, dtype, words, unknown, None)
        return parser.parse(array, where)
    values = convert(array, column, source, name, first)
    check_limits(values, column, where)
    return values


def _add_values(array: Values, checksum: int) -> int:
    if isinstance(array, np.ndarray):
        return zlib.crc32(array.tobytes(), checksum)
    return add_cells(array, checksum)


def _columns_of(
    request: ReadRequest, column: Column, schema: pa.Schema
) -> tuple[str, ...]:
    """Return the columns that feed an input; DataError if they do not fit it."""
    source, names = request.source.text, columns_of(request, column, schema.names)
    form = request.data.parquet or Cells()
    shapes = {
        name: _shape_of(
            source, name, schema.field(name).type, form.words(name) is not None
        )
        for name in names
    }
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


def _shape_of(
    source: str, name: str, type_: pa.DataType, has_words: bool
) -> tuple[int, ...]:
    """Return the shape of a row of a column.

    Raises DataError if it does not hold numbers or, with a vocabulary, text.
    """
    if has_words:
        if not is_text(type_):
            raise DataError(
                f"{source}: column '{name}' holds {type_}, not words",
                hint="a vocabulary is for text, whole numbers and booleans",
            )
        return ()
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
            hint="list the words of a column of text: parquet: {vocabulary:"
            f" {{{name}: [WORD, WORD]}}}}",
        )
    return tuple(shape)


def is_text(type_: pa.DataType) -> bool:
    """Return whether the values of a type can be words of a vocabulary."""
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    return bool(
        pa.types.is_string(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_string_view(type_)
        or pa.types.is_boolean(type_)
        or pa.types.is_integer(type_)
    )


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
                hint="replace nulls by numbers before you write the file"
                if len(shape) > 1 or pa.types.is_fixed_size_list(array.type)
                else f"write its value: parquet: {{missing: {{{name}: 0}}}}",
            )
        if not pa.types.is_fixed_size_list(array.type):
            break
        shape.append(array.type.list_size)
        size *= array.type.list_size
        array = array.flatten()
    values: np.ndarray = array.to_numpy(zero_copy_only=False)
    return values.reshape(shape)
