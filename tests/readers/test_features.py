"""Features of the rows of csv:, parquet: and python: sources."""

import csv as csv_module
import math
import textwrap
from datetime import date, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.feature_formulas import (
    bucket,
    crossed_key,
    integer_key,
    signed,
    text_key,
)

from placer.errors import DataError
from placer.plan.settings.data.cell_options import Cells, Csv
from placer.plan.settings.data.features import Feature
from placer.plan.settings.data.source import Data
from placer.plan.settings.data.window import Window
from placer.readers import Column, Order, Range, ReadOptions, open_pieces, open_source
from placer.readers.features.computation import Computation
from placer.readers.features.python_cells import from_python
from placer.readers.windows import WindowReader
from placer.system.hashing.xxh64 import hash_ranges

KEY = Column("key", "int64", ())
NUMBER = Column("x", "float64", ())


def open_rows(folder, kind, columns, features, inputs, *, mapping=None, missing=None):
    """Write columns of Python values as a source of a kind, and open it."""
    missing = missing or {}
    options = {kind: (Csv if kind == "csv" else Cells)(missing=missing)}
    path = "t.py"
    if kind == "csv":
        path = "t.csv"
        with (folder / path).open("w", newline="", encoding="utf-8") as file:
            writer = csv_module.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
    elif kind == "parquet":
        path = "t.parquet"
        pq.write_table(pa.table(columns), folder / path, row_group_size=7)
    else:
        path = "t:rows"
        names, rows = list(columns), list(zip(*columns.values(), strict=True))
        text = f"""
            nan, inf = float("nan"), float("inf")
            def rows():
                for row in {rows!r}:
                    yield dict(zip({names!r}, row))
        """
        (folder / "t.py").write_text(textwrap.dedent(text), encoding="utf-8")
    declared = {name: Feature(**feature) for name, feature in features.items()}
    data = Data(f"{kind}:{path}", columns=mapping, features=declared, **options)
    return open_source(data, inputs, folder, ReadOptions(with_digests=True))


def read(*arguments, **more):
    rows = open_rows(*arguments, **more)
    return rows.take(np.arange(rows.rows))


def compute(features, name, **columns):
    """Compute a feature of columns of Python values, or of Arrow arrays."""

    def cells(column):
        values = columns[column]
        where = f"column '{column}', row {{}}".format
        made = from_python(column, [], None, where)
        if isinstance(values, pa.Array):
            return type(made)(column, values, False, None, "parquet", where)
        return from_python(column, values, None, where)

    declared = {name: Feature(**feature) for name, feature in features.items()}
    return Computation(declared, cells).values(name)


# Keys


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_texts_of_all_lengths_have_the_keys_of_the_package(seed):
    texts = ["".join(chr(33 + (i * 7 + n) % 90) for i in range(n)) for n in range(101)]
    keys = compute({"k": {"hash": "c", "seed": seed}}, "k", c=texts)
    assert keys.tolist() == [text_key(text, "c", seed) for text in texts]


@pytest.mark.parametrize(
    "type_",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.uint32(), pa.large_string()),
    ],
)
def test_every_type_of_text_has_the_same_keys(type_):
    texts = ["", "é", None, "日本語 🎈", " two words\t", None, "x" * 40, "é"]
    column = pa.array(texts).cast(type_)
    wanted = [text_key(text, "c") for text in texts]
    features = {"k": {"hash": "c"}}
    assert compute(features, "k", c=column).tolist() == wanted
    assert compute(features, "k", c=column.slice(2, 4)).tolist() == wanted[2:6]
    assert compute(features, "k", c=column.slice(0, 0)).tolist() == []


def test_a_null_word_of_a_dictionary_is_missing():
    column = pa.DictionaryArray.from_arrays([1, 0, None], pa.array(["a", None]))
    keys = compute({"k": {"hash": "c"}}, "k", c=column)
    assert keys.tolist() == [text_key(text, "c") for text in (None, "a", None)]


@pytest.mark.parametrize(("rows", "hashed"), [(3, 3), (400, 100)])
def test_no_more_words_of_a_dictionary_are_hashed_than_rows(rows, hashed, monkeypatch):
    """The batches of a column may share a dictionary of all its words."""
    counts = []

    def count(data, offsets, *more, **options):
        counts.append(len(offsets) - 1)
        return hash_ranges(data, offsets, *more, **options)

    monkeypatch.setattr("placer.readers.features.keys.hash_ranges", count)
    words = [f"w{i}" for i in range(100)]
    column = pa.array([*(words * 5)[:499], None]).dictionary_encode().slice(500 - rows)
    keys = compute({"k": {"hash": "c"}}, "k", c=column)
    assert keys.tolist() == [text_key(text, "c") for text in column.to_pylist()]
    assert counts == [hashed]


def test_a_missing_text_differs_from_an_empty_one():
    missing, empty = compute({"k": {"hash": "c"}}, "k", c=[None, ""]).tolist()
    assert (missing, empty) == (text_key(None, "c"), text_key("", "c"))
    assert missing != empty


@pytest.mark.parametrize("width", [8, 16, 32, 64])
@pytest.mark.parametrize("sign", ["int", "uint"])
def test_integers_of_every_type_are_eight_bytes(width, sign):
    limits = np.iinfo(f"{sign}{width}")
    numbers = [0, 1, 100, int(limits.min), int(limits.max), None]
    column = pa.array(numbers, getattr(pa, f"{sign}{width}")())
    keys = compute({"k": {"hash": "c", "type": "integer"}}, "k", c=column)
    assert keys.tolist() == [integer_key(number, "c") for number in numbers]


def test_whole_floats_and_decimals_are_integers():
    wanted = [integer_key(number, "c") for number in (3, -7, None)]
    features = {"k": {"hash": "c", "type": "integer"}}
    for type_ in (pa.float16(), pa.float32(), pa.float64(), pa.decimal128(5, 1)):
        column = pa.array([3.0, -7.0, None]).cast(type_)
        assert compute(features, "k", c=column).tolist() == wanted
    column = pa.array([3.0, -7.0, math.nan], from_pandas=False)
    assert compute(features, "k", c=column).tolist() == wanted


def test_numbers_of_python_over_int64_are_integers():
    numbers = [2**64 - 1, -(2**63), None, 5]
    keys = compute({"k": {"hash": "c", "type": "integer"}}, "k", c=numbers)
    assert keys.tolist() == [integer_key(number, "c") for number in numbers]


def test_a_field_seeds_the_keys_of_several_columns():
    features = {
        "a.key": {"hash": "a", "field": "item"},
        "b.key": {"hash": "b", "field": "item"},
        "c.key": {"hash": "c"},
    }
    columns = {name: ["x", None] for name in "abc"}
    first, second, other = (compute(features, f"{n}.key", **columns) for n in "abc")
    assert (
        first.tolist() == second.tolist() == [text_key(t, "item") for t in ("x", None)]
    )
    assert not set(other.tolist()) & set(first.tolist())


def test_bins_are_the_remainders_of_keys():
    texts = [str(i) for i in range(50)]
    values = compute({"k": {"hash": "c", "bins": 7}}, "k", c=texts)
    assert values.dtype == np.int64
    assert values.tolist() == [text_key(text, "c") % 7 for text in texts]


def test_a_cross_hashes_the_keys_of_its_parts():
    features = {
        "n": {"hash": "id", "type": "integer", "bins": 10},
        "age": {"buckets": "years", "boundaries": [18, 65]},
        "pair": {"cross": ["word", "n"], "seed": 3},
        "all": {"cross": ["pair", "age", "word"], "seed": 3, "bins": 1000},
    }
    columns = {"word": ["x", None, ""], "id": [1, 2, None], "years": [18, None, 3.5]}
    pairs = [
        crossed_key([text_key(word, "word", 3), integer_key(number, "id")], 3)
        for word, number in zip(columns["word"], columns["id"], strict=True)
    ]
    assert compute(features, "pair", **columns).tolist() == pairs
    wanted = [
        crossed_key(
            [
                pair,
                integer_key(bucket(years, [18, 65]), "age", 3),
                text_key(word, "word", 3),
            ],
            3,
        )
        % 1000
        for pair, years, word in zip(
            pairs, columns["years"], columns["word"], strict=True
        )
    ]
    assert compute(features, "all", **columns).tolist() == wanted


def test_a_cross_of_a_column_is_one_of_the_feature_that_hashes_it():
    features = {
        "a.key": {"hash": "a"},
        "one": {"cross": ["a", "b"]},
        "two": {"cross": ["a.key", "b"]},
    }
    columns = {"a": ["x", "y"], "b": ["u", "v"]}
    one, two = compute(features, "one", **columns), compute(features, "two", **columns)
    assert one.tolist() == two.tolist()


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    texts=st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]))),
    seed=st.integers(0, 2**63 - 1),
    field=st.text(st.characters(exclude_categories=["Cs"])),
)
def test_any_text_has_the_key_of_the_package(texts, seed, field):
    features = {"k": {"hash": "c", "seed": seed, "field": field}}
    keys = compute(features, "k", c=texts)
    assert keys.tolist() == [text_key(text, field, seed) for text in texts]


@settings(derandomize=True, deadline=None, max_examples=100)
@given(numbers=st.lists(st.none() | st.integers(-(2**63), 2**64 - 1)))
def test_any_integer_has_the_key_of_the_package(numbers):
    keys = compute({"k": {"hash": "c", "type": "integer"}}, "k", c=numbers)
    assert keys.tolist() == [integer_key(number, "c") for number in numbers]


# Numbers


def test_a_bucket_has_its_lower_boundary_and_not_its_upper_one():
    ages = [-5, 17.9, 18, 24, 25, 1e300, None, math.nan]
    buckets = compute(
        {"b": {"buckets": "age", "boundaries": [18, 25, 40]}}, "b", age=ages
    )
    assert buckets.tolist() == [0, 0, 1, 1, 2, 3, 4, 4]


def test_buckets_by_log_have_exact_powers_as_boundaries():
    numbers = [0, 0.99, 1, 1.99, 2, 3, 4, 7.99, 8, 1e9, None]
    buckets = compute({"b": {"buckets": "x", "log": 2, "to": 9}}, "b", x=numbers)
    assert buckets.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5]


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    boundaries=st.lists(
        st.floats(allow_nan=False, allow_infinity=False), min_size=1, unique=True
    ).map(sorted),
    numbers=st.lists(st.none() | st.floats(allow_infinity=False)),
)
def test_any_number_is_in_the_bucket_of_a_plain_search(boundaries, numbers):
    features = {"b": {"buckets": "x", "boundaries": boundaries}}
    buckets = compute(features, "b", x=numbers)
    assert buckets.tolist() == [bucket(number, boundaries) for number in numbers]


def test_log1p_and_standardize():
    numbers = [0, 1, 2.5, -0.5, 1e300]
    logs = compute({"l": {"log1p": "x"}}, "l", x=numbers)
    np.testing.assert_allclose(logs, [math.log1p(x) for x in numbers], rtol=1e-15)
    features = {"s": {"standardize": "x", "mean": 1.5, "std": 0.5}}
    scaled = compute(features, "s", x=numbers)
    assert scaled.tolist() == [(x - 1.5) / 0.5 for x in numbers]


def test_features_of_numbers_are_composed():
    features = {
        "log": {"log1p": "x"},
        "scaled": {"standardize": "log", "mean": 1, "std": 2},
        "bucket": {"buckets": "scaled", "boundaries": [0]},
    }
    columns = {"x": [0, 5]}
    scaled = compute(features, "scaled", **columns)
    np.testing.assert_array_equal(scaled, (np.log1p([0.0, 5.0]) - 1) / 2)
    assert compute(features, "bucket", **columns).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("feature", "values", "message"),
    [
        ({"hash": "c"}, [1, 2], "column 'c', row 0: the column holds int64, not text"),
        ({"hash": "c"}, [0.5], "column 'c', row 0: the column holds double, not text"),
        ({"hash": "c", "type": "integer"}, [1.0, 0.5],
         "column 'c', row 1: 0.5 is not a whole number"),
        ({"hash": "c", "type": "integer"}, [1.0, 1e300],
         "column 'c', row 1: 1e+300 is not a whole number"),
        ({"hash": "c", "type": "integer"}, [1, 2**64],
         "column 'c', row 1: 18446744073709551616 does not fit in 64 bits"),
        ({"hash": "c", "type": "integer"}, ["7", "u7"],
         "column 'c', row 1: 'u7' is not a number"),
        ({"hash": "c"}, [date(2024, 5, 1)],
         "column 'c', row 0: the column holds timestamp[us], not text"),
        ({"log1p": "c"}, [date(2024, 5, 1)],
         "column 'c', row 0: the column holds timestamp[us], not numbers"),
        ({"log1p": "c"}, [0, None],
         "column 'c', row 1: the number is missing, but feature 'f' needs it"),
        ({"log1p": "c"}, [0.0, -1.0],
         "column 'c', row 1: log1p of -1 is not a number"),
        ({"standardize": "c", "mean": 0, "std": 1e-10}, [0.0, 1e300],
         "column 'c', row 1: feature 'f' of 1e+300 is infinite"),
        ({"buckets": "c", "boundaries": [1]}, [0.0, math.inf],
         "column 'c', row 1: inf is not a finite number"),
        ({"buckets": "c", "boundaries": [1]}, [timedelta(1)],
         "column 'c', row 0: features cannot be computed from duration[us]"),
    ],
)  # fmt: skip
def test_a_value_without_a_result_is_an_error_with_its_row(feature, values, message):
    with pytest.raises(DataError) as caught:
        compute({"f": feature}, "f", c=values)
    assert caught.value.message == message


def test_a_number_that_is_infinite_has_a_hint():
    feature = {"f": {"buckets": "c", "boundaries": [1]}}
    with pytest.raises(DataError) as caught:
        compute(feature, "f", c=[0.0, math.inf])
    assert caught.value.hint.startswith(
        "make it a missing value, and give the value to use: "
    )


def test_values_of_python_of_several_types_are_an_error():
    with pytest.raises(
        DataError, match="str, int do not form a column: Expected bytes"
    ):
        compute({"f": {"hash": "c"}}, "f", c=["a", 1])


# Sources

COLUMNS = {
    "word": ["red", "", None, "blau", "rød", None, "red", "x" * 33],
    "id": [5, -3, 2**40, None, 0, 7, 5, 1],
    "gain": [0.0, 12.5, None, 1e6, 3.0, 99.0, 0.25, 7.0],
    "year": [1999, 2001, 2010, 1980, 2020, 1970, 1999, 2001],
}
FEATURES = {
    "word.key": {"hash": "word"},
    "id.key": {"hash": "id", "type": "integer", "seed": 5},
    "gain.bucket": {"buckets": "gain", "log": 10, "to": 1000},
    "gain.log": {"log1p": "gain"},
    "year.scaled": {"standardize": "year", "mean": 2000, "std": 10},
    "pair": {"cross": ["word", "id.key", "gain.bucket"]},
    "small": {"cross": ["word", "id.key"], "bins": 100},
}
KEYS = Column("keys", "int64", (3,))
UNSIGNED = Column("unsigned", "uint64", ())
SMALL = Column("small", "int32", ())
FLOATS = Column("floats", "float32", (3,))
MAPPING = {
    "keys": ["*.key", "pair"],
    "unsigned": "pair",
    "floats": ["gain.log", "year.scaled", "year"],
}
KINDS = ["csv", "parquet", "python"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_source_has_the_same_bits(kind, tmp_path):
    columns = dict(COLUMNS)
    if kind == "csv":  # where an empty cell is missing
        columns["word"] = [word or "missing" for word in columns["word"]]
    words = columns["word"]
    gains = [0.5 if gain is None else gain for gain in columns["gain"]]
    inputs = [KEYS, UNSIGNED, SMALL, FLOATS]
    rows = read(
        tmp_path, kind, columns, FEATURES, inputs, mapping=MAPPING,
        missing={"gain": 0.5},
    )  # fmt: skip
    of_words = [text_key(word, "word") for word in words]
    of_ids = [integer_key(number, "id", 5) for number in columns["id"]]
    buckets = [bucket(gain, [1, 10, 100, 1000]) for gain in gains]
    parts = [*zip(of_words, of_ids, strict=True)]
    pairs = [
        crossed_key([*part, integer_key(each, "gain.bucket")])
        for part, each in zip(parts, buckets, strict=True)
    ]
    wanted = np.array([of_words, of_ids, pairs], np.uint64).T
    np.testing.assert_array_equal(rows["keys"], wanted.view(np.int64))
    np.testing.assert_array_equal(rows["unsigned"], np.array(pairs, np.uint64))
    small = [crossed_key(part) % 100 for part in parts]
    np.testing.assert_array_equal(rows["small"], small)
    assert rows["small"].dtype == np.int32
    floats = np.stack(
        [np.log1p(gains), (np.array(columns["year"]) - 2000) / 10, columns["year"]]
    )
    np.testing.assert_array_equal(rows["floats"], floats.T.astype(np.float32))


def test_an_empty_cell_of_a_csv_file_is_missing(tmp_path):
    columns = {"word": ["", "  ", "a"], "n": ["NA", "", " 3 "]}
    features = {
        "key": {"hash": "word"},
        "n.key": {"hash": "n", "type": "integer"},
    }
    inputs = [KEY, Column("n.key", "int64", ())]
    rows = read(tmp_path, "csv", columns, features, inputs)
    assert rows["key"].tolist() == [
        signed(text_key(word, "word")) for word in (None, None, "a")
    ]
    assert rows["n.key"].tolist() == [
        signed(integer_key(number, "n")) for number in (None, None, 3)
    ]


@pytest.mark.parametrize("cell", ["3.0", "+3", "-7.", "9223372036854775808", "-1"])
def test_whole_numbers_of_a_csv_file_may_be_written_in_several_ways(cell, tmp_path):
    features = {"key": {"hash": "n", "type": "integer"}}
    rows = read(tmp_path, "csv", {"n": [cell, "7"]}, features, [KEY])
    wanted = [integer_key(int(float(cell)), "n"), integer_key(7, "n")]
    assert rows["key"].tolist() == [signed(key) for key in wanted]


@pytest.mark.parametrize("cells", [["18446744073709551615", "0"], ["-3.0", "12.000"]])
def test_usual_whole_numbers_of_a_csv_file_are_parsed_at_once(
    cells, tmp_path, monkeypatch
):
    """Unsigned ones, and those that pandas writes of a column with missing values."""
    monkeypatch.delattr("placer.readers.features.cells.parse_number")
    features = {"key": {"hash": "n", "type": "integer"}}
    rows = read(tmp_path, "csv", {"n": [*cells, None, ""]}, features, [KEY])
    numbers = [int(cell.split(".")[0]) for cell in cells]
    wanted = [integer_key(number, "n") for number in (*numbers, None, None)]
    assert rows["key"].tolist() == [signed(key) for key in wanted]


@pytest.mark.parametrize(
    ("cell", "feature", "message", "hint"),
    [
        ("x", {"buckets": "n", "boundaries": [1]}, "'x' is not a number",
         'to treat it as missing, write csv: {missing_values: {n: ["x"]}, missing: {n: 0}};'
         " a column of words needs features: {NAME: {hash: n}}"),
        ("1e999", {"log1p": "n"}, "'1e999' is not a finite number",
         'csv: {missing_values: {n: ["1e999"]}, missing: {n: 0}}'),
        ("1,5", {"standardize": "n", "mean": 0, "std": 1}, "'1,5' is not a number",
         "write numbers in the file like 1234.5"),
        ("2.5", {"hash": "n", "type": "integer"}, "2.5 is not a whole number", ""),
        ("9007199254740993.5", {"hash": "n", "type": "integer"},
         "9007199254740993.5 is not a whole number", ""),
        ("1e-999999999999999999999", {"hash": "n", "type": "integer"},
         "'1e-999999999999999999999' is not a number", "needs type: text"),
        ("-2", {"log1p": "n"}, "log1p of -2 is not a number", "the logarithm of 1 plus"),
    ],
)  # fmt: skip
def test_a_wrong_cell_is_an_error_with_its_line(cell, feature, message, hint, tmp_path):
    columns = {"n": ["1", "2", cell]}
    is_key = "hash" in feature
    inputs = [Column("f", "int64" if is_key else "float64", ())]
    with pytest.raises(DataError) as caught:
        open_rows(tmp_path, "csv", columns, {"f": feature}, inputs)
    assert caught.value.message == f"csv:t.csv: line 4, column 'n': {message}"
    assert hint in (caught.value.hint or "")


def test_text_in_a_column_of_integers_has_a_hint(tmp_path):
    columns, inputs = {"n": ["u7"]}, [Column("f", "int64", ())]
    features = {"f": {"hash": "n", "type": "integer"}}
    with pytest.raises(DataError, match="'u7' is not a number") as caught:
        open_rows(tmp_path, "csv", columns, features, inputs)
    assert caught.value.hint == "a hash of text needs type: text"


@pytest.mark.parametrize("kind", KINDS)
def test_one_declaration_computes_many_features(kind, tmp_path):
    columns = {f"C{i}": [str(i), "a"] for i in range(26, 0, -1)} | {"I1": [1, 2]}
    features = {"*.key": {"hash": "C*"}}
    inputs = [Column("keys", "int64", (26,))]
    rows = read(tmp_path, kind, columns, features, inputs, mapping={"keys": "C*.key"})
    for i in range(26):
        wanted = [signed(text_key(text, f"C{i + 1}")) for text in (str(i + 1), "a")]
        assert rows["keys"][:, i].tolist() == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_over_the_range_of_an_op_is_an_error(kind, tmp_path):
    limits = Range(low=0, high=1, op="e", kind="embedding")
    inputs = [Column("b", "int32", (), limits)]
    features = {"b": {"buckets": "x", "boundaries": [1, 2]}}
    with pytest.raises(DataError, match=r"column 'b'.*: 2 is outside 0-1"):
        open_rows(tmp_path, kind, {"x": [0, 1, 2]}, features, inputs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"x": {"hash": "worte"}}, "{} has no column 'worte' for feature 'x'"),
        ({"*.x": {"hash": ["word", "z*"]}, "x": {"log1p": "gain"}},
         "{} has no column 'z*' for feature '*.x'"),
        ({"x": {"log1p": "gain"}, "year": {"hash": "word"}},
         "'year' is both a feature and a column of {}"),
        ({"word.x": {"log1p": "gain"}, "*.x": {"hash": "word"}, "x": {"log1p": "gain"}},
         "two features are named 'word.x'"),
        ({"x": {"cross": ["word", "[gy]*"]}},
         "{} has no column '[gy]*' for feature 'x'"),
        ({"x": {"log1p": "g*"}}, "'x' is one feature, but 'g*' matches several columns"),
        ({"x": {"hash": "word"}},
         "{}: 'x' has 64-bit keys, but input 'x' is float64[batch]"),
    ],
)  # fmt: skip
def test_features_that_do_not_fit_the_columns_are_an_error(
    kind, features, message, tmp_path
):
    with pytest.raises(DataError) as caught:
        open_rows(tmp_path, kind, COLUMNS, features, [NUMBER], missing={"gain": 0})
    source = "python:t:rows" if kind == "python" else f"{kind}:t.{kind}"
    assert caught.value.message == message.format(source)


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_of_a_feature_may_have_the_characters_of_a_glob(kind, tmp_path):
    columns = {"gain [$]": [1, 2], "gain $": [3, 4]}
    features = {"x": {"buckets": "gain [$]", "boundaries": [2]}}
    rows = open_rows(tmp_path, kind, columns, features, [NUMBER])
    assert rows.take(np.arange(2))["x"].tolist() == [0, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_features_that_are_not_predicted_may_be_missing(kind, tmp_path):
    open_rows(tmp_path, kind, COLUMNS, {}, [Column("year", "int32", ())])
    path = {"csv": "t.csv", "parquet": "t.parquet", "python": "t:rows"}[kind]
    features = {
        "label.key": Feature(hash="label"),
        "*.other": Feature(hash="other*"),
        "key": Feature(hash="word"),
    }
    data = Data(f"{kind}:{path}", features=features)
    rows = open_source(data, [KEY], tmp_path, ReadOptions(to_predict=True))
    assert rows.rows == len(COLUMNS["word"])
    with pytest.raises(DataError, match=r"no column 'label' for input 'label\.key'"):
        open_source(
            data, [Column("label.key", "int64", ())], tmp_path,
            ReadOptions(to_predict=True),
        )  # fmt: skip


def test_a_column_that_no_feature_is_computed_from_is_an_error(tmp_path):
    columns = {"t": pa.array([0, 1], pa.time32("s"))}
    with pytest.raises(DataError, match="which features cannot be computed from"):
        open_rows(tmp_path, "parquet", columns, {"key": {"hash": "t"}}, [KEY])


@pytest.mark.parametrize("kind", KINDS)
def test_nodes_compare_the_columns_that_features_are_computed_from(kind, tmp_path):
    features = {"key": {"hash": "word"}}
    rows = open_rows(tmp_path, kind, COLUMNS, features, [KEY])
    first = rows.digests()
    changed = COLUMNS | {"word": ["green", *COLUMNS["word"][1:]]}
    second = open_rows(tmp_path, kind, changed, features, [KEY]).digests()
    assert first.whole["key"] != second.whole["key"]
    assert [a != b for a, b in zip(first.columns["key"], second.columns["key"], strict=True)] == [True] + [False] * 7  # fmt: skip
    again = open_rows(tmp_path, kind, COLUMNS, features, [KEY]).digests()
    assert again == first


@pytest.mark.parametrize("numbers", [[None, None], [Decimal("1.0"), None]])
def test_nodes_compare_columns_of_nulls_and_of_decimals(numbers, tmp_path):
    features = {"key": {"hash": "n", "type": "integer"}}

    def digest(numbers):
        rows = open_rows(tmp_path, "parquet", {"n": numbers}, features, [KEY])
        return rows.digests().whole["key"]

    first = digest(numbers)
    assert digest(numbers) == first
    assert digest([Decimal("2.0"), numbers[1]]) != first


@pytest.mark.parametrize("kind", KINDS)
def test_a_number_for_missing_ones_is_that_of_every_feature(kind, tmp_path):
    columns = {"n": [5, None, 7], "f": [0.5, None, 2.0]}
    features = {
        "key": {"hash": "n", "type": "integer"},
        "bucket": {"buckets": "n", "boundaries": [6]},
        "log": {"log1p": "f"},
    }
    inputs = [KEY, Column("bucket", "int32", ()), Column("log", "float64", ())]
    missing = {"n": 7, "f": 2}
    rows = read(tmp_path, kind, columns, features, inputs, missing=missing)
    for name in ("key", "bucket", "log"):
        _, filled, given = rows[name].tolist()
        assert filled == given


def test_a_number_for_missing_ones_has_to_fit_the_column(tmp_path):
    columns = {"n": pa.array([1, None], pa.uint8())}
    features = {"b": {"buckets": "n", "boundaries": [6]}}
    inputs = [Column("b", "int32", ())]
    with pytest.raises(
        DataError, match="holds uint8, which cannot hold the missing number -1"
    ):
        open_rows(tmp_path, "parquet", columns, features, inputs, missing={"n": -1})
    options = {"n": 0.5}
    rows = read(tmp_path, "parquet", columns, features, inputs, missing=options)
    assert rows["b"].tolist() == [0, 0]


@pytest.mark.parametrize("kind", ["parquet", "python"])
def test_large_whole_numbers_may_stand_beside_a_missing_fraction(kind, tmp_path):
    """As the option of a glob may be for other columns."""
    missing = {"*": 0.5}
    keys = {"key": {"hash": "n", "type": "integer"}}
    rows = read(tmp_path, kind, {"n": [2**60, 5]}, keys, [KEY], missing=missing)
    assert rows["key"].tolist() == [signed(integer_key(n, "n")) for n in (2**60, 5)]
    buckets = {"b": {"buckets": "n", "boundaries": [1, 6]}}
    inputs = [Column("b", "int32", ())]
    rows = read(tmp_path, kind, {"n": [2**60, None]}, buckets, inputs, missing=missing)
    assert rows["b"].tolist() == [2, 0]
    missing = {"n": 2.0**60}
    rows = read(tmp_path, kind, {"n": [0.5, None]}, buckets, inputs, missing=missing)
    assert rows["b"].tolist() == [0, 2]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_rows_of_a_window_have_the_features_of_rows_in_memory(kind, tmp_path):
    count = 2000
    columns = {
        "row": [*range(count)],
        "word": [None if i % 9 == 0 else f"w{i % 40}" for i in range(count)],
        "x": [i / 7 for i in range(count)],
    }
    features = {
        "word.key": {"hash": "word"},
        "bucket": {"buckets": "x", "boundaries": [50, 200]},
        "pair": {"cross": ["word", "bucket"]},
    }
    row = Column("row", "int32", ())
    inputs = [Column("keys", "int64", (2,)), Column("bucket", "int32", ()), row]
    mapping = {"keys": ["word.key", "pair"]}
    loaded = read(tmp_path, kind, columns, features, inputs, mapping=mapping)
    declared = {name: Feature(**feature) for name, feature in features.items()}
    data = Data(f"{kind}:t.{kind}", columns=mapping, features=declared)
    pieces = open_pieces(data, inputs, tmp_path)
    order = Order(count, 500, Window(256, lanes=4), 3, "drop")
    reader = WindowReader(order, pieces)
    batches = [reader.take(1, step, [(0, 500)]) for step in range(4)]
    numbers = np.concatenate([batch["row"] for batch in batches])
    assert sorted(numbers) == columns["row"]
    for name in ("keys", "bucket"):
        values = np.concatenate([batch[name] for batch in batches])
        np.testing.assert_array_equal(values, loaded[name][numbers])


# Python


DATASET = """
class Rows:
    def __len__(self):
        return 300

    def __getitem__(self, i):
        return {"word": f"w{i % 7}", "x": i, "size": ["small", "large"][i % 2]}

def rows():
    return Rows()

def yielded():
    data = Rows()
    return (data[i] for i in range(len(data)))
"""


@pytest.mark.parametrize("function", ["rows", "yielded"])
def test_rows_of_a_sequence_have_features_and_words(function, tmp_path):
    (tmp_path / "m.py").write_text(DATASET)
    features = {
        "*.key": Feature(hash="w*"),
        "half": Feature(standardize="x", mean=0, std=2),
    }
    data = Data(
        f"python:m:{function}",
        features=features,
        columns={"both": ["half", "x"], "key": "word.key"},
        python=Cells(vocabulary={"size": ["small", "large"]}),
    )
    inputs = [KEY, Column("both", "float32", (2,)), Column("size", "int32", ())]
    rows = open_source(data, inputs, tmp_path, ReadOptions(with_digests=True))
    numbers = np.array([299, 3, 0])
    taken = rows.take(numbers)
    wanted = [signed(text_key(f"w{i % 7}", "word")) for i in numbers]
    assert taken["key"].tolist() == wanted
    np.testing.assert_array_equal(taken["both"], np.stack([numbers / 2, numbers], 1))
    np.testing.assert_array_equal(taken["size"], numbers % 2)
    assert len(rows.digests().columns["key"]) == 256


def test_rows_of_python_have_options_of_their_columns(tmp_path):
    columns = {"size": ["small", "huge", None], "x": [1.0, None, math.nan]}
    options = Cells(
        vocabulary={"size": {"small": 1}}, unknown={"*": 9}, missing={"x": -1}
    )
    open_rows(tmp_path, "python", columns, {}, [], missing={})
    data = Data("python:t:rows", python=options)
    inputs = [Column("size", "int32", ()), NUMBER]
    rows = open_source(data, inputs, tmp_path)
    taken = rows.take(np.arange(3))
    assert taken["size"].tolist() == [1, 9, 9]
    assert taken["x"].tolist() == [1, -1, -1]
    with pytest.raises(DataError) as caught:
        open_source(
            Data("python:t:rows", python=Cells(vocabulary={"size": ["smal"]})),
            inputs[:1],
            tmp_path,
        )
    assert caught.value.message == (
        "python:t:rows: column 'size', row 0: 'small' is not in the vocabulary"
    )
