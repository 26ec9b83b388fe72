"""Values that are stored between the tasks of microbatches, and their totals."""

from functools import reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from placer.runtime.node import microbatches
from placer.runtime.node.microbatches import Microbatches
from placer.runtime.node.position import Position
from placer.tables.half_sums import add_in_float32

ORDER = (
    "forward.0",
    "forward.1",
    "backward.0",
    "forward.2",
    "backward.1",
    "backward.2",
)


def test_tasks_run_in_their_turns_with_their_microbatch():
    micro = Microbatches(position=Position(3), turns=ORDER)
    tasks = [f"{task}.{micro.position.microbatch}" for task in micro.microbatches()]
    assert tasks == list(ORDER)
    assert micro.position.microbatch is None


def test_stored_values_belong_to_their_microbatch():
    micro = Microbatches(position=Position(3), turns=ORDER)
    taken = []
    for task in micro.microbatches():
        if task == "forward":
            micro.keep_values(x=micro.position.microbatch)
        else:
            taken += micro.pop_values("x")
    assert taken == [0, 1, 2]


@pytest.mark.parametrize("as_array", [np.asarray, jnp.asarray])
def test_sums_do_not_change_their_terms(as_array):
    micro = Microbatches(position=Position(3), turns=("all.0", "all.1", "all.2"))
    parts = [as_array(np.float32([i, 10 * i])) for i in range(1, 4)]
    for _ in micro.microbatches():
        micro.sum_microbatches(g=parts[micro.position.microbatch])
        micro.one_microbatch(
            same="first" if micro.position.microbatch == 0 else "later"
        )
    total, same = micro.microbatch_totals("g", "same")
    assert np.asarray(total).tolist() == [6, 60]
    assert same == "first"
    assert [np.asarray(part).tolist() for part in parts] == [[1, 10], [2, 20], [3, 30]]


class Gradients(NamedTuple):
    w: jax.Array
    half: jax.Array


def test_all_sums_of_a_microbatch_are_made_in_one_call_with_the_same_bits(monkeypatch):
    parts, calls = 5, []
    jitted = microbatches._jitted_sums()

    def counted(donated, kept, terms):
        calls.append((len(donated), len(kept)))
        return jitted(donated, kept, terms)

    monkeypatch.setattr(microbatches, "_jitted_sums", lambda: counted)
    random = np.random.default_rng(0)
    kinds = (((), np.float32), ((40, 7), np.float32), ((9,), ml_dtypes.bfloat16))
    drawn = [
        [random.normal(size=shape).astype(dtype) for shape, dtype in kinds]
        for _ in range(parts)
    ]
    terms = [[*map(jnp.asarray, arrays)] for arrays in drawn]
    micro = Microbatches(
        position=Position(parts), turns=[f"all.{i}" for i in range(parts)]
    )
    for _ in micro.microbatches():
        loss, *g = terms[micro.position.microbatch]
        late = (
            {"late": loss} if micro.position.microbatch else {}
        )  # not in the first one
        micro.sum_microbatches(loss=loss, g=Gradients(*g), **late)
    loss, g, late = micro.microbatch_totals("loss", "g", "late")
    assert calls == [(0, 3), (3, 1), (4, 0), (4, 0)]
    for i, total in enumerate((loss, *g)):
        alone = reduce(add_in_float32, [arrays[i] for arrays in drawn])
        assert np.asarray(total).tobytes() == alone.astype(total.dtype).tobytes()
    assert late == reduce(add_in_float32, [arrays[0] for arrays in drawn[1:]])
    for arrays, before in zip(terms, drawn, strict=True):
        for array, old in zip(arrays, before, strict=True):
            np.testing.assert_array_equal(np.asarray(array), old)


def test_sums_on_several_devices_stay_there():
    devices = jax.local_devices(backend="cpu")[:2]
    assert len(devices) == 2
    micro = Microbatches(position=Position(3), turns=("all.0", "all.1", "all.2"))
    for _ in micro.microbatches():
        on_each = [jax.device_put(np.ones(2, np.float32), device) for device in devices]
        micro.sum_microbatches(**{f"g{i}": array for i, array in enumerate(on_each)})
    totals = micro.microbatch_totals(*(f"g{i}" for i, _ in enumerate(devices)))
    for total, device in zip(totals, devices, strict=True):
        assert total.devices() == {device}
        assert np.asarray(total).tolist() == [3, 3]


@pytest.mark.parametrize("as_array", [np.asarray, jnp.asarray])
def test_rows_are_concatenated_in_the_order_of_microbatches(as_array):
    micro = Microbatches(position=Position(2), turns=("all.1", "all.0"))
    for _ in micro.microbatches():
        rows = as_array([micro.position.microbatch, micro.position.microbatch + 10])
        micro.join_microbatches(rows=rows)
    (rows,) = micro.microbatch_totals("rows")
    assert np.asarray(rows).tolist() == [0, 10, 1, 11]


@pytest.mark.parametrize("as_array", [np.asarray, jnp.asarray])
def test_a_value_of_the_whole_step_is_split_or_counted_once(as_array):
    micro = Microbatches(position=Position(2, count=5), turns=("all.0", "all.1"))
    value = as_array(np.arange(1, 6))
    found = [
        (
            np.asarray(micro.split_microbatches(value)).tolist(),
            int(micro.first_microbatch(value).sum()),
        )
        for _ in micro.microbatches()
    ]
    assert found == [([1, 2, 3], 15), ([4, 5], 0)]


@pytest.mark.parametrize("as_array", [np.asarray, jnp.asarray])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_floats_are_added_in_float32_and_rounded_once(as_array, dtype):
    parts = 4096
    micro = Microbatches(
        position=Position(parts), turns=[f"all.{i}" for i in range(parts)]
    )
    one = as_array(np.ones(2).astype(jnp.dtype(dtype)))
    for _ in micro.microbatches():
        micro.sum_microbatches(g=one)
    (total,) = micro.microbatch_totals("g")
    assert total.dtype == dtype
    assert np.asarray(total).astype(np.float32).tolist() == [parts, parts]
    assert np.asarray(one).astype(np.float32).tolist() == [1, 1]
    micro.sum_microbatches(g=one)  # the next step starts from zero
    assert micro.microbatch_totals("g")[0].dtype == dtype
