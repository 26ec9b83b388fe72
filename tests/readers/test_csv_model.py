"""Any bytes are read as Python's csv module reads them, or are an error with the line."""

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.errors import DataError
from placer.plan.settings.data.cell_options import Csv
from placer.plan.settings.data.source import Data
from placer.readers import Column, csv_pieces, open_pieces
from placer.readers.csv_errors import find_line
from placer.readers.csv_file import open_table

SOURCE = "csv:t.csv"


def model(content, form):
    """Return the names of the columns and the rows below, each with the line where it
    ends, as Python's csv module reads them, or the start of the message for its mistake.
    Cells have no blanks at their ends."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return f"{SOURCE}: "  # any of its mistakes may be named
    number, first, is_start = 0, 0, True

    def lines():
        nonlocal number, first, is_start
        for line in io.StringIO(text, newline=""):
            number += 1
            if not (is_start and form.comment and line.startswith(form.comment)):
                first = number if is_start else first
                is_start = False
                yield line

    spaces = form.delimiter != " "
    reader = csv.reader(
        lines(), delimiter=form.delimiter, skipinitialspace=spaces, strict=True
    )
    names, rows, is_first = form.header, [], True
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            more = f": the row extends to line {number}" if number > first else ""
            return f"{SOURCE}: line {first}{more}: {error}"
        is_start = True
        if row is None:
            break
        row = [cell.strip() for cell in row]
        if is_first and row and row == names:
            return f"{SOURCE}: line {number} names the columns, but the spec has a 'header'"
        is_first = is_first and not row
        if names is None:
            names = row if any(row) else None
            if names and "\0" in "".join(names):
                return f"{SOURCE}: line {number} has NUL characters"
        elif len(row) == len(names):
            rows.append((number, row))
        elif any(row) or len(row) > 1:
            return f"{SOURCE}: line {number} has {len(row)} cell"
    if names is None:
        return f"{SOURCE} is empty"
    return names, rows


def read_table(path, form, nbytes):
    """Return the names and the rows of a file that is read some bytes at a time."""
    with open_table(SOURCE, path, form, nbytes) as table:
        width = range(len(table.names))
        batches = [batch.to_pydict() for batch in table.batches(width)]
    return table.names, rows_of(map(dict.values, batches))


def rows_of(batches):
    """Return the rows of batches of columns, without the blanks around cells."""
    rows = [row for batch in batches for row in zip(*batch, strict=True)]
    return [[cell.strip() for cell in row] for row in rows]


def read_in_pieces(path, form, nbytes):
    """Return the first column of a file that is read in pieces."""
    data = Data(SOURCE, columns={"a": "x"}, csv=form)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_pieces, "PIECE_NBYTES", nbytes)
        rows = open_pieces(data, [Column("a", "int32", ())], path.parent)
    batches = [[*rows.reader.read(piece, 1)] for piece in range(len(rows.counts))]
    assert [sum(map(len, batch)) for batch in batches] == [*rows.counts]
    firsts = [batch.first for each in batches for batch in each]
    assert firsts == sorted({*firsts})
    return rows_of([b.columns["x"].to_pylist()] for each in batches for b in each)


PARTS = [
    *"11aa,,,,\n\n\n\"\"\" #\r\t;\\'\0\v\f", "\r\n", '""', ', "', '",', '"\n', "é", "\u00a0",
    "\u2028", "\x1c", "\x85", "\ufeff", "1,2\n", "3,4\r\n", '"5","6"\n', "#c\n", '#"\n', "0x10",
    "-inf", "1_000", str(2**53 + 1), str(2**64),
]  # fmt: skip
STARTS = [
    "x,y\n", '"x", "y"\r\n', "x,y\r", "\ufeff#\nx,y\n", " \n,\nx,y\n", '"x\n",y\n', "x\n", "x,y",
    "#\"\nx,y\n", "",
]  # fmt: skip
FORMS = [
    {},
    {"comment": "#"},
    {"comment": '"'},
    {"comment": "#c"},
    {"comment": " "},
    {"header": ["x", "y"]},
    {"header": ["x"], "comment": "#"},
    {"delimiter": " "},
    {"delimiter": "\t"},
    {"delimiter": "1"},
    {"delimiter": "¦"},
    {"delimiter": "é", "comment": "é#"},
    {"delimiter": "]", "header": ["x", "y"]},
]


@settings(derandomize=True, deadline=None, max_examples=250)
@given(
    start=st.sampled_from(STARTS),
    parts=st.lists(st.sampled_from(PARTS), max_size=24),
    form=st.sampled_from(FORMS).map(lambda form: Csv(**form)),
    nbytes=st.sampled_from([1, 5, 32, 1 << 20]),
    bad=st.sampled_from([b""] * 9 + [b"\xff", b"\xc3"]),
)
def test_any_text_is_read_as_the_csv_module_reads_it(
    start, parts, form, nbytes, bad, tmp_path_factory
):
    text = "".join([start, *parts]).replace(",", form.delimiter)
    content, path = text.encode() + bad, tmp_path_factory.getbasetemp() / "t.csv"
    path.write_bytes(content)
    expected = model(content, form)
    if isinstance(expected, str):
        with pytest.raises(DataError) as caught:
            read_table(path, form, nbytes)
        assert caught.value.message.startswith(expected)
        return
    names, rows = expected
    assert read_table(path, form, nbytes) == (names, [row for _, row in rows])
    if rows:
        assert find_line(SOURCE, path, form, len(rows) - 1) == rows[-1][0]
    if names.count("x") == 1:
        at = names.index("x")
        assert read_in_pieces(path, form, nbytes) == [[row[at]] for _, row in rows]
