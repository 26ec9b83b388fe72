"""Rows of a sequence are read when they are taken."""

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from placer.errors import DataError, RunError
from placer.plan.settings.data.cell_options import Cells
from placer.plan.settings.data.source import Data
from placer.readers import Column, Rows, open_source

MODULE = """\
class Squares:
    asked = []

    def __len__(self):
        return 10

    def __getitem__(self, i):
        self.asked.append(i)
        if i == 7:
            raise ValueError("seven is missing")
        if i == 9:
            raise SystemExit(0)
        return {"x": [i, i * i]} if i != 8 else {"y": 1}


squares = Squares()


def rows():
    return squares


def kind():
    return Squares


class Endless(Squares):
    def __len__(self):
        return -1


def endless():
    return Endless()
"""


def open_numbers(folder: Path, function: str = "rows") -> Rows:
    (folder / "numbers.py").write_text(MODULE, encoding="utf-8")
    columns = [Column("x", "float32", (2,))]
    source = f"python:numbers:{function}"
    return open_source(Data(source), columns, folder)


def test_an_option_of_columns_without_effect_is_found_by_the_first_row(tmp_path):
    (tmp_path / "numbers.py").write_text(MODULE, encoding="utf-8")
    data = Data("python:numbers:rows", python=Cells(missing={"z*": 0}))
    with pytest.raises(DataError, match="python:numbers:rows has no column 'z"):
        open_source(data, [Column("x", "float32", (2,))], tmp_path)


def test_rows_are_read_by_number_in_the_order_of_the_batch(tmp_path):
    rows = open_numbers(tmp_path)
    assert rows.rows == 10
    assert rows.dataset.asked == []
    batch = rows.take(np.array([4, 2]))
    np.testing.assert_array_equal(batch["x"], np.float32([[4, 16], [2, 4]]))
    assert batch["x"].dtype == np.float32
    assert rows.dataset.asked == [4, 2]


def test_rows_are_written_into_out(tmp_path):
    out = {"x": np.zeros((1, 2), np.float32)}
    assert open_numbers(tmp_path).take(np.array([3]), out)["x"] is out["x"]
    np.testing.assert_array_equal(out["x"], np.float32([[3, 9]]))


def test_an_empty_part_of_a_batch_reads_nothing(tmp_path):
    rows = open_numbers(tmp_path)
    assert rows.take(np.array([], np.int64))["x"].shape == (0, 2)


def test_a_class_of_a_sequence_is_instantiated(tmp_path):
    assert open_numbers(tmp_path, "kind").rows == 10


def test_an_exception_of_a_row_names_the_reader_and_the_row(tmp_path):
    with pytest.raises(RunError) as caught:
        open_numbers(tmp_path).take(np.array([1, 7]))
    assert caught.value.message == (
        "reader python:numbers:rows failed at row 7: ValueError: seven is missing"
    )
    assert caught.value.hint == "see numbers.py, line 10"


def test_a_row_that_exits_raises(tmp_path):
    with pytest.raises(RunError, match="failed at row 9: SystemExit: 0"):
        open_numbers(tmp_path).take(np.array([9]))


def test_an_invalid_length_names_the_reader(tmp_path):
    with pytest.raises(RunError) as caught:
        open_numbers(tmp_path, "endless")
    assert caught.value.message == (
        "reader python:numbers:endless failed to return its length: ValueError:"
        " __len__() should return >= 0"
    )


def test_a_row_without_its_column_is_named(tmp_path):
    with pytest.raises(DataError, match="'x'"):
        open_numbers(tmp_path).take(np.array([8]))


def test_a_row_out_of_range_is_an_index_error(tmp_path):
    with pytest.raises(IndexError, match="row 10 of 10 rows"):
        open_numbers(tmp_path).take(np.array([10]))


def open_importing_rows(folder, before=""):
    """Open rows that import the module `late` beside them when they are read."""
    (folder / "late.py").write_text("LABEL = 7\n")
    (folder / "numbers.py").write_text(
        f"{before}\n"
        "class Rows:\n"
        "    def __len__(self):\n        return 3\n"
        "    def __getitem__(self, i):\n"
        "        import late\n        return {'x': [late.LABEL, i]}\n"
        "def rows():\n    return Rows()\n"
    )
    columns = [Column("x", "float32", (2,))]
    source = "python:numbers:rows"
    return open_source(Data(source), columns, folder)


def test_a_row_may_import_a_module_beside_it(tmp_path):
    rows = open_importing_rows(tmp_path)
    assert rows.take(np.array([2]))["x"].tolist() == [[7, 2]]
    assert "late" not in sys.modules


def test_a_module_beside_a_source_replaces_no_other_module(tmp_path, monkeypatch):
    rows = open_importing_rows(tmp_path, before="import late")
    other = ModuleType("late")
    monkeypatch.setitem(sys.modules, "late", other)
    assert rows.take(np.array([2]))["x"].tolist() == [[7, 2]]
    assert sys.modules["late"] is other
