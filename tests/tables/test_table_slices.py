"""An update has the same bits whole, in slices and in chunks, from any number of workers."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small_tables import (
    ALL,
    ONE_STAGE,
    RATES,
    VARIANTS,
    cut,
    gradients,
    named,
    ratio,
    table,
    trust_ratio,
    update,
    whole,
)

from placer.config import optimizers
from placer.errors import RunError
from placer.tables import update_pass
from placer.tables.block import Block
from placer.tables.dense import Table

TWO_STAGES = [case for case in VARIANTS if case not in ONE_STAGE]
DTYPES = ["float32", "float64", "bfloat16"]
ALL_AT_ONCE = 1 << 20
"""Elements: more than any block here has."""


def same_bits(one, other):
    assert one.step == other.step
    for a, b in zip(one.values(), other.values(), strict=True):
        assert a.tobytes() == b.tobytes()
    for slot, arrays in one.slots().items():
        for a, b in zip(arrays, other.slots()[slot], strict=True):
            assert a.tobytes() == b.tobytes()


def summed(parts):
    """From left to right, in their dtype."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def in_chunks(each, blocks, workers, length):
    """Give a pass the gradients of all workers, `length` elements at a time."""
    for index, block in enumerate(blocks):
        flat = [worker[index].reshape(-1) for worker in workers]
        for low in range(0, block.size, length):
            each.apply(index, low, [array[low : low + length] for array in flat])


def update_by_all(made, workers, rate, scale=None):
    """An update by the workers' sum, which is no half if they have halves."""
    if made.dtype.itemsize == 2:
        with made.updating(learning_rate=rate, scale=scale) as each:
            in_chunks(each, made.blocks, workers, ALL_AT_ONCE)
    else:
        total = [summed(parts) for parts in zip(*workers, strict=True)]
        made.update(total, learning_rate=rate, scale=scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", VARIANTS, ids=named)
def test_slices_on_many_tables_have_the_bits_of_one_table(case, dtype):
    bounds = [0, 1, 400, 417, 1500, 2100]
    one = table([whole("out.w")], *case, dtype)
    slices = [
        table([cut("out.w", low, high, i)], *case, dtype)
        for i, (low, high) in enumerate(pairwise(bounds))
    ]
    two_stages = optimizers.find(case[0]).direction
    for step, rate in enumerate(RATES[:6]):
        made = gradients(step, one.dtype)["out.w"]
        (before,) = one.values()
        if two_stages:
            (direction,) = one.direct([made], scale=0.3)
            by = ratio(one, before, direction)
            one.update_by([by], learning_rate=rate)
        else:
            one.update([made], learning_rate=rate, scale=0.3)
        for part in slices:
            (block,) = part.blocks
            piece = made.ravel()[block.start : block.stop]
            if two_stages:
                part.direct([piece], scale=0.3)
                part.update_by([by], learning_rate=rate)
            else:
                part.update([piece], learning_rate=rate, scale=0.3)
    together = b"".join(part.values()[0].tobytes() for part in slices)
    assert together == one.values()[0].tobytes()
    for slot, (state,) in one.slots().items():
        parts = b"".join(part.slots()[slot][0].tobytes() for part in slices)
        assert parts == state.tobytes()


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("workers", [1, 2, 3, update_pass.FUSED + 1])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", ONE_STAGE, ids=named)
def test_chunks_of_workers_are_summed_in_their_order(case, dtype, workers, in_place):
    at_once = table(ALL, *case, dtype)
    chunked = table(ALL, *case, dtype, in_place=in_place)
    for step, rate in enumerate(RATES[:3]):
        drawn = [
            list(gradients(100 * step + w, at_once.dtype).values())
            for w in range(workers)
        ]
        update_by_all(at_once, drawn, rate, 0.7)
        with chunked.updating(learning_rate=rate, scale=0.7) as each:
            in_chunks(each, ALL, drawn, 61)
    same_bits(at_once, chunked)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", TWO_STAGES, ids=named)
def test_directions_are_made_in_chunks_too(case, dtype):
    at_once, chunked = table(ALL, *case, dtype), table(ALL, *case, dtype)
    for step, rate in enumerate(RATES[:3]):
        drawn = [list(gradients(9 * step + w, at_once.dtype).values()) for w in (0, 1)]
        for made, length in ((at_once, ALL_AT_ONCE), (chunked, 61)):
            if made is at_once and made.dtype.itemsize > 2:
                total = [summed(parts) for parts in zip(*drawn, strict=True)]
                update(made, total, rate, scale=0.7)
                continue
            before = made.values()
            with made.directing(scale=0.7) as each:
                in_chunks(each, ALL, drawn, length)
            by = [
                ratio(made, value, direction)
                for value, direction in zip(before, made.directions(), strict=True)
            ]
            made.update_by(by, learning_rate=rate)
    same_bits(at_once, chunked)


@pytest.mark.parametrize("workers", [5, update_pass.FUSED + 1])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_of_workers_are_rounded_once_and_not_before_they_are_summed(
    dtype, workers
):
    made = table([whole("h1.b")], "sgd", dtype=dtype)
    (before,) = made.values()
    little = float(np.finfo(np.float16).eps if dtype == "float16" else 2**-7) / 4
    drawn = [np.full(7, 1.0 if w == 0 else little, made.dtype) for w in range(workers)]
    assert (summed(drawn) == 1).all()  # in halves nothing is left of the others
    with made.updating(learning_rate=2**-9) as each:
        each.apply(0, 0, drawn)
    (value,) = made.values()
    total = np.float32(1.0) + (workers - 1) * np.float32(little)
    expected = before.astype(np.float32) - np.float32(2**-9) * total
    np.testing.assert_array_equal(value, expected.astype(made.dtype))


@st.composite
def layouts(draw):
    """Blocks of a parameter of any size, cut anywhere, on some tables."""
    size = draw(st.integers(1, 300))
    cuts = sorted(draw(st.sets(st.integers(1, size), max_size=6)) | {0, size})
    ends = list(pairwise(cuts))
    tables = draw(st.integers(1, 3))
    chunk = draw(st.integers(1, 70))
    return size, [ends[i::tables] for i in range(tables)], chunk


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    layouts(),
    st.sampled_from(ONE_STAGE),
    st.sampled_from(DTYPES),
    st.integers(1, 3),
    st.booleans(),
)
def test_no_layout_of_blocks_changes_a_bit(layout, case, dtype, workers, in_place):
    size, held, chunk = layout
    inits = {"w": "normal"}

    def made(ends, **memory):
        blocks = [
            Block("w", f"w.block{low}", (high - low,), low, high, (size,))
            for low, high in ends
        ]
        return Table("t", blocks, *case, dtype=dtype, seed=1, inits=inits, **memory)

    one = made([(0, size)])
    parts = [made(ends, in_place=in_place) for ends in held]
    rng = np.random.default_rng(size)
    for rate in RATES[:2]:
        drawn = [rng.normal(size=size).astype(one.dtype) for _ in range(workers)]
        update_by_all(one, [[d] for d in drawn], rate)
        for part in parts:
            pieces = [[d[b.start : b.stop] for b in part.blocks] for d in drawn]
            with part.updating(learning_rate=rate) as each:
                in_chunks(each, part.blocks, pieces, chunk)
    (value,) = one.values()
    for part in parts:
        for block, view in zip(part.blocks, part.values(), strict=True):
            assert view.tobytes() == value[block.start : block.stop].tobytes()


def test_more_elements_than_a_tile_have_the_same_bits():
    size = 2 * update_pass.TILE + 17
    block = Block("w", "w", (size,), 0, size, (size,))

    def made(**memory):
        return Table(
            "t", [block], "adam", {}, dtype="float32", seed=1, inits={"w": "normal"},
            **memory,
        )  # fmt: skip

    tables = [made(in_place=True), made(), made()]
    drawn = [
        np.random.default_rng(w).normal(size=size).astype(np.float32)
        for w in range(update_pass.FUSED + 1)
    ]
    for _ in range(2):
        for each in tables[:2]:
            each.update([summed(drawn)], learning_rate=0.1)
        with tables[2].updating(learning_rate=0.1) as each:
            each.apply(0, 0, drawn)
    same_bits(tables[0], tables[1])
    same_bits(tables[0], tables[2])


def test_gradients_that_lie_anywhere_are_read():
    block = whole("h1.b")
    made = gradients(0)["h1.b"]
    strided = np.zeros(14, np.float32)[::2]
    shifted = np.zeros(29, np.uint8)[1:].view(np.float32)
    frozen = made.copy()
    strided[:], shifted[:] = made, made
    frozen.flags.writeable = False
    assert not shifted.flags.aligned
    expected = table([block])
    expected.update([made], learning_rate=0.1)
    for gradient in (strided, shifted, frozen):
        one = table([block])
        with one.updating(learning_rate=0.1) as each:
            each.apply(0, 0, [gradient])
        same_bits(one, expected)


@pytest.mark.parametrize(
    ("start", "chunk", "message"),
    [
        (
            0,
            [np.zeros(3)],
            r"table ps: gradient of h1.b from element 0 on is float64\[3\],"
            r" float32\[3\] is expected",
        ),
        (
            0,
            [np.zeros(8, np.float32)],
            r"from element 0 on is float32\[8\], float32\[7\] is expected",
        ),
        (
            0,
            [np.zeros(3, np.float32), np.zeros(2, np.float32)],
            r"from element 0 on is float32\[2\], float32\[3\] is expected",
        ),
        (
            0,
            [np.zeros((7, 1), np.float32)],
            r"from element 0 on is float32\[7, 1\], float32\[7\] is expected",
        ),
    ],
)
def test_chunks_that_do_not_fit_are_refused(start, chunk, message):
    made = table([whole("h1.b")])
    with (
        pytest.raises(RunError, match=message),
        made.updating(learning_rate=0.1) as each,
    ):
        each.apply(0, start, chunk)


@pytest.mark.parametrize("start", [1, 4])
def test_elements_are_gone_over_in_order_and_once(start):
    made = table([whole("h1.b")])

    def update():
        with made.updating(learning_rate=0.1) as each:
            each.apply(0, 0, [np.zeros(3, np.float32)])
            each.apply(0, start, [np.zeros(3, np.float32)])

    with pytest.raises(
        RunError, match=rf"h1\.b came from element {start} on, 3 is next"
    ):
        update()


def test_elements_that_are_left_out_are_noticed():
    made = table([whole("h1.b"), whole("gain")])
    with (
        pytest.raises(RunError, match="gradient of gain ended at element 0 of 1"),
        made.updating(learning_rate=0.1) as each,
    ):
        each.apply(0, 0, [np.zeros(7, np.float32)])


USES = {
    "values": lambda t: t.values(),
    "slots": lambda t: t.slots(),
    "load": lambda t: t.load([np.zeros(7, np.float32)]),
    "load_slots": lambda t: t.load_slots({"trace": [np.zeros(7, np.float32)]}),
    "update": lambda t: t.update([np.zeros(7, np.float32)], learning_rate=0.1),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("in_place", [True, False])
def test_a_broken_off_update_leaves_a_table_of_no_use(use, in_place):
    made = table([whole("h1.b")], "momentum", in_place=in_place)

    def update():
        with made.updating(learning_rate=0.1) as each:
            each.apply(0, 0, [np.zeros(3, np.float32)])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        update()
    assert made.step == 0
    message = (
        "table ps: an update was broken off, and its values are no longer of one step"
    )
    with pytest.raises(RunError, match=message) as caught:
        USES[use](made)
    assert caught.value.hint == "begin again from saved parameters"


def test_stages_come_in_their_order():
    made = table([whole("h1.b")], "lamb")
    gradient = np.ones(7, np.float32)
    with pytest.raises(AssertionError, match="direct comes first"):
        made.update_by([1.0], learning_rate=0.1)
    with pytest.raises(AssertionError, match="two passes"):
        made.update([gradient], learning_rate=0.1)
    made.direct([gradient])
    with pytest.raises(AssertionError, match="update_by comes first"):
        made.direct([gradient])
    made.update_by([1.0], learning_rate=0.1)
    assert made.step == 1
    with pytest.raises(AssertionError, match="no direction"):
        table([whole("h1.b")]).direct([gradient])


def test_a_direction_changes_no_value():
    made = table(ALL, "lamb", {"weight_decay": 0.1})
    before = [value.copy() for value in made.values()]
    directions = made.direct(list(gradients(0).values()))
    assert made.step == 0
    for value, kept, direction in zip(made.values(), before, directions, strict=True):
        np.testing.assert_array_equal(value, kept)
        assert direction.shape == value.shape
        assert not direction.flags.writeable


def test_sums_of_squares_over_slices_give_the_ratio_of_the_whole():
    """As servers do it: each sends two sums for its block, all follow one ratio."""
    hyper = {"weight_decay": 0.1, "trust_coefficient": 0.5}
    one = table([whole("out.w")], "lars", hyper)
    parts = [
        table([cut("out.w", *ends)], "lars", hyper) for ends in ((0, 900), (900, 2100))
    ]
    for step, rate in enumerate(RATES[:5]):
        made = gradients(step)["out.w"]
        update(one, [made], rate)
        squares = np.zeros(2)
        for part in parts:
            (block,), (value,) = part.blocks, part.values()
            (direction,) = part.direct([made.ravel()[block.start : block.stop]])
            squares += [
                np.square(a, dtype=np.float64).sum() for a in (value, direction)
            ]
        by = trust_ratio(*squares, optimizers.trust("lars", hyper))
        for part in parts:
            part.update_by([by], learning_rate=rate)
    together = np.concatenate([part.values()[0] for part in parts])
    np.testing.assert_allclose(together, one.values()[0].ravel(), rtol=1e-6)
