"""An evaluation ends on a node when everything that it recorded is computed."""

import numpy as np

from placer.readers import Order
from placer.runtime.batches.batches import Batches
from placer.runtime.node.batch_calls import BatchCalls
from placer.runtime.node.position import Position


class Late:
    """A value that is computed when it is read."""

    computed = False

    def __array__(self, dtype=None, copy=None):
        self.computed = True
        return np.zeros(1, np.float32)


def test_all_recorded_values_are_computed_at_the_end():
    """A batch may record several times."""
    order = Order(5, 2, False, 0, "keep")
    batches = Batches(order, None)
    calls = BatchCalls(Position(), batches, batches, (None, None), lambda *_: None)
    values = []
    calls.position.enter_evaluation(1)
    for batch in calls.batches():
        assert all(late.computed for late in values[: 2 * (batch - 1)])
        values += [Late(), Late()]
        calls.record(seen=values[-2])
        calls.record(loss=values[-1])
    assert len(values) == 6
    assert all(late.computed for late in values)
