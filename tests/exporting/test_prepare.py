"""prepare.py reads columns as the readers of a prediction do, with numpy only."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from safetensors.numpy import save_file
from support.exported import load_prepare, run_postprocess
from support.spec_models import initial_parameters

import placer
from placer.compiler.serving.prepare_functions import cell_number, to_dtype, word_number
from placer.errors import DataError, PlacerError
from placer.exporting.stablehlo import own_modules
from placer.plan.settings.data.columns import Column
from placer.readers.cell_numbers import CellParser
from placer.readers.column import convert

SPEC = """
name: people
nodes: {worker: {count: 1}}
inputs:
  numbers: float32[batch, 3]
  city: int32[batch]
  bought: float32[batch]
data:
  train:
    source: "csv:people.csv"
    batch: 4
    columns: {numbers: [age, "x*"], city: city, bought: bought}
    csv:
      vocabulary: {city: [Paris, Rome, "New York"], bought: ["0", "1"]}
      unknown: {city: 3}
      missing: {"a*": -1.5}
graph:
  - {name: place, op: embedding, in: city, size: [4, 2]}
  - {name: all, op: concat, in: [numbers, place]}
  - {name: logit, op: fc, in: all, size: 1}
  - {name: flat, op: reshape, in: logit, shape: [batch]}
  - {name: loss, op: sigmoid_cross_entropy, in: [flat, bought]}
train: {minimize: loss, optimizer: {op: sgd, learning_rate: 0.1}}
predict: {outputs: [logit]}
"""
TABLE = """\
age,x1,x2,city,bought
31,0.5,1,Paris,1
,2,-3e2,Oslo,0
NA,0.25,7, Rome ,0
44,1,0,New York,1
"""
COLUMNS = {
    "age": [31, None, float("nan"), "44"],
    "x1": np.array([0.5, 2, 0.25, 1]),
    "x2": ["1", "-3e2", 7, 0],
    "city": ["Paris", "Oslo", " Rome ", "New York"],
}


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    """A folder with a build of the spec, and `prepare` of its exported model."""
    folder = tmp_path_factory.mktemp("people")
    (folder / "people.yaml").write_text(SPEC)
    (folder / "people.csv").write_text(TABLE)
    plan = placer.compile(folder / "people.yaml", folder / "build")
    save_file(initial_parameters(plan), folder / "params")
    placer.export(folder / "build", folder / "model", params=folder / "params")
    return folder


@pytest.fixture(scope="module")
def prepare(people):
    return load_prepare(people / "model")


def test_columns_become_the_arguments_of_the_model(prepare):
    arguments = prepare(COLUMNS)
    assert [*arguments] == ["numbers", "city"]
    assert arguments["numbers"].dtype == np.float32
    assert arguments["numbers"].tolist() == [
        [31, 0.5, 1], [-1.5, 2, -300], [-1.5, 0.25, 7], [44, 1, 0],
    ]  # fmt: skip
    assert arguments["city"].dtype == np.int32
    assert arguments["city"].tolist() == [0, 3, 1, 2]


@pytest.fixture(scope="module")
def model(people):
    """The module `model` of the exported model."""
    with own_modules(people / "model"):
        try:
            return __import__("model")
        finally:
            sys.modules.pop("model", None)


def test_a_changed_byte_of_the_parameters_is_found(people, model, tmp_path):
    content = (people / "model" / "params.safetensors").read_bytes()
    for at in (content.index(b'"F32"') + 1, len(content) - 1):
        changed = content[:at] + bytes([content[at] ^ 0xF]) + content[at + 1 :]
        (tmp_path / "params").write_bytes(changed)
        with pytest.raises(ValueError, match="params is damaged"):
            model.load_params(tmp_path / "params")


def test_a_row_of_a_service_predicts_what_the_same_row_of_a_file_does(
    people, prepare, model
):
    params = model.load_params(people / "model" / "params.safetensors")
    got = model.model(params, **prepare(COLUMNS))
    got = run_postprocess(people / "model", got)
    wanted = placer.predict(
        people / "build",
        people / "people.csv",
        params=people / "params",
        in_process=True,
    )
    assert list(got) == list(wanted)
    assert "class" in got
    for name, column in got.items():
        if name.endswith("class"):
            np.testing.assert_array_equal(column, wanted[name])
        else:
            np.testing.assert_allclose(column, wanted[name], rtol=1e-5)


@pytest.mark.parametrize(
    ("column", "cells", "message"),
    [
        ("x1", ["a", 1, 2, 3], r"column 'x1', row 0: .*'a'"),
        ("x2", [1, 2, None, 3], "column 'x2', row 2: the value is missing"),
        ("x2", [1, 2, 1e300, 3], "column 'x2', row 2: 1e[+]300 does not fit float32"),
        ("x1", [1, 2, 3], "the columns age, x1, x2 have 4, 3, 4 rows"),
        ("city", ["Rome"] * 3, "the inputs have different numbers of rows: 4, 3"),
        ("x1", ["inf", 1, 2, 3], "column 'x1', row 0: 'inf' is not a finite number"),
        ("x1", ["1_0", 1, 2, 3], "column 'x1', row 0: '1_0' is not a number"),
        ("x1", "1234", "column 'x1' is one text, not a list of cells"),
    ],
)
def test_a_wrong_value_names_its_column(column, cells, message, prepare):
    with pytest.raises(ValueError, match=message):
        prepare(COLUMNS | {column: cells})


def test_a_glob_does_not_depend_on_the_order_of_the_columns(prepare):
    reordered = {name: COLUMNS[name] for name in ("x2", "city", "x1", "age")}
    np.testing.assert_array_equal(
        prepare(reordered | {"x0": [0, 0, 0, 0]})["numbers"],
        prepare(COLUMNS)["numbers"],
    )


def test_a_glob_whose_file_is_not_there_cannot_be_exported(people, tmp_path):
    (tmp_path / "people.yaml").write_text(SPEC)
    placer.compile(tmp_path / "people.yaml", tmp_path / "build")
    with pytest.raises(PlacerError, match=r"columns for prepare\.py are unknown"):
        placer.export(tmp_path / "build", tmp_path / "model", params=people / "params")
    assert not (tmp_path / "model").exists()


def test_a_missing_column_is_named(prepare):
    columns = {name: cells for name, cells in COLUMNS.items() if name != "city"}
    with pytest.raises(ValueError, match="there is no column 'city'"):
        prepare(columns)


def test_without_unknown_a_word_must_be_in_the_vocabulary(people, tmp_path):
    text = SPEC.replace("      unknown: {city: 3}\n", "")
    (tmp_path / "people.yaml").write_text(text)
    (tmp_path / "people.csv").write_text(TABLE)
    placer.compile(tmp_path / "people.yaml", tmp_path / "build")
    params = people / "params"
    model = placer.export(tmp_path / "build", tmp_path / "model", params=params)
    with pytest.raises(ValueError, match="row 1: 'Oslo' is not in the vocabulary"):
        load_prepare(model.folder)(COLUMNS)


def test_columns_of_a_parquet_file_are_arrays(people, tmp_path):
    text = SPEC.replace("csv:people.csv", "parquet:people.parquet")
    start, end = text.index("    csv:\n"), text.index("graph:")
    (tmp_path / "people.yaml").write_text(text[:start] + text[end:])
    table = {"age": [1.0], "x1": [2.0], "x2": [3.0], "city": [2], "bought": [0.0]}
    parquet.write_table(pa.table(table), tmp_path / "people.parquet")
    placer.compile(tmp_path / "people.yaml", tmp_path / "build")
    params = people / "params"
    prepare = load_prepare(
        placer.export(tmp_path / "build", tmp_path / "model", params=params).folder
    )
    arguments = prepare(table)
    assert arguments["numbers"].tolist() == [[1, 2, 3]]
    assert arguments["city"].tolist() == [2]
    with pytest.raises(ValueError, match="column city, row 0: 4 is outside 0-3"):
        prepare(table | {"city": [4]})
    with pytest.raises(
        ValueError, match=r"column 'city', row 0: 0\.5 does not fit int32"
    ):
        prepare(table | {"city": [0.5]})
    with pytest.raises(ValueError, match=r"column 'city', row 0: .*'Paris'"):
        prepare(table | {"city": ["Paris"]})


def test_padding_outside_the_limits_is_valid(people, tmp_path):
    text = SPEC.replace("size: [4, 2]", "size: [4, 2], padding: -1")
    text = text.replace("unknown: {city: 3}", "unknown: {city: -1}")
    (tmp_path / "people.yaml").write_text(text)
    (tmp_path / "people.csv").write_text(TABLE)
    placer.compile(tmp_path / "people.yaml", tmp_path / "build")
    params = people / "params"
    model = placer.export(tmp_path / "build", tmp_path / "model", params=params)
    assert load_prepare(model.folder)(COLUMNS)["city"].tolist() == [0, -1, 1, 2]


def test_words_and_missing_values_of_a_parquet_file(people, tmp_path):
    text = SPEC.replace("csv:people.csv", "parquet:people.parquet")
    text = text.replace("    csv:\n", "    parquet:\n")
    text = text.replace('[Paris, Rome, "New York"]', "['10', 'true', \"😀\"]")
    (tmp_path / "people.yaml").write_text(text)
    table = {
        "age": [31.0, None, 44.0],
        "x1": [0.5, 2.0, 1.0],
        "x2": [1.0, 2.0, 3.0],
        "city": ["10", "😀", "20"],
        "bought": [1.0, 0.0, 0.0],
    }
    parquet.write_table(pa.table(table), tmp_path / "people.parquet")
    placer.compile(tmp_path / "people.yaml", tmp_path / "build")
    params = people / "params"
    folder = placer.export(tmp_path / "build", tmp_path / "model", params=params).folder
    prepare = load_prepare(folder)
    assert prepare(table)["numbers"][:, 0].tolist() == [31, -1.5, 44]
    assert prepare(table)["city"].tolist() == [0, 2, 3]
    words = table | {"city": [10, True, float("nan")]}
    assert prepare(words)["city"].tolist() == [0, 1, 3]


def test_names_of_columns_are_not_code(people, tmp_path):
    name = 'C:\\users\\x"""\nraise SystemExit\n"""'
    text = SPEC.replace(
        '"x*"',
        '"x1", "' + name.encode("unicode_escape").decode().replace('"', '\\"') + '"',
    )
    (tmp_path / "people.yaml").write_text(text)
    (tmp_path / "people.csv").write_text(TABLE)
    placer.compile(tmp_path / "people.yaml", tmp_path / "build")
    params = people / "params"
    prepare = load_prepare(
        placer.export(tmp_path / "build", tmp_path / "model", params=params).folder
    )
    columns = {key: cells for key, cells in COLUMNS.items() if key != "x2"}
    got = prepare(columns | {name: COLUMNS["x2"]})
    assert got["numbers"][:, 2].tolist() == [1, -300, 7, 0]


def test_prepare_needs_numpy_only(people):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import prepare;"
        "print({'jax', 'placer', 'pyarrow'} & {*sys.modules})"
    )
    command = [sys.executable, "-I", "-c", code, str(people / "model")]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "set()\n"


@pytest.mark.parametrize(
    ("cell", "number"),
    [(True, 0), (False, 1), (2.0, 2), (2, 2), (np.float32(2), 2), ("2.0", 9), (2.5, 9)],
)
def test_words_may_come_as_booleans_and_numbers(cell, number):
    """As services send them that read JSON."""
    words = {"True": 0, "false": 1, "2": 2}
    assert word_number(cell, words, 9) == number


@pytest.mark.parametrize(
    "cell", ["0", "1", "True", "FALSE", " true ", "1.0", "+1", "00", "tRUE", "2", "1e0"]
)
def test_a_boolean_is_written_as_in_a_file_of_training(cell):
    column = Column("x", "bool", ())
    parser = CellParser("csv", "x", column, np.dtype("bool"), None, None, None)
    try:
        wanted = parser.parse(pa.array([cell]), str)[0]
    except DataError:
        with pytest.raises(ValueError, match="is not 0, 1, true or false"):
            cell_number(cell, None, "bool")
    else:
        assert cell_number(cell, None, "bool") == wanted


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_float_that_does_not_fit_is_the_same_one_as_in_training(dtype):
    """The model rounds to bfloat16, which numpy does not have."""
    column = Column("x", dtype, ())
    ends = [float.fromhex(text) for text in ("0x1.ffp127", "0x1.ffep15", "0x1p128")]
    for number in (*ends, *(np.nextafter(end, 0) for end in ends), np.inf, -3e38):
        array = np.array([1.0, -number])
        try:
            wanted = convert(array, column, "rows", "x")
        except DataError:
            with pytest.raises(ValueError, match=f"row 1: .* does not fit {dtype}"):
                to_dtype("x", array, dtype)
        else:
            np.testing.assert_array_equal(
                to_dtype("x", array, dtype).astype(wanted.dtype), wanted
            )
