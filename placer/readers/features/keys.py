"""The 64-bit keys of texts, whole numbers and combinations, by XXH64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from placer.readers.features.cells import Bits, Cells, Mask
from placer.system.hashing.xxh64 import hash_bytes, hash_ranges, hash_rows


def field_seed(field: str, seed: int) -> int:
    """Return the seed of the keys of a field: the hash of its name.

    It is also the key of a missing value.
    """
    return hash_bytes(field.encode(), seed)


def text_keys(cells: Cells, seed: int) -> Bits:
    """Return the keys of a column of text, uint64[rows].

    Args:
        cells: the column.
        seed: the `field_seed`.
    """
    array = cells.texts()
    if pa.types.is_dictionary(array.type) and len(array.dictionary) > len(array):
        array = array.dictionary_decode()  # the dictionary may be the whole file's
    if not pa.types.is_dictionary(array.type):
        return _keys_of_texts(array, seed, cells.is_csv)
    words = _keys_of_texts(array.dictionary, seed, cells.is_csv)
    # a null takes the last index
    indices = array.indices.cast(pa.int64()).fill_null(len(words)).to_numpy()
    keys: Bits = np.append(words, np.uint64(seed))[indices]
    return keys


def _keys_of_texts(array: pa.Array, seed: int, is_csv: bool) -> Bits:
    if pa.types.is_null(array.type):
        return np.full(len(array), seed, np.uint64)
    is_large = pa.types.is_large_string(array.type)
    _, offsets, data = array.buffers()
    if offsets is None or len(array) == 0:
        return np.zeros(0, np.uint64)
    keys = hash_ranges(
        np.frombuffer(data or b"", np.uint8),
        np.frombuffer(
            offsets,
            np.int64 if is_large else np.int32,
            len(array) + 1,
            array.offset * (8 if is_large else 4),
        ),
        seed,
        empty=seed if is_csv else None,
        trims=True,
    )
    if array.null_count:
        keys[pc.is_null(array).to_numpy(zero_copy_only=False)] = seed
    return keys


def integer_keys(numbers: Bits, missing: Mask | None, seed: int) -> Bits:
    """Return the keys of whole numbers, hashed as 8 little-endian bytes.

    Args:
        numbers: the numbers.
        missing: a mask of missing numbers, if any.
        seed: the `field_seed`.
    """
    keys = hash_rows(numbers.reshape(-1, 1), seed)
    if missing is not None:
        keys[missing] = seed
    return keys


def crossed_keys(parts: Sequence[Bits], seed: int) -> Bits:
    """Return the keys of combinations, from the keys of their parts.

    Each key is the hash of the parts' keys in order, as 8 little-endian bytes each.
    """
    return hash_rows(np.stack(parts, axis=1), seed)
