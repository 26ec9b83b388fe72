"""A `python:` source may yield blocks: dicts of arrays with an entry for each row."""

import textwrap
from pathlib import Path

import numpy as np
import pytest

from placer.errors import DataError, RunError
from placer.plan.settings.data.cell_options import Cells
from placer.plan.settings.data.columns import Range
from placer.plan.settings.data.source import Data
from placer.readers import Column, ReadOptions, Rows, open_source, row_limit

X, LABEL = Column("x", "float32", (2,)), Column("label", "int32", ())

MODULE = """
import itertools
import numpy as np


class Tensor:
    '''A value with the protocol of NumPy only, as the tensors of other libraries.'''

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)


class Unreadable:
    '''A tensor that PyTorch does not convert.'''

    def __init__(self, values):
        self.shape = np.shape(values)

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("requires grad")


def block(first, count, kind=np.asarray):
    numbers = np.arange(first, first + count)
    return {'x': kind(np.stack([numbers, -numbers], 1)), 'label': kind(numbers % 7)}


class Loader:
    def __init__(self, count, kind=np.asarray):
        self.count, self.kind = count, kind

    def __iter__(self):
        for first in range(0, self.count, 32):
            yield block(first, min(32, self.count - first), self.kind)


class CountedLoader(Loader):
    def __len__(self):
        return -(-self.count // 32)


def rows():
"""


def open_rows(
    folder: Path,
    body: str,
    *columns: Column,
    data: Data | None = None,
    **options: object,
) -> Rows:
    (folder / "rows.py").write_text(MODULE + textwrap.indent(body, "    "))
    reading = ReadOptions(**options)  # type: ignore[arg-type]
    source = data or Data("python:rows:rows")
    return open_source(source, columns or (X, LABEL), folder, reading)


def error_of(folder: Path, body: str, *columns: Column, **options: object) -> DataError:
    with pytest.raises(DataError) as caught:
        open_rows(folder, body, *columns, **options)  # type: ignore[arg-type]
    return caught.value


def check_rows(rows: Rows, count: int) -> None:
    assert rows.rows == count
    numbers = np.random.default_rng(0).permutation(count)
    taken = rows.take(numbers)
    np.testing.assert_array_equal(taken["x"], np.stack([numbers, -numbers], 1))
    np.testing.assert_array_equal(taken["label"], numbers % 7)
    assert [array.dtype for array in taken.values()] == [np.float32, np.int32]


@pytest.mark.parametrize(
    "body",
    [
        "return Loader(77)",
        "return Loader(77, Tensor)",
        "return CountedLoader(77)",
        "return [block(0, 60), block(60, 17)]",
        "yield from (block(0, 1), block(1, 70), block(71, 0), block(71, 6))",
        "return lambda: Loader(77)",
        "import jax.numpy as jnp\nreturn Loader(77, jnp.asarray)",
    ],
)
def test_blocks_of_any_length_become_rows(tmp_path, body):
    check_rows(open_rows(tmp_path, body), 77)


def test_a_source_may_reuse_the_arrays_of_a_block(tmp_path):
    body = (
        "x, label = np.zeros((32, 2), np.float32), np.zeros(32, np.int32)\n"
        "for i in range(5):\n"
        "    x[:], label[:] = i, i\n"
        "    yield {'x': x, 'label': label}"
    )
    taken = open_rows(tmp_path, body).take(np.array([0, 33, 159]))
    assert taken["label"].tolist() == [0, 1, 4]
    assert taken["x"].tolist() == [[0, 0], [1, 1], [4, 4]]


def test_an_input_may_read_a_column_of_another_name(tmp_path):
    body = (
        "for b in Loader(40):\n    yield {'image': b['x'], 'label': b['label'], 'z': 0}"
    )
    data = Data("python:rows:rows", columns={"x": "image"})
    check_rows(open_rows(tmp_path, body, data=data), 40)


def test_processes_compare_all_rows_of_blocks_whatever_their_lengths(tmp_path):
    def digests(body: str):
        return open_rows(tmp_path, body, with_digests=True).digests()

    loader = digests("return Loader(500)")
    assert loader == digests("yield from (block(0, 3), block(3, 497))")
    # Row 199 is not one of those that are compared one by one.
    other = digests("b = block(0, 500)\nb['label'][199] += 1\nyield b")
    assert (other.whole["x"], other.columns) == (loader.whole["x"], loader.columns)
    assert other.whole["label"] != loader.whole["label"]


def test_an_input_that_only_other_processes_read_is_compared(tmp_path):
    whole = [
        open_rows(
            tmp_path, "return Loader(90)", mine, with_digests=True, other_columns=o
        )
        for mine, o in ((X, (LABEL,)), (LABEL, (X,)))
    ]
    assert whole[0].digests().whole == whole[1].digests().whole
    assert {*whole[0].digests().whole} == {"x", "label"}
    assert {*whole[0].take(np.arange(3))} == {"x"}


def test_a_check_reads_no_more_blocks_than_it_needs(tmp_path):
    body = "for first in itertools.count(0, 32):\n    assert first < 128\n    yield block(first, 32)"
    assert open_rows(tmp_path, body, first_rows=100).rows == 128


def test_progress_is_reported_by_block(tmp_path):
    reported: list[int] = []
    open_rows(tmp_path, "return Loader(77)", report=reported.append)
    assert reported == [32, 64, 77]


ENDLESS = "return (block(i, 100) for i in itertools.count())"


def test_an_iterator_without_a_length_may_yield_a_million_rows(tmp_path):
    error = error_of(tmp_path, "yield block(0, 10**6)\nyield block(0, 1)")
    assert error.message == (
        "python:rows:rows has yielded 1,000,000 rows, and may be endless"
    )
    assert "itertools.islice" in str(error.hint)
    assert "a dict of arrays" in str(error.hint)
    assert open_rows(tmp_path, "yield block(0, 10**6)").rows == 10**6


def test_an_iterable_with_a_length_may_have_more_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(row_limit, "MAX_ROWS", 500)
    assert open_rows(tmp_path, "return CountedLoader(600)").rows == 600
    assert "500 rows" in error_of(tmp_path, "return Loader(600)").message


def test_blocks_raise_at_the_memory_limit(tmp_path):
    # A row is two floats and an integer, twelve bytes.
    error = error_of(tmp_path, ENDLESS, nbytes=12_000)
    assert error.message == (
        "python:rows:rows yields more than 1,000 rows, the limit of the memory"
    )


@pytest.mark.parametrize(
    ("body", "columns", "message", "hint"),
    [
        (
            "yield block(0, 2)\nyield {'x': np.zeros((3, 2)), 'label': np.zeros(2, int)}",
            (X, LABEL),
            "block 1: its columns have different numbers of rows: 'x' 3, 'label' 2",
            "the same example",
        ),
        (
            "yield block(0, 32)",
            (Column("x", "float32", (4,)), LABEL),
            "block 0: column 'x' has shape [n, 2], but input 'x' is float32[batch, 4]",
            "declare x: float32[batch, 2]",
        ),
        (
            "yield {'x': np.zeros((32, 8, 8)), 'label': np.zeros(32, int)}",
            (Column("x", "float32", (64,)), LABEL),
            "block 0: column 'x' has shape [n, 8, 8], but input 'x' is float32[batch, 64]",
            "reshape it in the graph to [64] per row",
        ),
        (
            "yield block(0, 9)\nyield {'x': np.zeros((3, 2))}",
            (X, LABEL),
            "block 1 has no column 'label'",
            "x",
        ),
        (
            "yield block(0, 9)\nyield {'x': np.zeros(2), 'label': np.int32(3)}",
            (X, LABEL),
            "block 1: column 'label' is one value, not an array with an entry per row",
            "yield only blocks",
        ),
        (
            "yield block(0, 9)\nyield {'x': [[1, 2]], 'label': [3]}",
            (X, LABEL),
            "block 1: column 'x' is a list, not an array with an entry per row",
            "yield only blocks",
        ),
        (  # as PyTorch collates the lists of rows
            "yield {'x': [np.zeros(9), np.zeros(9)], 'label': np.zeros(9, int)}",
            (X, LABEL),
            "block 0: column 'x' is a list, not an array with an entry per row",
            "return 'x' of a row as an array or a tensor, not as a list",
        ),
        (
            "yield {'x': Unreadable([[1, 2]]), 'label': np.zeros(1, int)}",
            (X, LABEL),
            "block 0: column 'x' cannot be read: requires grad",
            "detach()",
        ),
        (
            "yield block(0, 3)\nyield {'x': np.zeros((2, 2)), 'label': np.array([1, .5])}",
            (X, LABEL),
            "column 'label', row 4: 0.5 does not fit int32 of input 'label'",
            "declare label: float32[batch]",
        ),
        (
            "yield block(0, 3)\nyield {'x': np.array([['a', 'b']]), 'label': np.zeros(1)}",
            (X, LABEL),
            "column 'x' holds <U1, not numbers",
            "convert the column to numbers",
        ),
        ("yield block(0, 0)", (X, LABEL), "python:rows:rows has no rows", "one row"),
    ],
)
def test_a_block_that_does_not_fit_is_reported(tmp_path, body, columns, message, hint):
    error = error_of(tmp_path, body, *columns)
    assert message in error.message
    assert hint in str(error.hint)


def test_a_value_outside_the_limits_is_reported_with_its_row(tmp_path):
    limits = Range(0, 5, "loss", "softmax_cross_entropy", None)
    error = error_of(
        tmp_path, "return Loader(77)", Column("label", "int32", (), limits)
    )
    assert error.message == "python:rows:rows: column 'label', row 6: 6 is outside 0-5"


@pytest.mark.parametrize(
    ("data", "columns"),
    [
        (Data("python:rows:rows", python=Cells(missing={"label": 0.0})), (X, LABEL)),
        (Data("python:rows:rows", columns={"x": ["a", "b"]}), (X, LABEL)),
    ],
)
def test_settings_for_single_values_are_refused(tmp_path, data, columns):
    with pytest.raises(DataError) as caught:
        open_rows(tmp_path, "return Loader(77)", *columns, data=data)
    assert caught.value.message == (
        "python:rows:rows yields blocks of rows, but column options, features, lists of"
        " columns and globs work only for rows"
    )


@pytest.mark.parametrize(
    "item", ["(np.zeros((32, 2)), np.zeros(32))", "[np.zeros((32, 2)), np.zeros(32)]"]
)
def test_a_tuple_raises_an_error_that_names_its_columns(tmp_path, item):
    error = error_of(tmp_path, f"yield {item}")
    kind = "tuple" if item.startswith("(") else "list"
    assert error.message == f"python:rows:rows: row 0 is a {kind}, not a dict"
    assert error.hint == (
        'name the values of each item: {"x": item[0], "label": item[1]}'
    )
    named = f'for item in [{item}]:\n    yield {{"x": item[0], "label": item[1]}}'
    assert open_rows(tmp_path, named).rows == 32


def test_an_exception_between_blocks_has_the_number_of_the_block(tmp_path):
    with pytest.raises(RunError) as caught:
        open_rows(tmp_path, "yield block(0, 9)\nraise ValueError('no more')")
    assert "failed at block 1: ValueError: no more" in caught.value.message


def test_a_row_with_an_axis_too_many_is_no_block(tmp_path):
    # One-hot labels: the other value has the shape of a row.
    error = error_of(tmp_path, "yield {'x': np.zeros(2), 'label': np.array([0, 1])}")
    assert error.hint == "declare label: int32[batch, 2]"
