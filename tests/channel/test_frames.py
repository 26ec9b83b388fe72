"""Frames: valid ones round-trip, all others are refused."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.channel import frame_bodies, frames, payload
from placer.channel.frame_bodies import Greeting, Hello, InvalidFrame
from placer.channel.frames import HEADER_BYTES, INLINE, MAX_BODY, REFERENCE, Kind
from placer.channel.protocol import Cause, Key
from placer.errors import RunError
from placer.memory.aligned import ALIGNMENT, round_up

INT64 = st.integers(-(2**63), 2**63 - 1)
KEY = Key(1, 2, 3)
GREETING = Greeting(
    Hello("j", "build", "b:0", "a:0", ["a:0", "b:0"]),
    1000,
    7,
    3,
    [(1, 2), (2, 0)],
    b"n" * 32,
    b"m" * 32,
)


def decode(data: bytes, maximum: int = 1 << 30):
    """Return the contents and the inline payload of a MESSAGE frame."""
    header = frames.read_header(memoryview(data))
    assert header.length == len(data) - HEADER_BYTES
    return frames.decode_message(header, memoryview(data), maximum)


def message(*arrays: np.ndarray, key: Key = KEY, references=None) -> bytes:
    contents = frames.describe_arrays(key, arrays, references or {})
    return frames.message_frame(1, contents, arrays)


def raw_message(head: bytes, count: int, types: int, inline: int) -> bytes:
    """Return a MESSAGE frame of any types and references, with an inline payload."""
    body = head + bytes(-len(head) % ALIGNMENT + inline)
    return frames.frame(Kind.MESSAGE, 1, count, types, length=len(body)) + body


@given(
    kind=st.sampled_from(Kind),
    fields=st.lists(st.integers(0, 2**64 - 1), max_size=6),
    flags=st.integers(0, 255),
    lines=st.integers(0, MAX_BODY // 64),
)
@settings(derandomize=True, deadline=None)
def test_headers_round_trip(kind, fields, flags, lines):
    data = frames.frame(kind, *fields, flags=flags, length=64 * lines)
    assert len(data) == HEADER_BYTES
    assert frames.read_header(memoryview(data)) == (
        *(kind, flags, 64 * lines),
        *[*fields, *[0] * 6][:6],
    )


@given(
    key=st.builds(Key, INT64, INT64, INT64),
    rows=st.integers(0, 6000),
    references=st.dictionaries(
        st.integers(0, 3),
        st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)),
    ),
)
@settings(derandomize=True, deadline=None)
def test_messages_round_trip(key, rows, references):
    """Each inline array starts at a multiple of 64 bytes in the frame."""
    arrays = [
        np.full((rows, 3), rows, np.float32),
        np.array(1),
        np.ones((0, 2**40), "?"),
        np.arange(5),
    ]
    data = message(*arrays, key=key, references=references)
    assert frames.read_header(memoryview(data)).a == 1
    contents, inline = decode(data)
    assert contents.key == key
    types = tuple((array.dtype, array.shape) for array in arrays)
    assert contents.arrays.types == types
    assert contents.arrays.sizes == (rows * 12, 8, 0, 40)
    assert contents.references == references
    copied = [i for i in range(4) if i not in references]
    assert contents.copied_nbytes == sum(arrays[i].nbytes for i in copied)
    assert contents.span == sum(round_up(arrays[i].nbytes) for i in copied)
    assert contents.is_inline == (contents.span <= INLINE)
    assert len(inline) == (contents.span if contents.is_inline else 0)
    assert len(data) % ALIGNMENT == (len(data) - len(inline)) % ALIGNMENT == 0
    for i in copied if contents.is_inline else ():
        assert contents.offsets[i] % ALIGNMENT == 0
        dtype, shape = types[i]
        got = np.ndarray(shape, dtype, inline, contents.offsets[i])
        assert np.array_equal(got, arrays[i])


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 5000])
def test_texts_round_trip_with_padding(nbytes):
    data = memoryview(frames.text_frame(Kind.ABORT, b"x" * nbytes))
    header = frames.read_header(data)
    assert header.length == len(data) - HEADER_BYTES
    assert bytes(frames.read_text(header, data[HEADER_BYTES:])) == b"x" * nbytes


@pytest.mark.parametrize("change", [-64, -1, 1, 64, 2**63])
def test_texts_of_another_length_than_their_frame_has_are_refused(change):
    data = memoryview(frames.text_frame(Kind.ABORT, b"x" * 64))
    header = frames.read_header(data)
    changed = header._replace(a=header.a + change)
    if change == -1:  # within the padding
        assert len(frames.read_text(changed, data[HEADER_BYTES:])) == 63
        return
    with pytest.raises(InvalidFrame, match="length"):
        frames.read_text(changed, data[HEADER_BYTES:])


def test_greetings_round_trip():
    data = memoryview(frames.greeting_frame(GREETING))
    header = frames.read_header(data)
    assert header.kind is Kind.HELLO
    assert frames.decode_greeting(header, data[HEADER_BYTES:]) == GREETING


HELLO = ["j", "", "b:0", "a:0", ["a:0", "b:0"]]


@pytest.mark.parametrize(
    "fields",
    [
        [HELLO],
        [HELLO, 7],
        [HELLO, 9, -1],
        [HELLO, -9, 7],
        [HELLO, 9, 7, -1],
        [HELLO, 9, 7, 1, [[1, -1]]],
        [HELLO, 9, 7, 1, [[1]]],
        [HELLO, 9, 7, 1, [[1, 0]] * (frame_bodies.MAX_INCOMPLETE + 1)],
        [HELLO, 9, 7, 1, [], 5],
        [HELLO[:4], 9, 7],
        [["j", 5, *HELLO[2:]], 9, 7],
        [["j", "b" * 8193, *HELLO[2:]], 9, 7],
        {"hello": HELLO, "incarnation": 7},
    ],
)
def test_malformed_greetings_are_refused(fields):
    assert (
        frame_bodies.read_greeting(msgspec.msgpack.encode([HELLO, 9, 7])).expected == 1
    )
    with pytest.raises(InvalidFrame):
        frame_bodies.read_greeting(msgspec.msgpack.encode(fields))


def test_long_causes_are_truncated():
    cause = Cause("worker:0", "step 1", "é" * 100_000)
    assert frame_bodies.read_cause(frame_bodies.encode_cause(cause)) == Cause(
        "worker:0", "step 1", "é" * frame_bodies.MAX_TEXT
    )


@given(st.binary(min_size=64, max_size=300))
@settings(derandomize=True, deadline=None, max_examples=300)
def test_arbitrary_bytes_are_refused(junk):
    with pytest.raises(InvalidFrame):
        frames.read_header(memoryview(junk))
    body = junk + bytes(-len(junk) % 64)
    for count in (0, 1, 2**63):
        for types in (1, len(junk), 2**63):
            header = frames.frame(Kind.MESSAGE, 1, count, types, length=len(body))
            with pytest.raises(InvalidFrame):
                decode(header + body)
    for read in (
        frame_bodies.read_greeting,
        frame_bodies.read_cause,
        frame_bodies.read_types,
    ):
        with pytest.raises(InvalidFrame):
            read(b"\x93" + junk)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: b"PLT2" + data[4:], "magic"),
        (lambda data: data[:4] + b"\0" + data[5:], "kind"),
        (lambda data: data[:4] + b"\xff" + data[5:], "kind"),
        (lambda data: data[:6] + b"\1" + data[7:], "magic"),
        (lambda data: data[:12] + b"\1" + data[13:], "magic"),
        (lambda data: data[:8] + b"\1" + data[9:], "length"),
        (lambda data: data[:8] + (1 << 31).to_bytes(4, "little") + data[12:], "length"),
    ],
)
def test_headers_that_no_frame_has_are_refused(change, why):
    data = frames.frame(Kind.BEAT, 5)
    assert frames.read_header(memoryview(data)).a == 5
    with pytest.raises(InvalidFrame, match=why):
        frames.read_header(memoryview(change(data)))


def test_bodies_over_the_maximum_are_refused():
    for maximum in (640, MAX_BODY):
        data = frames.frame(Kind.MESSAGE, length=maximum)
        assert frames.read_header(memoryview(data), maximum).length == maximum
        data = frames.frame(Kind.MESSAGE, length=maximum + 64)
        with pytest.raises(InvalidFrame, match="length"):
            frames.read_header(memoryview(data), maximum)


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
        pytest.param([[10, [3], 5]], id="a field too many"),
        pytest.param({"0": 10}, id="not an array"),
        pytest.param([["float32", [3]]], id="wrong type"),
    ],
)
def test_invalid_types_are_refused_before_allocation(types):
    body = msgspec.msgpack.encode(types)
    with pytest.raises(InvalidFrame):
        decode(raw_message(body, 0, len(body), 64))


def test_valid_variant_of_the_refused_types_is_accepted():
    body = msgspec.msgpack.encode([[10, [3]]])
    contents, inline = decode(raw_message(body, 0, len(body), 64), 12)
    assert contents.arrays.types == ((np.dtype(np.float32), (3,)),)
    assert len(inline) == 64
    with pytest.raises(InvalidFrame, match="over the maximum of 11"):
        decode(raw_message(body, 0, len(body), 64), 11)


def test_bytes_after_the_types_are_refused():
    body = msgspec.msgpack.encode([[10, [3]]])
    with pytest.raises(InvalidFrame):
        decode(raw_message(body + b"\x05", 0, len(body) + 1, 64))
    for types in (0, len(body) - 1):
        with pytest.raises(InvalidFrame):
            decode(raw_message(body, 0, types, 64))


def test_messages_whose_sizes_do_not_add_up_are_refused():
    """Inline, with references, and with a payload that follows in pieces."""
    small, large = np.arange(100), np.zeros(INLINE + 1, np.uint8)
    for data in (
        message(small),
        message(small, small, references={1: (3, 640)}),
        message(small, references={0: (3, 640)}),
        message(large),
        message(large, large, references={1: (3, 640)}),
    ):
        decode(data)
        for body in (data[64:-64], data[64:] + bytes(64)):
            header = frames.read_header(memoryview(data))._replace(length=len(body))
            with pytest.raises(InvalidFrame, match=r"do not add up|length"):
                frames.decode_message(header, memoryview(data[:64] + body), 1 << 30)
    with pytest.raises(InvalidFrame, match="maximum of 799"):
        decode(message(small), 799)


def test_arrays_with_a_reference_do_not_count_to_the_maximum():
    large = np.zeros(1 << 20, np.uint8)
    data = message(large, np.zeros(100), references={0: (1, 0)})
    assert decode(data, 800)[0].copied_nbytes == 800
    with pytest.raises(InvalidFrame, match="a message of 800 bytes is over"):
        decode(data, 799)


def test_malformed_references_are_refused():
    types = msgspec.msgpack.encode([[10, [3]], [10, [3]]])
    good = REFERENCE.pack(1, 5, 128)
    contents, inline = decode(raw_message(types + good, 1, len(types), 64))
    assert contents.references == {1: (5, 128)}
    assert len(inline) == 64
    for count, wrong, why in (
        (1, REFERENCE.pack(2, 5, 128), "references"),  # there are two arrays
        (1, REFERENCE.pack(2**32 - 1, 5, 128), "references"),
        (2, good * 2, "references"),  # of the same array
        (3, good + REFERENCE.pack(0, 5, 0) + good, "references"),
        (9, b"", "length"),  # more than the body has
        (2**60, good, "length"),
        (2**64 - 1, good, "length"),
    ):
        with pytest.raises(InvalidFrame, match=why):
            decode(raw_message(types + wrong, count, len(types), 64))
    both = types + good + REFERENCE.pack(0, 5, 0)
    assert decode(raw_message(both, 2, len(types), 0))[0].span == 0
    with pytest.raises(InvalidFrame, match="do not add up"):
        decode(raw_message(both, 2, len(types), 64))


@pytest.mark.parametrize("has_references", [False, True])
def test_largest_header_of_a_message_fits_into_a_frame(has_references):
    longest = np.zeros((2**32, 2**16, *[1] * 29, 0), "?")
    arrays = payload.check_arrays([longest] * payload.MAX_ARRAYS, lambda: "it")
    count = payload.MAX_ARRAYS if has_references else 0
    references = dict.fromkeys(range(count), (2**31, 2**40))
    data = message(*arrays, key=Key(2**62, 2**62, 2**62), references=references)
    assert 780_000 < len(data) <= MAX_BODY - INLINE
    contents, _ = decode(data)
    assert len(contents.arrays.types) == payload.MAX_ARRAYS
    assert contents.references == references


def test_many_types_and_the_largest_inline_payload_fit_into_a_frame():
    longest = np.zeros((2**32, 2**16, *[1] * 29, 0), "?")
    arrays = [longest] * (payload.MAX_ARRAYS - 1) + [np.zeros(INLINE, np.uint8)]
    contents, inline = decode(message(*arrays))
    assert len(contents.arrays.types) == payload.MAX_ARRAYS
    assert len(inline) == INLINE


@pytest.mark.parametrize("shape", [(1,) * 33, (2**48 + 1, 0)])
def test_invalid_shapes_are_not_sent(shape):
    with pytest.raises(RunError, match="it: array 0 has shape"):
        payload.check_arrays([np.zeros(shape, "?")], lambda: "it")


def test_too_many_arrays_are_not_sent():
    with pytest.raises(RunError, match="16385 arrays are too many"):
        payload.check_arrays([np.zeros(0)] * 16385, lambda: "it")
