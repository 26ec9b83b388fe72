"""Features of dates and times, in every kind of source and in prepare.py."""

from datetime import UTC, date, datetime, timedelta, timezone
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tables import data_of, prepare_of, read_all, read_pieces, write_table

from placer.errors import DataError
from placer.plan.settings.data.features import Feature
from placer.readers import Column
from placer.readers.features.times import _cast, parse_times
from placer.readers.times import DAY, parse_time, time_of

FEATURES = {
    "days": Feature(days="t"),
    "age": Feature(days="t", since="2024-02-28"),
    "hour": Feature(hour="t"),
    "weekday": Feature(weekday="t"),
    "scaled": Feature(standardize="days", mean=19000, std=100),
    "week": Feature(buckets="age", boundaries=[0, 7]),
    "pair": Feature(cross=["hour", "weekday"], bins=1000),
}
INPUTS = [
    Column("floats", "float64", (3,)),
    Column("parts", "int32", (2,)),
    Column("ids", "int32", (2,)),
]
MAPPING = {
    "floats": ["days", "age", "scaled"],
    "parts": ["hour", "weekday"],
    "ids": ["week", "pair"],
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DATES = [date(2024, 2, 29), date(1969, 12, 31), date(1970, 1, 1), date(2100, 3, 1)]
TIMES = [
    datetime(2024, 2, 29, 23, 59, 59, 999999, UTC),
    datetime(1969, 12, 31, 5, 6, 7, 250, UTC),
    datetime(1970, 1, 1, 0, 0, 0, 1, UTC),
    datetime(2100, 3, 1, 12, tzinfo=UTC),
]


def wanted(times):
    """The inputs by plain formulas."""
    days, age = [], []
    for time in times:
        exact = Fraction((time - EPOCH) // timedelta(microseconds=1), 86_400_000_000)
        whole = exact.numerator // exact.denominator
        days.append(whole + float(exact - whole))
        age.append(whole - 19781 + float(exact - whole))
    scaled = (np.array(days) - 19000) / 100
    return {
        "floats": np.array([days, age, scaled]).T,
        "parts": np.array([[time.hour, time.weekday()] for time in times]),
    }


def read_everywhere(folder, source, columns, times):
    """Read a source in every way; check the values, and that all have the same."""
    data = data_of(source, INPUTS, features=FEATURES, mapping=MAPPING)
    rows = read_all(folder, data, INPUTS)
    for name, values in wanted(times).items():
        np.testing.assert_array_equal(rows[name], values)
    others = [prepare_of(data, INPUTS)(columns)]
    if not source.startswith("python"):
        others.append(read_pieces(folder, data, INPUTS))
    for name, values in rows.items():
        for other in others:
            np.testing.assert_array_equal(other[name], values)
    return rows["ids"].tolist()


def written(times, form):
    """The text of times in the zone of a form, and the form itself."""
    hours, pattern = form
    zone = timezone(timedelta(hours=hours))
    return [time.astimezone(zone).strftime(pattern) for time in times]


AT_NIGHT = [datetime(d.year, d.month, d.day, tzinfo=UTC) for d in DATES]
FORMS = {
    "UTC": (TIMES, (0, "%Y-%m-%dT%H:%M:%S.%fZ")),
    "no zone": (TIMES, (0, " %Y-%m-%d %H:%M:%S.%f ")),
    "zone": (TIMES, (-3.5, "%Y-%m-%d %H:%M:%S.%f-03:30")),
    "nanoseconds": (TIMES, (2, "%Y-%m-%dT%H:%M:%S.%f000+0200")),
    "dates": (AT_NIGHT, (0, "%Y-%m-%d")),
    "minutes": (AT_NIGHT, (1, "%Y-%m-%dT%H:%M+01")),
}
ARRAYS = {
    "date32": (AT_NIGHT, pa.array(DATES, pa.date32())),
    "date64": (AT_NIGHT, pa.array(DATES, pa.date64())),
    "s": (AT_NIGHT, pa.array(AT_NIGHT, pa.timestamp("s", "Asia/Tokyo"))),
    "ms": (AT_NIGHT, pa.array(AT_NIGHT, pa.timestamp("ms"))),
    "us": (TIMES, pa.array(TIMES, pa.timestamp("us", "America/New_York"))),
    "ns": (TIMES, pa.array(TIMES, pa.timestamp("ns"))),
}


@pytest.mark.parametrize("form", FORMS)
def test_texts_in_every_form_are_the_same_times(form, tmp_path):
    times, how = FORMS[form]
    texts = {"t": written(times, how)}
    ids = [
        read_everywhere(tmp_path, write_table(tmp_path, kind, columns), texts, times)
        for kind, columns in [
            ("csv", texts),
            ("python", texts),
            ("parquet", texts),
            ("parquet", {"t": pa.array(texts["t"]).dictionary_encode()}),
        ]
    ]
    assert ids[0] == ids[1] == ids[2] == ids[3]


@pytest.mark.parametrize("type_", ARRAYS)
def test_arrow_types_have_the_times_of_texts(type_, tmp_path):
    times, array = ARRAYS[type_]
    source = write_table(tmp_path, "parquet", {"t": array})
    values = array.to_pylist() if type_ != "ns" else [np.datetime64(t.replace(tzinfo=None), "ns") for t in times]  # fmt: skip
    read_everywhere(tmp_path, source, {"t": values}, times)


@pytest.mark.parametrize(
    ("times", "values"),
    [
        (AT_NIGHT, DATES),
        (TIMES, TIMES),
        (TIMES, [time.replace(tzinfo=None) for time in TIMES]),
        (TIMES, [np.datetime64(t.replace(tzinfo=None), "ns") for t in TIMES]),
        (AT_NIGHT, np.array(DATES, "datetime64[D]")),
        (AT_NIGHT, [DATES[0], AT_NIGHT[1], "1970-01-01", np.datetime64("2100-03-01")]),
    ],
)
def test_values_of_python_are_times(times, values, tmp_path):
    source = write_table(tmp_path, "python", {"t": [*values]})
    read_everywhere(tmp_path, source, {"t": values}, times)


def test_a_time_of_pandas_has_nanoseconds():
    class Timestamp(datetime):
        nanosecond = 7

    assert time_of(Timestamp(1970, 1, 2, microsecond=5)) == (1, 5007)
    with pytest.raises(ValueError, match="5 is not a date"):
        time_of(5)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    time=st.datetimes(timezones=st.sampled_from([None, UTC, timezone(timedelta(hours=-9.5))])),
    digits=st.integers(0, 9),
)  # fmt: skip
def test_any_time_is_parsed_as_datetime_parses_it(time, digits):
    text = time.replace(microsecond=0).isoformat()
    fraction = f"{time.microsecond:06}123"[:digits]
    if digits:
        text = f"{text[:19]}.{fraction}{text[19:]}"
    exact = time.replace(microsecond=0, tzinfo=UTC) - (time.utcoffset() or timedelta())
    nanoseconds = int(fraction.ljust(9, "0")) if digits else 0
    whole = (exact - EPOCH) // timedelta(seconds=1) * 10**9 + nanoseconds
    assert parse_time(text) == divmod(whole, DAY)
    days, rest = parse_times(pa.array([text]), str)
    assert (days[0], rest[0]) == divmod(whole, DAY)


BASES = [
    "2024-05-01", "2024-02-30T12:30", "2024-05-01 12:30:15.25+02:00", "0000-01-01",
    "1600-02-29T23", "0001-01-01 00:00+01", "2024-05-01T10Z", "2024-05-01T24:00", "1900-02-29",
]  # fmt: skip


@settings(derandomize=True, deadline=None, max_examples=400)
@given(
    base=st.sampled_from(BASES),
    at=st.integers(0, 30),
    cut=st.integers(0, 2),
    put=st.text("0123456789-:T Z+.", max_size=2),
)
def test_arrow_parses_only_what_python_parses_likewise(base, at, cut, put):
    text = base[:at] + put + base[at + cut :]
    fast = _cast(pa.array([text]))
    if fast is not None:
        assert (fast[0][0], fast[1][0]) == parse_time(text)


@pytest.mark.parametrize("kind", ["csv", "parquet", "python"])
def test_a_missing_date_has_an_id_or_a_number(kind, tmp_path):
    columns = {"t": ["2024-05-01T10", "n/a", "", "never"]}
    source = write_table(tmp_path, kind, columns)
    parts, days = [INPUTS[1]], [Column("days", "float32", ())]
    mapping, more = {"parts": MAPPING["parts"]}, {"missing_values": ["never"]}
    data = data_of(source, parts, features=FEATURES, mapping=mapping, **more)
    rows = read_all(tmp_path, data, parts)
    assert rows["parts"].tolist() == [[10, 2], [24, 7], [24, 7], [24, 7]]
    prepared = prepare_of(data, parts)(columns)
    np.testing.assert_array_equal(prepared["parts"], rows["parts"])

    data = data_of(source, days, features=FEATURES, **more)
    where = "line 3, column 't'" if kind == "csv" else "column 't', row 1"
    message = f"{where}: the date is missing, but feature 'days' needs it"
    with pytest.raises(DataError, match=message) as caught:
        read_all(tmp_path, data, days)
    assert f"{kind}: {{missing: {{t: 0}}}}" in caught.value.hint
    with pytest.raises(ValueError, match="column 't', row 1: the date is missing"):
        prepare_of(data, days)(columns)

    mapping |= {"floats": ["days", "age", "scaled"]}
    inputs = [INPUTS[0], *parts]
    more |= {"missing": {"t": 19781.5}, "features": FEATURES, "mapping": mapping}
    data = data_of(source, inputs, **more)
    rows = read_all(tmp_path, data, inputs)
    assert rows["floats"][1].tolist() == [19781.5, 0.5, 7.815]
    assert rows["parts"].tolist() == [[10, 2], *[[12, 2]] * 3]
    prepared = prepare_of(data, inputs)(columns)
    for name, values in rows.items():
        np.testing.assert_array_equal(prepared[name], values)


def test_nulls_and_nat_are_missing_dates(tmp_path):
    parts, mapping = [INPUTS[1]], {"parts": MAPPING["parts"]}
    arrays = [
        pa.array([date(2024, 5, 1), None]),
        pa.array([datetime(2024, 5, 1), None], pa.timestamp("ns", "UTC")),
    ]
    for array in arrays:
        source = write_table(tmp_path, "parquet", {"t": array})
        data = data_of(source, parts, features=FEATURES, mapping=mapping)
        rows = read_all(tmp_path, data, parts)
        assert rows["parts"].tolist() == [[0, 2], [24, 7]]
    values = np.array(["2024-05-01", "NaT"], "datetime64[s]")
    prepared = prepare_of(data, parts)({"t": values})
    np.testing.assert_array_equal(prepared["parts"], rows["parts"])
    (tmp_path / "t.py").write_text(
        "import numpy as np\n\ndef rows():\n"
        "    for day in np.array(['2024-05-01', 'NaT'], 'datetime64[s]'):\n"
        "        yield {'t': day}\n"
    )
    data = data_of("python:t:rows", parts, features=FEATURES, mapping=mapping)
    rows = read_all(tmp_path, data, parts)
    assert rows["parts"].tolist() == [[0, 2], [24, 7]]


@pytest.mark.parametrize(
    "text",
    ["2024-02-30", "2024-13-01", "20240501", "05/01/2024", "2024-05-01T24:00", "19000",
     "2024-05-01T10:60", "2024-05-01 10:00 CET", "2024-05-01+02:00", "12:30", "0000-01-01"],
)  # fmt: skip
def test_a_text_that_is_no_date_is_an_error_with_its_row(text, tmp_path):
    columns = {"t": ["2024-05-01T10", text]}
    inputs = [Column("days", "float32", ())]
    for kind, where in [
        ("csv", "csv:t.csv: line 3, column 't'"),
        ("parquet", "parquet:t.parquet: column 't', row 1"),
        ("python", "python:t:rows: column 't', row 1"),
    ]:
        source = write_table(tmp_path, kind, columns)
        data = data_of(source, inputs, features=FEATURES)
        with pytest.raises(DataError) as caught:
            read_all(tmp_path, data, inputs)
        message = f"{where}: {text!r} is not a date or a time"
        assert caught.value.message == message
        assert "2024-05-01T12:30" in caught.value.hint
    with pytest.raises(ValueError, match=r"column 't', row 1: .* is not a "):
        prepare_of(data, inputs)(columns)


@pytest.mark.parametrize(
    "column", [pa.array([19000]), pa.array([0.5]), pa.array([0], pa.time32("s"))]
)
def test_a_column_without_dates_is_an_error(column, tmp_path):
    inputs = [Column("days", "float32", ())]
    source = write_table(tmp_path, "parquet", {"t": column})
    data = data_of(source, inputs, features=FEATURES)
    with pytest.raises(DataError, match=r"column 't'.* holds "):
        read_all(tmp_path, data, inputs)
