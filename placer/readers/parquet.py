"""Reads the rows of a `parquet:` file into memory, as columns of the inputs' dtypes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import prod

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.parquet import ParquetFile

from placer.errors import DataError
from placer.plan.settings.data.cell_options import (
    Cells,
    check_effects,
    check_list_column,
    first_match,
)
from placer.plan.settings.data.columns import Column
from placer.plan.settings.data.missing import Markers
from placer.plan.settings.data.sources import errors_of_input
from placer.readers.arguments import ReadRequest
from placer.readers.arrow_lists import list_shape, rows_of_lists
from placer.readers.arrow_text import is_text, read_text
from placer.readers.cell_numbers import CellParser, add_cells, have_numbers
from placer.readers.chunks import CollectedRows, FileFormat
from placer.readers.column import (
    check_limits,
    check_shape,
    convert,
    dtype_of,
    missing_hint,
    missing_value_error,
)
from placer.readers.features.cells import Cells as FeatureCells
from placer.readers.features.cells import can_compute_from, missing_number
from placer.readers.feeds import Feeds, find_feeds
from placer.readers.file_errors import file_errors
from placer.readers.file_sets import SameColumns, files_of
from placer.readers.rows import LoadedRows
from placer.readers.words import word_of
from placer.system.files.regular import open_regular

_ROWS_PER_BATCH = 16384


def read(request: ReadRequest) -> LoadedRows:
    """Read the columns that the inputs need, all rows or the rows of a split.

    An input is fed by one column of lists of its shape, or by one column of numbers for
    each of its values per row, in C order. Words, decimals, and numbers written as text
    are parsed like the cells of a CSV file.

    Raises:
        DataError: with the file and, if known, the column and the row, from 0.
    """
    most = request.options.first_rows
    files, same = [*files_of(request)], SameColumns()
    collected: CollectedRows | None = None
    for one in files:
        with (
            parquet_errors(one.source.text),
            open_regular(one.folder / one.source.path) as file,
            ParquetFile(
                file, pre_buffer=False, page_checksum_verification=True
            ) as table,
        ):
            feeds, shape = find_columns(one, table.schema_arrow)
            same.check(one.source.text, feeds, types_of(table.schema_arrow))
            rows, batches = table.metadata.num_rows, _read_batches(table, feeds.read)
            if most is not None:
                rows = min(rows, most)
                batches = islice(batches, -(-most // _ROWS_PER_BATCH))
            if collected is None:
                collected = CollectedRows(request, rows * len(files))
            collected.add(feeds, batches, shape)
        if collected.is_enough:
            break
    assert collected is not None
    return collected.loaded()


def parquet_errors(source: str) -> AbstractContextManager[None]:
    """Convert errors of a damaged file to DataErrors in the returned context."""
    hint = "a parquet: source must be an Apache Parquet file"
    # For a damaged file, pyarrow also raises UnicodeDecodeError, a subclass of
    # ValueError.
    return file_errors(source, hint, OSError, ValueError, pa.ArrowException)


def find_columns(request: ReadRequest, schema: pa.Schema) -> tuple[Feeds, FileFormat]:
    """Return the columns of a file that feed the inputs, and their format.

    Raises DataError if they do not fit the inputs.
    """
    form = request.data.parquet or Cells()
    if request.is_first and not request.options.to_predict:
        check_effects(request.source, form, schema.names, request.data.features)
    feeds = find_feeds(request, schema.names)
    shape = _ParquetFormat(request, form)
    for column in request.used:
        with errors_of_input(column.name):
            shape.check(column, feeds, schema)
    return feeds, shape


def types_of(schema: pa.Schema) -> dict[str, str]:
    """Return the type of each column; a dictionary has the type of its values."""
    return {
        field.name: str(
            field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        )
        for field in schema
    }


def _read_batches(
    table: ParquetFile, names: Sequence[str]
) -> Iterator[dict[str, pa.Array]]:
    for batch in table.iter_batches(_ROWS_PER_BATCH, columns=names, use_threads=False):
        yield {name: batch.column(name) for name in names}


@dataclass(frozen=True)
class _ParquetFormat:
    """Converts the columns of a file to values of inputs, or to cells for features."""

    request: ReadRequest
    form: Cells

    def parse(
        self, column: Column, name: str, array: pa.Array, first: int
    ) -> np.ndarray:
        source, words = self.request.source.text, self.form.words(name)
        where = partial(self.where, name, first)
        missing, markers = (
            first_match(self.form.missing, name),
            self.form.markers(name),
        )
        if pa.types.is_dictionary(array.type) and not is_text(array.type):
            array = array.cast(array.type.value_type)
        if words is not None or _is_read_as_text(array.type):
            dtype = dtype_of(column, source)
            unknown = first_match(self.form.unknown, name)
            parser = CellParser(
                "parquet", name, column, dtype, words, unknown, missing, markers
            )
            return parser.parse(_read_words(array, words, where), where)
        if pa.types.is_nested(array.type):
            numbers = rows_of_lists(array, column, source, name, first)
        else:
            array = _fill(array, missing, markers, where, name, column)
            numbers = _to_numpy(source, name, column, array, first)
        values = convert(numbers, column, source, name, first)
        check_limits(values, column, where)
        return values

    def cells(self, name: str, array: pa.Array, first: int) -> FeatureCells:
        missing = first_match(self.form.missing, name)
        where = partial(self.where, name, first)
        markers = self.form.markers(name)
        return FeatureCells(name, array, False, missing, "parquet", where, markers)

    def where(self, name: str, first: int, i: int) -> str:
        return f"{self.request.source.text}: column '{name}', row {first + i}"

    def add_digest(self, array: pa.Array, digest: int) -> int:
        """Return the digest after these rows. The result depends on the size of the batches."""
        if pa.types.is_dictionary(array.type):
            array = array.cast(array.type.value_type)
        if array.null_count:
            nulls = array.is_null().to_numpy(zero_copy_only=False)
            digest = zlib.crc32(nulls.tobytes(), digest)
        if pa.types.is_nested(array.type):
            lengths = pc.list_value_length(array).fill_null(0)
            digest = zlib.crc32(lengths.to_numpy().tobytes(), digest)
            return self.add_digest(array.flatten(), digest)
        if pa.types.is_null(array.type):
            return digest
        if is_text(array.type) or pa.types.is_decimal(array.type):
            return add_cells(read_text(array), digest)
        if pa.types.is_temporal(array.type):
            array = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
        if array.null_count:
            array = array.fill_null(pa.scalar(0).cast(array.type))
        return zlib.crc32(array.to_numpy(zero_copy_only=False).tobytes(), digest)

    def check(self, column: Column, feeds: Feeds, schema: pa.Schema) -> None:
        """Raise DataError if the columns that feed an input do not fit it."""
        source, form = self.request.source.text, self.form
        names = feeds.inputs[column.name]
        shapes = {
            name: ()
            if name in feeds.features
            else _shape_of(
                source,
                name,
                schema.field(name).type,
                form.words(name) is not None,
                column,
            )
            for name in names
        }
        if len(names) == 1 and (shapes[names[0]] or prod(column.shape) != 1):
            check_shape(shapes[names[0]], column, source, names[0], None)
        for name in feeds.sources[column.name]:
            type_ = schema.field(name).type
            if name not in shapes and not can_compute_from(type_):
                raise DataError(
                    f"{source}: column '{name}' holds {type_}, which features"
                    " cannot be computed from",
                    hint="features need columns of text or numbers",
                )
        for name, shape in shapes.items():
            if shape:
                check_list_column(self.request.source, form, name)
            if len(names) > 1 and shape:
                raise DataError(
                    f"{source}: input '{column.name}' reads {len(names)} columns,"
                    f" but column '{name}' has the shape [n,"
                    f" {', '.join(map(str, shape))}]",
                    hint="an input can read several columns only if each has one"
                    " number in each row",
                )


def _read_words(
    array: pa.Array, words: Mapping[str, int] | None, where: Callable[[int], str]
) -> pa.StringArray:
    """Return the values of a column as text; floats as the words they stand for."""
    if words is None or not pa.types.is_floating(array.type):
        return read_text(array, where)
    encoded = array.dictionary_encode()
    values = encoded.dictionary.to_numpy(zero_copy_only=False)
    texts = pa.array([word_of(value, words) for value in values], pa.string())
    return texts.take(encoded.indices).fill_null("")


def _fill(
    array: pa.Array,
    missing: float | None,
    markers: Markers,
    where: Callable[[int], str],
    name: str,
    column: Column,
) -> pa.Array:
    """Return a column of numbers with `missing` in place of nulls, NaNs and markers."""
    if markers.numbers:
        marked = have_numbers(array, markers)
        if missing is None and pc.any(marked).as_py():
            at = pc.index(marked, True).as_py()
            shown = str(array[at].as_py())
            raise missing_value_error("parquet", name, column, where(at), shown)
        array = pc.if_else(marked, None, array)
    if missing is None:
        return array
    if pa.types.is_floating(array.type):
        array = pc.if_else(pc.is_nan(array), None, array)
    if not array.null_count:
        return array
    fill = int(missing) if missing == int(missing) else missing
    if isinstance(fill, float) or pa.types.is_boolean(array.type):
        array = array.cast(pa.float64(), safe=False)
    return array.fill_null(missing_number(fill, array.type, where(0), "parquet", name))


def _is_read_as_text(type_: pa.DataType) -> bool:
    """Return True if numbers of this type are read from their text, as in a CSV file."""
    return bool(is_text(type_) or pa.types.is_decimal(type_) or pa.types.is_null(type_))


def _shape_of(
    source: str, name: str, type_: pa.DataType, has_words: bool, column: Column
) -> tuple[int, ...]:
    """Return the shape of a row of a column; raise DataError for unsuitable types."""
    if has_words:
        if not can_be_words(type_):
            raise DataError(
                f"{source}: column '{name}' holds {type_}, not words",
                hint="a vocabulary needs text, numbers or booleans",
            )
        return ()
    shape, inner = list_shape(type_, column, source, name)
    if pa.types.is_dictionary(inner):
        inner = inner.value_type
    is_number = (
        pa.types.is_boolean(inner)
        or pa.types.is_integer(inner)
        or pa.types.is_floating(inner)
    )
    if not is_number and (shape or not _is_read_as_text(inner)):
        hint = "convert the column to numbers"
        if pa.types.is_date(inner) or pa.types.is_timestamp(inner):
            hint = f"compute numbers from dates: features: {{NAME: {{days: {name}}}}}"
        message = f"{source}: column '{name}' holds {type_}, not numbers"
        raise DataError(message, hint=hint)
    return shape


def can_be_words(type_: pa.DataType) -> bool:
    """Return True if values of this type can be words of a vocabulary."""
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    return bool(
        is_text(type_)
        or pa.types.is_boolean(type_)
        or pa.types.is_integer(type_)
        or pa.types.is_floating(type_)
        or pa.types.is_decimal(type_)
        or pa.types.is_null(type_)
    )


def _to_numpy(
    source: str, name: str, column: Column, array: pa.Array, first: int
) -> np.ndarray:
    """Return the numbers of some rows, [rows]; raise DataError for a null."""
    if array.null_count:
        index = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
        raise DataError(
            f"{source}: column '{name}', row {first + index} is null",
            hint=missing_hint("parquet", name, column),
        )
    values: np.ndarray = array.to_numpy(zero_copy_only=False)
    return values
