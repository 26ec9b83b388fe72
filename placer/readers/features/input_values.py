"""Converts values of features to the dtypes of the inputs that read them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from placer.errors import DataError
from placer.plan.settings.data.columns import Column
from placer.readers.column import check_limits, convert
from placer.readers.features.computation import Values


def input_values(
    values: Values,
    column: Column,
    name: str,
    source: str,
    first: int,
    where: Callable[[int], str],
) -> Values:
    """Return the values of a feature in the dtype of an input, [rows].

    Keys keep all 64 bits: in an int64 input, keys from 2**63 on are negative.

    Args:
        values: the values, as `Computation.values` returns them.
        column: the input.
        name: the feature.
        source: the text of the source.
        first: the number of the first row in the source.
        where: returns the position of a row in the source, for messages.

    Raises:
        DataError: if a value does not fit the input.
    """
    if values.dtype != np.uint64:
        values = convert(values, column, source, name, first)
    elif column.dtype in ("int64", "uint64"):
        values = values.view(column.dtype)
    else:
        raise DataError(
            f"{source}: '{name}' has 64-bit keys, but input '{column.name}' is"
            f" {column}",
            hint="declare the input int64, and name the feature in columns; or write"
            " bins: N in the feature for numbers below N",
        )
    check_limits(values, column, where)
    return values
