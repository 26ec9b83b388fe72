"""Sums gradients by key."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placer.tables.key_sums import KeyPart, KeySums
from placer.tables.sparse.merging import add_rows, number_keys


def sum_by_key(terms: Sequence[KeySums]) -> KeySums:
    """Return the sum of several terms, added in order."""
    if len(terms) == 1:
        return terms[0]
    parts = [each.part for each in terms]
    keys, numbers = number_keys(np.concatenate([part.keys for part in parts]))
    first = terms[0].gradients
    gradients = np.zeros((keys.size, first.shape[1]), first.dtype)
    occurrences = np.zeros(keys.size, np.int64)
    scores, times = (
        None if array is None else np.zeros(keys.size, array.dtype)
        for array in (parts[0].scores, parts[0].times)
    )
    low = 0
    for part, each in zip(parts, terms, strict=True):
        at = numbers[low : low + part.keys.size]  # a key occurs only once in a term
        add_rows(each.gradients, at, gradients)
        occurrences[at] += part.occurrences
        if scores is not None:
            scores[at] += part.scores
        if times is not None:
            assert part.times is not None
            times[at] = np.maximum(times[at], part.times)
        low += part.keys.size
    most = np.iinfo(np.uint32).max
    counts = np.minimum(occurrences, most).astype(np.uint32)
    now = max(part.now for part in parts)
    return KeySums(KeyPart(keys, counts, scores, times, now), gradients)
