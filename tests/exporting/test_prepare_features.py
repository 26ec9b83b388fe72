"""prepare.py computes the features that the readers compute, with the same bits."""

import math
import sys
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from safetensors.numpy import save_file
from support.feature_formulas import integer_key, text_key
from support.spec_models import initial_parameters

import placer
from placer.compiler.serving.prepare_features import whole_number, xxh64
from placer.compiler.serving.prepare_file import write_prepare
from placer.exporting.stablehlo import own_modules
from placer.plan.settings.data.cell_options import Cells, Csv
from placer.plan.settings.data.features import Feature
from placer.plan.settings.data.source import RowSource
from placer.readers import Column, open_source

FEATURES = {
    "word.key": Feature(hash="word", field="item"),
    "word.id": Feature(hash="word", bins=1000, field=""),
    "id.key": Feature(hash="id", type="integer", seed=5),
    "gain.bucket": Feature(buckets="gain", log=10, to=1000),
    "gain.log": Feature(log1p="gain"),
    "year.scaled": Feature(standardize="year", mean=2000, std=7.3),
    "log.scaled": Feature(standardize="gain.log", mean=1, std=3),
    "log.bucket": Feature(buckets="log.scaled", boundaries=[-0.3, 0, 1]),
    "pair": Feature(cross=["word", "id.key", "gain.bucket"], seed=2),
    "small": Feature(cross=["pair", "word", "word.id"], bins=100, seed=2),
}
INPUTS = {
    Column("keys", "int64", (3,)): ["word.key", "id.key", "pair"],
    Column("unsigned", "uint64", ()): ["pair"],
    Column("ids", "int32", (3,)): ["word.id", "small", "log.bucket"],
    Column("floats", "float32", (4,)): [
        "gain.log",
        "year.scaled",
        "log.scaled",
        "gain.bucket",
    ],
    Column("mixed", "float64", (2,)): ["gain.log", "year"],
}
COLUMNS = {
    "word": ["red", "b\tl", None, "", " rød ", "日本", "x" * 50, "red"],
    "id": [5, -3, 2**63 - 1, None, 0, 7, 5, -(2**63)],
    "gain": [0.0, 12.5, None, 1e6, 3.0, 99.0, 0.1, 7.0],
    "year": [1999, 2001, 2010, 1980, 2020, 1970, 1999, 2001],
}


class _NA:
    """A cell like pandas.NA, whose comparison with itself has no truth value."""

    def __ne__(self, other):
        return self

    def __bool__(self):
        raise TypeError("boolean value of NA is ambiguous")

    def __repr__(self):
        return "NA"


NA = _NA()


def prepare_of(data):
    feeds = {column.name: names for column, names in INPUTS.items()}
    arguments = {column.name: column.name for column in INPUTS}
    text = write_prepare("t", data, [*INPUTS], arguments, feeds, FEATURES)
    assert all(len(line) <= 100 for line in text.splitlines())
    assert "placer" not in text.replace("placer/readers", "")
    module = {"__name__": "prepare"}
    exec(text, module)
    return module["prepare"]


def data_of(kind, path):
    options = {kind: (Csv if kind == "csv" else Cells)(missing={"gain": 0.5})}
    columns = {column.name: names for column, names in INPUTS.items()}
    return RowSource(
        source=f"{kind}:{path}",
        batch=4,
        remainder="keep",
        columns=columns,
        features=FEATURES,
        **options,
    )


@pytest.mark.parametrize("kind", ["csv", "parquet", "python"])
def test_rows_of_a_service_have_the_bits_of_rows_of_a_source(kind, tmp_path):
    if kind == "csv":
        path = "t.csv"
        lines = [",".join(COLUMNS)]
        for row in zip(*COLUMNS.values(), strict=True):
            lines.append(",".join("" if cell is None else str(cell) for cell in row))
        (tmp_path / path).write_text("\n".join(lines) + "\n", encoding="utf-8")
    elif kind == "parquet":
        path = "t.parquet"
        pq.write_table(pa.table(COLUMNS), tmp_path / path)
    else:
        path = "t:rows"
        rows = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]  # fmt: skip
        (tmp_path / "t.py").write_text(f"def rows():\n    return {rows!r}\n")
    data = data_of(kind, path)
    read = open_source(data, [*INPUTS], tmp_path).take(np.arange(8))
    prepare = prepare_of(data)
    arrays = {
        name: np.array(cells, object) if name == "word" else cells
        for name, cells in COLUMNS.items()
    }
    gains = [math.nan if gain is None else np.float64(gain) for gain in COLUMNS["gain"]]
    texts = {"id": [None if n is None else str(n) for n in COLUMNS["id"]]}
    of_pandas = {n: [NA if c is None else c for c in COLUMNS[n]] for n in COLUMNS}
    for columns in (COLUMNS, arrays | {"gain": gains}, COLUMNS | texts, of_pandas):
        prepared = prepare(columns)
        assert prepared.keys() == read.keys()
        for name, array in read.items():
            assert prepared[name].dtype == array.dtype
            np.testing.assert_array_equal(prepared[name], array)


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_the_hash_is_that_of_the_package(seed):
    data = bytes(range(256))
    for size in range(101):
        assert xxh64(data[:size], seed) == xxhash.xxh64_intdigest(data[:size], seed)


@pytest.mark.parametrize(
    ("column", "cells", "message"),
    [
        ("word", [1] * 8, "column 'word', row 0: 1 is not a text"),
        ("word", ["\ud800"] * 8, "column 'word', row 0: .*surrogates"),
        ("word", "eight", "column 'word' is one text, not a list of cells"),
        ("word", ["a"] * 7, "different numbers of rows"),
        ("id", [0.5] * 8, "column 'id', row 0: 0.5 is not a whole number"),
        ("id", [1, "x", 3, 4, 5, 6, 7, 8], "column 'id', row 1: .*'x'"),
        ("id", [2**64] * 8, "column 'id', row 0: 18446744073709551616 does not fit"),
        ("id", [[1]] * 8, r"column 'id', row 0: \[1\] is not a whole number"),
        ("gain", [-1] * 8, "column 'gain', row 0: log1p of -1"),
        ("gain", [math.inf] * 8, "column 'gain', row 0: inf is not a finite number"),
        ("gain", [10**400] * 8, "column 'gain', row 0: .*too large"),
        ("year", [[1]] * 8, "column 'year', row 0: .*list"),
        ("year", [None] * 8, "column 'year', row 0: the value is missing"),
        ("year", [NA] * 8, "column 'year', row 0: the value is missing"),
    ],
)
def test_a_wrong_value_names_its_column(column, cells, message):
    prepare = prepare_of(data_of("parquet", "t.parquet"))
    with pytest.raises(ValueError, match=message):
        prepare(COLUMNS | {column: cells})


@pytest.mark.parametrize("kind", ["csv", "parquet", "python"])
@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_whole_numbers_keep_all_their_bits(kind, dtype):
    """Also beside a missing one, and one that is written as a float."""
    largest = 2**63 - 1 if dtype == "int64" else 2**64 - 1
    options = {kind: (Csv if kind == "csv" else Cells)(missing={"id": 2**40})}
    data = RowSource(
        source=f"{kind}:t:f",
        batch=4,
        remainder="keep",
        columns={"id": "id"},
        **options,
    )
    column = Column("id", dtype, ())
    text = write_prepare("t", data, [column], {"id": "id"}, {"id": ["id"]}, {})
    module = {"__name__": "prepare"}
    exec(text, module)
    for cells in (
        [largest, None, 2**53 + 1, 3.0, np.int64(2**53 + 1)],
        [str(largest), "", f"{2**53 + 1}.0", "3e0", f"{2**53 + 1}"],
    ):
        got = module["prepare"]({"id": cells})["id"]
        assert got.tolist() == [largest, 2**40, 2**53 + 1, 3, 2**53 + 1]
        assert got.dtype == dtype


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_options_of_columns_are_not_for_features(kind):
    """A glob of an option may match the name of a feature."""
    column = Column("both", "int32", (2,))
    feeds = {"both": ["size.bucket", "size"]}
    features = {"size.bucket": Feature(buckets="price", boundaries=[2])}
    form = (Csv if kind == "csv" else Cells)(
        vocabulary={"s*": {"0": 1, "1": 0}}, unknown={"*": 5}
    )
    data = RowSource(
        source=f"{kind}:t.{kind}",
        batch=1,
        remainder="keep",
        columns=feeds,
        features=features,
        **{kind: form},
    )
    text = write_prepare("t", data, [column], {"both": "both"}, feeds, features)
    module = {"__name__": "prepare"}
    exec(text, module)
    prepared = module["prepare"]({"price": [1, 2, 3], "size": ["0", "1", "2"]})
    assert prepared["both"].tolist() == [[0, 1], [1, 0], [1, 5]]


@pytest.mark.parametrize("cell", [f"{2**53 + 1}.0", f"{2**64 - 1}.000", "-0.0", "1e3"])
def test_the_text_of_a_whole_number_has_the_key_of_the_number(cell, tmp_path):
    column = Column("key", "uint64", ())
    features = {"key": Feature(hash="n", type="integer")}
    data = RowSource(
        source="csv:t.csv",
        batch=1,
        remainder="keep",
        columns={"key": "key"},
        features=features,
    )
    (tmp_path / "t.csv").write_text(f"n\n{cell}\n7\n")
    read = open_source(data, [column], tmp_path).take(np.arange(2))
    text = write_prepare(
        "t", data, [column], {"key": "key"}, {"key": ["key"]}, features
    )
    module = {"__name__": "prepare"}
    exec(text, module)
    for keys in (read["key"], module["prepare"]({"n": [cell, "7"]})["key"]):
        assert keys.tolist() == [integer_key(n, "n") for n in (int(Decimal(cell)), 7)]


@pytest.mark.parametrize("cell", [f"{2**53 + 1}.5", "1e-999999999999999999999", "x"])
def test_a_text_that_is_no_whole_number_has_no_key(cell):
    with pytest.raises(ValueError, match=r"number|float"):
        whole_number(cell, None)


def test_a_decimal_is_a_whole_number():
    assert whole_number(Decimal("9007199254740993.0"), None) == 2**53 + 1
    assert whole_number(Decimal("NaN"), 3) == 3
    for cell in (Decimal("0.5"), Decimal("Infinity"), Decimal("1e999999999")):
        with pytest.raises(ValueError, match="is not a whole number"):
            whole_number(cell, None)


SPEC = """
name: people
nodes: {worker: {count: 2}, ps: {count: 1}}
inputs:
  ids: int32[batch, 3]
  numbers: float32[batch, 2]
  bought: float32[batch]
  key: int32[batch]
data:
  train:
    source: "csv:people.csv"
    batch: 4
    columns: {ids: ["*.id", pair], numbers: ["gain.*", age], key: bought.key}
    features:
      "*.id": {hash: [city, "wor?"], bins: 50}
      age.bucket: {buckets: age, boundaries: [18, 40]}
      pair: {cross: [city, age.bucket], bins: 50}
      gain.log: {log1p: gain}
      bought.key: {hash: bought, bins: 50}
    csv: {missing: {gain: 0}}
graph:
  - {name: table, op: embedding, in: ids, size: [50, 2]}
  - {name: flat, op: flatten, in: table}
  - {name: all, op: concat, in: [flat, numbers], axis: 1}
  - {name: logit, op: fc, in: all, size: 1}
  - {name: one, op: reshape, in: logit, shape: [batch]}
  - {name: loss, op: mean_squared_error, in: [one, bought]}
train:
  minimize: loss
  optimizer: {op: sgd, learning_rate: 0.1, place: /node:ps/cpu}
predict: {outputs: [logit]}
"""
PEOPLE = {
    "city": ["Paris", None, "Rome", "Oslo"],
    "work": ["a", "b", "a", None],
    "age": [17, 18, 39.5, 80],
    "gain": [None, 10, 0, 2.5],
}


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    """A folder with a build of the spec, its parameters, its exported model, and rows of
    people in two formats."""
    folder = tmp_path_factory.mktemp("people")
    (folder / "people.yaml").write_text(SPEC)
    rows = [*zip(*PEOPLE.values(), strict=True)]
    text = [
        "city,work,age,gain,bought",
        *("{},{},{},{},1".format(*row) for row in rows),
    ]
    (folder / "people.csv").write_text("\n".join(text).replace("None", "") + "\n")
    pq.write_table(pa.table(PEOPLE), folder / "rows.parquet")
    plan = placer.compile(folder / "people.yaml", folder / "build")
    save_file(initial_parameters(plan), folder / "params")
    placer.export(folder / "build", folder / "model", params=folder / "params")
    return folder


def predict(people, rows, **more):
    return placer.predict(
        people / "build",
        rows,
        params=people / "params",
        in_process=True,
        raw=True,
        **more,
    )["logit"]


def load_model(folder):
    """Return the module `model` and the function `prepare` of an exported model."""
    with own_modules(folder):
        try:
            return __import__("model"), __import__("prepare").prepare
        finally:
            for name in ("model", "prepare"):
                sys.modules.pop(name, None)


def test_training_prediction_and_export_have_the_same_features(people):
    of_csv = predict(people, people / "people.csv")
    of_parquet = predict(people, people / "rows.parquet")
    np.testing.assert_array_equal(of_csv, of_parquet)
    model, prepare = load_model(people / "model")
    prepared = prepare(PEOPLE)
    cities = [text_key(city, "city") % 50 for city in PEOPLE["city"]]
    assert prepared["ids"][:, 0].tolist() == cities
    params = model.load_params(people / "model" / "params.safetensors")
    np.testing.assert_allclose(
        model.model(params, **prepared)["logit"], of_csv, rtol=1e-5
    )
    assert '"city", "work", "age", "gain"' in (people / "model/prepare.py").read_text()


def test_arrays_of_inputs_are_predicted_without_features(people):
    ids = np.arange(6).reshape(2, 3)
    got = predict(people, {"ids": ids, "numbers": np.zeros((2, 2))})
    assert got.shape == (2, 1)


def test_a_run_trains_on_features(people):
    result = placer.launch(people / "build", steps=3, in_process=True)
    assert result.steps == 3
