"""Rows that a function yields: one at a time, copied, and not without end."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from placer.errors import DataError
from placer.readers import Column, Reading, Rows, iterable, open_source

X, LABEL = Column("x", "float32", (2,)), Column("label", "int32", ())


def opened(folder: Path, body: str, *columns: Column, **how: object) -> Rows:
    text = f"import itertools\nimport numpy as np\ndef rows():\n    {body}\n"
    (folder / "rows.py").write_text(text)
    reading = Reading(**how)  # type: ignore[arg-type]
    return open_source(
        "python:rows:rows",
        columns or (X, LABEL),
        mapping=None,
        split=None,
        folder=folder,
        reading=reading,
    )


def error(folder: Path, body: str, *columns: Column, **how: object) -> DataError:
    with pytest.raises(DataError) as caught:
        opened(folder, body, *columns, **how)
    return caught.value


def test_a_source_may_yield_one_array_again_and_again(tmp_path):
    body = (
        "x = np.zeros(2, np.float32)\n"
        "    for i in range(600):\n"
        "        x[:] = i, -i\n"
        "        yield {'x': x, 'label': i}"
    )
    taken = opened(tmp_path, body).take(np.array([0, 256, 599]))
    np.testing.assert_array_equal(
        taken["x"], np.float32([[0, 0], [256, -256], [599, -599]])
    )


def test_few_rows_that_are_large_take_no_more_memory_than_they_have(tmp_path):
    large = Column("large", "float32", (1024, 1024))  # 4 MiB
    body = "return ({'large': np.full((1024, 1024), i, np.float32)} for i in range(5))"
    tracemalloc.start()
    rows = opened(tmp_path, body, large)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows.take(np.array([4, 0]))["large"][:, 0, 0].tolist() == [4, 0]
    assert most < 2.5 * 5 * (4 << 20)


ENDLESS = "return ({'x': [i, i], 'label': i} for i in itertools.count())"


def test_rows_without_end_are_an_error_once_the_memory_for_them_is_full(tmp_path):
    # A row is two floats and an integer, twelve bytes.
    found = error(tmp_path, ENDLESS, nbytes=12_000)
    assert found.message == (
        "python:rows:rows yields more than 1,000 rows, which is what the memory allows"
    )
    assert "itertools.islice" in str(found.hint)
    assert "__getitem__" in str(found.hint)


def test_rows_without_end_are_an_error_however_small_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(iterable, "MOST_ROWS", 500)
    found = error(tmp_path, ENDLESS)
    assert found.message == "python:rows:rows yields more than 500 rows"


def test_a_source_reports_how_many_rows_it_has_given(tmp_path):
    reported: list[int] = []
    body = "return ({'x': [i, i], 'label': i} for i in range(700))"
    opened(tmp_path, body, report=reported.append)
    assert reported == [256, 512]


def test_a_source_that_yields_batches_is_told_to_yield_rows(tmp_path):
    body = "yield {'x': np.zeros((32, 2)), 'label': np.zeros(32, np.int32)}"
    found = error(tmp_path, body)
    assert found.message == "python:rows:rows: row 0 is a batch of 32 rows"
    assert "yield one row at a time" in str(found.hint)


@pytest.mark.parametrize(
    ("body", "columns"),
    [
        ("yield {'x': [1, 2], 'label': [0, 1, 0]}", (X, LABEL)),
        ("yield {'label': [0, 1, 0]}", (LABEL,)),
    ],
)
def test_a_vector_where_a_number_is_declared_is_told_its_type(tmp_path, body, columns):
    found = error(tmp_path, body, *columns)
    assert found.hint == "declare label: int32[batch, 3]"
