"""A `python:` source may return columns: a dict of arrays, an entry for each row."""

from pathlib import Path

import numpy as np
import pytest

from placer.errors import DataError
from placer.plan.settings.data.cell_options import Cells
from placer.plan.settings.data.source import Data
from placer.readers import Column, ReadOptions, Rows, open_source

X, LABEL = Column("x", "float32", (2,)), Column("label", "int32", ())
KEYS = Column("keys", "int64", ())
COLUMNS = "{'x': np.arange(20.0).reshape(10, 2), 'label': [*range(10)], 'text': ['?']}"


def open_columns(
    folder: Path, body: str, *columns: Column, seed: int = 0, **settings: object
) -> Rows:
    (folder / "rows.py").write_text(
        f"import numpy as np\ndef rows():\n    return {body}\n"
    )
    data = Data("python:rows:rows", **settings)  # type: ignore[arg-type]
    reading = ReadOptions(with_digests=True, seed=seed)
    return open_source(data, columns or (X, LABEL), folder, reading)


def test_rows_of_columns_have_the_types_of_the_inputs(tmp_path):
    rows = open_columns(tmp_path, COLUMNS)
    assert rows.rows == 10
    taken = rows.take(np.array([9, 0]))
    np.testing.assert_array_equal(taken["x"], np.float32([[18, 19], [0, 1]]))
    np.testing.assert_array_equal(taken["label"], np.int32([9, 0]))
    assert [array.dtype for array in taken.values()] == [np.float32, np.int32]


def test_an_input_may_read_a_column_of_another_name(tmp_path):
    mapping = {"keys": "user"}
    body = "{'user': np.array([2**62 + 1, -5])}"
    rows = open_columns(tmp_path, body, KEYS, columns=mapping)
    assert rows.take(np.arange(2))["keys"].tolist() == [2**62 + 1, -5]


@pytest.mark.parametrize("body", ["{'keys': %s}", "[{'keys': k} for k in [%s]]"])
def test_keys_of_64_bits_are_read_exactly(tmp_path, body):
    keys = [[2**64 - 3, 5], [2**63 + 1, 1]]
    text = body % keys if body.startswith("{") else body % str(keys)[1:-1]
    rows = open_columns(tmp_path, text, Column("keys", "uint64", (2,)))
    assert rows.take(np.arange(2))["keys"].tolist() == keys


def test_every_column_is_compared_between_processes(tmp_path):
    digests = [
        open_columns(tmp_path, f"{{'x': np.eye(2), 'label': [{first}, 1]}}").digests()
        for first in (0, 0, 1)
    ]
    assert digests[0] == digests[1]
    for found in ("whole", "columns"):
        first, other = (getattr(digests[i], found) for i in (0, 2))
        assert first["x"] == other["x"]
        assert first["label"] != other["label"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "{'x': np.eye(2)}",
            "python:rows:rows has no column 'label' for input 'label'",
        ),
        (
            "{'x': np.eye(2), 'label': [0, 1, 2]}",
            "python:rows:rows: its columns have different numbers of rows: 'x' 2,"
            " 'label' 3",
        ),
        (
            "{'x': [1, 2], 'label': 0}",
            "python:rows:rows: column 'x' has shape [n], but input 'x' is float32[batch, 2]",
        ),
        (
            "{'x': np.eye(2), 'label': 0}",
            "python:rows:rows: column 'label' is a single value, not rows",
        ),
        (
            "{'x': np.eye(2), 'label': [0, 0.5]}",
            "python:rows:rows: column 'label', row 1: 0.5 does not fit int32 of input"
            " 'label'",
        ),
        (
            "{'x': np.eye(2), 'label': ['no', 'yes']}",
            "python:rows:rows: column 'label' holds <U3, not numbers",
        ),
    ],
)
def test_columns_that_do_not_fit_are_explained(tmp_path, body, message):
    with pytest.raises(DataError) as caught:
        open_columns(tmp_path, body)
    assert caught.value.message == message


def test_an_array_that_numpy_cannot_make_names_its_column(tmp_path):
    with pytest.raises(DataError, match="column 'x': setting an array element"):
        open_columns(tmp_path, "{'x': [[1], [1, 2]], 'label': [0, 1]}")


@pytest.mark.parametrize(
    "settings",
    [
        {"columns": {"x": "x*"}},
        {"columns": {"x": ["x", "label"]}},
        {"python": Cells(missing={"x": 0})},
        {"features": {"x": {"log1p": "label"}}},
    ],
)
def test_settings_that_are_about_rows_are_refused(tmp_path, settings):
    with pytest.raises(DataError, match="returns columns") as caught:
        open_columns(tmp_path, COLUMNS, **settings)
    assert caught.value.hint == "yield a dict for each row"
