"""Text files of cells: their rows, and every mistake with its line and column."""

import csv as csv_module
import gzip
import threading
import weakref
from io import BytesIO

import numpy as np
import pyarrow.csv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import ValidationError, convert
from support.data_sets import FOLDER, find_data
from support.tables import read_pieces

from placer.errors import DataError
from placer.plan.settings.data.cell_options import Csv
from placer.plan.settings.data.source import Data
from placer.plan.settings.mistake import MistakeError
from placer.readers import (
    Column,
    ReadOptions,
    csv_blocks,
    csv_errors,
    csv_file,
    csv_text_columns,
    open_source,
)
from placer.readers.cell_numbers import CellParser
from placer.readers.keys import read_keys

X, LABEL = Column("x", "float32", (2,)), Column("label", "int32", ())
A = Column("a", "float32", ())


def open_csv(folder, text, columns, *, mapping=None, split=None, name="t.csv", **form):
    """Write a file with this text (or these bytes), and open it as a source."""
    content = text if isinstance(text, bytes) else text.encode()
    (folder / name).write_bytes(content)
    data = Data(f"csv:{name}", split=split, columns=mapping, csv=Csv(**form))
    return open_source(data, columns, folder)


def take_all(rows):
    return rows.take(np.arange(rows.rows))


def column(folder, text, dtype, **more):
    """Return the values of column `a`."""
    return take_all(open_csv(folder, text, [Column("a", dtype, ())], **more))["a"]


def test_the_first_row_names_the_columns(tmp_path):
    text = "p,label,q,note\n1.5,3,-2,hello\n2e-3,4,+7,\n"
    rows = take_all(open_csv(tmp_path, text, [X, LABEL], mapping={"x": ["q", "p"]}))
    np.testing.assert_array_equal(rows["x"], np.float32([[-2, 1.5], [7, 2e-3]]))
    np.testing.assert_array_equal(rows["label"], np.int32([3, 4]))
    assert (rows["x"].dtype, rows["label"].dtype) == (np.float32, np.int32)


def test_a_scalar_input_is_fed_by_the_column_of_its_name(tmp_path):
    np.testing.assert_array_equal(
        column(tmp_path, "b,a\n1,2\n3,4\n", "float64"), [2, 4]
    )


@pytest.mark.parametrize("text", ["I1,C1,I10,I2\n1,7,3,2\n", "I10,I2,I1,C1\n3,2,1,7\n"])
def test_a_glob_selects_columns_in_natural_order(text, tmp_path):
    wide = Column("x", "float32", (3,))
    rows = take_all(open_csv(tmp_path, text, [wide], mapping={"x": "I*"}))
    np.testing.assert_array_equal(rows["x"], [[1, 2, 3]])
    mixed = take_all(
        open_csv(tmp_path, text, [wide], mapping={"x": ["C1", "I1?", "I2"]})
    )
    np.testing.assert_array_equal(mixed["x"], [[7, 3, 2]])


def test_a_column_whose_name_is_a_glob_is_selected_by_name(tmp_path):
    text = "x[0],x0\n1,2\n"
    rows = take_all(open_csv(tmp_path, text, [A], mapping={"a": "x[0]"}))
    np.testing.assert_array_equal(rows["a"], [1])


def test_columns_fill_a_row_in_c_order(tmp_path):
    square = Column("x", "float32", (2, 2))
    rows = take_all(
        open_csv(tmp_path, "a,b,c,d\n1,2,3,4\n", [square], mapping={"x": "*"})
    )
    np.testing.assert_array_equal(rows["x"], [[[1, 2], [3, 4]]])


def test_column_names_can_be_in_the_spec(tmp_path):
    text = "1;2\n3;4\n"
    values = column(tmp_path, text, "int64", header=["b", "a"], delimiter=";")
    np.testing.assert_array_equal(values, [2, 4])


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("a,b\n 1 , 2 \n\n3,4\n  \n", {}),
        ("\ufeffa,b\n1,2\n3,4", {}),
        ("a,b\r\n1,2\r\n3,4\r\n", {}),
        ('"a","b"\n"1","2"\n3, "4"\n', {}),
        ("a\tb\n1\t2\n3\t4\n", {"delimiter": "\t"}),
        ("a b\n1 2\n3 4\n", {"delimiter": " "}),
        ("# made by hand\na,b\n1,2\n#3,5\n3,4\n", {"comment": "#"}),
        ('note,a,b\n"two\nlines, one ""cell""",1,2\n,3,4\n', {}),
        ('note,a,b\n"x\n#y",1,2\n#z,0,0\n,3,4\n', {"comment": "#"}),
    ],
)
def test_several_texts_of_the_same_rows(text, form, tmp_path):
    rows = take_all(open_csv(tmp_path, text, [X], mapping={"x": ["a", "b"]}, **form))
    np.testing.assert_array_equal(rows["x"], [[1, 2], [3, 4]])


def test_a_line_inside_a_cell_is_not_a_comment(tmp_path):
    words = {"a": ["a\n#b\nc", "e"]}
    text = 'a,n\n"a\n#b\nc",1\n#,7\n"#d",8\ne,2\n'
    form = {"comment": "#", "vocabulary": words, "unknown": {"a": 5}}
    assert column(tmp_path, text, "int32", **form).tolist() == [0, 5, 1]


def test_whole_numbers_are_exact_however_they_are_written(tmp_path):
    text = f"a\n{2**53 + 1}.0\n{2**63 - 1}\n3e0\n"
    values = column(tmp_path, text, "int64")
    assert values.tolist() == [2**53 + 1, 2**63 - 1, 3]


@pytest.mark.parametrize("dtype", ["int32", "uint64"])
def test_whole_numbers_of_pandas_are_parsed_at_once(dtype, tmp_path, monkeypatch):
    """It writes 3.0 if a value of the column is missing."""
    monkeypatch.delattr("placer.readers.cell_numbers.parse_number")
    values = column(tmp_path, "a,b\n3.0,\n,\n12.0,\n", dtype, missing={"a": 7})
    assert values.tolist() == [3, 7, 12]
    assert values.dtype == dtype


def test_a_gz_file_is_decompressed(tmp_path):
    packed = gzip.compress(b"a\n1\n2\n")
    np.testing.assert_array_equal(
        column(tmp_path, packed, "int32", name="t.csv.gz"), [1, 2]
    )


def test_more_rows_than_a_chunk_are_read(tmp_path):
    numbers = np.random.Generator(np.random.PCG64(3)).integers(-9, 9, (3000, 2))
    text = "a,b\n" + "".join(f"{a},{b}\n" for a, b in numbers)
    rows = take_all(open_csv(tmp_path, text, [X], mapping={"x": "*"}))
    np.testing.assert_array_equal(rows["x"], numbers)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(numbers=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_a_number_that_python_writes_is_read_back_exactly(numbers, tmp_path_factory):
    text = "a\n" + "".join(f"{x!r}\n" for x in numbers)
    values = column(tmp_path_factory.getbasetemp(), text, "float64")
    np.testing.assert_array_equal(values, numbers)


def outcome(folder, text, columns, **more):
    """Return the values of each column, or the message of the error."""
    try:
        rows = take_all(open_csv(folder, text, columns, **more))
    except DataError as error:
        return error.message
    return {name: values.tolist() for name, values in rows.items()}


def test_pyarrow_has_nothing_of_python_that_a_thread_could_use_at_the_end(
    tmp_path, monkeypatch
):
    """A thread that does so when the interpreter ends aborts the process."""
    text, readers, handlers = b"1,2\n\n3,4\n" * 20, [], []

    class File(BytesIO):
        def read(self, size=-1):
            readers.append(threading.get_ident())
            return super().read(size)

    def options(**given):
        handlers.append(weakref.ref(given["invalid_row_handler"]))
        return pyarrow.csv.ParseOptions(**given)

    monkeypatch.setattr(csv_blocks, "_open", lambda *_: File(b"a,b\n" + text))
    monkeypatch.setattr(csv_text_columns, "ParseOptions", options)
    monkeypatch.setattr(csv_file, "BLOCK_NBYTES", 64)
    rows = open_csv(tmp_path, "", [A])
    assert take_all(rows)["a"].tolist() == [1, 3] * 20
    assert {*readers} == {threading.get_ident()}
    assert len(handlers) > 1
    assert not any(handler() for handler in handlers)


def test_a_quoted_cell_may_be_longer_than_a_block(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_file, "BLOCK_NBYTES", 8)
    text = 'a,b\n1,"' + "line\n" * 9 + '"\n2,x\n'
    assert column(tmp_path, text, "int32").tolist() == [1, 2]
    for module in (csv_blocks, csv_errors):
        monkeypatch.setattr(module, "MAX_CHARACTERS", 16)
    with pytest.raises(DataError, match="a cell has more than 16 characters"):
        column(tmp_path, text, "int32")


@pytest.mark.parametrize("quoted", ['"x"', '"a ""b"", c"', 'an inch: 1"'])
def test_a_long_cell_is_read_and_the_limit_of_the_process_stays(quoted, tmp_path):
    """Longer than the limit of the csv module, and than what is read at a time."""
    limit = csv_module.field_size_limit()
    long = "y" * 1_200_000
    text = f"a,b,k\n1,z,k0\n2,{long},{long}\n3,{quoted},k2\n"
    assert column(tmp_path, text, "float32").tolist() == [1, 2, 3]
    data, columns = Data("csv:t.csv"), [Column("a", "float32", ())]
    assert read_pieces(tmp_path, data, columns)["a"].tolist() == [1, 2, 3]
    keys = read_keys(data, ["k"], tmp_path)
    assert keys["k"].tolist() == ["k0", long, "k2"]
    assert keys["k"].nbytes == 3 * 8
    assert csv_module.field_size_limit() == limit
    with pytest.raises(DataError, match="line 3, column 'b': 'yyyy"):
        column(tmp_path, text.replace("z", "5"), "float32", mapping={"a": "b"})
    assert csv_module.field_size_limit() == limit


def test_a_cell_over_the_limit_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_file, "BLOCK_NBYTES", 8)
    monkeypatch.setattr(csv_blocks, "LINE_NBYTES", 8)
    for module in (csv_blocks, csv_errors):
        monkeypatch.setattr(module, "MAX_CHARACTERS", 100)
    text = 'a,b\n1,2\n3,"' + "4\n" * 100
    with pytest.raises(
        DataError, match="line 53: a cell has more than 100 charac"
    ) as e:
        column(tmp_path, text, "float32")
    assert "without its closing quote" in e.value.hint
    text = "a,b\n1,2\n3," + "4" * 101 + "\n"
    with pytest.raises(DataError, match="line 3: a cell has more than 100 characters"):
        column(tmp_path, text, "float32")
    text = "a,b\n1,2\n" + "3" * 60 + "," + "4" * 60 + "\n5,6\n"
    with pytest.raises(DataError, match="line 3: the row has 122 bytes"):
        column(tmp_path, text, "float32")


def test_lines_above_the_names_do_not_make_the_file_be_scanned_again(
    tmp_path, monkeypatch
):
    scanned = []

    def counted(text, form):
        scanned.append(len(text))
        return plain_rows(text, form)

    plain_rows = csv_blocks.plain_rows
    monkeypatch.setattr(csv_blocks, "plain_rows", counted)
    text = "# comment\n" * 100 + "\n" * 100 + "a\n" + "1\n" * 10_000
    assert len(column(tmp_path, text, "float32", comment="#")) == 10_000
    assert sum(scanned) < 2 * len(text)


def test_a_mistake_far_below_is_reported_with_its_line(tmp_path):
    good = '"two\nlines",1\n\n' * 60_000
    for last, message in [
        ("x,oops\n", "line 180002, column 'a': 'oops' is not a number"),
        ("x\n", "line 180002 has 1 cell, but the file has 2 columns"),
        ('x,"1"1\n', "line 180002: ',' expected after '\"'"),
    ]:
        with pytest.raises(DataError) as caught:
            column(tmp_path, "b,a\n" + good + last, "float32")
        assert caught.value.message == f"csv:t.csv: {message}"


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    cell=st.text(alphabet="0129+-.eExX_ naifNAytrusTF\t\u00a0", max_size=6)
    | st.integers().map(str)
    | st.floats().map(repr),
    dtype=st.sampled_from(["float32", "float64", "int8", "int64", "uint64", "bool"]),
    form=st.sampled_from([{}, {"missing": {"a": 1}}]),
)
def test_any_cell_is_parsed_as_python_parses_it(cell, dtype, form, tmp_path_factory):
    text, columns = f'a\n"{cell}"\n1\n', [Column("a", dtype, ())]
    folder = tmp_path_factory.getbasetemp()
    fast = outcome(folder, text, columns, **form)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CellParser, "_parse_at_once", lambda *_: None)
        assert fast == outcome(folder, text, columns, **form)


def test_digests_do_not_depend_on_how_cells_are_quoted(tmp_path):
    digests = []
    for text in ("x,y\n1,2\n3,4\n", 'x,y\n1, "2"\n\n"3",4\n'):
        (tmp_path / "t.csv").write_text(text)
        options = ReadOptions(
            other_columns=(Column("y", "int32", ()),), with_digests=True
        )
        columns = [Column("x", "int32", ())]
        rows = open_source(Data("csv:t.csv"), columns, tmp_path, options)
        digests.append(rows.digests())
    assert digests[0] == digests[1]
    assert set(digests[0].whole) == {"x", "y"}


# words


def test_words_become_their_index(tmp_path):
    text = "a,b\n red ,1\nblue,2\n"
    words = {"a": ["blue", "red", "green"]}
    assert column(tmp_path, text, "int32", vocabulary=words).tolist() == [1, 0]
    assert column(tmp_path, text, "float32", vocabulary=words).tolist() == [1, 0]


def test_a_vocabulary_may_assign_numbers(tmp_path):
    words = {"*": {"no": -1, "yes": 1, "yes.": 1}}
    values = column(tmp_path, "a\nyes.\nno\nyes\n", "int32", vocabulary=words)
    assert values.tolist() == [1, -1, 1]


def test_an_unknown_word_becomes_the_specified_number(tmp_path):
    form = {"vocabulary": {"a": ["x", "y"]}, "unknown": {"a": 2}}
    assert column(tmp_path, 'a\ny\nz\n""\n', "int32", **form).tolist() == [1, 2, 2]


def test_bools_are_numbers_or_words(tmp_path):
    text = "a\n1\n0\ntrue\nFalse\n"
    assert column(tmp_path, text, "bool").tolist() == [True, False, True, False]
    missing = column(tmp_path, text + "NA\n", "bool", missing={"a": 1})
    assert missing.tolist() == [True, False, True, False, True]
    with pytest.raises(DataError, match="'yes' is not 0, 1, true or false"):
        column(tmp_path, "a\nyes\n", "bool")


# missing numbers


def test_a_missing_number_becomes_the_specified_number(tmp_path):
    text = "a,b\n1,2\n,3\n?,4\nNA,5\nnan,6\nnull,7\n8,9\n"
    values = column(tmp_path, text, "float32", missing={"a*": -1})
    assert values.tolist() == [1, -1, -1, -1, -1, -1, 8]
    whole = column(tmp_path, text, "int32", missing={"a": 0})
    assert whole.tolist() == [1, 0, 0, 0, 0, 0, 8]


# split


def test_train_and_test_split_a_fixed_permutation(tmp_path):
    text = "a\n" + "".join(f"{i}\n" for i in range(23))
    train, test = (column(tmp_path, text, "int32", split=s) for s in ("train", "test"))
    order = np.random.Generator(np.random.PCG64(0)).permutation(23)
    np.testing.assert_array_equal(train, order[:19])
    np.testing.assert_array_equal(test, order[19:])


# mistakes


@pytest.mark.parametrize(
    ("cell", "dtype", "message", "hint"),
    [
        ("abc", "float32", "'abc' is not a number", "csv: {vocabulary: {"),
        (
            "0.5x",
            "float32",
            "'0.5x' is not a number",
            'csv: {missing_values: {a: ["0.5x"]}, missing: {a: 0}}; a column of words',
        ),
        ("5\0", "float32", "'5\\x00' has a NUL byte, so it is not a number", "UTF-8"),
        ("1_000", "float32", "'1_000' is not a number", "vocabulary"),
        ("١", "int32", "is not a number", "vocabulary"),
        (
            "inf",
            "float32",
            "'inf' is not a finite number",
            'missing_values: {a: ["inf"]}',
        ),
        (
            "1e999",
            "float64",
            "'1e999' is not a finite number",
            'missing_values: {a: ["1e999"]}',
        ),
        ("1e39", "float32", "'1e39' does not fit float32", "a: float64[batch]"),
        ("", "float32", "the cell is empty", "csv: {missing: {a: 0}}"),
        ("?", "int32", "'?' is not a number", "csv: {missing: {a: 0}}"),
        ("NaN", "float64", "'NaN' is not a number", "csv: {missing: {a: 0}}"),
        ("0.5", "int32", "'0.5' is not a whole number", "declare a: float32[batch]"),
        ("3000000000", "int32", "'3000000000' does not fit int32", "int32[batch]"),
        ("9" * 25, "int64", "9' does not fit int64", "int64[batch]"),
        ("-1", "uint8", "'-1' does not fit uint8", "uint8[batch]"),
        ("256", "uint8", "'256' does not fit uint8", "uint8[batch]"),
        ("2", "bool", "'2' is not 0, 1, true or false", "bool[batch]"),
        ("x" * 50, "int32", f"'{'x' * 37}...' is not a number", "vocabulary"),
    ],
)
def test_a_cell_that_does_not_fit_is_reported_with_line_and_column(
    cell, dtype, message, hint, tmp_path
):
    text = f'b,a\n7,1\n"two\nlines",1\n8,"{cell}"\n9,oops\n'
    with pytest.raises(DataError) as caught:
        column(tmp_path, text, dtype)
    assert caught.value.message.startswith("csv:t.csv: line 5, column 'a': ")
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("cell", "dtype", "number"),
    [
        ("3.0", "int32", 3),
        ("-128", "int8", -128),
        ("9223372036854775807", "int64", 2**63 - 1),
        ("18446744073709551615", "uint64", 2**64 - 1),
    ],
)
def test_whole_numbers_within_their_range(cell, dtype, number, tmp_path):
    assert column(tmp_path, f"a\n{cell}\n", dtype).tolist() == [number]


def test_an_unknown_word_is_reported_with_the_nearest_one(tmp_path):
    with pytest.raises(DataError) as caught:
        column(tmp_path, "a\nred\ngren\n", "int32", vocabulary={"a": ["red", "green"]})
    assert caught.value.message == (
        "csv:t.csv: line 3, column 'a': 'gren' is not in the vocabulary"
    )
    assert "csv: {unknown: {a: N}}" in caught.value.hint
    assert "did you mean 'green'?" in caught.value.hint


def test_the_number_for_missing_cells_must_fit(tmp_path):
    with pytest.raises(DataError, match=r"0\.5, given by 'missing', is not a whole"):
        column(tmp_path, "a,b\n,1\n", "int32", missing={"a": 0.5})
    with pytest.raises(DataError, match=r"line 2, column 'a': 'y' does not fit int8"):
        column(tmp_path, "a\ny\n", "int8", vocabulary={"a": {"y": 200}})


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "a,b\n1,2\n3\n",
            "csv:t.csv: line 3 has 1 cell, but the file has 2 columns",
            "','",
        ),
        (
            "a,b\n1,2,3\n",
            "csv:t.csv: line 2 has 3 cells, but the file has 2 col",
            "','",
        ),
        ("", "csv:t.csv is empty", "first row names the columns"),
        ("\n\n", "csv:t.csv is empty", "first row names the columns"),
        ("a,b\n", "csv:t.csv has no rows", "at least one row"),
        ("b,c\n1,2\n", "csv:t.csv has no column 'a' for input 'a'", "b, c; write"),
        ("a,a\n1,2\n", "csv:t.csv has several columns named 'a'", "rename one"),
        (
            'a,b\n"1\n",2\n3,"4\n5,"6"\n',
            "csv:t.csv: line 4: the row extends to line 5: ',' expected after '\"'",
            "without its closing quote",
        ),
        (
            'a,b\n1,"2\n3,4\n',
            "csv:t.csv: line 2: the row extends to line 3: unexpected end of data",
            "without its closing quote",
        ),
        ('a,b\n1,"2"3\n', "csv:t.csv: line 2: ',' expected after '\"'", "quote a cell"),
        (b"a,b\n1,2\n3,\xe9\n", "csv:t.csv: line 3 is not UTF-8", "as UTF-8"),
    ],
)
def test_files_that_are_not_tables(text, message, hint, tmp_path):
    with pytest.raises(DataError) as caught:
        open_csv(tmp_path, text, [A])
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_a_row_of_empty_cells_between_tabs_has_as_many_as_there_are_columns(tmp_path):
    text = "a\tb\n1\t2\n\t\t\n"
    with pytest.raises(
        DataError, match="line 3 has 3 cells, but the file has 2 columns"
    ):
        open_csv(tmp_path, text, [A], delimiter="\t")


def test_a_line_that_is_not_utf_8_is_named(tmp_path):
    text = b"a\n" + b"1\n" * 9000 + b"\xff\n"
    for name in ("t.csv", "t.csv.gz"):
        content = gzip.compress(text) if name.endswith("gz") else text
        with pytest.raises(DataError, match="line 9002 is not UTF-8"):
            open_csv(tmp_path, content, [A], name=name)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match=r"csv:none.csv: there is no such file"):
        open_source(Data("csv:none.csv"), [A], tmp_path)
    with pytest.raises(DataError, match=r"csv:t.gz cannot be read: Not a gzipped"):
        open_csv(tmp_path, "a\n1\n", [A], name="t.gz")
    torn = gzip.compress(b"a\n" + b"1\n" * 500)[:-9]
    with pytest.raises(DataError, match=r"csv:t.gz cannot be read"):
        open_csv(tmp_path, torn, [A], name="t.gz")


@pytest.mark.parametrize("damage", ["cut off", "changed", "followed by others"])
def test_a_damaged_gz_file_that_is_not_utf_8_cannot_be_read(damage, tmp_path):
    tail = np.random.default_rng(0).integers(11, 256, 90_000, np.uint8)
    bad = b"a\n" + b"1\n" * 9000 + b"\xff" + tail.tobytes()  # one endless line
    content = bytearray(gzip.compress(bad))
    if damage == "cut off":
        del content[-40_000:]
    elif damage == "changed":
        content[60_000:60_100] = bytes(100)
    else:
        content += b"no gzip"
    with pytest.raises(DataError, match=r"csv:t.gz cannot be read: ."):
        open_csv(tmp_path, bytes(content), [A], name="t.gz")


@pytest.mark.parametrize(
    ("column_", "mapping", "message", "hint"),
    [
        (A, {"a": "aeg"}, "has no column 'aeg' for input 'a'", "did you mean 'age'?"),
        (A, {"a": "z*"}, "has no column 'z*' for input 'a'", "one of: age, size"),
        (
            A,
            {"a": "*"},
            "float32[batch] and needs 1 column of csv:t.csv, not 2",
            "the glob matches age, size",
        ),
        (
            X,
            {"x": "age"},
            "float32[batch, 2] and needs 2 columns of csv:t.csv, not 1",
            "glob",
        ),
        (X, {"x": ["age", "a*"]}, "input 'x' reads the column 'age' twice", "once"),
    ],
)
def test_columns_that_do_not_fit_the_input(column_, mapping, message, hint, tmp_path):
    with pytest.raises(DataError) as caught:
        open_csv(tmp_path, "age,size\n1,2\n", [column_], mapping=mapping)
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"missing": {"b": 0}}, "csv:t.csv has no column 'b'"),
        ({"vocabulary": {"b*": ["x"]}}, "csv:t.csv has no column 'b*'"),
        ({"unknown": {"b": 0}}, "csv:t.csv has no column 'b'"),
        (
            {"header": ["a"]},
            "csv:t.csv: line 1 names the columns, but the spec has a 'header' too",
        ),
        ({"header": ["a", "b"]}, "csv:t.csv: line 1 has 1 cell, but the file has 2"),
    ],
)
def test_a_form_that_does_not_fit_the_file(form, message, tmp_path):
    with pytest.raises(DataError) as caught:
        open_csv(tmp_path, "a\n1\n", [A], **form)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("form", "path", "message"),
    [
        ({"delimiter": "::"}, ["delimiter"], "must be one character, not '::'"),
        ({"delimiter": '"'}, ["delimiter"], "'delimiter' must be one character"),
        ({"comment": "#\n"}, ["comment"], "'comment' must not contain a line break"),
        ({"comment": ""}, ["comment"], "'comment' is empty"),
        ({"header": []}, ["header"], "'header' names no column"),
        ({"header": ["a", "b", "a"]}, ["header", 2], "names the column 'a' twice"),
    ],
)
def test_invalid_options_cannot_be_made(form, path, message):
    with pytest.raises(MistakeError, match=message) as caught:
        Csv(**form)
    assert [*caught.value.mistake.path] == path
    with pytest.raises(ValidationError, match=message):
        convert(form, Csv)  # as those of a plan


NAMES = [
    "age", "workclass", "fnlwgt", "education", "education_num", "marital_status",
    "occupation", "relationship", "race", "sex", "capital_gain", "capital_loss",
    "hours_per_week", "native_country", "income",
]  # fmt: skip
NUMBERS = ["age", "fnlwgt", "education_num", "hours_per_week", "capital_gain"]


@pytest.mark.parametrize(
    ("file", "rows"), [("adult.data", 32561), ("adult.test.gz", 16281)]
)
def test_the_adult_census_rows(file, rows, monkeypatch):
    find_data("adult", monkeypatch)
    path = FOLDER / file
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        split = [line.strip().split(", ") for line in lines]
    split = [line for line in split if len(line) == 15]
    sexes = [line[9] for line in split]
    form = Csv(
        header=NAMES,
        comment="|",
        vocabulary={
            "sex": ["Female", "Male"],
            "workclass": ["?", "Private"],
            "income": {"<=50K": 0, "<=50K.": 0, ">50K": 1, ">50K.": 1},
        },
        unknown={"workclass": 2},
    )
    columns = [
        Column("dense", "float32", (5,)),
        Column("words", "int32", (2,)),
        Column("label", "int32", ()),
    ]
    mapping = {"dense": NUMBERS, "words": ["sex", "workclass"], "label": "income"}
    data = Data(f"csv:{file}", columns=mapping, csv=form)
    batch = take_all(open_source(data, columns, FOLDER))
    assert len(split) == len(batch["label"]) == rows
    at = [NAMES.index(name) for name in NUMBERS]
    expected = np.array([[float(line[k]) for k in at] for line in split], np.float32)
    np.testing.assert_array_equal(batch["dense"], expected)
    assert batch["words"][:, 0].tolist() == [int(sex == "Male") for sex in sexes]
    unstated = [line[1] == "?" for line in split]
    assert (batch["words"][:, 1] == 0).tolist() == unstated
    assert batch["label"].tolist() == [int(line[14][0] == ">") for line in split]


def test_keys_of_a_column_that_is_there_twice_are_an_error(tmp_path):
    (tmp_path / "t.csv").write_text("a,k,k\n1,2,3\n")
    with pytest.raises(DataError, match="several columns named 'k'"):
        read_keys(Data("csv:t.csv"), ["k"], tmp_path)
