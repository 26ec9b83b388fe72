"""Computes the features of some rows from the columns of their source."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from placer.errors import DataError
from placer.plan.settings.data.features import (
    Feature,
    Features,
    boundaries_of,
    first_day_of,
)
from placer.readers.times import DAY

if TYPE_CHECKING:  # it imports pyarrow, which starts threads
    from placer.readers.features.cells import Bits, Cells, Floats
    from placer.readers.features.times import Times

Values = npt.NDArray[Any]


class Computation:
    """Computes features of some rows, each of them once.

    Args:
        features: the features, expanded, by name.
        cells: returns these rows of a column of the source.
    """

    def __init__(self, features: Features, cells: Callable[[str], Cells]) -> None:
        self._features = features
        self._cells = cells
        self._values: dict[str, Values] = {}
        self._keys: dict[tuple[str, int], Bits] = {}

    def values(self, name: str) -> Values:
        """Return the values of a feature, [rows].

        Keys are uint64, other whole numbers int64, and floats float64. Raises DataError
        for a value from which the feature cannot be computed.
        """
        if name not in self._values:
            feature = self._features[name]
            compute = _KINDS[feature.kind]
            self._values[name] = compute(self, name, feature)
        return self._values[name]

    def _hash(self, name: str, feature: Feature) -> Values:
        return _in_bins(self._key(name, feature.seed), feature)

    def _cross(self, name: str, feature: Feature) -> Values:
        return _in_bins(self._key(name, feature.seed), feature)

    def _key(self, name: str, seed: int) -> Bits:
        feature = self._features.get(name)
        if feature is not None and feature.has_key:
            seed = feature.seed
        if (name, seed) not in self._keys:
            self._keys[name, seed] = self._compute_key(name, feature, seed)
        return self._keys[name, seed]

    def _compute_key(self, name: str, feature: Feature | None, seed: int) -> Bits:
        from placer.readers.features import keys  # it imports numba

        if feature is None:
            return keys.text_keys(self._cells(name), keys.field_seed(name, seed))
        if feature.is_cross:
            parts = [self._key(part, seed) for part in feature.operands]
            return keys.crossed_keys(parts, seed)
        if not feature.has_key:
            numbers = self.values(name).view(np.uint64)
            return keys.integer_keys(numbers, None, keys.field_seed(name, seed))
        (column,) = feature.operands
        cells = self._cells(column)
        field = column if feature.field is None else feature.field
        of_field = keys.field_seed(field, seed)
        if feature.type == "integer":
            return keys.integer_keys(*cells.integers(), of_field)
        return keys.text_keys(cells, of_field)

    def _buckets(self, name: str, feature: Feature) -> Values:
        boundaries = np.array(boundaries_of(feature))
        numbers = self._numbers(feature)
        buckets = np.searchsorted(boundaries, numbers, side="right")
        # NaN is sorted after all numbers, and has a separate bucket.
        return np.where(np.isnan(numbers), len(boundaries) + 1, buckets).astype(
            np.int64
        )

    def _log1p(self, name: str, feature: Feature) -> Values:
        numbers = self._present_numbers(name, feature)
        if (numbers <= -1).any():
            at = int(np.argmax(numbers <= -1))
            raise DataError(
                f"{self._origin(feature).where(at)}: log1p of {numbers[at]:g} is not a"
                " number",
                hint=f"feature '{name}' is the logarithm of 1 plus the value",
            )
        return np.log1p(numbers)

    def _standardize(self, name: str, feature: Feature) -> Values:
        numbers = self._present_numbers(name, feature)
        assert feature.mean is not None
        assert feature.std is not None
        with np.errstate(over="ignore"):
            values: Floats = (numbers - feature.mean) / feature.std
        if not np.isfinite(values).all():
            at = int(np.argmin(np.isfinite(values)))
            where = self._origin(feature).where(at)
            raise DataError(f"{where}: feature '{name}' of {numbers[at]:g} is infinite")
        return values

    def _days(self, name: str, feature: Feature) -> Values:
        cells = self._origin(feature)
        times = self._times(feature)
        if times.missing.any():
            at = int(np.argmax(times.missing))
            raise DataError(
                f"{cells.where(at)}: the date is missing, but feature '{name}'"
                " needs it",
                hint=f"{cells.missing_hint()}, in days since 1970-01-01",
            )
        first = first_day_of(feature)
        assert first is not None
        return (times.days - first) + times.nanoseconds / DAY

    def _hour(self, name: str, feature: Feature) -> Values:
        times = self._times(feature)
        return np.where(times.missing, 24, times.nanoseconds // (DAY // 24))

    def _weekday(self, name: str, feature: Feature) -> Values:
        times = self._times(feature)
        # Day 0 was a Thursday.
        return np.where(times.missing, 7, (times.days + 3) % 7)

    def _times(self, feature: Feature) -> Times:
        (column,) = feature.operands
        return self._cells(column).times()

    def _numbers(self, feature: Feature) -> Floats:
        """Return the numbers that a feature is computed from, NaN for a missing one."""
        (operand,) = feature.operands
        if operand in self._features:
            return self.values(operand)
        return self._cells(operand).numbers()

    def _present_numbers(self, name: str, feature: Feature) -> Floats:
        """Return numbers, as `_numbers` does; raise DataError if a number is missing."""
        numbers = self._numbers(feature)
        if np.isnan(numbers).any():
            at, cells = int(np.argmax(np.isnan(numbers))), self._origin(feature)
            raise DataError(
                f"{cells.where(at)}: the number is missing, but feature '{name}'"
                " needs it",
                hint=cells.missing_hint(),
            )
        return numbers

    def _origin(self, feature: Feature) -> Cells:
        """Return the column of numbers that a feature is finally computed from."""
        (operand,) = feature.operands
        if operand in self._features:
            return self._origin(self._features[operand])
        return self._cells(operand)


_KINDS: dict[str, Callable[[Computation, str, Feature], Values]] = {
    "hash": Computation._hash,
    "cross": Computation._cross,
    "buckets": Computation._buckets,
    "log1p": Computation._log1p,
    "standardize": Computation._standardize,
    "days": Computation._days,
    "hour": Computation._hour,
    "weekday": Computation._weekday,
}


def _in_bins(keys: Bits, feature: Feature) -> Values:
    if feature.bins is None:
        return keys
    return (keys % np.uint64(feature.bins)).astype(np.int64)
