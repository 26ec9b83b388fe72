"""Collects blocks of rows that a `python:` source yields.

A block is a dict of arrays with one entry per row, such as a batch of `tf.data`, of grain, of
a PyTorch `DataLoader` or of Hugging Face datasets.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from placer.errors import DataError
from placer.plan.settings.data.columns import Column
from placer.plan.settings.data.sources import errors_of_input, missing_column_error
from placer.readers.arguments import ReadRequest
from placer.readers.arrays import check_row_counts
from placer.readers.column import check_limits, check_shape, convert, row_positions
from placer.readers.feeds import wanted_columns
from placer.readers.growing_array import GrowingArray
from placer.readers.python_columns import refuse_row_settings
from placer.readers.python_row import check_is_mapping
from placer.readers.row_limit import too_many_rows
from placer.readers.rows import LoadedRows, make_loaded_rows
from placer.readers.whole_numbers import to_array


def is_block(request: ReadRequest, item: Mapping[str, Any]) -> bool:
    """Return True if an item holds several rows rather than one.

    Its values are arrays, and have one axis more than a row of their inputs. If some have
    another number of axes, all must at least have the same first dimension, and none the
    shape of one row. A list of arrays, as PyTorch collates lists, is refused later.
    """
    shapes = []
    has_lists = False
    for column in request.used:
        names = wanted_columns(request, column.name)
        if len(names) == 1 and names[0] in item:
            value = item[names[0]]
            if _is_list_of_arrays(value):
                has_lists = True
                continue
            if not hasattr(value, "__array__"):
                return False
            shapes.append((tuple(np.shape(value)), column.shape))
    if not all(shape for shape, _ in shapes):
        return False
    has_more = [len(shape) == len(row) + 1 for shape, row in shapes]
    if all(has_more):
        return bool(shapes)
    if has_lists:
        return False
    have_same_rows = len({shape[0] for shape, _ in shapes}) == 1
    return any(has_more) and have_same_rows and all(s != row for s, row in shapes)


def _is_list_of_arrays(value: Any) -> bool:
    """Return True for a list of arrays that are not single numbers."""
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(hasattr(each, "__array__") and np.ndim(each) > 0 for each in value)


def collect_blocks(
    request: ReadRequest,
    function: Callable[..., Any],
    blocks: Iterable[Any],
    limit: int,
) -> LoadedRows:
    """Collect the rows of all blocks that a source yields. Blocks may differ in length.

    Args:
        request: the inputs.
        function: the function of the source.
        blocks: mappings from column to the values of its rows, [rows, ...].
        limit: the largest number of rows (see `row_limit`).

    Raises:
        DataError: if a block does not fit, or there are too many rows or none.
    """
    refuse_row_settings(request, "yields blocks of rows")
    options, source = request.options, request.source.text
    rows = {c.name: GrowingArray(request, c) for c in request.columns}
    checksums = {c.name: 0 for c in request.used if options.with_digests}
    count = 0
    for number, block in enumerate(blocks):
        where = f"{source}: block {number}"
        mapping = check_is_mapping(request, block, number)
        arrays = read_block(request, request.used, mapping, where)
        first, count = count, count + len(next(iter(arrays.values())))
        if count > limit:
            raise too_many_rows(request, function, limit)
        converted = convert_block(
            request, request.columns, arrays, where, source, first
        )
        for name, values in converted.items():
            rows[name].extend(count)[...] = values
        for key, checksum in checksums.items():
            checksums[key] = zlib.crc32(arrays[key].tobytes(), checksum)
        options.report(count)
        if options.first_rows is not None and count >= options.first_rows:
            break
    if count == 0:
        raise DataError(f"{source} has no rows", hint="a source needs at least one row")
    typed = {name: array.take_rows() for name, array in rows.items()}
    for column in request.columns:
        name = request.single_feeds[column.name]
        with errors_of_input(column.name):
            at = row_positions(source, name, range(count))
            check_limits(typed[column.name], column, at)
    return make_loaded_rows(typed, options, checksums)


def read_block(
    request: ReadRequest,
    columns: Iterable[Column],
    block: Mapping[str, Any],
    where: str,
) -> dict[str, np.ndarray]:
    """Return the array of each input in a block. All have the same number of rows.

    `where` is the position of the block, for messages. Raises DataError if an array is
    missing or has no rows.
    """
    arrays, counts = {}, {}
    for column in columns:
        name = request.single_feeds[column.name]
        try:
            value = block[name]
        except KeyError:
            listed = tuple(sorted(map(str, block)))
            with errors_of_input(column.name):
                raise missing_column_error(where, name, column.name, listed) from None
        arrays[column.name] = array = _array(value, column, name, where)
        counts[name] = len(array)
    check_row_counts(where, counts)
    return arrays


def convert_block(
    request: ReadRequest,
    columns: Iterable[Column],
    arrays: Mapping[str, np.ndarray],
    where: str,
    source: str,
    first: int,
) -> dict[str, np.ndarray]:
    """Return the arrays of a block in the dtypes of the inputs, [rows, *shape].

    The result may share memory with the block.

    Args:
        request: the columns that feed the inputs.
        columns: the inputs.
        arrays: the array of each input in the block.
        where: the position of the block, for messages.
        source: the name of the rows, for messages with the number of a row.
        first: the number of the first row of the block.

    Raises:
        DataError: if a value does not fit.
    """
    converted = {}
    for column in columns:
        name, array = request.single_feeds[column.name], arrays[column.name]
        try:  # `errors_of_input` takes longer than to convert a small block
            check_shape(array.shape[1:], column, where, name, None)
            converted[column.name] = convert(array, column, source, name, first)
        except DataError as error:
            with errors_of_input(column.name):
                raise error from None
    return converted


def _array(value: Any, column: Column, name: str, where: str) -> np.ndarray:
    """Return the values of a column of a block, [rows, ...]."""
    found = f"is a {type(value).__name__}, not an array with an entry per row"
    hint = "yield only blocks: dicts of arrays with an entry for each row"
    if _is_list_of_arrays(value):
        hint = (
            f"yield one array; for a DataLoader of PyTorch, return '{name}' of a row as"
            " an array or a tensor, not as a list"
        )
    if hasattr(value, "__array__"):
        try:
            array = to_array(value)
            if array.ndim:
                return array
            found = "is one value, not an array with an entry per row"
        except (TypeError, ValueError, RuntimeError) as error:
            found = f"cannot be read: {error}"
            hint = (
                "yield arrays that NumPy reads; a tensor of PyTorch may need"
                " .detach().float().cpu()"
            )
    with errors_of_input(column.name):
        raise DataError(f"{where}: column '{name}' {found}", hint=hint)
