"""Features by plain formulas, with the package xxhash, as docs/how-to/features.md has them."""

import bisect
import math
import struct

import xxhash

BLANKS = " \t\n\v\f\r"


def field_seed(field, seed=0):
    return xxhash.xxh64_intdigest(field.encode(), seed)


def text_key(text, field, seed=0):
    """The key of a text, or of a missing one (None)."""
    of_field = field_seed(field, seed)
    if text is None:
        return of_field
    return xxhash.xxh64_intdigest(text.strip(BLANKS).encode(), of_field)


def integer_key(number, field, seed=0):
    of_field = field_seed(field, seed)
    if number is None:
        return of_field
    return xxhash.xxh64_intdigest(struct.pack("<Q", number % 2**64), of_field)


def crossed_key(keys, seed=0):
    return xxhash.xxh64_intdigest(struct.pack(f"<{len(keys)}Q", *keys), seed)


def bucket(number, boundaries):
    if number is None or math.isnan(number):
        return len(boundaries) + 1
    return bisect.bisect_right(boundaries, number)


def signed(key):
    """A key as an int64 input has it."""
    return key - 2**64 if key >= 2**63 else key
