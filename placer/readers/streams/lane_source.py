"""Opens the function of a `python:` stream, and reads the rows of its lanes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from placer.errors import DataError, StreamError
from placer.plan.modules import modules_in
from placer.plan.settings.data.columns import Column
from placer.plan.settings.data.source import Data
from placer.plan.settings.data.sources import errors_of_input
from placer.readers.arguments import ReadOptions, ReadRequest
from placer.readers.blocks import convert_block, read_block
from placer.readers.column import check_limits, row_positions
from placer.readers.python_columns import refuse_row_settings
from placer.readers.python_row import reader_errors, takes
from placer.readers.python_rows import find_function
from placer.readers.source import make_request
from placer.readers.streams.mark import Mark

Block = Mapping[str, np.ndarray]
"""Consecutive rows of a lane: an array for each input, [rows, *shape], of its dtype."""

_END: Final = object()


@dataclass(frozen=True)
class LaneSource:
    """The function of a stream. Several threads may read its lanes.

    Attributes:
        request: the inputs.
        function: called with a lane, the number of lanes, and the state of a mark.
        lanes: the number of lanes.
        columns: the inputs to convert and to compare: those to read, and with digests also
            those of other processes.
    """

    request: ReadRequest
    function: Callable[[int, int, Any], Iterable[Any]]
    lanes: int
    columns: tuple[Column, ...]

    def where(self, lane: int) -> str:
        """Return the name of a lane, for messages."""
        return f"{self.request.source.text}: lane {lane}"

    def read(self, lane: int, mark: Any) -> Generator[Block | Mark]:
        """Call the function for a lane, and yield its blocks and marks. A block may be empty.

        Args:
            lane: the lane.
            mark: the state of the mark to begin with; None for the start of the stream.

        Raises:
            DataError: if a block does not fit the inputs.
            StreamError: if the function raises.
        """
        request, number = self.request, 0
        with reader_errors(request, f"in lane {lane}", StreamError):
            yielded = self.function(lane, self.lanes, deepcopy(mark))
        if yielded is None:
            raise DataError(
                f"{self.where(lane)}: the function returned None", hint=_YIELD
            )
        with reader_errors(request, f"in lane {lane}", StreamError):
            items = iter(yielded)
        try:
            while True:
                when = f"in lane {lane}, at block {number}"
                with reader_errors(request, when, StreamError):
                    item = next(items, _END)
                if item is _END:
                    return
                if isinstance(item, Mark):
                    yield item
                else:
                    yield self._convert(item, f"{self.where(lane)}, block {number}")
                    number += 1
        finally:
            if close := getattr(items, "close", None):
                close()

    def _convert(self, item: object, where: str) -> Block:
        if not isinstance(item, Mapping):
            raise DataError(
                f"{where} is a {type(item).__name__}, not a dict", hint=_YIELD
            )
        request = self.request
        arrays = read_block(request, self.columns, item, where)
        rows = convert_block(request, self.columns, arrays, where, where, 0)
        for column in self.columns:
            array, name = rows[column.name], request.single_feeds[column.name]
            if array is arrays[column.name]:
                array = array.copy()  # the function may reuse its arrays
            rows[column.name] = np.ascontiguousarray(array)
            with errors_of_input(column.name):
                at = row_positions(where, name, range(len(array)))
                check_limits(array, column, at)
        return rows


_YIELD: Final = "yield dicts of arrays with an entry for each row, and placer.Mark(state) between them"


def open_lanes(
    data: Data,
    columns: Sequence[Column],
    folder: Path,
    options: ReadOptions,
) -> LaneSource:
    """Load the function of a `python:` stream. It is called when its lanes are read.

    Args:
        data: the settings of the source; `data.columns` names only inputs of `columns` and
            of `options.other_columns`.
        columns: the inputs to read.
        folder: the folder of the module.
        options: with digests, the rows of `options.other_columns` are compared, too.

    Raises:
        DataError: if the function is missing, does not take three arguments, or a setting
            works only for single rows.
        RunError: if the module raises.
    """
    assert data.stream is not None
    assert data.stream.lanes is not None
    request = make_request(data, columns, folder, options)
    refuse_row_settings(request, "gives blocks of rows")
    with modules_in(request.folder) as modules:
        function = find_function(request, modules)
    if not takes(function, 0, 1, None):
        name = request.source.path.partition(":")[2]
        raise DataError(
            f"{request.source.text}: the function of a stream is called as {name}(lane,"
            " lanes, mark)",
            hint=f"define it as: def {name}(lane, lanes, mark):",
        )
    compared = request.used if options.with_digests else tuple(columns)
    return LaneSource(request, function, data.stream.lanes, compared)
