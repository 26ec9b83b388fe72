"""Rows of a `csv:` file, held in memory as columns of the inputs' dtypes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import prod
from pathlib import Path

import numpy as np

from placer.config.csv import Csv, check, check_pattern, columns_of, first_fit
from placer.config.sources import Source
from placer.errors import DataError
from placer.readers.arguments import TOGETHER, Reading
from placer.readers.column import Column, dtype_of
from placer.readers.csv_cells import Cells
from placer.readers.csv_text import Row, opened
from placer.readers.digests import add_cells
from placer.readers.rows import LoadedRows, loaded
from placer.readers.split import split_rows


def read(
    source: Source,
    columns: Sequence[Column],
    feeds: Mapping[str, str | list[str]],
    folder: Path,
    split: str | None,
    form: Csv,
    reading: Reading,
) -> LoadedRows:
    """All rows of the file, or those of `split`.

    An input takes as many columns as a row of it has values, in C order. Blanks around
    a cell are no part of it. DataError names the file and, where there is one, the
    line, the column and the text.
    """
    if problem := check(form):
        _, message, hint = problem
        raise DataError(f"{source.text}: {message}", hint=hint)
    with opened(source.text, folder / source.path, form) as (names, rows):
        for pattern in (*form.vocabulary, *form.unknown, *form.missing):
            check_pattern(source.text, pattern, names)
        chosen = {c.name: _chosen(source.text, c, feeds, names, form) for c in columns}
        others = {
            c.name: _chosen(source.text, c, feeds, names, form) for c in reading.others
        }
        parts, whole = _parts(columns, chosen, others, rows, reading)
    count = sum(map(len, parts[columns[0].name]))
    if count == 0:
        hint = "a source needs at least one row"
        raise DataError(f"{source.text} has no rows", hint=hint)
    kept = split_rows(count, split)
    taken = {}
    for column in columns:
        joined = np.concatenate(parts.pop(column.name))
        taken[column.name] = joined.reshape(count, *column.shape)[kept]
    return loaded(taken, len(taken[columns[0].name]), reading, whole)


def _chosen(
    source: str,
    column: Column,
    feeds: Mapping[str, str | list[str]],
    names: Sequence[str],
    form: Csv,
) -> list[tuple[int, Cells]]:
    """The columns that feed an input: where in a row they stand, how they are read."""
    wanted = feeds[column.name]
    count = prod(column.shape)
    found = columns_of(source, column.name, str(column), count, wanted, names)
    return [
        (
            names.index(name),
            Cells(
                source,
                name,
                column,
                dtype_of(column, source),
                _words(first_fit(form.vocabulary, name)),
                first_fit(form.unknown, name),
                first_fit(form.missing, name),
            ),
        )
        for name in found
    ]


def _words(
    vocabulary: Sequence[str] | Mapping[str, int] | None,
) -> Mapping[str, int] | None:
    if vocabulary is None or isinstance(vocabulary, Mapping):
        return vocabulary
    return {word: index for index, word in enumerate(vocabulary)}


def _parts(
    columns: Sequence[Column],
    chosen: Mapping[str, list[tuple[int, Cells]]],
    others: Mapping[str, list[tuple[int, Cells]]],
    rows: Iterator[Row],
    reading: Reading,
) -> tuple[dict[str, list[np.ndarray]], dict[str, int]]:
    """The inputs' values, some hundred rows at a time: [rows, values of a row]; and the
    digest of the cells of each input, those of `others` too."""
    parts: dict[str, list[np.ndarray]] = {column.name: [] for column in columns}
    fed = {**chosen, **others} if reading.compared else {}
    whole = dict.fromkeys(fed, 0)
    count = 0
    while some := list(islice(rows, TOGETHER)):
        lines, texts = zip(*some, strict=True)
        by_column = list(zip(*texts, strict=True))
        for column in columns:
            part = np.empty((len(some), len(chosen[column.name])), column.dtype)
            for j, (at, cells) in enumerate(chosen[column.name]):
                part[:, j] = cells.read(by_column[at], lines)
            parts[column.name].append(part)
        for name, found in fed.items():
            for at, _ in found:
                whole[name] = add_cells(by_column[at], whole[name])
        count += len(some)
        reading.report(count)
    return parts, whole
