"""A table is read alike from a CSV file, a Parquet file and rows of Python, into memory
and by pieces, and by prepare.py."""

from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from support.tables import data_of, prepare_of, read_all, read_pieces, write_table

from placer.errors import DataError
from placer.plan.settings.data.features import Feature
from placer.readers import Column

FLOAT = Column("c", "float32", ())
DOUBLE = Column("c", "float64", ())
WHOLE = Column("c", "int64", ())
FLAG = Column("c", "bool", ())
CODE = Column("c", "int32", ())
HASH = {"c": Feature(hash="v")}
HASH_INTEGER = {"c": Feature(hash="v", type="integer")}
BUCKET = {"c": Feature(buckets="v", boundaries=[0.1, 1])}
DAYS = {"c": Feature(days="v")}
DECIMALS = [Decimal("0.10"), None, Decimal("-3.00"), Decimal("123456789.12")]
LARGE = [Decimal(2**53 + 1), Decimal(-7), Decimal(0), None]
EXACT = pa.decimal128(30, 20)  # Arrow itself would round 0.3 to another float
UTF8 = [b"a", "ä".encode(), None, b" a "]


@dataclass
class Case:
    """A column `v` of Arrow, its cells in a CSV file, and the input that reads it."""

    input: Column
    array: pa.Array
    cells: list[str]
    options: dict = field(default_factory=dict)
    features: dict | None = None
    python: bool = True  # whether its values are rows of Python


FILLED = {"missing": {"v": -2}}
WORDS = {"vocabulary": {"v": ["1", "2", "true", "0.1", "a", "ä"]}, "unknown": {"v": 9}}
CASES = {
    "decimals": Case(
        FLOAT, pa.array(DECIMALS), ["0.10", "", "-3.00", "123456789.12"], FILLED
    ),
    "exact decimals": Case(
        DOUBLE,
        pa.array([Decimal("0.3"), Decimal("2.675"), Decimal("1e-20")], EXACT),
        ["0.3", "2.675", "1e-20"],
    ),
    "whole decimals": Case(
        WHOLE, pa.array(LARGE), ["9007199254740993", "-7", "0", ""], FILLED
    ),
    "decimals in buckets": Case(
        CODE,
        pa.array([Decimal("0.1"), None, Decimal("0.099999"), Decimal(4)], EXACT),
        ["0.1", "", "0.099999", "4"],
        features=BUCKET,
    ),
    "decimal words": Case(
        CODE, pa.array([Decimal(2), None, Decimal(1)]), ["2", "", "1"], WORDS
    ),
    "nulls": Case(FLOAT, pa.nulls(3), ["", "", ""], FILLED),
    "null integers": Case(WHOLE, pa.nulls(3, pa.int8()), ["", "NA", ""], FILLED),
    "null words": Case(CODE, pa.nulls(3), ["", "", ""], WORDS),
    "null keys": Case(WHOLE, pa.nulls(3), ["", "", ""], features=HASH),
    "null buckets": Case(CODE, pa.nulls(3), ["", "", ""], features=BUCKET),
    "null days": Case(FLOAT, pa.nulls(2), ["", ""], FILLED, DAYS),
    "booleans": Case(
        FLAG, pa.array([True, None, False]), ["true", "", "False"], {"missing": {"v": 1}}
    ),
    "boolean keys": Case(
        WHOLE, pa.array([True, False, None]), ["true", "false", ""], features=HASH
    ),
    "boolean integers": Case(
        WHOLE, pa.array([True, False, None]), ["1", "0", ""], features=HASH_INTEGER
    ),
    "boolean buckets": Case(
        CODE, pa.array([True, False, None]), ["1", "0", ""], features=BUCKET
    ),
    "boolean words": Case(CODE, pa.array([True, None]), ["true", ""], WORDS),
    "bytes as keys": Case(WHOLE, pa.array(UTF8), ["a", "ä", "", "a"], features=HASH),
    "large bytes": Case(
        WHOLE, pa.array(UTF8, pa.large_binary()), ["a", "ä", "", "a"], features=HASH
    ),
    "bytes of one size": Case(
        WHOLE, pa.array([b"ab", None], pa.binary(2)), ["ab", ""], features=HASH
    ),
    "a dictionary of bytes": Case(
        WHOLE, pa.array(UTF8).dictionary_encode(), ["a", "ä", "", "a"], features=HASH
    ),
    "bytes as words": Case(CODE, pa.array(UTF8), ["a", "ä", "", "a"], WORDS),
    "bytes as numbers": Case(FLOAT, pa.array([b"1.5", b"2"]), ["1.5", "2"]),
    "bytes as dates": Case(
        FLOAT, pa.array([b"2024-05-01"]), ["2024-05-01"], features=DAYS
    ),
    "double codes": Case(
        CODE, pa.array([1.0, None, 2.0, np.nan, 3.0]), ["1", "", "2", "", "3"], WORDS
    ),
    "float words": Case(
        CODE, pa.array([np.float32(0.1), 1], pa.float32()), ["0.1", "1"], WORDS,
        python=False,
    ),
    "written double codes": Case(
        CODE, pa.array([1.0, 2.0]), ["1.0", "2"],
        {"vocabulary": {"v": {"1": 5, "1.0": 6, "2": 7}}},
    ),
    "text": Case(FLOAT, pa.array(["1.5", "n/a", None, " 7 "]), ["1.5", "n/a", "", " 7 "], FILLED),
    "text as integers": Case(
        WHOLE, pa.array(["9007199254740993", "3.0"]), ["9007199254740993", "3.0"]
    ),
    "text as keys of integers": Case(
        WHOLE, pa.array(["7.0", "NA", "-1"]), ["7.0", "NA", "-1"], features=HASH_INTEGER
    ),
    "text as flags": Case(FLAG, pa.array(["true", "0"]), ["true", "0"]),
    "text in a dictionary": Case(
        FLOAT, pa.array(["1", "2", "1"]).dictionary_encode(), ["1", "2", "1"]
    ),
    "large unsigned": Case(
        Column("c", "uint64", ()), pa.array([2**64 - 1, 0], pa.uint64()),
        ["18446744073709551615", "0"],
    ),
    "half floats": Case(
        FLOAT, pa.array(np.float16([0.5, np.nan])), ["0.5", ""], FILLED
    ),
    "dates": Case(
        FLOAT, pa.array([date(2024, 5, 1), None]), ["2024-05-01", ""], FILLED, DAYS
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_table_is_read_alike_from_every_source(name, tmp_path):
    case = CASES[name]
    inputs = [case.input]
    values = {"csv": case.cells, "parquet": case.array}
    if case.python:
        values["python"] = case.array.to_pylist()
    wanted = None
    for kind, column in values.items():
        # A second column, since a line without any cell is no row.
        source = write_table(tmp_path, kind, {"v": column, "w": [1] * len(column)})
        mapping = None if case.features else {"c": "v"}
        data = data_of(
            source, inputs, features=case.features, mapping=mapping, **case.options
        )
        rows = read_all(tmp_path, data, inputs)["c"]
        wanted = rows if wanted is None else wanted
        assert rows.dtype == wanted.dtype
        np.testing.assert_array_equal(rows, wanted)
        if kind != "python":
            by_pieces = read_pieces(tmp_path, data, inputs)["c"]
            np.testing.assert_array_equal(by_pieces, wanted)
        if case.python and kind == "parquet":
            prepared = prepare_of(data, inputs)({"v": case.array.to_pylist()})["c"]
            np.testing.assert_array_equal(prepared, wanted)


@pytest.mark.parametrize(
    ("input_", "features", "options"),
    [
        (WHOLE, HASH, {}),
        (CODE, BUCKET, {}),
        (FLOAT, DAYS, {}),
        (FLOAT, None, {}),
        (CODE, None, WORDS),
    ],
)
def test_bytes_that_are_no_text_are_an_error_with_their_row(
    input_, features, options, tmp_path
):
    array = pa.array([b"1"] * 4 + [b"\xff"])
    source = write_table(tmp_path, "parquet", {"v": array})
    mapping = None if features else {"c": "v"}
    data = data_of(source, [input_], features=features, mapping=mapping, **options)
    if features == DAYS:
        array = pa.array([b"2024-05-01"] * 4 + [b"\xff"])
        write_table(tmp_path, "parquet", {"v": array})
    for read in (read_all, read_pieces):
        with pytest.raises(DataError, match="'v', row 4: its bytes are not UTF-8"):
            read(tmp_path, data, [input_])
