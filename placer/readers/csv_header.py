"""What a header without the columns of a spec says about a `csv:` file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from placer.config.csv import Csv
from placer.config.sources import SourceError

_DELIMITERS = {";": ";", "\t": "\\t", "|": "|", ",": ",", " ": " "}
"""The usual delimiters, as a spec writes them."""


@contextmanager
def header_explained(names: Sequence[str], form: Csv) -> Iterator[None]:
    """Return a context whose errors about columns say how to read the header, if the file
    seems to have another delimiter, or no header.

    `names` are the columns of the file.
    """
    try:
        yield
    except SourceError as error:
        if hint := _hint(names, form):
            raise SourceError(error.keys, error.message, hint) from None
        raise


def _hint(names: Sequence[str], form: Csv) -> str | None:
    if form.header is not None:
        return None
    if len(names) == 1:
        for character, written in _DELIMITERS.items():
            if character in names[0].replace("  ", ""):
                return (
                    "its cells seem to have another delimiter:"
                    f' csv: {{delimiter: "{written}"}}'
                )
    # pandas names columns without names by their numbers.
    if names == [str(number) for number in range(len(names))]:
        return None
    if all(map(_is_number, names)):
        return "its first row has numbers: name the columns, csv: {header: [NAME, …]}"
    return None


def _is_number(text: str) -> bool:
    with suppress(ValueError):
        float(text)
        return True
    return False
