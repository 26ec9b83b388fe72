"""Where a table's values lie, and when a view of them changes."""

import jax
import numpy as np
import pytest
from support.small_tables import (
    ALL,
    SHAPES,
    VARIANTS,
    gradients,
    named,
    table,
    update,
    whole,
)

from placer.memory import aligned


class Pages:
    """Memory from outside, as shared memory: it keeps what it gave."""

    def __init__(self):
        self.given = []

    def __call__(self, nbytes):
        self.given.append(aligned.zeros((nbytes,), np.uint8))
        return self.given[-1]


def steps(made, number):
    for step in range(number):
        update(made, list(gradients(step).values()), 0.1)


@pytest.mark.parametrize("case", VARIANTS, ids=named)
def test_in_place_a_view_shows_the_new_values(case):
    pages = Pages()
    made, other = table(ALL, *case, in_place=True, allocate=pages), table(ALL, *case)
    views = made.values()
    for step in range(3):
        for each in (made, other):
            update(each, list(gradients(step).values()), 0.1)
        for view, new, expected in zip(
            views, made.values(), other.values(), strict=True
        ):
            np.testing.assert_array_equal(view, expected)
            assert new.ctypes.data == view.ctypes.data
    assert len(pages.given) == 1
    loaded = [np.full(shape, 3.0, np.float32) for shape in SHAPES.values()]
    made.load(loaded)
    assert all((view == 3.0).all() for view in views)
    assert len(pages.given) == 1


@pytest.mark.parametrize("case", VARIANTS, ids=named)
def test_two_buffers_take_turns(case):
    made = table(ALL, *case)
    seen = []
    for step in range(5):
        seen += [view.ctypes.data for view in made.values()[:1]]
        steps(made, 1) if step % 2 else made.load(
            [np.zeros(shape, np.float32) for shape in SHAPES.values()]
        )
    assert seen == [*seen[:2] * 2, seen[0]]
    assert seen[0] != seen[1]


def test_two_buffers_take_turns_where_passes_are_kept():
    made = table([whole("h1.b")])
    seen = []
    for _ in range(6):
        seen += [view.ctypes.data for view in made.values()]
        with made.updating(learning_rate=0.1) as each:  # lives on to the next turn
            each.apply(0, 0, [np.ones(7, np.float32)])
    each.check_complete()
    assert seen == seen[:2] * 3
    assert seen[0] != seen[1]


def test_values_that_views_may_not_see_change_lie_in_no_memory_of_outside():
    """Whoever has a view of that in another process is not known here."""
    pages = Pages()
    steps(table(ALL, "adam", allocate=pages), 2)
    assert pages.given == []


@pytest.mark.parametrize("case", VARIANTS, ids=named)
def test_views_that_are_kept_stay_what_they_were(case):
    made = table(ALL, *case)
    held, copies = [], []
    for step in range(6):
        held.append(made.values())
        copies.append([view.copy() for view in made.values()])
        update(made, list(gradients(step).values()), 0.1)
    for views, before in zip(held, copies, strict=True):
        for view, copy in zip(views, before, strict=True):
            np.testing.assert_array_equal(view, copy)
    assert not np.array_equal(held[0][0], made.values()[0])


def test_a_part_of_a_view_and_what_jax_makes_of_it_stay_too():
    made = table(ALL)
    part = made.values()[2].reshape(-1)[16:32]
    taken = jax.device_put(made.values()[2])
    kept = np.array(part)
    whole_before = np.array(made.values()[2])
    steps(made, 4)
    np.testing.assert_array_equal(part, kept)
    np.testing.assert_array_equal(taken, whole_before)


def test_blocks_begin_at_multiples_of_64_bytes_of_what_was_allocated():
    pages = Pages()
    made = table(ALL, "adam", dtype="bfloat16", allocate=pages, in_place=True)
    (raw,) = pages.given
    begins = [view.ctypes.data - raw.ctypes.data for view in made.values()]
    assert begins == [0, 192, 256, 4480]
    assert raw.size == 4480 + 64
