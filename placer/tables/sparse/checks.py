"""Checks the arguments of a table, because its compiled loops do not check bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from placer.errors import RunError
from placer.plan.settings.sparse.table import MOST_PARTITIONS, can_be_divided_into
from placer.tables.machine_code import compiled
from placer.tables.sparse.hashing import U64, mix, partition_of
from placer.tables.sparse.state import Array


def check_keys(name: str, keys: Array) -> Array:
    """Return keys as uint64 with the same bits; raise RunError if they are not int64[n].

    The array is always writable, so that numba compiles the loops only once.
    """
    if keys.ndim != 1 or keys.dtype not in (np.uint64, np.int64):
        raise RunError(
            f"table {name}: keys are {keys.dtype}{list(keys.shape)},"
            " not int64[n] or uint64[n]"
        )
    return np.require(keys, None, ["C", "W"]).view(np.uint64)


def check_partitions(name: str, partitions: int) -> None:
    """Raise ValueError unless the number of partitions is a power of two from 2 to 2¹⁶."""
    if not can_be_divided_into(partitions):
        raise ValueError(
            f"table {name}: 'partitions' must be a power of two from 2 to"
            f" {MOST_PARTITIONS:,}, not {partitions!r}"
        )


def check_array(
    name: str, what: str, array: Array, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> None:
    """Raise RunError if an array does not have this shape and dtype."""
    if array.shape != shape or array.dtype != dtype:
        raise RunError(
            f"table {name}: {what} are {array.dtype}{list(array.shape)},"
            f" not {dtype}{list(shape)}"
        )


def check_scores(name: str, scores: Array) -> None:
    """Raise RunError if scores of a batch are not finite, because they would never recover."""
    bad = ~np.isfinite(scores)
    if bad.any():
        raise RunError(
            f"table {name}: the scores of {np.count_nonzero(bad):,} of {bad.size:,} rows"
            " are not finite",
            hint="remove NaN and infinities from the inputs 'show' and 'click' of 'score'",
        )


def check_times(name: str, times: Array) -> None:
    """Raise RunError if times of a batch are not seconds in 32 bits."""
    bad = (times < 0) | (times >= 2**32)
    if bad.any():
        raise RunError(
            f"table {name}: times must be seconds from 0 to {2**32 - 1}, but"
            f" {np.count_nonzero(bad):,} of {bad.size:,} rows have other values, such as"
            f" {times[np.argmax(bad)]}",
            hint="use seconds, not milliseconds, for the input 'time' of 'forget'",
        )


def check_saved(
    name: str,
    partition: int,
    saved: Mapping[str, Array],
    layout: Mapping[str, tuple[str, tuple[int, ...]]],
    bits: Any,
) -> None:
    """Raise RunError if saved arrays are not a valid partition of a table.

    Args:
        partition: the number of the partition.
        saved: the arrays.
        layout: the dtype and the shape of each array for a partition without rows.
        bits: the base-2 logarithm of the number of partitions.
    """
    whole = f"table {name}, partition {partition}"
    if saved.keys() != layout.keys():
        raise RunError(
            f"{whole}: the saved arrays are {', '.join(sorted(saved))}, but the table"
            f" has {', '.join(sorted(layout))}"
        )
    rows, entries = saved["keys"].shape[:1], saved["entry_keys"].shape[:1]
    for each, (dtype, shape) in layout.items():
        if each not in ("filter", "latest"):
            shape = (*(entries if each.startswith("entry") else rows), *shape[1:])
        what = f"saved {each} of {partition}"
        check_array(name, what, saved[each], shape, np.dtype(dtype))
    keys = np.concatenate([saved["keys"], saved["entry_keys"]])
    if np.any(partition_of(mix(keys), bits) != partition):
        raise RunError(f"{whole}: some of the saved keys belong to another partition")
    is_entry = saved["entry_words"] & U64(3) == 2
    if np.unique(keys).size < keys.size or not saved["count"].all() & is_entry.all():
        raise RunError(f"{whole}: the saved arrays are damaged")


def find_not_finite(gradients: Array) -> Array | None:
    """Find rows of gradients ([n, dim]) with a NaN or an infinity: bool[n], or None."""
    is_wide = gradients.dtype == np.float64
    words = np.ascontiguousarray(gradients).view(np.uint64 if is_wide else np.uint32)
    # The exponent of NaN and infinity has only ones.
    exponent = words.dtype.type(0x7FF << 52 if is_wide else 0xFF << 23)
    found = np.empty(len(gradients), np.bool_)
    return found if _find_exponents(words, exponent, found) else None


def describe_not_finite(keys: Array, bad: Array, where: str = "") -> str:
    """Describe the gradients that are not finite (`bad`, bool[n]), with one of the keys."""
    key, at = int(keys[np.argmax(bad)]), f" {where}" if where else ""
    signed = f" (int64 {key - 2**64})" if key >= 2**63 else ""
    return (
        f"the gradients of {np.count_nonzero(bad):,} of {keys.size:,} keys are not"
        f" finite{at}, such as key {key}{signed}"
    )


@compiled
def _find_exponents(words: Array, exponent: Any, found: Array) -> Any:
    count = 0
    for i in range(words.shape[0]):
        greatest = exponent ^ exponent
        for j in range(words.shape[1]):
            greatest = max(greatest, words[i, j] & exponent)
        found[i] = greatest == exponent
        count += found[i]
    return count
