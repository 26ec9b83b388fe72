"""The sums of a server for workers that update by themselves: their bits and number."""

import ml_dtypes  # noqa: F401  (numpy knows bfloat16 by it)
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.place.layouts.ranges import pack
from placer.plan.plan import Edge, EdgeValue
from placer.runtime.asynchronous.worker_sums import WorkerSums
from placer.runtime.exchange.worker_messages import WorkerMessage

WORKERS = tuple(f"worker:{i}" for i in range(4))
SIZES = (5, 3)


def sums_of(dtype):
    values = tuple(
        EdgeValue(f"g{i}", f"g{i}", dtype, (size,), ("P", "F"), flat=flat)
        for i, (size, flat) in enumerate(zip(SIZES, pack(SIZES), strict=True))
    )
    return WorkerSums(Edge(1, WORKERS, ("ps:0",), values, 0), "ps:0")


def message_of(step, arrays):
    """Return a push of one step, whose arrays arrive in two pieces each."""
    pieces = [
        (number, start, part)
        for number, array in enumerate(arrays, 1)
        for start, part in ((0, array[:2]), (2, array[2:]))
    ]
    return WorkerMessage(1, WORKERS[0], step, step, 1, parts=(iter(pieces),))


def added(pushes, dtype):
    """Return the sum of all pushes since a worker has asked last, as it is defined."""
    kind = np.dtype(dtype)
    wide = np.dtype("float32") if kind.itemsize == 2 else kind
    totals = [array.astype(wide) for array in pushes[0]]
    for arrays in pushes[1:]:
        totals = [t + a.astype(wide) for t, a in zip(totals, arrays, strict=True)]
    return [total.astype(kind) for total in totals]


EVENTS = st.lists(st.one_of(st.none(), st.sampled_from(WORKERS)), max_size=30)
"""A push, or the worker that asks."""


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@settings(max_examples=40, deadline=None, derandomize=True)
@given(events=EVENTS)
def test_workers_that_asked_at_the_same_point_share_a_sum(dtype, events):
    rng = np.random.default_rng(0)
    sums, step = sums_of(dtype), 0
    since = {worker: [] for worker in WORKERS}
    taken = []
    for event in events:
        if event is None:
            step += 1
            arrays = [rng.normal(size=size).astype(dtype) for size in SIZES]
            sums.add(message_of(step, arrays))
            for pushes in since.values():
                pushes.append(arrays)
        else:
            found = sums.take(event)
            pushes, since[event] = since[event], []
            assert (found.steps, found.newest) == (len(pushes), step if pushes else 0)
            wanted = added(pushes, dtype) if pushes else []
            taken += zip(found.arrays, wanted, strict=True)
        points = {len(pushes) for pushes in since.values()} - {0}
        assert sums.kept == len(points)
    for array, wanted in taken:  # what was taken does not change afterwards
        assert array.dtype == np.dtype(dtype)
        assert array.tobytes() == wanted.tobytes()


def test_a_push_is_added_once_for_each_point(monkeypatch):
    sums, made = sums_of("float32"), []
    allocate = sums._allocate
    monkeypatch.setattr(sums, "_allocate", lambda: made.append(1) or allocate())
    ones = [np.ones(size, np.float32) for size in SIZES]
    sums.add(message_of(1, ones))
    sums.add(message_of(2, ones))
    assert len(made) == 1  # one sum for four workers
    first, second = (sums.take(worker) for worker in WORKERS[:2])
    assert first.arrays[0] is second.arrays[0]  # and no copy of it
    sums.add(message_of(3, ones))
    assert (
        len(made) == 3
    )  # a new one for these two, and one for the two that have not asked
    assert sums.take(WORKERS[2]).arrays[0].tolist() == [3.0] * 5
    assert sums.take(WORKERS[0]).arrays[0].tolist() == [1.0] * 5
    assert first.arrays[0].tolist() == [2.0] * 5
