"""Explains why the header of a `csv:` file lacks the columns of a spec."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase

from placer.plan.settings.data.cell_options import Csv
from placer.plan.settings.data.sources import SourceError

_DELIMITERS = {";": ";", "\t": "\\t", "|": "|", ",": ",", " ": " "}
"""The usual delimiters, as a spec writes them."""


@contextmanager
def header_explained(
    names: Sequence[str], form: Csv, wanted: Iterable[str]
) -> Iterator[None]:
    """Add a hint about the header to errors about columns raised in the context.

    The file may have another delimiter, a comment before the header, or no header.

    Args:
        names: the columns of the file.
        form: how the file is read.
        wanted: columns or globs; the file should have at least one of them.
    """
    try:
        yield
    except SourceError as error:
        if form.header is None and (hint := _hint(names, [*wanted])):
            raise SourceError(error.mistake.path, error.message, hint) from None
        raise


def _hint(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    if len(names) == 1:
        for character, written in _DELIMITERS.items():
            cells = [cell.strip(' "') for cell in names[0].split(character)]
            if len(cells) > 1 and any(_is_wanted(cell, wanted) for cell in cells):
                return (
                    "its cells seem to have another delimiter; write csv:"
                    f' {{delimiter: "{written}"}}'
                )
    if names and names[0].startswith("#"):
        return 'its first line seems to be a comment; write csv: {comment: "#"}'
    # pandas names unnamed columns by their numbers.
    if names == [str(number) for number in range(len(names))]:
        return None
    if all(map(_is_number, names)):
        return (
            "its first row has numbers; name the columns with csv: {header: [NAME, …]}"
        )
    return None


def _is_wanted(name: str, wanted: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in wanted)


def _is_number(text: str) -> bool:
    with suppress(ValueError):
        float(text)
        return True
    return False
