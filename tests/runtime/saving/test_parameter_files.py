"""Files of whole parameters."""

import fcntl
import json
import os
import resource
import signal
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from placer.checkpoint import chunked_file, own_checksums, writing
from placer.errors import DataError
from placer.place.types import TensorType
from placer.runtime.saving import parameter_files

PARAMETERS = {
    "h1.w": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "gain": np.array(2.5, np.float64),
    "a": np.zeros(0, np.float32),
}
DECLARED = {
    "h1.w": TensorType("float32", (3, 2)),
    "gain": TensorType("float64"),
    "a": TensorType("float32", (0,)),
}


def test_saved_parameters_are_loaded(tmp_path):
    path = tmp_path / "p.safetensors"
    parameter_files.save(path, PARAMETERS)
    loaded = parameter_files.load(path)
    assert loaded.keys() == PARAMETERS.keys()
    for name, array in PARAMETERS.items():
        assert loaded[name].dtype == array.dtype
        assert loaded[name].shape == array.shape
        np.testing.assert_array_equal(loaded[name], array)
    types = {n: TensorType(str(a.dtype), a.shape) for n, a in loaded.items()}
    parameter_files.check(types, DECLARED)
    assert [p.name for p in tmp_path.iterdir()] == ["p.safetensors"]


def test_the_bytes_do_not_depend_on_the_order(tmp_path):
    parameter_files.save(tmp_path / "a", PARAMETERS)
    parameter_files.save(tmp_path / "b", dict(reversed(PARAMETERS.items())))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_bytes_are_those_of_the_safetensors_package(tmp_path):
    mixed = PARAMETERS | {
        "wörter": np.ones((2, 1), ml_dtypes.bfloat16),
        "half": np.ones(3, np.float16),
        "b": np.ones((1, 2), np.float64),
    }
    parameter_files.save(tmp_path / "p", mixed)
    contiguous = {name: np.asarray(array, order="C") for name, array in mixed.items()}
    with safetensors.safe_open(tmp_path / "p", "np") as file:
        metadata = file.metadata()
    whole = safetensors.numpy.save(contiguous, metadata)
    assert (tmp_path / "p").read_bytes() == whole


def test_each_changed_byte_of_a_file_is_found(tmp_path, monkeypatch):
    """Of the header, which has names, types and checksums, and of the values. Without the
    name of its checksums it is a file of another tool, with the same values."""
    for module in (writing, chunked_file, own_checksums):
        monkeypatch.setattr(module, "CHUNK", 16)
    file, key = tmp_path / "p", own_checksums.KEY.encode()
    parameter_files.save(file, PARAMETERS | {"b": np.ones(9, np.float32)})
    content = file.read_bytes()
    name = content.index(key)
    for at in {*range(len(content))} - {*range(name, name + len(key))}:
        changed = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        with pytest.raises((DataError, ValueError)):
            own_checksums.check_content("p", changed)
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match="p is damaged: the checksum of chunk 4 does"):
        parameter_files.load(file)


def test_a_file_without_checksums_is_read(tmp_path):
    """Of an older placer, and of other tools, which may have other metadata."""
    values = {"a": np.arange(3, dtype=np.float32)}
    for metadata in (None, {"format": "pt"}):
        safetensors.numpy.save_file(values, tmp_path / "p", metadata)
        np.testing.assert_array_equal(
            parameter_files.load(tmp_path / "p")["a"], values["a"]
        )


KILLED = """
import os, signal, sys
from pathlib import Path
from placer.system.files.atomic import atomic_file
if sys.argv[2] == "named":
    os.O_TMPFILE = os.O_DIRECTORY  # as on a file system without nameless files
with atomic_file(Path(sys.argv[1]), 0o644) as file:
    file.write(bytes(1 << 20))
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("way", ["nameless", "named"])
def test_a_killed_writer_leaves_no_files(way, tmp_path):
    path = tmp_path / "p[1]"
    parameter_files.save(path, PARAMETERS)
    before = path.read_bytes()
    killed = subprocess.run([sys.executable, "-c", KILLED, path, way])
    assert killed.returncode == -signal.SIGKILL
    assert path.read_bytes() == before
    if way == "named":
        assert len(list(tmp_path.iterdir())) == 2
        parameter_files.save(path, PARAMETERS)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before


def test_a_file_of_another_writer_is_not_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)
    other = tmp_path / ".p.1.tmp"
    with other.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        parameter_files.save(tmp_path / "p", PARAMETERS)
        assert other.exists()


def test_a_full_disk_leaves_the_old_file(tmp_path):
    path = tmp_path / "p"
    parameter_files.save(path, PARAMETERS)
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 10, limits[1]))
    try:
        with pytest.raises(DataError, match=r"cannot be written to .*: File too large"):
            parameter_files.save(path, {"w": np.ones(1 << 10)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_save_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "p"
    path.mkdir()
    with pytest.raises(DataError, match="cannot be written"):
        parameter_files.save(path, PARAMETERS)
    with pytest.raises(DataError, match="cannot be written"):
        parameter_files.save(tmp_path / "nowhere" / "p", PARAMETERS)
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match=r"the parameter file .* does not exist"):
        parameter_files.load(tmp_path / "none")
    (tmp_path / "bad").write_bytes(b"not safetensors at all")
    with pytest.raises(DataError, match="cannot be read as parameters"):
        parameter_files.load(tmp_path / "bad")


@pytest.mark.parametrize(
    ("dtype", "shape"), [("F8_E4M3", [0]), ("C64", [0]), ("F16", [0, 2**63 - 1])]
)
def test_a_file_with_unsupported_tensors_cannot_be_read(dtype, shape, tmp_path):
    entry = {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]}
    header = json.dumps({"w": entry}).encode()
    (tmp_path / "w").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(DataError, match="cannot be read as parameters"):
        parameter_files.load(tmp_path / "w")


def test_a_parameter_that_resembles_none_of_many_has_no_hint():
    declared = {f"layer{i}.w": TensorType("float32") for i in range(100)}
    with pytest.raises(DataError) as caught:
        parameter_files.check({**declared, "zzz": TensorType("float32")}, declared)
    assert caught.value.message.endswith("parameter zzz is not in the model")


def test_the_parameters_of_another_model_are_counted():
    declared = {f"layer{i:02}.w": TensorType("float32") for i in range(50)}
    with pytest.raises(DataError) as caught:
        parameter_files.check({}, declared)
    assert caught.value.message.endswith(
        "; parameter layer09.w is missing; and 40 more parameters differ"
    )


def test_every_parameter_that_does_not_fit_is_named():
    stored = {
        "h1.W": TensorType("float32", (3, 2)),
        "gain": TensorType("float32"),
        "a": TensorType("float32", (1,)),
    }
    with pytest.raises(DataError) as caught:
        parameter_files.check(stored, DECLARED)
    message = caught.value.message
    assert "parameter h1.w is missing" in message
    assert "parameter h1.W is not in the model; did you mean 'h1.w'?" in message
    assert "parameter gain is float32[], the model has float64[]" in message
    assert "parameter a is float32[1], the model has float32[0]" in message
