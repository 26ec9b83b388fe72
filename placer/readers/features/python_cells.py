"""Columns for features from Python values."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from placer.errors import DataError
from placer.plan.settings.data.missing import MISSING, NO_MARKERS, Markers
from placer.readers.features.cells import Cells, can_compute_from
from placer.readers.features.times import ISO_HINT
from placer.readers.scalars import is_absent
from placer.readers.times import DAY, time_of


def from_python(
    name: str,
    values: list[Any],
    missing: float | None,
    where: Callable[[int], str],
    markers: Markers = NO_MARKERS,
) -> Cells:
    """Return Python values as a column; None, NaN, NaT and NA are missing.

    Raises DataError unless the values are all texts, all numbers or all times.
    """
    try:
        if any(isinstance(value, date | np.datetime64) for value in values):
            array = _times_of_python(values, markers, where)
            return Cells(name, array, False, missing, "python", where, markers)
        try:
            array = pa.array(values, from_pandas=True)
        except OverflowError:  # some number is 2**63 or more
            whole = [value if is_absent(value) else Decimal(value) for value in values]
            array = pa.array(whole, pa.decimal128(38, 0), from_pandas=True)
    except (pa.ArrowException, ValueError, TypeError, ArithmeticError) as error:
        kinds = dict.fromkeys(
            type(value).__name__ for value in values if not is_absent(value)
        )
        raise DataError(
            f"{where(0)} and following: {', '.join(kinds)} do not form a column:"
            f" {error}",
            hint="the values of a column must be all texts, all numbers, or all times",
        ) from error
    if not can_compute_from(array.type):
        raise DataError(
            f"{where(0)}: features cannot be computed from {array.type}",
            hint="features need texts or numbers",
        )
    return Cells(name, array, False, missing, "python", where, markers)


def _times_of_python(
    values: list[Any], markers: Markers, where: Callable[[int], str]
) -> pa.Array:
    """Return times as timestamps, in nanoseconds if a value needs them."""
    ticks: list[int | None] = []
    for i, value in enumerate(values):
        try:
            text = value.strip() if isinstance(value, str) else None
            if (
                is_absent(value)
                or text in MISSING
                or (text and markers.marks_missing(text))
            ):
                ticks.append(None)
            else:
                days, nanoseconds = time_of(value)
                ticks.append(days * DAY + nanoseconds)
        except ValueError as error:
            raise DataError(f"{where(i)}: {error}", hint=ISO_HINT) from None
    if any(each is not None and each % 1000 for each in ticks):
        return pa.array(ticks, pa.int64()).cast(pa.timestamp("ns"))
    whole = [None if each is None else each // 1000 for each in ticks]
    return pa.array(whole, pa.int64()).cast(pa.timestamp("us"))
