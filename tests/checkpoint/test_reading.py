"""Any range of elements of a parameter is read from any division of it into blocks, and
damage is found."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoints import ELEMENTS, value_of, write_checkpoint

from placer.checkpoint import chunked_file, manifest_check, reading, writing
from placer.checkpoint.reading import Checkpoint
from placer.errors import CheckpointError


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    """Files of many chunks, without many bytes."""
    for module in (writing, manifest_check, reading, chunked_file):
        monkeypatch.setattr(module, "CHUNK", 256)
    monkeypatch.setattr(chunked_file, "_MAX_VIEWS", 2)


def view_of(array: np.ndarray) -> memoryview:
    return array.view(np.uint8).data


@settings(max_examples=60, deadline=None)
@given(
    cuts=st.sets(st.integers(1, ELEMENTS - 1), max_size=5),
    wanted=st.lists(
        st.tuples(
            st.sampled_from(["value", "mu"]),
            st.integers(0, ELEMENTS),
            st.integers(0, ELEMENTS),
        ),
        max_size=5,
    ),
)
def test_any_range_is_read_from_any_blocks(cuts, wanted):
    bounds = [0, *sorted(cuts), ELEMENTS]
    with tempfile.TemporaryDirectory() as name:
        path = write_checkpoint(Path(name), 1, 1, blocks=list(pairwise(bounds)))
        checkpoint = Checkpoint(path)
        arrays = [
            (array, min(a, b), np.empty(abs(a - b), np.float32))
            for array, a, b in wanted
        ]
        checkpoint.read(
            [
                each
                for array, start, out in arrays
                for each in checkpoint.wanted("w", array, start, view_of(out))
            ]
        )
        for array, start, out in arrays:
            expected = value_of(array)[start : start + out.size]
            np.testing.assert_array_equal(out, expected)


def test_a_changed_byte_anywhere_is_found(tmp_path):
    path = write_checkpoint(tmp_path, 1, 1, blocks=[(0, 50), (50, ELEMENTS)])
    for file in sorted(path.glob("*.safetensors")):
        content = bytearray(file.read_bytes())
        for position in range(0, len(content), 13):
            content[position] ^= 0x10
            file.write_bytes(content)
            with pytest.raises(CheckpointError, match="is damaged"):
                Checkpoint(path).verify()
            content[position] ^= 0x10
        file.write_bytes(content)
    Checkpoint(path).verify()


def test_a_changed_byte_is_found_by_whoever_reads_its_chunk(tmp_path):
    path = write_checkpoint(tmp_path, 1, 1)
    file = path / "ps-0.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    checkpoint = Checkpoint(path)
    first, last = np.empty(1, np.float32), np.empty(1, np.float32)
    checkpoint.read(list(checkpoint.wanted("w", "value", 0, view_of(first))))
    (other,) = checkpoint.wanted("w", "mu", ELEMENTS - 1, view_of(last))
    with pytest.raises(
        CheckpointError, match=r"ps-0.safetensors: the checksum of chunk \d+ does"
    ):
        checkpoint.read([other])


def test_a_file_with_many_damaged_chunks_is_refused(tmp_path):
    """The threads that read it end, whatever each of them finds."""
    path = write_checkpoint(tmp_path, 1, 1)
    file = path / "ps-0.safetensors"
    content = bytearray(file.read_bytes())
    assert len(content) > 6 * reading.CHUNK
    for position in range(reading.CHUNK, len(content), reading.CHUNK):
        content[position] ^= 1
    file.write_bytes(content)
    checkpoint = Checkpoint(path)
    outs = {name: np.empty(ELEMENTS, np.float32) for name in ("value", "mu")}
    wanted = [
        each
        for name, out in outs.items()
        for each in checkpoint.wanted("w", name, 0, view_of(out))
    ]
    with pytest.raises(
        CheckpointError, match=r"ps-0.safetensors: the checksum of chunk \d+ does"
    ):
        checkpoint.read(wanted)


@pytest.mark.parametrize("how", ["missing", "shorter", "longer", "a folder"])
def test_a_file_that_is_not_complete_is_found_at_once(how, tmp_path):
    path = write_checkpoint(tmp_path, 1, 1)
    file = path / "ps-0.safetensors"
    content = file.read_bytes()
    file.unlink()
    if how == "a folder":
        file.mkdir()
    elif how != "missing":
        file.write_bytes(content[:-1] if how == "shorter" else content + b"x")
    with pytest.raises(CheckpointError, match=r"ps-0.safetensors: it "):
        Checkpoint(path)
