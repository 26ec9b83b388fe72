"""Arrow columns of text, or of values that are read as text."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from placer.errors import DataError


def is_text(type_: pa.DataType) -> bool:
    """Return True for a type of texts or bytes, or a dictionary of them."""
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    return is_utf8(type_) or is_bytes(type_)


def is_utf8(type_: pa.DataType) -> bool:
    """Return True for a type of texts, or a dictionary of them."""
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    return bool(
        pa.types.is_string(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_string_view(type_)
    )


def is_bytes(type_: pa.DataType) -> bool:
    """Return True for a type of bytes."""
    return bool(
        pa.types.is_binary(type_)
        or pa.types.is_large_binary(type_)
        or pa.types.is_binary_view(type_)
        or pa.types.is_fixed_size_binary(type_)
    )


def decode_bytes(array: pa.Array, where: Callable[[int], str]) -> pa.Array:
    """Decode a column of bytes as text; return other columns unchanged.

    `where(i)` is the position of row i. Raises DataError for bytes that are not UTF-8.
    """
    if not is_bytes(array.type):
        return array
    try:
        return array.cast(pa.large_string())
    except pa.ArrowInvalid:
        for i, value in enumerate(array.to_pylist()):
            try:
                _ = b"" if value is None else value.decode()
            except UnicodeDecodeError as error:
                message = f"{where(i)}: its bytes are not UTF-8: {error.reason}"
                hint = "columns of bytes are read as UTF-8 text"
                raise DataError(message, hint=hint) from None
        raise


def read_text(
    array: pa.Array, where: Callable[[int], str] = lambda i: f"row {i}"
) -> pa.StringArray:
    """Return the values of a column as text; a null becomes an empty text.

    Raises DataError for bytes that are not UTF-8. `where(i)` is the position of row i.
    """
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    return decode_bytes(array, where).cast(pa.string()).fill_null("")


def read_cells(array: pa.Array, where: Callable[[int], str]) -> pa.StringArray:
    """Return a column as cells: text without Unicode blanks; see `read_text`."""
    cells = trim(read_text(array, where))
    if pc.all(pc.string_is_ascii(cells), min_count=0).as_py():
        return cells
    return pa.array([cell.strip() for cell in cells.to_pylist()], pa.string())


def trim(array: pa.Array) -> pa.Array:
    """Return texts without the ASCII blanks at their ends."""
    return pc.ascii_trim_whitespace(array)
