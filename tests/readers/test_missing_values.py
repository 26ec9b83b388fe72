"""Cells that mean a missing value, in every kind of source and in prepare.py."""

import math
from decimal import Decimal
from itertools import product

import jax.numpy as jnp
import ml_dtypes  # noqa: F401 registers bfloat16
import numpy as np
import pyarrow as pa
import pytest
from support.feature_formulas import signed, text_key
from support.tables import (
    data_of,
    prepare_of,
    read_all,
    read_pieces,
    write_rows,
    write_table,
)

import placer
from placer.errors import DataError, SpecError
from placer.plan.settings.data.features import Feature
from placer.plan.settings.data.missing import MISSING, MISSING_WORDS
from placer.plan.settings.data.sources import SourceError
from placer.readers import Column

X = Column("x", "float32", ())
N = Column("n", "int32", ())
KEY = Column("key", "int64", ())
USUAL = (
    "", "?", "-", "n/a", "N/A", "NA", "na", "NaN", "nan", "-nan", "NaT", "null", "NULL",
    "Null", "None", "none", "NONE", "<NA>", "<na>", "#N/A", "#NA", r"\N", " NA ",
)  # fmt: skip
KINDS = ("csv", "parquet", "python")


def test_all_spellings_are_listed():
    assert tuple(word.lower() for word in MISSING_WORDS) == MISSING_WORDS
    assert {word.lower() for word in MISSING} == {*MISSING_WORDS}
    assert {word.strip() for word in USUAL} < MISSING


@pytest.mark.parametrize("kind", KINDS)
def test_the_usual_texts_are_missing_numbers(kind, tmp_path):
    columns = {"x": [*USUAL, "1.5"], "n": [*USUAL, "7"], "b": [*USUAL, "3"]}
    features = {"bucket": Feature(buckets="b", boundaries=[2])}
    inputs = [X, N, Column("bucket", "int32", ())]
    source = write_table(tmp_path, kind, columns)
    data = data_of(source, inputs, features=features, missing={"x": -1, "n": 4})
    rows = read_all(tmp_path, data, inputs)
    count = len(USUAL)
    assert rows["x"].tolist() == [-1] * count + [1.5]
    assert rows["n"].tolist() == [4] * count + [7]
    assert rows["bucket"].tolist() == [2] * count + [1]
    prepared = prepare_of(data, inputs)(columns)
    for name, values in rows.items():
        np.testing.assert_array_equal(prepared[name], values)


@pytest.mark.parametrize("kind", KINDS)
def test_the_usual_texts_are_words_of_text(kind, tmp_path):
    columns = {"n": ["None", "NA", "-", ""], "word": ["None", "na", "-", ""]}
    features = {"key": Feature(hash="word")}
    source = write_table(tmp_path, kind, columns)
    words = {"n": ["NA", "None"]}
    data = data_of(
        source, [N, KEY], features=features, vocabulary=words, unknown={"n": 9}
    )
    rows = read_all(tmp_path, data, [N, KEY])
    assert rows["n"].tolist() == [1, 0, 9, 9]
    keys = ["None", "na", "-", None if kind == "csv" else ""]
    assert rows["key"].tolist() == [signed(text_key(key, "word")) for key in keys]
    prepared = prepare_of(data, [N, KEY])(columns)
    np.testing.assert_array_equal(prepared["n"], rows["n"])
    np.testing.assert_array_equal(prepared["key"], rows["key"])


TEXTS = ["-999", "-999.0", "none given", "2", "NA", "-9990"]
LISTED = ["none given", -999]


@pytest.mark.parametrize("listed", [LISTED, {"[xn]": LISTED, "*": LISTED}])
@pytest.mark.parametrize("kind", KINDS)
def test_a_spec_lists_more_missing_values(kind, listed, tmp_path):
    columns = dict.fromkeys(["x", "n", "word", "id", "b"], TEXTS)
    features = {
        "key": Feature(hash="word"),
        "id.key": Feature(hash="id", type="integer"),
        "bucket": Feature(buckets="b", boundaries=[0]),
    }
    inputs = [X, N, KEY, Column("id.key", "int64", ()), Column("bucket", "int32", ())]
    source = write_table(tmp_path, kind, columns)
    data = data_of(
        source,
        inputs,
        features=features,
        missing={"[xn]": 5},
        missing_values=listed,
    )
    rows = read_all(tmp_path, data, inputs)
    assert rows["x"].tolist() == rows["n"].tolist() == [5, 5, 5, 2, 5, -9990]
    assert rows["bucket"].tolist() == [2, 2, 2, 1, 2, 0]
    words = [None, "-999.0", None, "2", "NA", "-9990"]
    assert rows["key"].tolist() == [signed(text_key(word, "word")) for word in words]
    assert len({*rows["id.key"].tolist()}) == 3
    if kind != "python":
        by_pieces = read_pieces(tmp_path, data, inputs)
    prepared = prepare_of(data, inputs)(columns)
    for name, values in rows.items():
        np.testing.assert_array_equal(prepared[name], values)
        if kind != "python":
            np.testing.assert_array_equal(by_pieces[name], values)


@pytest.mark.parametrize("kind", ["parquet", "python"])
def test_numbers_may_mean_missing_ones(kind, tmp_path):
    columns = {"x": [-999.0, 0.5, math.nan], "n": [1, -999, 3]}
    columns["b"] = [0.0, 1.0, -999.0]
    features = {"bucket": Feature(buckets="b", boundaries=[0])}
    inputs = [X, N, Column("bucket", "int32", ())]
    source = write_table(tmp_path, kind, columns)
    more = {"missing": {"x": 0, "n": 5}, "missing_values": ["-999"]}
    data = data_of(source, inputs, features=features, **more)
    rows = read_all(tmp_path, data, inputs)
    assert rows["x"].tolist() == [0, 0.5, 0]
    assert rows["n"].tolist() == [1, 5, 3]
    assert rows["bucket"].tolist() == [1, 1, 2]
    prepared = prepare_of(data, inputs)(columns)
    for name, values in rows.items():
        np.testing.assert_array_equal(prepared[name], values)
    data = data_of(source, [N], missing_values=[-999])
    with pytest.raises(DataError, match="'n', row 1: -999 means a missing value") as e:
        read_all(tmp_path, data, [N])
    assert e.value.hint == f"give the value to use: {kind}: {{missing: {{n: 0}}}}"


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *product(["parquet", "python"], ["float16", "float32", "float64"]),
        ("python", "bfloat16"),
    ],
)
def test_a_marker_means_the_nearest_number_of_the_dtype_of_a_column(
    kind, dtype, tmp_path
):
    numbers = np.array([-999.1, 0.5, 0, np.inf]).astype(dtype)
    features = {"bucket": Feature(buckets="b", boundaries=[0])}
    inputs = [X, Column("bucket", "int32", ())]
    columns = {"x": [*numbers], "b": [*numbers[[0, 1, 2, 2]]]}
    if kind == "parquet":
        source = write_table(
            tmp_path, kind, {n: pa.array(c) for n, c in columns.items()}
        )
    else:
        source = write_rows(tmp_path, columns)
    # As float16, these are infinity and zero, of which they are no markers.
    more = {"missing": {"x": 7}, "missing_values": [-999.1, 1e15, 1e-15]}
    data = data_of(source, inputs, features=features, **more)
    rows = read_all(tmp_path, data, inputs)
    assert rows["x"].tolist() == [7, 0.5, 0, np.inf]
    assert rows["bucket"].tolist() == [2, 1, 1, 1]
    if dtype == "bfloat16":
        return  # prepare.py does not take it
    prepared = prepare_of(data, inputs)({**columns, "x": [*numbers[:3], 1]})
    assert prepared["x"].tolist() == [7, 0.5, 0, 1]
    assert prepared["bucket"].tolist() == [2, 1, 1, 1]


class NA:
    """A stand-in for the NA of pandas."""

    def __ne__(self, other):
        return self

    def __bool__(self):
        raise TypeError("boolean value of NA is ambiguous")


FIVE = [np.array(5.0), jnp.float32(5), np.int8(5), 5, Decimal("5.0")]


@pytest.mark.parametrize("five", FIVE, ids=lambda value: type(value).__name__)
def test_a_marker_may_be_a_value_of_any_class(five, tmp_path):
    source = write_rows(
        tmp_path, {"x": [five, 4.0], "n": [True, NA()], "b": [five, NA()]}
    )
    features = {"bucket": Feature(buckets="b", boundaries=[0])}
    inputs = [X, N, Column("bucket", "int32", ())]
    more = {"missing": {"x": 7, "n": 8}, "missing_values": [5, 1]}
    data = data_of(source, inputs, features=features, **more)
    rows = read_all(tmp_path, data, inputs)
    assert rows["x"].tolist() == [7, 4]
    assert rows["n"].tolist() == [1, 8]  # True is not the number 1
    assert rows["bucket"].tolist() == [2, 2]
    prepared = prepare_of(data, inputs)(
        {"x": [five, 4], "n": [True, NA()], "b": [five, NA()]}
    )
    for name, values in rows.items():
        np.testing.assert_array_equal(prepared[name], values)


def test_a_value_that_is_nothing_is_an_error_without_a_number(tmp_path):
    data = data_of(write_rows(tmp_path, {"x": [1.0, NA()]}), [X])
    with pytest.raises(DataError, match="column 'x', row 1: the value is missing"):
        read_all(tmp_path, data, [X])


@pytest.mark.parametrize("shape", [(2,), (1,), (1, 2)])
@pytest.mark.parametrize("kind", ["parquet", "python"])
def test_no_option_applies_to_lists(kind, shape, tmp_path):
    inputs = [Column("x", "float32", shape), N]
    lists = np.full((2, *shape), -999.0).tolist()
    columns = {"x": lists, "n": [-999, 3]}
    source = write_table(tmp_path, kind, columns)
    options = {"missing": {"*": 5}, "missing_values": [-999]}
    rows = read_all(tmp_path, data_of(source, inputs, **options), inputs)
    assert rows["x"].tolist() == lists
    assert rows["n"].tolist() == [5, 3]
    prepared = prepare_of(data_of(source, inputs, **options), inputs)(columns)
    for name, values in rows.items():
        np.testing.assert_array_equal(prepared[name], values)
    for key, value in {"missing": 0, "missing_values": [-999]}.items():
        data = data_of(source, inputs, **{key: {"x": value}})
        message = f"'{key}' of column 'x' has no effect: its cells are lists"
        with pytest.raises(SourceError, match=message) as caught:
            read_all(tmp_path, data, inputs)
        assert caught.value.mistake.path == (kind, key, "x")


def test_columns_of_one_number_may_be_scalars_or_lists_in_prepare():
    inputs = [Column("x", "float32", (1,))]
    prepare = prepare_of(data_of("parquet:t.parquet", inputs, missing={"x": 5}), inputs)
    for cells in ([None, 2], [[5], [2]], np.array([[5.0], [2.0]])):
        assert prepare({"x": cells})["x"].tolist() == [[5], [2]]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array(["a", "b"]), "ndarray is not one word"),
        (["a"], "list is not one word"),
        (("a",), "tuple is not one word"),
        ({"a": 1}, "dict is not one word"),
        (NA(), None),
        (np.array("b"), None),
    ],
)
def test_a_value_of_a_column_with_a_vocabulary_is_one_word(value, message, tmp_path):
    data = data_of(
        write_rows(tmp_path, {"n": ["a", value]}),
        [N],
        vocabulary={"n": {"a": 0, "b": 1, "": 1}},
    )
    prepare = prepare_of(data, [N])
    if message is None:
        assert read_all(tmp_path, data, [N])["n"].tolist() == [0, 1]
        assert prepare({"n": ["a", value]})["n"].tolist() == [0, 1]
        return
    with pytest.raises(DataError, match=f"column 'n', row 1: {message}"):
        read_all(tmp_path, data, [N])
    with pytest.raises(ValueError, match=f"column 'n', row 1: {message}"):
        prepare({"n": ["a", value]})


@pytest.mark.parametrize(
    ("options", "key", "entry", "message"),
    [
        ({"missing": {"z*": 0}}, "missing", "z*", "has no column 'z"),
        ({"missing_values": {"x": ["-"], "nn": ["-"]}}, "missing_values", "nn", "'nn'"),
        (
            {"vocabulary": {"n*": ["1"]}, "missing": {"n*": 0}},
            "missing",
            "n*",
            "'missing' of 'n.' has no effect: it applies to numbers",
        ),
        ({"unknown": {"*": 0}}, "unknown", "*", "'unknown' of '.' has no effect"),
        (
            {"vocabulary": {"*": ["1"], "n": ["1"]}},
            "vocabulary",
            "n",
            "'.' comes first",
        ),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_an_option_without_effect_on_the_columns_is_an_error(
    kind, options, key, entry, message, tmp_path
):
    source = write_table(tmp_path, kind, {"x": ["1"], "n": ["1"]})
    data = data_of(source, [X, N], **options)
    with pytest.raises(SourceError, match=message) as caught:
        read_all(tmp_path, data, [X, N])
    assert caught.value.mistake.path == (kind, key, entry)
    assert list(read_all(tmp_path, data_of(source, [X, N]), [X, N])) == ["x", "n"]


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_listed_value_without_a_number_is_an_error(kind, dtype, tmp_path):
    inputs = [Column("n", dtype, ())]
    source = write_table(tmp_path, kind, {"n": ["1", "1", "0", "-1"]})
    data = data_of(source, inputs, missing_values=[-1])
    where = "line 5, column 'n'" if kind == "csv" else "column 'n', row 3"
    with pytest.raises(DataError, match=f"{where}: '-1' means a missing value") as e:
        read_all(tmp_path, data, inputs)
    assert e.value.hint == f"give the value to use: {kind}: {{missing: {{n: 0}}}}"


@pytest.mark.parametrize("cell", ["true", "yes", "2024-05-01"])
def test_a_cell_that_is_no_number_stays_an_error_beside_missing_ones(cell, tmp_path):
    source = write_table(tmp_path, "csv", {"n": ["1", "-1", cell]})
    data = data_of(source, [N], missing={"n": 0}, missing_values=[-1])
    message = f"line 4, column 'n': '{cell}' is not a number"
    with pytest.raises(DataError, match=message):
        read_all(tmp_path, data, [N])
    flags = Column("n", "bool", ())
    source = write_table(tmp_path, "csv", {"n": ["1", "-1", "true"]})
    assert read_all(tmp_path, data, [flags])["n"].tolist() == [True, False, True]


def test_a_marker_is_the_empty_word_unless_it_is_a_word(tmp_path):
    column = pa.array(["a", "?", "b", "x", None, "b"]).dictionary_encode()
    source = write_table(tmp_path, "parquet", {"n": column})
    words = {"n": {"a": 1, "b": 2, "": 0}}
    data = data_of(source, [N], vocabulary=words, missing_values=["b", "x", "?"])
    assert read_all(tmp_path, data, [N])["n"].tolist() == [1, 0, 2, 0, 0, 2]
    prepared = prepare_of(data, [N])({"n": column.to_pylist()})
    assert prepared["n"].tolist() == [1, 0, 2, 0, 0, 2]


SPEC = """
nodes: {worker: {count: 1}}
inputs: {x: "float32[batch]", y: "float32[batch]"}
data:
  train:
    source: "csv:t.csv"
    batch: 2
    csv: {header: [x, y], missing: {"*": 0}, missing_values: VALUES}
graph:
  - {name: column, op: reshape, in: x, shape: [batch, 1]}
  - {name: out, op: fc, in: column, size: 1}
  - {name: flat, op: reshape, in: out, shape: [batch]}
  - {name: loss, op: mean_squared_error, in: [flat, y]}
train: {minimize: loss, optimizer: {op: sgd, learning_rate: 0.1}}
"""


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("[unknown, -999]", None),
        ('{y: [], "*": [unknown, -999]}', None),
        ("{x: [unknown, -999], y: []}", "'y' of 'missing_values' has no effect"),
        (
            "unknown",
            "'missing_values' must be a list or a mapping, not the text 'unknown'",
        ),
        ("[[1]]", "an item of 'missing_values' must be text"),
        ("[true]", "an item of 'missing_values' must be text"),
        ("{x: -999}", "'x' in 'missing_values' must be a list, not -999"),
        ("{z: [1]}", "csv:t.csv has no column 'z'"),
    ],
)
def test_a_spec_may_list_missing_values(values, message, tmp_path):
    (tmp_path / "m.yaml").write_text(SPEC.replace("VALUES", values))
    if message is None:
        plan = placer.compile(tmp_path / "m.yaml", tmp_path / "build")
        assert plan.train.csv.markers("x").numbers == {-999}
        return
    with pytest.raises(SpecError) as caught:
        placer.compile(tmp_path / "m.yaml", tmp_path / "build")
    assert message in str(caught.value)
