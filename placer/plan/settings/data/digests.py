"""Digests of the rows of a source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Digests:
    """CRC-32 checksums of the data that a node reads from a source.

    Attributes:
        rows: the numbers of the rows that nodes compare one by one.
        columns: for some inputs, the digest of each of these rows in the input's dtype.
        whole: for some inputs, a digest of all rows. Only nodes that read the same kind
            of source can compare it.
        file: for a file read in pieces, the digest of its size, its division into pieces,
            and some of its bytes.
    """

    rows: tuple[int, ...]
    columns: Mapping[str, tuple[int, ...]]
    whole: Mapping[str, int] = field(default_factory=dict)
    file: int | None = None
