"""The memory of a table's values, and when views of them change."""

import jax
import numpy as np
import pytest
from support.small_tables import (
    ALL,
    SHAPES,
    VARIANTS,
    case_id,
    make_gradients,
    make_table,
    slow_but_variants,
    update_table,
    whole_block,
)

from placer.system.memory import aligned


class Pages:
    """An allocator like that of shared memory, which records what it has allocated."""

    def __init__(self):
        self.allocated = []

    def __call__(self, nbytes):
        self.allocated.append(aligned.zeros((nbytes,), np.uint8))
        return self.allocated[-1]


def run_steps(table, number):
    for step in range(number):
        update_table(table, list(make_gradients(step).values()), 0.1)


# Each kernel is compiled for it; that of adam has slots, and that of lamb two phases.
@pytest.mark.parametrize(
    "case", slow_but_variants([("adam", {}), ("lamb", {})]), ids=case_id
)
def test_views_of_a_table_in_place_show_new_values(case):
    pages = Pages()
    table, other = (
        make_table(ALL, *case, in_place=True, allocate=pages),
        make_table(ALL, *case),
    )
    views = table.values()
    for step in range(3):
        for each in (table, other):
            update_table(each, list(make_gradients(step).values()), 0.1)
        for view, new, expected in zip(
            views, table.values(), other.values(), strict=True
        ):
            np.testing.assert_array_equal(view, expected)
            assert new.ctypes.data == view.ctypes.data
    assert len(pages.allocated) == 1
    loaded = [np.full(shape, 3.0, np.float32) for shape in SHAPES.values()]
    table.load(loaded)
    assert all((view == 3.0).all() for view in views)
    assert len(pages.allocated) == 1


@pytest.mark.parametrize("case", VARIANTS, ids=case_id)
def test_two_buffers_alternate(case):
    table = make_table(ALL, *case)
    seen = []
    for step in range(5):
        seen += [view.ctypes.data for view in table.values()[:1]]
        run_steps(table, 1) if step % 2 else table.load(
            [np.zeros(shape, np.float32) for shape in SHAPES.values()]
        )
    assert seen == [*seen[:2] * 2, seen[0]]
    assert seen[0] != seen[1]


def test_two_buffers_alternate_while_update_passes_exist():
    table = make_table([whole_block("h1.b")])
    seen = []
    for _ in range(6):
        seen += [view.ctypes.data for view in table.values()]
        # The pass exists until the next one is created.
        with table.update_in_chunks(learning_rate=0.1) as update_pass:
            update_pass.apply(0, 0, [np.ones(7, np.float32)])
    update_pass.check_complete()
    assert seen == seen[:2] * 3
    assert seen[0] != seen[1]


def test_alternating_buffers_do_not_use_shared_memory():
    """Views of shared memory in another process cannot be counted."""
    pages = Pages()
    run_steps(make_table(ALL, "adam", allocate=pages), 2)
    assert pages.allocated == []


@pytest.mark.parametrize("case", VARIANTS, ids=case_id)
def test_views_keep_their_contents(case):
    table = make_table(ALL, *case)
    held, copies = [], []
    for step in range(6):
        held.append(table.values())
        copies.append([view.copy() for view in table.values()])
        update_table(table, list(make_gradients(step).values()), 0.1)
    for views, before in zip(held, copies, strict=True):
        for view, copy in zip(views, before, strict=True):
            np.testing.assert_array_equal(view, copy)
    assert not np.array_equal(held[0][0], table.values()[0])


def test_parts_of_views_and_jax_arrays_keep_their_contents():
    table = make_table(ALL)
    part = table.values()[2].reshape(-1)[16:32]
    on_device = jax.device_put(table.values()[2])
    contents = np.array(part)
    values_before = np.array(table.values()[2])
    run_steps(table, 4)
    np.testing.assert_array_equal(part, contents)
    np.testing.assert_array_equal(on_device, values_before)


def test_blocks_start_at_multiples_of_64_bytes():
    pages = Pages()
    table = make_table(ALL, "adam", dtype="bfloat16", allocate=pages, in_place=True)
    (raw,) = pages.allocated
    offsets = [view.ctypes.data - raw.ctypes.data for view in table.values()]
    assert offsets == [0, 192, 256, 4480]
    assert raw.size == 4480 + 64
