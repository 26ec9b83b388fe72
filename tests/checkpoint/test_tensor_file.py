"""Tensor files are safetensors files, whose tensors can be found without reading them."""

from __future__ import annotations

import os
from math import prod
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from placer.checkpoint.tensor_file import make_header, read_header
from placer.checkpoint.writing import pieces_of_file, write_pieces

TENSORS = {
    "h.w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "h.b": np.array(3.5, np.float64),
    "empty": np.empty((0, 4), np.float16),
    "h.w/mu": np.arange(5, dtype=np.int8),
}


def write(path: Path) -> bytes:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        write_pieces(descriptor, pieces_of_file(TENSORS))
    finally:
        os.close(descriptor)
    return path.read_bytes()


def test_the_package_safetensors_reads_a_file(tmp_path):
    write(tmp_path / "file")
    loaded = load_file(tmp_path / "file")
    assert loaded.keys() == TENSORS.keys()
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(loaded[name], array)
        assert loaded[name].dtype == array.dtype


def test_the_header_says_where_each_tensor_is(tmp_path):
    content = write(tmp_path / "file")
    for name, stored in read_header(tmp_path / "file").tensors.items():
        data = content[stored.offset : stored.offset + stored.nbytes]
        array = np.frombuffer(data, stored.dtype).reshape(stored.shape)
        np.testing.assert_array_equal(array, TENSORS[name])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:5], "no safetensors header"),
        (lambda content: content[:40], "no safetensors header"),
        (lambda content: content[:-1], r"it has \d+ bytes, but its header needs"),
        (lambda content: content + b"x", r"it has \d+ bytes, but its header needs"),
        (lambda content: content.replace(b"[2,3]", b"[3,3]"), "number of bytes"),
        (lambda content: content.replace(b"[0,4]", b"[0,-]"), "."),
        (lambda content: content.replace(b'"F32"', b'"F99"'), "is not valid"),
        (lambda content: b"\xff" * 8 + content[8:], "no safetensors header"),
        (lambda content: content.replace(b"{", b"[", 1), "."),
    ],
)
def test_a_damaged_header_is_an_error(damage, message, tmp_path):
    file = tmp_path / "file"
    file.write_bytes(damage(write(tmp_path / "whole")))
    with pytest.raises(ValueError, match=message):
        read_header(file)


@pytest.mark.parametrize(
    "shape", [(0, 2**62), (2**70, 0), (1,) * 33], ids=["wide", "long", "of 33 axes"]
)
def test_the_shape_of_no_array_is_an_error(shape, tmp_path):
    """Also where it has no elements: numpy has no empty array of such a shape."""
    header, _ = make_header({"a": ("float32", shape)})
    (tmp_path / "file").write_bytes(header + bytes(4 * prod(shape)))
    with pytest.raises(ValueError, match="entry of 'a' has an invalid shape"):
        read_header(tmp_path / "file")
