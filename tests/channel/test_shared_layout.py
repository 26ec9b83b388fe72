"""Chunk layouts and frames of the shared-memory transport."""

from __future__ import annotations

from math import prod

import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.channel import payload
from placer.channel.frame_bodies import InvalidFrame
from placer.channel.payload import CHUNK
from placer.channel.protocol import Key
from placer.channel.shared import frames
from placer.channel.shared.chunks import chunk_layout, in_array, in_chunk
from placer.channel.shared.frames import Kind

INT64 = st.integers(-(2**63), 2**63 - 1)
DTYPES = st.sampled_from([np.dtype(kind) for kind in (*"?bhilfd", ml_dtypes.bfloat16)])
SIZES = st.one_of(st.integers(0, 9), st.integers(0, 700_000))
SHAPES = st.one_of(st.just(()), st.tuples(SIZES), st.tuples(st.integers(0, 3), SIZES))
TYPES = st.lists(st.tuples(DTYPES, SHAPES), max_size=6).map(tuple)


@given(TYPES)
@settings(derandomize=True, deadline=None, max_examples=80)
def test_fragments_cover_every_array_once_in_order_and_aligned(types):
    at = [0] * len(types)
    last = 0
    for fragments in chunk_layout(types):
        assert fragments
        end = 0
        for fragment in fragments:
            item = types[fragment.array][0].itemsize
            assert fragment.array >= last
            assert fragment.first == at[fragment.array]
            assert fragment.numel > 0
            assert fragment.offset % 64 == 0
            assert fragment.first * item % 64 == 0
            assert fragment.offset >= end
            end = fragment.offset + fragment.numel * item
            assert end <= CHUNK
            at[fragment.array] += fragment.numel
            last = fragment.array
    assert at == [prod(shape) for _, shape in types]


@given(TYPES)
@settings(derandomize=True, deadline=None, max_examples=20)
def test_chunks_are_nearly_full(types):
    nbytes = sum(-(-prod(shape) * dtype.itemsize // 64) * 64 for dtype, shape in types)
    assert len(chunk_layout(types)) <= nbytes // (CHUNK - 4096) + 1


def test_fragment_in_its_chunk_and_in_its_array_are_the_same_elements():
    array = np.arange(700_000, dtype=np.float32)
    types = ((np.dtype("int16"), (5,)), (array.dtype, array.shape))
    got = np.zeros_like(array)
    for fragments in chunk_layout(types):
        chunk = np.zeros(CHUNK, np.uint8)
        for fragment in fragments:
            if fragment.array == 1:
                in_chunk(chunk, fragment, array.dtype)[...] = in_array(array, fragment)
                in_array(got, fragment)[...] = in_chunk(chunk, fragment, array.dtype)
    assert np.array_equal(got, array)


def encode(number, key, arrays, references):
    contents = frames.describe_arrays(key, arrays, references)
    return frames.encode_header(number, contents, arrays)


def decode(parts, maximum=1 << 30):
    """Decode the frames of a message."""
    *long, last = parts
    long_data = b"".join(part[frames.HEADER.size :] for part in long)
    data = memoryview(last)
    kind, *_ = frames.read_header(data)
    assert kind is Kind.MESSAGE
    return frames.decode_header(data, long_data, maximum)[1:]


@given(
    key=st.builds(Key, INT64, INT64, INT64),
    rows=st.integers(0, 50),
    region=st.integers(1, 2**32 - 1),
    offset=st.integers(0, 2**64 - 1),
)
@settings(derandomize=True, deadline=None)
def test_messages_round_trip(key, rows, region, offset):
    """Each inline array starts at a multiple of 64 bytes in the frame."""
    arrays = [
        np.full((rows, 3), rows, np.float32),
        np.array(1),
        np.ones((0, 2**40), "?"),
    ]
    arrays.append(np.arange(5))
    parts = encode(7, key, arrays, {1: (region, offset)})
    contents, payload = decode(parts)
    assert frames.read_header(memoryview(parts[-1]))[2] == 7
    assert contents.key == key
    assert contents.arrays.types == tuple((a.dtype, a.shape) for a in arrays)
    assert contents.arrays.sizes == (rows * 12, 8, 0, 40)
    assert contents.references == {1: (region, offset)}
    assert contents.copied_nbytes == rows * 12 + 40
    first = contents.offsets[3]
    assert first == -(-rows * 12 // 64) * 64
    assert (len(parts[-1]) - len(payload)) % 64 == 0
    assert bytes(payload[: rows * 12]) == arrays[0].tobytes()
    assert bytes(payload[first : first + 40]) == arrays[3].tobytes()


def test_largest_header_fits_into_frames():
    longest = np.zeros((2**32, 2**16, *[1] * 29, 0), "?")
    arrays = payload.check_arrays([longest] * payload.MAX_ARRAYS, lambda: "it")
    references = dict.fromkeys(range(payload.MAX_ARRAYS), (2**31, 2**40))
    parts = encode(1, Key(2**62, 2**62, 2**62), arrays, references)
    assert all(len(part) <= frames.MAX_FRAME for part in parts)
    assert sum(len(part) for part in parts) <= frames.MAX_LONG
    contents, _ = decode(parts)
    assert len(contents.arrays.types) == payload.MAX_ARRAYS
    assert contents.references == references


@pytest.mark.parametrize("size", [frames.MAX_TYPES - 20, frames.MAX_TYPES + 20])
def test_types_and_payload_at_the_limit_fit_into_a_frame(size):
    arrays = [np.zeros((0, 1), "?")] * (size // 5) + [np.zeros(frames.INLINE, np.uint8)]
    parts = encode(1, Key(1, 1), arrays, {})
    assert all(len(part) <= frames.MAX_FRAME for part in parts)
    contents, inline = decode(parts)
    assert len(contents.arrays.types) == len(arrays)
    assert len(inline) == frames.INLINE


@pytest.mark.parametrize(
    "types",
    [
        pytest.param([[10, [2**40, 2**40]]], id="product overflows"),
        pytest.param([[10, [-3]]], id="negative dimension"),
        pytest.param([[10, [2**48]]], id="dimension too large"),
        pytest.param([[10, [0, 2**47, 2**47]]], id="empty but overflows"),
        pytest.param([[10, [1] * 33]], id="rank"),
        pytest.param([[13, [3]]], id="dtype"),
        pytest.param([[10, [17]]], id="sizes do not add up"),
        pytest.param([[10, [3]]] * 16385, id="too many arrays"),
        pytest.param({"0": 10}, id="not an array"),
        pytest.param([["float32", [3]]], id="wrong type"),
    ],
)
def test_invalid_types_are_refused_before_allocation(types):
    body = msgspec.msgpack.encode(types)
    with pytest.raises(InvalidFrame):
        decode_long(body, 0, len(body), 64, 1 << 30)


def decode_long(
    long_data: bytes, references: int, types_length: int, inline: int, maximum: int
) -> frames.Contents:
    """Decode a MESSAGE whose types were in LONG frames, with its inline payload."""
    head = frames.frame(Kind.MESSAGE, 1, references, types_length, body=bytes(24))
    data = memoryview(head + bytes(64 - len(head) + inline))
    return frames.decode_header(data, long_data, maximum)[1]


def test_valid_variant_of_the_refused_types_is_accepted():
    body = msgspec.msgpack.encode([[10, [3]]])
    contents = decode_long(body, 0, len(body), 64, 12)
    assert contents.arrays.types == ((np.dtype(np.float32), (3,)),)
    with pytest.raises(InvalidFrame, match="over the maximum of 11"):
        decode_long(body, 0, len(body), 64, 11)
    for length in (0, 63, 65, 128):
        with pytest.raises(InvalidFrame, match="do not add up"):
            decode_long(body, 0, len(body), length, 100)
    for placed, wrong in ((1, b"\0" * 15), (2, b"\0" * 16), (2**64 - 1, b"")):
        with pytest.raises(InvalidFrame, match="length"):
            decode_long(body + wrong, placed, len(body), 64, 100)
    pack_reference = frames.REFERENCE.pack
    for placed, wrong in (
        (1, pack_reference(1, 1, 0)),
        (2, pack_reference(0, 1, 0) * 2),
    ):
        with pytest.raises(InvalidFrame, match="references"):
            decode_long(body + wrong, placed, len(body), 64, 100)


@given(st.binary(max_size=200))
@settings(derandomize=True, deadline=None, max_examples=300)
def test_arbitrary_bytes_are_refused(junk):
    with pytest.raises(InvalidFrame):
        frames.read_header(memoryview(junk))
    whole = frames.frame(Kind.MESSAGE, 1, 1, 5) + junk
    with pytest.raises(InvalidFrame):
        frames.decode_header(memoryview(whole), b"", 1000)


def test_frames_of_another_kind_or_length_are_refused():
    good = frames.frame(Kind.BEAT, 1, 2, 3, 4)
    assert frames.read_header(memoryview(good)) == (Kind.BEAT, 4, 1, 2, 3)
    for bad in (
        good[:-1],
        good + bytes(frames.MAX_FRAME),
        b"PLS2" + good[4:],
        good[:4] + b"\x00" + good[5:],
        good[:4] + b"\x0b" + good[5:],
        good[:6] + b"\x01" + good[7:],
    ):
        with pytest.raises(InvalidFrame):
            frames.read_header(memoryview(bad))
