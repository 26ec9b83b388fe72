"""Copies to and from devices: small arrays together, and through page-locked memory."""

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from placer.runtime.exchange import transfers
from placer.runtime.exchange.transfers import PACKED_BELOW, has_page_locked, put


def on_mesh(spec):
    return NamedSharding(Mesh(np.array(jax.devices("cpu")[1:3]), ("rows",)), spec)


WHOLE = {
    "one device": SingleDeviceSharding(jax.devices("cpu")[1]),
    "a mesh": on_mesh(PartitionSpec()),
}


def some_arrays(random):
    """Return small and large arrays of several dtypes, also scalars and empty ones."""
    shapes = [(3, 5), (), (0, 4), (7,), (PACKED_BELOW // 4,), (2, 1, 3)]
    dtypes = [np.float32, np.int32, ml_dtypes.bfloat16, np.bool_]
    return [
        np.asarray(random.integers(0, 9, shape)).astype(dtype)
        for shape in shapes
        for dtype in dtypes
    ]


@pytest.mark.parametrize("to", WHOLE)
def test_arrays_that_are_copied_together_are_those_copied_one_by_one(to, monkeypatch):
    arrays = some_arrays(np.random.default_rng(0))
    flat = []
    concatenate = np.concatenate
    monkeypatch.setattr(
        transfers.np, "concatenate", lambda a: flat.append(len(a)) or concatenate(a)
    )
    copies = put(arrays, [WHOLE[to]] * len(arrays), 0)
    assert flat == [5, 5, 6, 6]  # of each dtype; two of its arrays are larger
    for array, copy in zip(arrays, copies, strict=True):
        assert copy.sharding.is_equivalent_to(WHOLE[to], array.ndim)
        assert copy.dtype == array.dtype
        np.testing.assert_array_equal(np.asarray(copy), array)


def test_rows_are_split_and_never_copied_together():
    rows = [np.arange(4 * i).reshape(4, i) for i in range(1, 5)]
    whole = [np.arange(i) for i in range(1, 5)]
    shardings = [on_mesh(PartitionSpec("rows"))] * 4 + [WHOLE["a mesh"]] * 4
    copies = put([*rows, *whole], shardings, 4)
    for array, copy, sharding in zip([*rows, *whole], copies, shardings, strict=True):
        assert copy.sharding.is_equivalent_to(sharding, array.ndim)
        np.testing.assert_array_equal(np.asarray(copy), array)


def test_arrays_on_devices_are_copied_as_they_are():
    (array,) = jax.device_put([np.arange(3)], jax.devices("cpu")[0])
    copies = put([array, array, array], [WHOLE["one device"]] * 3, 0)
    assert [copy.tolist() for copy in copies] == [[0, 1, 2]] * 3
    assert {device for copy in copies for device in copy.devices()} == {
        jax.devices("cpu")[1]
    }


def test_page_locked_memory_is_read_without_another_copy():
    assert has_page_locked(jax.devices("cpu")[1])  # in name only
    scalar, rows, whole = (
        jax.device_put(np.float32(3), WHOLE["one device"]),
        jax.device_put(np.arange(8).reshape(4, 2), on_mesh(PartitionSpec("rows"))),
        jax.device_put(np.arange(5), WHOLE["a mesh"]),
    )
    copies = transfers.to_page_locked([scalar, rows, whole])
    assert {copy.sharding.memory_kind for copy in copies} == {"pinned_host"}
    assert len(copies[2].devices()) == 1  # the others have the same
    for copy, value in zip(copies, (scalar, rows, whole), strict=True):
        np.testing.assert_array_equal(np.asarray(copy), np.asarray(value))
    for copy in (copies[0], copies[2]):
        assert np.asarray(copy).ctypes.data == copy.unsafe_buffer_pointer()
