"""Converts rows of a `python:` source to values of inputs, and checks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np

from placer.errors import DataError
from placer.plan.settings.data.cell_options import (
    Cells,
    check_effects,
    check_list_column,
    first_match,
)
from placer.plan.settings.data.columns import Column, is_glob
from placer.plan.settings.data.missing import Markers
from placer.plan.settings.data.sources import (
    SourceError,
    errors_of_input,
    missing_column_error,
)
from placer.readers.arguments import ReadRequest
from placer.readers.cell_numbers import CellParser
from placer.readers.column import (
    check_limits,
    check_numbers,
    check_shape,
    convert,
    dtype_of,
    missing_value_error,
    row_positions,
)
from placer.readers.features.cells import Cells as FeatureCells
from placer.readers.features.computation import Computation
from placer.readers.features.input_values import input_values
from placer.readers.features.python_cells import from_python
from placer.readers.feeds import Feeds, find_feeds, wanted_columns
from placer.readers.scalars import is_absent, is_marker, scalar_of
from placer.readers.whole_numbers import to_array

Row = Mapping[str, Any]
Arrays = dict[str, np.ndarray]


def needs_columns(request: ReadRequest) -> bool:
    """Return True if the columns of the rows decide which of them feed the inputs."""
    wanted = [each for c in request.used for each in wanted_columns(request, c.name)]
    return bool(request.data.features) or any(map(is_glob, wanted))


def needs_row(request: ReadRequest) -> bool:
    """Return True if the columns of a first row must be known."""
    return needs_columns(request) or request.data.python is not None


def python_values(request: ReadRequest, first: Row | None) -> PythonValues:
    """Return the converter of a source's rows; `first` is one of the rows.

    `first` may be None unless `needs_row`. Raises DataError if the columns do not fit
    the inputs, or an option of a column has no effect.
    """
    form = request.data.python or Cells()
    names = [] if first is None else [*map(str, first)]
    if first is not None and not request.options.to_predict:
        check_effects(request.source, form, names, request.data.features)
    if first is not None and needs_columns(request):
        return PythonValues(request, find_feeds(request, names), form)
    inputs = {each.name: wanted_columns(request, each.name) for each in request.used}
    return PythonValues(request, Feeds(inputs, {}), form)


@dataclass(frozen=True, slots=True)
class PythonValues:
    """Converts rows to the values of inputs.

    Attributes:
        request: the inputs.
        feeds: the columns and the features that feed them.
        form: the options of the columns.
        parsers: the parser of each column for each input, once used.
        markers: the markers of missing values of each column, once used.
    """

    request: ReadRequest
    feeds: Feeds
    form: Cells
    parsers: dict[tuple[str, str], CellParser] = field(default_factory=dict)
    markers: dict[str, Markers] = field(default_factory=dict)

    def is_computed(self, column: Column) -> bool:
        """Return True if an input reads features, which `compute` computes."""
        return any(
            name in self.feeds.features for name in self.feeds.inputs[column.name]
        )

    def read(self, row: Row, columns: Sequence[Column], number: int) -> Arrays:
        """Return the values of inputs without features in one row.

        They have shape [1, *shape] and the input's dtype, and may be views of arrays in
        the row. Raises DataError with the column if a value is missing or does not fit.
        """
        source, inputs = self.request.source.text, self.feeds.inputs
        plain = [column for column in columns if not self.is_computed(column)]
        single = [column for column in plain if len(inputs[column.name]) == 1]
        values: Arrays = {}
        converted: Arrays = {}
        try:  # `errors_of_input` around each value would double the time
            for column in single:
                values[column.name] = self._array(
                    row, column, inputs[column.name][0], number
                )
            for column in single:
                value, name = values[column.name], inputs[column.name][0]
                if value.shape != column.shape:
                    _check_no_batch(source, single, values, number)
                    check_numbers(value, column, source, name)
                    check_shape(value.shape, column, source, name, number)
            for column in plain:
                names = inputs[column.name]
                if len(names) == 1:
                    value = values[column.name][np.newaxis]
                    result = convert(value, column, source, names[0], number)
                else:
                    parts = [self._scalar(row, column, name, number) for name in names]
                    result = np.concatenate(parts).reshape(1, *column.shape)
                converted[column.name] = result
        except DataError as error:
            with errors_of_input(column.name):
                raise error from None
        return converted

    def operands(
        self, row: Row, columns: Sequence[Column], number: int
    ) -> dict[str, Any]:
        """Return the values in one row from which features are computed."""
        values: dict[str, Any] = {}
        for column in filter(self.is_computed, columns):
            for name in self.feeds.sources[column.name]:
                value = self._value(row, column, name)
                is_number = (
                    isinstance(value, np.generic) and value.dtype.kind not in "mM"
                )
                # As a Python number, a float32 would differ from its marker.
                if is_marker(value, self._markers(name).numbers):
                    value = None
                elif is_number:  # the item of a datetime64 may be a number
                    value = value.item()
                elif is_absent(value) and not isinstance(value, float):
                    value = None
                if isinstance(value, np.ndarray | list | tuple | Mapping):
                    raise SourceError(
                        ("columns", column.name),
                        f"{self._where(name, [number], 0)}: {type(value).__name__}"
                        " is not one value",
                        "a feature needs a text or a number",
                    )
                values[name] = value
        return values

    def compute(
        self,
        rows: Sequence[Mapping[str, Any]],
        columns: Sequence[Column],
        numbers: Sequence[int],
    ) -> Arrays:
        """Return the values of inputs with features, [rows, *shape].

        Args:
            rows: the `operands` of each row.
            columns: the inputs.
            numbers: the numbers of the rows.

        Raises:
            DataError: if a value does not fit.
        """
        if not rows:
            return {}
        source = self.request.source.text

        def cells(name: str) -> FeatureCells:
            values = [row[name] for row in rows]
            missing = first_match(self.form.missing, name)
            where = partial(self._where, name, numbers)
            return from_python(name, values, missing, where, self._markers(name))

        computed = Computation(self.feeds.features, cells)
        arrays: Arrays = {}
        for column in filter(self.is_computed, columns):
            parts = []
            with errors_of_input(column.name):
                for name in self.feeds.inputs[column.name]:
                    where = partial(self._where, name, numbers)
                    if name in self.feeds.features:
                        values, first = computed.values(name), numbers[0]
                        part = input_values(values, column, name, source, first, where)
                    else:
                        scalars = [
                            self._scalar(row, column, name, number)
                            for row, number in zip(rows, numbers, strict=True)
                        ]
                        part = np.concatenate(scalars)
                    parts.append(part)
            joined = np.stack(parts, axis=1)
            arrays[column.name] = joined.reshape(len(rows), *column.shape)
        return arrays

    def check_ranges(
        self, arrays: Mapping[str, np.ndarray], numbers: Sequence[int]
    ) -> None:
        """Raise DataError for a value outside the limits of its input.

        `arrays` holds the rows of each input, and `numbers` their numbers.
        """
        for column in self.request.columns:
            if column.name in self.feeds.inputs:
                name = ", ".join(self.feeds.inputs[column.name])
                where = row_positions(self.request.source.text, name, numbers)
                with errors_of_input(column.name):
                    check_limits(arrays[column.name], column, where)

    def _where(self, name: str, numbers: Sequence[int], i: int) -> str:
        return row_positions(self.request.source.text, name, numbers)(i)

    def _scalar(self, row: Row, column: Column, name: str, number: int) -> np.ndarray:
        """Return one value in the dtype of an input that reads several columns, [1]."""
        source = self.request.source.text
        value = self._array(row, column, name, number)
        if value.shape:
            raise DataError(
                f"{source}: input '{column.name}' reads several columns, but"
                f" column '{name}', row {number}, has the shape"
                f" {list(value.shape)}",
                hint="an input can read several columns only if each has one number in"
                " each row",
            )
        return convert(value[np.newaxis], column, source, name, number)

    def _array(self, row: Row, column: Column, name: str, number: int) -> np.ndarray:
        value, parser = self._value(row, column, name), self._parser(column, name)
        if parser.words is None and not isinstance(value, str | bytes | Decimal):
            value = self._present(value, parser, number)
        else:
            value = parser.parse_value(value, partial(self._where, name, [number]))
        try:
            array = to_array(value)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{self._where(name, [number], 0)}: {error}",
                hint=f"input '{column.name}' is {column}",
            ) from error
        if array.shape:
            check_list_column(self.request.source, self.form, name)
        return array

    def _value(self, row: Row, column: Column, name: str) -> Any:
        if name not in row:
            raise missing_column_error(
                self.request.source.text,
                name,
                column.name,
                tuple(sorted(map(str, row))),
            )
        return scalar_of(row[name])

    def _present(self, value: Any, parser: CellParser, number: int) -> Any:
        """Return a value, or the number to use for a missing one."""
        numbers, missing = parser.markers.numbers, parser.missing
        is_marked = bool(numbers) and is_marker(value, numbers)
        if missing is not None and (is_marked or is_absent(value)):
            return missing
        # An input of floats takes NaN, which is not an object.
        is_nothing = is_absent(value) and np.asarray(value).dtype == object
        if is_marked or is_nothing:
            shown = None if is_nothing else str(value)
            where = self._where(parser.name, [number], 0)
            raise missing_value_error(
                "python", parser.name, parser.column, where, shown
            )
        return value

    def _parser(self, column: Column, name: str) -> CellParser:
        """Return the options of a column that an input reads, and its text parser."""
        key = column.name, name
        if key not in self.parsers:
            self.parsers[key] = CellParser(
                "python",
                name,
                column,
                dtype_of(column, self.request.source.text),
                self.form.words(name),
                first_match(self.form.unknown, name),
                first_match(self.form.missing, name),
                self._markers(name),
            )
        return self.parsers[key]

    def _markers(self, name: str) -> Markers:
        if name not in self.markers:
            self.markers[name] = self.form.markers(name)
        return self.markers[name]


def _check_no_batch(
    source: str,
    columns: Sequence[Column],
    values: Mapping[str, np.ndarray],
    number: int,
) -> None:
    """Raise DataError if every value of a row has an extra leading dimension."""
    shapes = [(values[column.name].shape, column.shape) for column in columns]
    sizes = {shape[:1] for shape, _ in shapes}
    are_batches = all(shape and shape[1:] == declared for shape, declared in shapes)
    # A single scalar input may be declared with the wrong shape instead.
    if len(sizes) == 1 and are_batches and (len(columns) > 1 or columns[0].shape):
        ((size,),) = sizes
        raise SourceError(
            ("source",),
            f"{source}: row {number} is a batch of {size} rows",
            "yield one row at a time, or only blocks of rows: dicts of arrays, such as"
            " numpy.asarray(value); for a sequence of blocks, return iter(sequence)",
        )
