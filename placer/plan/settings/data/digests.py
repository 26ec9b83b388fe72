"""Digests of the rows of a source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Digests:
    """CRC-32 checksums of what a node reads from a source.

    Attributes:
        rows: the numbers of the rows that are compared one by one.
        columns: for each input, the digest of each of these rows in the input's dtype.
        whole: for each input, a digest of all rows. It can only be compared between
            nodes that read the same kind of source.
        file: of a file that is read by pieces, the digest of its size, of how it is
            divided into pieces, and of some of its bytes.

    An input may be in `columns`, in `whole`, in both or in none.
    """

    rows: tuple[int, ...]
    columns: Mapping[str, tuple[int, ...]]
    whole: Mapping[str, int] = field(default_factory=dict)
    file: int | None = None
