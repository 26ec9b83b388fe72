"""Rows that a function yields: copied one at a time, up to a limit."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from placer.errors import DataError
from placer.plan.settings.data.source import Data
from placer.readers import Column, ReadOptions, Rows, open_source, row_limit

X, LABEL = Column("x", "float32", (2,)), Column("label", "int32", ())


COUNTED = """
class Counted:
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __iter__(self):
        return ({'x': [i, i], 'label': i} for i in range(30))
"""


def open_rows(folder: Path, body: str, *columns: Column, **options: object) -> Rows:
    text = f"import itertools\nimport numpy as np\ndef rows():\n    {body}\n{COUNTED}"
    (folder / "rows.py").write_text(text)
    reading = ReadOptions(**options)  # type: ignore[arg-type]
    return open_source(Data("python:rows:rows"), columns or (X, LABEL), folder, reading)


def error_of(folder: Path, body: str, *columns: Column, **options: object) -> DataError:
    with pytest.raises(DataError) as caught:
        open_rows(folder, body, *columns, **options)
    return caught.value


def test_a_source_may_reuse_an_array(tmp_path):
    body = (
        "x = np.zeros(2, np.float32)\n"
        "    for i in range(600):\n"
        "        x[:] = i, -i\n"
        "        yield {'x': x, 'label': i}"
    )
    rows = open_rows(tmp_path, body).take(np.array([0, 256, 599]))
    np.testing.assert_array_equal(
        rows["x"], np.float32([[0, 0], [256, -256], [599, -599]])
    )


def test_a_few_large_rows_use_little_extra_memory(tmp_path):
    large = Column("large", "float32", (1024, 1024))  # 4 MiB
    body = "return ({'large': np.full((1024, 1024), i, np.float32)} for i in range(5))"
    tracemalloc.start()
    rows = open_rows(tmp_path, body, large)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows.take(np.array([4, 0]))["large"][:, 0, 0].tolist() == [4, 0]
    assert peak < 2.5 * 5 * (4 << 20)


ENDLESS = "return ({'x': [i, i], 'label': i} for i in itertools.count())"


def test_rows_raise_at_the_memory_limit(tmp_path):
    # A row is two floats and an integer, twelve bytes.
    error = error_of(tmp_path, ENDLESS, nbytes=12_000)
    assert error.message == (
        "python:rows:rows yields more than 1,000 rows, the limit of the memory"
    )
    assert "return a sequence" in str(error.hint)


@pytest.mark.parametrize(
    "body",
    [ENDLESS, "for i in itertools.count():\n        yield {'x': [i, i], 'label': i}"],
)
def test_endless_rows_raise_at_the_row_limit(tmp_path, monkeypatch, body):
    monkeypatch.setattr(row_limit, "MAX_ROWS", 500)
    error = error_of(tmp_path, body)
    assert error.message == (
        "python:rows:rows has yielded 500 rows, and may be endless"
    )
    assert "rows.py, line 3: end" in str(error.hint)
    assert "__len__" in str(error.hint)


def test_an_iterable_with_a_length_is_not_endless(tmp_path, monkeypatch):
    monkeypatch.setattr(row_limit, "MAX_ROWS", 20)
    for body in ("return Counted(30)", "return list(Counted(30))"):
        assert open_rows(tmp_path, body).rows == 30
    error = error_of(tmp_path, "return Counted(25)")
    assert error.message == "python:rows:rows yields more than 25 rows, its length"


def test_progress_is_reported(tmp_path):
    reported: list[int] = []
    body = "return ({'x': [i, i], 'label': i} for i in range(700))"
    open_rows(tmp_path, body, report=reported.append)
    assert reported == [256, 512]


@pytest.mark.parametrize(
    ("body", "row"),
    [
        ("yield {'x': [[1, 2]] * 32, 'label': [0] * 32}", 0),
        (
            "yield {'x': [1, 2], 'label': 0}\n"
            "    yield {'x': np.zeros((32, 2)), 'label': np.zeros(32, np.int32)}",
            1,
        ),
    ],
)
def test_a_batch_of_lists_or_after_a_row_raises(tmp_path, body, row):
    error = error_of(tmp_path, body)
    assert error.message == f"python:rows:rows: row {row} is a batch of 32 rows"
    assert "only blocks of rows: dicts of arrays" in str(error.hint)


@pytest.mark.parametrize(
    ("body", "columns"),
    [
        ("yield {'x': [1, 2], 'label': [0, 1, 0]}", (X, LABEL)),
        ("yield {'label': [0, 1, 0]}", (LABEL,)),
    ],
)
def test_a_vector_for_a_scalar_input_is_reported_with_its_type(tmp_path, body, columns):
    error = error_of(tmp_path, body, *columns)
    assert error.hint == "declare label: int32[batch, 3]"
