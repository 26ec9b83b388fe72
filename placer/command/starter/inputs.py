"""The inputs of a first model, with the columns and features that feed them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor, log10
from typing import Any, Final, Protocol

import numpy as np

from placer.command.starter.column import Dates, Ids, Numbers, Words
from placer.command.starter.text import flow_list
from placer.compiler.frontend.entries.names import is_name
from placer.compiler.frontend.python.yaml_text import WIDTH, one_line

NUMBERS: Final = "numbers"
"""The name of the input that holds all columns of numbers."""
_BUCKETS: Final = 16
_GAPS: Final = 0.01
_LEAST_ROWS_PER_BUCKETED: Final = 300
_LONG_TAIL: Final = 6
_SUFFIXES = ("scaled", "log", "bucket", "key", "days", "hour", "weekday")


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of the spec.

    Attributes:
        name: its name.
        kind: its kind, such as `buckets`.
        operand: the column or feature from which it is computed.
        options: its other keys.
    """

    name: str
    kind: str
    operand: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def lines(self, indent: int) -> Iterator[str]:
        """Yield the lines of the entry under `features`, short enough for `indent` more
        blanks."""
        entry = {self.kind: self.operand, **self.options}
        line = f"{one_line(self.name)}: {one_line(entry, flow=True)}"
        if len(line) <= WIDTH - indent:
            yield line
            return
        yield f"{one_line(self.name)}:"
        for key, value in entry.items():
            if isinstance(value, list):
                yield from ("  " + each for each in flow_list(key, value, indent + 2))
            else:
                yield f"  {key}: {one_line(value)}"


@dataclass(frozen=True, slots=True)
class Embedded:
    """An input of whole numbers that are looked up in a table of vectors.

    Attributes:
        name: the name of the input.
        source: the column or feature that feeds it.
        rows: the number of rows of the table; None for a sparse table of any keys.
        size: the length of a vector.
        column: the column behind the input.
    """

    name: str
    source: str
    rows: int | None
    size: int
    column: Words | Ids | Numbers | Dates


@dataclass
class Inputs:
    """The inputs of a model, without its label.

    Attributes:
        features: the features, in their order.
        numbers: the features that feed the input `numbers`.
        embedded: the other inputs.
        filled: the replacement of a missing number, by column.
        markers: the columns with unusual words for a missing value.
    """

    features: list[Feature] = field(default_factory=list)
    numbers: list[str] = field(default_factory=list)
    embedded: list[Embedded] = field(default_factory=list)
    filled: dict[str, float | int] = field(default_factory=dict)
    markers: dict[str, Numbers] = field(default_factory=dict)


class Columns(Protocol):
    """The columns that a model uses, by their kind."""

    @property
    def numbers(self) -> Sequence[Numbers]: ...
    @property
    def words(self) -> Sequence[Words]: ...
    @property
    def ids(self) -> Sequence[Ids]: ...
    @property
    def dates(self) -> Sequence[Dates]: ...


def has_gaps(column: Numbers) -> bool:
    """Return True if so many numbers are missing that a gap may carry information."""
    return column.missing >= max(2, _GAPS * len(column.values))


def make_inputs(
    columns: Columns, names: dict[str, str], *, is_whole: bool, has_few_rows: bool
) -> Inputs:
    """Return the inputs for columns.

    Args:
        columns: the columns.
        names: a valid name for each column.
        is_whole: True if all rows of the file were read. If not, unread rows may have
            missing values.
        has_few_rows: True if there are too few rows to learn a vector for each bucket.
    """
    inputs = Inputs()
    rows = max((len(each.values) for each in columns.numbers), default=0)
    # With many columns, the model would memorize rows through the vectors of useless
    # columns.
    has_buckets = rows >= _LEAST_ROWS_PER_BUCKETED * len(columns.numbers)
    for number in columns.numbers:
        name = names[number.name]
        keeps_gaps = has_gaps(number) and not has_few_rows
        if not keeps_gaps:
            _add_filled(inputs, number, name, is_whole)
        has_many = len(np.unique(number.present)) > _BUCKETS
        if keeps_gaps or (has_many and has_buckets and not has_few_rows):
            _add_buckets(inputs, number, name, number.name, number.present)
        if number.markers:
            inputs.markers[number.name] = number
    for date in columns.dates:
        _add_dates(inputs, date, names[date.name], is_whole, has_few_rows)
    for word in columns.words:
        rows = len(word.words) + 1
        name = names[word.name]
        inputs.embedded.append(Embedded(name, word.name, rows, _size(rows), word))
    for ids in columns.ids:
        name = names[ids.name]
        bins = None if ids.is_sparse else ids.bins
        options: dict[str, Any] = {"type": "integer"} if ids.are_numbers else {}
        if bins is not None:
            options["bins"] = bins
        inputs.features.append(Feature(f"{name}.key", "hash", ids.name, options))
        inputs.embedded.append(Embedded(name, f"{name}.key", bins, 8, ids))
    return inputs


def _add_filled(inputs: Inputs, column: Numbers, name: str, is_whole: bool) -> None:
    """Add a column of numbers, scaled to mean 0 and variance 1, with its gaps filled."""
    if column.missing or not is_whole:
        inputs.filled[column.name] = _short(column.median)
    values, operand = column.present, column.name
    if _has_long_tail(values):
        inputs.features.append(Feature(f"{name}.log", "log1p", operand))
        values, operand = np.log1p(values), f"{name}.log"
    _add_scaled(inputs, name, operand, values)


def _add_dates(
    inputs: Inputs, column: Dates, name: str, is_whole: bool, has_few_rows: bool
) -> None:
    """Add a column of dates as days, day of the week and hour."""
    if column.missing or not is_whole:
        inputs.filled[column.name] = column.median
    if column.first != column.last:
        inputs.features.append(Feature(f"{name}.days", "days", column.name))
        _add_scaled(inputs, name, f"{name}.days", column.present)
        if not has_few_rows:
            _add_buckets(inputs, column, name, f"{name}.days", column.present)
        inputs.features.append(Feature(f"{name}.weekday", "weekday", column.name))
        inputs.embedded.append(
            Embedded(f"{name}_weekday", f"{name}.weekday", 8, 4, column)
        )
    if column.has_times:
        inputs.features.append(Feature(f"{name}.hour", "hour", column.name))
        inputs.embedded.append(Embedded(f"{name}_hour", f"{name}.hour", 25, 4, column))


def _add_scaled(inputs: Inputs, name: str, operand: str, values: np.ndarray) -> None:
    """Add a feature with mean 0 and variance 1, computed without outliers."""
    low, high = np.quantile(values, [0.01, 0.99])
    usual = np.clip(values, low, high)
    if usual.std() <= 1e-9 * max(1.0, abs(usual.mean())):
        usual = values
    deviation = rounded(float(usual.std()))
    mean = round(float(usual.mean()), 4 - floor(log10(deviation)))
    options = {"mean": mean, "std": deviation}
    inputs.features.append(Feature(f"{name}.scaled", "standardize", operand, options))
    inputs.numbers.append(f"{name}.scaled")


def _add_buckets(
    inputs: Inputs, column: Numbers | Dates, name: str, operand: str, values: np.ndarray
) -> None:
    """Add an input with the bucket of a number. Missing numbers have a separate bucket."""
    deviation = float(values.std())
    digits = 2 - floor(log10(deviation)) if deviation > 0 else 2
    # A value that many rows share, such as 0, has a separate bucket.
    distinct, counts = np.unique(values, return_counts=True)
    is_frequent = counts > 2 / _BUCKETS * len(values)
    others = values[~np.isin(values, distinct[is_frequent])]
    edges = [*distinct[is_frequent], *distinct[1:][is_frequent[:-1]]]
    if len(others):
        edges += [*np.quantile(others, np.arange(1, _BUCKETS) / _BUCKETS)]
    boundaries = sorted({_short(round(float(edge), digits)) for edge in edges})
    options = {"boundaries": boundaries}
    inputs.features.append(Feature(f"{name}.bucket", "buckets", operand, options))
    rows = len(boundaries) + 2
    inputs.embedded.append(
        Embedded(f"{name}_bucket", f"{name}.bucket", rows, _size(rows), column)
    )


def _has_long_tail(values: np.ndarray) -> bool:
    """Return True if the numbers are not negative and the largest is far from the mean."""
    deviation = values.std()
    return bool(
        values.min() >= 0
        and values.max() > values.mean() + _LONG_TAIL * deviation
        and np.log1p(values).std() > 1e-3
    )


def _size(rows: int) -> int:
    return 4 if rows <= 10 else 8


def rounded(value: float) -> float:
    """Return a number rounded to five digits."""
    return float(f"{value:.5g}")


def _short(value: float) -> float | int:
    """Return a whole number as int, if YAML can hold it exactly."""
    return int(value) if value == int(value) and abs(value) < 2**53 else value


def name_columns(
    columns: Sequence[str], all_columns: Sequence[str], taken: set[str]
) -> dict[str, str]:
    """Return a unique name for each column that a model uses.

    Characters that a name cannot have become `_`. No feature that is made from a name has
    the name of a column of the file (`all_columns`). The names in `taken` are not used.
    """
    used, names = {name.lower() for name in taken}, {}
    existing = set(all_columns)
    for column in columns:
        # Dots are replaced as well: a path would lose the part after a dot.
        plain = re.sub(r"[^A-Za-z0-9]+", "_", column).strip("_")[:40]
        # YAML would read a name such as `true` as another type.
        is_plain = is_name(plain) and one_line(plain) == plain
        first = name = plain if is_plain else f"column_{plain}".strip("_")
        number = 2
        while not used.isdisjoint(_variants(name)) or any(
            f"{name}.{suffix}" in existing for suffix in _SUFFIXES
        ):
            name, number = f"{first}_{number}", number + 1
        used |= _variants(name)
        names[column] = name
    return names


def _variants(name: str) -> set[str]:
    inputs = [name.lower(), *(f"{name}_{s}".lower() for s in _SUFFIXES)]
    return {*inputs, *(f"{each}_vector" for each in inputs)}
