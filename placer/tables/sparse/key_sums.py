"""Sums gradients by key."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placer.tables.key_sums import KeyPart, KeySums, MergedKeys, Statistic
from placer.tables.sparse.merging import add_rows, number_keys


def sum_by_key(terms: Sequence[KeySums]) -> KeySums:
    """Return the sum of several terms, added in order."""
    if len(terms) == 1:
        return terms[0]
    merged = merge_keys([each.part for each in terms])
    first = terms[0].gradients
    gradients = np.zeros((merged.part.keys.size, first.shape[1]), first.dtype)
    low = 0
    for each in terms:
        high = low + each.part.keys.size
        add_rows(each.gradients, merged.numbers[low:high], gradients)
        low = high
    return KeySums(merged.part, gradients)


def merge_keys(parts: Sequence[KeyPart]) -> MergedKeys:
    """Return the distinct keys of several parts, with sums of their occurrences and scores and
    the latest times.

    The keys of several tables are the same parts, and are merged once: the first part keeps
    the result.
    """
    first, *others = parts
    known = tuple(map(id, others))
    if known not in first._merges:
        first._merges[known] = _merge(parts)
    return first._merges[known]


def _merge(parts: Sequence[KeyPart]) -> MergedKeys:
    keys, numbers = number_keys(np.concatenate([part.keys for part in parts]))
    stops = np.cumsum([part.keys.size for part in parts])
    # A key occurs only once in a part.
    places = np.split(numbers, stops[:-1])
    occurrences = np.zeros(keys.size, np.int64)
    for part, at in zip(parts, places, strict=True):
        occurrences[at] += part.occurrences
    most = np.iinfo(np.uint32).max
    counts = np.minimum(occurrences, most).astype(np.uint32)
    statistics = []
    for several in zip(*(part.statistics for part in parts), strict=True):
        what, tables, values, _ = several[0]
        found = np.zeros(keys.size, values.dtype)
        for each, at in zip(several, places, strict=True):
            if what == "scores":
                found[at] += each.values
            else:
                found[at] = np.maximum(found[at], each.values)
        now = max(each.now for each in several)
        statistics.append(Statistic(what, tables, found, now))
    part = KeyPart(keys, counts, statistics, parts[0].tables)
    return MergedKeys(part, numbers, parts[1:])
