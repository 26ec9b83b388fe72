"""Opening sources: bundled sets, files and functions, and their mistakes."""

import importlib.util
import marshal
import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import sklearn.datasets

from placer.errors import DataError, RunError
from placer.plan.settings.data.source import Data
from placer.readers import Column, Range, open_source

IMAGE, LABEL = Column("image", "float32", (64,)), Column("label", "int32", ())


def opened(source, columns, folder, *, mapping=None, split=None):
    return open_source(Data(source, split=split, columns=mapping), columns, folder)


def take_all(rows):
    return rows.take(np.arange(rows.rows))


@pytest.fixture
def npz(tmp_path):
    def write(**arrays):
        np.savez(tmp_path / "set.npz", **arrays)
        return "npz:set.npz"

    return write


@pytest.fixture
def module(tmp_path):
    def write(text, name="rows"):
        (tmp_path / f"{name}.py").write_text(text)
        return f"python:{name}:train"

    return write


# sklearn:


def test_digits_are_unchanged(tmp_path):
    rows = opened("sklearn:digits", [IMAGE, LABEL], tmp_path)
    arrays = take_all(rows)
    data, target = sklearn.datasets.load_digits(return_X_y=True)
    assert rows.rows == 1797
    assert arrays["image"].dtype == np.float32
    assert arrays["label"].dtype == np.int32
    np.testing.assert_array_equal(arrays["image"], data)
    np.testing.assert_array_equal(arrays["label"], target)


def test_train_and_test_split_a_fixed_permutation(tmp_path):
    train, test = (
        take_all(opened("sklearn:digits", [IMAGE, LABEL], tmp_path, split=split))
        for split in ("train", "test")
    )
    data, target = sklearn.datasets.load_digits(return_X_y=True)
    order = np.random.Generator(np.random.PCG64(0)).permutation(1797)
    assert len(test["label"]) == 1797 // 5 == 359
    np.testing.assert_array_equal(train["image"], data[order[:1438]])
    np.testing.assert_array_equal(test["image"], data[order[1438:]])
    np.testing.assert_array_equal(test["label"], target[order[1438:]])


@pytest.mark.parametrize(
    ("name", "shape", "target"),
    [
        ("breast_cancer", (30,), Column("y", "int32", ())),
        ("diabetes", (10,), Column("y", "float32", ())),
        ("iris", (4,), Column("y", "int32", ())),
        ("linnerud", (3,), Column("y", "float32", (3,))),
        ("wine", (13,), Column("y", "int32", ())),
    ],
)
def test_every_bundled_set_opens(name, shape, target, tmp_path):
    columns = [Column("x", "float32", shape), target]
    mapping = {"x": "data", "y": "target"}
    rows = opened(f"sklearn:{name}", columns, tmp_path, mapping=mapping)
    arrays = take_all(rows)
    assert arrays["x"].shape == (rows.rows, *shape)
    assert arrays["y"].shape == (rows.rows, *target.shape)
    assert np.isfinite(arrays["x"]).all()


def test_bundled_sets_are_kept_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PLACER_CACHE", str(tmp_path))
    first = take_all(opened("sklearn:digits", [IMAGE, LABEL], tmp_path))
    (file,) = tmp_path.glob("sklearn-*/digits.npz")

    def check_read():
        read = take_all(opened("sklearn:digits", [IMAGE, LABEL], tmp_path))
        for name, array in first.items():
            np.testing.assert_array_equal(read[name], array)

    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "sklearn.datasets", None)  # it cannot be imported
        check_read()
    content = file.read_bytes()
    for damaged in (b"", content[:1000], content.replace(b"target", b"tarjet")):
        file.write_bytes(damaged)
        check_read()
        assert file.read_bytes() == content
    file.parent.chmod(0o777)  # another user could have written it
    file.write_bytes(b"")
    check_read()
    assert file.read_bytes() == b""


# npz:


def test_npz_columns_by_name_and_by_mapping(npz, tmp_path):
    source = npz(x=np.arange(6.0).reshape(3, 2), y=np.arange(3), z=np.array(["a"]))
    columns = [Column("x", "float64", (2,)), Column("label", "int64", ())]
    arrays = take_all(opened(source, columns, tmp_path, mapping={"label": "y"}))
    np.testing.assert_array_equal(arrays["x"], [[0, 1], [2, 3], [4, 5]])
    np.testing.assert_array_equal(arrays["label"], [0, 1, 2])


X = Column("x", "float32", (2,))


@pytest.mark.parametrize(
    ("arrays", "columns", "message", "hint"),
    [
        (
            {"y": [1]},
            [X],
            "npz:set.npz has no column 'x' for input 'x'",
            "columns: {x:",
        ),
        (
            {"x": np.zeros((3, 2, 1))},
            [X],
            "column 'x' has shape [n, 2, 1], but input 'x' is float32[batch, 2]",
            "declare x: float32[batch, 2, 1], and reshape",
        ),
        (
            {"x": np.zeros(3)},
            [Column("x", "float32", (1,))],
            "column 'x' has shape [n], but input 'x' is float32[batch, 1]",
            "declare x: float32[batch], and reshape it in the graph to [1] per row",
        ),
        (
            {"x": 3.0},
            [X],
            "column 'x' is a single value, not rows",
            "leading dimension",
        ),
        ({"x": np.zeros((0, 2))}, [X], "column 'x' has no rows", "at least one row"),
        ({"x": [["a", "b"]]}, [X], "column 'x' holds <U1, not numbers", "float32"),
        (
            {"x": np.zeros((3, 2)), "y": np.zeros(4, np.int32)},
            [X, Column("y", "int32", ())],
            "different numbers of rows: 'x' 3, 'y' 4",
            "same example",
        ),
        (
            {"x": np.array([{}, {}])},
            [X],
            "npz:set.npz: column 'x' cannot be read: Object arrays",
            "plain arrays",
        ),
        (
            {"x": np.zeros((1, 2))},
            [Column("x", "complex64", (2,))],
            "input 'x' is complex64, which no source provides",
            "convert it in the graph",
        ),
    ],
)
def test_npz_that_does_not_fit(arrays, columns, message, hint, npz, tmp_path):
    with pytest.raises(DataError) as caught:
        opened(npz(**arrays), columns, tmp_path)
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["npz", "csv", "yielded", "asked"])
def test_every_source_provides_half_floats(kind, dtype, npz, tmp_path):
    """Values are rounded once, from those of the source."""
    values = [[0.1, 1e-3], [-3.14159, 65000.0]]
    mapping = None
    if kind == "npz":
        source = npz(x=np.array(values))
    elif kind == "csv":
        text = "\n".join(["a,b", *(f"{a},{b}" for a, b in values)])
        (tmp_path / "x.csv").write_text(text)
        source, mapping = "csv:x.csv", {"x": ["a", "b"]}
    else:
        iterable = "iter(rows)" if kind == "yielded" else "np.array(rows, object)"
        (tmp_path / "halves.py").write_text(
            f"import numpy as np\ndef f():\n    rows = [{{'x': v}} for v in {values}]\n"
            f"    return {iterable}\n"
        )
        source = "python:halves:f"
    rows = opened(source, [Column("x", dtype, (2,))], tmp_path, mapping=mapping)
    arrays = rows.take(np.arange(2))["x"]
    assert str(arrays.dtype) == dtype
    wanted = np.array(values).astype(np.dtype(dtype))
    np.testing.assert_array_equal(arrays.astype(np.float64), wanted.astype(np.float64))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["npz", "csv"])
def test_a_number_too_large_for_a_half_float_raises(kind, dtype, npz, tmp_path):
    (tmp_path / "x.csv").write_text("x\n1e39\n")
    source = npz(x=np.array([1e39])) if kind == "npz" else "csv:x.csv"
    with pytest.raises(DataError, match=f"does not fit {dtype}"):
        opened(source, [Column("x", dtype, ())], tmp_path)


def test_npz_files_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match="there is no such file"):
        opened("npz:none.npz", [X], tmp_path)
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(DataError, match=r"npz:bad.npz cannot be read"):
        opened("npz:bad.npz", [X], tmp_path)
    whole = tmp_path / "whole.npz"
    np.savez_compressed(whole, x=np.arange(4000.0))
    damaged = bytearray(whole.read_bytes())
    damaged[60:200] = bytes(140)
    (tmp_path / "bad.npz").write_bytes(damaged)
    with pytest.raises(DataError, match=r"npz:bad.npz: column 'x' cannot be read"):
        opened("npz:bad.npz", [Column("x", "float64", ())], tmp_path)
    np.save(tmp_path / "one.npy", np.zeros(3))
    large = (
        b"\x93NUMPY\x01\x00v\x00"
        + (
            b"{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000, 6), }"
        ).ljust(117)
        + b"\n"
    )
    for content in (b"hello", b"", large):
        with zipfile.ZipFile(tmp_path / "bad.npz", "w") as file:
            file.writestr("x.npy", content)
        with pytest.raises(DataError, match=r"npz:bad.npz(: column 'x')? cannot be"):
            opened("npz:bad.npz", [X], tmp_path)
    with pytest.raises(DataError, match="is a single array, not an npz file"):
        opened("npz:one.npy", [X], tmp_path)


@pytest.mark.parametrize(
    ("method", "content"),
    [
        (zipfile.ZIP_LZMA, None),  # LZMAError
        (zipfile.ZIP_BZIP2, None),  # OSError
        (zipfile.ZIP_STORED, "{'descr': '<f8', 'fortran_order': False, (\n"),
        (zipfile.ZIP_STORED, "{'descr': '<f8',\n  }\n }"),  # IndentationError
        (zipfile.ZIP_STORED, "{'descr': '<f8', 'shape': {[]: 1}}"),  # TypeError
        (zipfile.ZIP_STORED, "[" * 5000),
    ],
)
def test_a_damaged_npz_archive_is_named(method, content, tmp_path):
    member = b"\x93NUMPY\x01\x00" + bytes(2)
    if content is not None:
        text = content.encode()
        member = b"\x93NUMPY\x02\x00" + len(text).to_bytes(4, "little") + text
    with zipfile.ZipFile(tmp_path / "bad.npz", "w", method) as file:
        file.writestr("x.npy", member + bytes(400))
    damaged = bytearray((tmp_path / "bad.npz").read_bytes())
    if content is None:
        damaged[40:60] = b"\xff" * 20
    (tmp_path / "bad.npz").write_bytes(damaged)
    with pytest.raises(DataError, match=r"npz:bad.npz: column 'x' cannot be read: ."):
        opened("npz:bad.npz", [X], tmp_path)


# dtypes


@pytest.mark.parametrize(
    ("values", "dtype", "message"),
    [
        ([0, 2**31], "int32", "row 1: 2147483648 does not fit int32 of input 'k'"),
        ([-(2**31) - 1], "int32", "row 0: -2147483649 does not fit"),
        ([0, 1, -1], "uint8", "row 2: -1 does not fit uint8"),
        ([0.0, 1.5], "int32", "row 1: 1.5 does not fit int32"),
        ([np.nan], "int32", "row 0: nan does not fit"),
        ([2.0**63], "int64", "row 0: 9.223372036854776e+18 does not fit int64"),
        ([0, 1, 2], "bool", "row 2: 2 does not fit bool"),
        ([0.0, 1e300], "float32", "row 1: 1e+300 does not fit float32"),
        (np.array([2**63], np.uint64), "int64", "row 0: 9223372036854775808"),
    ],
)
def test_values_out_of_range_are_named(values, dtype, message, npz, tmp_path):
    with pytest.raises(DataError) as caught:
        opened(npz(k=np.asarray(values)), [Column("k", dtype, ())], tmp_path)
    assert f"npz:set.npz: column 'k', {message}" in caught.value.message


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([2**31 - 1, -(2**31)], "int32"),
        ([3.0, -2.0], "int32"),
        ([-(2.0**63)], "int64"),
        (np.array([2**64 - 1], np.uint64), "uint64"),
        ([True, False], "int32"),
        ([1.0, 0.0], "bool"),
        ([1, 2], "float32"),
        ([np.nan, np.inf], "float32"),
        (np.array([0.5], np.float16), "float64"),
    ],
)
def test_values_that_fit_are_converted(values, dtype, npz, tmp_path):
    rows = opened(npz(k=np.asarray(values)), [Column("k", dtype, ())], tmp_path)
    arrays = take_all(rows)["k"]
    assert arrays.dtype == dtype
    np.testing.assert_array_equal(arrays, values)


# taking rows


def test_batches_are_aligned_copies_or_written_into_out(tmp_path):
    rows = opened("sklearn:digits", [IMAGE, LABEL], tmp_path)
    data, target = sklearn.datasets.load_digits(return_X_y=True)
    chosen = np.array([5, 1796, 5])
    batch = rows.take(chosen)
    for array in batch.values():
        assert array.ctypes.data % 64 == 0
        assert array.flags.c_contiguous
    np.testing.assert_array_equal(batch["image"], data[chosen])
    out = {"image": np.empty((3, 64), "f4"), "label": np.empty(3, "i4")}
    assert rows.take(chosen, out)["image"] is out["image"]
    np.testing.assert_array_equal(out["label"], target[chosen])
    assert rows.take(np.array([], np.int64))["image"].shape == (0, 64)
    for outside in (-1, 1797):
        with pytest.raises(IndexError):
            rows.take(np.array([0, outside]))


# python:


def test_python_rows(module, tmp_path):
    source = module(
        "def train():\n"
        "    for i in range(4):\n"
        "        yield {'x': [i, i + 0.5], 'label': i, 'note': 'unused'}\n"
    )
    path = list(sys.path)
    rows = opened(source, [X, LABEL], tmp_path)
    arrays = take_all(rows)
    assert rows.rows == 4
    np.testing.assert_array_equal(arrays["x"], [[i, i + 0.5] for i in range(4)])
    np.testing.assert_array_equal(arrays["label"], range(4))
    assert arrays["label"].dtype == np.int32
    assert sys.path == path


def test_python_function_may_return_a_list_or_a_function(module, tmp_path):
    listed = module("def train():\n    return [{'label': 3}]\n", "listed")
    assert take_all(opened(listed, [LABEL], tmp_path))["label"].tolist() == [3]
    made = module("def train():\n    return lambda: [{'label': 4}]\n", "made")
    assert take_all(opened(made, [LABEL], tmp_path))["label"].tolist() == [4]


def test_a_python_module_may_import_a_module_beside_it(module, tmp_path):
    (tmp_path / "placer_test_neighbour.py").write_text("LABEL = 6\n")
    source = module(
        "from dataclasses import dataclass\n"
        "from placer_test_neighbour import LABEL\n"
        "@dataclass\nclass Row:\n    label: 'int'\n"
        "def train():\n    return [vars(Row(LABEL))]\n"
    )
    assert take_all(opened(source, [LABEL], tmp_path))["label"].tolist() == [6]
    assert not {"placer_test_neighbour", "placer_source_rows"} & set(sys.modules)


def test_a_python_function_may_import_a_module_when_it_is_called(module, tmp_path):
    (tmp_path / "late.py").write_text("LABEL = 7\n")
    source = module(
        "def train():\n    from late import LABEL\n    return [{'label': LABEL}]\n"
    )
    assert take_all(opened(source, [LABEL], tmp_path))["label"].tolist() == [7]


def test_modules_of_one_name_in_two_folders_are_distinct(module, tmp_path):
    text = "from same import LABEL\ndef train():\n    return [{'label': LABEL}]\n"
    for label in (1, 2):
        folder = tmp_path / str(label)
        folder.mkdir()
        (folder / "rows.py").write_text(text)
        (folder / "same.py").write_text(f"LABEL = {label}\n")
        arrays = take_all(opened("python:rows:train", [LABEL], folder))
        assert arrays["label"].tolist() == [label]


def test_python_modules_are_read_from_their_source_and_leave_no_bytecode(
    module, tmp_path
):
    (tmp_path / "beside.py").write_text("LABEL = 6\n")
    text = "from beside import LABEL\ndef train():\n    return [{'label': LABEL}]\n"
    source = module(text)
    opened(source, [LABEL], tmp_path)
    assert not (tmp_path / "__pycache__").exists()
    for name in ("beside", "rows"):
        plant_bytecode(tmp_path / f"{name}.py", "raise SystemExit('planted')")
    assert take_all(opened(source, [LABEL], tmp_path))["label"].tolist() == [6]


def plant_bytecode(file, text):
    """Write bytecode that Python takes for that of the file."""
    cached = Path(importlib.util.cache_from_source(file))
    cached.parent.mkdir(exist_ok=True)
    code = marshal.dumps(compile(text, file, "exec"))
    status = file.stat()
    head = importlib.util.MAGIC_NUMBER + struct.pack(
        "<III", 0, int(status.st_mtime), status.st_size
    )
    cached.write_bytes(head + code)


def test_an_exception_is_reported_with_row_and_line(module, tmp_path):
    source = module(
        "def train():\n"
        "    for i in range(30):\n"
        "        if i == 17:\n"
        "            raise ValueError('no such picture')\n"
        "        yield {'label': i}\n"
    )
    with pytest.raises(RunError) as caught:
        opened(source, [LABEL], tmp_path)
    assert caught.value.message == (
        "reader python:rows:train failed at row 17: ValueError: no such picture"
    )
    assert caught.value.hint == "see rows.py, line 4"
    assert caught.value.exit_status == 1
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_module_that_fails_to_load_is_reported_with_its_line(module, tmp_path):
    source = module("x = 1\nimport no_module_of_that_name\n")
    with pytest.raises(RunError, match="failed to load: ModuleNotFoundError") as caught:
        opened(source, [LABEL], tmp_path)
    hint = (
        "see rows.py, line 2; pip install no_module_of_that_name; your own modules"
        " must be in the folder of the spec"
    )
    assert caught.value.hint == hint
    assert "placer_source_rows" not in sys.modules


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("[]", "python:rows:train has no rows"),
        ("[(1, 2)]", "row 0 is a tuple, not a dict"),
        ("[{'labl': 1}]", "has no column 'label' for input 'label'"),
        ("[{'label': 1}, {}]", "row 1 lacks 'label', which row 0 has"),
        (
            "[{'label': 1}, {'label': 1, 'm': 0}]",
            "row 1 has 'm', which row 0 does not have",
        ),
        ("[{'label': 1}, {'label': [1]}]", "column 'label', row 1, has shape [n, 1]"),
        ("[{'label': 1}, {'label': 2**40}]", "row 1: 1099511627776 does not fit int32"),
        ("[{'label': 1}, {'label': 0.5}]", "row 1: 0.5 does not fit int32"),
        ("[{'label': 'one'}]", "column 'label', row 0: 'one' is not a number"),
        ("[{'label': [[1], [1, 2]]}]", "column 'label', row 0: "),
    ],
)
def test_python_rows_that_do_not_fit(body, message, module, tmp_path):
    with pytest.raises(DataError) as caught:
        opened(module(f"def train():\n    return {body}\n"), [LABEL], tmp_path)
    assert message in caught.value.message
    assert caught.value.hint


def test_missing_python_modules_and_functions(module, tmp_path):
    with pytest.raises(DataError, match=r"there is no rows.py"):
        opened("python:rows:train", [LABEL], tmp_path)
    module("def train_rows():\n    return []\n")
    with pytest.raises(DataError, match="has no function 'train_row'") as caught:
        opened("python:rows:train_row", [LABEL], tmp_path)
    assert caught.value.hint == "did you mean 'train_rows'?"


def test_reading_imports_no_jax(tmp_path):
    code = (
        "import sys, pathlib, placer.readers as r\n"
        "import placer.tables.initial.initial_values, placer.tables.learning_rate, placer.tables.dense\n"
        "c = [r.Column('image', 'float32', (64,))]\n"
        "r.open_source(r.Data('sklearn:digits'), c, pathlib.Path('.'))\n"
        "assert 'jax' not in sys.modules\n"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    env = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)


# Limits:


LIMITED = Column("y", "int32", (), Range(0, 9, "loss", "softmax_cross_entropy"))
HINT = "input 'y' goes to op 'loss' (softmax_cross_entropy), which takes 0 to 9"
OUTSIDE = 17 * [9] + [10]
ASKED_OUTSIDE = """
class Rows:
    def __len__(self):
        return 18
    def __getitem__(self, i):
        return {"y": 10 if i == 17 else 9}
def train():
    return Rows()
"""


def check_outside(tmp_path, read, where):
    with pytest.raises(DataError) as error:
        read()
    assert error.value.message == f"{where}: 10 is outside 0-9"
    assert error.value.hint == HINT


def test_a_value_outside_the_limits_of_an_array_names_column_and_row(tmp_path, npz):
    source = npz(y=np.array(OUTSIDE))
    where = "npz:set.npz: column 'y', row 17"
    check_outside(tmp_path, lambda: opened(source, [LIMITED], tmp_path), where)
    wide = Column("y", "int32", (2,), LIMITED.limits)
    source = npz(y=np.array(OUTSIDE, np.int32).reshape(9, 2))
    where = "npz:set.npz: column 'y', row 8"
    check_outside(tmp_path, lambda: opened(source, [wide], tmp_path), where)


def test_padding_outside_the_limits_is_valid(tmp_path, npz):
    limits = Range(0, 9, "vectors", "embedding", padding=-1)
    column = Column("y", "int32", (2,), limits)
    values = np.array([[0, -1], [9, -1], [-1, -1]], np.int32)
    rows = opened(npz(y=values), [column], tmp_path)
    np.testing.assert_array_equal(rows.take(np.arange(3))["y"], values)
    values[1, 0] = -2
    with pytest.raises(DataError, match=r"row 1: -2 is outside 0-9") as error:
        opened(npz(y=values), [column], tmp_path)
    assert error.value.hint == (
        "input 'y' goes to op 'vectors' (embedding), which takes 0 to 9, and -1 as"
        " padding"
    )


def test_a_value_outside_the_limits_of_a_split_names_the_split(tmp_path):
    few = Column("y", "int32", (), Range(0, 1, "loss", "softmax_cross_entropy"))
    with pytest.raises(DataError, match=r"row \d+ of split 'train': 2 is outside 0-1"):
        opened("sklearn:iris", [few], tmp_path, split="train")


def test_a_value_outside_the_limits_of_a_text_file_names_the_line(tmp_path):
    (tmp_path / "t.csv").write_text("y\n" + "\n".join(map(str, OUTSIDE)))
    where = "csv:t.csv: line 19, column 'y'"
    check_outside(tmp_path, lambda: opened("csv:t.csv", [LIMITED], tmp_path), where)


def test_a_value_outside_the_limits_of_yielded_rows_names_the_row(tmp_path, module):
    source = module(f"def train():\n    return [{{'y': y}} for y in {OUTSIDE}]\n")
    where = "python:rows:train: column 'y', row 17"
    check_outside(tmp_path, lambda: opened(source, [LIMITED], tmp_path), where)


def test_a_value_outside_the_limits_of_map_style_rows_names_the_row(tmp_path, module):
    rows = opened(module(ASKED_OUTSIDE), [LIMITED], tmp_path)
    assert rows.take(np.arange(17))["y"].tolist() == OUTSIDE[:17]
    where = "python:rows:train: column 'y', row 17"
    check_outside(tmp_path, lambda: rows.take(np.array([3, 17, 4])), where)


def test_values_at_the_limits_are_accepted(tmp_path, npz):
    rows = opened(npz(y=np.array([0, 9, 0])), [LIMITED], tmp_path)
    assert take_all(rows)["y"].tolist() == [0, 9, 0]
