"""Finds the kind of a column from its cells."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa

from placer.command.starter.cells import Cells, are_exact, describe_cells, is_number
from placer.command.starter.column import (
    MAX_CODES,
    Column,
    Dates,
    Ids,
    LeftOut,
    Numbers,
    Words,
)
from placer.command.starter.table import Table
from placer.plan.settings.data.missing import MISSING
from placer.readers.cell_numbers import cast_whole
from placer.report.numbers import format_count

_MAX_WORDS: Final = 100
"""The largest number of words in a vocabulary."""
_LEAST_ROWS_PER_CODE: Final = 10
_LEAST_ROWS_PER_ID: Final = 2
_LEAST_NUMBERED: Final = 200
_MOSTLY: Final = 0.95
_ALMOST_NUMBERS: Final = 0.8
_MAX_MARKERS: Final = 3
_BOOLEANS = frozenset({"true", "false"})
_ROW_ID = re.compile(r"(?i)(.*[^a-z])?(id|uuid|guid|index|key)|.*[a-z]I[dD]")
_ID = re.compile(
    r"(?i)(.*[^a-z])?(id|uuid|guid|key|code|zip|zipcode|postcode|sku)|.*[a-z]I[dD]"
)
_OTHER_DATE = re.compile(
    r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2}))"
    r"([T ]\d{1,2}:\d{2}.*)?|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?"
)
_WITH_COMMA = re.compile(r"[-+]?\d[\d.,]*")


def describe_column(table: Table, name: str, *, is_id: bool = False) -> Column:
    """Describe a column as an input of a model. `is_id` is True if the user says that the
    column has ids."""
    if not name:
        return LeftOut("", "the column has no name")
    if name in table.repeated:
        return LeftOut(name, "several columns have this name")
    cells = describe_cells(table, name)
    if is_id:
        return _describe_ids(cells, is_asked=True)
    if cells.days is not None and not np.isnan(cells.days).all():
        return _describe_dates(Dates(name, cells.days))
    if cells.kind is not None:
        return LeftOut(name, cells.kind)
    if cells.numbers is not None:
        return _describe_numbers(cells)
    return _describe_words(cells)


def find_unscalable(values: np.ndarray) -> str:
    """Return the reason why numbers cannot be scaled to variance 1, or "" if they can."""
    with np.errstate(over="ignore", invalid="ignore"):
        deviation = values.std()
    if 0 < deviation < np.inf:
        return ""
    size = "small" if deviation == 0 else "large"
    largest = values[np.argmax(np.abs(values))]
    if (values == largest).all():
        return f"its numbers, all about {largest:.6g}, are equal in float64"
    return (
        f"the standard deviation of its numbers, such as {largest:.6g}, cannot be "
        f"computed: they are too {size}"
    )


def numbers_rows(values: np.ndarray) -> bool:
    """Return True if all numbers are whole, different and evenly spaced."""
    steps = np.unique(np.diff(np.unique(values)))
    is_even = len(steps) == 1 and bool((values % 1 == 0).all())
    is_unique = is_even and len(np.unique(values)) == len(values)
    return is_unique and (steps[0] == 1 or len(values) >= _LEAST_NUMBERED)


def _describe_dates(dates: Dates) -> Dates | LeftOut:
    rows, missing = len(dates.values), dates.missing
    if missing >= _MOSTLY * rows:
        return LeftOut(dates.name, f"{_percent(missing, rows)} of its cells are empty")
    if dates.first == dates.last and not dates.has_times:
        return LeftOut(dates.name, "all its dates are the same")
    return dates


def _describe_numbers(cells: Cells) -> Column:
    assert cells.numbers is not None
    name, column = cells.name, Numbers(cells.name, cells.numbers)
    present, rows = column.present, len(column.values)
    if len(present) == 0:
        return LeftOut(name, "all its values are missing")
    distinct = cells.distinct_numbers
    if distinct == 1:
        return LeftOut(name, f"all its values are {present[0]:.6g}")
    if column.missing >= _MOSTLY * rows:
        return LeftOut(name, f"{_percent(column.missing, rows)} of its cells are empty")
    is_whole = bool((present == np.floor(present)).all())
    if is_whole and distinct == rows:
        if numbers_rows(present):
            return LeftOut(name, "it contains row numbers")
        if _ROW_ID.fullmatch(name):
            return LeftOut(
                name, "it is different in each row and has the name of an id"
            )
    if is_whole and distinct > MAX_CODES and _ID.fullmatch(name):
        return _describe_ids(cells)
    few = 2 < distinct <= MAX_CODES
    enough = len(present) >= _LEAST_ROWS_PER_CODE * distinct
    if is_whole and few and enough and cells.text is not None:
        codes = all_words(cells)
        if len(cells.words) == distinct:
            # Every number is written in the same way in all cells.
            return codes
    if why := find_unscalable(present):
        return LeftOut(name, why)
    return column


def _describe_ids(cells: Cells, *, is_asked: bool = False) -> Ids | Words | LeftOut:
    if cells.text is None:
        return LeftOut(cells.name, "only whole numbers and texts can be ids")
    distinct, rows = len(cells.words), len(cells.text)
    if not distinct:
        return LeftOut(cells.name, "all its cells are empty")
    if distinct == 1 and not cells.missing:
        return LeftOut(cells.name, f"all its values are {_shorten(*cells.words)}")
    if rows - cells.missing < _LEAST_ROWS_PER_ID * distinct:
        what = f"it has {format_count(distinct)} ids in {format_count(rows)} rows"
        if distinct == rows:
            what = "it is different in each row"
        return LeftOut(cells.name, f"{what}, so new rows have unknown values")
    if distinct <= MAX_CODES and not is_asked:
        return all_words(cells)
    numbers = cells.numbers
    are_whole = numbers is not None and are_exact(numbers[~cells.is_missing])
    if not are_whole and not cells.is_text:  # These ids would not be compared as text.
        if cast_whole(pa.array([*cells.words])) is None:
            return LeftOut(
                cells.name, "only whole numbers of 64 bits and texts can be ids"
            )
        are_whole = True
    return Ids(cells.name, distinct, are_whole)


def _describe_words(cells: Cells) -> Column:
    name, counts, missing = cells.name, cells.words, cells.missing
    rows = missing + counts.total()
    found = sorted(counts)
    if not found:
        return LeftOut(name, "all its cells are empty")
    if len(found) == 1 and not missing:
        return LeftOut(name, f"all its values are {_shorten(found[0])}")
    if missing >= _MOSTLY * rows:
        return LeftOut(name, f"{_percent(missing, rows)} of its cells are empty")
    if all(map(_OTHER_DATE.fullmatch, found)):
        why = f"it holds dates such as {_shorten(found[0])}: write them as 2024-05-31"
        return LeftOut(name, f"{why} or 2024-05-31T18:30")
    if almost := _almost_numbers(cells):
        return almost
    example = _shorten(found[0])
    # The other rows say nothing about a word that only one row has.
    frequent = {word: counts[word] for word in found if counts[word] > 1}
    others = counts.total() - sum(frequent.values())
    is_rare, are_many = others > counts.total() / 2, len(frequent) > _MAX_WORDS
    if (is_rare or are_many) and all(map(_WITH_COMMA.fullmatch, found)):
        return LeftOut(
            name, f"its numbers have commas, such as {example}: write them as 1234.5"
        )
    if is_rare:
        what = f"{format_count(len(found))} different texts"
        if len(found) == rows:
            what = "its text is different in each row"
        return LeftOut(name, f"{what}, such as {example}")
    if are_many or (_ID.fullmatch(name) and len(found) > MAX_CODES):
        return _describe_ids(cells)
    return Words(name, tuple(frequent), tuple(frequent.values()), missing, others)


def _almost_numbers(cells: Cells) -> Numbers | LeftOut | None:
    """Describe a column of numbers and a few words, which count as missing; None for
    others."""
    if not (wrong := _find_misfits(cells)):
        return None
    first = _first_misfit(cells, wrong)
    others = cells.without(frozenset(wrong))
    if len(wrong) <= _MAX_MARKERS and others.numbers is not None:
        described = _describe_numbers(others)
        if isinstance(described, LeftOut):
            return described
        return Numbers(cells.name, others.numbers, tuple(sorted(wrong)), first)
    return LeftOut(
        cells.name,
        f"it has values that are not numbers ({first}): correct them, or list "
        "them in missing_values",
    )


def find_misfit(cells: Cells) -> str | None:
    """Return the count and the first of the few values that are not numbers. Return
    None if all values are numbers, or if many are not."""
    wrong = _find_misfits(cells)
    return _first_misfit(cells, wrong) if wrong else None


def _find_misfits(cells: Cells) -> dict[str, int]:
    """Return the few values of a column of numbers that are not numbers, with their
    counts."""
    if cells.text is None or cells.numbers is not None:
        return {}
    counts = {word: count for word, count in cells.words.items() if word not in MISSING}
    if len(counts) <= MAX_CODES:
        return {}
    wrong = {word: count for word, count in counts.items() if not is_number(word)}
    is_few = sum(wrong.values()) <= sum(counts.values()) * (1 - _ALMOST_NUMBERS)
    return wrong if is_few else {}


def _first_misfit(cells: Cells, wrong: Iterable[str]) -> str:
    """Describe the count and the first of the values that are not numbers."""
    assert cells.text is not None
    words = cells.text.to_pylist()
    first = next(i for i, word in enumerate(words) if word in wrong)
    count = format_count(sum(cells.words[word] for word in wrong))
    return f"{count}, the first is {_shorten(words[first])} in {cells.position(first)}"


def all_words(cells: Cells) -> Words | LeftOut:
    """Return all different values of a column as words."""
    if cells.text is None:
        why = cells.kind or "it holds neither words nor whole numbers"
        return LeftOut(cells.name, why)
    counts = cells.words
    is_codes = cells.numbers is not None and counts.keys().isdisjoint(_BOOLEANS)
    words = sorted(counts, key=(lambda w: (float(w), w)) if is_codes else None)
    numbers = tuple(counts[word] for word in words)
    return Words(cells.name, tuple(words), numbers, cells.missing, is_codes=is_codes)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part // whole} %"


def _shorten(word: str) -> str:
    return repr(word if len(word) <= 30 else word[:27] + "...")
