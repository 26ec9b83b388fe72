"""Updates have the same bits whole, in slices and in chunks, for any number of
workers."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.small_tables import (
    ALL,
    ONE_PHASE,
    RATES,
    VARIANTS,
    block_of,
    case_id,
    initial_values,
    make_gradients,
    make_table,
    planned,
    slow_but_variants,
    trust_ratio,
    trust_ratio_of,
    update_table,
    whole_block,
)

from placer.errors import RunError
from placer.plan.settings.training import optimizers
from placer.plan.settings.training.slicing import Block
from placer.tables import apply_gradients
from placer.tables.dense import DenseTable

TWO_PHASE = [case for case in VARIANTS if case not in ONE_PHASE]
DTYPES = ["float32", "float64", "bfloat16"]
ALL_AT_ONCE = 1 << 20
"""More elements than any block in this file has."""


def check_same_bits(one, other):
    assert one.step == other.step
    for a, b in zip(one.values(), other.values(), strict=True):
        assert a.tobytes() == b.tobytes()
    for slot, arrays in one.slots().items():
        for a, b in zip(arrays, other.slots()[slot], strict=True):
            assert a.tobytes() == b.tobytes()


def sum_in_order(parts):
    """Add from left to right, in the arrays' dtype."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def apply_in_chunks(pass_, blocks, workers, length):
    """Apply the gradients of all workers to a pass, `length` elements at a time."""
    for index, block in enumerate(blocks):
        flat = [worker[index].reshape(-1) for worker in workers]
        for low in range(0, block.numel, length):
            pass_.apply(index, low, [array[low : low + length] for array in flat])


def update_by_sum(table, workers, rate, scale=None):
    """Update by the sum of the workers, which stays in float32 for half floats."""
    if table.dtype.itemsize == 2:
        with table.update_in_chunks(learning_rate=rate, scale=scale) as pass_:
            apply_in_chunks(pass_, table.blocks, workers, ALL_AT_ONCE)
    else:
        total = [sum_in_order(parts) for parts in zip(*workers, strict=True)]
        table.update(total, learning_rate=rate, scale=scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", VARIANTS, ids=case_id)
def test_slices_on_several_tables_have_the_bits_of_one_table(case, dtype):
    bounds = [0, 1, 400, 417, 1500, 2100]
    one = make_table([whole_block("out.w")], *case, dtype)
    slices = [
        make_table([block_of("out.w", low, high, i)], *case, dtype)
        for i, (low, high) in enumerate(pairwise(bounds))
    ]
    is_two_phase = optimizers.RULES[case[0]].is_two_phase
    for step, rate in enumerate(RATES[:6]):
        gradient = make_gradients(step, one.dtype)["out.w"]
        (before,) = one.values()
        if is_two_phase:
            (direction,) = one.compute_directions([gradient], scale=0.3)
            by = trust_ratio_of(one, before, direction)
            one.apply_directions([by], learning_rate=rate)
        else:
            one.update([gradient], learning_rate=rate, scale=0.3)
        for part in slices:
            (block,) = part.blocks
            piece = gradient.ravel()[block.start : block.stop]
            if is_two_phase:
                part.compute_directions([piece], scale=0.3)
                part.apply_directions([by], learning_rate=rate)
            else:
                part.update([piece], learning_rate=rate, scale=0.3)
    together = b"".join(part.values()[0].tobytes() for part in slices)
    assert together == one.values()[0].tobytes()
    for slot, (state,) in one.slots().items():
        parts = b"".join(part.slots()[slot][0].tobytes() for part in slices)
        assert parts == state.tobytes()


@pytest.mark.parametrize(
    ("workers", "in_place"),
    [(1, True), (2, False), (3, True), (apply_gradients.MAX_FUSED + 1, False)],
)
@pytest.mark.parametrize("dtype", DTYPES)
# Each kernel is compiled for each of these; all compute their gradient by one function.
@pytest.mark.parametrize(
    "case", slow_but_variants([("adam", {}), ("sgd", {})], ONE_PHASE), ids=case_id
)
def test_chunks_are_summed_in_the_order_of_the_workers(case, dtype, workers, in_place):
    at_once = make_table(ALL, *case, dtype)
    chunked = make_table(ALL, *case, dtype, in_place=in_place)
    for step, rate in enumerate(RATES[:3]):
        drawn = [
            list(make_gradients(100 * step + w, at_once.dtype).values())
            for w in range(workers)
        ]
        update_by_sum(at_once, drawn, rate, 0.7)
        with chunked.update_in_chunks(learning_rate=rate, scale=0.7) as pass_:
            apply_in_chunks(pass_, ALL, drawn, 61)
    check_same_bits(at_once, chunked)


@pytest.mark.parametrize("workers", [5, apply_gradients.MAX_FUSED + 1])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_floats_of_several_workers_are_rounded_after_the_sum(dtype, workers):
    table = make_table([whole_block("h1.b")], "sgd", dtype=dtype)
    (before,) = table.values()
    little = float(np.finfo(np.float16).eps if dtype == "float16" else 2**-7) / 4
    drawn = [np.full(7, 1.0 if w == 0 else little, table.dtype) for w in range(workers)]
    assert (sum_in_order(drawn) == 1).all()  # half floats lose the small terms
    with table.update_in_chunks(learning_rate=2**-9) as pass_:
        pass_.apply(0, 0, drawn)
    (value,) = table.values()
    total = np.float32(1.0) + (workers - 1) * np.float32(little)
    expected = before.astype(np.float32) - np.float32(2**-9) * total
    np.testing.assert_array_equal(value, expected.astype(table.dtype))


@st.composite
def layouts(draw):
    """Draw a parameter's size, blocks of it on several tables, and a chunk length."""
    size = draw(st.integers(1, 300))
    cuts = sorted(draw(st.sets(st.integers(1, size), max_size=6)) | {0, size})
    ends = list(pairwise(cuts))
    tables = draw(st.integers(1, 3))
    chunk = draw(st.integers(1, 70))
    return size, [ends[i::tables] for i in range(tables)], chunk


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    layouts(),
    st.sampled_from(ONE_PHASE),
    st.sampled_from(DTYPES),
    st.integers(1, 3),
    st.booleans(),
)
def test_the_slicing_of_blocks_changes_no_bit(layout, case, dtype, workers, in_place):
    size, held, chunk = layout

    def make(ends, **memory):
        blocks = [
            Block("w", f"w.block{low}", low, high, (high - low,)) for low, high in ends
        ]
        initial = initial_values(blocks, dtype, 1, {"w": "normal"}, {"w": (size,)})
        return DenseTable(planned(blocks, *case, **memory), dtype, initial)

    one = make([(0, size)])
    parts = [make(ends, in_place=in_place) for ends in held]
    rng = np.random.default_rng(size)
    for rate in RATES[:2]:
        drawn = [rng.normal(size=size).astype(one.dtype) for _ in range(workers)]
        update_by_sum(one, [[d] for d in drawn], rate)
        for part in parts:
            pieces = [[d[b.start : b.stop] for b in part.blocks] for d in drawn]
            with part.update_in_chunks(learning_rate=rate) as pass_:
                apply_in_chunks(pass_, part.blocks, pieces, chunk)
    (value,) = one.values()
    for part in parts:
        for block, view in zip(part.blocks, part.values(), strict=True):
            assert view.tobytes() == value[block.start : block.stop].tobytes()


def test_several_tiles_have_the_same_bits():
    size = 2 * apply_gradients.TILE + 17
    block = Block("w", "w", 0, size, (size,))
    initial = initial_values([block], "float32", 1, {"w": "normal"}, {"w": (size,)})

    def make(**memory):
        return DenseTable(planned([block], "adam", **memory), "float32", initial)

    tables = [make(in_place=True), make(), make()]
    drawn = [
        np.random.default_rng(w).normal(size=size).astype(np.float32)
        for w in range(apply_gradients.MAX_FUSED + 1)
    ]
    for _ in range(2):
        for table in tables[:2]:
            table.update([sum_in_order(drawn)], learning_rate=0.1)
        with tables[2].update_in_chunks(learning_rate=0.1) as pass_:
            pass_.apply(0, 0, drawn)
    check_same_bits(tables[0], tables[1])
    check_same_bits(tables[0], tables[2])


def test_strided_unaligned_and_read_only_gradients_are_read():
    block = whole_block("h1.b")
    gradient = make_gradients(0)["h1.b"]
    strided = np.zeros(14, np.float32)[::2]
    shifted = np.zeros(29, np.uint8)[1:].view(np.float32)
    frozen = gradient.copy()
    strided[:], shifted[:] = gradient, gradient
    frozen.flags.writeable = False
    assert not shifted.flags.aligned
    expected = make_table([block])
    expected.update([gradient], learning_rate=0.1)
    for variant in (strided, shifted, frozen):
        one = make_table([block])
        with one.update_in_chunks(learning_rate=0.1) as pass_:
            pass_.apply(0, 0, [variant])
        check_same_bits(one, expected)


@pytest.mark.parametrize(
    ("start", "chunk", "message"),
    [
        (
            0,
            [np.zeros(3)],
            r"table ps: gradient of h1.b from element 0 is float64\[3\],"
            r" expected float32\[3\]",
        ),
        (
            0,
            [np.zeros(8, np.float32)],
            r"from element 0 is float32\[8\], expected float32\[7\]",
        ),
        (
            0,
            [np.zeros(3, np.float32), np.zeros(2, np.float32)],
            r"from element 0 is float32\[2\], expected float32\[3\]",
        ),
        (
            0,
            [np.zeros((7, 1), np.float32)],
            r"from element 0 is float32\[7, 1\], expected float32\[7\]",
        ),
    ],
)
def test_chunks_that_do_not_fit_raise(start, chunk, message):
    table = make_table([whole_block("h1.b")])
    with (
        pytest.raises(RunError, match=message),
        table.update_in_chunks(learning_rate=0.1) as pass_,
    ):
        pass_.apply(0, start, chunk)


@pytest.mark.parametrize("start", [1, 4])
def test_elements_are_visited_in_order_and_once(start):
    table = make_table([whole_block("h1.b")])

    def update():
        with table.update_in_chunks(learning_rate=0.1) as pass_:
            pass_.apply(0, 0, [np.zeros(3, np.float32)])
            pass_.apply(0, start, [np.zeros(3, np.float32)])

    with pytest.raises(
        RunError, match=rf"h1\.b starts at element {start}, but element 3 is next"
    ):
        update()


def test_missing_elements_raise():
    table = make_table([whole_block("h1.b"), whole_block("gain")])
    with (
        pytest.raises(RunError, match="gradient of gain ends at element 0 of 1"),
        table.update_in_chunks(learning_rate=0.1) as pass_,
    ):
        pass_.apply(0, 0, [np.zeros(7, np.float32)])


USES = {
    "values": lambda t: t.values(),
    "slots": lambda t: t.slots(),
    "load": lambda t: t.load([np.zeros(7, np.float32)]),
    "load_slots": lambda t: t.load_slots({"trace": [np.zeros(7, np.float32)]}),
    "update": lambda t: t.update([np.zeros(7, np.float32)], learning_rate=0.1),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("in_place", [True, False])
def test_a_table_is_unusable_after_an_interrupted_update(use, in_place):
    table = make_table([whole_block("h1.b")], "momentum", in_place=in_place)

    def update():
        with table.update_in_chunks(learning_rate=0.1) as pass_:
            pass_.apply(0, 0, [np.zeros(3, np.float32)])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        update()
    assert table.step == 0
    message = "table ps: an update was interrupted, so only some values were updated"
    with pytest.raises(RunError, match=message) as caught:
        USES[use](table)
    assert caught.value.hint == "start again from saved parameters"


class NotAnArray:
    """An array of a table's block that cannot be read."""

    shape, dtype = (7,), np.dtype("float32")

    def __array__(self, *args: object, **kwargs: object) -> None:
        raise ValueError("its device is gone")


def edit(table):
    with table.editing() as values:
        values[0][:3] = 5
        raise ValueError("stopped")


INTERRUPTED = {
    "editing": edit,
    "load": lambda t: t.load([np.full(7, 5, np.float32), NotAnArray()]),
    "load_slots": lambda t: t.load_slots({"trace": [np.full(7, 5, np.float32), NotAnArray()]}),
}  # fmt: skip


@pytest.mark.parametrize("use", INTERRUPTED)
@pytest.mark.parametrize("in_place", [True, False])
def test_a_table_is_unusable_after_it_was_changed_in_part(use, in_place):
    blocks = [whole_block("h1.b"), replace(whole_block("h1.b"), name="again")]
    table = make_table(blocks, "momentum", in_place=in_place)
    before = [value.copy() for value in table.values()]
    with pytest.raises(ValueError, match=r"stopped|its device is gone"):
        INTERRUPTED[use](table)
    if in_place or use == "load_slots":
        with pytest.raises(RunError, match="so only some values were updated"):
            table.values()
    else:  # what was changed is not what the table uses
        for value, old in zip(table.values(), before, strict=True):
            np.testing.assert_array_equal(value, old)
        update_table(table, [np.ones(7, np.float32)] * 2, 0.1)


def test_phases_must_run_in_order():
    table = make_table([whole_block("h1.b")], "lamb")
    gradient = np.ones(7, np.float32)
    with pytest.raises(AssertionError, match="compute_directions comes first"):
        table.apply_directions([1.0], learning_rate=0.1)
    with pytest.raises(AssertionError, match="two passes"):
        table.update([gradient], learning_rate=0.1)
    table.compute_directions([gradient])
    with pytest.raises(AssertionError, match="apply_directions comes first"):
        table.compute_directions([gradient])
    table.apply_directions([1.0], learning_rate=0.1)
    assert table.step == 1
    with pytest.raises(AssertionError, match="not a two-phase rule"):
        make_table([whole_block("h1.b")]).compute_directions([gradient])


def test_computing_directions_changes_no_value():
    table = make_table(ALL, "lamb", {"weight_decay": 0.1})
    before = [value.copy() for value in table.values()]
    directions = table.compute_directions(list(make_gradients(0).values()))
    assert table.step == 0
    for value, unchanged, direction in zip(
        table.values(), before, directions, strict=True
    ):
        np.testing.assert_array_equal(value, unchanged)
        assert direction.shape == value.shape
        assert not direction.flags.writeable


def test_sums_of_squares_of_slices_give_the_trust_ratio_of_the_whole():
    """Like servers: each sends two sums for its block, and all use one trust ratio."""
    hyper = {"weight_decay": 0.1, "trust_coefficient": 0.5}
    one = make_table([whole_block("out.w")], "lars", hyper)
    parts = [
        make_table([block_of("out.w", *ends)], "lars", hyper)
        for ends in ((0, 900), (900, 2100))
    ]
    for step, rate in enumerate(RATES[:5]):
        gradient = make_gradients(step)["out.w"]
        update_table(one, [gradient], rate)
        squares = np.zeros(2)
        for part in parts:
            (block,), (value,) = part.blocks, part.values()
            (direction,) = part.compute_directions(
                [gradient.ravel()[block.start : block.stop]]
            )
            squares += [
                np.square(a, dtype=np.float64).sum() for a in (value, direction)
            ]
        by = trust_ratio(*squares, optimizers.Lars(**hyper).trust_ratio)
        for part in parts:
            part.apply_directions([by], learning_rate=rate)
    together = np.concatenate([part.values()[0] for part in parts])
    np.testing.assert_allclose(together, one.values()[0].ravel(), rtol=1e-6)
