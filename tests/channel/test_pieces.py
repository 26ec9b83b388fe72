"""The division of messages into pieces, and the chunks that hold them."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.channel.frames import InvalidFrame
from placer.channel.payload import as_bytes
from placer.channel.pieces import (
    PIECE,
    copied_pieces,
    in_array,
    in_piece,
    piece_bytes,
    piece_layout,
)
from placer.channel.pool import MAX_CHUNKS, ChunkPool, chunk_view
from placer.channel.region import Region

DTYPES = st.sampled_from([np.dtype(kind) for kind in (*"?bhilfd", ml_dtypes.bfloat16)])
SIZES = st.one_of(st.integers(0, 9), st.integers(0, 700_000))
SHAPES = st.one_of(st.just(()), st.tuples(SIZES), st.tuples(st.integers(0, 3), SIZES))
TYPES = st.lists(st.tuples(DTYPES, SHAPES), max_size=6).map(tuple)


@given(TYPES)
@settings(derandomize=True, deadline=None, max_examples=80)
def test_fragments_cover_every_array_once_in_order_and_aligned(types):
    at = [0] * len(types)
    last = 0
    for fragments in piece_layout(types):
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
            assert end <= PIECE
            assert fragment.start == fragment.first * item
            assert fragment.nbytes == fragment.numel * item
            at[fragment.array] += fragment.numel
            last = fragment.array
        assert piece_bytes(fragments) == -(-end // 64) * 64
    assert at == [prod(shape) for _, shape in types]


@given(TYPES)
@settings(derandomize=True, deadline=None, max_examples=20)
def test_pieces_are_nearly_full(types):
    nbytes = sum(-(-prod(shape) * dtype.itemsize // 64) * 64 for dtype, shape in types)
    assert len(piece_layout(types)) <= nbytes // (PIECE - 4096) + 1


@given(TYPES, st.sets(st.integers(0, 5)))
@settings(derandomize=True, deadline=None, max_examples=40)
def test_pieces_that_are_sent_are_those_of_arrays_without_a_reference(
    types, referenced
):
    """The pieces are divided as with all arrays, and have no gaps."""
    copied = copied_pieces(types, referenced)
    wholes = [
        [part._replace(offset=0) for part in fragments if part.array not in referenced]
        for fragments in piece_layout(types)
    ]
    sent = [[part._replace(offset=0) for part in fragments] for fragments in copied]
    assert sent == [parts for parts in wholes if parts]
    for fragments in copied:
        end = 0
        for part in fragments:
            assert part.offset == end
            end += -(-part.nbytes // 64) * 64


def test_fragment_in_its_piece_and_in_its_array_are_the_same_bytes():
    values = np.arange(700_000, dtype=np.float32)
    types = ((np.dtype("int16"), (5,)), (values.dtype, values.shape))
    array = as_bytes(values)
    got = np.zeros_like(array)
    for fragments in piece_layout(types):
        piece = np.zeros(PIECE, np.uint8)
        for fragment in fragments:
            if fragment.array == 1:
                in_piece(piece, fragment)[...] = in_array(array, fragment)
                in_array(got, fragment)[...] = in_piece(piece, fragment)
    assert np.array_equal(got, array)


# The pool.


@pytest.fixture
def pool() -> Iterator[ChunkPool]:
    """A pool whose chunks are all free."""
    region = Region(0, MAX_CHUNKS * PIECE, "a:0")
    yield ChunkPool(region)
    region.close()


def fill(pool: ChunkPool, message: int) -> int:
    """Fill a chunk with a piece of a message; return its number."""
    array = np.full(100, message, np.int16)
    ((fragments),) = piece_layout(((array.dtype, array.shape),))
    number = pool.fill(message, fragments, [as_bytes(array)])
    piece = chunk_view(pool.region.array, number)
    assert np.array_equal(in_piece(piece, fragments[0]).view(array.dtype), array)
    return number


def test_every_chunk_of_a_pool_is_filled_once(pool):
    numbers = [fill(pool, message) for message in range(MAX_CHUNKS)]
    assert sorted(numbers) == list(range(MAX_CHUNKS))
    assert pool.users == {number: i for i, number in enumerate(numbers)}
    assert not pool.free


def test_the_chunk_that_was_returned_last_is_filled_next(pool):
    numbers = [fill(pool, 1) for _ in range(MAX_CHUNKS)]
    for number in (numbers[5], numbers[2]):
        pool.release(1 << number)
    assert [fill(pool, 2), fill(pool, 3)] == [numbers[2], numbers[5]]


def test_several_chunks_are_returned_at_once(pool):
    numbers = [fill(pool, 1) for _ in range(MAX_CHUNKS)]
    pool.release(sum(1 << number for number in numbers[1:]))
    assert sorted(pool.free) == sorted(numbers[1:])
    assert pool.users == {numbers[0]: 1}


def test_the_return_of_a_chunk_that_was_not_filled_is_refused(pool):
    first, second = fill(pool, 1), fill(pool, 1)
    pool.release(1 << second)
    for mask in (
        1 << second,
        1 << first | 1 << second,
        1 << MAX_CHUNKS | 1 << first,
        2**63,
    ):
        with pytest.raises(InvalidFrame, match="not filled"):
            pool.release(mask)
    pool.release(1 << first)
    assert not pool.users
