"""What is kept from one microbatch to the next, and what they make together."""

import jax.numpy as jnp
import numpy as np
import pytest

from placer.runtime.program.microbatches import Microbatches

ORDER = (
    "forward.0",
    "forward.1",
    "backward.0",
    "forward.2",
    "backward.1",
    "backward.2",
)


def test_blocks_come_in_their_turns_each_for_its_microbatch():
    micro = Microbatches(3, ORDER)
    found = [f"{block}.{micro.number}" for block in micro.go()]
    assert found == list(ORDER)
    assert micro.number is None


def test_what_is_kept_belongs_to_its_microbatch():
    micro = Microbatches(3, ORDER)
    taken = []
    for block in micro.go():
        if block == "forward":
            micro.keep({"x": micro.number})
        else:
            taken += micro.kept(["x"], last=True)
    assert taken == [0, 1, 2]


def test_the_rows_of_a_short_batch_are_shared_as_evenly_as_they_can_be():
    micro = Microbatches(3, ("all.0", "all.1", "all.2"))
    assert [micro.range(7) for _ in micro.go()] == [(0, 3), (3, 5), (5, 7)]
    assert micro.range(7) == (0, 7)


@pytest.mark.parametrize("of", [np.asarray, jnp.asarray])
def test_sums_are_made_in_order_and_leave_what_they_are_made_of(of):
    micro = Microbatches(3, ("all.0", "all.1", "all.2"))
    parts = [of(np.float32([i, 10 * i])) for i in range(1, 4)]
    for _ in micro.go():
        micro.sum({"g": parts[micro.number]})
        micro.one({"same": "first" if micro.number == 0 else "later"})
    total, same = micro.totals(["g", "same"])
    assert np.asarray(total).tolist() == [6, 60]
    assert same == "first"
    assert [np.asarray(part).tolist() for part in parts] == [[1, 10], [2, 20], [3, 30]]


@pytest.mark.parametrize("of", [np.asarray, jnp.asarray])
def test_rows_are_joined_in_the_order_of_microbatches(of):
    micro = Microbatches(2, ("all.1", "all.0"))
    for _ in micro.go():
        micro.join({"rows": of([micro.number, micro.number + 10])})
    (rows,) = micro.totals(["rows"])
    assert np.asarray(rows).tolist() == [0, 10, 1, 11]


@pytest.mark.parametrize("of", [np.asarray, jnp.asarray])
def test_a_whole_value_is_split_or_counts_once(of):
    micro = Microbatches(2, ("all.0", "all.1"))
    value = of(np.arange(1, 6))
    found = [
        (np.asarray(micro.split(value, 5)).tolist(), int(micro.first(value).sum()))
        for _ in micro.go()
    ]
    assert found == [([1, 2, 3], 15), ([4, 5], 0)]


@pytest.mark.parametrize("of", [np.asarray, jnp.asarray])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_added_up_in_float32_and_rounded_once(of, dtype):
    parts = 4096
    micro = Microbatches(parts, [f"all.{i}" for i in range(parts)])
    one = of(np.ones(2).astype(jnp.dtype(dtype)))
    for _ in micro.go():
        micro.sum({"g": one})
    (total,) = micro.totals(["g"])
    assert total.dtype == dtype
    assert np.asarray(total).astype(np.float32).tolist() == [parts, parts]
    assert np.asarray(one).astype(np.float32).tolist() == [1, 1]
    micro.sum({"g": one})  # the next step begins anew
    assert micro.totals(["g"])[0].dtype == dtype
