"""Rows that a `python:` source yields, collected into one array per input."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from placer.config.sources import Source
from placer.errors import DataError, PlacerError
from placer.memory import aligned
from placer.readers.arguments import MOST_ROWS, TOGETHER, Reading
from placer.readers.column import Column, dtype_of
from placer.readers.digests import Digests, digest, sampled
from placer.readers.python_row import check_ranges, fail, row_of, values_of
from placer.readers.rows import NONE, LoadedRows


def collect(
    source: Source,
    path: Path,
    made: Iterable[Any],
    columns: Sequence[Column],
    feeds: Mapping[str, str],
    reading: Reading,
) -> LoadedRows:
    """All rows. DataError for more than may be held, and for none."""
    used = (*columns, *reading.others)
    held = [_Held(column, dtype_of(column, source.text)) for column in columns]
    # Of every row: which ones are compared is known when their number is.
    digests = [array("I") for _ in used] if reading.compared else []
    most = _most(held, digests, reading.nbytes)
    keys: frozenset[str] | None = None
    count = 0
    for found in _rows(source, path, made):
        if count >= most:
            raise _too_many(source, most)
        row = row_of(source, found, count)
        keys = _same_keys(source, row, keys, count)
        values = values_of(source, row, used, feeds, count)
        for each, value in zip(held, values, strict=False):
            each.add(value)
        for of_column, value in zip(digests, values, strict=False):
            of_column.append(digest(value))
        count += 1
        if count % TOGETHER == 0:
            reading.report(count)
    if count == 0:
        raise DataError(
            f"{source.text} gave no rows", hint="a source needs at least one row"
        )
    told = _sample([c.name for c in used], digests, count, reading.seed)
    del digests
    taken = {each.column.name: each.joined() for each in held}
    check_ranges(source, columns, feeds, taken, range(count))
    return LoadedRows(taken, count, told)


PART = 8 << 20
"""Bytes of the rows that are kept together, unless a single one is larger."""


@dataclass(slots=True)
class _Held:
    """The rows of one column so far. They are copied: a source may use its arrays
    again."""

    column: Column
    dtype: np.dtype[np.generic]
    parts: list[np.ndarray] = field(default_factory=list)
    used: int = 0

    def add(self, value: np.ndarray) -> None:
        if not self.parts or self.used == len(self.parts[-1]):
            rows = max(1, min(TOGETHER, PART // max(1, self.row_nbytes)))
            self.parts.append(np.empty((rows, *self.column.shape), self.dtype))
            self.used = 0
        self.parts[-1][self.used] = value[0]
        self.used += 1

    @property
    def row_nbytes(self) -> int:
        return int(np.prod(self.column.shape, dtype=np.int64)) * self.dtype.itemsize

    def joined(self) -> np.ndarray:
        """One array, 64-byte aligned; the parts are given up."""
        self.parts[-1] = self.parts[-1][: self.used]
        rows = sum(map(len, self.parts))
        out = aligned.empty((rows, *self.column.shape), self.dtype)
        np.concatenate(self.parts, axis=0, out=out)
        self.parts.clear()
        return out


def _most(
    held: Sequence[_Held], digests: Sequence[array[int]], nbytes: int | None
) -> int:
    """How many rows may be held."""
    if nbytes is None:
        return MOST_ROWS
    each = sum(h.row_nbytes for h in held) + sum(d.itemsize for d in digests)
    return min(MOST_ROWS, nbytes // max(1, each))


def _too_many(source: Source, most: int) -> DataError:
    why = "" if most == MOST_ROWS else ", which is what the memory allows"
    return DataError(
        f"{source.text} yields more than {most:,} rows{why}",
        hint="end an endless source with itertools.islice, or return an object with"
        " __len__ and __getitem__, whose rows are asked for in the step that needs them",
    )


def _sample(
    names: Sequence[str], digests: Sequence[array[int]], count: int, seed: int
) -> Digests:
    if not digests:
        return NONE
    numbers = sampled(count, seed).tolist()
    by_name = dict(zip(names, digests, strict=True))
    return Digests(
        tuple(numbers),
        {name: tuple(each[n] for n in numbers) for name, each in by_name.items()},
        {name: digest(np.asarray(each, np.uint32)) for name, each in by_name.items()},
    )


def _rows(source: Source, path: Path, made: Iterable[Any]) -> Iterator[Any]:
    """The rows that are yielded; what is raised is told with the row it was at."""
    at = 0
    try:
        for row in made:
            yield row
            at += 1
    except PlacerError:
        raise
    except (Exception, SystemExit) as error:
        fail(source, path, f"at row {at}", error)


def _same_keys(
    source: Source, row: Mapping[str, Any], keys: frozenset[str] | None, number: int
) -> frozenset[str]:
    found = frozenset(row)
    if keys is None or found == keys:
        return found
    missing, extra = sorted(keys - found, key=str), sorted(found - keys, key=str)
    what = f"lacks '{missing[0]}'" if missing else f"has '{extra[0]}'"
    rest = "which row 0 has" if missing else "which row 0 has not"
    raise DataError(
        f"{source.text}: row {number} {what}, {rest}",
        hint="every row has the same keys",
    )
