"""ZeroMQ frames: valid ones round-trip, all others are refused."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.channel import frame_bodies, payload
from placer.channel.frame_bodies import InvalidFrame
from placer.channel.protocol import Cause, Key
from placer.channel.zeromq import frames
from placer.channel.zeromq.frames import Kind
from placer.errors import RunError

JOB = frames.job_digest("test job")
STAMP = frames.Stamp(source=1, incarnation=7, job=JOB)
INT64 = st.integers(-(2**63), 2**63 - 1)


def message_frame(types: object, key: bytes = bytes(24)) -> bytes:
    return STAMP.header(Kind.MESSAGE) + key + msgspec.msgpack.encode(types)


@given(
    kind=st.sampled_from(Kind),
    numbers=st.tuples(*[st.integers(0, 2**64 - 1)] * 3),
    flags=st.integers(0, 255),
)
@settings(derandomize=True, deadline=None)
def test_headers_round_trip(kind, numbers, flags):
    frame = STAMP.header(kind, *numbers, flags=flags)
    assert len(frame) == frames.HEADER.size == 56
    assert frames.read_header(frame, JOB) == (kind, flags, 1, 7, *numbers)


@given(key=st.builds(Key, INT64, INT64, INT64), rows=st.integers(0, 5))
@settings(derandomize=True, deadline=None)
def test_contents_round_trip(key, rows):
    arrays = [np.zeros((rows, 3), np.float32), np.array(1), np.zeros((0, 2**40), "?")]
    frame = STAMP.header(Kind.MESSAGE) + frames.encode_contents(key, arrays)
    nbytes = sum(array.nbytes for array in arrays)
    read_key, types = frames.read_contents(frame, nbytes, 1000)
    assert read_key == key
    assert types.types == tuple((array.dtype, array.shape) for array in arrays)


@given(st.binary(max_size=200))
@settings(derandomize=True, deadline=None, max_examples=300)
def test_arbitrary_bytes_are_refused(junk):
    with pytest.raises(InvalidFrame):
        frames.read_header(junk, JOB)
    valid = STAMP.header(Kind.MESSAGE)
    for read in (
        lambda frame: frame_bodies.read_hello(frames.body(frame)),
        lambda frame: frame_bodies.read_cause(frames.body(frame)),
        lambda frame: frames.read_contents(frame, 12, 1000),
    ):
        with pytest.raises(InvalidFrame):
            read(valid + b"\x93" + junk)


@pytest.mark.parametrize(
    "types",
    [
        pytest.param([[10, [2**40, 2**40]]], id="product overflows"),
        pytest.param([[10, [-3]]], id="negative dimension"),
        pytest.param([[10, [2**48]]], id="dimension too large"),
        pytest.param([[10, [0, 2**47, 2**47]]], id="empty but overflows"),
        pytest.param([[10, [1] * 33]], id="rank"),
        pytest.param([[13, [3]]], id="dtype"),
        pytest.param([[10, [4]]], id="sizes do not add up"),
        pytest.param([[10, [3]]] * 16385, id="too many arrays"),
        pytest.param([[10, [3], 5]], id="a field too many"),
        pytest.param({"0": 10}, id="not an array"),
        pytest.param([["float32", [3]]], id="wrong type"),
    ],
)
def test_invalid_contents_are_refused_before_allocation(types):
    with pytest.raises(InvalidFrame):
        frames.read_contents(message_frame(types), 12, 1 << 30)


def test_truncated_key_and_bytes_after_the_types_are_refused():
    with pytest.raises(InvalidFrame):
        frames.read_contents(message_frame([[10, [3]]], bytes(15)), 12, 1 << 30)
    with pytest.raises(InvalidFrame):
        frames.read_contents(message_frame([[10, [3]]]) + b"\x05", 12, 1 << 30)


def test_valid_variant_of_the_refused_contents_is_accepted():
    _, types = frames.read_contents(message_frame([[10, [3]]]), 12, 1 << 30)
    assert types.types == ((np.dtype(np.float32), (3,)),)


def test_contents_over_the_maximum_are_refused():
    with pytest.raises(InvalidFrame, match="maximum"):
        frames.read_contents(message_frame([[10, [3]]]), 12, 11)


def test_frames_of_another_job_kind_or_length_are_refused():
    good = STAMP.header(Kind.BEAT)
    assert frames.read_header(good, JOB).kind is Kind.BEAT
    for bad in (
        good[:-1],
        good + bytes(frames.MAX_BODY + 1),
        b"PLC2" + good[4:],
        good[:4] + b"\x00" + good[5:],
        good[:4] + b"\x08" + good[5:],
        frames.Stamp(1, 7, frames.job_digest("another")).header(Kind.BEAT),
    ):
        with pytest.raises(InvalidFrame):
            frames.read_header(bad, JOB)


def test_long_causes_are_truncated():
    cause = Cause("worker:0", "step 1", "é" * 100_000)
    frame = STAMP.header(Kind.ABORT) + frame_bodies.encode_cause(cause)
    assert frame_bodies.read_cause(frames.body(frame)) == Cause(
        "worker:0", "step 1", "é" * frame_bodies.MAX_TEXT
    )


def test_largest_contents_fit_into_a_frame():
    longest = np.zeros((2**32, 2**16, *[1] * 29, 0), "?")
    arrays = payload.check_arrays([longest] * payload.MAX_ARRAYS, lambda: "it")
    body = frames.encode_contents(Key(2**62, 2**62, 2**62), arrays)
    assert 780_000 < len(body) <= frames.MAX_BODY
    frame = STAMP.header(Kind.MESSAGE) + body
    _, types = frames.read_contents(frame, 0, 0)
    assert len(types.types) == payload.MAX_ARRAYS


@pytest.mark.parametrize("shape", [(1,) * 33, (2**48 + 1, 0)])
def test_invalid_shapes_are_not_sent(shape):
    with pytest.raises(RunError, match="it: array 0 has shape"):
        payload.check_arrays([np.zeros(shape, "?")], lambda: "it")


def test_too_many_arrays_are_not_sent():
    with pytest.raises(RunError, match="16385 arrays are too many"):
        payload.check_arrays([np.zeros(0)] * 16385, lambda: "it")


@given(st.lists(st.integers(0, 3 << 20), max_size=6))
@settings(derandomize=True, deadline=None, max_examples=30)
def test_chunks_are_the_payload_in_order(sizes):
    arrays = [np.arange(n, dtype=np.uint32).view(np.uint8)[:n] for n in sizes]
    chunks = payload.split_payload(arrays)
    assert b"".join(chunks) == b"".join(array.tobytes() for array in arrays)
    assert all(0 < len(piece) <= payload.CHUNK for piece in chunks)


def test_large_arrays_are_split_without_a_copy():
    array = np.zeros(5 << 20, np.uint8)
    chunks = payload.split_payload([array])
    assert len(chunks) == 5
    assert all(np.shares_memory(array, np.frombuffer(p, np.uint8)) for p in chunks)
