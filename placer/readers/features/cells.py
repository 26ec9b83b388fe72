"""The columns that features are computed from: text, whole numbers or floats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from placer.errors import DataError
from placer.plan.settings.data.missing import NO_MARKERS, Markers
from placer.readers.arrow_text import decode_bytes, is_text, is_utf8, read_cells, trim
from placer.readers.cell_numbers import (
    are_missing,
    cast_floats,
    cast_whole,
    have_numbers,
    parse_number,
)
from placer.readers.column import missing_hint
from placer.readers.features.times import Times, fill_times, parse_times, split_times

Floats = npt.NDArray[np.float64]
Bits = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
_OF_TEXT = "a hash of text needs type: text"


@dataclass(frozen=True, slots=True)
class Cells:
    """Some rows of a column of a source.

    Attributes:
        name: the name of the column.
        array: its values. The values of a `csv:` file are texts.
        is_csv: whether they are cells of a `csv:` file, where an empty text is a
            missing value.
        missing: the number to use for a missing value, if given.
        option: the key of the source's options with such numbers, such as `csv`.
        where: returns the position of a row in the source, for messages.
        markers: the values that the spec lists as missing values of the column.
    """

    name: str
    array: pa.Array
    is_csv: bool
    missing: float | None
    option: str
    where: Callable[[int], str]
    markers: Markers = NO_MARKERS

    def texts(self) -> pa.Array:
        """Return the values as text: string, large_string, their dictionary, or null.

        Blanks around a text are kept. Raises DataError if the column does not hold
        text.
        """
        array, type_ = self.array, self.array.type
        if pa.types.is_dictionary(type_):
            type_ = type_.value_type
        if pa.types.is_null(type_):
            return array
        if pa.types.is_boolean(type_):
            array = self._decoded().cast(pa.string())  # true, false
        elif is_text(type_) and (self.markers or not is_utf8(type_)):
            array = self._decoded()
        if pa.types.is_string_view(array.type):
            array = array.cast(pa.large_string())
        if self.markers and is_utf8(array.type):
            marked = pc.is_in(trim(array), pa.array([*self.markers.texts], array.type))
            array = pc.if_else(marked, None, array)
        if is_text(array.type):
            return array
        hint = "a hash of whole numbers needs type: integer"
        if not pa.types.is_integer(type_):
            hint = (
                "only text and whole numbers can be hashed; put other numbers into"
                " buckets and cross them"
            )
        raise DataError(
            f"{self.where(0)}: the column holds {type_}, not text", hint=hint
        )

    def integers(self) -> tuple[Bits, Mask | None]:
        """Return the values as 64-bit whole numbers, and a mask of missing values.

        Negative numbers are in two's complement, and a missing value is 0. The mask is
        None if no value is missing.

        Raises DataError for a value that is not a whole number from -2**63 to 2**64 -
        1.
        """
        array, mask = self._present()
        kind = array.type
        if pa.types.is_integer(kind):
            wide = pa.uint64() if pa.types.is_uint64(kind) else pa.int64()
            whole = array if kind == wide else array.cast(wide)
            return whole.to_numpy().view(np.uint64), mask
        if pa.types.is_floating(kind):
            floats = array.to_numpy()
            # Larger floats are whole, but the original number is unknown.
            is_whole = (np.abs(floats) <= 2**53) & (np.floor(floats) == floats)
            if not is_whole.all():
                at = int(np.argmin(is_whole))
                self._refuse(at, f"{floats[at]} is not a whole number")
            return floats.astype(np.int64).view(np.uint64), mask
        numbers = cast_whole(array) if is_text(kind) else None
        if numbers is None:
            each = enumerate(array.to_pylist())
            numbers = np.array([self._whole(i, value) for i, value in each], np.uint64)
        return numbers.view(np.uint64), mask

    def numbers(self) -> Floats:
        """Return the values as float64, NaN for a missing value.

        Raises DataError for a value that is not a finite number.
        """
        array, mask = self._present()
        is_text_ = is_text(array.type)
        floats = cast_floats(array) if is_text_ else None
        if floats is None and is_text_:
            texts = enumerate(array.to_pylist())
            floats = np.array([self._number(i, text) for i, text in texts])
        elif floats is None:
            if pa.types.is_decimal(array.type):
                array = array.cast(pa.string())  # a cast to float64 would not be exact
            floats = array.cast(pa.float64(), safe=False).to_numpy()
        if not np.isfinite(floats).all():
            at = int(np.argmin(np.isfinite(floats)))
            if is_text_:
                self._number(at, array[at].as_py())  # raises an error with the text
            hint = f"make it a missing value, and {self.missing_hint()}"
            self._refuse(at, f"{floats[at]} is not a finite number", hint)
        if mask is not None:
            floats = np.where(mask, np.nan, floats)
        return np.ascontiguousarray(floats)

    def times(self) -> Times:
        """Return the values as times.

        Raises DataError for a value that is not a date or a time.
        """
        array = self._decoded()
        if is_text(array.type):
            array = read_cells(array, self.where)
            mask = are_missing(array, self.markers)
            times = parse_times(pc.if_else(mask, "1970-01-01", array), self.where)
            return fill_times(*times, mask, self.missing)
        if pa.types.is_null(array.type):
            array = array.cast(pa.timestamp("us"))
        if not (pa.types.is_date(array.type) or pa.types.is_timestamp(array.type)):
            raise DataError(
                f"{self.where(0)}: the column holds {array.type}, not dates",
                hint="a date is a text such as 2024-05-01, a date or a timestamp",
            )
        return fill_times(*split_times(array), pc.is_null(array), self.missing)

    def _decoded(self) -> pa.Array:
        """Return the values without dictionary encoding, and bytes as text."""
        array = self.array
        if pa.types.is_dictionary(array.type):
            array = array.cast(array.type.value_type)
        return decode_bytes(array, self.where)

    def _present(self) -> tuple[pa.Array, Mask | None]:
        """Return the values with missing ones filled in, and a mask of the missing."""
        values = array = self._decoded()
        if pa.types.is_null(array.type) or pa.types.is_boolean(array.type):
            array = array.cast(pa.int64())
        kind = array.type
        fill: float | int = self.missing or 0
        fill = int(fill) if fill == int(fill) else fill
        if is_text(kind):
            array = read_cells(array, self.where)
            is_missing = are_missing(array, self.markers)
        elif pa.types.is_floating(kind):
            array = array.cast(pa.float64())
            is_missing = pc.is_null(array, nan_is_null=True)
        elif pa.types.is_integer(kind) or pa.types.is_decimal(kind):
            is_missing = pc.is_null(array)
        else:
            raise DataError(f"{self.where(0)}: the column holds {kind}, not numbers")
        if self.markers.numbers and not is_text(kind):
            is_missing = pc.or_(is_missing, have_numbers(values, self.markers))
        if not pc.any(is_missing, min_count=0).as_py():
            return array, None
        if is_text(kind):
            number = pa.scalar(str(fill))
        else:
            if isinstance(fill, float):
                array = array.cast(pa.float64(), safe=False)
            number = missing_number(
                fill, array.type, self.where(0), self.option, self.name
            )
        array = pc.if_else(is_missing, number, array)
        if self.missing is not None:
            return array, None
        return array, is_missing.to_numpy(zero_copy_only=False)

    def _whole(self, i: int, value: str | Decimal) -> int:
        number: float | Decimal
        if isinstance(value, str):
            number = self._number(i, value, is_float=False, hint=_OF_TEXT)
        else:
            number = value
        if number != int(number):
            self._refuse(i, f"{value} is not a whole number")
        if not -(2**63) <= number < 2**64:
            self._refuse(i, f"{value} does not fit in 64 bits")
        return int(number) % 2**64

    def _number(
        self, i: int, text: str, *, is_float: bool = True, hint: str | None = None
    ) -> float | Decimal:
        try:
            return parse_number(text, is_float, self.option, self.name)
        except DataError as misfit:
            self._refuse(i, misfit.message, hint or misfit.hint)

    def _refuse(self, i: int, message: str, hint: str | None = None) -> Never:
        raise DataError(f"{self.where(i)}: {message}", hint=hint)

    def missing_hint(self) -> str:
        """Return a hint about the number for missing values."""
        return missing_hint(self.option, self.name)


def missing_number(
    number: float, type_: pa.DataType, where: str, option: str, column: str
) -> pa.Scalar:
    """Return the number for missing values of a column of this type.

    `option` is the key of the source's options, and `where` the position of a row.
    Raises DataError if the number does not fit the type.
    """
    try:
        if pa.types.is_floating(type_):
            return pa.scalar(float(number)).cast(type_)
        if pa.types.is_decimal(type_):
            return pa.scalar(Decimal(number), type_)
        return pa.scalar(number, type_)
    except (pa.ArrowException, ValueError, OverflowError):
        raise DataError(
            f"{where}: the column holds {type_}, which cannot hold the missing"
            f" number {number}",
            hint=f"change {option}: {{missing: {{{column}: {number}}}}}",
        ) from None


def can_compute_from(type_: pa.DataType) -> bool:
    """Return True if features can be computed from a column of this type."""
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    return bool(
        is_text(type_)
        or pa.types.is_integer(type_)
        or pa.types.is_floating(type_)
        or pa.types.is_decimal(type_)
        or pa.types.is_boolean(type_)
        or pa.types.is_date(type_)
        or pa.types.is_timestamp(type_)
        or pa.types.is_null(type_)
    )
