"""Parquet files: their columns, and every mistake with its column and row."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.tables import read_pieces

import placer
from placer.compiler.frontend import json_schema
from placer.errors import DataError, RunError, SpecError
from placer.plan.settings.data.cell_options import Cells
from placer.plan.settings.data.source import Data
from placer.readers import Column, Range, ReadOptions, open_source
from placer.runtime.batches.same_rows import check_same_rows
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

A = Column("a", "float32", ())
X = Column("x", "float32", (2,))
LABEL = Column("label", "int32", ())


def lists(values, size):
    """Return a column of fixed-size lists."""
    flat = pa.array(np.asarray(values).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, size)


def open_parquet(
    folder, columns, inputs, *, mapping=None, split=None, options=None, form=None
):
    """Write a file with these columns, and open it as a source."""
    pq.write_table(pa.table(columns), folder / "t.parquet", row_group_size=7)
    data = Data("parquet:t.parquet", split=split, columns=mapping, parquet=form)
    return open_source(data, inputs, folder, options or ReadOptions())


def take_all(rows):
    return rows.take(np.arange(rows.rows))


def error_of(folder, columns, inputs, **more):
    with pytest.raises(DataError) as caught:
        open_parquet(folder, columns, inputs, **more)
    return caught.value.message, caught.value.hint


def test_columns_of_numbers_fill_a_row(tmp_path):
    columns = {"p": [1, 2], "label": [3.0, 4.0], "q": [0.5, -7.0], "note": ["a", None]}
    rows = take_all(
        open_parquet(tmp_path, columns, [X, LABEL], mapping={"x": ["q", "p"]})
    )
    np.testing.assert_array_equal(rows["x"], np.float32([[0.5, 1], [-7, 2]]))
    np.testing.assert_array_equal(rows["label"], [3, 4])
    assert (rows["x"].dtype, rows["label"].dtype) == (np.float32, np.int32)


def test_a_glob_selects_columns_in_the_order_of_the_file(tmp_path):
    columns = {"I1": [1], "C1": [7], "I10": [3]}
    rows = open_parquet(tmp_path, columns, [X], mapping={"x": "I*"})
    np.testing.assert_array_equal(take_all(rows)["x"], [[1, 3]])


def test_a_column_of_lists_has_whole_rows(tmp_path):
    values = np.arange(120, dtype=np.float64).reshape(20, 2, 3)
    inner = lists(values, 3)
    columns = {
        "m": pa.FixedSizeListArray.from_arrays(inner, 2),
        "x": lists(values[:, 0, :2], 2),
    }
    rows = take_all(
        open_parquet(tmp_path, columns, [Column("m", "float32", (2, 3)), X])
    )
    np.testing.assert_array_equal(rows["m"], values)
    np.testing.assert_array_equal(rows["x"], values[:, 0, :2])


@pytest.mark.parametrize(
    ("type_", "dtype"),
    [
        (pa.bool_(), "bool"),
        (pa.bool_(), "float32"),
        (pa.int8(), "int64"),
        (pa.uint64(), "uint8"),
        (pa.float16(), "bfloat16"),
        (pa.float32(), "int32"),
        (pa.float64(), "float64"),
    ],
)
def test_types_of_numbers_are_converted(type_, dtype, tmp_path):
    column = pa.array(np.array([1, 0, 1])).cast(type_)
    values = take_all(open_parquet(tmp_path, {"a": column}, [Column("a", dtype, ())]))
    assert str(values["a"].dtype) == dtype
    assert values["a"].tolist() == [1, 0, 1]


def test_rows_of_all_batches_are_read_and_reported(tmp_path):
    reported: list[int] = []
    options = ReadOptions(report=reported.append)
    numbers = np.arange(40_000)
    rows = open_parquet(tmp_path, {"a": numbers}, [A], options=options)
    np.testing.assert_array_equal(take_all(rows)["a"], numbers)
    assert reported[-1] == 40_000
    assert len(reported) > 1


def test_train_and_test_split_a_fixed_permutation(tmp_path):
    train, test = (
        take_all(open_parquet(tmp_path, {"a": range(23)}, [A], split=split))["a"]
        for split in ("train", "test")
    )
    order = np.random.Generator(np.random.PCG64(0)).permutation(23)
    np.testing.assert_array_equal(train, order[:19])
    np.testing.assert_array_equal(test, order[19:])


@pytest.mark.parametrize(
    "type_",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.string()),
    ],
)
def test_a_column_of_words_has_the_numbers_of_its_vocabulary(type_, tmp_path):
    words = pa.array(["low", None, "high", "low", "new"])
    form = Cells(vocabulary={"label": ["low", "high"]}, unknown={"*": 2})
    columns = {"label": words.cast(type_)}
    rows = take_all(open_parquet(tmp_path, columns, [LABEL], form=form))
    assert rows["label"].tolist() == [0, 2, 1, 0, 2]


def test_words_of_integers_and_booleans_are_their_text(tmp_path):
    form = Cells(vocabulary={"label": {"7": 1, "-3": 0}, "a": ["false", "true"]})
    columns = {"label": [7, -3], "a": [True, False]}
    rows = take_all(open_parquet(tmp_path, columns, [LABEL, A], form=form))
    assert rows["label"].tolist() == [1, 0]
    assert rows["a"].tolist() == [1, 0]


def test_lists_of_one_length_have_whole_rows(tmp_path):
    deep = Column("deep", "int32", (2, 3))
    values = np.arange(60).reshape(10, 2, 3)
    columns = {
        "x": pa.array(values[:, :, 0].tolist(), pa.large_list(pa.float64())),
        "deep": pa.array(values.tolist()),
    }
    options = ReadOptions(with_digests=True)
    rows = open_parquet(tmp_path, columns, [X, deep], options=options)
    np.testing.assert_array_equal(take_all(rows)["deep"], values)
    np.testing.assert_array_equal(take_all(rows)["x"], values[:, :, 0])
    pieces = read_pieces(tmp_path, Data("parquet:t.parquet"), [X, deep])
    np.testing.assert_array_equal(pieces["deep"], values)
    columns["deep"] = lists(values, 6)
    mixed = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(20, 3).tolist()), 2)  # fmt: skip
    rows = open_parquet(tmp_path, {**columns, "deep": mixed}, [X, deep])
    np.testing.assert_array_equal(take_all(rows)["deep"], values)


def test_a_dictionary_may_have_numbers(tmp_path):
    columns = {"a": pa.array([2.5, None, 2.5]).dictionary_encode()}
    form = Cells(missing={"a": 7})
    rows = take_all(open_parquet(tmp_path, columns, [A], form=form))
    assert rows["a"].tolist() == [2.5, 7, 2.5]


def test_missing_numbers_have_the_value_of_their_column(tmp_path):
    form = Cells(missing={"p": 0.5, "label": -1, "*": 3})
    columns = {
        "p": pa.array([None, True]),
        "q": pa.array([2.0, float("nan")]),
        "label": pa.array([None, 2**40], pa.int64()),
    }
    wide = Column("label", "int64", ())
    read = open_parquet(
        tmp_path, columns, [X, wide], form=form, mapping={"x": ["p", "q"]}
    )
    rows = take_all(read)
    np.testing.assert_array_equal(rows["x"], [[0.5, 2], [1, 3]])
    assert rows["label"].tolist() == [-1, 2**40]


def test_a_number_for_missing_ones_that_does_not_fit_names_its_column(tmp_path):
    form = Cells(missing={"a": -1})
    columns = {"a": pa.array([None, 2], pa.uint8())}
    message, hint = error_of(tmp_path, columns, [A], form=form)
    assert message == (
        "parquet:t.parquet: column 'a', row 0: the column holds uint8, which"
        " cannot hold the missing number -1"
    )
    assert hint == "change parquet: {missing: {a: -1}}"


def test_large_whole_numbers_may_stand_beside_a_missing_fraction(tmp_path):
    form = Cells(missing={"*": 0.5})
    columns = {"a": pa.array([None, 2**60], pa.int64())}
    rows = take_all(open_parquet(tmp_path, columns, [A], form=form))
    assert rows["a"].tolist() == [0.5, 2.0**60]
    form = Cells(missing={"*": 2.0**60})
    columns = {"a": [float("nan"), 0.5]}
    rows = take_all(open_parquet(tmp_path, columns, [A], form=form))
    assert rows["a"].tolist() == [2.0**60, 0.5]


def test_a_word_outside_of_the_vocabulary_is_named_with_its_row(tmp_path):
    form = Cells(vocabulary={"label": ["low", "high"]})
    columns = {"label": ["low"] * 9 + ["hihg"]}
    message, hint = error_of(tmp_path, columns, [LABEL], form=form)
    assert message == (
        "parquet:t.parquet: column 'label', row 9: 'hihg' is not in the vocabulary"
    )
    assert (
        hint
        == "add the word, or write parquet: {unknown: {label: N}}; did you mean 'high'?"
    )


def test_an_option_for_a_column_that_the_file_lacks_is_refused(tmp_path):
    form = Cells(missing={"b": 0})
    message, _ = error_of(tmp_path, {"a": [1]}, [A], form=form)
    assert message == "parquet:t.parquet has no column 'b'"


# mistakes


@pytest.mark.parametrize(
    ("columns", "inputs", "mapping", "message", "hint"),
    [
        (
            {"a": ["x", "y"]},
            [A],
            None,
            "column 'a', row 0: 'x' is not a number",
            "parquet: {vocabulary: {a: [WORD, …]}}",
        ),
        (
            {"a": pa.array(["x"]).dictionary_encode()},
            [A],
            None,
            "column 'a', row 0: 'x' is not a number",
            "write features: {NAME: {hash: a}}",
        ),
        (
            {"a": pa.array([0, 1], pa.date32())},
            [A],
            None,
            "column 'a' holds date32[day], not numbers",
            "features: {NAME: {days: a}}",
        ),
        (
            {"a": [[1], [2]]},
            [A],
            None,
            "column 'a' holds lists, but input 'a' is float32[batch]",
            "a: float32[batch, LENGTH]",
        ),
        (
            {"x": [[1, 2]] * 8 + [[1, 2, 3]]},
            [X],
            None,
            "column 'x', row 8 has a list of 3 values, but input 'x' is float32[batch, 2]",
            "every list must have 2 values",
        ),
        (
            {"x": [[1, 2], None, [3, 4]]},
            [X],
            None,
            "column 'x', row 1 is null",
            "replace nulls",
        ),
        (
            {"x": [[1, 2], [1, None]]},
            [X],
            None,
            "column 'x', row 1 is null",
            "replace nulls",
        ),
        ({"x": [["1", "2"]]}, [X], None, "holds list<", "convert the column"),
        (
            {"a": [1] * 9 + [None]},
            [A],
            None,
            "column 'a', row 9 is null",
            "parquet: {missing: {a: 0}}",
        ),
        (
            {"x": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2))},
            [X],
            None,
            "column 'x', row 1 is null",
            "replace nulls",
        ),
        (
            {"x": pa.array([[1, 2], [3, 4], [5, None]], pa.list_(pa.int32(), 2))},
            [X],
            None,
            "column 'x', row 2 is null",
            "replace nulls",
        ),
        (
            {"label": [1] * 20 + [300]},
            [Column("label", "int8", ())],
            None,
            "column 'label', row 20: 300 does not fit int8 of input 'label'",
            "int64",
        ),
        (
            {"label": [1.0, 0.5]},
            [LABEL],
            None,
            "column 'label', row 1: 0.5 does not fit int32",
            "declare label: float32[batch]",
        ),
        (
            {"label": [1, 0, 9]},
            [
                Column(
                    "label", "int32", (), Range(0, 3, "loss", "softmax_cross_entropy")
                )
            ],
            None,
            "column 'label', row 2: 9 is outside 0-3",
            "op 'loss'",
        ),
        (
            {"x": lists(np.zeros((2, 3)), 3)},
            [X],
            None,
            "column 'x' has shape [n, 3], but input 'x' is float32[batch, 2]",
            "declare x: float32[batch, 3]",
        ),
        ({"x": [1]}, [X], None, "column 'x' has shape [n], but input 'x'", "declare x"),
        (
            {"p": [1], "q": lists(np.zeros((1, 2)), 2)},
            [X],
            {"x": ["p", "q"]},
            "reads 2 columns, but column 'q' has the shape [n, 2]",
            "one number in each row",
        ),
        (
            {"p": [1], "q": [2], "r": [3]},
            [X],
            {"x": "*"},
            "needs 2 columns of parquet:t.parquet, not 3",
            "the glob matches p, q, r",
        ),
        ({"b": [1]}, [A], None, "has no column 'a' for input 'a'", "b; write"),
        ({"age": [1]}, [A], {"a": "aeg"}, "no column 'aeg'", "did you mean 'age'?"),
        ({"a": pa.array([], pa.int32())}, [A], None, "has no rows", "at least one row"),
    ],
)
def test_columns_that_do_not_fit(columns, inputs, mapping, message, hint, tmp_path):
    problem, advice = error_of(tmp_path, columns, inputs, mapping=mapping)
    assert problem.startswith(("parquet:t.parquet", "input '"))
    assert message in problem
    assert hint in advice


def test_two_columns_of_one_name(tmp_path):
    table = pa.table([[1], [2]], names=["a", "a"])
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(DataError, match="several columns named 'a'"):
        open_source(Data("parquet:t.parquet"), [A], tmp_path)


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"PAR1" + bytes(40) + b"PAR1"])
def test_a_file_of_another_format(content, tmp_path):
    (tmp_path / "t.parquet").write_bytes(content)
    with pytest.raises(
        DataError, match=r"parquet:t.parquet cannot be read: ."
    ) as caught:
        open_source(Data("parquet:t.parquet"), [A], tmp_path)
    assert "Apache Parquet file" in caught.value.hint


def test_a_damaged_file(tmp_path):
    numbers = np.random.default_rng(0).integers(0, 9, 4000)
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": numbers}), path, write_page_checksum=True)
    content = bytearray(path.read_bytes())
    content[200:260] = bytes(60)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"parquet:t.parquet cannot be read: ."):
        open_source(Data("parquet:t.parquet"), [A], tmp_path)


def test_a_file_that_is_missing_or_a_pipe(tmp_path):
    def read():
        open_source(Data("parquet:t.parquet"), [A], tmp_path)

    with pytest.raises(DataError, match="there is no such file"):
        read()
    os.mkfifo(tmp_path / "t.parquet")
    with pytest.raises(DataError, match="it is not a regular file"):
        read()


# nodes


def test_different_files_are_detected_across_columns(tmp_path):
    numbers = np.arange(500)

    def digests(own, other):
        columns = {"label": numbers, "p": numbers * 2, "q": numbers * 3}
        options = ReadOptions(other_columns=(other,), with_digests=True, seed=3)
        mapping = {"x": ["p", "q"]}
        rows = open_parquet(tmp_path, columns, [own], mapping=mapping, options=options)
        return rows.digests()

    data = Data("parquet:t.parquet", 8, None, None, False, 0, "drop")
    first = digests(X, LABEL)
    check_same_rows(
        data, "training", {"worker:0": first, "worker:1": digests(LABEL, X)}
    )
    numbers[[100, 101]] = numbers[[101, 100]]
    second = digests(LABEL, X)
    with pytest.raises(RunError, match=r"column '(x|label)' on worker:1 differs"):
        check_same_rows(data, "training", {"worker:0": first, "worker:1": second})


SPEC = """\
name: small
nodes: {worker: {count: 2}}
inputs: {x: "float32[batch, 2]", label: "int32[batch]"}
data:
  train: {source: "parquet:t.parquet", batch: 8, split: train, columns: {x: COLUMNS}}
  eval: {source: "parquet:t.parquet", split: test}
graph:
  - {name: logits, op: fc, in: x, size: 3}
  - {name: loss, op: softmax_cross_entropy, in: [logits, label]}
train:
  minimize: loss
  optimizer: {op: sgd, learning_rate: 0.1}
"""


@pytest.mark.parametrize("columns", ["[p, q]", "both", '"[pq]"'])
def test_two_nodes_train_with_a_file(columns, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(40, 2))
    table = {
        "p": values[:, 0],
        "q": values[:, 1],
        "both": lists(values, 2),
        "label": np.arange(40) % 3,
    }
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    (tmp_path / "m.yaml").write_text(SPEC.replace("COLUMNS", columns))
    plan = placer.compile(tmp_path / "m.yaml", tmp_path / "build")
    assert plan.train.columns == plan.evaluation.columns
    run_in_threads(tmp_path / "build", Options(steps=2))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("[p, q, r]", "input 'x' is float32[batch, 2] and needs 2 columns"),
        ("[p, p]", "input 'x' reads the column 'p' twice"),
    ],
)
def test_columns_are_checked_when_a_spec_is_read(columns, message, tmp_path):
    (tmp_path / "m.yaml").write_text(SPEC.replace("COLUMNS", columns))
    with pytest.raises(SpecError) as caught:
        placer.compile(tmp_path / "m.yaml", tmp_path / "build")
    assert message in caught.value.message


def test_the_json_schema_lists_the_kind():
    properties = json_schema()["$defs"]["Data"]["properties"]
    assert "parquet:PATH" in properties["source"]["description"]
    assert "csv:, parquet: and python:" in properties["columns"]["description"]


@pytest.mark.parametrize(("last", "markers"), [(None, []), (-1, [-1])])
def test_a_row_without_a_label_is_to_be_removed(last, markers, tmp_path):
    limits = Range(0, 3, "loss", "softmax_cross_entropy", is_label=True)
    column = Column("label", "int32", (), limits)
    form = Cells(missing_values=markers)
    _, hint = error_of(tmp_path, {"label": [1, last]}, [column], form=form)
    assert hint == "input 'label' is a label: remove the rows without a label"
