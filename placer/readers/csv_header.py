"""What a header without the columns of a spec says about a `csv:` file."""

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
    """Return a context whose errors about columns say how to read the header, if the file
    seems to have another delimiter, a comment before the header, or none.

    Args:
        names: the columns of the file.
        form: how it is read.
        wanted: columns, or globs over them, of which the file should have one.
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
                    "its cells seem to have another delimiter:"
                    f' csv: {{delimiter: "{written}"}}'
                )
    if names and names[0].startswith("#"):
        return 'its first line seems to be a comment: csv: {comment: "#"}'
    # pandas names columns without names by their numbers.
    if names == [str(number) for number in range(len(names))]:
        return None
    if all(map(_is_number, names)):
        return "its first row has numbers: name the columns, csv: {header: [NAME, …]}"
    return None


def _is_wanted(name: str, wanted: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in wanted)


def _is_number(text: str) -> bool:
    with suppress(ValueError):
        float(text)
        return True
    return False
