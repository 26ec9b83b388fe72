"""Frames: valid ones round-trip, all others are refused."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.raw_frames import packed, raw

from placer.channel import frames, payload
from placer.channel.contents import describe_arrays, read_message
from placer.channel.frames import (
    INLINE,
    MAX_FRAME,
    Abort,
    Beat,
    Demand,
    Hello,
    Identity,
    InvalidFrame,
    Memory,
    Message,
    Piece,
    Probe,
    Reference,
    Refusal,
    Status,
    Welcome,
)
from placer.channel.interface import Cause, Key
from placer.channel.outgoing import Outgoing
from placer.channel.peers import Doing
from placer.channel.types import MAX_TEXT
from placer.errors import RunError
from placer.system.memory.aligned import ALIGNMENT, round_up

INT64 = st.integers(-(2**63), 2**63 - 1)
KEY = Key(1, 2, 3)
HELLO = Hello(
    Identity("j", "build", "b:0", "a:0", ["a:0", "b:0"], 2),
    1000,
    7,
    6,
    3,
    [(1, 2), (2, 0)],
    "another process is this node",
    True,
    b"n" * 32,
    b"m" * 32,
)
FRAMES = [
    Welcome(b"n" * 32),
    HELLO,
    Refusal("why"),
    Message(1, "a:0", "b:0", KEY, b"types", (Reference(0, 1, 2**64 - 1),)),
    Piece(2**64 - 1, 1, 64),
    Piece(1, 2, chunk=7),
    Beat(2**64 - 1, 1, 2, 3, 4, 5),
    Demand(),
    Probe("a:0", 1),
    Memory(0, 2**64 - 1),
    Status((Doing("a:0", "step 1", 1.5),)),
    Abort("a:0", "step 1", "é" * MAX_TEXT),
    Abort("a:0", "step 1", "it was interrupted", True, True, True),
]


def read(data: bytes, maximum: int = MAX_FRAME):
    """Return the frame that is the whole of `data`, and its payload."""
    view = memoryview(data)
    assert frames.size_of(view, maximum) == len(data)
    return frames.decode(view)


def decode(data: bytes, maximum: int = 1 << 30):
    """Return the contents and the inline payload of a message."""
    header, inline = read(data)
    return read_message(header, inline, maximum), inline


def message(*arrays: np.ndarray, key: Key = KEY, references=()) -> bytes:
    contents = describe_arrays(arrays, references)
    header = Message(1, "a:0", "b:0", key, contents.encoded, references)
    return Outgoing(header, contents, arrays, 0, 0).head()


def raw_message(types: bytes, inline: int, *references: object) -> bytes:
    """Return a message of any types and references, with an inline payload."""
    head = frames.to_msgpack(["Message", 1, "a:0", "b:0", KEY, types, references])
    return raw(head, inline) + bytes(inline)


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_frames_round_trip(frame):
    data = frames.encode(frame)
    assert len(data) % ALIGNMENT == 0
    assert read(data) == (frame, b"")
    with pytest.raises(InvalidFrame):
        read(raw(frames.to_msgpack([type(frame).__name__, *[None] * 7])))


@given(bodies=st.lists(st.sampled_from(FRAMES), max_size=5), cut=st.integers(0, 5000))
@settings(derandomize=True, deadline=None)
def test_size_of_a_frame_is_known_from_its_first_bytes(bodies, cut):
    data = b"".join(map(frames.encode, [*bodies, Beat()]))
    size = len(frames.encode(bodies[0] if bodies else Beat()))
    known = frames.size_of(memoryview(data[:cut]))
    assert known == (size if cut >= frames.PREFIX.size else ALIGNMENT)


@given(
    key=st.builds(Key, INT64, INT64, INT64),
    rows=st.integers(0, 6000),
    places=st.dictionaries(
        st.integers(0, 3),
        st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
    ),
)
@settings(derandomize=True, deadline=None)
def test_messages_round_trip(key, rows, places):
    """Each inline array starts at a multiple of 64 bytes in the frame."""
    arrays = [
        np.full((rows, 3), rows, np.float32),
        np.array(1),
        np.ones((0, 2**40), "?"),
        np.arange(5),
    ]
    references = tuple(Reference(i, *place) for i, place in places.items())
    data = message(*arrays, key=key, references=references)
    header, _ = read(data)
    assert header == Message(1, "a:0", "b:0", key, header.types, references)
    contents, inline = decode(data)
    types = tuple((array.dtype, array.shape) for array in arrays)
    assert contents.types == types
    assert contents.sizes == (rows * 12, 8, 0, 40)
    assert contents.references == {each.array: each for each in references}
    copied = [i for i in range(4) if i not in places]
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


IDENTITY = ["j", "", "b:0", "a:0", ["a:0", "b:0"]]


@pytest.mark.parametrize(
    "fields",
    [
        [IDENTITY],
        [IDENTITY, 7],
        [IDENTITY, 9, -1],
        [IDENTITY, -9, 7],
        [IDENTITY, 9, 7, -1],
        [IDENTITY, 9, 7, 0, -1],
        [IDENTITY, 9, 7, 0, 1, [[1, -1]]],
        [IDENTITY, 9, 7, 0, 1, [[1]]],
        [IDENTITY, 9, 7, 0, 1, [[1, 0]] * (frames.MAX_INCOMPLETE + 1)],
        [IDENTITY, 9, 7, 0, 1, [], "w" * 8193],
        [IDENTITY, 9, 7, 0, 1, [], "", 1],
        [IDENTITY, 9, 7, 0, 1, [], "", False, 5],
        [IDENTITY, 9, 7, 0, 1, [], "", False, b"", b"", 5],
        [IDENTITY[:4], 9, 7],
        [[*IDENTITY, 0], 9, 7],
        [["j", 5, *IDENTITY[2:]], 9, 7],
        [["j", "b" * 8193, *IDENTITY[2:]], 9, 7],
        [{"hello": IDENTITY, "incarnation": 7}],
    ],
)
def test_malformed_greetings_are_refused(fields):
    hello, _ = read(packed("Hello", IDENTITY, 9, 7))
    assert hello.expected == 1
    with pytest.raises(InvalidFrame):
        read(packed("Hello", *fields))


@pytest.mark.parametrize("nonce", [b"", b"n" * 31, b"n" * 33, "n" * 32])
def test_welcome_with_another_nonce_is_refused(nonce):
    with pytest.raises(InvalidFrame):
        read(packed("Welcome", nonce))


def test_long_causes_are_truncated():
    cause = Cause("worker:0", "step 1", "é" * 100_000)
    assert Abort.of(cause) == Abort("worker:0", "step 1", "é" * MAX_TEXT)
    cause = Cause("worker:0", "step 1", "no such file", is_error=True, is_outage=True)
    assert Abort.of(cause).cause == cause


@given(st.binary(min_size=64, max_size=300))
@settings(derandomize=True, deadline=None, max_examples=300)
def test_arbitrary_bytes_are_refused(junk):
    with pytest.raises(InvalidFrame):
        frames.size_of(memoryview(junk))
    for head in (
        junk,
        b"\x95" + junk,
        b"\x95\xa7Message" + junk,
        b"\x94\xa5Abort" + junk,
    ):
        with pytest.raises(InvalidFrame):
            decode(raw(head))
    with pytest.raises(InvalidFrame):
        decode(raw_message(b"\x93" + junk, 0))


def test_other_magic_is_refused():
    with pytest.raises(InvalidFrame, match="magic"):
        read(raw(b"", magic=b"PLT2"))


@pytest.mark.parametrize("kind", [[], [1], ["beat"], ["Struct"], ["_Struct"], "Beat"])
def test_unknown_kinds_are_refused(kind):
    assert read(packed("Beat")) == (Beat(), b"")
    with pytest.raises(InvalidFrame):
        read(raw(frames.to_msgpack(kind)))


def test_payload_that_is_no_multiple_of_the_alignment_is_refused():
    with pytest.raises(InvalidFrame, match="length"):
        frames.size_of(memoryview(raw(b"\x91", 65)))


@pytest.mark.parametrize("frame", [Beat(), Piece(1, 0, 64)])
def test_payload_of_another_frame_than_a_message_is_refused(frame):
    with pytest.raises(InvalidFrame, match="length"):
        read(raw(frames.to_msgpack(frame), 64) + bytes(64))


def test_frames_over_the_maximum_are_refused():
    for maximum in (640, MAX_FRAME):
        largest = [raw(b"x", maximum - 64), raw(bytes(maximum - frames.PREFIX.size))]
        for data in largest:
            assert frames.size_of(memoryview(data), maximum) == maximum
        larger = [raw(b"x", maximum), raw(bytes(maximum)), raw(b"x", 2**32 - 64)]
        for data in larger:
            with pytest.raises(InvalidFrame, match="length"):
                frames.size_of(memoryview(data), maximum)


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
    with pytest.raises(InvalidFrame):
        decode(raw_message(msgspec.msgpack.encode(types), 64))


def test_valid_variant_of_the_refused_types_is_accepted():
    data = raw_message(msgspec.msgpack.encode([[10, [3]]]), 64)
    contents, inline = decode(data, 12)
    assert contents.types == ((np.dtype(np.float32), (3,)),)
    assert len(inline) == 64
    with pytest.raises(InvalidFrame, match="over the maximum of 11"):
        decode(data, 11)


def test_bytes_after_the_types_are_refused():
    types = msgspec.msgpack.encode([[10, [3]]])
    for wrong in (types + b"\x05", types[:-1], b""):
        with pytest.raises(InvalidFrame):
            decode(raw_message(wrong, 64))


def test_messages_whose_sizes_do_not_add_up_are_refused():
    """Inline, with references, and with a payload that follows in pieces."""
    small, large = np.arange(100), np.zeros(INLINE + 1, np.uint8)
    for data in (
        message(small),
        message(small, small, references=(Reference(1, 3, 640),)),
        message(small, references=(Reference(0, 3, 640),)),
        message(large),
        message(large, large, references=(Reference(1, 3, 640),)),
    ):
        decode(data)
        header, inline = read(data)
        for change in (-64, 64):
            if len(inline) + change >= 0:
                nbytes = len(inline) + change
                changed = raw(frames.to_msgpack(header), nbytes) + bytes(nbytes)
                with pytest.raises(InvalidFrame, match="does not match the arrays"):
                    decode(changed)
    with pytest.raises(InvalidFrame, match="maximum of 799"):
        decode(message(small), 799)


def test_arrays_with_a_reference_do_not_count_to_the_maximum():
    large = np.zeros(1 << 20, np.uint8)
    data = message(large, np.zeros(100), references=(Reference(0, 1, 0),))
    assert decode(data, 800)[0].copied_nbytes == 800
    with pytest.raises(InvalidFrame, match="a message of 800 bytes is over"):
        decode(data, 799)


def test_malformed_references_are_refused():
    types = msgspec.msgpack.encode([[10, [3]], [10, [3]]])
    good = (1, 5, 128)
    contents, inline = decode(raw_message(types, 64, good))
    assert contents.references == {1: good}
    assert len(inline) == 64
    for wrong in (
        [(2, 5, 128)],  # there are two arrays
        [(2**32 - 1, 5, 128)],
        [good, good],  # of the same array
        [good, (0, 5, 0), good],
    ):
        with pytest.raises(InvalidFrame, match="references"):
            decode(raw_message(types, 64, *wrong))
    for wrong in ([(-1, 5, 128)], [(1, -5, 128)], [(1, 5, -1)], [(1, 5)], [5]):
        with pytest.raises(InvalidFrame):
            decode(raw_message(types, 64, *wrong))
    with pytest.raises(InvalidFrame):
        decode(raw_message(types, 64, *[good] * (payload.MAX_ARRAYS + 1)))
    both = (good, (0, 5, 0))
    assert decode(raw_message(types, 0, *both))[0].span == 0
    with pytest.raises(InvalidFrame, match="does not match the arrays"):
        decode(raw_message(types, 64, *both))


@pytest.mark.parametrize("has_references", [False, True])
def test_largest_header_of_a_message_fits_into_a_frame(has_references):
    longest = np.zeros((2**32, 2**16, *[1] * 29, 0), "?")
    arrays = payload.check_arrays([longest] * payload.MAX_ARRAYS, lambda: "it")
    count = payload.MAX_ARRAYS if has_references else 0
    references = tuple(Reference(i, 2**31, 2**40) for i in range(count))
    data = message(*arrays, key=Key(2**62, 2**62, 2**62), references=references)
    assert 780_000 < len(data) <= MAX_FRAME - INLINE
    contents, _ = decode(data)
    assert len(contents.types) == payload.MAX_ARRAYS
    assert len(contents.references) == count


def test_many_types_and_the_largest_inline_payload_fit_into_a_frame():
    longest = np.zeros((2**32, 2**16, *[1] * 29, 0), "?")
    arrays = [longest] * (payload.MAX_ARRAYS - 1) + [np.zeros(INLINE, np.uint8)]
    contents, inline = decode(message(*arrays))
    assert len(contents.types) == payload.MAX_ARRAYS
    assert len(inline) == INLINE


@pytest.mark.parametrize("shape", [(1,) * 33, (2**48 + 1, 0)])
def test_invalid_shapes_are_not_sent(shape):
    with pytest.raises(RunError, match="it: array 0 is too large: shape"):
        payload.check_arrays([np.zeros(shape, "?")], lambda: "it")


def test_too_many_arrays_are_not_sent():
    with pytest.raises(RunError, match="16385 arrays are too many"):
        payload.check_arrays([np.zeros(0)] * 16385, lambda: "it")
