"""Texts that look like numbers are read right or are an error, from every source."""

import numpy as np
import pytest
from support.tables import data_of, prepare_of, read_all, write_table

from placer.errors import DataError
from placer.plan.settings.data.features import Feature
from placer.readers import Column

NOT_NUMBERS = [
    "1,5", "1,234", "1.234,5", "1 234", "1'234", "0x10", "0b1", "0o7", "1_0", "inf", "-inf",
    "Infinity", "nan(5)", "1e", "--3", "5-", "(5)", "$5", "5%", "1L", "1.0f", "1j", "1/2", "12:30",
    "true", "TRUE", "yes", "½", "１", "٣", "−3", "5\x00", "'5'", "1e400", "2024-05-01",
]  # fmt: skip
NUMBERS = {
    "1e5": 1e5, "+3": 3, "5.": 5, "0012": 12, "-0": 0, " 7": 7, "\t8\t": 8, "9\n": 9,
    "\u00a05": 5, "6\u3000": 6, "9007199254740993.0": 2**53 + 1,
}  # fmt: skip
KINDS = ("csv", "parquet", "python")
INPUTS = {
    "float": Column("c", "float64", ()),
    "whole": Column("c", "int64", ()),
    "number": Column("c", "float64", ()),
    "key": Column("c", "int64", ()),
}
FEATURES = {
    "number": {"c": Feature(standardize="v", mean=0, std=1)},
    "key": {"c": Feature(hash="v", type="integer", bins=2**31 - 1)},
}


def settings_of(source, what):
    features = FEATURES.get(what)
    mapping = None if features else {"c": "v"}
    return data_of(source, [INPUTS[what]], features=features, mapping=mapping)


@pytest.mark.parametrize("what", INPUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_text_that_is_no_number_is_an_error(kind, what, tmp_path):
    prepare = prepare_of(settings_of(f"{kind}:t:rows", what), [INPUTS[what]])
    for text in NOT_NUMBERS:
        source = write_table(tmp_path, kind, {"v": ["1", text], "w": ["a", "b"]})
        data = settings_of(source, what)
        with pytest.raises(DataError, match=r"not a( finite)? number"):
            read_all(tmp_path, data, [INPUTS[what]])
        with pytest.raises(ValueError, match="column 'v', row 1"):
            prepare({"v": ["1", text]})


@pytest.mark.parametrize("what", INPUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_read_however_they_are_written(kind, what, tmp_path):
    texts = [*NUMBERS]
    source = write_table(tmp_path, kind, {"v": texts, "w": ["a"] * len(texts)})
    data = settings_of(source, what)
    values = read_all(tmp_path, data, [INPUTS[what]])["c"]
    prepared = prepare_of(data, [INPUTS[what]])({"v": texts})["c"]
    np.testing.assert_array_equal(prepared, values)
    if what == "whole":
        assert values.tolist() == [*NUMBERS.values()]
    elif what != "key":
        np.testing.assert_array_equal(values, np.array([*NUMBERS.values()], float))


@pytest.mark.parametrize(
    "value", ["datetime64('2024-05-01', 'ns')", "timedelta64(5, 'ns')"]
)
def test_a_time_is_no_number(value, tmp_path):
    """The item of a datetime64 in nanoseconds is a whole number."""
    text = f"import numpy as np\n\ndef rows():\n    return [{{'v': np.{value}}}]\n"
    (tmp_path / "t.py").write_text(text)
    for what, column in INPUTS.items():
        data = settings_of("python:t:rows", what)
        with pytest.raises(DataError, match=r"'v'.*(not numbers|features cannot)"):
            read_all(tmp_path, data, [column])
        prepare = prepare_of(data, [column])
        with pytest.raises((ValueError, TypeError), match=r"number|argument"):
            prepare({"v": np.array([eval(f"np.{value}")])})


@pytest.mark.parametrize("kind", KINDS)
def test_blanks_of_other_scripts_belong_to_a_hashed_text(kind, tmp_path):
    features, texts = {"c": Feature(hash="v")}, ["\u3000日本", "日本", " 日本 "]
    source = write_table(tmp_path, kind, {"v": texts})
    data = data_of(source, [INPUTS["key"]], features=features)
    keys = read_all(tmp_path, data, [INPUTS["key"]])["c"]
    assert keys[0] != keys[1] == keys[2]
    prepared = prepare_of(data, [INPUTS["key"]])({"v": texts})["c"]
    np.testing.assert_array_equal(prepared, keys)
