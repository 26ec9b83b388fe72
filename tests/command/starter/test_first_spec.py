"""The spec that `placer init` writes for a table compiles, and trains at once."""

from __future__ import annotations

import csv
import gzip
import re
import runpy
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn import datasets

import placer
from placer.command.starter import column as column_module
from placer.command.starter import table as table_module
from placer.command.starter.draft import draft_model
from placer.command.starter.spec_text import write_spec
from placer.command.starter.table import read_table
from placer.compiler.frontend import load
from placer.errors import DataError
from placer.launcher.data_check import check_build_data
from placer.plan.settings.data.columns import Column
from placer.plan.settings.data.sources import POSITION
from placer.readers import open_source
from placer.system.resources import find_file

make_columns = runpy.run_path(find_file("bench/mixed_table.py"))["make_columns"]
rng = np.random.default_rng(5)


def write_csv(path: Path, columns: dict[str, list], delimiter: str = ",") -> Path:
    """Write a file of cells, with quotes where they are needed."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def spec_of(path: Path, label=None, task=None) -> tuple[dict, str]:
    """Write the spec beside its table; return its content and its text."""
    out = path.parent / "model.yaml"
    text = write_spec(draft_model(read_table(path), label, task), out)
    out.write_text(text, encoding="utf-8")
    return yaml.safe_load(text), text


def read_all(folder: Path) -> dict[str, np.ndarray]:
    """Compile the spec of a folder, check its data, and return its training rows."""
    plan = placer.compile(folder / "model.yaml", folder / "build")
    check_build_data(plan, folder / "build")
    columns = [
        Column(c.name, c.dtype, c.shape, plan.train.ranges.get(c.name))
        for c in plan.columns
    ]
    rows = open_source(plan.train, columns, folder)
    return rows.take(np.arange(rows.rows))


def bundled(name: str) -> dict[str, list]:
    """Return a data set of scikit-learn as text: labels are words, cells are missing,
    and a column of words has commas and quotes."""
    loaded = getattr(datasets, f"load_{name}")()
    columns = {"patient": [str(i) for i in range(len(loaded.data))]}
    for feature, values in zip(loaded.feature_names, loaded.data.T, strict=True):
        cells = [f"{value:g}" for value in values]
        for missing in rng.integers(len(cells), size=len(cells) // 50):
            cells[missing] = str(rng.choice(["", "NA"]))
        columns[f"{feature}, measured"] = cells
    columns["made in"] = [
        str(rng.choice(["Paris, Texas", 'the "big" city', "Rome"])) for _ in loaded.data
    ]
    if name == "diabetes":
        columns["progress"] = [f"{value:g}" for value in loaded.target]
    else:
        columns["kind"] = [str(loaded.target_names[i]) for i in loaded.target]
    return columns


@pytest.mark.parametrize(
    ("name", "metric", "low", "high"),
    [
        pytest.param("iris", "accuracy", 0.85, 1, marks=pytest.mark.slow),
        pytest.param("breast_cancer", "auc", 0.98, 1, marks=pytest.mark.slow),
        pytest.param("wine", "accuracy", 0.85, 1, marks=pytest.mark.slow),
        ("diabetes", "rmse", 40, 65),
    ],
)
def test_a_table_is_learned(name, metric, low, high, tmp_path, quick_compilation):
    table = write_csv(tmp_path / f"{name}.csv", bundled(name))
    _, text = spec_of(table)
    assert "#   patient: it contains row numbers" in text
    placer.compile(tmp_path / "model.yaml", tmp_path / "build")
    result = placer.launch(tmp_path / "build", in_process=True)
    assert low <= result.eval[metric] <= high


def test_parquet_files_of_words_numbers_and_nulls_are_learned(
    tmp_path, quick_compilation
):
    x = rng.normal(size=400)
    columns = {
        "x": pa.array(x, mask=rng.random(400) < 0.1),
        "flag": pa.array(x > 1, mask=rng.random(400) < 0.1),
        "size": pa.array(np.where(x > 0, "big", None)).dictionary_encode(),
        "level": pa.array(rng.integers(3, 7, size=400), pa.uint8()),
        "day": pa.array(np.arange(400, dtype=np.int32)).cast(pa.date32()),
        "tags": pa.array([["a"]] * 400),
        "positive": pa.array(x > 0),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    spec, text = spec_of(tmp_path / "t.parquet")
    train = spec["data"]["train"]
    assert train["columns"]["numbers"] == ["x.scaled", "flag.scaled", "day.scaled"]
    assert train["features"]["day.weekday"] == {"weekday": "day"}
    options = train["parquet"]
    assert set(options["missing"]) == {"x", "flag"}
    assert options["vocabulary"]["size"] == ["big"]
    assert options["vocabulary"]["level"] == [str(i) for i in range(3, 7)]
    assert options["vocabulary"]["positive"] == ["false", "true"]
    assert "#   tags: it holds list<" in text
    placer.compile(tmp_path / "model.yaml", tmp_path / "build")
    result = placer.launch(tmp_path / "build", in_process=True)
    assert result.eval["auc"] > 0.95


def test_a_rare_value_does_not_spoil_the_evaluation(tmp_path, quick_compilation):
    x = rng.normal(size=4000)
    columns = {"x": x, "rare": [0] * 4000, "y": np.where(x > 0, "a", "b")}
    for row in (7, 1200, 2800):
        columns["rare"][row] = 10**6
    spec_of(write_csv(tmp_path / "t.csv", columns))
    placer.compile(tmp_path / "model.yaml", tmp_path / "build")
    result = placer.launch(tmp_path / "build", in_process=True, steps=200)
    assert result.eval["loss"] < 0.3
    assert result.eval["accuracy"] > 0.95


def table_of(**columns) -> dict[str, list]:
    """Return the columns, one of numbers, and a label, of 40 rows."""
    return columns | {"x": list(range(0, 80, 2)), "label": ["yes", "no"] * 20}


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (["7"] * 40, "all its values are 7"),
        (["red"] * 40, "all its values are 'red'"),
        ([""] * 40, "all its cells are empty"),
        (["", "NA"] * 19 + ["a", "b"], "95 % of its cells are empty"),
        ([*range(40)], "it contains row numbers"),
        (
            [f"person {i}" for i in range(40)],
            "its text is different in each row, such as",
        ),
        ([f"{i % 12 + 1}/3/2024 10:30" for i in range(40)], "it holds dates such as"),
        (["2024-03-01"] * 40, "all its dates are the same"),
        (
            [*range(36), "a", "b", "c", "d"],
            "it has values that are not numbers (4, the first is 'a' in line 38)",
        ),
        ([f"{i},5" for i in range(40)], "its numbers have commas, such as '0,5'"),
        (
            [i * 1e-300 for i in range(40)],
            "the standard deviation of its numbers, such as 3.9e-299,",
        ),
        (
            ["unknown", *(f"{i % 12 + 1}e-300" for i in range(39))],
            "the standard deviation of its numbers, such as 1.2e-299,",
        ),
        (
            [2**60 + i % 20 for i in range(40)],
            "its numbers, all about 1.15292e+18, are equal in float64",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_column_that_says_nothing_is_left_out_with_the_reason(column, why, tmp_path):
    spec, text = spec_of(write_csv(tmp_path / "t.csv", table_of(c=column)))
    assert f"#   c: {why}" in text
    assert set(spec["inputs"]) == {"numbers", "label"}
    assert read_all(tmp_path)["numbers"].shape == (32, 1)


def test_ids_that_are_not_in_order_are_left_out_by_their_name(tmp_path):
    ids = [i * i * 7 for i in range(40)]
    _, text = spec_of(
        write_csv(tmp_path / "t.csv", table_of(customer_id=ids, area=ids))
    )
    assert "#   customer_id: it is different in each row" in text
    assert "[area.scaled, x.scaled]" in text


@pytest.mark.parametrize(
    ("name", "cells", "asked", "kind"),
    [
        ("user_id", [7 * (i % 45) for i in range(450)], [], "integer"),
        ("seller", [7 * (i % 45) for i in range(450)], ["seller"], "integer"),
        ("user_id", [2**60 + i % 45 for i in range(450)], [], None),
        ("userId", [f"u{i % 45}" for i in range(450)], [], None),
        ("code", [i % 45 + 0.5 for i in range(450)], ["code"], None),
        ("town", [f"town {i % 101}" for i in range(450)], [], None),
    ],
)
def test_ids_have_a_key_and_a_vector(name, cells, asked, kind, tmp_path):
    columns = {name: cells, "x": [i % 7 / 3 for i in range(450)]}
    columns["y"] = ["a", "b"] * 225
    table = read_table(write_csv(tmp_path / "t.csv", columns))
    out = tmp_path / "model.yaml"
    out.write_text(write_spec(draft_model(table, None, None, asked), out))
    spec = yaml.safe_load(out.read_text())
    feature = spec["data"]["train"]["features"][f"{name}.key"]
    assert (feature["hash"], feature.get("type")) == (name, kind)
    keys = read_all(tmp_path)[name]
    assert keys.max() < feature["bins"] <= 1024
    assert len(np.unique(keys)) > 0.8 * len(set(cells))
    (op,) = [op for op in spec["graph"][0]["ops"] if op.get("in") == name]
    assert op["op"] == "embedding"
    count = f"# {name} has {len(set(cells))} different texts, which are hashed."
    assert (count in out.read_text()) == (kind is None)


def test_an_id_of_a_single_row_is_left_out(tmp_path):
    columns = table_of(user_id=[*range(35), *range(5)])
    _, text = spec_of(write_csv(tmp_path / "t.csv", columns))
    assert "#   user_id: it has 35 ids in 40 rows" in text


def test_very_many_ids_have_a_sparse_table(tmp_path, monkeypatch):
    monkeypatch.setattr(column_module, "SPARSE_IDS", 20)
    names = [int(each) for each in rng.integers(40, size=800)]
    columns = {"user_id": names, "x": rng.normal(size=800)}
    columns["y"] = ["b" if name % 2 else "a" for name in names]
    spec, _ = spec_of(write_csv(tmp_path / "t.csv", columns))
    assert spec["inputs"]["user_id"] == "int64[batch]"
    assert len(np.unique(read_all(tmp_path)["user_id"])) == 40


def test_a_column_that_is_almost_a_number_is_one(tmp_path):
    cells = ["unknown" if i % 9 == 0 else i % 23 / 2 for i in range(60)]
    columns = {"age": cells, "x": [i % 7 for i in range(60)], "y": ["a", "b"] * 30}
    spec, text = spec_of(write_csv(tmp_path / "t.csv", columns))
    assert "# 7, the first is 'unknown' in line 2.\n" in text
    options = spec["data"]["train"]["csv"]
    assert options["missing_values"] == {"age": ["unknown"]}
    assert "age.scaled" in spec["data"]["train"]["columns"]["numbers"]
    assert np.isfinite(read_all(tmp_path)["numbers"]).all()


MODES = (
    "train.optimizer.update=async",
    "train.optimizer.update={geo: {every: 10}}",
    "train.optimizer.place=/node:worker/cpu",
    "train.optimizer.update={sync: {backup: 1}}",
)


@pytest.mark.parametrize("name", ["weight [kg]", "paid?", "price*", "*"])
def test_a_name_may_have_the_characters_of_a_glob(name, tmp_path):
    """Such as those around a unit. What is written for the column is for no other one."""
    rows = {}
    for column, folder in ((name, tmp_path / "glob"), ("plain", tmp_path / "plain")):
        folder.mkdir()
        columns = {
            column: ["" if i == 3 else i % 23 / 2 for i in range(60)],
            "price 2": [i % 19 for i in range(60)],
            f"{column} of": ["red", "blue"] * 30,
            f"{column} on": [f"2024-05-{i % 28 + 1:02}" for i in range(60)],
            "y": [i % 17 / 4 for i in range(60)],
        }
        spec_of(write_csv(folder / "t.csv", columns))
        rows[column] = [*read_all(folder).values()]
    for found, wanted in zip(rows[name], rows["plain"], strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array([Decimal(i % 37) / 4 for i in range(60)]), "Numbers"),
        (pa.array([f"{i % 37 / 4}" for i in range(60)]), "Numbers"),
        (pa.array(["n/a", *(f"{i % 37}".encode() for i in range(59))]), "Numbers"),
        (pa.array([" NA ", *(f" {i % 37}" for i in range(59))]), "Numbers"),
        (pa.array([i * 10**14 + 1 for i in range(60)], pa.timestamp("ns")), "Dates"),
        (pa.array([None, *range(59)], pa.timestamp("s", "Asia/Tokyo")), "Dates"),
        (pa.array([Decimal(i % 20) for i in range(60)]).dictionary_encode(), "Numbers"),
    ],
)
def test_parquet_columns_are_described_as_those_of_text(values, kind, tmp_path):
    """The same columns as in a CSV file: decimals and text with numbers are numbers."""
    table = {"c": values, "x": [*range(60)], "y": ["a", "b", "c"] * 20}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    found = draft_model(read_table(tmp_path / "t.parquet"), None, None)
    described = {type(each).__name__ for each in (*found.numbers, *found.dates)}
    assert described == {kind}
    spec_of(tmp_path / "t.parquet")
    assert all(len(rows) == 48 for rows in read_all(tmp_path).values())


def test_whole_floats_of_a_parquet_file_are_ids_and_classes(tmp_path):
    """pandas writes whole numbers as floats if some are missing."""
    ids = [None if i % 31 == 0 else i % 45 for i in range(450)]
    table = {
        "user_id": pa.array(ids, pa.float64()),
        "grade": pa.array([i % 4 for i in range(450)], pa.float32()),
        "label": pa.array([i % 2 for i in range(450)], pa.float64()),
    }
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    spec, _ = spec_of(tmp_path / "t.parquet")
    assert spec["data"]["train"]["features"]["user_id.key"]["type"] == "integer"
    assert spec["data"]["train"]["parquet"]["vocabulary"] == {
        "grade": ["0", "1", "2", "3"]
    }
    assert spec["inputs"]["label"] == "int32[batch]"
    rows = read_all(tmp_path)
    assert {*rows["grade"].tolist()} == {0, 1, 2, 3}
    assert {*rows["label"].tolist()} == {0, 1}
    assert len({*rows["user_id"].tolist()}) > 0.8 * 46


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array([2**60 + i % 45 for i in range(450)]), "integer"),
        (pa.array([2**63 + i % 45 for i in range(450)], pa.uint64()), "integer"),
        (pa.array([Decimal(2**60 + i % 45) for i in range(450)]), "integer"),
        (pa.array([f"{i % 45}" for i in range(450)]), "integer"),
        (pa.array([f"u{i % 45}" for i in range(450)]), None),
    ],
)
def test_ids_of_a_parquet_file_have_all_their_digits(values, kind, tmp_path):
    table = {"user_id": values, "x": [i % 7 / 3 for i in range(450)]}
    table["y"] = ["a", "b"] * 225
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    spec, _ = spec_of(tmp_path / "t.parquet")
    assert spec["data"]["train"]["features"]["user_id.key"].get("type") == kind
    assert len({*read_all(tmp_path)["user_id"].tolist()}) > 0.8 * 45


@pytest.mark.parametrize(
    "ids",
    [
        [Decimal(2**64 + i % 45) for i in range(450)],
        [Decimal(i % 45) / 2 for i in range(450)],
    ],
)
def test_decimals_that_are_no_ids_are_left_out(ids, tmp_path):
    table = pa.table(
        {"seller": ids, "x": [i % 7 / 3 for i in range(450)], "y": ["a", "b"] * 225}
    )
    pq.write_table(table, tmp_path / "t.parquet")
    draft = draft_model(read_table(tmp_path / "t.parquet"), None, None, ["seller"])
    assert "only whole numbers of 64 bits and texts can be ids" in [
        e.why for e in draft.left_out
    ]


@pytest.mark.parametrize("mode", MODES)
def test_a_first_spec_compiles_in_every_mode_and_fits_its_table(mode, tmp_path):
    columns = make_columns(2500, seed=3)
    spec_of(write_csv(tmp_path / "t.csv", columns))
    plan = placer.compile(tmp_path / "model.yaml", tmp_path / "build", overrides=[mode])
    check_build_data(plan, tmp_path / "build")


def test_a_table_with_everything_is_learned(tmp_path, quick_compilation):
    columns = make_columns(5000, seed=1)
    spec, text = spec_of(write_csv(tmp_path / "shop.csv", columns))
    left_out = text.partition("does not use:\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[1] for line in left_out] == ["order:", "note:", "region:"]
    assert spec["train"]["early_stopping"]["metric"] == "loss"
    placer.compile(tmp_path / "model.yaml", tmp_path / "build", single_process=True)
    result = placer.launch(tmp_path / "build", in_process=True)
    # HistGradientBoosting of scikit-learn has 0.762.
    assert result.eval["accuracy"] > 0.76


def test_rare_new_and_missing_words_have_the_number_of_unknown_words(tmp_path):
    words = ["red"] * 18 + ["blue"] * 19 + ["once", "", "?"]
    spec, _ = spec_of(write_csv(tmp_path / "t.csv", table_of(color=words)))
    options = spec["data"]["train"]["csv"]
    assert options["vocabulary"]["color"] == ["blue", "red"]
    assert options["unknown"] == {"color": 2}
    assert set(read_all(tmp_path)["color"].tolist()) <= {0, 1, 2}


def test_few_different_whole_numbers_are_codes_with_an_embedding(tmp_path):
    spec, text = spec_of(
        write_csv(tmp_path / "t.csv", table_of(zone=[1, 10, 2, 10] * 10))
    )
    assert spec["data"]["train"]["csv"]["vocabulary"]["zone"] == ["1", "2", "10"]
    assert "zone has 3 different whole numbers, which are read as codes" in text
    assert set(read_all(tmp_path)["zone"].tolist()) == {0, 1, 2}


def test_an_empty_number_is_the_median_of_its_column(tmp_path):
    numbers = ["NA", *range(1, 39), ""]
    spec_of(write_csv(tmp_path / "t.csv", table_of(age=numbers)))
    assert "        age: 19.5\n" in (tmp_path / "model.yaml").read_text()
    read_all(tmp_path)


# the label


def test_the_label_is_the_named_column_or_one_named_so_or_the_last(tmp_path):
    columns = {"a": [1.5, 2.5] * 20, "target": ["u", "v"] * 20, "b": ["r", "s"] * 20}
    table = read_table(write_csv(tmp_path / "t.csv", columns))
    assert draft_model(table, None, None).label.name == "target"
    assert draft_model(table, "b", None).label.name == "b"
    del columns["target"]
    table = read_table(write_csv(tmp_path / "t.csv", columns))
    assert draft_model(table, None, None).label.name == "b"


@pytest.mark.parametrize(
    ("values", "task", "loss", "dtype"),
    [
        ([0, 1], None, "sigmoid_cross_entropy", "int32[batch]"),
        ([1, 2], None, "sigmoid_cross_entropy", "int32[batch]"),
        (["1.0", "0.0"], None, "sigmoid_cross_entropy", "int32[batch]"),
        ([3, 4, 5, 8], None, "softmax_cross_entropy", "int32[batch]"),
        ([2**60 + i for i in range(4)], None, "softmax_cross_entropy", "int32[batch]"),
        ([3, 4, 5, 8], "regression", "mean_squared_error", "float32[batch]"),
        ([0.5, 0.25, 7, 1], None, "mean_squared_error", "float32[batch]"),
        ([0.5, 0.25], "classification", "sigmoid_cross_entropy", "int32[batch]"),
        (list(range(20)), None, "mean_squared_error", "float32[batch]"),
        (list(range(20)), "classification", "softmax_cross_entropy", "int32[batch]"),
    ],
)
def test_the_loss_fits_the_values_of_the_label(values, task, loss, dtype, tmp_path):
    columns = table_of(outcome=values * (40 // len(values)))
    table = write_csv(tmp_path / "t.csv", columns)
    spec, _ = spec_of(table, "outcome", task)
    assert loss in [op["op"] for op in spec["graph"][0]["ops"]]
    assert spec["inputs"]["outcome"] == dtype
    read_all(tmp_path)


@pytest.mark.parametrize(
    ("column", "label", "task", "message"),
    [
        (["a"] * 40, "c", None, "all values of the label 'c' are a"),
        ([7] * 40, "c", "regression", "all values of the label 'c' are 7"),
        (
            ["a", ""] * 20,
            "c",
            None,
            "20 rows have no value for the label 'c': the first line 3",
        ),
        (
            [*["a", "b"] * 20, ""],
            "c",
            None,
            "1 row has no value for the label 'c': line 42",
        ),
        (
            [1.5, "NA"] * 20,
            "c",
            None,
            "20 rows have no value for the label 'c': the first line 3",
        ),
        (
            ["a", "b"] * 20,
            "c",
            "regression",
            "the label 'c' is not a column of numbers",
        ),
        (["a", "b"] * 20, "lable", None, "has no column 'lable'"),
        ([f"n{i}" for i in range(400)], "c", None, "400 different values in 400 rows"),
        (
            [f"n{i % 150}" for i in range(400)],
            "c",
            None,
            "150 classes, which are too many",
        ),
        ([*range(0, 80, 2), "12,5"], "c", None, "'12,5' in line 42"),
        (
            [*range(0, 80, 2), "12,5"],
            "c",
            "regression",
            r"are not numbers \(1, the first",
        ),
        (
            [i * 1e-300 for i in range(40)],
            "c",
            None,
            "'c' cannot be predicted: the standard dev",
        ),
        (
            [2**60 + i % 20 for i in range(40)],
            "c",
            "regression",
            "'c' cannot be predicted: its numbers, all about 1.15292e",
        ),
        ([*range(40)], None, None, "the guessed label 'label' contains row numbers"),
    ],
)
def test_a_label_that_cannot_be_predicted_is_refused(
    column, label, task, message, tmp_path
):
    columns = {
        "c": column,
        "x": [i % 9 / 2 for i in range(len(column))],
        "label": column,
    }
    table = read_table(write_csv(tmp_path / "t.csv", columns))
    with pytest.raises(DataError, match=message) as caught:
        draft_model(table, label, task)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ([False] * 40, "all values of the label 'y' are false"),
        ([i * 1e300 for i in range(40)], "too large for float32"),
    ],
)
def test_a_label_of_a_parquet_file_that_cannot_be_predicted(label, message, tmp_path):
    pq.write_table(pa.table({"x": [*range(40)], "y": label}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=message):
        draft_model(read_table(tmp_path / "t.parquet"), "y", None)


# the file


def test_delimiter_comments_and_compression_are_detected(tmp_path):
    path = write_csv(tmp_path / "t.csv.gz", table_of(city=["a,b", "c"] * 20), ";")
    text = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(b"# written; by, a program\n" + text))
    spec, _ = spec_of(path)
    options = spec["data"]["train"]["csv"]
    assert (options["delimiter"], options["comment"]) == (";", "#")
    assert options["vocabulary"]["city"] == ["a,b", "c"]
    read_all(tmp_path)


def test_columns_of_a_file_without_a_header_have_numbers(tmp_path):
    rows = "".join(f"{i % 9 / 4}\t{'ab'[i % 2]}\n" for i in range(40))
    (tmp_path / "t.tsv").write_text(rows)
    spec, text = spec_of(tmp_path / "t.tsv")
    assert spec["data"]["train"]["csv"]["header"] == ["column1", "column2"]
    assert "the columns have no names" in text
    assert len(read_all(tmp_path)["numbers"]) == 32


def test_a_large_file_is_read_in_part_and_the_spec_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(table_module, "MAX_ROWS", 25)
    columns = table_of(c=["a", "b"] * 15 + ["later"] * 10)
    columns["x"][30] = ""
    table = write_csv(tmp_path / "t.csv", columns)
    assert 30 <= read_table(table).rows <= 60
    _, text = spec_of(table)
    assert "Only the first 25 rows were read" in text
    read_all(tmp_path)  # with a word and an empty cell in the rows that were not read
    pq.write_table(pa.table(table_of()), tmp_path / "t.parquet")
    parquet = read_table(tmp_path / "t.parquet")
    assert (parquet.read, parquet.rows) == (25, 40)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"", "is empty"),
        ("t.csv", b"a,b\n", "has 0 rows"),
        ("t.csv", b"a,b\n" + b"1,x\n" * 9, "has 9 rows"),
        ("t.csv", b"a,b\n1,2\n1,2,3\n", "line 3 has 3 cells"),
        ("t.csv", b"a,b\n\xff,2\n", "line 2 is not UTF-8"),
        ("t.csv", b"only\n" + b"x\ny\n" * 9, "no column to predict 'only' from"),
        ("t.parquet", b"PAR1", "cannot be read"),
        ("t.csv.gz", b"not gzip", "cannot be read"),
        ("t.xlsx", b"", "does not have the name of a CSV or Parquet file"),
    ],
)
def test_a_file_that_is_no_table_is_refused(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        draft_model(read_table(tmp_path / name), None, None)


NAMES = st.sampled_from(
    ["loss", "scaled", "numbers", "x y", "x_y", "X-Y", "class", "größe", "1st", "*", "?",
     "a[1]", "a*", "true", "null", "a: b", "# c", '"q"', "it's", "{", "a,b", "x.y", " ",
     "h1", "label", "-", "名前", "a\nb", "batch", "yes", "~", "1e3",
     "$x", "% if"]
)  # fmt: skip
CELLS = st.sampled_from(
    ["", "NA", "1", "2", "-3", "0.5", "1e300", "inf", "true", "null", "yes", "a", "b: c",
     "#d", "x,y", '"', "'", "\\", "[", "é", "\U0001f600", "\x07", "a\nb", " e ", "0x10"]
)  # fmt: skip


QUARTERS = [f"{i / 4}" for i in range(20)]
TYPES = st.sampled_from(
    [pa.decimal128(9, 2), pa.timestamp("ns"), pa.date32(), pa.int64(), pa.float32(),
     pa.float64(), pa.string()]
)  # fmt: skip


def typed(cells: list[str], type_: pa.DataType) -> pa.Array:
    """Return cells as a column of a type of Arrow: texts that are no numbers are nulls."""
    if type_ == pa.string():
        return pa.array(cells)
    are_numbers = [re.fullmatch(r"-?\d+(\.\d+)?", cell) for cell in cells]
    numbers = [
        Decimal(cell) if is_number else None
        for cell, is_number in zip(cells, are_numbers, strict=True)
    ]
    if pa.types.is_decimal(type_):
        return pa.array(numbers, type_)
    kind = float if pa.types.is_floating(type_) else int
    return pa.array([None if each is None else kind(each) for each in numbers], type_)


@settings(max_examples=60, deadline=None)
@given(
    columns=st.dictionaries(
        NAMES, st.lists(CELLS, min_size=1, max_size=4), min_size=1, max_size=6
    ),
    label=st.lists(CELLS.filter(lambda cell: cell.strip()), min_size=1, max_size=5),
    is_parquet=st.booleans(),
    types=st.lists(TYPES, min_size=6, max_size=6),
)
@example({"a[1]": QUARTERS}, ["1", "2"], False, [pa.string()])
@example({"a[1]": QUARTERS}, ["1", "2"], True, [pa.decimal128(9, 2)])
@example({"a": ["", *QUARTERS]}, ["1", "2"], True, [pa.timestamp("ns")])
@example({"a": ["", *QUARTERS]}, ["1", "2"], True, [pa.float64()])
def test_any_table_is_refused_or_its_spec_reads_every_row(
    tmp_path_factory, columns, label, is_parquet, types
):
    folder = tmp_path_factory.mktemp("t")
    written = {name: (cells * 20)[:20] for name, cells in columns.items()}
    if is_parquet:
        pairs = zip(written.items(), types, strict=False)
        written |= {name: typed(cells, type_) for (name, cells), type_ in pairs}
    written["outcome"] = (label * 20)[:20]
    if is_parquet:
        path = folder / "t: #1\n.parquet"
        pq.write_table(pa.table(written), path)
    else:
        path = write_csv(folder / "t.csv", written)
    try:
        spec_of(path, "outcome")
    except DataError:
        return
    model = load(folder / "model.yaml")
    columns_ = [
        Column(
            op.attrs["input"], op.results[0].type.dtype, op.results[0].type.sizes(1)[1:]
        )
        for op in model.graph.ops
        if op.kind == "read" and op.attrs["input"] != POSITION
    ]
    assert model.train is not None
    assert open_source(model.train, columns_, folder).rows == 16
